"""A Celery task that charges an invoice once, although two workers may get it at the same time.

celery -A celery_task worker
"""

from celery import Celery

import leasehold
from leasehold import LockHeld, LockLost, Unavailable

app = Celery("billing")  # The broker is in CELERY_BROKER_URL.


# Waiting would block the worker, so a task that finds the lock held comes again later.
@app.task(
    acks_late=True,
    # With acks_late alone, Celery acknowledges a task whose process was killed.
    reject_on_worker_lost=True,
    autoretry_for=(LockHeld, LockLost, Unavailable),
    retry_backoff=True,
    max_retries=None,
)
def charge(invoice: str) -> None:
    """Does nothing if an earlier run has succeeded. A run that fails between the two steps is
    repeated, so the service compares the token, and knows the invoices that it has charged."""
    with leasehold.lock(f"invoice-{invoice}", wait=0) as lease:
        if "charged" not in lease.completed:
            print(f"charges {invoice} with {lease.headers}")
            lease.complete("charged")
