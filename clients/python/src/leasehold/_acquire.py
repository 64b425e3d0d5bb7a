"""How a lock is acquired and held: by a connection, or by renewals. All of it is on the thread.

Both count every validity from when the request was sent: the sidecar counts from when it read the
request, which is later.
"""

from __future__ import annotations

import math
import random
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import quote

from . import _api, _clock
from ._api import Acquired, AcquireRequest, CandidacyRequest, HoldRequest
from ._engine import Engine, Exchange, Timer, log
from ._lease import CALL_SECONDS, Lease, error_of, persistent_call, release
from ._wire import Answer, Event, Request
from .errors import LeaseholdError, LockHeld, LockLost, Unavailable, may_pass, of_document

# How long a sidecar may be away, or unable to answer, before the caller gets the error. A restart
# takes a few seconds.
OUTAGE_SECONDS = 30.0
# The sidecar's own bound for a long poll.
_LONGEST_POLL = 240


@dataclass(frozen=True)
class Wanted:
    """What to acquire."""

    resource: str
    #: Seconds; None waits without a limit, 0 is one try.
    wait: float | None = None
    owner_id: str | None = None
    metadata: Mapping[str, str] | None = None
    #: Seconds of silence after which the sidecar releases the lock; None holds it by a connection.
    ttl: int | None = None
    #: Whether it is the lead of an election; `resource` is the election's name then.
    is_lead: bool = False
    is_preferred: bool = False

    @property
    def hold_path(self) -> str:
        """The call that holds it by a connection."""
        if self.is_lead:
            return f"/v1/elections/{quote(self.resource, safe='')}/candidacy"
        return "/v1/locks/hold"

    def hold_body(self, wait_seconds: int | None) -> HoldRequest | CandidacyRequest:
        """The request to hold it by a connection."""
        made: HoldRequest | CandidacyRequest
        if self.is_lead:
            made = CandidacyRequest()
            if self.is_preferred:
                made["preferred"] = True
        else:
            made = HoldRequest(resource=self.resource)
            if wait_seconds is not None:
                made["waitSeconds"] = wait_seconds
        self._name_owner(made)
        return made

    def acquire_body(self, ttl: int, wait_seconds: int, request_id: str) -> AcquireRequest:
        """The request to hold it by renewals."""
        made = AcquireRequest(
            resource=self.resource, ttlSeconds=ttl, waitSeconds=wait_seconds, requestId=request_id
        )
        self._name_owner(made)
        return made

    def _name_owner(self, body: AcquireRequest | HoldRequest | CandidacyRequest) -> None:
        if self.owner_id is not None:
            body["ownerId"] = self.owner_id
        if self.metadata is not None:
            body["metadata"] = dict(self.metadata)


class Acquisition(ABC):
    """Tries until there is a lease, the wait is over, or an error is not worth another try."""

    def __init__(self, engine: Engine, wanted: Wanted) -> None:
        self.future: Future[Lease] = Future()
        self._engine = engine
        self._wanted = wanted
        self._began = _clock.now()
        self._until = None if wanted.wait is None else self._began + wanted.wait
        self._outage_since: float | None = None
        self._pauses = 0
        self._lease: Lease | None = None
        self._exchange: Exchange | None = None
        self._next: Timer | None = None
        self._sent = 0.0

    def start(self) -> None:
        """Begins. Any thread may call it, and `leave`."""
        self._engine.must_not_be_here()
        self._engine.post(self._try)

    def _try(self) -> None:
        try:
            self.attempt()
        except Exception as error:
            # The arguments cannot be sent.
            if self.future.set_running_or_notify_cancel():
                self.future.set_exception(error)

    @contextmanager
    def awaited(self) -> Iterator[Future[Lease]]:
        """Gives the future to wait for in the block. If the block raises, nothing stays held."""
        observer = self._engine.observer
        lease: Lease | None = None
        try:
            yield self.future
            lease = self.future.result()
            observer.acquired(lease, _clock.now() - self._began)
        except BaseException as error:
            # Also a KeyboardInterrupt, which may come in the hook.
            self.leave()
            if lease is None:
                observer.not_acquired(self._wanted.resource, error, _clock.now() - self._began)
            raise

    def leave(self) -> None:
        """The caller does not wait any more: nothing must stay held."""
        self.future.cancel()
        self._engine.post(self._abandon)

    @abstractmethod
    def attempt(self) -> None:
        """Sends the request."""

    def answered(self, answer: Answer) -> None:
        """An answer without a stream."""
        self.refused(of_document(answer.status, answer.document))

    @abstractmethod
    def received(self, event: Event) -> None:
        """An event of a stream."""

    def broke(self, why: str) -> None:
        """No answer."""
        advice = "start the sidecar, or set LEASEHOLD_URL to where it is"
        self.refused(Unavailable(f"{why}; {advice}", "no_answer"))

    def refused(self, error: LeaseholdError) -> None:
        """Tries again, or fails."""
        now = _clock.now()
        if self._outage_since is None:
            self._outage_since = now
            self._pauses = 0
        is_over = self._until is not None and now >= self._until
        if is_over or not may_pass(error) or now - self._outage_since >= OUTAGE_SECONDS:
            self._fail(error)
        else:
            if self._pauses == 0:
                log.warning("lock %s: trying again: %s", self._wanted.resource, error)
            pause = min(2.0, 0.1 * 2**self._pauses) * random.uniform(0.5, 1)
            self._pauses += 1
            self._next = self._engine.at(now + pause, self._try)

    def _abandon(self) -> None:
        if self._next is not None:
            self._next.cancel()
        if self._lease is not None:
            self._lease.abandon()
        elif self._exchange is not None:
            self._exchange.close()

    def _wait_left(self) -> int | None:
        """In whole seconds, rounded up."""
        return None if self._until is None else max(0, math.ceil(self._until - _clock.now()))

    def _granted(self, grant: Acquired) -> bool:
        """Takes a grant. False if it is over already, or the caller has left."""
        deadline = self._deadline(grant["validForMs"])
        lease = Lease(self._engine, grant, deadline, self.drop)
        if deadline <= _clock.now() or not self.future.set_running_or_notify_cancel():
            return False
        self._lease = lease
        self._lease.watch()
        self.future.set_result(self._lease)
        return True

    def _deadline(self, valid_for_ms: float) -> float:
        return self._sent + valid_for_ms / 1000

    @abstractmethod
    def drop(self) -> None:
        """The lease has ended: frees what is left of it."""

    def _fail(self, error: LeaseholdError) -> None:
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


