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
from langgraph.prebuilt.tool_node import ToolInvocationError, _get_all_injected_args
from pydantic import create_model

from letitloop.effects.guard import Effect, UnfitArgument
from letitloop.errors import ActionConflict, IntentFailed, InvalidArgument, LetItLoopError, NotAuthorized
from letitloop.integration.policies import Policies, atool_call, tool_call
from letitloop.runs.scope import find_scope
from letitloop_langgraph.resolver import current_place, meet_task, refuse

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Mapping
    from typing import Literal, TypeAlias

    from langchain_core.messages import ToolMessage
    from langchain_core.tools import BaseTool
    from langgraph.prebuilt.tool_node import ToolCallRequest
    from langgraph.types import Command

    from letitloop.effects.guard import BoundEffect
    from letitloop.integration.policies import Policy
    from letitloop.runs.scope import Scope

    Answer: TypeAlias = ToolMessage | Command[Any]

__all__ = ["ToolCalls", "adurable_tool_call", "durable_tool_call", "passing"]

_LONGEST = 400


class _Told(UnfitArgument, ToolInvocationError):
    """An argument that a model chose makes no action: the model is told, as of any argument that does not fit."""

    __init__ = ToolInvocationError.__init__


_TOLD_TO_THE_MODEL = (IntentFailed, NotAuthorized, ActionConflict, _Told)


def durable_tool_call(
    tools: Mapping[str, Policy] | None = None,
    default: Policy = "record",
    *,
    on_change: Literal["raise", "rerun", "reuse"] = "raise",
) -> Callable[[ToolCallRequest, Callable[[ToolCallRequest], Answer]], Answer]:
    """Return what ``ToolNode(tools, wrap_tool_call=…)`` takes: a finished call is answered from the log.

    Args:
        tools: a policy by tool name: ``"record"`` (done at least once, its result recorded), ``"rerun"`` (done again on replay), or
            an :func:`letitloop.effect`.
        default: the policy of every other tool.
        on_change: as of :class:`DurableMiddleware`.

    Raises:
        InvalidArgument: a policy or ``on_change`` is none of these; at each call: a policy's name is that of no tool, and nearly
            that of one without a policy, or an effect does not fit its tool.

    Example:
        >>> from langgraph.prebuilt import ToolNode
        >>> def search(query: str) -> str:
        ...     "Search."
        ...     return query.upper()
        >>> node = ToolNode([search], wrap_tool_call=durable_tool_call({"search": "record"}))
    """
    return ToolCalls(Policies(tools or {}, default), on_change).call


def adurable_tool_call(
    tools: Mapping[str, Policy] | None = None,
    default: Policy = "record",
    *,
    on_change: Literal["raise", "rerun", "reuse"] = "raise",
) -> Callable[[ToolCallRequest, Callable[[ToolCallRequest], Awaitable[Answer]]], Awaitable[Answer]]:
    """Return what ``ToolNode(tools, awrap_tool_call=…)`` takes; arguments and errors are those of :func:`durable_tool_call`."""
    return ToolCalls(Policies(tools or {}, default), on_change).acall


