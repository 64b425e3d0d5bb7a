"""The middleware for ASGI, without a server."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

from leasehold.asgi import FencingTokens, refusal, stale_problem

SQLITE = Path(__file__).parents[3] / "fences/sqlite/20261128000000_leasehold_fence.up.sql"
MARIADB = "CONSTRAINT `stale_fencing_token` failed for `db`.`leasehold_fences`"


class SqlError(Exception):
    """An error as psycopg raises it."""

    def __init__(self, sqlstate: str, text: str) -> None:
        super().__init__(text)
        self.sqlstate = sqlstate


class App:
    """Records the scopes, sends some messages and raises an error."""

    def __init__(self, error: Exception | None = None, *messages: dict[str, Any]) -> None:
        self.scopes: list[MutableMapping[str, Any]] = []
        self.error = error
        self.messages = messages

    async def __call__(self, scope: MutableMapping[str, Any], _receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        for message in self.messages:
            await send(message)
        if self.error:
            raise self.error


async def receive() -> dict[str, Any]:
    return {"type": "http.request"}


def call(app: Any, method: str, *tokens: bytes, **scope: Any) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [(b"host", b"x"), *((b"x-fencing-token", token) for token in tokens)]
    request = {"type": "http", "method": method, "headers": headers, **scope}
    asyncio.run(app(request, receive, send))
    return sent


def assert_answered(sent: list[dict[str, Any]], status: int, code: str) -> str:
    start, body = sent
    assert start["status"] == status
    headers = dict(start["headers"])
    assert headers[b"content-type"] == b"application/problem+json"
    assert headers[b"content-length"] == str(len(body["body"])).encode()
    document = json.loads(body["body"])
    assert document.pop("title")
    detail = document.pop("detail")
    assert document == {
        "type": f"urn:leasehold:problem:{code}",
        "status": status,
        "code": code,
    }
    assert isinstance(detail, str)
    return detail


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "PURGE"])
def test_write_without_token_is_refused(method: str) -> None:
    app = App()
    assert_answered(call(FencingTokens(app), method), 428, "token_required")
    assert app.scopes == []


@pytest.mark.parametrize(
    "tokens",
    [
        (b"1", b"1"),
        (b"5", b"6"),
        *((token,) for token in (b"", b"0", b"-1", b"+1", b"01", b"1e3", b"1.0", b"0x10")),
        *((token,) for token in (b"1_000", b" 5", b"5 ", b"5\n", b"5 6", b"5,6", b"abc")),
        (b"\xd9\xa5",),  # a digit of another script
        (b"9007199254740992",),
        (b"9" * 5000,),
    ],
)
def test_invalid_token_is_refused(tokens: tuple[bytes, ...]) -> None:
    app = App()
    assert_answered(call(FencingTokens(app), "PUT", *tokens), 400, "token_invalid")
    assert app.scopes == []


@pytest.mark.parametrize("token", [1, 5, 2**53 - 1])
def test_handler_sees_token(token: int) -> None:
    app = App()
    state = {"pool": 1}
    call(FencingTokens(app), "PUT", str(token).encode(), state=state)
    assert app.scopes[0]["state"] == {"pool": 1, "fencing_token": token}
    assert state == {"pool": 1}, "other requests may share it"


def test_read_needs_no_token() -> None:
    app = App()
    for method in ("GET", "HEAD", "OPTIONS"):
        assert call(FencingTokens(app), method, b"not a token") == []
    call(FencingTokens(app, unfenced=["QUERY"]), "QUERY")
    assert ["state" in scope for scope in app.scopes] == [False] * 4
    answered = call(FencingTokens(app, unfenced=["QUERY"]), "GET")
    assert_answered(answered, 428, "token_required")


@pytest.mark.parametrize("kind", ["websocket", "lifespan"])
def test_what_is_not_a_request_passes(kind: str) -> None:
    app = App()
    asyncio.run(FencingTokens(app)({"type": kind}, receive, None))  # type: ignore[arg-type]
    assert app.scopes == [{"type": kind}]


def sqlite_error(token: int) -> sqlite3.Error:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.executescript(SQLITE.read_text())
    connection.execute("INSERT INTO leasehold_fence VALUES ('report', 7)")
    with pytest.raises(sqlite3.Error) as error:
        connection.execute("INSERT INTO leasehold_fence VALUES ('report', ?)", (token,))
    return error.value


POSTGRESQL = SqlError("LH001", "stale fencing token 5 for report: the newest is 7\nHINT:  Stop.")
REDIS = Exception("STALETOKEN stale fencing token 5 for {report}:fence: the newest is 7.")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (POSTGRESQL, "stale fencing token 5 for report: the newest is 7"),
        (Exception(4025, MARIADB), f"(4025, '{MARIADB}')"),
        (SqlError("23000", f"4025 (23000): {MARIADB}"), f"4025 (23000): {MARIADB}"),
        (sqlite_error(5), "stale fencing token"),
        (REDIS, str(REDIS)),
    ],
)
def test_refusal_of_fence_is_answered(error: Exception, text: str) -> None:
    wrapped = RuntimeError(f"cannot save: {error}")
    wrapped.__cause__ = error
    in_handler = RuntimeError("cannot save")
    in_handler.__context__ = error
    for raised in (error, wrapped, in_handler):
        detail = assert_answered(call(FencingTokens(App(raised)), "PUT", b"5"), 412, "stale_token")
        assert detail.endswith(f": {text}")


def test_app_that_answers_itself_has_the_same_answer() -> None:
    _, body = call(FencingTokens(App(POSTGRESQL)), "PUT", b"5")
    assert json.loads(body["body"]) == stale_problem(POSTGRESQL)


DUPLICATE = SqlError("23505", "Key (name)=(stale fencing token) already exists.")
WRAPPED = RuntimeError(str(DUPLICATE))
WRAPPED.__cause__ = DUPLICATE
HIDDEN = RuntimeError("not found")
HIDDEN.__context__ = POSTGRESQL
HIDDEN.__suppress_context__ = True
CIRCULAR = RuntimeError("circular")
CIRCULAR.__cause__ = RuntimeError("cause")
CIRCULAR.__cause__.__cause__ = CIRCULAR


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("no connection"),
        SqlError("LH002", "call leasehold.fence('stale fencing token', token) first"),
        DUPLICATE,
        WRAPPED,
        HIDDEN,
        CIRCULAR,
        sqlite_error(0),
        RuntimeError("UNIQUE constraint failed\n[parameters: ('stale fencing token',)]"),
        Exception(4025, "CONSTRAINT `amount` failed for `db`.`ledger`"),
    ],
)
def test_other_error_passes_through(error: Exception) -> None:
    assert refusal(error) is None
    assert stale_problem(error) is None
    with pytest.raises(type(error)) as raised:
        call(FencingTokens(App(error)), "PUT", b"5")
    assert raised.value is error


def test_response_that_has_started_is_left_alone() -> None:
    start = {"type": "http.response.start", "status": 200, "headers": []}
    with pytest.raises(SqlError):
        call(FencingTokens(App(POSTGRESQL, start)), "PUT", b"5")


def test_answer_follows_what_is_no_response() -> None:
    app = App(POSTGRESQL, {"type": "http.response.debug"})
    hint, *answer = call(FencingTokens(app), "PUT", b"5")
    assert hint["type"] == "http.response.debug"
    assert_answered(answer, 412, "stale_token")
