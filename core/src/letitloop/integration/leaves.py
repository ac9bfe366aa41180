"""Durable leaf calls: a model call, a tool call, a human's answer; done once, and answered from the log ever after.

A leaf is a step whose identity an adapter states in so many words: what was asked (messages, tools, settings), not which objects
asked it. Messages of errors name those words.
"""

from __future__ import annotations

from letitloop.runs.drive_sync import call_step
from letitloop.runs.journal import Value
from letitloop.runs.run import Call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from typing import Any, TypeVar

    from letitloop.runs.journal import Failure
    from letitloop.runs.scope import Scope

    T = TypeVar("T")

__all__ = ["acomplete", "aleaf", "leaf", "look_up", "reserve", "was_in_flight"]


def leaf(scope: Scope, name: str, asked: Mapping[str, object], fn: Callable[[], T], *, on_change: str | None = None) -> T:
    """Do a leaf call once.

    Args:
        scope: where it belongs; the ordinal of its name in this scope is its place.
        name: what it is called there.
        asked: what is asked, by name: a recorded answer is never handed to a call that asks something else.
        fn: does it.
        on_change: what a call that asks something else than the recorded one does; None: what the run says.

    Returns:
        What ``fn`` returns, now or in an earlier life of the program.

    Raises:
        StepChanged: something else was asked at this place.
        UnencodableError: the answer cannot be recorded.
        Exception: what ``fn`` raised, now or on record.
        LogPoisoned: the disk refused the record.

    Example:
        >>> from letitloop.integration.sessions import Session
        >>> with Session("leaf-example", store="memory:leaves") as session:
        ...     leaf(session.root(), "model", {"prompt": "2 + 2"}, lambda: "4")
        '4'
    """

    def act(**_: object) -> T:
        return fn()

    return call_step(_call(scope, name, act, asked, on_change))  # type: ignore[return-value]  # what act returned


async def aleaf(
    scope: Scope,
    name: str,
    asked: Mapping[str, object],
    fn: Callable[[], Awaitable[T]],
    *,
    on_change: str | None = None,
    unordered: bool = False,
) -> T:
    """Do an async leaf call once; arguments and errors are those of :func:`leaf`.

    Its place is taken when the coroutine is first awaited: give concurrent calls of one kind names that tell them apart, or say
    that they are ``unordered``: they may come in another order next time, and one of other arguments in its place is no change.
    """
    from letitloop.runs.drive_async import await_step

    async def act(**_: object) -> T:
        return await fn()

    call = _call(scope, name, act, asked, on_change)
    if unordered:
        call.unordered = call.overlapped = True
    call.activate()
    return await await_step(call)  # type: ignore[no-any-return]  # what act returned


def _call(scope: Scope, name: str, act: Callable[..., Any], asked: Mapping[str, object], on_change: str | None = None) -> Call:
    words = dict(asked)
    call = Call(scope, scope.step(name), name, act, (), words, scope.run.codecs.fingerprint((), words))
    if on_change is not None:
        call.on_change = on_change
    return call


def was_in_flight(scope: Scope, name: str) -> bool:
    """Tell whether a call of this name in this scope was being carried out when the previous process died."""
    prefix = (scope.prefix + name.encode("utf-8", "surrogatepass")).decode("utf-8", "replace")[:100]
    return any(note.startswith(prefix) for note in scope.run.in_flight)


def reserve(scope: Scope, name: str, asked: Mapping[str, object]) -> tuple[Call, Value | None]:
    """Take a leaf call's place before its work is done, and tell what is on record for it.

    Returns:
        The call, for :func:`acomplete`, and the recorded answer, None if there is none.

    Raises:
        StepChanged: something else was asked at this place.
    """
    call, known = look_up(scope, name, asked)
    return call, known if isinstance(known, Value) else None


def look_up(scope: Scope, name: str, asked: Mapping[str, object]) -> tuple[Call, Value | Failure | None]:
    """Do as :func:`reserve` does, and return a failure on record that is raised again, too."""

    def act(**_: object) -> None:
        raise AssertionError("acomplete() says what it does")

    call = _call(scope, name, act, asked)
    return call, call.run.recall(call)


async def acomplete(call: Call, fn: Callable[[], Awaitable[T]]) -> T:
    """Do the work of a leaf call that :func:`reserve` found nothing for, and record it; errors are those of :func:`leaf`."""
    from letitloop.runs.drive_async import await_step

    async def act(**_: object) -> T:
        return await fn()

    call.fn = act
    call.activate()
    return await await_step(call)  # type: ignore[no-any-return]  # what act returned
