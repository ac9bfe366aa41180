"""Driving AutoGen's generators and coroutines in tasks of their own: with our context, and an end when they are cancelled."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from autogen_core import CancellationToken

__all__ = ["GRACE", "LONG_GRACE", "Cancelled", "Pump", "asker", "let_go", "until"]

T = TypeVar("T")
GRACE = 0.3
"""Seconds that stock code is given to end by itself once it is cancelled; it may never do."""
LONG_GRACE = 0.9
"""Seconds that the parts of a run are given, each of which gives what is inside it :data:`GRACE`."""


class Cancelled:
    """Tells a task of this event loop that a cancellation token was cancelled, on whatever thread."""

    def __init__(self, token: CancellationToken | None, told: asyncio.Future[None] | None = None) -> None:
        self.told: asyncio.Future[None] = told or asyncio.get_running_loop().create_future()
        self._token = token
        if token is not None:
            token.add_callback(self._tell_loop)

    def _tell_loop(self) -> None:
        with suppress(RuntimeError):  # the loop is closed, and the run long over
            self.told.get_loop().call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        if not self.told.done():
            self.told.set_result(None)

    def __bool__(self) -> bool:
        return self._token is not None and self._token.is_cancelled()


_let_go: set[asyncio.Future[Any]] = set()


def let_go(work: asyncio.Future[Any]) -> None:
    """Leave something that outlives its run to itself; what it records is recorded, and nobody waits for it."""
    _let_go.add(work)
    work.add_done_callback(_fetch)


def _fetch(work: asyncio.Future[Any]) -> None:
    _let_go.discard(work)
    if not work.cancelled():
        work.exception()


async def until(task: asyncio.Future[T], cancelled: Cancelled) -> T:
    """Return a task's result; some time after a cancellation, end it.

    Raises:
        asyncio.CancelledError: it was cancelled, and did not end in time.
    """
    try:
        either: set[asyncio.Future[Any]] = {task, cancelled.told}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            await asyncio.wait({task}, timeout=GRACE)
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=GRACE / 2)
            raise asyncio.CancelledError("the run was cancelled by its token")
    except asyncio.CancelledError:
        if not task.done():
            task.cancel()
        raise
    return task.result()


_askers: WeakKeyDictionary[asyncio.Future[Any], asyncio.Task[Any] | None] = WeakKeyDictionary()


def asker() -> asyncio.Task[Any] | None:
    """Return the current task; of a pump's the one that takes the items."""
    task = asyncio.current_task()
    return task if task is None else _askers.get(task, task)


class Pump:
    """Takes the items out of a generator one by one, in a task and a context of its own.

    Args:
        generator: the generator; it is advanced when the next item is asked for, and not before.
    """

    def __init__(self, generator: AsyncGenerator[Any, None]) -> None:
        self._generator = generator
        self._wanted: asyncio.Queue[asyncio.Future[Any] | None] = asyncio.Queue()
        self._task = asyncio.ensure_future(self._work())
        _askers[self._task] = asker()
        self._given_up = False

    @classmethod
    def inside(cls, generator: AsyncGenerator[Any, None]) -> Pump:
        """Return a pump in a copy of the current context."""
        return copy_context().run(cls, generator)

    async def _work(self) -> None:
        try:
            while (answer := await self._wanted.get()) is not None:
                try:
                    item = await self._generator.__anext__()
                except StopAsyncIteration:
                    answer.set_result(_END)
                    return
                except asyncio.CancelledError:
                    answer.cancel()
                    raise
                except Exception as exc:
                    if not answer.done():
                        answer.set_exception(exc)
                    return
                except BaseException as exc:
                    if not answer.done() and not isinstance(exc, (KeyboardInterrupt, SystemExit)):
                        answer.set_exception(exc)
                        return
                    raise
                if not answer.done():
                    answer.set_result(item)
        finally:
            with suppress(RuntimeError):  # it is being advanced by a step that will not end
                await self._generator.aclose()

    async def next(self, cancelled: Cancelled, *, on_cancel: Callable[[], object] | None = None, grace: float = GRACE / 2) -> Any:
        """Return the next item.

        Args:
            cancelled: tells that the run is cancelled.
            on_cancel: called if whoever waits for the item is cancelled, before the generator is.
            grace: seconds that the generator is given to end once it is cancelled.

        Raises:
            StopAsyncIteration: there is none.
            asyncio.CancelledError: the token was cancelled, and the generator did not end in time.
        """
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._wanted.put_nowait(answer)
        try:
            item = await until(answer, cancelled)
        except asyncio.CancelledError:
            if on_cancel is not None and not cancelled.told.done():
                on_cancel()
                await asyncio.wait({self._task}, timeout=2 * GRACE)  # what is under way in it ends now, and it by itself
            await self._end(grace)
            raise
        if item is _END:
            raise StopAsyncIteration
        return item

    async def close(self, grace: float = GRACE) -> None:
        """Close the generator, wherever it is."""
        if not self._task.done() and not self._given_up:
            self._wanted.put_nowait(None)
            await asyncio.wait({self._task}, timeout=grace)
            await self._end(GRACE / 2)

    async def _end(self, grace: float) -> None:
        self._given_up = True
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=grace)
        if self._task.done() and not self._task.cancelled():
            self._task.exception()  # fetched: whoever waited was told


_END = object()
