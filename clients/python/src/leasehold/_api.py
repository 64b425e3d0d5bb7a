"""What travels between an app and its sidecar.

Generated from docs/openapi.json by `make generate`: do not edit it.
"""

from __future__ import annotations

from typing import Literal, TypedDict

#: What an answer means for the app. `held`: another caller has the lock. `lost`: the lease is over.
#: `passing`: the same request may succeed soon. `lasting`: locks are unavailable, and not only for
#: moments. `refused`: the request, or the installation, must be corrected.
Outcome = Literal["held", "lost", "passing", "lasting", "refused"]

_OUTCOMES: dict[str, Outcome] = {
    "body_too_large": "refused",
    "election_invalid": "refused",
    "election_unknown": "refused",
    "forbidden": "refused",
    "host_not_allowed": "refused",
    "internal": "refused",
    "invalid_request": "refused",
    "lease_lost": "lost",
    "lease_unknown": "lost",
    "lock_held": "held",
    "method_not_allowed": "refused",
    "name_collision": "refused",
    "not_found": "refused",
    "not_installed": "lasting",
    "object_refused": "refused",
    "object_unreadable": "refused",
    "origin_refused": "refused",
    "quota_exceeded": "refused",
    "request_id_reused": "refused",
    "request_timeout": "passing",
    "resource_invalid": "refused",
    "resuming": "passing",
    "session_lost": "passing",
    "shutting_down": "lasting",
    "stale_token": "refused",
    "store_unavailable": "passing",
    "store_went_back": "lasting",
    "token_current": "refused",
    "token_exhausted": "refused",
    "too_many_leases": "passing",
    "too_many_streams": "passing",
    "too_many_waiting": "passing",
    "ttl_out_of_range": "refused",
    "unknown_token": "refused",
}


def outcome_of(code: str, status: int) -> Outcome:
    """Returns the outcome of a problem.

    The status decides for a code that this version does not know.
    """
    passes = status in (408, 429) or status >= 500
    return _OUTCOMES.get(code, "passing" if passes else "refused")


class _AcquireRequestFields(TypedDict):
    #: What to lock: printable text of at most 512 bytes.
    resource: str
    #: After how many seconds without a renewal the agent releases the lock.
    ttlSeconds: int


class AcquireRequest(_AcquireRequestFields, total=False):
    """A request for a lock."""

    #: For how many seconds the pod keeps the lock after this lease: acquiring it again in that time
    #: is local, without a write. Another pod that requests it gets it immediately. 0: not kept.
    keepSeconds: int
    #: Informational key-value pairs: at most 16 entries of printable text, with keys of at most 63
    #: and values of at most 256 bytes.
    metadata: dict[str, str]
    #: The caller's name, informational: printable text of at most 256 bytes; default: the pod's
    #: name.
    ownerId: str
    #: An idempotency key, 1 to 128 printable ASCII characters; it counts together with `resource`
    #: and `ownerId`. A repeated request returns the same lease, or 410 `lease_lost` if that has
    #: ended (for 10 minutes after its end): a late repetition acquires nothing.
    requestId: str
    #: How long to wait in the queue while the lock is held; 0: one attempt. Set the client's own
    #: timeout a few seconds higher. A caller that disconnects is removed from the queue; with a
    #: requestId its queue entry is kept for 10 seconds.
    waitSeconds: int


class CandidacyRequest(TypedDict, total=False):
    """The lead of an election for as long as a connection."""

    #: How many seconds after its start the term ends in any case.
    maxHoldSeconds: int
    #: As in acquire.
    metadata: dict[str, str]
    #: The candidate's name, informational: printable text of at most 256 bytes; default: the pod's
    #: name.
    ownerId: str
    #: Whether this candidate is queued before all candidates that are not preferred: it gets the
    #: lead at the next term. A current leader is not interrupted. Of several candidates in one pod,
    #: the first one decides. A full queue stays full.
    preferred: bool


class CompleteRequest(TypedDict):
    """Work that has succeeded."""

    #: The name of the work: 1 to 128 printable ASCII characters.
    key: str


class _HoldRequestFields(TypedDict):
    #: What to lock: printable text of at most 512 bytes.
    resource: str


