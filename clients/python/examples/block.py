"""A guarded block: the work stops when the lock is lost."""

import leasehold

with leasehold.lock("billing", wait=60) as lease:
    for invoice in ["a", "b", "c"]:
        lease.check()  # Raises LockLost.
        print(f"charges {invoice} with {lease.headers}")
