"""Ctrl+C at every place of the library where CPython may deliver it: on entering a function, and after a call of C code."""

from __future__ import annotations

import os
import sys
import tempfile

import letitloop

ROOM = os.path.dirname(letitloop.__file__)


class Interrupt:
    """A context manager that raises KeyboardInterrupt on this thread, at the first place that is not in ``seen``.

    A place is a line, together with the line that called it.

    Attributes:
        where: the place, None if the block has no new one.
    """

    def __init__(self, seen):
        self.seen = seen
        self.where = None

    def __enter__(self):
        sys.setprofile(self._event)
        return self

    def __exit__(self, kind, exc, traceback):
        sys.setprofile(None)

    def _event(self, frame, event, arg):
        code = frame.f_code
        if event not in ("call", "c_return") or not code.co_filename.startswith(ROOM):
            return
        if code.co_name == "__del__":
            return  # what is raised there goes nowhere
        if sys.version_info < (3, 11) and event == "call" and frame.f_lasti >= 0:
            return  # a generator goes on: 3.10 would end its frame without its handlers, which no signal does
        back = frame.f_back
        place = (event, code, frame.f_lineno, back.f_code, back.f_lineno)
        if place not in self.seen:
            self.seen.add(place)
            self.where = f"{event} {os.path.basename(code.co_filename)}:{frame.f_lineno} {code.co_name}"
            sys.setprofile(None)
            raise KeyboardInterrupt


def each_place(attempt, check):
    """Call ``attempt(n)`` with an interrupt at a new place each time, and ``check(n)`` after each, until there is none left.

    Returns:
        The number of places, and what ``check`` raised after which of them.
    """
    seen, failed = set(), []
    while True:
        interrupt = Interrupt(seen)
        n = len(seen)
        try:
            with interrupt:
                attempt(n)
        except KeyboardInterrupt:
            pass
        if interrupt.where is None:
            return n, failed
        try:
            check(n)
        except Exception as exc:
            failed.append(f"{interrupt.where}: {type(exc).__name__}: {exc}"[:200])


def in_memory():
    """Return a directory that is quick to sync, as a context manager: hundreds of runs lie in it."""
    return tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
