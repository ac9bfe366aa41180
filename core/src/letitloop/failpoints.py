"""Named points at which a test may end or fail the process; free when unset.

``LETITLOOP_FAILPOINT=name:action[@n][,…]`` names a point, what happens there, and at which hit (default: the first).
Actions: ``kill`` (SIGKILL), ``exit`` (``os._exit(42)``), ``raise`` (:class:`FailpointError`), ``hang`` (stop until killed),
``eio`` and ``enospc`` (:class:`OSError`). ``*`` as the name counts every hit of every point. An embedding test may set a
Python callable with :func:`observe` instead, which sees each point's name.

A point is written ``if failpoints.active: failpoints.hit("wal.synced")``: unset, it costs one attribute test.
"""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["VARIABLE", "FailpointError", "active", "hit", "observe"]

VARIABLE = "LETITLOOP_FAILPOINT"


class FailpointError(RuntimeError):
    """Raised at a failpoint whose action is ``raise``."""


class _Rule:
    __slots__ = ("action", "name", "remaining")

    def __init__(self, text: str) -> None:
        head, _, nth = text.partition("@")
        name, sep, action = head.rpartition(":")
        if not sep or action not in _ACTIONS or (nth and not nth.isdigit()):
            raise ValueError(f"{VARIABLE}: {text!r} is not name:action[@n] with an action of {', '.join(_ACTIONS)}")
        self.name, self.action, self.remaining = name, action, int(nth or 1)


def _kill(name: str) -> None:
    import signal  # 3 ms of import that nobody else pays

    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
    _hang(name)  # the signal may be delivered to another thread first: do not run on


def _hang(name: str) -> None:
    import threading

    threading.Event().wait()


def _raise(name: str) -> None:
    raise FailpointError(f"failpoint {name}")


def _eio(name: str) -> None:
    raise OSError(errno.EIO, f"failpoint {name}")


def _enospc(name: str) -> None:
    raise OSError(errno.ENOSPC, f"failpoint {name}")


def _exit(name: str) -> None:
    os._exit(42)


_ACTIONS: dict[str, Callable[[str], None]] = {
    "kill": _kill,
    "exit": _exit,
    "raise": _raise,
    "hang": _hang,
    "eio": _eio,
    "enospc": _enospc,
}

_rules = [_Rule(part) for part in os.environ.get(VARIABLE, "").split(",") if part]
_observer: Callable[[str], None] | None = None
active: bool = bool(_rules)


def hit(name: str) -> None:
    """Tell that the process has reached the point ``name``, and carry out what is set for it."""
    if _observer is not None:
        _observer(name)
    for rule in _rules:
        if rule.name in (name, "*"):
            rule.remaining -= 1
            if rule.remaining == 0:
                _ACTIONS[rule.action](name)


def observe(observer: Callable[[str], None] | None) -> None:
    """Call ``observer`` with the name of every point that is hit from now on; ``None`` ends it.

    Args:
        observer: called on the thread that hits the point, inside the product's code: it may end the process or raise.
    """
    global _observer, active
    _observer = observer
    active = observer is not None or bool(_rules)
