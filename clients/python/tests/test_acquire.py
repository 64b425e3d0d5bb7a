"""What stays held when an acquisition ends without a lease."""

from __future__ import annotations

import asyncio

import pytest

from leasehold import Client
from sidecar import GRANT, Document, Sidecar, cancelled_after_grant, wait_until


def test_grant_for_cancelled_task_is_released(sidecar: Sidecar) -> None:
    asyncio.run(cancelled_after_grant(Client(sidecar.url), sidecar))
    wait_until(lambda: "DELETE" in sidecar.calls)


@pytest.mark.parametrize("validity", [{}, {"validForMs": None}, {"validForMs": 0}])
def test_event_without_validity_changes_no_deadline(sidecar: Sidecar, validity: Document) -> None:
    events = sidecar.events["hold"]
    events.put(("acquired", GRANT))
    with Client(sidecar.url).lock("report") as lease:
        events.put(("heartbeat", validity))
        events.put(("release-requested", {"reason": "agent_stopping", **validity}))
        wait_until(lambda: lease.release_requested is not None)
        assert 30 < lease.remaining < 60
        events.put(("heartbeat", {"validForMs": 120_000}))
        wait_until(lambda: lease.remaining > 60)


@pytest.mark.parametrize("validity", [{}, {"validForMs": None}, {"validForMs": 0}])
def test_renewal_without_validity_is_repeated(sidecar: Sidecar, validity: Document) -> None:
    remaining: list[float] = []

    def before(name: str) -> None:
        if name == "renew":
            remaining.append(lease.remaining)
        if len(remaining) == 2:
            sidecar.answers["renew"] = (200, {**GRANT, "validForMs": 120_000})

    sidecar.answers["acquire"] = (200, {**GRANT, "renewAfterMs": 300})
    useless = {name: value for name, value in GRANT.items() if name != "validForMs"}
    sidecar.answers["renew"] = (200, {**useless, **validity})
    with Client(sidecar.url).lock("report", ttl=9) as lease:
        sidecar.before = before
        wait_until(lambda: lease.remaining > 60)
    assert len(remaining) == 2
    assert all(30 < seconds < 60 for seconds in remaining)


@pytest.mark.parametrize("reason", ["app_silent", "store_went_back"])
def test_lost_acquire_is_repeated_for_each_reason(sidecar: Sidecar, reason: str) -> None:
    def before(_: str) -> None:
        if len(sidecar.calls) == 2:
            sidecar.answers["acquire"] = (200, GRANT)

    sidecar.before = before
    sidecar.problem("acquire", 410, "lease_lost", reason=reason)
    with Client(sidecar.url).lock("report", ttl=9, wait=10) as lease:
        assert lease.token == GRANT["fencingToken"]
    assert sidecar.calls == ["acquire", "acquire", "DELETE"]
