"""What can go wrong. `code` is the code of the HTTP API, if the sidecar answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class LeaseholdError(Exception):
    """An error of Leasehold: what failed, and what to do.

    `code` is stable and meant for programs. docs/http-api.md has a table of them.
    """

    def __init__(self, detail: str, code: str, document: Mapping[str, Any] | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.code = code
        #: The whole problem document of the sidecar; empty if it did not answer.
        self.document: Mapping[str, Any] = document or {}

    def __reduce__(self) -> tuple[type[LeaseholdError], tuple[str, str, Mapping[str, Any]]]:
        # A pool of processes pickles the error of a task.
        return type(self), (self.detail, self.code, self.document)

    def __str__(self) -> str:
        return f"{self.detail} ({self.code})"


class LockHeld(LeaseholdError):
    """Another caller has the lock, and `wait` is over."""

    @property
    def holder(self) -> Mapping[str, Any] | None:
        """The holder (`ownerId`, `pod`, `heldSince`, …), or None if it is not known."""
        return self.document.get("holder")


class LockLost(LeaseholdError):
    """The lease is over: stop what the lock guards. `code` is the reason.

    Another holder may already have the lock.
    """


class Unavailable(LeaseholdError):
    """The sidecar, or the API server behind it, did not answer in time. Nothing is held."""


class Refused(LeaseholdError):
    """The sidecar refused the request; `detail` says what to correct."""


def of_document(status: int, document: Mapping[str, Any]) -> LeaseholdError:
    """Returns the error that a problem document describes."""
    code = str(document.get("code", f"http_{status}"))
    detail = str(document.get("detail", f"the sidecar answered with status {status}"))
    if code == "lock_held":
        return LockHeld(detail, code, document)
    if status in (404, 410) and code in ("lease_lost", "lease_unknown"):
        return LockLost(detail, str(document.get("reason", code)), document)
    if status in (429, 503):
        return Unavailable(detail, code, document)
    return Refused(detail, code, document)
