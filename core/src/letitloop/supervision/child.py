"""The one module that touches processes, on systems of the POSIX kind; :mod:`child_windows` is its counterpart.

A watched process lives in a process group that is led by a guard (:mod:`guard`): the group can be ended as a whole, it ends when
the watcher dies, and its number cannot become another's. What the process writes to standard error is passed on as it comes, and
its end is kept. Standard input, standard output and the terminal are its own; if the watcher had the terminal, the group has it.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
import warnings
from functools import cache

from letitloop.supervision.guard import guard
from letitloop.supervision.signals import STOPPING, SUSPENDING
from letitloop.supervision.streams import Errors, Terminal, above_standard, close_private, keep_private, private_pipe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from letitloop.supervision.signals import Mailbox

__all__ = [
    "Child",
    "Terminal",
    "call",
    "close_private",
    "die_with_parent",
    "private_pipe",
    "relay",
    "run",
    "run_fresh",
    "stdout_is_read",
]

_BACKLOG = 256 * 1024  # bytes that are not passed on yet, beyond which the child has to wait
_NO_PIDFD = 0.02  # seconds between looks at a child whose end cannot be waited for with other things


# --- the group ---------------------------------------------------------------------------------------------------------------


class _Group:
    """A process group with a guard at its head.

    Args:
        file: what the guard removes if the watcher dies.
        errors: where the group's standard error is read.
        grace: seconds that the guard gives the group after a signal that ended the watcher.
        fresh: start the guard as an interpreter of its own: this process may have threads, and must not be forked.

    Attributes:
        number: the group's.
    """

    def __init__(self, file: str, errors: int, grace: float, *, fresh: bool) -> None:
        life, self._life = private_pipe()
        self.report, report = map(above_standard, os.pipe())
        keep_private(self.report)
        self._echoes: dict[int, int] = {}
        try:
            if fresh:
                words = [guard.__code__.co_filename, str(life), str(report), file, str(errors), str(grace)]
                self._process: Any = subprocess.Popen(
                    [sys.executable, "-I", "-S", *words], pass_fds=(life, report, errors), stdin=subprocess.DEVNULL
                )
                self.number: int = self._process.pid
            else:
                self._process = None
                self.number = self._fork(life, report, file, errors, grace)
        finally:
            os.close(life)
            os.close(report)
        if os.read(self.report, 1) != b"\0":
            self.end()
            raise OSError("the process group of the watched process could not be made")
        os.set_blocking(self.report, False)

    def _fork(self, life: int, report: int, file: str, errors: int, grace: float) -> int:
        errors = above_standard(os.dup(errors))  # what is private is closed by the fork
        try:
            pid = fork()
        except BaseException:
            os.close(errors)
            raise
        if pid:
            os.close(errors)
            return pid
        try:
            signal.set_wakeup_fd(-1)
            kept = sorted((life, report, errors) if grace else (life, report))
            for descriptor in (0, 1) if grace else (0, 1, 2):  # its streams would keep others from seeing their end
                _close_quietly(descriptor)
            for low, high in zip([2, *kept], [*kept, _most_descriptors()], strict=True):
                os.closerange(low + 1, high)
            guard(life, report, file, errors, grace)
        finally:
            os._exit(1)

    def watch(self, pid: int) -> None:
        """Tell the guard which process it is about: that one it ends even if it has left the group."""
        try:
            os.write(self._life, b"P" + pid.to_bytes(8, "little"))
        except OSError:  # somebody has ended the guard
            pass

    def signal(self, number: int) -> None:
        """Send a signal to every process of the group."""
        from letitloop.supervision.guard import HEARD

        if number in HEARD:
            self._echoes[number] = self._echoes.get(number, 0) + 1
        try:
            os.killpg(self.number, number)
        except (ProcessLookupError, PermissionError):  # macOS: PermissionError, if all that is left are dead and not reaped
            pass

    def heard(self) -> list[int]:
        """Return the signals that the group was sent by others, above all by its terminal."""
        try:
            arrived = os.read(self.report, 512)
        except OSError:
            return []
        if not arrived:  # somebody has ended the guard: it reports nothing more
            close_private(self.report)
            self.report = -1
        return self._foreign(arrived)

    def _foreign(self, arrived: bytes) -> list[int]:
        """Leave out what this watcher has sent to the group itself."""
        found: list[int] = []
        for number in arrived:
            if not number:
                continue
            if self._echoes.get(number, 0):
                self._echoes[number] -= 1
            else:
                found.append(number)
        return found

    def all_heard(self) -> list[int]:
        """Return the signals that the group was sent by others until now: the guard is asked, and waited for."""
        found: list[int] = []
        deadline = time.monotonic() + 1.0
        try:
            os.write(self._life, b"?")
            while self.report >= 0 and time.monotonic() < deadline:
                poll = select.poll()
                poll.register(self.report, select.POLLIN)
                if poll.poll(100):
                    data = os.read(self.report, 512)
                    found += self._foreign(data)
                    if not data or b"\0" in data:
                        break
        except OSError:  # somebody has ended the guard
            pass
        return found

    def end(self) -> None:
        """End every process of the group, at once."""
        try:
            os.killpg(self.number, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        close_private(self._life, self.report)
        try:
            if self._process is not None:
                self._process.wait()
            else:
                os.waitpid(self.number, 0)
        except ChildProcessError:  # somebody waits for every child of this process
            pass
        self._reap()

    def _reap(self) -> None:
        """Take the exit status of orphans of the group, if this process inherits them, as the first one of a container does."""
        deadline = time.monotonic() + 0.2
        try:
            while time.monotonic() < deadline:
                if not os.waitpid(-self.number, os.WNOHANG)[0]:
                    time.sleep(0.001)
        except ChildProcessError:  # none, or none that is left
            pass


def fork() -> int:
    """Fork; that threads are left behind is known here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _most_descriptors() -> int:
    try:
        return max(int(name) for name in os.listdir("/dev/fd")) + 1
    except (OSError, ValueError):
        return min(int(os.sysconf("SC_OPEN_MAX")), 65536)


