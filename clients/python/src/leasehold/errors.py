"""What can go wrong. `code` is the code of the HTTP API, if the sidecar answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ._api import Holder, Outcome, outcome_of


class LeaseholdError(Exception):
    """An error of Leasehold: what failed, and what to do.

    `code` is stable and meant for programs. docs/http-api.md has a table of them.
    """

    # What the answer means. It is not computed from `code`, which may be the reason of a loss.
    _outcome: Outcome = "refused"

    def __init__(self, detail: str, code: str, document: Mapping[str, Any] | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.code = code
        #: The whole problem document of the sidecar; empty if it did not answer.
        self.document: Mapping[str, Any] = document or {}

    def __reduce__(self) -> tuple[Any, ...]:
        # A pool of processes pickles the error of a task.
        return type(self), (self.detail, self.code, self.document), {"_outcome": self._outcome}

    def __str__(self) -> str:
        return f"{self.detail} ({self.code})"


class LockHeld(LeaseholdError):
    """Another caller has the lock, and `wait` is over."""

    _outcome: Outcome = "held"

    @property
    def holder(self) -> Holder | None:
        """The holder (`ownerId`, `pod`, `heldSince`, …), or None if it is not known."""
        return self.document.get("holder")


class LockLost(LeaseholdError):
    """The lease is over: stop what the lock guards. `code` is the reason.

    Another holder may already have the lock.
    """

    _outcome: Outcome = "lost"


class Unavailable(LeaseholdError):
    """The sidecar, or the API server behind it, did not answer in time. Nothing is held."""

    _outcome: Outcome = "passing"


class Refused(LeaseholdError):
    """The sidecar refused the request; `detail` says what to correct."""


def of_document(status: int, document: Mapping[str, Any]) -> LeaseholdError:
    """Returns the error that a problem document describes."""
    code = str(document.get("code", f"http_{status}"))
    detail = str(document.get("detail", f"the sidecar answered with status {status}"))
    match outcome := outcome_of(code, status):
        case "held":
            return LockHeld(detail, code, document)
        case "lost":
            return LockLost(detail, str(document.get("reason", code)), document)
        case "passing" | "lasting":
            error = Unavailable(detail, code, document)
            error._outcome = outcome
            return error
        case "refused":
            return Refused(detail, code, document)


def may_pass(error: LeaseholdError) -> bool:
    """Whether the same request may succeed soon."""
    return error._outcome == "passing"
