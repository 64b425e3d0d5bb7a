"""A lease, and the only place that decides whether it is still valid."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from . import _clock
from ._api import Acquired, CompleteRequest
from ._engine import Engine, log
from ._wire import JSON, Answer, Event, Request
from .errors import LeaseholdError, LockLost, Unavailable, may_pass, of_document

# How long a call may take that does not wait for a lock. The sidecar answers a release after two
# seconds at most, and tries other writes for about five.
CALL_SECONDS = 10.0
# A release that got no answer is repeated after this time.
_RELEASE_SECONDS = 3.0
_PAUSE_SECONDS = 0.2


@dataclass(frozen=True)
class _End:
    reason: str
    detail: str
    #: The app itself has released it. The sidecar's reason `released` is a loss: another process
    #: of the pod did it.
    is_release: bool = False


class Lease:
    """The right to act, until `remaining` is zero. All methods may be called from any thread."""

    def __init__(self, engine: Engine, grant: Acquired, deadline: float, drop: Callable[[], None]):
        #: What is locked.
        self.resource = grant["resource"]
        #: The lease's id, as the HTTP API and the logs have it.
        self.lease_id = grant["leaseId"]
        #: The fencing token: larger than every token given before for this resource.
        self.token = grant["fencingToken"]
        #: The name of the holder that others see.
        self.owner_id = grant["ownerId"]
        #: The keys of work that earlier holders have completed, oldest first.
        self.completed: Sequence[str] = tuple(grant.get("completed", ()))
        #: Set when the lease is lost. A release does not set it.
        self.lost = threading.Event()
        self._engine = engine
        self._drop = drop
        # A signal handler may use the lease while the same thread does.
        self._mutex = threading.RLock()
        self._deadline = deadline
        self._end: _End | None = None
        self._doubt = ""
        self._release_requested: JSON | None = None
        self._callbacks: list[Callable[[Lease], None]] = []
        engine.guard(self)

    def __repr__(self) -> str:
        return f"<Lease of {self.resource!r}, token {self.token}, {self.reason or 'held'}>"

    @property
    def remaining(self) -> float:
        """The seconds for which the lease is valid from now on, if nothing prolongs it. 0 if it has
        ended."""
        with self._mutex:
            return 0.0 if self._ended() else self._deadline - _clock.now()

    @property
    def reason(self) -> str | None:
        """Why the lease has ended: `released`, `validity_over`, or a reason of the HTTP API. None
        while it is valid."""
        with self._mutex:
            end = self._ended()
        return end.reason if end else None

    @property
    def release_requested(self) -> JSON | None:
        """The request to release (`reason`, and for a person `actor` and `message`), or None.
        Finish the work and release it; nothing is taken from you."""
        return self._release_requested

    def check(self) -> None:
        """Raises LockLost if the lease has ended. Call it before each write, and between the steps
        of long work.

        It sends no request: the answer comes from the lease's own deadline.
        """
        with self._mutex:
            end = self._ended()
        if end is not None:
            raise LockLost(end.detail, end.reason)

    @property
    def headers(self) -> dict[str, str]:
        """The header `X-Fencing-Token` for a request to what the lock guards. Raises LockLost like
        `check`."""
        self.check()
        return {"X-Fencing-Token": str(self.token)}

    def on_lost(self, callback: Callable[[Lease], None]) -> None:
        """Has a function called when the lease is lost, at once if it is.

        The thread that reads for all leases calls it, so it must be short, and must not wait.
        """
        with self._mutex:
            self._callbacks.append(callback)
        if self.lost.is_set():
            self._engine.post(self._call_back)

    def release(self) -> None:
        """Releases the lock. The lease is over in any case; whether the sidecar has confirmed it
        does not matter to the next holder for longer than the sidecar's session lives.

        Raises LockLost if the lease was lost before: another holder may have had the lock.
        """
        self._engine.must_not_be_here()
        future = self._release()
        if future is not None:
            with self._engine.observer.releasing(self):
                self._judge(_outcome(future))

    async def release_async(self) -> None:
        """`release` for asyncio."""
        import asyncio

        self._engine.must_not_be_here()
        future = self._release()
        if future is not None:
            with self._engine.observer.releasing(self):
                await asyncio.wait([wrapped := asyncio.wrap_future(future)])
                self._judge(_outcome(wrapped))

    def complete(self, key: str) -> None:
        """Records under a key that work has succeeded; later holders find it in `completed`.

        Raises LockLost, or Unavailable if it is not known whether the key is recorded.
        """
        self.check()
        self._engine.must_not_be_here()
        self._expect_success(call(self._engine, self._completion(key)).result())

    async def complete_async(self, key: str) -> None:
        """`complete` for asyncio."""
        import asyncio

        self._engine.must_not_be_here()
        self.check()
        answer = await asyncio.wrap_future(call(self._engine, self._completion(key)))
        self._expect_success(answer)

    def _expect_success(self, answer: Answer) -> None:
        error = error_of(answer)
        if isinstance(error, LockLost):
            self.lose(error.code, error.detail)
        if error is not None:
            raise error

    def _completion(self, key: str) -> Request:
        return Request("POST", f"/v1/locks/{self.lease_id}/complete", CompleteRequest(key=key))

    def _ended(self) -> _End | None:
        """With the mutex: whether it has ended. The deadline counts, not what the thread saw."""
        if self._end is None and _clock.now() >= self._deadline:
            self._end = _End("validity_over", f"no renewal came in time{self._doubt}")
            self._engine.post(self._after_loss)
        return self._end

    def prolong(self, deadline: float) -> None:
        """Takes a new deadline from the sidecar. A lease that has ended stays ended."""
        with self._mutex:
            if self._end is None:
                self._deadline = deadline
                self._doubt = ""

    def doubt(self, why: str) -> None:
        """Remembers why no new deadline may come."""
        with self._mutex:
            self._doubt = f": {why}"

    def ask_for_release(self, request: JSON) -> None:
        """Takes a request to release."""
        self._release_requested = request

    def lose(self, reason: str, detail: str) -> None:
        """Ends it: the sidecar said so."""
        with self._mutex:
            if self._end is None:
                self._end = _End(reason, detail)
                self._engine.post(self._after_loss)

    def abandon(self) -> None:
        """On the thread: ends a lease that its caller never received."""
        self.lose("abandoned", "its caller did not wait for it")

    def watch(self) -> None:
        """On the thread: ends it at the deadline, also without a call."""
        with self._mutex:
            if not self._ended():
                self._engine.at(self._deadline, self.watch)

    def forked(self) -> None:
        """In a process made by fork: the lock is the parent's."""
        self._mutex = threading.RLock()
        if self._end is None:
            self._end = _End("forked", "the process that acquired it is the parent of this one")
            self.lost = threading.Event()
            self.lost.set()

    def _after_loss(self) -> None:
        self._drop()
        if not self.lost.is_set():
            log.warning("lock lost: %s (token %d): %s", self.resource, self.token, self.reason)
        self.lost.set()
        self._call_back()

    def _call_back(self) -> None:
        with self._mutex:
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback(self)
            except Exception:
                log.exception("a callback of on_lost failed")

    def _release(self) -> Future[Answer] | None:
        """Ends it here, then at the sidecar. None if it was released before."""
        with self._mutex:
            end = self._ended()
            if end is None:
                self._end = _End("released", "the app has released the lock", True)
            seconds = min(CALL_SECONDS, self._deadline - _clock.now())
        if end is None:
            # After the deadline the lock is no longer this one's to release.
            return release(self._engine, self.lease_id, seconds, self._drop)
        if end.is_release:
            return None
        raise LockLost(end.detail, end.reason)

    def _judge(self, answer: Answer | LeaseholdError) -> None:
        if isinstance(answer, LeaseholdError):
            # The work has ended within the validity, and the connection is closed.
            log.warning("release of %s is not confirmed: %s", self.resource, answer)
        elif isinstance(error := error_of(answer), LockLost):
            raise error
        elif error is not None:
            log.warning("release of %s is not confirmed: %s", self.resource, error)
        elif answer.status == 202:
            log.warning("release of %s is pending: %s", self.resource, answer.document)