def _close_quietly(descriptor: int) -> None:
    try:
        os.close(descriptor)
    except OSError:
        pass


# --- the child ---------------------------------------------------------------------------------------------------------------


class Child:
    """A watched process.

    Args:
        mailbox: what wakes the watcher besides the process.
        terminal: the watcher's terminal.
        file: what the guard removes if the watcher dies.
        grace: seconds that it has after a signal that ended the watcher, if that hears none: it is on a thread.
        fresh: whether this process must not be forked.

    Attributes:
        pid: the process.
        gentle: whether the guard alone sees to its end when the watcher dies: the system would end it at once.
        status: its exit code, or the negative number of the signal that ended it; None while it lives.
        result: what it told its parent: what came out of a pipe, or lies in ``result_file``.
        result_file: where a process that has no such pipe leaves its result; empty for a program.
    """

    def __init__(self, mailbox: Mailbox, terminal: Terminal, file: str, grace: float, *, fresh: bool) -> None:
        self._mailbox = mailbox
        self._terminal = terminal
        self._errors = Errors()
        self._result = -1
        self._pidfd = -1
        self._looks_until = 0.0
        self.pid = 0
        self.status: int | None = None
        self.result = bytearray()
        self.result_file = ""
        self.gentle = grace > 0 and not mailbox.on_main_thread
        prctl()  # looked up while there is time
        try:
            self._group = _Group(file, self._errors.source, grace if self.gentle else 0.0, fresh=fresh)
        except BaseException:
            self._errors.close()
            raise

    def enter(self) -> Callable[[], None]:
        """Return what the child does first, between fork and exec: join the group, and die with the watcher."""
        self.take_terminal()
        number, parent, call = self._group.number, os.getpid(), None if self.gentle else prctl()

        def become() -> None:
            os.setpgid(0, number)
            die_with_parent(parent, call)

        return become

    def take_terminal(self) -> None:
        """Let the group have the terminal, if it is ours; on a thread, a function has to ask for it by reading from it."""
        if self._mailbox.on_main_thread:
            self._terminal.give(self._group.number)

    @property
    def group(self) -> int:
        """The number of its process group."""
        return self._group.number

    @property
    def errors(self) -> int:
        """The descriptor that is the child's standard error."""
        return self._errors.sink

    def started(self, pid: int, result: int = -1) -> None:
        """The process is there.

        Args:
            pid: its id.
            result: the reading end of the pipe that takes its result.
        """
        self.pid, self._result = pid, result
        if self.gentle:
            self._group.watch(pid)
        self._errors.started()
        if result >= 0:
            os.set_blocking(result, False)
        pidfd_open = getattr(os, "pidfd_open", None)
        if pidfd_open is not None:
            try:
                self._pidfd = pidfd_open(pid)
                keep_private(self._pidfd)
            except OSError:  # an old kernel, or one that is told to refuse
                self._pidfd = -1

    def attend(self, seconds: float) -> list[int]:
        """Pass on what it writes until something happens, or so long.

        Returns:
            The signals that its group was sent by others; a stop of the process itself counts as the signal that stopped it,
            as a negative number.
        """
        poll = select.poll()
        poll.register(self._mailbox.fileno(), select.POLLIN)
        for source in (self._group.report, self._pidfd, self._result):
            if source >= 0:
                poll.register(source, select.POLLIN)
        if self._errors.source >= 0 and len(self._errors.backlog) < _BACKLOG:
            poll.register(self._errors.source, select.POLLIN)
        if self._errors.backlog:
            poll.register(2, select.POLLOUT)
        if self._pidfd < 0 or self._looks_until > time.monotonic():
            seconds = min(seconds, _NO_PIDFD)
        if self._mailbox.child_changed:
            seconds = 0.0
        ready = {descriptor for descriptor, _ in poll.poll(max(0.0, seconds) * 1000)}
        if 2 in ready:
            self._errors.pass_on()
        if self._errors.source in ready:
            self._errors.read()
        if self._result in ready:
            self._read_result()
        heard = self._mind(self._group.heard()) if self._group.report in ready else []
        if self._pidfd in ready or self._pidfd < 0 or self._looks_until or self._mailbox.child_changed:
            self._mailbox.child_changed = False
            heard += self._look()
        return heard

    def _look(self) -> list[int]:
        """Ask the system for the state of the process."""
        if self.status is not None:
            return []
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
        except ChildProcessError:  # somebody else waited for it, and has its exit status
            self.status = 255
            return []
        if not pid:
            if self._looks_until and self._looks_until <= time.monotonic():
                self._looks_until = 0.0
            return []
        if os.WIFSTOPPED(status):
            self._looks_until = 0.0
            return [-os.WSTOPSIG(status)]
        self.status = os.waitstatus_to_exitcode(status)
        return []

    def _read_result(self) -> None:
        try:
            data = os.read(self._result, 1 << 20)
        except BlockingIOError:
            return
        self.result += data
        if not data:
            os.close(self._result)
            self._result = -1

    def all_heard(self) -> list[int]:
        """Return the signals that its group was sent by others and that are not told yet: a terminal's may be what ended it."""
        return self._mind(self._group.all_heard())

    def _mind(self, heard: list[int]) -> list[int]:
        if any(number in SUSPENDING for number in heard):
            self._looks_until = time.monotonic() + 1.0  # it may take a while to put its screen in order before it stops
        return heard

    def signal(self, number: int) -> None:
        """Send a signal to the process and to all that it has started; a stopped one is continued to take it."""
        self._send(number)
        if number in SUSPENDING:
            self._looks_until = time.monotonic() + 1.0
        if number != getattr(signal, "SIGCONT", 0) and number not in SUSPENDING:
            self._send(signal.SIGCONT)

    def _send(self, number: int) -> None:
        self._group.signal(number)
        if self.status is None and self._apart() is not None:
            self.signal_alone(number)

    def _apart(self) -> int | None:
        """Return the process group of the process if it has left ours, or has not joined it yet."""
        try:
            group = os.getpgid(self.pid)
        except OSError:  # it is gone
            return None
        return None if group == self._group.number else group

    def wake(self) -> None:
        """Continue the process if it was stopped: what it was sent it takes then."""
        self._send(signal.SIGCONT)

    def signal_alone(self, number: int) -> None:
        """Send a signal to the process and to nothing that it has started."""
        if self.status is None:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                pass

    def kill(self) -> None:
        """End the process at once, with a group that it has made of its own."""
        if self.status is None and self._apart() == self.pid:
            os.killpg(self.pid, signal.SIGKILL)
        self.signal_alone(signal.SIGKILL)

    def resume(self) -> None:
        """Continue after a stop, with the terminal if it is ours again."""
        self.take_terminal()
        self._group.signal(signal.SIGCONT)

    def suspend(self, number: int) -> None:
        """Stop the watcher's own job, as its process was; return when it is continued."""
        self._terminal.take_back(self._group.number)
        if self._mailbox.on_main_thread:
            self._terminal.suspend(number)
        else:
            self._terminal.give(self._group.number)  # a function on a thread asks for the terminal: it may have it
        self.resume()

    def finish(self) -> str:
        """End what is left of the group; return what was written to standard error last."""
        self._group.end()
        self._terminal.take_back(self._group.number)
        deadline = time.monotonic() + 0.2
        while self._errors.source >= 0 and time.monotonic() < deadline:
            if not self._errors.read():  # the last writers are being ended, unless they have left the group
                poll = select.poll()
                if self._errors.source >= 0:
                    poll.register(self._errors.source, select.POLLIN)
                    poll.poll(20)
        self._errors.close()
        while self._result >= 0:
            before = len(self.result)
            self._read_result()
            if self._result >= 0 and len(self.result) == before:
                os.close(self._result)  # a process that left the group has it open
                self._result = -1
        if self.result_file:
            try:
                with open(self.result_file, "rb") as file:
                    self.result += file.read()
            except OSError:  # it died before
                pass
        close_private(self._pidfd)
        self._pidfd = -1
        return self._errors.last()

    def abandon(self) -> None:
        """Give up a child that was never started, or end it with whatever it is doing."""
        if self.pid and self.status is None:
            self.kill()
            try:
                self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            except ChildProcessError:
                self.status = 255
        self.finish()