class HoldRequest(_HoldRequestFields, total=False):
    """A lock for as long as a connection."""

    #: As in acquire.
    keepSeconds: int
    #: How many seconds after the grant the lease ends in any case.
    maxHoldSeconds: int
    #: As in acquire.
    metadata: dict[str, str]
    #: The caller's name, informational: printable text of at most 256 bytes; default: the pod's
    #: name.
    ownerId: str
    #: How long to wait in the queue while the lock is held; 0: one attempt; default: without a
    #: limit.
    waitSeconds: int


class _AcquiredFields(TypedDict):
    #: `validForMs` as a wall-clock time, informational.
    expiresAt: str
    #: Larger than every earlier token of this resource. Send it with every write to the guarded
    #: resource, which must reject smaller tokens.
    fencingToken: int
    #: Identifies the lease in renew and release.
    leaseId: str
    #: The owner's name.
    ownerId: str
    #: After how many milliseconds to renew, counted from when the app sent this request.
    renewAfterMs: int
    #: The locked resource.
    resource: str
    #: For how many milliseconds the app may act, counted from when it sent this request.
    validForMs: int
    #: Always true.
    acquired: bool
    #: The keys under which guarded work has succeeded, oldest first; see completeWork.
    completed: list[str]
    #: Whether this repeats the response to an earlier request with the same `requestId`.
    replayed: bool


class Acquired(_AcquiredFields, total=False):
    """An acquired lock."""

    #: A person requested the release of this lease; the app decides. Absent without a request.
    releaseRequested: ReleaseRequested


class HeartbeatEvent(TypedDict):
    """The lease is still valid."""

    #: The same as a wall-clock time, informational.
    expiresAt: str
    #: Its fencing token.
    fencingToken: int
    #: The lease.
    leaseId: str
    #: For how many milliseconds the app may act, counted from when it sent the request that opened
    #: this stream. It grows from event to event, so an event that is read late is still correct.
    validForMs: int


class _HolderFields(TypedDict):
    #: When the lock was granted, by the clock of the holder's pod.
    heldSince: str
    #: The metadata that the app gave.
    metadata: dict[str, str]
    #: The name that the app gave.
    ownerId: str
    #: The holder's pod.
    pod: str


class Holder(_HolderFields, total=False):
    """The holder of a lock."""

    #: The first token of its grant.
    fencingToken: int


class _LeaseFields(TypedDict):
    #: `validForMs` as a wall-clock time, informational.
    expiresAt: str
    #: Larger than every earlier token of this resource. Send it with every write to the guarded
    #: resource, which must reject smaller tokens.
    fencingToken: int
    #: Identifies the lease in renew and release.
    leaseId: str
    #: The owner's name.
    ownerId: str
    #: After how many milliseconds to renew, counted from when the app sent this request.
    renewAfterMs: int
    #: The locked resource.
    resource: str
    #: For how many milliseconds the app may act, counted from when it sent this request.
    validForMs: int


class Lease(_LeaseFields, total=False):
    """A lease."""

    #: A person requested the release of this lease; the app decides. Absent without a request.
    releaseRequested: ReleaseRequested


class LostEvent(TypedDict):
    """The lease has ended. The last event."""

    #: The same as text.
    detail: str
    #: The lease.
    leaseId: str
    #: The reason, as in 410 `lease_lost`; `max_hold` if `maxHoldSeconds` have passed.
    reason: str


class ReleaseRequested(TypedDict):
    """A request to release the lease."""

    #: The person who requested it.
    actor: str
    #: The reason that the person gave.
    message: str
    #: Always `person_asked`, for now.
    reason: str


class _ReleaseRequestedEventFields(TypedDict):
    #: The same as a wall-clock time, informational.
    expiresAt: str
    #: Its fencing token.
    fencingToken: int
    #: The lease.
    leaseId: str
    #: For how many milliseconds the app may act, counted from when it sent the request that opened
    #: this stream. It grows from event to event, so an event that is read late is still correct.
    validForMs: int
    #: `agent_stopping`: the agent is stopping, and `validForMs` does not grow any more. `max_hold`:
    #: `maxHoldSeconds` have nearly passed. `person_asked`: a person requested it, and the app
    #: decides. New reasons may be added.
    reason: str


class ReleaseRequestedEvent(_ReleaseRequestedEventFields, total=False):
    """The app should finish and release the lock."""

    #: The person, for `person_asked`.
    actor: str
    #: The reason that the person gave.
    message: str
