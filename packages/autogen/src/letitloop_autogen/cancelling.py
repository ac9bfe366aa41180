"""A run that is cancelled: all that is under way in it ends, and its next life is cancelled at the same place.

A cancellation ends a process more often than not, and the next process goes on from there. But a program may survive it: its
``wait_for`` runs out, and it asks something else. Then the cancellation is history, and is recorded when the next run begins.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

from letitloop_autogen.streams import GRACE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import FrameType
    from typing import Literal

    from autogen_core import CancellationToken

    Cause = Literal["token", "task", "reader", "interrupt", "exit"]

__all__ = ["Cut"]

_SETTLING = 5.0
"""Seconds in which what was finished before a recorded cancellation has to have been answered again."""

_PATIENCE = 10.0
"""Seconds, and twice as many as it took before, in which what cancelled the recorded run has to cancel this one."""


class Cut:
    """Where a run is cut off, or was in an earlier life.

    Args:
        recorded: what is on record of a cancellation that the program survived.
        stop: lets nothing more begin in the run.

    Attributes:
        ending: is done when everything in the run has to end.
        by: what cut the run off in this life.
    """

    def __init__(self, recorded: Any, stop: Callable[[], object]) -> None:
        self.ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.by: Cause | None = None
        self.recorded = recorded
        self._stop = stop
        self._began = monotonic()
        self._after = 0.0
        self._counts: dict[str, int] = {}
        self._under_way: dict[str, bool] = {}  # whether each is inside another one, which is answered without it in later lives
        self._then: dict[str, bool] = {}
        self._done = 0
        self._settled: asyncio.Future[None] = self.ending.get_loop().create_future()
        if recorded is None or not recorded["done"]:
            self._settled.set_result(None)
        self._missing = set(recorded["under_way"]) if recorded is not None else set[str]()
        self._there: asyncio.Future[None] = self.ending.get_loop().create_future()
        if not self._missing:
            self._there.set_result(None)
        self._token: CancellationToken | None = None

    # --- what is under way ---------------------------------------------------------------------------------------------------

    def begin(self, name: str, *, inside: bool) -> str:
        """Note that a call of this name begins, ``inside`` another one or not; return its key."""
        number = self._counts[name] = self._counts.get(name, 0) + 1
        key = f"{name} {number}"
        self._under_way[key] = inside
        self._missing.discard(key)
        if not self._missing and not self._there.done():
            self._there.set_result(None)
        return key

    def end(self, key: str) -> None:
        """Note that a call has ended."""
        inside = self._under_way.pop(key, False)
        if self.by is None and not inside:
            self._done += 1
            if not self._settled.done() and self._done >= self.recorded["done"]:
                self._settled.set_result(None)

    # --- a cancellation of this life -----------------------------------------------------------------------------------------

    def linked(self, token: CancellationToken | None) -> CancellationToken:
        """Return the run's own token, which the caller's cancels, and a cancellation of the run does."""
        from autogen_core import CancellationToken

        own = self._token = CancellationToken()
        own.add_callback(self._by_token)  # before any other: what is under way is noted
        if token is not None:
            token.add_callback(own.cancel)
        return own

    def _by_token(self) -> None:
        self._note("token")
        with suppress(RuntimeError):  # the loop is closed, and the run long over
            loop = self.ending.get_loop()
            loop.call_soon_threadsafe(lambda: loop.call_later(GRACE, self._end))

    def off(self, by: Cause) -> None:
        """Cut the run off: its task was cancelled, or its reader has left."""
        self._note(by)
        self._end()
        if self._token is not None:
            self._token.cancel()

    def _note(self, by: Cause) -> None:
        if self.by is None:
            cause = by if by == "token" else _end_of_loop() or by
            self.by, self._then, self._after = cause, dict(self._under_way), monotonic() - self._began

    def _end(self) -> None:
        if not self.ending.done():
            self._stop()
            self.ending.set_result(None)

    def took(self, key: str) -> bool:
        """Tell whether a call was under way when the run was cut off."""
        return key in self._then

    def check(self, key: str) -> None:
        """Leave a call that was under way when the run was cut off, though it has an answer: in later lives it will have none.

        Raises:
            asyncio.CancelledError: it was.
        """
        if self.took(key):
            raise asyncio.CancelledError("the run was cancelled before this call had its answer")

    def record(self) -> dict[str, Any]:
        """Return what is recorded if the program survives it."""
        under_way = [key for key, inside in self._then.items() if not inside]
        return {"by": self.by, "after": self._after, "under_way": under_way, "done": self._done}

    async def unless(self, work: Awaitable[Any]) -> Any:
        """Await something that is not on record; the run's end ends it.

        Raises:
            asyncio.CancelledError: it was cancelled, or the run was.
        """
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, self.ending}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=GRACE / 2)
        raise asyncio.CancelledError("the run was cancelled")

    # --- one of an earlier life ----------------------------------------------------------------------------------------------

    def was_under_way(self, key: str) -> bool:
        """Tell whether a call was under way when the recorded run was cancelled: what it returned later came too late."""
        return self.recorded is not None and key in self.recorded["under_way"]

    async def settle(self) -> None:
        """Wait until the run, which has gone on meanwhile, is at its next calls before its reader leaves it; later at the same."""
        if self.recorded is not None and self.recorded["by"] == "reader":
            for one in (self._settled, self._there):
                await asyncio.wait({one, self.ending}, timeout=_SETTLING, return_when=asyncio.FIRST_COMPLETED)
        await _some_rounds()

    async def again(self) -> bool:
        """Be where the recorded run was cancelled.

        Returns:
            False if nothing cancels this one.

        Raises:
            asyncio.CancelledError: it is cancelled again.
        """
        await asyncio.wait({self._settled, self.ending}, timeout=_SETTLING, return_when=asyncio.FIRST_COMPLETED)
        await _some_rounds()
        if self.recorded["by"] == "token" and self._token is not None:
            self._token.cancel()
            raise asyncio.CancelledError("the run was cancelled here by its token")
        if self.recorded["by"] == "interrupt":
            _press_ctrl_c()
        await asyncio.wait({self.ending}, timeout=2 * self.recorded["after"] + _PATIENCE)
        if self.ending.done():
            raise asyncio.CancelledError("the run was cancelled")
        return False


async def _some_rounds() -> None:
    """Let what was answered last reach those who asked."""
    for _ in range(20):
        await asyncio.sleep(0)


def _end_of_loop() -> Literal["interrupt", "exit"] | None:
    """Return what ends the event loop, if that is why a task of it is cancelled: Ctrl+C, or what leaves a program by an exception.

    asyncio tells no task so: it is seen in the frames of ``asyncio.run``, under which every task runs.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename == asyncio.runners.__file__:
            found = frame.f_locals
            if getattr(found.get("self"), "_interrupt_count", 0):
                return "interrupt"
            raised = found.get("exc_type")
            if isinstance(raised, type) and issubclass(raised, (KeyboardInterrupt, SystemExit)):
                return "exit"
            if frame.f_code.co_name == "_cancel_all_tasks" and sys.version_info < (3, 11):
                return "exit"  # it knows no more than that the loop ends
        frame = frame.f_back
    return None


def _press_ctrl_c() -> None:
    """Interrupt the program as it was interrupted before: whoever handles it now does what they did then.

    Raises:
        KeyboardInterrupt: nobody handles it.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        raise KeyboardInterrupt("interrupted here before")
    handler(signal.SIGINT, None)