@cache
def prctl() -> Any:
    """Return the system's ``prctl`` on Linux, None elsewhere."""
    if sys.platform != "linux":
        return None
    try:
        import ctypes

        return ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):  # an interpreter without it: the guard is there
        return None


def die_with_parent(parent: int, call: Any = None) -> None:
    """End this process when the thread that started it ends; at once if that has happened.

    Args:
        parent: the process that started it.
        call: the system's ``prctl``, looked up before a fork; None: the guard alone sees to it.
    """
    if call is not None:
        import ctypes

        call(1, ctypes.c_ulong(signal.SIGKILL), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))
    if os.getppid() != parent:
        os._exit(1)


def run(child: Child, arguments: Sequence[str], environment: dict[str, str], mailbox: Mailbox) -> None:
    """Start a program as the watched process.

    Raises:
        OSError: it cannot be started: there is no such program, or it may not be run.
    """
    become = child.enter()
    heard = [number for number in mailbox.former if number in STOPPING]

    def first() -> None:
        become()
        for number in heard:  # one that comes before the program is there ends it, instead of getting lost
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        # preexec_fn: the command line's watcher has one thread. Descriptors that it was given are the program's; its own close
        process = subprocess.Popen(arguments, env=environment, stderr=child.errors, close_fds=False, preexec_fn=first)  # noqa: PLW1509
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    child.started(process.pid)
    process.returncode = 0  # it is waited for here, not there


