"""What stays held when an acquisition ends without a lease."""

from __future__ import annotations

import asyncio

from leasehold import Client
from sidecar import Sidecar, cancelled_after_grant, wait_until


def test_grant_for_cancelled_task_is_released(sidecar: Sidecar) -> None:
    asyncio.run(cancelled_after_grant(Client(sidecar.url), sidecar))
    wait_until(lambda: "DELETE" in sidecar.calls)
