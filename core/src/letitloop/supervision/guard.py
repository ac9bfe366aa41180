"""A process that leads the group of a watched process: it ends the group when the watcher is gone, and hears its terminal.

It is started before the watched process and ends with the group. Its watcher holds the only writing end of a pipe: when that is
closed, the watcher is dead, however it died, and nothing of the group may outlive it. A terminal sends Ctrl+C and Ctrl+Z to the
group in its foreground, which is this one and not the watcher's: so the guard passes on what it hears.

A watcher on a thread hears no signals, so that one which was meant for the group can end the watcher before it is told on. Linux
tells what ended a process until somebody has waited for it (field 52 of ``/proc/PID/stat``, proc(5)). Unless that was SIGKILL or
no signal at all, the group is told to end and given a while. (The system itself could tell the watched process, by
PR_SET_PDEATHSIG; but it does so once for each thread of the watcher that ends, and a second SIGTERM cuts off what the first began.)

Nothing is imported here but what starts at once: where the watcher has threads, this file is run by a fresh interpreter.
"""

import os
import select
import signal
import sys
import time

__all__ = ["HEARD", "guard"]

HEARD = [
    getattr(signal, name) for name in ("SIGINT", "SIGQUIT", "SIGHUP", "SIGTSTP", "SIGTTIN", "SIGTTOU") if hasattr(signal, name)
]
_DEAF = [
    getattr(signal, name) for name in ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGPIPE", "SIGABRT") if hasattr(signal, name)
]
_TOLD_ON = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name)]
_LOOK = 0.02  # seconds between looks at a group that was told to end
_BACKLOG = 256 * 1024  # bytes that nobody takes, beyond which whoever writes them has to wait


def guard(life: int, report: int, file: str, errors: int = -1, grace: float = 0.0) -> None:
    """Lead a new group until the watcher is dead; then end the group.

    Args:
        life: the reading end of the pipe whose writing end only the watcher holds: what comes is a question, or "P" and the
            watched process's id in 8 bytes.
        report: takes a zero when the group is there, then the number of each signal that is heard; and another zero for each
            question.
        file: what is to be removed when the watcher is dead.
        errors: where the group's standard error is read when the watcher is dead; -1: nowhere.
        grace: seconds that the group has after a signal that ended the watcher, if it could hear none itself; 0: it hears them.
    """
    watcher, watched = os.getppid(), 0

    def hear(number: int, _frame: object) -> None:
        try:
            os.write(report, bytes((number,)))
        except OSError:  # the watcher is dead, and that will be seen below
            pass

    os.setpgid(0, 0)
    for number in HEARD:
        signal.signal(number, hear)
    for number in _DEAF:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.write(report, b"\0")
    while asked := os.read(life, 1):
        if asked == b"P":
            watched = int.from_bytes(os.read(life, 8), "little")
        else:
            os.write(report, b"\0")  # what it has heard was written before, by the handlers
    gently = grace > 0 and _may_be_told_on(watcher)
    try:
        os.unlink(file)
    except OSError:
        pass
    if gently:
        _let_end(watched, errors, time.monotonic() + grace)
    _send(watched, signal.SIGKILL)
    os.kill(0, signal.SIGKILL)


def _may_be_told_on(process: int) -> bool:
    """Tell whether what ended a process, which was this one's parent, is or may be a signal for its children too."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return int(fields[49]) & 0x7F in _TOLD_ON
    except (IndexError, ValueError):
        return False
    except OSError:  # somebody has waited for it already; or this system tells nothing of its processes
        return os.path.exists("/proc/self/stat")


def _let_end(watched: int, errors: int, until: float) -> None:
    """Tell the group to end; return when it has, or when the time is over."""
    for number in (signal.SIGTERM, signal.SIGCONT):
        for process in _others(watched):
            _send(process, number)
    backlog = bytearray()
    while time.monotonic() < until and _others(watched):
        _pass_on(errors, backlog)
        time.sleep(_LOOK)
    while _pass_on(errors, backlog) and time.monotonic() < until:
        time.sleep(_LOOK)


def _send(process: int, number: int) -> None:
    if process:
        try:
            os.kill(process, number)
        except OSError:  # it is gone
            pass


def _others(watched: int) -> list[int]:
    """Return the living processes of this group, and the watched one even if it has left it."""
    own, me = os.getpgrp(), os.getpid()
    found: list[int] = []
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != me:
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    state, _, group = file.read().rpartition(b")")[2].split()[:3]
            except (OSError, ValueError):  # it ended meanwhile
                continue
            if (int(group) == own or int(name) == watched) and state not in (b"Z", b"X"):
                found.append(int(name))
    return found


def _pass_on(errors: int, backlog: bytearray) -> bool:
    """Copy to this process's standard error what there is and somebody takes, without waiting; tell whether there is more."""
    more = False
    try:
        os.set_blocking(errors, False)
        if len(backlog) < _BACKLOG:
            data = os.read(errors, 65536)
            backlog += data
            more = bool(data)
    except OSError:  # nothing now, or nothing ever
        pass
    poll = select.poll()
    poll.register(2, select.POLLOUT)
    while backlog and (ready := poll.poll(0)):
        try:
            if ready[0][1] != select.POLLOUT:
                raise BrokenPipeError
            del backlog[: os.write(2, backlog[: select.PIPE_BUF])]
        except BlockingIOError:  # full after all
            break
        except OSError:  # nobody reads it
            backlog.clear()
    return more or bool(backlog)


if __name__ == "__main__":
    guard(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), float(sys.argv[5]))
