"""What stays held when an acquisition ends without a lease."""

from __future__ import annotations

import asyncio
import time

from leasehold import Client
from sidecar import Sidecar, cancelled_after_grant


def test_grant_for_cancelled_task_is_released(sidecar: Sidecar) -> None:
    asyncio.run(cancelled_after_grant(Client(sidecar.url), sidecar))
    deadline = time.monotonic() + 5
    while "DELETE" not in sidecar.calls:
        assert time.monotonic() < deadline
        time.sleep(0.01)