class ToolCalls:
    """Tool calls by policy.

    Args:
        policies: what is done about a call of each tool.
        on_change: what a call that asks something else than the recorded one does.

    Attributes:
        on_change: the same; None for what the run says, which is to raise in every thread.

    Raises:
        InvalidArgument: ``on_change`` has a value that means nothing.
    """

    def __init__(self, policies: Policies, on_change: str = "raise") -> None:
        if on_change not in ("raise", "rerun", "reuse"):
            raise InvalidArgument(f"on_change={on_change!r}: it is one of 'raise', 'rerun', 'reuse'. Nothing was wrapped.")
        self.on_change = None if on_change == "raise" else on_change
        self._policies = policies
        self._guarded: dict[int, tuple[BaseTool, BaseTool]] = {}
        self._seen: set[str] = set()  # the names of all tools that were met
        self._told: set[str] = set()

    def call(self, request: ToolCallRequest, execute: Callable[[ToolCallRequest], Answer]) -> Answer:
        """Carry out a tool call as its policy says."""
        try:
            name, policy = self._policy(request)
            if isinstance(policy, Effect):
                return execute(self._guard(request, policy))
            if policy == "rerun":
                meet_task()
                return execute(request)
            asked, mark = _asked(request), _mark(request)
            answer = tool_call(_scope(name), name, policy, asked, lambda: execute(request), place=mark, on_change=self.on_change)
            return _rebound(answer, request)  # type: ignore[no-any-return]  # what the tool node gave
        except LetItLoopError as exc:
            raise passing(exc) from exc.__cause__

    async def acall(self, request: ToolCallRequest, execute: Callable[[ToolCallRequest], Awaitable[Answer]]) -> Answer:
        """Do as :meth:`call`, in async code."""
        try:
            name, policy = self._policy(request)
            if isinstance(policy, Effect):
                return await execute(self._guard(request, policy))
            if policy == "rerun":
                meet_task()
                return await execute(request)
            asked, mark = _asked(request), _mark(request)
            answer = await atool_call(
                _scope(name), name, policy, asked, lambda: execute(request), place=mark, on_change=self.on_change
            )
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
            with _refusing():
                known = self._guarded[id(tool)] = (tool, _guarded(tool, policy))
        return known[1]

    def check(self, names: Iterable[str], undone: str) -> None:
        """Refuse a misspelt name in the policies: the tool that is meant would be called unguarded.

        Args:
            names: of tools that there are.
            undone: what is not done because of it.

        Raises:
            InvalidArgument: a policy's name is that of no tool met so far, and nearly that of one without a policy.
        """
        self._seen = seen = {*self._seen, *names}  # another set: tools are called in several threads
        for name, near in self._policies.misnamed(seen).items():
            what = f"tools={{{name!r}: …}}: there is no tool of that name"
            if near:
                with _refusing():
                    raise InvalidArgument(
                        f"{what}, and {near!r} has no policy: is that the one meant? {undone} Give the tool's name as the model "
                        f"sees it; if both exist, and {name!r} was not shown so far, give {near!r} a policy of its own as well."
                    )
            if name not in self._told:
                self._told.add(name)
                logging.getLogger("letitloop").warning("letitloop: %s so far, so that policy guards nothing.", what)

    def _policy(self, request: ToolCallRequest) -> tuple[str, Policy]:
        name = request.tool_call["name"]
        if request.tool is None:
            return name, "rerun"
        there = getattr(request.runtime, "tools", None) or ()  # the tools of the node
        self.check([name, *(tool.name for tool in there)], "The tool was not called.")
        return name, self._policies.of(name)

    def _guard(self, request: ToolCallRequest, policy: Effect) -> ToolCallRequest:
        if request.tool is None:
            raise InvalidArgument(f"tool {request.tool_call['name']!r} is not registered. It was not called.")
        return request.override(tool=self.guarded(request.tool, policy))


