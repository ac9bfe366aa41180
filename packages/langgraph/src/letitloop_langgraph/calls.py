"""Durable tool calls: what ``ToolNode(wrap_tool_call=…)`` and the agents' middleware do about a call that happened before."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import threading
from contextlib import asynccontextmanager, contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from langgraph.errors import GraphBubbleUp
from langgraph.prebuilt.tool_node import _get_all_injected_args
from pydantic import create_model

from letitloop.effects.guard import Effect
from letitloop.errors import ActionConflict, IntentFailed, InvalidArgument, LetItLoopError, NotAuthorized
from letitloop.integration.policies import Policies, atool_call, tool_call
from letitloop.runs.scope import find_scope
from letitloop_langgraph.resolver import current_place, meet_task

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
    from typing import TypeAlias

    from langchain_core.messages import ToolMessage
    from langchain_core.tools import BaseTool
    from langgraph.prebuilt.tool_node import ToolCallRequest
    from langgraph.types import Command

    from letitloop.effects.guard import BoundEffect
    from letitloop.integration.policies import Policy
    from letitloop.runs.scope import Scope

    Answer: TypeAlias = ToolMessage | Command[Any]

__all__ = ["ToolCalls", "adurable_tool_call", "durable_tool_call", "passing"]

_TOLD_TO_THE_MODEL = (IntentFailed, NotAuthorized, ActionConflict)
_LONGEST = 400


def durable_tool_call(
    tools: Mapping[str, Policy] | None = None, default: Policy = "record"
) -> Callable[[ToolCallRequest, Callable[[ToolCallRequest], Answer]], Answer]:
    """Return what ``ToolNode(tools, wrap_tool_call=…)`` takes: a finished call is answered from the log.

    Args:
        tools: a policy by tool name: ``"record"`` (done at least once, its result recorded), ``"rerun"`` (done again on replay), or
            an :func:`letitloop.effect`.
        default: the policy of every other tool.

    Raises:
        InvalidArgument: a policy is none of these.

    Example:
        >>> from langgraph.prebuilt import ToolNode
        >>> def search(query: str) -> str:
        ...     "Search."
        ...     return query.upper()
        >>> node = ToolNode([search], wrap_tool_call=durable_tool_call({"search": "record"}))
    """
    return ToolCalls(Policies(tools or {}, default)).call


def adurable_tool_call(
    tools: Mapping[str, Policy] | None = None, default: Policy = "record"
) -> Callable[[ToolCallRequest, Callable[[ToolCallRequest], Awaitable[Answer]]], Awaitable[Answer]]:
    """Return what ``ToolNode(tools, awrap_tool_call=…)`` takes; arguments and errors are those of :func:`durable_tool_call`."""
    return ToolCalls(Policies(tools or {}, default)).acall


class ToolCalls:
    """Tool calls by policy.

    Args:
        policies: what is done about a call of each tool.
    """

    def __init__(self, policies: Policies) -> None:
        self._policies = policies
        self._guarded: dict[int, tuple[BaseTool, BaseTool]] = {}
        self._called: set[str] = set()

    def call(self, request: ToolCallRequest, execute: Callable[[ToolCallRequest], Answer]) -> Answer:
        """Carry out a tool call as its policy says."""
        name, policy = self._policy(request)
        self._tell_misnamed(request)
        try:
            if isinstance(policy, Effect):
                return execute(self._guard(request, policy))
            if policy == "rerun":
                meet_task()
                return execute(request)
            answer = tool_call(_scope(name), name, policy, _asked(request), lambda: execute(request), place=_mark(request))
            return _rebound(answer, request)  # type: ignore[no-any-return]  # what the tool node gave
        except LetItLoopError as exc:
            raise passing(exc) from exc.__cause__

    async def acall(self, request: ToolCallRequest, execute: Callable[[ToolCallRequest], Awaitable[Answer]]) -> Answer:
        """Do as :meth:`call`, in async code."""
        name, policy = self._policy(request)
        self._tell_misnamed(request)
        try:
            if isinstance(policy, Effect):
                return await execute(self._guard(request, policy))
            if policy == "rerun":
                meet_task()
                return await execute(request)
            answer = await atool_call(_scope(name), name, policy, _asked(request), lambda: execute(request), place=_mark(request))
            return _rebound(answer, request)  # type: ignore[no-any-return]  # what the tool node gave
        except LetItLoopError as exc:
            raise passing(exc) from exc.__cause__

    def shown(self, tool: Any) -> Any:
        """Return a tool as a model may see it: without the parameters that the application vouches for."""
        policy = self._policies.of(getattr(tool, "name", ""))
        return self.guarded(tool, policy) if isinstance(policy, Effect) and hasattr(tool, "args_schema") else tool

    def guarded(self, tool: BaseTool, policy: Effect) -> BaseTool:
        """Return a tool that does what another one does, once for each key of the policy."""
        known = self._guarded.get(id(tool))
        if known is None or known[0] is not tool:
            known = self._guarded[id(tool)] = (tool, _guarded(tool, policy))
        return known[1]

    def _policy(self, request: ToolCallRequest) -> tuple[str, Policy]:
        name = request.tool_call["name"]
        return name, ("rerun" if request.tool is None else self._policies.of(name))

    def _tell_misnamed(self, request: ToolCallRequest) -> None:
        """Warn where a tool without a policy is called whose name is nearly that of a policy for no tool that was called so far.

        Which tools there are is not known here, as it is to the middleware, which refuses such a name.
        """
        name = request.tool_call["name"]
        if request.tool is None or name in self._called:
            return
        self._called.add(name)
        for other, near in self._policies.misnamed(self._called).items():
            if near == name:
                logging.getLogger("letitloop").warning(
                    "letitloop: tool %r has no policy and is called, and no tool called so far has the name %r, which has one: is "
                    "that the one meant?",
                    name,
                    other,
                )

    def _guard(self, request: ToolCallRequest, policy: Effect) -> ToolCallRequest:
        if request.tool is None:
            raise InvalidArgument(f"tool {request.tool_call['name']!r} is not registered. It was not called.")
        return request.override(tool=self.guarded(request.tool, policy))


def passing(exc: LetItLoopError) -> LetItLoopError:
    """Return an error that no tool's error handler shows to the model, unless the model is to know it: it is the caller's."""
    cls = type(exc)
    if isinstance(exc, (GraphBubbleUp, *_TOLD_TO_THE_MODEL)):
        return exc
    derived = _made.get(cls)
    if derived is None:
        names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
        derived = _made.setdefault(cls, type(cls.__name__, (cls, GraphBubbleUp), names))
    other: LetItLoopError = derived.__new__(derived)
    other.args = exc.args
    other.__dict__.update(exc.__dict__)
    other.__traceback__ = exc.__traceback__
    return other


_made: dict[type[LetItLoopError], type[LetItLoopError]] = {}


def _scope(name: str) -> Scope:
    return current_place() or find_scope("the tool call", name)


def _mark(request: ToolCallRequest) -> str:
    """Return what tells this call from others of its tool: the id that the model's recorded answer gave it."""
    return str(request.tool_call.get("id") or "")[:_LONGEST]


