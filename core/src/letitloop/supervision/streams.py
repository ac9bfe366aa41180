"""What a watcher shares with its child on systems of the POSIX kind: descriptors, the terminal, and standard error passed on."""

from __future__ import annotations

import os
import select
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["Errors", "Terminal", "above_standard", "close_private", "keep_private", "private_pipe"]

_KEPT = 64 * 1024  # bytes of standard error: enough for the longest traceback that Python prints
_ATOMIC = select.PIPE_BUF  # what may be written without waiting once poll says that something may


# --- descriptors that no child may have --------------------------------------------------------------------------------------

_private: set[int] = set()


def private_pipe(*, both: bool = False) -> tuple[int, int]:
    """Return a pipe whose writing end, or both, is closed in every forked child; no end is a standard descriptor."""
    ends = [above_standard(end) for end in os.pipe()]
    _private.update(ends if both else ends[1:])
    return ends[0], ends[1]


def keep_private(descriptor: int) -> None:
    """Have a descriptor closed in every forked child."""
    _private.add(descriptor)


def above_standard(descriptor: int) -> int:
    """Move a descriptor off 0, 1 and 2, which a program was perhaps started without: they would pass for its streams."""
    if descriptor > 2:
        return descriptor
    import fcntl

    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(descriptor)
    return moved


def close_private(*descriptors: int) -> None:
    """Close descriptors, private or not; one below zero is none."""
    for descriptor in descriptors:
        _private.discard(descriptor)
        if descriptor >= 0:
            os.close(descriptor)


def _after_fork_in_child() -> None:
    # a copy in a child would hide the watcher's death from the guard
    while _private:
        try:
            os.close(_private.pop())
        except OSError:
            continue


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


# --- the terminal ------------------------------------------------------------------------------------------------------------


class Terminal:
    """The terminal that this process belongs to, if there is one; it has one group in its foreground.

    Attributes:
        there: whether there is one.
    """

    def __init__(self) -> None:
        self._attributes: Any = None
        try:
            self._descriptor = above_standard(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
            keep_private(self._descriptor)
        except OSError:
            self._descriptor = -1
        self.there = self._descriptor >= 0

    def give(self, group: int) -> bool:
        """Let a group have the foreground, if it is ours to give."""
        if not self.there or self._foreground() != os.getpgrp():
            return False
        import termios

        try:
            self._attributes = termios.tcgetattr(self._descriptor)
        except termios.error:
            self._attributes = None
        return self._set(group)

    def take_back(self, group: int) -> None:
        """Take the foreground back from a group, and put right what a killed program left of the terminal's settings."""
        if not self.there or self._foreground() != group:
            return
        self._set(os.getpgrp())
        if self._attributes is not None:
            import termios

            try:
                if termios.tcgetattr(self._descriptor) != self._attributes:
                    termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._attributes)
            except termios.error:
                pass

    def _foreground(self) -> int:
        try:
            return os.tcgetpgrp(self._descriptor)
        except OSError:  # it was hung up
            return -1

    def _set(self, group: int) -> bool:
        # from the background this is what stops a job, unless it is blocked
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            os.tcsetpgrp(self._descriptor, group)
        except OSError:
            return False
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return True

    def suspend(self, number: int) -> None:
        """Stop this process's job as the terminal would, and return when it is continued."""
        former = signal.signal(number, signal.SIG_DFL)
        try:
            os.killpg(os.getpgrp(), number)
        finally:
            signal.signal(number, former)

    def close(self) -> None:
        """Forget it."""
        close_private(self._descriptor)
        self._descriptor, self.there = -1, False


# --- standard error ----------------------------------------------------------------------------------------------------------


class Errors:
    """What a child writes to standard error: passed on, and its end kept. A child of a terminal's watcher has a terminal there.

    Attributes:
        source: where it is read; -1 at its end.
        kept: its last bytes.
        backlog: what is not passed on yet.
    """

    def __init__(self) -> None:
        self.kept = bytearray()
        self.backlog = bytearray()
        self._is_terminal = False
        self._gone = False
        self.source, self.sink = self._open()
        keep_private(self.source)
        os.set_blocking(self.source, False)
        if self._is_terminal:
            self._copy_size()

    def _open(self) -> tuple[int, int]:
        try:
            if os.isatty(2):
                import termios

                source, sink = map(above_standard, os.openpty())
                attributes: Any = termios.tcgetattr(sink)
                attributes[1] &= ~termios.OPOST  # the real terminal does that
                attributes[3] &= ~(termios.ECHO | termios.ICANON | termios.ISIG)
                termios.tcsetattr(sink, termios.TCSANOW, attributes)
                self._is_terminal = True
                return source, sink
        except OSError:  # no more terminals to be had
            pass
        ends = [above_standard(end) for end in os.pipe()]
        return ends[0], ends[1]

    def started(self) -> None:
        """The child has its end: let go of it here."""
        os.close(self.sink)
        self.sink = -1

    def read(self) -> bool:
        """Take what is there; return whether there may be more."""
        if self.source < 0:
            return False
        try:
            data = os.read(self.source, 65536)
        except BlockingIOError:
            return False
        except OSError:  # a terminal that nobody has open any more
            data = b""
        if not data:
            close_private(self.source)
            self.source = -1
            return False
        self.kept += data
        if len(self.kept) > 2 * _KEPT:
            del self.kept[:-_KEPT]
        if not self._gone:
            self.backlog += data
            self.pass_on(1 << 30)
        return True

    def pass_on(self, most: int = _ATOMIC) -> None:
        """Write as much of the backlog as can be written without waiting."""
        if self._is_terminal:
            self._copy_size()
        poll = select.poll()
        poll.register(2, select.POLLOUT)
        while self.backlog and most > 0:
            try:
                if not any(state & select.POLLOUT for _, state in poll.poll(0)):
                    if any(state & (select.POLLERR | select.POLLNVAL | select.POLLHUP) for _, state in poll.poll(0)):
                        raise BrokenPipeError
                    return
                written = os.write(2, self.backlog[:_ATOMIC])
            except BlockingIOError:
                return
            except OSError:  # nobody reads it: the child goes on, as it would with a log file
                self._gone = True
                self.backlog.clear()
                return
            del self.backlog[:written]
            most -= written

    def last(self) -> str:
        """Return the end of what was written."""
        return bytes(self.kept[-_KEPT:]).decode("utf-8", "replace")

    def _copy_size(self) -> None:
        """Let the child's terminal have the size of ours, which may have changed."""
        import fcntl
        import termios

        try:
            fcntl.ioctl(self.source, termios.TIOCSWINSZ, fcntl.ioctl(2, termios.TIOCGWINSZ, bytes(8)))
        except OSError:
            pass

    def close(self) -> None:
        """Pass on the rest, as far as somebody takes it, and close."""
        for _ in range(16):  # a process that left the group may write on for ever
            if not self.read():
                break
        deadline = time.monotonic() + 1.0
        while self.backlog and time.monotonic() < deadline:
            poll = select.poll()
            poll.register(2, select.POLLOUT)
            poll.poll(100)
            self.pass_on()
        close_private(self.source, self.sink)
        self.source = self.sink = -1
