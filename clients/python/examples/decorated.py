"""A function that one process runs at a time. Others do not wait for it, and skip it."""

import leasehold
from leasehold import LockHeld


@leasehold.lock("nightly-report", wait=0)
def report() -> None:
    """Runs while the process holds the lock."""
    print("reports")


try:
    report()
except LockHeld as held:
    print(f"skipped: {held.holder} does it")