def _asked(request: ToolCallRequest) -> dict[str, Any]:
    return dict(request.tool_call["args"])


def _rebound(answer: Any, request: ToolCallRequest) -> Any:
    """Let a recorded answer answer this call."""
    identity = request.tool_call.get("id")
    if getattr(answer, "tool_call_id", identity) != identity:
        return answer.model_copy(update={"tool_call_id": identity})
    return answer


# --- an effect around a tool's own function ----------------------------------------------------------------------------------


def _guarded(tool: BaseTool, policy: Effect) -> BaseTool:
    func: Any = getattr(tool, "func", None)
    coroutine: Any = getattr(tool, "coroutine", None)
    copy = tool.model_copy()
    if func is None and coroutine is None:  # a class of its own
        object.__setattr__(copy, "_run", _Guard(tool, policy, tool._run).sync())
        if type(tool)._arun is not _base_arun():
            object.__setattr__(copy, "_arun", _Guard(tool, policy, tool._arun).asynchronous())
        return _without(copy, _Guard(tool, policy, tool._run).hidden)
    hidden: frozenset[str] = frozenset()
    if func is not None:
        guard = _Guard(tool, policy, func)
        copy.func, hidden = guard.sync(), guard.hidden
    if coroutine is not None:
        guard = _Guard(tool, policy, coroutine)
        copy.coroutine, hidden = guard.asynchronous(), guard.hidden
    return _without(copy, hidden)


def _base_arun() -> Any:
    from langchain_core.tools import BaseTool

    return BaseTool._arun