class _Call:
    """A request with one answer. Without an answer it may be repeated."""

    def __init__(self, engine: Engine, request: Request, seconds: float, attempt: float | None):
        self.future: Future[Answer] = Future()
        self.after: Callable[[], None] | None = None
        self._engine = engine
        self._request = request
        self._until = _clock.now() + seconds
        self._attempt = attempt

    def send(self) -> None:
        """On the thread: makes an attempt."""
        until = self._until
        if self._attempt is not None:
            until = min(until, _clock.now() + self._attempt)
        self._engine.request(self._request, self, until)

    def answered(self, answer: Answer) -> None:
        error = error_of(answer)
        if error is not None and may_pass(error) and self._repeats():
            return
        self._end()
        if self.future.set_running_or_notify_cancel():
            self.future.set_result(answer)

    def received(self, _event: Event) -> None:
        """No call of this kind streams."""

    def broke(self, why: str) -> None:
        if self._repeats():
            return
        self._end()
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(Unavailable(why, "no_answer"))

    def _repeats(self) -> bool:
        time = _clock.now() + _PAUSE_SECONDS
        if self._attempt is None or time >= self._until:
            return False
        self._engine.at(time, self.send)
        return True

    def _end(self) -> None:
        if self.after is not None:
            self.after()


def call(engine: Engine, request: Request) -> Future[Answer]:
    """Sends a request once."""
    made = _Call(engine, request, CALL_SECONDS, None)
    engine.post(made.send)
    return made.future


def persistent_call(
    engine: Engine,
    request: Request,
    seconds: float = CALL_SECONDS,
    after: Callable[[], None] | None = None,
) -> Future[Answer]:
    """Sends a request until it is answered. `after` is called on the thread, before the future
    has a value."""
    made = _Call(engine, request, seconds, _RELEASE_SECONDS)
    made.after = after
    engine.post(made.send)
    return made.future


def release(
    engine: Engine,
    lease_id: str,
    seconds: float = CALL_SECONDS,
    after: Callable[[], None] | None = None,
) -> Future[Answer]:
    """Releases a lease at the sidecar. Without an answer its lock is free later."""
    request = Request("DELETE", f"/v1/locks/{lease_id}")
    return persistent_call(engine, request, seconds, after)


def error_of(answer: Answer) -> LeaseholdError | None:
    """Returns the error that an answer describes."""
    return None if answer.status < 400 else of_document(answer.status, answer.document)


def _outcome(future: Any) -> Answer | LeaseholdError:
    try:
        answer: Answer = future.result()
    except LeaseholdError as error:
        return error
    return answer
