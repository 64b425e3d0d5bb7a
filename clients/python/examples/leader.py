"""A leader that works term after term. Ctrl-C steps down."""

import leasehold
from leasehold import Lease

WORK = ["first", "second"]


def lead(lease: Lease) -> None:
    """Ends when the lead is lost, or asked for."""
    while WORK and not lease.release_requested and not lease.lost.wait(0.1):
        print(f"does the {WORK.pop(0)} piece with {lease.headers}")
    done.set()


if __name__ == "__main__":
    import threading

    done = threading.Event()
    with leasehold.elect("billing", lead):
        done.wait()