class _Guard:
    """An effect around one function of a tool; what LangGraph injects is no argument of the action."""

    def __init__(self, tool: BaseTool, policy: Effect, fn: Callable[..., Any]) -> None:
        self._tool = tool
        self._policy = policy
        self._fn = fn
        self._signature = inspect.signature(fn)
        self._injected = _injected(tool, self._signature)
        self.hidden = self._bind({}).hidden

    def _bind(self, injected: dict[str, Any]) -> BoundEffect:
        if not self._injected:
            return self._policy.bind(self._fn, self._tool.name)
        fn = self._fn
        inner: Any
        if inspect.iscoroutinefunction(fn):

            @wraps(fn)
            async def ainner(**arguments: Any) -> Any:
                return await fn(**arguments, **injected)

            inner = ainner
        else:

            @wraps(fn)
            def sync_inner(**arguments: Any) -> Any:
                return fn(**arguments, **injected)

            inner = sync_inner
        kept = [one for name, one in self._signature.parameters.items() if name not in self._injected]
        inner.__signature__ = self._signature.replace(parameters=kept)
        return self._policy.bind(inner, self._tool.name)

    def _split(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        given = self._signature.bind_partial(*args, **kwargs).arguments
        injected = {name: value for name, value in given.items() if name in self._injected}
        return injected, {name: value for name, value in given.items() if name not in self._injected}

    def _turn(self, arguments: dict[str, Any]) -> tuple[str, ...]:
        """Return what calls of one action have in common: a model may ask for it twice at once, and the second waits."""
        return (self._tool.name, *(repr(arguments.get(field)) for field in sorted(self._policy.key.fields)))

    def sync(self) -> Callable[..., Any]:
        """Return the function, guarded."""

        @wraps(self._fn)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            injected, arguments = self._split(args, kwargs)
            try:
                with _turn(self._turn(arguments)):
                    return self._bind(injected).call(**arguments)
            except LetItLoopError as exc:
                raise passing(exc) from exc.__cause__

        return guarded

    def asynchronous(self) -> Callable[..., Any]:
        """Return the async function, guarded."""

        @wraps(self._fn)
        async def aguarded(*args: Any, **kwargs: Any) -> Any:
            injected, arguments = self._split(args, kwargs)
            try:
                async with _aturn(self._turn(arguments)):
                    return await self._bind(injected).acall(**arguments)
            except LetItLoopError as exc:
                raise passing(exc) from exc.__cause__

        return aguarded


class _Turn:
    """Whose turn it is among calls of one action in this process."""

    __slots__ = ("__weakref__", "lock", "locks")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


_turns: WeakValueDictionary[tuple[str, ...], _Turn] = WeakValueDictionary()
_making = threading.Lock()


def _after_fork_in_child() -> None:
    global _making  # another thread of the parent may have held it, or a turn
    _making = threading.Lock()
    _turns.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _turn_of(action: tuple[str, ...]) -> _Turn:
    with _making:
        turn = _turns.get(action)
        if turn is None:
            turn = _turns[action] = _Turn()
        return turn


@contextmanager
def _turn(action: tuple[str, ...]) -> Generator[None]:
    turn = _turn_of(action)
    with turn.lock:
        yield


@asynccontextmanager
async def _aturn(action: tuple[str, ...]) -> AsyncGenerator[None]:
    turn = _turn_of(action)
    async with turn.locks.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        yield


def _injected(tool: BaseTool, signature: inspect.Signature) -> frozenset[str]:
    """Return the parameters that LangChain and LangGraph fill in: state, store, runtime, config, callbacks."""
    found = set(tool._injected_args_keys) | {"callbacks", "run_manager"}
    known = _get_all_injected_args(tool)
    found |= {*known.state, *(name for name in (known.store, known.runtime) if name)}
    for name, parameter in signature.parameters.items():
        if "RunnableConfig" in str(parameter.annotation):
            found.add(name)
    return frozenset(found & signature.parameters.keys())


def _without(tool: BaseTool, hidden: frozenset[str]) -> BaseTool:
    """Take the parameters that the application vouches for out of the schema that a model sees and that arguments must fit."""
    schema: Any = tool.args_schema
    if not hidden or schema is None or isinstance(schema, dict):
        return tool
    fields: dict[str, Any] = {}
    for name, field in schema.model_fields.items():
        if name not in hidden:
            hint: Any = (field.annotation, *field.metadata)
            fields[name] = (Annotated[hint] if field.metadata else field.annotation, field)
    tool.args_schema = create_model(schema.__name__, __doc__=schema.__doc__, **fields)
    return tool
