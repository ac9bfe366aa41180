"""What is sent to the watcher while it watches: heard on the main thread, asked for by others."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import deque
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable, Collection, Generator
    from types import FrameType, TracebackType
    from typing import Any

__all__ = ["CANCEL", "STOPPING", "SUSPENDING", "Mailbox", "heard_by_loop", "numbers"]


def numbers(*names: str) -> tuple[int, ...]:
    """Return the numbers of the signals that this system has."""
    return tuple(int(getattr(signal, name)) for name in names if hasattr(signal, name))


STOPPING = numbers("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGBREAK")
"""What ends a watched process for good."""

SUSPENDING = numbers("SIGTSTP", "SIGTTIN", "SIGTTOU")
"""What stops a job of a shell until it is continued."""

CANCEL = -1
"""What a task's cancellation puts into a mailbox: it ends the process like one Ctrl+C, and is never a second one."""

_PASSED_ON = numbers("SIGUSR1", "SIGUSR2")
_JOB = numbers("SIGTSTP", "SIGCONT")


class Mailbox:
    """The signals that have arrived, in their order.

    A context manager. On the main thread it takes over the handlers of what it hears, and gives them back; elsewhere it hears
    nothing but :meth:`put`.

    Args:
        everything: whether signals that only the watched process knows the meaning of (SIGUSR1) are heard too, and it wakes
            when the process has stopped.

    Attributes:
        former: the handlers that were there before.
        child_changed: whether a child has ended, stopped or gone on since somebody looked, who sets it back before that.
    """

    def __init__(self, *, everything: bool = False) -> None:
        self._everything = everything
        self._wanted = STOPPING + _JOB + (_PASSED_ON if everything else ())
        self._arrived: deque[int] = deque()
        self._arrival = threading.Event()
        self._ends = (-1, -1)
        self.former: dict[int, Any] = {}
        self.child_changed = False
        self.on_main_thread = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Mailbox:  # noqa: PYI034 - Self is not there before 3.11
        if sys.platform != "win32":
            from letitloop.supervision.streams import private_pipe

            self._ends = private_pipe(both=True)
            for end in self._ends:
                os.set_blocking(end, False)
        if self.on_main_thread:
            for number in self._wanted:
                former = signal.getsignal(number)
                if former is not signal.SIG_IGN and former is not None:  # ignored, as under nohup, or not set from Python
                    self.former[number] = former
                    signal.signal(number, self._hear)
            if hasattr(signal, "SIGCHLD"):  # ignored, it would have the system keep no exit status
                self.former[signal.SIGCHLD] = signal.getsignal(signal.SIGCHLD)
                if self._everything:  # this program has no other children
                    signal.signal(signal.SIGCHLD, self._child_changed)
                elif self.former[signal.SIGCHLD] is signal.SIG_IGN:
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        self.restore()
        if sys.platform != "win32":
            from letitloop.supervision.streams import close_private

            close_private(*self._ends)

    def restore(self) -> None:
        """Give back the handlers: at the end, and in a child that was forked meanwhile."""
        if self.on_main_thread:
            for number, former in self.former.items():
                if former is not None and signal.getsignal(number) is not former:
                    signal.signal(number, former)

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        self.put(number)

    def put(self, number: int) -> None:
        """Let a signal arrive; from any thread."""
        self._arrived.append(number)
        self._arrival.set()
        self._wake()

    def _child_changed(self, *_: object) -> None:
        self.child_changed = True  # a flag: the byte that wakes may be taken together with those before it
        self._wake()

    def _wake(self) -> None:
        try:
            os.write(self._ends[1], b"!")
        except OSError:  # full: it wakes already; or there is no pipe on this system
            pass

    def take(self) -> list[int]:
        """Return what has arrived since it was asked last."""
        self._arrival.clear()
        try:
            while os.read(self._ends[0], 512):
                pass
        except OSError:
            pass
        found: list[int] = []
        while self._arrived:
            found.append(self._arrived.popleft())
        return found

    def drop(self, unwanted: Collection[int]) -> None:
        """Forget signals that have arrived."""
        for number in self.take():
            if number not in unwanted:
                self.put(number)

    def fileno(self) -> int:
        """Return a descriptor that can be read from when something has arrived."""
        return self._ends[0]

    def wait(self, seconds: float) -> None:
        """Wait until something arrives, or so long."""
        if sys.platform == "win32":
            self._arrival.wait(seconds)
        else:
            import select

            poll = select.poll()
            poll.register(self._ends[0], select.POLLIN)
            poll.poll(seconds * 1000)


_TO_LOOPS = numbers("SIGTERM", "SIGHUP")
"""What ends a program whose event loop has no handler for it; Ctrl+C cancels the loop's main task by itself."""

_listening: dict[AbstractEventLoop, tuple[list[Callable[[int], None]], list[int]]] = {}
"""Who listens on a loop, and which handlers were put there for them."""


@contextmanager
def heard_by_loop(loop: AbstractEventLoop, hear: Callable[[int], None]) -> Generator[None]:
    """Let ``hear`` be told, inside the block, of signals that would end the program; those that it handles itself stay its own.

    Args:
        loop: the running event loop. Where it is not the main thread's, or knows no signals, nothing is heard.
        hear: called on the loop, with the signal's number.
    """
    if loop not in _listening:
        _listening[loop] = [], _listen(loop)
    listeners, added = _listening[loop]
    listeners.append(hear)
    try:
        yield
    finally:
        listeners.remove(hear)
        if not listeners:
            del _listening[loop]
            for number in added:
                loop.remove_signal_handler(number)


def _listen(loop: AbstractEventLoop) -> list[int]:
    """Put handlers where there are none; return for which signals."""

    def tell(number: int) -> None:
        for hear in list(_listening[loop][0]):
            hear(number)

    added: list[int] = []
    for number in _TO_LOOPS:
        if signal.getsignal(number) is signal.SIG_DFL:
            try:
                loop.add_signal_handler(number, tell, number)
            except (NotImplementedError, RuntimeError, ValueError):  # another system, another loop, another thread
                break
            added.append(number)
    return added