@contextmanager
def _refusing() -> Generator[None]:
    """Have a refusal of what the program itself says end the run, whoever swallows it: its task writes nothing.

    Middleware that retries, and error handlers of tools, may catch every exception, and would tell the model of it instead.
    """
    try:
        yield
    except InvalidArgument as exc:
        refuse(exc)  # as it is: an error that passes as an interrupt does is none to those who store what a task wrote
        raise passing(exc) from exc.__cause__


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
        self._open = next((name for name, one in self._signature.parameters.items() if one.kind is one.VAR_KEYWORD), None)
        self._named = [] if self._open is None else _named(tool, self._signature)
        self._injected = _injected(tool, self._signature)
        self.hidden = self._bind({}, {}).hidden

    def _bind(self, injected: dict[str, Any], given: Mapping[str, Any]) -> BoundEffect:
        if not self._injected and self._open is None:
            return self._policy.bind(self._fn, self._tool.name)
        fn = self._fn
        absent = {one.name: one.default for one in self._named if one.name not in given}
        inner: Any
        if inspect.iscoroutinefunction(fn):

            @wraps(fn)
            async def ainner(**arguments: Any) -> Any:
                return await fn(**_without_absent(arguments, absent), **injected)

            inner = ainner
        else:

            @wraps(fn)
            def sync_inner(**arguments: Any) -> Any:
                return fn(**_without_absent(arguments, absent), **injected)

            inner = sync_inner
        kept = [one for name, one in self._signature.parameters.items() if name not in self._injected and name != self._open]
        if self._open is not None:
            known = {one.name for one in (*kept, *self._named)}
            kept += [*self._named, *(_parameter(self._tool, name) for name in given if name not in known)]
        inner.__signature__ = self._signature.replace(parameters=kept)
        return self._policy.bind(inner, self._tool.name)

    def _split(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        try:
            given = self._signature.bind_partial(*args, **kwargs).arguments
        except TypeError as exc:
            raise UnfitArgument(f"{exc}. Nothing was done.") from exc
        if self._open is not None:
            given |= given.pop(self._open, {})
        injected = {name: value for name, value in given.items() if name in self._injected}
        return injected, {name: value for name, value in given.items() if name not in self._injected}

    def _bound(self, injected: dict[str, Any], arguments: dict[str, Any]) -> BoundEffect:
        """Return the effect for these arguments.

        Raises:
            UnfitArgument: one is missing, or has a name that no parameter can have.
        """
        try:
            bound = self._bind(injected, arguments)  # without them it was bound before: what fails now is theirs
            bound.visible.bind(**{name: value for name, value in arguments.items() if name not in bound.hidden})
        except InvalidArgument as exc:
            raise UnfitArgument(str(exc)) from exc
        except TypeError as exc:
            raise UnfitArgument(f"{exc}. Nothing was done.") from exc
        return bound

    @contextmanager
    def _telling(self, given: dict[str, Any]) -> Generator[None]:
        """Have the model told of an argument that makes no action, and nobody but the caller of what else is refused."""
        try:
            yield
        except UnfitArgument as exc:
            chosen = {name: value for name, value in given.items() if name not in self.hidden | self._injected}
            raise _Told(self._tool.name, exc, chosen) from exc
        except LetItLoopError as exc:
            raise passing(exc) from exc.__cause__

    def _turn(self, arguments: dict[str, Any]) -> tuple[str, ...]:
        """Return what calls of one action have in common: a model may ask for it twice at once, and the second waits."""
        absent = {one.name: one.default for one in self._named}
        return (self._tool.name, *(repr(arguments.get(field, absent.get(field))) for field in sorted(self._policy.key.fields)))

    def sync(self) -> Callable[..., Any]:
        """Return the function, guarded."""

        @wraps(self._fn)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            with self._telling(kwargs):
                injected, arguments = self._split(args, kwargs)
                with _turn(self._turn(arguments)):
                    return self._bound(injected, arguments).call(**arguments)

        return guarded

    def asynchronous(self) -> Callable[..., Any]:
        """Return the async function, guarded."""

        @wraps(self._fn)
        async def aguarded(*args: Any, **kwargs: Any) -> Any:
            with self._telling(kwargs):
                injected, arguments = self._split(args, kwargs)
                async with _aturn(self._turn(arguments)):
                    return await self._bound(injected, arguments).acall(**arguments)

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


def _named(tool: BaseTool, signature: inspect.Signature) -> list[inspect.Parameter]:
    """Return the parameters that a tool's schema names where its function takes any (``**arguments``), as an MCP server's do."""
    schema: Any = tool.tool_call_schema
    if isinstance(schema, dict):
        required = schema.get("required") or ()
        defaults = {
            name: inspect.Parameter.empty if name in required else told.get("default")
            for name, told in (schema.get("properties") or {}).items()
        }
    else:
        defaults = {
            name: inspect.Parameter.empty if field.is_required() else field.get_default()
            for name, field in schema.model_fields.items()
        }
    own = {name for name, one in signature.parameters.items() if one.kind is not one.VAR_KEYWORD}
    return [_parameter(tool, name, default) for name, default in defaults.items() if name not in own]


def _parameter(tool: BaseTool, name: str, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    """Return a parameter that has no function of its own.

    Raises:
        InvalidArgument: it has a name that no parameter can have.
    """
    try:
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
    except ValueError as exc:
        raise InvalidArgument(
            f"tool {tool.name!r} has an effect as its policy, and an argument {name!r}: that is no name of a parameter, and "
            "arguments are recorded by name. The tool was not called. Wrap it in a tool of your own that calls it something else."
        ) from exc


def _without_absent(arguments: dict[str, Any], absent: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what the caller did not give: what that means, whoever takes the arguments decides."""
    return {name: value for name, value in arguments.items() if name not in absent or value is not absent[name]}


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
