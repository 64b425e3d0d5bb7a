"""One thread that reads and writes all connections of a process to its sidecar, and runs timers.

It is not the app's thread, and not its event loop: both may be busy for longer than a lease is
valid. All functions with "On the thread" in their documentation run on it alone, so what they share
needs no lock. `post` brings a function there.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import selectors
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from . import _clock
from ._wire import Address, Answer, Conversation, Event, ProtocolError, Request

if TYPE_CHECKING:
    from ._hooks import Observer

log = logging.getLogger("leasehold")

# How many connections to keep for further calls.
_KEPT = 4
# While the machine sleeps, a selector's timeout stands still and the clock of the deadlines runs.
_LONGEST_SLEEP = 1.0


class Handler(Protocol):
    """The maker of a request. All calls are on the thread."""

    def answered(self, answer: Answer) -> None:
        """The whole answer is there; the exchange is over."""

    def received(self, event: Event) -> None:
        """The stream brought an event."""

    def broke(self, why: str) -> None:
        """The connection failed or ended, or the time is over; the exchange is over."""


class Timer:
    """A function to call at a time."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """The function is not called any more."""
        self.call = None


class Exchange:
    """A request and its answer."""

    def __init__(self, engine: Engine, request: Request, handler: Handler) -> None:
        self._engine = engine
        self.request = request
        self.handler: Handler | None = handler
        self.connection: Connection | None = None
        self.timer: Timer | None = None

    def close(self) -> None:
        """On the thread: ends it without an answer. Its connection is closed."""
        self.finish()
        if self.connection is not None:
            self.connection.close()

    def finish(self) -> Handler | None:
        """On the thread: returns the handler once, and nothing after that."""
        handler, self.handler = self.handler, None
        if self.timer is not None:
            self.timer.cancel()
        return handler

    def fail(self, why: str) -> None:
        """On the thread: ends it with an error."""
        handler = self.finish()
        if self.connection is not None:
            self.connection.close()
        if handler is not None:
            handler.broke(why)


class Connection:
    """A connection to the sidecar, and the exchange that uses it."""

    def __init__(self, engine: Engine, exchange: Exchange) -> None:
        self._engine = engine
        self._conversation = Conversation(engine.address)
        # Before there is a socket: a body that is not JSON raises an error.
        self._unsent = self._conversation.request(exchange.request)
        self._exchange: Exchange | None = exchange
        # Of a connection that was kept, the peer may just have closed its end.
        self.is_fresh = True
        self._socket = _connect(engine.address)
        engine.selector.register(
            self._socket, selectors.EVENT_READ | selectors.EVENT_WRITE, self._ready
        )
        exchange.connection = self

    def start(self, exchange: Exchange) -> None:
        """Sends a further request."""
        self._exchange = exchange
        exchange.connection = self
        self._unsent += self._conversation.request(exchange.request)
        self._watch()

    def close(self) -> None:
        """Closes it, and loses what is unsent."""
        self._exchange = None
        if self._socket.fileno() >= 0:
            self._engine.selector.unregister(self._socket)
            self._socket.close()
        self._engine.kept.discard(self)

    def _watch(self) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        self._engine.selector.modify(self._socket, events, self._ready)

    def _ready(self, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                self._write()
            if events & selectors.EVENT_READ:
                self._read()
        except BlockingIOError:
            return
        except (OSError, ProtocolError) as error:
            self._failed(error)
        except Exception as error:
            # A callback failed, or an answer has not the fields that it must have.
            log.exception("reading an answer failed")
            self._failed(error)

    def _write(self) -> None:
        if error := self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(error, os.strerror(error))
        sent = self._socket.send(self._unsent)
        self._unsent = self._unsent[sent:]
        if not self._unsent:
            self._watch()

    def _read(self) -> None:
        data = self._socket.recv(65536)
        if data and self._exchange is not None:
            # What is being answered must not be sent again.
            self.is_fresh = True
        for found in self._conversation.receive(data):
            exchange = self._exchange
            if exchange is None or exchange.handler is None:
                return
            if isinstance(found, Event):
                exchange.handler.received(found)
                continue
            handler = exchange.finish()
            exchange.connection = self._exchange = None
            self._keep()
            if handler is not None:
                self._deliver(handler, found)

    def _deliver(self, handler: Handler, answer: Answer) -> None:
        try:
            handler.answered(answer)
        except Exception as error:
            log.exception("an answer of status %d cannot be used", answer.status)
            handler.broke(f"{self._engine.address} is not a sidecar: no {error}")

    def _keep(self) -> None:
        if self._conversation.can_continue and len(self._engine.kept) < _KEPT:
            self.is_fresh = False
            self._engine.kept.add(self)
        else:
            self.close()

    def _failed(self, error: Exception) -> None:
        exchange, fresh = self._exchange, self.is_fresh
        self.close()
        if exchange is None or exchange.handler is None:
            return
        if fresh:
            exchange.fail(f"{self._engine.address}: {error}")
        else:
            # Each call of the API may be repeated.
            self._engine.connect(exchange)


class Engine:
    """The thread, its connections and its timers."""

    def __init__(self, address: Address, observer: Observer) -> None:
        self.address = address
        #: Notified of what happens to the locks of this engine. It runs no hook on the thread.
        self.observer = observer
        self._guards: weakref.WeakSet[Guarded] = weakref.WeakSet()
        self._reset()
        _engines.add(self)

    def _reset(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.kept: set[Connection] = set()
        self._timers: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._posted: deque[Callable[[], None]] = deque()
        self._starting = threading.RLock()
        self._thread: threading.Thread | None = None
        # Held whenever the thread is not asleep, so that a fork sees all of its sockets.
        self.awake = threading.RLock()
        self._wakes, self._waker = socket.socketpair()
        for end in (self._wakes, self._waker):
            end.setblocking(False)
        self.selector.register(self._wakes, selectors.EVENT_READ, self._woken)

    def post(self, call: Callable[[], None]) -> None:
        """Runs a function on the thread. Any thread may call it."""
        self._posted.append(call)
        with self._starting:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="leasehold", daemon=True)
                thread.start()
                self._thread = thread
        with suppress(BlockingIOError):  # Then it has enough to wake up for.
            self._waker.send(b"\0")

    def at(self, time: float, call: Callable[[], None]) -> Timer:
        """On the thread: calls a function at a time of `_clock`."""
        timer = Timer(call)
        heapq.heappush(self._timers, (time, next(self._numbers), timer))
        return timer

    def request(self, request: Request, handler: Handler, until: float | None) -> Exchange:
        """On the thread: sends a request, and fails it at a time. An error is reported later, from
        the loop."""
        exchange = Exchange(self, request, handler)
        if until is not None:
            why = f"{self.address} did not answer in time"
            exchange.timer = self.at(until, lambda: exchange.fail(why))
        if self.kept:
            connection = self.kept.pop()
            try:
                connection.start(exchange)
            except Exception:
                connection.close()
                raise
        else:
            self.connect(exchange)
        return exchange

    def connect(self, exchange: Exchange) -> None:
        """On the thread: sends a request on a new connection."""
        try:
            Connection(self, exchange)
        except OSError as error:
            why = f"{self.address}: {error}"
            self.at(0, lambda: exchange.fail(why))

    def must_not_be_here(self) -> None:
        """Raises RuntimeError on the thread, which would wait for itself."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("a callback of on_lost must not wait; have another thread do it")

    def guard(self, guarded: Guarded) -> None:
        """Has something end in a process made by fork."""
        self._guards.add(guarded)

    def _run(self) -> None:
        while True:
            ready = self.selector.select(self._sleep())
            with self.awake:
                for key, events in ready:
                    # An earlier one of these may have closed it.
                    if key.fileobj.fileno() >= 0:  # type: ignore[union-attr]
                        _safely(lambda key=key, events=events: key.data(events))  # type: ignore[misc]
                while self._posted:
                    _safely(self._posted.popleft())
                self._run_timers()

    def _sleep(self) -> float | None:
        if self._posted:
            return 0
        while self._timers and self._timers[0][2].call is None:
            heapq.heappop(self._timers)
        if not self._timers:
            return None
        return min(max(0.0, self._timers[0][0] - _clock.now()), _LONGEST_SLEEP)

    def _run_timers(self) -> None:
        now = _clock.now()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            if timer.call is not None:
                _safely(timer.call)

    def _woken(self, _events: int) -> None:
        with suppress(BlockingIOError):
            while self._wakes.recv(4096):
                pass

    def forked(self) -> None:
        """In a process made by fork: closes the copies of the parent's connections. The thread does
        not exist here; a new one starts with the next lock."""
        for key in list(self.selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._waker.close()
        self.selector.close()
        self._reset()
        guards, self._guards = list(self._guards), weakref.WeakSet()
        for guarded in guards:
            guarded.forked()


class Guarded(Protocol):
    """What must not continue in a process made by fork."""

    def forked(self) -> None:
        """This process is the copy."""


def _connect(address: Address) -> socket.socket:
    if address.unix_socket is not None:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        where: object = address.unix_socket
    else:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        # Of localhost, the sidecar listens on both.
        family, kind, protocol, _, where = min(found, key=lambda entry: entry[0])
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setblocking(False)
    try:
        with suppress(BlockingIOError):  # Its success is reported later.
            made.connect(where)  # type: ignore[arg-type]
    except OSError:
        made.close()
        raise
    return made


def _safely(call: Callable[[], None]) -> None:
    """A bug in one callback must not end the thread: all leases depend on it."""
    try:
        call()
    except Exception:
        log.exception("a callback failed")


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_held: list[Engine] = []
# Two threads may fork at once, and the hooks of both use `_held`.
_forking = threading.Lock()


def _before_fork() -> None:
    _forking.acquire()
    _held[:] = list(_engines)
    for engine in _held:
        engine.awake.acquire()


def _after_fork_in_parent() -> None:
    for engine in _held:
        engine.awake.release()
    _held.clear()
    _forking.release()


def _after_fork_in_child() -> None:
    global _forking
    _forking = threading.Lock()
    for engine in _held:
        engine.forked()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
