"""Code that uses steps, tested without runs: :func:`plain` lets steps call their functions directly."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from letitloop.codecs import default_codecs
from letitloop.errors import InvalidArgument
from letitloop.runs.journal import Journal
from letitloop.runs.run import Run
from letitloop.runs.scope import current, current_scope
from letitloop.store.directory import MemoryStore
from letitloop.wal.format import Entry

if TYPE_CHECKING:
    from collections.abc import Generator

    from letitloop.runs.opening import Opening
    from letitloop.runs.run import Call
    from letitloop.wal.log import Log

__all__ = ["plain"]


class _NoLog:
    """Takes every record and keeps none."""

    path = "plain()"
    epoch = 1
    syncs = False

    def queue(self, kind: int, key: bytes, payload: bytes) -> Entry:
        return Entry(kind, key, 0, len(payload), 0)

    def append(self, kind: int, key: bytes, payload: bytes, *, power: bool = False) -> Entry:
        return Entry(kind, key, 0, len(payload), 0)

    def write(self) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def _nothing(_: Entry) -> bytes:
    return b""


class _PlainRun(Run):
    """A run that knows nothing and keeps nothing, so every step calls its function."""

    def __init__(self, name: str = "plain", goal: str = "plain") -> None:
        super().__init__(
            name=name,
            goal=goal,
            store=MemoryStore(),
            log=cast("Log", _NoLog()),
            journal=Journal([], _nothing, default_codecs, _NoLog.path),
            codecs=default_codecs,
            on_change="raise",
            description={"instance": os.urandom(16).hex()},
        )
        self.opens = _open_plainly

    def recall(self, call: Call) -> None:
        return None

    def begin(self, call: Call) -> None:
        pass

    def ok(self, call: Call, value: object) -> bytes:
        return b""

    def failed(self, call: Call, error: Exception) -> bytes:
        return b""

    def complete(self, value: object, started: float) -> None:
        if self._halted is not None:
            raise self._halted

    def fail(self, error: BaseException) -> None:
        pass


def _open_plainly(opening: Opening) -> Run:
    """Drive a durable function that is called inside plain() plainly too."""
    return _PlainRun(opening.name, opening.goal)


@contextmanager
def plain() -> Generator[None]:
    """Let steps call their functions directly, without a run, a store or a record: for unit tests of code that uses steps.

    Inside the block a step is its function, called each time, with its retries and its timeout; results need not be recordable.
    A durable function called here runs just so. Scopes nest, ``current_run()`` answers, and a marker executes its block once a
    block of ``plain()``. Threads need ``carry``, as they do in a run.

    Raises:
        InvalidArgument: a run is being driven here; its steps must not run unrecorded.

    Example:
        >>> from letitloop import step
        >>> from letitloop.testing import plain
        >>> def total(prices: list[int]) -> int:
        ...     return step("sum", sum, prices)
        >>> with plain():
        ...     total([1, 2])
        3
    """
    scope = current_scope()
    if scope is not None and scope.run.active and not isinstance(scope.run, _PlainRun):
        raise InvalidArgument(
            f"plain() was used inside run {scope.run.id}, whose steps would not be recorded. Nothing was run. Use it in a test, "
            "outside any run; inside a run call the function by itself."
        )
    run = _PlainRun()
    token = current.set(run.root)
    try:
        yield
    finally:
        current.reset(token)
        run.close()
