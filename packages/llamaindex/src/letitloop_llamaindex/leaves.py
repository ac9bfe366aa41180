"""Leaf calls inside a step: a model call, a tool call. What the framework would swallow leaves them as something it does not."""

# workflows.runtime is typed; its folder has no __init__.py, which hides that
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from workflows.runtime.types.results import WaitingForEvent

from letitloop.errors import ActionConflict, IntentFailed, LetItLoopError, NotAuthorized
from letitloop_llamaindex.driving import Stopped

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["letting_waits_through", "reaching_the_caller"]

T = TypeVar("T")

_FOR_THE_MODEL = (ActionConflict, IntentFailed, NotAuthorized)
"""What an effect raises that a model may read: certainly nothing happened, and it may choose another action."""


_WAITING: type[Exception] = WaitingForEvent


class _Waits(BaseException):
    """Carries the framework's own signal that a step waits past a leaf, which would record it as a failure."""

    def __init__(self, signal: Exception) -> None:
        self.signal = signal


async def letting_waits_through(call: Callable[[Callable[[Callable[[], Awaitable[T]]], Awaitable[T]]], Awaitable[T]]) -> T:
    """Make a leaf call whose work may wait for an event; waiting is no failure, and nothing of it is recorded.

    Args:
        call: makes it; is given a function that does the work.
    """

    async def work(fn: Callable[[], Awaitable[T]]) -> T:
        try:
            return await fn()
        except _WAITING as signal:
            raise _Waits(signal) from None

    try:
        return await call(work)
    except _Waits as waits:
        raise waits.signal from None


async def reaching_the_caller(call: Awaitable[T]) -> T:
    """Let what no model may read leave an agent's call as a Halt: the agent would show any exception to its model as text."""
    try:
        return await call
    except _FOR_THE_MODEL:
        raise
    except LetItLoopError as error:
        raise Stopped(error) from error
