"""Ends of a run that are not its own: in this process, and in a forked one that is really killed."""

from __future__ import annotations

import os
import signal
import traceback

from letitloop import current_run


class Crash(BaseException):
    """The end of a process, played in this one."""


def crash():
    """Leave the log as a killed process would, and unwind the program."""
    current_run().log.abandon()
    raise Crash


def crashes(fn, *args, **kwargs):
    """Call a durable function that is to crash."""
    try:
        value = fn(*args, **kwargs)
    except Crash:
        return
    raise AssertionError(f"it was to crash, and returned {value!r}")


def kill():
    """Die, at once and without a word."""
    os.kill(os.getpid(), signal.SIGKILL)


class Trace:
    """What really happened, in whatever process: one line an event in a file."""

    def __init__(self, path):
        self.path = path
        path.touch()

    def __call__(self, what, *, value=None):
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(handle, f"{what}\n".encode())
        finally:
            os.close(handle)
        return value

    @property
    def events(self):
        return self.path.read_text().splitlines()


def fork(work):
    """Run ``work`` in a child; return its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 0
    try:
        work()
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        os._exit(code)


def ended(pid):
    """Wait for a child; return its exit code, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def killed(work):
    """Run ``work`` in a child that must die of SIGKILL."""
    assert ended(fork(work)) == -signal.SIGKILL


def finished(work):
    """Run ``work`` in a child that must end well."""
    assert ended(fork(work)) == 0
