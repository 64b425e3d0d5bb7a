"""`lock`: what an app uses."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeVar, cast

from ._acquire import Acquisition, ByConnection, ByRenewal, Wanted
from ._engine import Engine
from ._lease import Lease
from .errors import LockLost

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Lock:
    """A lock to acquire: by `with`, by `async with`, as a decorator, or by `acquire`.

    Each `with` needs an object of its own; a decorator makes one for each call.
    """

    def __init__(self, engine: Engine, wanted: Wanted) -> None:
        self._engine = engine
        self._wanted = wanted
        self._lease: Lease | None = None
        self._task: _Task | None = None

    def acquire(self) -> Lease:
        """Acquires it. The caller must release the lease; `with` does that by itself.

        Raises LockHeld when `wait` is over, Unavailable, or Refused.
        """
        with self.start().awaited() as future:
            return future.result()

    async def acquire_async(self) -> Lease:
        """`acquire` for asyncio."""
        with self.start().awaited() as future:
            return await asyncio.wrap_future(future)

    def start(self) -> Acquisition:
        """Begins to acquire it."""
        acquisition: Acquisition
        if self._wanted.ttl is None:
            acquisition = ByConnection(self._engine, self._wanted)
        else:
            acquisition = ByRenewal(self._engine, self._wanted, self._wanted.ttl)
        acquisition.start()
        return acquisition

    def __enter__(self) -> Lease:
        self._must_be_unused()
        self._lease = self.acquire()
        return self._lease

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        lease, self._lease = self._lease, None
        assert lease is not None
        try:
            lease.release()
        except LockLost:
            # The body's own error says more. Without one, the body must not count as guarded.
            if error is None:
                raise

    async def __aenter__(self) -> Lease:
        self._must_be_unused()
        self._lease = lease = await self.acquire_async()
        self._task = _Task(lease)
        return lease

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        lease, self._lease = self._lease, None
        task, self._task = self._task, None
        assert lease is not None
        assert task is not None
        if task.ended(error):
            raise LockLost(*task.loss) from error
        try:
            await lease.release_async()
        except LockLost:
            if error is None:
                raise

    def _must_be_unused(self) -> None:
        if self._lease is not None:
            raise RuntimeError("this lock is in use; make one with leasehold.lock() for each block")

    def __call__(self, function: _Function) -> _Function:
        """Decorates a function, or a coroutine function: each call runs while it holds the lock."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError("a generator would run after the lock is released; use `with` in it")
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def guarded_async(*args: Any, **kwargs: Any) -> Any:
                async with Lock(self._engine, self._wanted):
                    return await function(*args, **kwargs)

            return cast(_Function, guarded_async)

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            with Lock(self._engine, self._wanted):
                return function(*args, **kwargs)

        return cast(_Function, guarded)


class _Task:
    """The task in an `async with`: it is cancelled when the lease is lost."""

    def __init__(self, lease: Lease) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._has_left = False
        # Since Python 3.11. Before, a cancellation from outside at the same time is taken for ours.
        self._cancelled_before = task.cancelling() if hasattr(task, "cancelling") else 0
        self._was_cancelled = False
        self.loss = ("", "")
        loop = asyncio.get_running_loop()

        def lost(lease: Lease) -> None:
            with suppress(RuntimeError):  # The loop has ended, and the task with it.
                loop.call_soon_threadsafe(self._cancel, lease)

        lease.on_lost(lost)

    def _cancel(self, lease: Lease) -> None:
        if not self._has_left:
            self._was_cancelled = True
            try:
                lease.check()
            except LockLost as error:
                self.loss = (error.detail, error.code)
            self._task.cancel(f"lock lost: {self.loss[1]}")

    def ended(self, error: BaseException | None) -> bool:
        """The body has ended. Returns whether its cancellation was ours, and only ours."""
        self._has_left = True
        if not self._was_cancelled:
            return False
        uncancel = getattr(self._task, "uncancel", None)
        others = uncancel() if uncancel is not None else 0
        return isinstance(error, asyncio.CancelledError) and others <= self._cancelled_before