class ByConnection(Acquisition):
    """`POST /v1/locks/hold`, or a candidacy: the lock is held as long as the connection is open."""

    # A waiting stream has an event at least every 40 s.
    _SILENCE = 90.0

    def attempt(self) -> None:
        self._sent = _clock.now()
        body = self._wanted.hold_body(self._wait_left())
        request = Request("POST", self._wanted.hold_path, body)
        self._exchange = self._engine.request(request, self, None)
        self._expect_event()

    def _expect_event(self) -> None:
        if self._next is not None:
            self._next.cancel()
        left = self._wait_left()
        seconds = self._SILENCE if left is None else min(self._SILENCE, left + CALL_SECONDS)
        exchange = self._exchange
        if exchange is not None:
            why = f"{self._engine.address} did not answer in time"
            self._next = self._engine.at(_clock.now() + seconds, lambda: exchange.fail(why))

    def answered(self, answer: Answer) -> None:
        self._stop_expecting()
        super().answered(answer)

    def received(self, event: Event) -> None:
        data = event.data
        if event.name == "waiting":
            self._outage_since = None
            self._expect_event()
        elif event.name == "acquired":
            self._stop_expecting()
            if not self._granted(cast(Acquired, data)):
                self._close()
                if not self.future.cancelled():
                    self.refused(Unavailable("the sidecar stood still", "no_answer"))
        elif event.name == "error":
            self._close()
            self._stop_expecting()
            self.refused(of_document(int(data.get("status", 500)), data))
        elif self._lease is not None:
            self._follow(self._lease, event)

    def _follow(self, lease: Lease, event: Event) -> None:
        if event.name == "lost":
            reason = event.data.get("reason", "lost")
            lease.lose(str(reason), str(event.data.get("detail", "")))
            return
        # An error here would close the connection, and release the lock before the deadline.
        if (valid_for_ms := _validity(event.data)) is not None:
            lease.prolong(self._deadline(valid_for_ms))
        if event.name == "release-requested":
            lease.ask_for_release(event.data)

    def broke(self, why: str) -> None:
        self._stop_expecting()
        if self._lease is None:
            super().broke(why)
        else:
            # The sidecar is gone, and keeps its promise until the deadline.
            self._lease.doubt(why)

    def drop(self) -> None:
        self._close()

    def _close(self) -> None:
        if self._exchange is not None:
            self._exchange.close()

    def _stop_expecting(self) -> None:
        if self._next is not None:
            self._next.cancel()


