"""Hooks: what is called, where, and what an error in them does."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import threading
import time
from contextvars import ContextVar
from pathlib import Path
from queue import Queue
from typing import Any
from unittest.mock import MagicMock

import pytest

from leasehold import Client, Election, Hooks, Lease, LockHeld, LockLost
from sidecar import GRANT, Sidecar, cancelled_after_grant, wait_until

request = ContextVar("request", default="none")


class Recorder(Hooks):
    """Records each call, with the name of its thread."""

    def __init__(self) -> None:
        self.calls: Queue[tuple[object, ...]] = Queue()

    def record(self, *call: object) -> None:
        self.calls.put((*call, request.get(), threading.current_thread().name))

    def next(self) -> tuple[object, ...]:
        return self.calls.get(timeout=5)

    def acquired(self, lease: Lease, waited: float) -> None:
        assert 0 <= waited < 5
        self.record("acquired", lease.token)

    def not_acquired(self, resource: str, error: BaseException, waited: float) -> None:
        assert 0 <= waited < 5
        self.record("not acquired", resource, type(error).__name__)

    def lost(self, lease: Lease, reason: str) -> None:
        self.record("lost", lease.token, reason)

    def released(self, lease: Lease) -> None:
        self.record("released", lease.token)


class Failing(Hooks):
    """Each hook fails."""

    def acquired(self, lease: Lease, waited: float) -> None:
        raise ValueError

    not_acquired = acquired  # type: ignore[assignment]
    released = lost = acquired  # type: ignore[assignment]


def lose(sidecar: Sidecar) -> None:
    """Has the next lease lost at its first renewal."""
    sidecar.answers["acquire"] = (200, {**GRANT, "renewAfterMs": 50})
    sidecar.problem("renew", 410, "lease_lost", reason="force_released")


def test_caller_thread_reports_acquire_and_release(sidecar: Sidecar) -> None:
    hooks = Recorder()
    token = request.set("a")
    with Client(sidecar.url, hooks=hooks).lock("report", ttl=9):
        assert hooks.next() == ("acquired", 5, "a", "MainThread")
        assert hooks.calls.empty()
    assert hooks.next() == ("released", 5, "a", "MainThread")
    assert hooks.calls.empty()
    request.reset(token)


def test_task_reports_acquire_and_release(sidecar: Sidecar) -> None:
    hooks = Recorder()

    async def work() -> None:
        request.set("task")
        async with Client(sidecar.url, hooks=hooks).lock("report", ttl=9):
            pass

    asyncio.run(work())
    assert hooks.next() == ("acquired", 5, "task", "MainThread")
    assert hooks.next() == ("released", 5, "task", "MainThread")
    assert hooks.calls.empty()


def test_error_is_reported_before_it_is_raised(sidecar: Sidecar) -> None:
    hooks = Recorder()
    sidecar.problem("acquire", 409, "lock_held")
    with pytest.raises(LockHeld):
        Client(sidecar.url, hooks=hooks).lock("report", ttl=9, wait=0).acquire()
    assert hooks.next() == ("not acquired", "report", "LockHeld", "none", "MainThread")
    assert hooks.calls.empty()


def test_cancelled_wait_is_reported(sidecar: Sidecar) -> None:
    hooks = Recorder()
    sidecar.before = lambda name: time.sleep(0.3)

    async def work() -> None:
        await asyncio.wait_for(client.lock("report", ttl=9).acquire_async(), 0.1)

    client = Client(sidecar.url, hooks=hooks)
    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(work())
    assert hooks.next()[:3] == ("not acquired", "report", "CancelledError")


def test_loss_is_reported_once_on_own_thread(sidecar: Sidecar) -> None:
    hooks = Recorder()
    lose(sidecar)
    lease = Client(sidecar.url, hooks=hooks).lock("report", ttl=9).acquire()
    assert hooks.next()[0] == "acquired"
    assert hooks.next() == ("lost", 5, "force_released", "none", "leasehold-hooks")
    with pytest.raises(LockLost):
        lease.release()
    assert hooks.calls.empty()


def test_loss_found_by_release_is_no_release(sidecar: Sidecar) -> None:
    hooks = Recorder()
    sidecar.problem("DELETE", 410, "lease_lost", reason="app_silent")
    lease = Client(sidecar.url, hooks=hooks).lock("report", ttl=9).acquire()
    assert hooks.next()[0] == "acquired"
    with pytest.raises(LockLost):
        lease.release()
    assert hooks.next() == ("lost", 5, "app_silent", "none", "MainThread")
    assert hooks.calls.empty()


def test_cancelled_release_is_reported(sidecar: Sidecar) -> None:
    hooks = Recorder()
    sidecar.before = lambda name: time.sleep(0.3 if name == "DELETE" else 0)

    async def work() -> None:
        lease = await client.lock("report", ttl=9).acquire_async()
        await asyncio.wait_for(lease.release_async(), 0.1)

    client = Client(sidecar.url, hooks=hooks)
    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(work())
    assert hooks.next()[0] == "acquired"
    assert hooks.next()[0] == "released"


def test_lead_is_reported(sidecar: Sidecar) -> None:
    hooks = Recorder()
    sidecar.problem("candidacy", 400, "election_invalid")
    election = Client(sidecar.url, hooks=hooks).elect("a")
    assert hooks.next()[:3] == ("not acquired", "a", "Refused")
    election.stop()


def test_stop_in_acquired_hook_releases_lead(sidecar: Sidecar) -> None:
    class Stopping(Recorder):
        def acquired(self, lease: Lease, waited: float) -> None:
            super().acquired(lease, waited)
            elections.get().stop()

    elections: Queue[Election] = Queue()
    hooks = Stopping()
    sidecar.events["candidacy"].put(("acquired", GRANT))
    served: list[Lease] = []
    election = Client(sidecar.url, hooks=hooks).elect("a", served.append)
    elections.put(election)
    assert hooks.next()[0] == "acquired"
    assert hooks.next()[0] == "released"
    election.stop()
    assert "DELETE" in sidecar.calls
    assert hooks.calls.empty()
    assert served == []


def test_stop_ends_wait_for_lead(sidecar: Sidecar) -> None:
    hooks = Recorder()
    sidecar.events["candidacy"].put(("waiting", {}))
    with Client(sidecar.url, hooks=hooks).elect("a"):
        wait_until(lambda: "candidacy" in sidecar.calls)
    assert hooks.next()[:3] == ("not acquired", "a", "CancelledError")
    assert hooks.calls.empty()


def test_interrupted_acquired_hook_leaves_nothing_held(sidecar: Sidecar) -> None:
    class Interrupted(Recorder):
        def acquired(self, lease: Lease, waited: float) -> None:
            super().acquired(lease, waited)
            raise KeyboardInterrupt

    hooks = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        Client(sidecar.url, hooks=hooks).lock("report", ttl=9).acquire()
    assert hooks.next()[0] == "acquired"
    assert hooks.next()[:3] == ("lost", 5, "abandoned")
    wait_until(lambda: "DELETE" in sidecar.calls)
    assert hooks.calls.empty()


def test_release_in_on_lost_is_refused_before_hooks(sidecar: Sidecar) -> None:
    hooks = Recorder()
    errors: Queue[Exception] = Queue()
    client = Client(sidecar.url, hooks=hooks)
    held = client.lock("other", ttl=9).acquire()
    assert hooks.next()[0] == "acquired"

    def release(_: Lease) -> None:
        try:
            held.release()
        except RuntimeError as error:
            errors.put(error)

    lose(sidecar)
    client.lock("report", ttl=9).acquire().on_lost(release)
    assert "on_lost" in str(errors.get(timeout=5))
    assert hooks.next()[0] == "acquired"
    assert hooks.next()[0] == "lost"
    held.release()
    assert hooks.next() == ("released", 5, "none", "MainThread")
    assert hooks.calls.empty()


def test_readme_sample_for_opentelemetry_runs(
    sidecar: Sidecar, monkeypatch: pytest.MonkeyPatch
) -> None:
    readme = Path(__file__).parent.with_name("README.md").read_text()
    samples = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    (sample,) = (sample for sample in samples if "opentelemetry" in sample)
    opentelemetry = MagicMock()
    monkeypatch.setitem(sys.modules, "opentelemetry", opentelemetry)
    monkeypatch.setenv("LEASEHOLD_URL", sidecar.url)
    names: dict[str, Any] = {}
    exec(sample, names)
    lose(sidecar)
    assert names["client"].lock("report", ttl=9).acquire().lost.wait(5)
    meter = opentelemetry.metrics.get_meter.return_value
    meter.create_histogram.return_value.record.assert_called_once()
    event = opentelemetry.trace.get_current_span.return_value.add_event
    event.assert_called_once_with("lock acquired", {"fencing_token": 5})
    add = meter.create_counter.return_value.add
    wait_until(lambda: add.called)
    add.assert_called_once_with(1, {"reason": "force_released"})


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_loss_after_fork_is_reported(sidecar: Sidecar) -> None:
    hooks = Recorder()
    client = Client(sidecar.url, hooks=hooks)
    lose(sidecar)
    client.lock("report", ttl=9).acquire()
    assert hooks.next()[0] == "acquired"
    assert hooks.next()[0] == "lost"
    if (child := os.fork()) == 0:
        try:
            client.lock("report", ttl=9).acquire()
            if (hooks.next()[0], hooks.next()[0]) == ("acquired", "lost"):
                os._exit(0)
        finally:
            # An error must not have the child run the other tests.
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def test_slow_loss_hook_delays_no_renewal(sidecar: Sidecar) -> None:
    release = threading.Event()

    class Slow(Hooks):
        def lost(self, lease: Lease, reason: str) -> None:
            release.wait()

    client = Client(sidecar.url, hooks=Slow())
    lose(sidecar)
    assert client.lock("report", ttl=9).acquire().lost.wait(5)
    sidecar.answers["acquire"] = sidecar.answers["renew"] = (200, {**GRANT, "renewAfterMs": 50})
    with client.lock("report", ttl=9):
        before = sidecar.calls.count("renew")
        wait_until(lambda: sidecar.calls.count("renew") >= before + 3)
    release.set()


def test_error_in_hook_is_logged(sidecar: Sidecar, caplog: pytest.LogCaptureFixture) -> None:
    client = Client(sidecar.url, hooks=Failing())
    with client.lock("report", ttl=9):
        pass
    lose(sidecar)
    lease = client.lock("report", ttl=9).acquire()
    assert lease.lost.wait(5)
    sidecar.problem("acquire", 409, "lock_held")
    with pytest.raises(LockHeld):
        client.lock("report", ttl=9, wait=0).acquire()
    wait_until(lambda: sum(one.msg == "a hook failed" for one in caplog.records) == 5)


def test_lease_that_no_caller_got_is_not_lost(sidecar: Sidecar) -> None:
    hooks = Recorder()
    client = Client(sidecar.url, hooks=hooks)
    asyncio.run(cancelled_after_grant(client, sidecar))
    assert hooks.next()[:3] == ("not acquired", "report", "CancelledError")
    time.sleep(0.2)
    assert hooks.calls.empty()
