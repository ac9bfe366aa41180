"""A wrapped flow: methods that finished return their recorded result, and leave the state as they left it then."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial, wraps
from threading import Lock
from typing import TYPE_CHECKING, Any

from crewai.core.providers.human_input import get_provider

from letitloop.integration.leaves import acomplete, reserve
from letitloop_crewai.asking import digest
from letitloop_crewai.crews import Kickoffs, refuse_checkpoint
from letitloop_crewai.driving import Frame, current_frame, framed, outside
from letitloop_crewai.streams import raise_what_stopped
from letitloop_crewai.telling import tell
from letitloop_crewai.wrapping import Wrapping

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from letitloop.integration.patching import Patches
    from letitloop.runs.run import Call
    from letitloop_crewai.driving import Drive, Shared

__all__ = ["WrappedFlow"]


class WrappedFlow:
    """One flow, made durable.

    CrewAI's own engine decides what runs, each time anew; routers are methods as others are. Crews that methods kick off, if they
    are wrapped, are parts of the flow's kickoff.
    """

    def __init__(self, shared: Shared, flow: Any, name: str) -> None:
        self.flow = flow
        self.stopped: BaseException | None = None
        self._kickoffs = Kickoffs(shared, name)
        self._wrapping = Wrapping(shared.policies)
        self._started = False
        self._applied = 0
        self._guard = Lock()
        self._wrapping.hold(flow, self._wrap)

    def _wrap(self, patches: Patches) -> None:
        patches.replace(self.flow, "kickoff", self._kickoff)
        patches.replace(self.flow, "kickoff_async", self._kickoff_async)
        patches.replace(self.flow, "_execute_method", self._execute_method)
        for name in ("ask", "_request_human_feedback", "_collapse_to_outcome"):
            patches.replace(self.flow, name, partial(_answered, name=name.strip("_")))

    def undo(self) -> None:
        """Give the stock flow back."""
        self._wrapping.undo()

    # --- what agents ask that a method calls by itself -----------------------------------------------------------------------

    def adopt(self, agent: Any, tools: Any) -> None:
        """Wrap what a method brought along."""
        self._wrapping.agent(agent)
        self._wrapping.tools(tools)

    def adopt_human(self) -> None:
        """Wrap who asks a human."""
        self._wrapping.human(get_provider())

    # --- kickoffs ------------------------------------------------------------------------------------------------------------

    @contextmanager
    def _driving(self, inputs: Any) -> Generator[None]:
        drive: Drive | None = None
        self._started, self._applied = False, 0
        try:
            with self._kickoffs.driving(self, inputs) as drive, framed(Frame(drive, drive.scope)):
                yield
        finally:
            self.stopped = drive.stopped if drive is not None else None

    def _kickoff(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(stock)
        def kickoff(*args: Any, **kwargs: Any) -> Any:
            refuse_checkpoint(kwargs.get("from_checkpoint"))
            output = stock(*args, **kwargs)  # which calls kickoff_async
            return raise_what_stopped(output, self) if self.flow.stream else output

        return kickoff

    def _kickoff_async(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(stock)
        async def kickoff_async(inputs: Any = None, *args: Any, **kwargs: Any) -> Any:
            refuse_checkpoint(kwargs.get("from_checkpoint"))
            frame = current_frame()
            if self.flow.stream:
                return raise_what_stopped(await stock(inputs, *args, **kwargs), self)
            if frame is not None and frame.drive.owner is self:
                return await stock(inputs, *args, **kwargs)
            with self._driving(inputs):
                return await stock(inputs, *args, **kwargs)

        return kickoff_async

    def _execute_method(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(stock)
        async def execute_method(method_name: Any, method: Any, *args: Any, **kwargs: Any) -> Any:
            frame = current_frame()
            if frame is None or frame.drive.owner is not self:
                return await stock(method_name, method, *args, **kwargs)
            self._begin(frame)
            return await stock(method_name, self._durable(frame, str(method_name), method), *args, **kwargs)

        return execute_method

    def _begin(self, frame: Frame) -> None:
        """Let the first method find the state that it found in the kickoff's first life: its id is random, and so may more be."""
        with self._guard:
            if self._started:
                return
            self._started = True
            recorded = frame.drive.leaf(frame.scope, "start", {}, lambda: state_of(self.flow))
            restore_state(self.flow, recorded)

    def _durable(self, frame: Frame, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method that is done once."""
        drive = frame.drive

        @wraps(method)
        async def durable(*args: Any, **kwargs: Any) -> Any:
            drive.check()
            with drive.watched():
                call, known = reserve(frame.scope, f"method {name}", {"arguments": digest([args, kwargs])})
            if known is not None:
                tell(f"method {name!r} of run {drive.scope.run.id} is answered from the log")
                recorded: Any = known.value
                self._restore(recorded)
                return recorded["result"]
            fresh: list[Any] = []

            async def work() -> dict[str, Any]:
                with framed(Frame(drive, call)):
                    result = await _called(method, args, kwargs)
                fresh.append(result)
                return {"result": result, "state": state_of(self.flow), "at": self._at(call)}

            with drive.watched():
                await acomplete(call, work)
            return fresh[0]

        return durable

    def _at(self, call: Call) -> int:
        with self._guard:
            self._applied = max(self._applied + 1, call.run.log.next_seq)
            return self._applied

    def _restore(self, recorded: dict[str, Any]) -> None:
        """Set the state as a method left it, unless a later one is in place: methods may have run side by side."""
        with self._guard:
            if recorded["at"] > self._applied:
                self._applied = recorded["at"]
                restore_state(self.flow, recorded["state"])


async def _called(method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a flow's method, as its engine does: a sync one in a thread."""
    if inspect.iscoroutinefunction(method):
        return await method(*args, **kwargs)
    result = await asyncio.to_thread(copy_context().run, method, *args, **kwargs)
    return await result if inspect.iscoroutine(result) else result


def _answered(stock: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return what asks a human, or a model about a human's words, as a step."""

    @wraps(stock)
    def ask(*args: Any, **kwargs: Any) -> Any:
        frame = current_frame()
        if frame is None:
            return stock(*args, **kwargs)
        frame.drive.check()

        def once() -> Any:
            with outside():
                return stock(*args, **kwargs)

        return frame.drive.leaf(frame.scope, name, {"asked": digest([str(args[0]) if args else "", kwargs.get("message")])}, once)

    return ask


# --- the state ---------------------------------------------------------------------------------------------------------------


def state_of(flow: Any) -> dict[str, Any]:
    """Return a flow's state as data; fields of a typed one keep their types."""
    state = flow._state
    if isinstance(state, dict):
        found: dict[str, Any] = dict(state)  # pyright: ignore[reportUnknownArgumentType]
        return found
    return {**state.__dict__, **(state.__pydantic_extra__ or {})}


def restore_state(flow: Any, fields: dict[str, Any]) -> None:
    """Give a flow the state that :func:`state_of` took apart, without validating it again."""
    state: Any = flow._state
    if type(state) is dict:
        state.clear()
        state.update(fields)  # pyright: ignore[reportUnknownMemberType]
    else:
        flow._state = state.model_copy(update=fields)
