"""A candidate of an election, in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from types import TracebackType

from ._acquire import Acquisition
from ._engine import Engine, log
from ._lease import Lease
from ._lock import Lock
from .errors import LeaseholdError, LockLost, Unavailable

# Between two terms, and after an outage that was too long.
_PAUSE_SECONDS = 1.0


class Election:
    """Runs for an election until `stop`, or the end of a `with` block. It has a thread."""

    def __init__(
        self, engine: Engine, name: str, lead: Lock, leader: Callable[[Lease], None] | None
    ) -> None:
        #: The election's name.
        self.name = name
        self._engine = engine
        self._lead = lead
        self._leader = leader
        self._lease: Lease | None = None
        self._failure: LeaseholdError | None = None
        self._stopped = threading.Event()
        self._mutex = threading.Lock()
        self._acquisition: Acquisition | None = None
        # The end of a term without a `leader`.
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"leasehold-{name}", daemon=True)
        self._thread.start()

    def is_leader(self) -> bool:
        """Whether this process leads now. It sends no request: the lease's own deadline decides.
        Send `lease.token` with every write as the leader all the same.

        Raises the error that ended the candidacy, for example Refused for an invalid name.
        """
        return self.lease is not None

    @property
    def lease(self) -> Lease | None:
        """The lead while this process leads, else None. Raises like `is_leader`."""
        if self._failure is not None:
            # The same object would collect a traceback each time.
            raise self._failure.with_traceback(None)
        lease = self._lease
        return lease if lease is not None and lease.remaining > 0 else None

    def stop(self) -> None:
        """Steps down, and ends the candidacy. A `leader` finds the request in
        `lease.release_requested`, and `stop` waits until it has returned."""
        self._engine.must_not_be_here()
        self._stopped.set()
        with self._mutex:
            if self._acquisition is not None:
                # Without a grant, this ends the wait. With one, `_acquire` releases it.
                self._acquisition.future.cancel()
            if self._lease is not None:
                self._lease.ask_for_release({"reason": "stopped"})
            self._over.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> Election:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                lease = self._acquire()
            except CancelledError:
                return
            except Unavailable as error:
                log.warning("election %s: %s", self.name, error)
                self._stopped.wait(_PAUSE_SECONDS)
                continue
            except LeaseholdError as error:
                log.error("candidacy for %s ended: %s", self.name, error)
                self._failure = error
                return
            log.info("leads %s with token %d", self.name, lease.token)
            self._serve(lease)
            # A leader that returns at once must not flood the API server with terms.
            self._stopped.wait(_PAUSE_SECONDS)

    def _acquire(self) -> Lease:
        with self._mutex:
            if self._stopped.is_set():
                raise CancelledError
            self._acquisition = acquisition = self._lead.start()
        with acquisition.awaited() as future:
            lease = future.result()
        with self._mutex:
            self._acquisition = None
            if not self._stopped.is_set():
                self._lease = lease
                return lease
        # `stop` was called after the grant, for example while a hook ran.
        with suppress(LockLost):
            lease.release()
        raise CancelledError

    def _serve(self, lease: Lease) -> None:
        try:
            if self._leader is not None:
                self._leader(lease)
            else:
                self._wait(lease)
        except LockLost as error:
            log.info("lead of %s lost: %s", self.name, error)
        except BaseException:
            # Also SystemExit, and asyncio's CancelledError: the lead must not outlive the work.
            log.exception("the leader of %s failed", self.name)
        finally:
            with self._mutex:
                self._lease = None
            with suppress(LockLost):
                lease.release()

    def _wait(self, lease: Lease) -> None:
        over = threading.Event()
        lease.on_lost(lambda _: over.set())
        with self._mutex:
            self._over = over
        if not self._stopped.is_set():
            over.wait()