def run_fresh(child: Child, arguments: Sequence[str], environment: dict[str, str]) -> None:
    """Start an interpreter as the watched process, from a process that may have threads; it joins the group by itself."""
    child.take_terminal()
    process = subprocess.Popen(arguments, env=environment, stderr=child.errors)
    child.started(process.pid)
    process.returncode = 0


def call(child: Child, body: Callable[[int], int], mailbox: Mailbox) -> None:
    """Fork, and call a function in the watched process.

    Args:
        child: the child to be.
        body: is given the writing end of the result's pipe, and returns the exit code; it raises nothing.
        mailbox: its handlers are given back in the child.
    """
    become = child.enter()
    source, sink = map(above_standard, os.pipe())
    gate, key = map(above_standard, os.pipe())
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        pid = fork()
        if not pid:
            code = 1
            try:
                become()
                os.close(key)
                if not os.read(gate, 1):  # the function begins when the guard knows of it: it may leave the group at once
                    os._exit(1)
                os.close(gate)
                os.dup2(child.errors, 2)
                os.close(source)
                os.close(child.errors)
                mailbox.restore()
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                code = body(sink)
            finally:
                os._exit(code)
    except BaseException:
        for end in (source, gate, key):
            os.close(end)
        raise
    finally:
        os.close(sink)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    child.started(pid, source)
    os.write(key, b"!")
    os.close(gate)
    os.close(key)


def relay(number: int) -> None:
    """Let this process's own group (a script that waits, the rest of a pipeline) have what its terminal sent to the child's."""
    os.killpg(os.getpgrp(), number)


def stdout_is_read() -> bool:
    """Tell whether somebody may still read this process's standard output."""
    poll = select.poll()
    poll.register(1, 0)
    try:
        return not any(state & (select.POLLERR | select.POLLHUP) for _, state in poll.poll(0))
    except OSError:
        return True
