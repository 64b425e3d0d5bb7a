"""What a client reports of its locks, for an app's metrics and traces.

A hook must not cost a lease: its error is logged, and none runs on the thread that renews leases.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TYPE_CHECKING, ParamSpec

from ._engine import log
from .errors import LockLost

if TYPE_CHECKING:
    from ._lease import Lease

_P = ParamSpec("_P")


class Hooks:
    """Methods that a client calls when something happens to a lock. Override what you need.

    `acquired`, `not_acquired` and `released` are called in the thread or task of the caller, whose
    current span and other context variables they see. They must be short: the caller waits for
    them. `lost` is called in a thread of its own, or by the release that finds the loss. An error
    that a hook raises is logged.

    After `acquired`, a lease that ends has one call of `lost` or `released`. A process that ends
    does not wait for `lost`.
    """

    def acquired(self, lease: Lease, waited: float) -> None:
        """A lock was acquired, after this many seconds."""

    def not_acquired(self, resource: str, error: BaseException, waited: float) -> None:
        """A lock was not acquired. `error` is what the caller gets: LockHeld, Unavailable, Refused,
        or the end of its wait, such as asyncio.CancelledError."""

    def lost(self, lease: Lease, reason: str) -> None:
        """A lock was lost: `validity_over`, a reason of the HTTP API, or `abandoned` if the hook
        `acquired` was interrupted, for example by a KeyboardInterrupt."""

    def released(self, lease: Lease) -> None:
        """A lock was released by the app."""


class Observer:
    """Calls the hooks of a client."""

    def __init__(self, hooks: Hooks | None) -> None:
        self._hooks = hooks
        self._losses: SimpleQueue[Lease] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def acquired(self, lease: Lease, waited: float) -> None:
        """The caller gets a lease."""
        if self._hooks is not None:
            try:
                _safely(self._hooks.acquired, lease, waited)
            finally:
                # Afterwards: a lease may be lost already.
                lease.on_lost(self._lost)

    def not_acquired(self, resource: str, error: BaseException, waited: float) -> None:
        """The caller gets an error."""
        if self._hooks is not None:
            _safely(self._hooks.not_acquired, resource, error, waited)

    @contextmanager
    def releasing(self, lease: Lease) -> Iterator[None]:
        """Calls a hook when the block ends in which the app releases a lease."""
        reason: str | None = None
        try:
            yield
        except LockLost as error:
            reason = error.code
            raise
        finally:
            # Also after a cancellation: the lease is over, and the request is sent.
            if self._hooks is not None and reason is not None:
                _safely(self._hooks.lost, lease, reason)
            elif self._hooks is not None:
                _safely(self._hooks.released, lease)

    def _lost(self, lease: Lease) -> None:
        """On the thread of the engine, which must not run a hook."""
        # In a process made by fork the thread is not alive, and the queue is the parent's.
        if self._thread is None or not self._thread.is_alive():
            self._losses = SimpleQueue()
            self._thread = threading.Thread(
                target=self._run, args=(self._losses,), name="leasehold-hooks", daemon=True
            )
            self._thread.start()
        self._losses.put(lease)

    def _run(self, losses: SimpleQueue[Lease]) -> None:
        assert self._hooks is not None
        while True:
            lease = losses.get()
            _safely(self._hooks.lost, lease, lease.reason or "")
            # Not kept until the next loss.
            del lease


def _safely(hook: Callable[_P, None], *args: _P.args, **kwargs: _P.kwargs) -> None:
    try:
        hook(*args, **kwargs)
    except Exception:
        log.exception("a hook failed")
