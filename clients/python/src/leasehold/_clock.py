"""The clock of all deadlines."""

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def now() -> float:
    """Returns seconds on a clock that never steps and, on Linux and macOS, also runs while the
    machine sleeps."""
    # On Windows, which has no clock_gettime, time.monotonic() counts the sleep, too.
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)
