"""A process that leads the group of a watched process: it ends the group when the watcher is gone, and hears its terminal.

It is started before the watched process and ends with the group. Its watcher holds the only writing end of a pipe: when that is
closed, the watcher is dead, however it died, and nothing of the group may outlive it. A terminal sends Ctrl+C and Ctrl+Z to the
group in its foreground, which is this one and not the watcher's: so the guard passes on what it hears.

A watcher on a thread hears no signals, so that one which was meant for the group can end the watcher before it is told on. Linux
tells what ended a process while it is ending (field 52 of ``/proc/PID/stat``, proc(5)): then the guard tells it on, and waits.

Nothing is imported here but what starts at once: where the watcher has threads, this file is run by a fresh interpreter.
"""

import os
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
_LOOK = 0.01  # seconds between looks at a group that was told to end


def guard(life: int, report: int, file: str, errors: int = -1, grace: float = 0.0) -> None:
    """Lead a new group until the watcher is dead; then end the group.

    Args:
        life: the reading end of the pipe whose writing end only the watcher holds.
        report: takes a zero when the group is there, then the number of each signal that is heard; and another zero for each byte
            that comes from the watcher.
        file: what is to be removed when the watcher is dead.
        errors: where the group's standard error is read when the watcher is dead; -1: nowhere.
        grace: seconds that the group has after a signal that ended the watcher, if it could hear none itself; 0: it hears them.
    """
    watcher = os.getppid()

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
    while os.read(life, 1):
        os.write(report, b"\0")  # asked for what it has heard: that was written before, by the handlers
    number = _what_ended(watcher) if grace else 0
    try:
        os.unlink(file)
    except OSError:
        pass
    if number in _TOLD_ON:
        os.kill(0, number)
        os.kill(0, signal.SIGCONT)
        until = time.monotonic() + grace
        while time.monotonic() < until and _others():
            _pass_on(errors)
            time.sleep(_LOOK)
        _pass_on(errors)
    os.kill(0, signal.SIGKILL)


def _what_ended(process: int) -> int:
    """Return the signal that is ending a process, which was this one's parent; 0 if that cannot be told."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return int(fields[49]) & 0x7F
    except (OSError, IndexError, ValueError):  # another system, or it is gone for good
        return 0


def _others() -> bool:
    """Tell whether any other process of this group is alive."""
    own, me = os.getpgrp(), os.getpid()
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != me:
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    state, _, group = file.read().rpartition(b")")[2].split()[:3]
            except (OSError, ValueError):  # it ended meanwhile
                continue
            if int(group) == own and state not in (b"Z", b"X"):
                return True
    return False


def _pass_on(errors: int) -> None:
    """Copy to this process's standard error what there is, which is not waited for."""
    try:
        os.set_blocking(errors, False)
        while data := os.read(errors, 65536):
            os.write(2, data)
    except OSError:  # there is nothing more, or nobody reads it
        pass


if __name__ == "__main__":
    guard(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), float(sys.argv[5]))
