"""A supervised function's process as a copy of this one."""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import contextmanager

from letitloop.errors import UnencodableError
from letitloop.runs.identity import ASYNC, call_kind, function_goal
from letitloop.runs.scope import current
from letitloop.supervision.signals import STOPPING, numbers
from letitloop.supervision.transfer import failed, returned

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import TracebackType
    from typing import Any

    from letitloop.supervision.signals import Mailbox
    from letitloop.supervision.supervise import Call
    from letitloop.supervision.watcher import Child

__all__ = ["outcome_of", "starter"]

_LOOPS = {"asyncio", "uvloop", "anyio", "trio"}
"""Whose handlers of signals belong to a loop: asyncio's own, those of its backports, and of others."""


@contextmanager
def starter(call: Call, mailbox: Mailbox) -> Generator[Callable[[Child, dict[str, str]], None]]:
    """Return what starts the process: by a fork, each time from the same state."""
    _load(call)

    def start(child: Child, told: dict[str, str]) -> None:
        from letitloop.supervision.child import call as call_in_child

        _flush()
        _let_imports_end()
        call_in_child(child, lambda sink: _live(call, told, sink), mailbox)

    yield start


def _load(call: Call) -> None:
    """Import what the child needs: a module that another thread is importing at the fork is locked in the child for ever."""
    for name in ("atexit", "faulthandler", "traceback", *(["asyncio"] if call_kind(call.fn) == ASYNC else [])):
        __import__(name)
    failed(RuntimeError(), call.codecs)


def _let_imports_end() -> None:
    """Wait a while for the imports of other threads: the same holds for what the function itself will import."""
    bootstrap: Any = sys.modules.get("_frozen_importlib")
    locks: dict[str, Callable[[], Any]] = getattr(bootstrap, "_module_locks", {})
    me, deadline = threading.get_ident(), time.monotonic() + 1.0
    while time.monotonic() < deadline:
        held = [lock for one in list(locks.values()) if (lock := one()) is not None]
        if all(getattr(lock, "owner", None) in (None, me) for lock in held):
            return
        time.sleep(0.001)


def _live(call: Call, told: dict[str, str], sink: int) -> int:
    """Be the function's process; return its exit code."""
    import atexit

    os.environ.update(told)
    current.set(None)  # the run that the caller is in cannot be written here: the function's runs are its own
    atexit._clear()  # what the parent registered is the parent's to do
    _leave_the_loop()
    if call.dumps:
        dump_on_abort()
    data, code = outcome_of(call)
    try:
        while data:
            data = data[os.write(sink, data) :]
        os.close(sink)
    finally:
        _finish()
    return code


def _leave_the_loop() -> None:
    """Take no signal for the event loop that the caller is in: it is not run here, and its descriptors are the parent's."""
    import signal

    signal.set_wakeup_fd(-1)
    for number in (*STOPPING, *numbers("SIGUSR1", "SIGUSR2")):
        handler: Any = signal.getsignal(number)
        module = str(getattr(getattr(handler, "func", handler), "__module__", ""))
        if _LOOPS & {*module.split(".")}:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def dump_on_abort() -> None:
    """Print where each thread is when the watcher ends this process."""
    import faulthandler

    try:
        faulthandler.enable(file=2)
    except (OSError, ValueError):
        pass


def outcome_of(call: Call) -> tuple[bytes, int]:
    """Call the function; return what the parent is told, and the exit code."""
    from letitloop.supervision.supervise import run_here
    from letitloop.supervision.transfer import read

    try:
        value = run_here(call)
        try:
            return returned(value, call.codecs), 0
        except UnencodableError as exc:
            raise UnencodableError(
                f"the result of {function_goal(call.fn)} cannot be handed to the process that called it: {exc}",
                path=exc.path,
                type_name=exc.type_name,
            ) from None
    except BaseException as exc:
        exc.__traceback__ = _own(exc.__traceback__)
        data = failed(exc, call.codecs)
        outcome = read(data, call.codecs, "")
        return data, outcome.code if outcome is not None else 1


def _own(traceback: TracebackType | None) -> TracebackType | None:
    """Leave out of a traceback how the function came to be called here."""
    here = os.path.dirname(__file__)
    shown = traceback
    while shown is not None and os.path.dirname(shown.tb_frame.f_code.co_filename) == here:
        shown = shown.tb_next
    return shown or traceback


def _finish() -> None:
    """Do what an interpreter does at its end, without unwinding into the code that called the parent."""
    import atexit

    shutdown: Any = getattr(threading, "_shutdown", None)
    if shutdown is not None:
        shutdown()
    atexit._run_exitfuncs()
    _flush()


def _flush() -> None:
    """Write out what is buffered: a copy of it would be written twice."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            continue
