"""Refuses stale writers in an ASGI service, such as FastAPI, Starlette or Litestar.

app.add_middleware(FencingTokens)

It compares no tokens: the write comes after a comparison here, so the comparison would not be a
fence. The handler passes the token to the fence of its database, first in its transaction.
docs/fencing-http.md has an example.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any

__all__ = ["FencingTokens", "refusal", "stale_problem"]

# The types of the ASGI specification. Frameworks have types of their own with this structure.
_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_App = Callable[[_Scope, _Receive, _Send], Awaitable[None]]

_HEADER = b"x-fencing-token"
_TOKEN = re.compile(rb"[1-9][0-9]{0,15}")
_LARGEST = 2**53 - 1

# The texts of SQLite and Redis, and the constraint's name in MariaDB.
_STALE = re.compile(r"stale fencing token|`stale_fencing_token`")
# Drivers of MariaDB may have this SQLSTATE for each constraint, so the text decides.
_INTEGRITY_VIOLATION = "23000"


class FencingTokens:
    """Middleware that requires a fencing token for each write.

    The token is an int: `request.state.fencing_token` in Starlette and FastAPI, and
    `scope["state"]["fencing_token"]` in any framework. A request without a token is answered with
    428, one whose token is not valid with 400, and one whose handler raises a fence's refusal with
    412. Requests with an unfenced method need no token. Other errors pass through. An error that
    the app answers itself does not reach this: see `stale_problem`.
    """

    def __init__(self, app: _App, unfenced: Collection[str] = ("GET", "HEAD", "OPTIONS")) -> None:
        self._app = app
        self._unfenced = frozenset(unfenced)

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        """Answers a request or passes it on."""
        if scope["type"] != "http" or scope["method"] in self._unfenced:
            await self._app(scope, receive, send)
            return
        values = [value for name, value in scope["headers"] if name.lower() == _HEADER]
        if not values:
            detail = (
                "send the fencing token of your lease in the header X-Fencing-Token with each write"
            )
            problem = _problem(428, "token_required", "Fencing token is required", detail)
            await _answer(send, problem)
            return
        token = int(values[0]) if _TOKEN.fullmatch(values[0]) else 0
        if len(values) > 1 or not 0 < token <= _LARGEST:
            detail = (
                "send the header X-Fencing-Token once, with a whole number from 1 to "
                f"{_LARGEST} in decimal digits"
            )
            problem = _problem(400, "token_invalid", "Fencing token is not valid", detail)
            await _answer(send, problem)
            return

        has_started = False

        async def observed(message: MutableMapping[str, Any]) -> None:
            nonlocal has_started
            has_started = has_started or message["type"] == "http.response.start"
            await send(message)

        state = {**scope.get("state", {}), "fencing_token": token}
        try:
            await self._app({**scope, "state": state}, receive, observed)
        except Exception as error:
            # A server aborts a response that has started, if the error reaches it.
            stale = None if has_started else stale_problem(error)
            if stale is None:
                raise
            await _answer(send, stale)


def stale_problem(error: BaseException) -> dict[str, Any] | None:
    """Returns the problem document for a fence's refusal, or None.

    For a framework that answers all errors itself, such as Django: answer with this document, the
    status 412 and the type `application/problem+json`.
    """
    if (text := refusal(error)) is None:
        return None
    detail = (
        "a newer lease exists: stop working, and do not repeat the request. "
        f"The store's answer: {text}"
    )
    return _problem(412, "stale_token", "Fencing token is stale", detail)


def refusal(error: BaseException) -> str | None:
    """Returns the text with which a fence of Leasehold refused a stale token, or None.

    It knows the fences of PostgreSQL, MariaDB, SQLite and Redis with any driver, also as the cause
    or the context of another error.
    """
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    for link in chain:
        # psycopg 3 and asyncpg; psycopg 2.
        state = getattr(link, "sqlstate", None) or getattr(link, "pgcode", None)
        # The text of an error of PostgreSQL may have values of the request, so it does not count.
        if state and state != _INTEGRITY_VIOLATION:
            return _first_line(link) if state == "LH001" else None
    # The last cause is the driver's error.
    texts = (_first_line(link) for link in reversed(chain))
    return next((text for text in texts if _STALE.search(text)), None)


def _first_line(error: BaseException) -> str:
    """Returns the text without what PostgreSQL (a hint) and SQLAlchemy (the statement) append."""
    return str(error).partition("\n")[0]


def _problem(status: int, code: str, title: str, detail: str) -> dict[str, Any]:
    """Returns a problem document (RFC 9457)."""
    kind = f"urn:leasehold:problem:{code}"
    return {"type": kind, "title": title, "status": status, "code": code, "detail": detail}


async def _answer(send: _Send, problem: dict[str, Any]) -> None:
    body = json.dumps(problem).encode()
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": problem["status"], "headers": headers})
    await send({"type": "http.response.body", "body": body})
