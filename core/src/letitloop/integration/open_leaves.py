"""A leaf call in two halves, for work that a framework carries out in the middle: a stream, code whose tools are leaves too.

First it is asked what the log knows; only then does the adapter work, where and how its framework wants it, and records what came
of it. What was begun in between counts as earlier than the record.
"""

from __future__ import annotations

from letitloop.errors import Halt
from letitloop.integration.leaves import _call
from letitloop.runs.journal import Failure, Value
from letitloop.runs.records import FAILED, OK
from letitloop.runs.run import UNRECORDABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any, TypeVar

    from letitloop.runs.run import Call
    from letitloop.runs.scope import Scope

    T = TypeVar("T")

__all__ = ["OpenLeaf", "stream_leaf"]


class OpenLeaf:
    """A leaf call whose work is done between its two halves; made with the arguments of :func:`letitloop.integration.leaves.leaf`.

    Attributes:
        known: whether the log has its answer.

    Raises:
        StepChanged: something else was asked at this place.

    Example:
        >>> from letitloop.integration.sessions import Session
        >>> with Session("open-leaf-example", store="memory:open-leaves") as session:
        ...     leaf = OpenLeaf(session.root(), "model", {"prompt": "2 + 2"})
        ...     leaf.answer() if leaf.known else leaf.record("4")
        '4'
    """

    __slots__ = ("_call", "_outcome", "known")

    def __init__(self, scope: Scope, name: str, asked: Mapping[str, object]) -> None:
        self._call: Call = _call(scope, name, _nothing, asked)
        run = self._call.run
        try:
            self._outcome = run.recall(self._call)
        except Halt as halted:
            raise run.halted_at(self._call, halted) from halted.__cause__
        self.known = self._outcome is not None

    def answer(self) -> Any:
        """Return what the log knows, or raise the failure on record."""
        outcome = self._outcome
        if isinstance(outcome, Failure):
            raise outcome.error
        assert isinstance(outcome, Value), "asked of a leaf that the log does not know"
        return outcome.value

    def begin(self) -> None:
        """Note beside the log that the work is under way: a process that follows a dead one is told.

        Raises:
            LogPoisoned: what comes of it could not be recorded; the work must not be done.
            Halt: one was raised in this run and swallowed.
        """
        self._call.activate()
        self._call.run.begin(self._call)

    def record(self, value: T, *, wait: bool = True) -> T:
        """Record what came of the work, and return it.

        Args:
            value: what came of it.
            wait: return when the record is durable; otherwise when it survives this process's end, and a power cut once the next
                record does. For work that may be done again.

        Raises:
            UnencodableError, RecordTooLarge: it cannot be recorded; :meth:`fail` or :meth:`abandon` ends the call.
            LogPoisoned: the disk refused the record.
        """
        call = self._begun()
        run = call.run
        payload = run.ok(call, value)
        try:
            if wait:
                run.log.append(OK, call.key, payload)
            else:
                run.log.queue(OK, call.key, payload)
                run.log.write()
            call.recorded = True
        except Halt as halted:
            raise run.halted_at(call, halted) from halted.__cause__
        finally:
            run.finish(call)
        return value

    def fail(self, error: Exception) -> None:
        """Record that the work failed; a run that goes on gets the same failure again.

        Raises:
            LogPoisoned: the disk refused the record.
        """
        call = self._begun()
        run = call.run
        try:
            entry = run.log.append(FAILED, call.key, run.failed(call, error))
            run.note_failure(call, error, entry.seq)
        except Halt as halted:
            raise run.halted_at(call, halted) from halted.__cause__
        finally:
            run.finish(call)

    def abandon(self) -> None:
        """Give the work up unrecorded: whoever asked lost interest, or the process is told to stop. It is done again next time."""
        self._call.run.finish(self._call)

    def _begun(self) -> Call:
        if self._call.slot < 0:
            self.begin()
        return self._call


def stream_leaf(
    scope: Scope,
    name: str,
    asked: Mapping[str, object],
    stream: Callable[[], Iterable[T]],
    *,
    freeze: Callable[[list[T]], object] = list,
    thaw: Callable[[Any], Iterable[T]] = iter,
    live: Callable[[], None] | None = None,
) -> Iterator[T]:
    """Do a leaf call whose answer comes in pieces, once; the pieces on record come again one by one.

    Args:
        scope: where it belongs.
        name: what it is called there.
        asked: what is asked, by name.
        stream: does it, and yields the pieces. It is recorded when the stream has ended, before the reader is told that it has.
        freeze: what is recorded of the pieces.
        thaw: the pieces of what is recorded.
        live: called if the log does not know it, before ``stream`` is.

    Yields:
        The pieces.

    Raises:
        StepChanged: something else was asked at this place.
        UnencodableError: the pieces cannot be recorded.
        Exception: what ``stream`` raised, now or on record.

    Example:
        >>> from letitloop.integration.sessions import Session
        >>> with Session("stream-example", store="memory:streams") as session:
        ...     list(stream_leaf(session.root(), "model", {"prompt": "hi"}, lambda: iter(["he", "llo"])))
        ['he', 'llo']
    """
    leaf = OpenLeaf(scope, name, asked)
    if leaf.known:
        yield from thaw(leaf.answer())
        return
    if live is not None:
        live()
    leaf.begin()
    pieces: list[T] = []
    ended = False
    try:
        for piece in stream():
            pieces.append(piece)
            yield piece
        try:
            leaf.record(freeze(pieces))
        except UNRECORDABLE as exc:
            ended = True
            leaf.fail(exc)
            raise
        ended = True
    except Exception as exc:
        if not ended:
            ended = True
            leaf.fail(exc)
        raise
    finally:
        if not ended:
            leaf.abandon()


def _nothing(**_: object) -> None:
    """Stand for the work: its arguments' names are told by it."""
