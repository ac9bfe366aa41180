"""A dispatch to give to a provider, and system calls between which another party acts, or at which the process ends."""

from __future__ import annotations

import fcntl
import os

from letitloop.effects.intent import provider_key
from letitloop.effects.provider import Dispatch


def dispatch(arguments, *, key="order-1", attempt=1, operation="file", at=1_700_000_000.0):
    return Dispatch("tests", key, attempt, 1, provider_key("tests", key, attempt), operation, arguments, at)


def handles():
    """Count what this process has open."""
    return len(os.listdir("/proc/self/fd"))


class Crash(BaseException):
    """The end of a process, played in this one."""


CALLS = {
    *("open", "close", "mkdir", "rename", "link", "unlink", "rmdir", "stat", "fstat", "listdir", "fsync", "write"),
    *("setxattr", "getxattr"),
}


class Steps:
    """Stands for ``os`` and ``fcntl`` in a module, and calls ``before(n, name, arguments)`` ahead of each of its system calls.

    What ``before`` does itself, with the same module, is not interrupted.
    """

    def __init__(self, before):
        self.before = before
        self.count = 0
        self._inside = False

    def __getattr__(self, name):
        real = getattr(fcntl if name == "flock" or name.startswith("LOCK_") else os, name)
        return self.wrap(name, real) if name in CALLS or name == "flock" else real

    def wrap(self, name, real):
        def call(*args, **kwargs):
            if not self._inside:
                self._inside = True
                try:
                    self.before(self.count, name, args)
                finally:
                    self._inside = False
                    self.count += 1
            return real(*args, **kwargs)

        return call
