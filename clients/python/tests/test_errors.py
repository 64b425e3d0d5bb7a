"""The errors as values."""

from __future__ import annotations

import pickle

from leasehold import LockHeld


def test_error_from_another_process_is_complete() -> None:
    error = LockHeld("it is held", "lock_held", {"holder": {"pod": "a"}})
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is LockHeld
    assert (copy.detail, copy.code, copy.holder) == ("it is held", "lock_held", {"pod": "a"})
