"""Does a changed program still follow the log of a run that it finished? :func:`assert_replayable` drives it with no live call."""

from __future__ import annotations

import asyncio
import threading
from contextvars import copy_context
from types import MethodType
from typing import TYPE_CHECKING, Any, cast

from letitloop.errors import Halt, InvalidArgument, LetItLoopError, RunNotFound, StepChanged
from letitloop.runs.history import Runs
from letitloop.runs.identity import ASYNC, call_kind
from letitloop.runs.journal import Failure, Journal, Value
from letitloop.runs.opening import ROOM, Opening, prepare, seal_key_from
from letitloop.runs.records import EFFECT, FAILED, OK
from letitloop.runs.run import Run
from letitloop.runs.scope import current
from letitloop.wal.format import Entry

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from letitloop.runs.run import Call
    from letitloop.wal.log import Log
    from letitloop.wal.recovery import View

__all__ = ["assert_replayable"]


class _Differs(Halt):
    """The program asked for something that the log does not answer: nothing it catches may hide that."""


class _ViewedLog:
    """A log to be driven against: whoever would write into it has found a hole in the replay."""

    syncs = False

    def __init__(self, view: View) -> None:
        self.path = view.path
        self.epoch = view.found.epoch
        self.next_seq = view.found.seq

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"a replay was about to use {name} of the log {self.path}; please report this")


class _ReplayRun(Run):
    """A finished run that is driven against its own records: what they do not answer is a difference, and nothing is called."""

    def __init__(self, opening: Opening, view: View) -> None:
        codecs = opening.spec.codecs
        # the run went on after every failure that did not end it, or it would not be finished
        went_on = Entry(EFFECT, b"", 0, 0, view.found.seq)
        journal = Journal([*view.entries, went_on], view.read, codecs, view.path)
        super().__init__(
            name=opening.name,
            goal=opening.goal,
            store=opening.store,
            log=cast("Log", _ViewedLog(view)),
            journal=journal,
            codecs=codecs,
            on_change="raise",
            description=journal.description(),
        )
        self.difference = ""
        self.opens = self._answer

    def recall(self, call: Call) -> Value | Failure:
        name = call.key.decode("utf-8", "replace")
        try:
            known = super().recall(call)
        except StepChanged as exc:
            what = f"arguments {', '.join(map(repr, exc.arguments))}" if exc.arguments else "its number of arguments, or its key="
            self.differ(f"step {name!r} is called with other arguments than the recorded ones ({what})")
        except LetItLoopError as exc:
            self.differ(f"step {name!r} has a record that cannot be read: {exc}")
        if known is None:
            self._differ_new(name)
        return known

    def _differ_new(self, name: str) -> NoReturn:
        waiting = [repr(key) for _, key in self.unanswered()]
        rest = f"recorded and not asked for so far: {', '.join(waiting[:5])}" if waiting else "every record has been asked for"
        self.differ(f"step {name!r} is new, the log has no record of it ({rest})")

    def about_to_act(self, key: str) -> None:
        self.differ(f"marker {key!r} would execute its block: it was not completed when the run was finished")

    def _answer(self, opening: Opening) -> Value:
        """Let a durable function that is called in here answer with its own recorded result."""
        try:
            view = _view(opening)
        except RunNotFound:
            self.differ(f"the durable function {opening.goal!r} is called with arguments for which it has no run")
        try:
            return _result(opening, view)[0]
        except AssertionError as exc:
            self.differ(str(exc))
        finally:
            view.close()

    def differ(self, what: str) -> NoReturn:
        self.difference = self.difference or what
        raise _Differs(what)

    def unanswered(self) -> list[tuple[int, str]]:
        """Return the sequence numbers and keys of the records that count and were not asked for; not those inside a step."""
        journal = self.journal
        found: list[tuple[int, str]] = []
        recorded = {entry.key for entry in journal._entries if entry.kind in (OK, FAILED)}
        for key, entry in journal.index.items():
            inside = any(key[:at] in recorded for at, char in enumerate(key) if char == ord(">"))
            scope = key[: max(key.rfind(b"/"), key.rfind(b">")) + 1]
            if not inside and (entry.kind == OK or journal.survived(entry, scope)):
                found.append((entry.seq, key.decode("utf-8", "replace")))
        return sorted(found)


