"""A server that answers as a test wants."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from typing import Any, NoReturn

import pytest

from leasehold import Client

Document = dict[str, Any]

#: A lease, as the answer of acquire has it.
GRANT: Document = {
    "resource": "report",
    "ownerId": "app",
    "leaseId": "lease.0",
    "fencingToken": 5,
    "validForMs": 60_000,
    "renewAfterMs": 20_000,
}


class Sidecar:
    """The answers by the last word of the path, or by DELETE, and the calls that were made."""

    def __init__(self) -> None:
        self.url = ""
        self.calls: list[str] = []
        self.answers: dict[str, tuple[int, Document]] = {
            "acquire": (200, GRANT),
            "DELETE": (204, {}),
        }
        #: The events of a call that is answered with a stream.
        self.events: dict[str, Queue[tuple[str, Document]]] = defaultdict(Queue)
        #: Called before an answer.
        self.before: Callable[[str], None] = lambda name: None

    def problem(self, name: str, status: int, code: str, **fields: Any) -> None:
        """Has a call answered with a problem document."""
        document = {"status": status, "code": code, "detail": f"a {code}", **fields}
        self.answers[name] = (status, document)


@contextmanager
def serving() -> Iterator[Sidecar]:
    """Serves until the end of the block."""
    sidecar = Sidecar()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            name = "DELETE" if self.command == "DELETE" else self.path.rpartition("/")[2]
            sidecar.calls.append(name)
            sidecar.before(name)
            if name in sidecar.events:
                self.stream(sidecar.events[name])
            status, document = sidecar.answers[name]
            body = b"" if status == 204 else json.dumps(document).encode()
            self.send_response(status)
            if status != 204:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def stream(self, events: Queue[tuple[str, Document]]) -> NoReturn:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            while True:
                event, data = events.get()
                self.wfile.write(f"event: {event}\ndata: {json.dumps(data)}\n\n".encode())

        do_POST = do_DELETE = answer  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            """The test's output has no access log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        sidecar.url = f"http://127.0.0.1:{server.server_port}"
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield sidecar
        server.shutdown()


def wait_until(condition: Callable[[], bool]) -> None:
    """Waits for a condition, and fails if it does not come."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come"
        time.sleep(0.01)


async def cancelled_after_grant(client: Client, sidecar: Sidecar) -> None:
    """Cancels a task whose lock is granted, before the task knows it."""
    sidecar.answers["acquire"] = (200, {**GRANT, "renewAfterMs": 0})
    sidecar.answers["renew"] = (200, GRANT)
    task = asyncio.create_task(client.lock("report", ttl=9).acquire_async())
    await asyncio.sleep(0)
    # The loop is blocked meanwhile. The client renews no lease before it has the grant.
    wait_until(lambda: "renew" in sidecar.calls)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
