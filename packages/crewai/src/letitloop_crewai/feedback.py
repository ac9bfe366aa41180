"""A human's feedback on what a flow's method returned, given through a provider: what was given is not asked for again."""

from __future__ import annotations

import inspect
from functools import wraps
from typing import TYPE_CHECKING, Any

from letitloop.integration.open_leaves import OpenLeaf
from letitloop_crewai.asking import digest
from letitloop_crewai.driving import current_frame, outside

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from letitloop_crewai.driving import Frame

__all__ = ["recording_feedback"]


def recording_feedback(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Return a flow's looking for its provider, whose feedback is recorded."""

    @wraps(stock)
    def resolve_feedback_provider(*args: Any, **kwargs: Any) -> Any:
        provider = stock(*args, **kwargs)
        return provider if provider is None or current_frame() is None else _Recording(provider)

    return resolve_feedback_provider


class _Recording:
    """A provider whose feedback is recorded. That it is to come later, which CrewAI says by an exception, is none."""

    def __init__(self, provider: Any) -> None:
        self._provider = provider

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)

    def request_feedback(self, context: Any, flow: Any) -> Any:
        """Ask for feedback, once; a coroutine if the provider gives one."""
        frame = current_frame()
        if frame is None:
            return self._provider.request_feedback(context, flow)
        asked = digest([context.message, str(context.method_output), context.emit])
        frame.drive.check()
        with frame.drive.watched():
            given = OpenLeaf(frame.scope, f"feedback given to {context.method_name}", {"asked": asked})
            if given.known:
                return given.answer()
            given.begin()
        try:
            with outside():
                feedback = self._provider.request_feedback(context, flow)
        except BaseException:
            given.abandon()
            raise
        return _later(frame, given, feedback) if inspect.isawaitable(feedback) else _record(frame, given, feedback)


def _record(frame: Frame, given: OpenLeaf, feedback: Any) -> str:
    with frame.drive.watched():
        return given.record(str(feedback))  # as CrewAI takes it


async def _later(frame: Frame, given: OpenLeaf, feedback: Awaitable[Any]) -> str:
    try:
        with outside():
            found = await feedback
    except BaseException:
        given.abandon()
        raise
    return _record(frame, given, found)
