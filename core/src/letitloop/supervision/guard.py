"""A process that leads the group of a watched process: it ends the group when the watcher is gone, and hears its terminal.

It is started before the watched process and ends with the group. Its watcher holds the only writing end of a pipe: when that is
closed, the watcher is dead, however it died, and nothing of the group may outlive it. A terminal sends Ctrl+C and Ctrl+Z to the
group in its foreground, which is this one and not the watcher's: so the guard passes on what it hears.

Nothing is imported here but what starts at once: where the watcher has threads, this file is run by a fresh interpreter.
"""

import os
import signal
import sys

__all__ = ["HEARD", "guard"]

HEARD = [
    getattr(signal, name) for name in ("SIGINT", "SIGQUIT", "SIGHUP", "SIGTSTP", "SIGTTIN", "SIGTTOU") if hasattr(signal, name)
]
_DEAF = [
    getattr(signal, name) for name in ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGPIPE", "SIGABRT") if hasattr(signal, name)
]


def guard(life: int, report: int, file: str) -> None:
    """Lead a new group until the watcher is dead; then end the group.

    Args:
        life: the reading end of the pipe whose writing end only the watcher holds.
        report: takes a zero when the group is there, then the number of each signal that is heard; and another zero for each byte
            that comes from the watcher.
        file: what is to be removed when the watcher is dead.
    """

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
    try:
        os.unlink(file)
    except OSError:
        pass
    os.kill(0, signal.SIGKILL)


if __name__ == "__main__":
    guard(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
