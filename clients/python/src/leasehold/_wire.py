"""HTTP/1.1 and server-sent events as values: bytes in, answers and events out. It does no I/O.

The protocol of the bytes is h11's. What is ours is the shape of a request to the sidecar, and the
split of a stream into events.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import h11

from ._version import __version__

JSON = Mapping[str, Any]


@dataclass(frozen=True)
class Address:
    """Where the sidecar listens: a host and port, or a Unix socket."""

    host: str = "localhost"
    port: int = 80
    unix_socket: str | None = None

    @classmethod
    def parse(cls, url: str) -> Address:
        """Parses `http://HOST:PORT` or `unix:///PATH`.

        Raises ValueError with what to correct.
        """
        parts = urlsplit(url)
        if parts.scheme == "unix" and parts.path and not parts.netloc:
            return cls(unix_socket=parts.path)
        if parts.scheme == "http" and parts.hostname and parts.path in ("", "/"):
            return cls(parts.hostname, parts.port or 80)
        raise ValueError(
            f"{url!r} is not the address of a sidecar; "
            "use http://127.0.0.1:7373, or unix:///PATH for a Unix socket"
        )

    @property
    def authority(self) -> str:
        """The value of the header Host."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.unix_socket else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"unix://{self.unix_socket}" if self.unix_socket else f"http://{self.authority}"


@dataclass(frozen=True)
class Request:
    """A call of the HTTP API."""

    method: str
    path: str
    body: JSON | None = None


@dataclass(frozen=True)
class Answer:
    """A whole answer. `document` is empty if its body is not a JSON object."""

    status: int
    document: JSON


@dataclass(frozen=True)
class Event:
    """A server-sent event."""

    name: str
    data: JSON


class ProtocolError(Exception):
    """The peer does not speak the protocol, or ended the connection in the middle of an answer."""


class Conversation:
    """One connection: a request at a time, and what comes back."""

    def __init__(self, address: Address) -> None:
        self._authority = address.authority
        self._http = h11.Connection(h11.CLIENT)
        self._status = 0
        self._streams = False
        self._body = b""

    def request(self, request: Request) -> bytes:
        """Returns the bytes of a request."""
        body = b"" if request.body is None else json.dumps(request.body).encode()
        headers = [
            ("Host", self._authority),
            ("User-Agent", f"leasehold-python/{__version__}"),
            ("Accept", "application/json, text/event-stream"),
            ("Content-Length", str(len(body))),
        ]
        if body:
            headers.append(("Content-Type", "application/json"))
        head = h11.Request(method=request.method, target=request.path, headers=headers)
        sent = self._http.send(head) or b""
        if body:
            sent += self._http.send(h11.Data(data=body)) or b""
        return sent + (self._http.send(h11.EndOfMessage()) or b"")

    def receive(self, data: bytes) -> Iterator[Answer | Event]:
        """Takes bytes (none: the end of the connection), and returns what they complete.

        Raises ProtocolError.
        """
        try:
            self._http.receive_data(data)
            while True:
                event = self._http.next_event()
                if isinstance(event, h11.Response):
                    kind = dict(event.headers).get(b"content-type", b"")
                    self._status = event.status_code
                    self._streams = kind.startswith(b"text/event-stream")
                    self._body = b""
                elif isinstance(event, h11.Data):
                    self._body += event.data
                    if self._streams:
                        yield from self._events()
                elif isinstance(event, h11.EndOfMessage):
                    if self._streams:
                        raise ProtocolError("the sidecar ended the stream")
                    # Before the caller decides whether to keep the connection.
                    if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
                        self._http.start_next_cycle()
                    yield Answer(self._status, _object(self._body))
                elif isinstance(event, h11.ConnectionClosed):
                    raise ProtocolError("the sidecar closed the connection")
                else:
                    return
        except h11.ProtocolError as error:
            why = str(error) if data else "the sidecar closed the connection"
            raise ProtocolError(why) from error

    @property
    def can_continue(self) -> bool:
        """Whether the connection can take another request."""
        return self._http.our_state is h11.IDLE and self._http.their_state is h11.IDLE

    def _events(self) -> Iterator[Event]:
        *complete, self._body = self._body.split(b"\n\n")
        for block in complete:
            fields = [line.partition(b":") for line in block.split(b"\n")]
            values = [(name, value.strip()) for name, _, value in fields]
            name = b"".join(value for field, value in values if field == b"event")
            data = b"\n".join(value for field, value in values if field == b"data")
            if name:
                yield Event(name.decode(), _object(data))


def _object(text: bytes) -> JSON:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
