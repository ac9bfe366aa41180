"""Which checkpoints of a thread are durable, and who waits for one: a step is executed only when what it hangs on is on disk."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

from letitloop_langgraph.errors import CheckpointNotDurable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    Needed = tuple[str, str]  # namespace and id of a checkpoint

__all__ = ["Barrier"]

_LONGEST_WAIT = 120.0  # seconds for a checkpoint on its way to the disk


class Barrier:
    """What steps and effects in a node wait at.

    Args:
        thread_id: the thread.
        guard: held for whatever is done with the thread's state.
        ids: returns the ids of the checkpoints that are on record.

    Attributes:
        broken: by namespace, why its checkpoints do not come.
    """

    def __init__(self, thread_id: str, guard: threading.RLock, ids: Callable[[], Collection[str]]) -> None:
        self.broken: dict[str, BaseException] = {}
        self._thread_id = thread_id
        self._guard = guard
        self._ids = ids
        self._on_their_way: set[str] = set()
        self._changed = threading.Condition(guard)
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None], tuple[Needed, ...]]] = []

    def expect(self, identity: str) -> None:
        """A checkpoint is about to be queued; called with the guard held."""
        self._on_their_way.add(identity)

    def settle(self, ns: str, identity: str | None, error: BaseException | None) -> None:
        """A checkpoint is durable, or neither it nor one after it will ever be; called with the guard held."""
        if identity is not None:
            self._on_their_way.discard(identity)
        if error is None:
            self.broken.pop(ns, None)
        else:
            self.broken[ns] = error
        self._notify()

    def forget(self) -> None:
        """The thread was deleted."""
        self._on_their_way.clear()
        self.broken.clear()

    def missing(self, needed: Sequence[Needed]) -> tuple[Needed, ...]:
        """Return which of these checkpoints are not durable yet."""
        with self._guard:
            return tuple(one for one in needed if one[1] in self._on_their_way or one[1] not in self._ids())

    def wait(self, needed: Sequence[Needed], timeout: float = _LONGEST_WAIT) -> None:
        """Return when these checkpoints are durable; not on an event loop's thread.

        Raises:
            CheckpointNotDurable: one of them never came.
            LogPoisoned: the log failed.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            while missing := self.missing(needed):
                error = self._kept_from(missing)
                if error is not None:
                    raise error
                left = deadline - time.monotonic()
                if left <= 0:
                    raise self._never_came(missing)
                self._changed.wait(left)

    async def async_wait(self, needed: Sequence[Needed], timeout: float = _LONGEST_WAIT) -> None:
        """Do as :meth:`wait`, on an event loop."""
        loop = asyncio.get_running_loop()
        with self._guard:
            missing = self.missing(needed)
            if not missing:
                return
            error = self._kept_from(missing)
            if error is not None:
                raise error
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiting.append((loop, waiter, missing))
        try:
            await asyncio.wait_for(waiter, timeout)
        except (TimeoutError, asyncio.TimeoutError):
            raise self._never_came(self.missing(needed)) from None

    def _notify(self) -> None:
        """Wake whoever waits for a checkpoint; called with the guard held."""
        self._changed.notify_all()
        still: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None], tuple[Needed, ...]]] = []
        for loop, waiter, needed in self._waiting:
            missing = self.missing(needed)
            error = self._kept_from(missing) if missing else None
            if missing and error is None:
                still.append((loop, waiter, needed))
                continue
            try:
                loop.call_soon_threadsafe(_wake, waiter, error)
            except RuntimeError:
                continue  # the loop was closed: nobody waits any more
        self._waiting = still

    def _kept_from(self, missing: Sequence[Needed]) -> BaseException | None:
        """Return why a checkpoint will not come, None if it may still."""
        found = next((one for one in missing if one[0] in self.broken), None)
        if found is None:
            return None
        broken = self.broken[found[0]]
        if not isinstance(broken, Exception):
            return broken
        error = CheckpointNotDurable(
            f"thread {self._thread_id!r}: checkpoint {found[1]}, which this task hangs on, could not be stored: {broken}. The "
            "step was not executed. The error itself is raised at the end of the graph's run.",
            thread_id=self._thread_id,
            checkpoint_id=found[1],
        )
        error.__cause__ = broken
        return error

    def _never_came(self, missing: Sequence[Needed]) -> CheckpointNotDurable:
        identity = missing[0][1] if missing else ""
        return CheckpointNotDurable(
            f"thread {self._thread_id!r}: checkpoint {identity}, which this task hangs on, did not become durable. The "
            "step was not executed. Is the graph's checkpointer wrapped in one that does not hand checkpoints on?",
            thread_id=self._thread_id,
            checkpoint_id=identity,
        )


def _wake(waiter: asyncio.Future[None], error: BaseException | None) -> None:
    if waiter.done():
        return
    if error is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(error)
