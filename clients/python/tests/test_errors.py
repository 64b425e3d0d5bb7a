"""The errors as values."""

from __future__ import annotations

import pickle

import pytest

from leasehold import LeaseholdError, LockHeld, LockLost, Refused, Unavailable
from leasehold.errors import may_pass, of_document


@pytest.mark.parametrize(
    ("status", "code", "kind", "passes"),
    [
        (409, "lock_held", LockHeld, False),
        (409, "name_collision", Refused, False),
        (404, "lease_unknown", LockLost, False),
        (408, "request_timeout", Unavailable, True),
        (429, "too_many_leases", Unavailable, True),
        (500, "internal", Refused, False),
        (503, "store_unavailable", Unavailable, True),
        (503, "shutting_down", Unavailable, False),
        # The code decides, and the status only for a code that is not known.
        (418, "lock_held", LockHeld, False),
        (418, "new_code", Refused, False),
        (408, "new_code", Unavailable, True),
        (429, "new_code", Unavailable, True),
        (502, "new_code", Unavailable, True),
        (502, None, Unavailable, True),
        (404, None, Refused, False),
    ],
)
def test_code_decides_kind_of_error(
    status: int, code: str | None, kind: type[LeaseholdError], passes: bool
) -> None:
    error = of_document(status, {} if code is None else {"code": code})
    assert type(error) is kind
    assert may_pass(error) is passes
    assert may_pass(pickle.loads(pickle.dumps(error))) is passes


def test_reason_is_code_of_lost_lock() -> None:
    assert of_document(410, {"code": "lease_lost", "reason": "app_silent"}).code == "app_silent"


def test_request_without_answer_is_repeated() -> None:
    assert may_pass(Unavailable("no connection", "no_answer"))


def test_error_from_another_process_is_complete() -> None:
    error = LockHeld("it is held", "lock_held", {"holder": {"pod": "a"}})
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is LockHeld
    assert (copy.detail, copy.code, copy.document) == (error.detail, error.code, error.document)