def assert_replayable(fn: Callable[..., object], /, *args: object, **kwargs: object) -> None:
    """Check that a durable function, as it is now, follows the log of the run that it finished.

    The function is driven with every step answered by the log. No step's function is called, no marker's block is executed, and
    neither the log nor the ledger is changed. Code outside steps does run.

    Args:
        fn: a durable function, sync or async, or a method that is one.
        args: the positional arguments of the run's call.
        kwargs: its keyword arguments.

    Raises:
        AssertionError: the run is not finished, or the function differs from it; the first call that differs is named: a new step,
            one with other arguments, one that is recorded and no longer called, or another result.
        RunNotFound: these arguments have no run.
        InvalidArgument: ``fn`` is no durable function.

    Example:
        >>> from letitloop import durable, step
        >>> from letitloop.testing import assert_replayable
        >>> @durable(goal_id="replay-example", store="memory:replay-example")
        ... def order(item: str) -> str:
        ...     return step(name, str.upper, item)
        >>> name = "reserve"
        >>> order("tea")
        'TEA'
        >>> assert_replayable(order, "tea")
        >>> name = "book"
        >>> assert_replayable(order, "tea")
        Traceback (most recent call last):
        AssertionError: ...step 'book' is new, the log has no record of it (recorded and not asked for so far: 'reserve')...
    """
    if isinstance(fn, MethodType):
        method: Any = fn
        fn, args = method.__func__, (method.__self__, *args)
    runs = getattr(fn, "runs", None)
    if not isinstance(runs, Runs):
        raise InvalidArgument(f"assert_replayable was given {fn!r}, which is no durable function. Nothing was run.")
    opening = prepare(runs._spec, args, kwargs)
    view = _view(opening)
    try:
        recorded, body = _result(opening, view)
        run = _ReplayRun(opening, view)
        _compare(run, opening, recorded.value, body, _drive(run, opening, args, kwargs))
    finally:
        view.close()


def _view(opening: Opening) -> View:
    try:
        return opening.store.view_log(ROOM, opening.name, seal_key=seal_key_from(opening.spec.seal_key))
    except FileNotFoundError:
        raise RunNotFound(
            f"{opening.goal!r} has no run {opening.name} in the store {opening.store.location}, so there is nothing to replay. "
            "Call the function with these arguments first."
        ) from None


def _result(opening: Opening, view: View) -> tuple[Value, bytes]:
    """Return the recorded result and its bytes."""
    journal = Journal(view.entries, view.read, opening.spec.codecs, view.path)
    if journal.end is None:
        raise AssertionError(f"run {opening.name} of {opening.goal!r} is not finished, so its log does not hold all of it")
    value, head = journal.result()
    return value, view.read(journal.end)[head.body_at :]


class _Raised:
    """The exception that left the function."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def _drive(run: _ReplayRun, opening: Opening, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """Call the function inside the run, and return what it returns, or what it raised."""
    fn = opening.spec.fn
    token = current.set(run.root)
    try:
        value = fn(*args, **kwargs)
        return _await(value) if call_kind(fn) == ASYNC else value
    except (Exception, Halt) as exc:
        return _Raised(exc)
    finally:
        run.active = False
        current.reset(token)


def _await(coroutine: Any) -> object:
    """Run a coroutine to its end, also where an event loop runs already, on a thread of its own; the context comes along."""
    answers: list[object] = []

    def work() -> None:
        try:
            answers.append(asyncio.run(coroutine))
        except (Exception, Halt) as exc:
            answers.append(_Raised(exc))

    thread = threading.Thread(target=copy_context().run, args=(work,), name="letitloop-replay")
    thread.start()
    thread.join()
    return answers[0] if answers else _Raised(RuntimeError("the event loop ended without an answer"))


def _compare(run: _ReplayRun, opening: Opening, recorded: object, body: bytes, outcome: object) -> None:
    where = f"run {run.id} of {run.goal_id!r} is not replayable: "
    error = outcome.error if isinstance(outcome, _Raised) else None
    if run.difference:
        raise AssertionError(where + run.difference) from (None if isinstance(error, _Differs) else error)
    if error is not None:
        raise AssertionError(f"{where}it returned, and now raises {type(error).__name__}: {error}") from error
    missing = run.unanswered()
    if missing:
        more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise AssertionError(f"{where}step {missing[0][1]!r} is recorded and no longer called{more}")
    try:
        same = opening.spec.codecs.encode(outcome) == body or outcome == recorded
    except LetItLoopError as exc:
        raise AssertionError(f"{where}it returns what cannot be recorded: {exc}") from exc
    if not same:
        raise AssertionError(f"{where}all steps are as recorded, but it returns {outcome!r} instead of {recorded!r}")
