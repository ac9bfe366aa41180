"""What the child process tells its parent, and the evidence it leaves of every real call.

There are two channels. The *counter file* gets one line, written and synced, before and after every real call of a function:
it survives a SIGKILL, and all counts of the demo come from it. The *pipe* tells the parent what happens at once, so that it can
kill at a chosen event; if the parent asked for it, the child waits for an answer after each step that has returned, and
nothing moves on while the parent decides.
"""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any, ParamSpec, TypeVar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Witness", "read_counter"]

P = ParamSpec("P")
T = TypeVar("T")


class Witness:
    """The child's end of the two channels.

    Args:
        pipe: the descriptor that event lines go to.
        counter: the path of the counter file.
        answers: a descriptor on which the parent answers each returned step with one byte; ``None``: it doesn't.
    """

    def __init__(self, pipe: int, counter: str, answers: int | None = None) -> None:
        self._pipe = pipe
        self._counter = os.open(counter, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._answers = answers
        self._lock = threading.Lock()

    def call(self, step: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function, and leave evidence of it before and after."""
        self._count(step, "start")
        self.tell("call", step=step)
        begin = time.monotonic()
        result = function(*args, **kwargs)
        seconds = time.monotonic() - begin
        self._count(step, "done")
        self.tell("done", step=step, seconds=seconds)
        return result

    def returned(self, step: str, seconds: float) -> None:
        """Tell that a step's value has reached the workflow: from now on it is recorded, and must never run again."""
        self.tell("returned", step=step, seconds=seconds)
        if self._answers is not None and not os.read(self._answers, 1):
            os._exit(3)  # the parent is gone, and nobody is left to watch

    def tell(self, event: str, **fields: Any) -> None:
        """Send one event line to the parent."""
        line = json.dumps({"event": event, "t": time.monotonic(), "pid": os.getpid(), **fields}).encode() + b"\n"
        with self._lock:
            while line:
                line = line[os.write(self._pipe, line) :]

    def _count(self, step: str, what: str) -> None:
        line = json.dumps({"pid": os.getpid(), "step": step, "what": what, "t": time.monotonic()})
        os.write(self._counter, line.encode() + b"\n")
        os.fsync(self._counter)


def read_counter(path: str) -> list[dict[str, Any]]:
    """Read a counter file: a line each for the start and the end of every real call, in the order they were made."""
    try:
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file]
    except FileNotFoundError:
        return []