class ByRenewal(Acquisition):
    """`POST /v1/locks/acquire`, then `renew` in time. No connection stays open, and the lease
    survives a restart of the sidecar alone."""

    def __init__(self, engine: Engine, wanted: Wanted, ttl: int) -> None:
        super().__init__(engine, wanted)
        self._ttl = ttl
        self._request_id = str(uuid.uuid4())
        #: The last request.
        self._body = wanted.acquire_body(ttl, 0, self._request_id)
        # An attempt had no answer: the sidecar may have granted it.
        self._may_be_granted = False

    def attempt(self) -> None:
        self._sent = _clock.now()
        left = self._wait_left()
        poll = _LONGEST_POLL if left is None else min(left, _LONGEST_POLL)
        self._body = self._wanted.acquire_body(self._ttl, poll, self._request_id)
        request = Request("POST", "/v1/locks/acquire", self._body)
        until = self._sent + poll + CALL_SECONDS
        self._exchange = self._engine.request(request, self, until)

    def answered(self, answer: Answer) -> None:
        self._exchange = None
        error = None if answer.status == 200 else of_document(answer.status, answer.document)
        if not isinstance(error, Unavailable):
            # Such an answer says nothing of an earlier request.
            self._may_be_granted = False
        if error is not None:
            self.refused(error)
            return
        grant = cast(Acquired, answer.document)
        if self._granted(grant):
            self._renew_after(grant["renewAfterMs"])
        else:
            release(self._engine, grant["leaseId"])
            if not self.future.cancelled():
                self._request_id = str(uuid.uuid4())
                self.refused(Unavailable("the answer came too late", "no_answer"))

    def refused(self, error: LeaseholdError) -> None:
        is_over = self._until is not None and _clock.now() >= self._until
        if isinstance(error, LockHeld) and not is_over:
            # One long poll is over, not the wait.
            self._outage_since = None
            self._request_id = str(uuid.uuid4())
            self.attempt()
        elif isinstance(error, LockLost):
            # An earlier answer did not arrive, and its lease has ended.
            self._request_id = str(uuid.uuid4())
            super().refused(Unavailable(error.detail, error.code))
        else:
            if _clock.now() - self._sent > OUTAGE_SECONDS:
                # The sidecar was there for most of this long poll.
                self._outage_since = None
            super().refused(error)

    def _renew_after(self, milliseconds: float) -> None:
        self._next = self._engine.at(self._sent + milliseconds / 1000, self._renew)

    def _renew(self) -> None:
        lease = self._lease
        if lease is None or (remaining := lease.remaining) <= 0:
            return
        self._sent = _clock.now()
        request = Request("POST", f"/v1/locks/{lease.lease_id}/renew", {})
        # Leaves time for another try.
        until = self._sent + min(CALL_SECONDS, remaining / 2)
        self._engine.request(request, _Renewal(self, lease), until)

    def received(self, event: Event) -> None:
        """An acquire has no stream."""

    def renewed(self, lease: Lease, answer: Answer) -> None:
        """A renewal was answered."""
        if answer.status == 200:
            renewed = cast(_api.Lease, answer.document)
            if (valid_for_ms := _validity(renewed)) is None:
                self.not_renewed(lease, "the answer to a renewal has no validForMs")
                return
            lease.prolong(self._deadline(valid_for_ms))
            if "releaseRequested" in renewed:
                lease.ask_for_release(renewed["releaseRequested"])
            self._renew_after(renewed["renewAfterMs"])
            return
        error = of_document(answer.status, answer.document)
        if isinstance(error, LockLost):
            lease.lose(error.code, error.detail)
        else:
            self.not_renewed(lease, str(error))

    def not_renewed(self, lease: Lease, why: str) -> None:
        """The last validity still counts."""
        lease.doubt(why)
        pause = min(1.0, max(0.05, lease.remaining / 4))
        self._next = self._engine.at(_clock.now() + pause, self._renew)

    def drop(self) -> None:
        if self._next is not None:
            self._next.cancel()
        if self._lease is not None and self._lease.reason in ("validity_over", "abandoned"):
            # The sidecar keeps the lock for longer.
            release(self._engine, self._lease.lease_id)

    def broke(self, why: str) -> None:
        self._exchange = None
        self._may_be_granted = True
        super().broke(why)

    def _abandon(self) -> None:
        is_in_flight = self._lease is None and self._exchange is not None
        super()._abandon()
        if is_in_flight or self._may_be_granted:
            self._give_back()

    def _fail(self, error: LeaseholdError) -> None:
        if self._may_be_granted:
            self._give_back()
        super()._fail(error)

    def _give_back(self) -> None:
        """Releases what the last request may have acquired: a repetition gets the same lease.

        It also ends the queue entry that the sidecar keeps for a caller that hangs up. A repetition
        that the sidecar reads before the hang-up ends nothing, so a second one follows.
        """
        request = Request("POST", "/v1/locks/acquire", {**self._body, "waitSeconds": 0})
        self._may_be_granted = False

        self._repeat(request, is_second=False)

    def _repeat(self, request: Request, *, is_second: bool) -> None:
        def answered(future: Future[Answer]) -> None:
            if future.exception():
                return
            answer = future.result()
            if answer.status == 200:
                release(self._engine, cast(Acquired, answer.document)["leaseId"])
            elif isinstance(error_of(answer), LockHeld) and not is_second:
                time = _clock.now() + 1
                self._engine.at(time, lambda: self._repeat(request, is_second=True))

        persistent_call(self._engine, request).add_done_callback(answered)


def _validity(document: Mapping[str, Any]) -> float | None:
    """Returns `validForMs`. None if it is missing, null or 0: it must not end a held lease."""
    value = document.get("validForMs")
    return value if isinstance(value, (int, float)) and value > 0 else None


class _Renewal:
    def __init__(self, of: ByRenewal, lease: Lease) -> None:
        self._of, self._lease = of, lease

    def answered(self, answer: Answer) -> None:
        self._of.renewed(self._lease, answer)

    def received(self, _event: Event) -> None:
        """A renewal has no stream."""

    def broke(self, why: str) -> None:
        self._of.not_renewed(self._lease, why)
