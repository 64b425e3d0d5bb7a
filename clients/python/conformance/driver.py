"""Does what the conformance suite says (clients/README.md): calls are lines of JSON on the standard
input, answers are lines on the standard output.

    python driver.py threads|asyncio URL
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from queue import Queue
from typing import Any

import leasehold
from leasehold import Client, Lease, LeaseholdError, LockHeld, LockLost, Refused, Unavailable

KINDS: dict[type[Exception], str] = {
    LockHeld: "held",
    LockLost: "lost",
    Unavailable: "unavailable",
    Refused: "refused",
}

Call = dict[str, Any]

_output = threading.Lock()


def say(line: Call) -> None:
    """Prints a line as a whole."""
    with _output:
        print(json.dumps(line), flush=True)


def answer(call: Call, **values: Any) -> None:
    """Answers a call."""
    say({"id": call["id"], **values})


def refuse(call: Call, error: Exception) -> None:
    """Answers a call with an error."""
    kind = KINDS.get(type(error), type(error).__name__)
    code = error.code if isinstance(error, LeaseholdError) else ""
    answer(call, error=kind, code=code, detail=str(error))


def wanted(call: Call) -> dict[str, Any]:
    """Returns the arguments of `lock`."""
    return {name: call[name] for name in ("wait", "ttl") if call.get(name) is not None}


def read() -> Call | None:
    """Returns the next call; None at the end."""
    line = sys.stdin.readline()
    return json.loads(line) if line else None


def ask(lease: Lease, call: Call) -> None:
    """Answers what concerns one lease."""
    try:
        match call["call"]:
            case "check":
                lease.check()
                answer(call, remaining=lease.remaining)
            case "headers":
                answer(call, headers=lease.headers)
            case "fork":
                fork(lease, call)
            case other:
                raise ValueError(other)
    except LeaseholdError as error:
        refuse(call, error)


def elect(call: Call) -> None:
    """Becomes a candidate, or says whether it leads."""
    name = call["election"]
    if call["call"] == "elect":
        elections[name] = client.elect(name)
        answer(call)
    elif call["call"] == "leads":
        leads = elections[name].is_leader()
        lease = elections[name].lease
        answer(call, leads=leads and lease is not None, token=lease.token if lease else None)
    else:
        elections.pop(name).stop()
        answer(call)


def start(call: Call) -> None:
    """Starts a program that outlives the driver."""
    program = subprocess.Popen(["sleep", "120"], stdout=subprocess.DEVNULL, close_fds=False)
    answer(call, pid=program.pid)


def fork(lease: Lease, call: Call) -> None:
    """The child says what it thinks of the parent's lease, acquires a lock of its own, and lives
    until it is killed."""
    fork_at_once()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            lease.check()
            said = "held"
        except LockLost as error:
            said = error.code
        with client.lock(call["resource"]) as own:
            os.write(writer, json.dumps({"said": said, "token": own.token}).encode() + b"\n")
            time.sleep(600)
    os.close(writer)
    with os.fdopen(reader) as lines:
        answer(call, pid=child, **json.loads(lines.readline()))


def fork_at_once() -> None:
    """Several threads copy the process at the same time."""

    def fork_often() -> None:
        for _ in range(25):
            if (child := os.fork()) == 0:
                os._exit(0)
            os.waitpid(child, 0)

    threads = [threading.Thread(target=fork_often) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Threads:
    """Each block is in a thread of its own."""

    def __init__(self) -> None:
        self.blocks: dict[str, Queue[Call]] = {}
        self.many: list[Lease] = []

    def run(self) -> None:
        """Takes calls until the input ends."""
        while (call := read()) is not None:
            match call["call"]:
                case "lock":
                    calls: Queue[Call] = Queue()
                    self.blocks[call["lease"]] = calls
                    threading.Thread(target=self.block, args=(call, calls), daemon=True).start()
                case "many":
                    self.many += [lock.acquire() for lock in many(call)]
                    answer(call, held=len(self.many))
                case "elect" | "leads" | "step-down":
                    elect(call)
                case "check-many":
                    check_many(call, self.many)
                case "busy":
                    time.sleep(call["seconds"])
                    answer(call)
                case "start":
                    start(call)
                case "round":
                    began = time.perf_counter()
                    with client.lock(call["resource"], **wanted(call)):
                        pass
                    answer(call, ms=(time.perf_counter() - began) * 1000)
                case _:
                    self.blocks[call["lease"]].put(call)

    def block(self, call: Call, calls: Queue[Call]) -> None:
        """A guarded block, which ends with the call `release`."""
        try:
            with client.lock(call["resource"], **wanted(call)) as lease:
                lease.on_lost(lambda lease: say({"lost": call["lease"], "reason": lease.reason}))
                answer(call, token=lease.token, leaseId=lease.lease_id)
                while (call := calls.get())["call"] != "release":
                    ask(lease, call)
            answer(call)
        except LeaseholdError as error:
            refuse(call, error)


class Asyncio:
    """Each block is a task, and is cancelled when its lease is lost."""

    def __init__(self) -> None:
        self.blocks: dict[str, asyncio.Queue[Call]] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.many: list[Lease] = []

    async def run(self) -> None:
        """Takes calls until the input ends."""
        while (call := await asyncio.to_thread(read)) is not None:
            match call["call"]:
                case "lock":
                    calls: asyncio.Queue[Call] = asyncio.Queue()
                    self.blocks[call["lease"]] = calls
                    self.tasks.add(asyncio.create_task(self.block(call, calls)))
                case "many":
                    self.many += [await lock.acquire_async() for lock in many(call)]
                    answer(call, held=len(self.many))
                case "elect" | "leads" | "step-down":
                    elect(call)
                case "check-many":
                    check_many(call, self.many)
                case "busy":
                    time.sleep(call["seconds"])  # The loop is blocked on purpose.
                    answer(call)
                case "start":
                    start(call)
                case "round":
                    began = time.perf_counter()
                    async with client.lock(call["resource"], **wanted(call)):
                        pass
                    answer(call, ms=(time.perf_counter() - began) * 1000)
                case _:
                    self.blocks[call["lease"]].put_nowait(call)

    async def block(self, call: Call, calls: asyncio.Queue[Call]) -> None:
        """A guarded block, which ends with the call `release`, or is cancelled."""
        name = call["lease"]
        try:
            async with client.lock(call["resource"], **wanted(call)) as lease:
                answer(call, token=lease.token, leaseId=lease.lease_id)
                while (call := await calls.get())["call"] != "release":
                    ask(lease, call)
            answer(call)
            return
        except LockLost as error:
            say({"lost": name, "reason": error.code})
        except LeaseholdError as error:
            refuse(call, error)
            return
        while call := await calls.get():
            try:
                lease.check()
            except LockLost as error:
                refuse(call, error)


def many(call: Call) -> list[leasehold.Lock]:
    """Returns the locks of the call `many`."""
    names = (f"{call['resource']}-{n}" for n in range(call["count"]))
    return [client.lock(name, **wanted(call)) for name in names]


def check_many(call: Call, leases: list[Lease]) -> None:
    """Answers how many of them are valid."""
    answer(call, held=sum(lease.remaining > 0 for lease in leases))


if __name__ == "__main__":
    elections: dict[str, leasehold.Election] = {}
    client = Client(sys.argv[2])
    say({"version": leasehold.__version__})
    if sys.argv[1] == "threads":
        Threads().run()
    else:
        asyncio.run(Asyncio().run())
