"""Tools whose calls happen as their policy says; a tool's changes to the workflow's state are recorded with its result."""

from __future__ import annotations

import asyncio
import copy
import inspect
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakValueDictionary

from llama_index.core.tools import AsyncBaseTool, BaseTool, FunctionTool, ToolMetadata, ToolOutput, adapt_to_async_tool

from letitloop.effects.guard import Effect
from letitloop.errors import InvalidArgument
from letitloop.integration.policies import Policies, atool_call, tool_call
from letitloop.runs.run import Call
from letitloop.runs.scope import current_scope, find_scope, restore
from letitloop_llamaindex.driving import driving
from letitloop_llamaindex.leaves import letting_waits_through, reaching_the_caller
from letitloop_llamaindex.traces import doing
from letitloop_llamaindex.writes import Watch, watching

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from letitloop.effects.guard import BoundEffect
    from letitloop.integration.policies import Policy
    from letitloop.runs.scope import Scope
    from letitloop_llamaindex.stores import CountingStore

__all__ = ["durable_tools", "has_effect", "wrap_tool"]

_INNER = "_letitloop_inner"
_classes: dict[tuple[type, type], type] = {}
_busy: WeakValueDictionary[tuple[int, str, str], asyncio.Lock] = WeakValueDictionary()


def wrap_tool(tool: Any, policy: Policy) -> AsyncBaseTool:
    """See :func:`letitloop_llamaindex.durable_tool`."""
    Policies({"tool": policy})
    return _made(_tool(tool), policy, agents=False)


def durable_tools(tools: Any, policies: Policies) -> list[AsyncBaseTool]:
    """Return an agent's tools as its runs call them."""
    return [_made(tool, policies.of(tool.metadata.name or ""), agents=True) for tool in tools]


def _tool(tool: Any) -> AsyncBaseTool:
    if isinstance(tool, BaseTool):
        return adapt_to_async_tool(tool)
    if callable(tool):
        return FunctionTool.from_defaults(tool)
    raise InvalidArgument(f"durable_tool was given {type(tool).__name__}, which is no tool of llama-index-core and no function.")


def has_effect(tool: BaseTool) -> bool:
    """Tell whether a tool's function is decorated with an effect."""
    return isinstance(getattr(_function(tool), "effect", None), Effect)


def _made(tool: AsyncBaseTool, policy: Policy, *, agents: bool) -> AsyncBaseTool:
    if has_effect(tool):  # the same effect, with what it raises told apart
        policy = _function(tool).effect
    if _INNER in vars(tool) or policy == "rerun" or _is_handoff(tool):
        return tool
    kind = _Guarded if isinstance(policy, Effect) else _Recorded
    cls = type(tool)
    made = _classes.get((cls, kind))
    if made is None:
        methods = {name: vars(kind)[name] for name in ("call", "acall")}
        made = _classes[cls, kind] = type(cls.__name__, (cls,), {"__module__": cls.__module__, **methods})
    durable = copy.copy(tool)
    durable.__class__ = made
    vars(durable)[_INNER] = _Settings(tool, policy, agents=agents)
    if isinstance(policy, Effect):
        _hide(durable)
    return durable


def _is_handoff(tool: BaseTool) -> bool:
    """Tell whether it is AgentWorkflow's own: it changes the state alone, and is local."""
    return tool.metadata.name == "handoff" and getattr(_function(tool), "__module__", "").startswith("llama_index.core.")


def _function(tool: BaseTool) -> Any:
    return tool.real_fn if isinstance(tool, FunctionTool) else None


class _Settings:
    """What a durable tool needs to know."""

    def __init__(self, tool: AsyncBaseTool, policy: Policy, *, agents: bool) -> None:
        self.tool = tool
        self.policy = policy
        self.agents = agents
        self.context = tool.ctx_param_name if isinstance(tool, FunctionTool) else None
        self.bound = _bound(tool, policy) if isinstance(policy, Effect) else None

    @property
    def name(self) -> str:
        return self.tool.metadata.get_name()

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return what identifies a call."""
        given = {f"argument {position}": value for position, value in enumerate(args)}
        return {**given, **{name: value for name, value in kwargs.items() if name != self.context}}

    def store(self, kwargs: dict[str, Any], scope: Scope) -> CountingStore | None:
        """Return the store of the run whose step makes a call, None where it writes in none."""
        attempt, watch = doing.get(), watching.get()
        watched = not isinstance(scope, Call) or (watch is not None and watch.call is scope)
        store = attempt.store if attempt is not None and watched else None
        if self.context in kwargs and kwargs[self.context].store is not store:
            raise InvalidArgument(
                f"durable_tool {self.name!r} was given a context of another run than that of the step that calls it, so what it "
                "writes in the state could not be recorded. It was not called. Give the workflow LetItLoopRuntime, and call the "
                "tool in a step of it that is no letitloop.step; or give the tool the policy 'rerun'."
            )
        return store

    def tell_names(self) -> None:
        """Tell the runtime of a tool that is called by hand; those of agents are known to it.

        Raises:
            InvalidArgument: it has another policy for it.
        """
        drive = driving.get()
        if drive is not None and not self.agents:
            drive.names.called(self.name, self.policy)

    async def acall(self, call: Awaitable[Any]) -> Any:
        return await (reaching_the_caller(call) if self.agents else call)


# --- record ------------------------------------------------------------------------------------------------------------------


class _Recorded:
    """The methods of a tool whose calls are recorded: a call that is on record is not made again."""

    def call(self, *args: Any, **kwargs: Any) -> Any:
        mine: _Settings = vars(self)[_INNER]
        scope = find_scope("durable_tool", mine.name)
        mine.tell_names()
        work = lambda: mine.tool.call(*args, **kwargs)  # noqa: E731 - what is done
        return tool_call(scope, mine.name, "record", mine.arguments(args, kwargs), work)

    async def acall(self, *args: Any, **kwargs: Any) -> Any:
        mine: _Settings = vars(self)[_INNER]
        scope = find_scope("durable_tool", mine.name)
        mine.tell_names()
        asked = mine.arguments(args, kwargs)
        store = mine.store(kwargs, scope)
        applied = False

        async def act() -> Any:
            nonlocal applied
            applied = True
            return await _watched(store, mine.tool.acall(*args, **kwargs))

        async def recorded(work: Callable[[Any], Awaitable[Any]]) -> Any:
            return await atool_call(scope, mine.name, "record", asked, lambda: work(act))

        answer = await mine.acall(letting_waits_through(recorded))
        if store is not None and not applied:
            for place, write in answer["writes"]:
                await store.write_again(write, place)
        return answer if store is None else answer["output"]


async def _watched(store: CountingStore | None, call: Awaitable[Any]) -> Any:
    """Make a call, and return what is recorded of it: with what it writes in the workflow's state, if there is one."""
    if store is None:
        return await call
    watch = Watch(current_scope())
    token = watching.set(watch)
    try:
        return {"output": await call, "writes": await watch.writes(store)}
    finally:
        restore(watching, token)


# --- effect ------------------------------------------------------------------------------------------------------------------


class _Guarded:
    """The methods of a tool with an effect: the ledger carries the action out, once."""

    def call(self, *args: Any, **kwargs: Any) -> Any:
        mine: _Settings = vars(self)[_INNER]
        assert mine.bound is not None, "it has an effect"
        mine.tell_names()
        return _output(self, kwargs, mine.bound.call(*args, **_validated(mine, kwargs)))

    async def acall(self, *args: Any, **kwargs: Any) -> Any:
        mine: _Settings = vars(self)[_INNER]
        bound = mine.bound
        assert bound is not None, "it has an effect"
        mine.tell_names()
        arguments = _validated(mine, kwargs)

        async def act() -> Any:
            (namespace, key, *_), _ = bound._prepare(args, arguments)
            async with _one_at_a_time(namespace, key):
                return await bound.acall(*args, **arguments)

        return _output(self, kwargs, await mine.acall(act()))


def _one_at_a_time(namespace: str, key: str) -> asyncio.Lock:
    """Return a lock: of two calls of one action in one answer of a model, the second finds the first's result on record."""
    place = id(asyncio.get_running_loop()), namespace, key
    lock = _busy.get(place)
    if lock is None:
        lock = _busy[place] = asyncio.Lock()
    return lock


def _output(tool: Any, kwargs: dict[str, Any], result: Any) -> ToolOutput:
    if isinstance(result, ToolOutput):
        return result
    blocks = FunctionTool._parse_tool_output(tool, result)
    return ToolOutput(tool_name=tool.metadata.get_name(), blocks=blocks, raw_input={"kwargs": kwargs}, raw_output=result)


def _validated(mine: _Settings, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return a call's arguments as the tool's schema has them: the key of an action is made of these."""
    schema = mine.tool.metadata.fn_schema
    assert mine.bound is not None, "it has an effect"
    given = {name: value for name, value in kwargs.items() if name != mine.context}
    if schema is None or mine.bound.hidden:
        return given
    valid = schema.model_validate(given)
    return {name: getattr(valid, name) for name in type(valid).model_fields if name in given or getattr(valid, name) is not None}


def _bound(tool: AsyncBaseTool, policy: Effect) -> BoundEffect:
    function = _function(tool)
    if function is not None:
        return policy.bind(inspect.unwrap(function), tool.metadata.name)

    async def act(**arguments: Any) -> Any:
        output: ToolOutput = await tool.acall(**arguments)
        return output.content

    schema = tool.metadata.fn_schema
    names = list(schema.model_fields) if schema is not None else ["input"]
    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in names]
    act.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # as inspect documents it
    return policy.bind(act, tool.metadata.name)


def _hide(tool: AsyncBaseTool) -> None:
    """Take trusted parameters out of the schema that a model sees."""
    mine: _Settings = vars(tool)[_INNER]
    bound = mine.bound
    if bound is None or not bound.hidden or not isinstance(tool, FunctionTool):
        return
    function = inspect.unwrap(tool.real_fn)

    def shown(**_: Any) -> None:
        """Stand for the function."""

    shown.__name__, shown.__doc__ = mine.name, function.__doc__
    shown.__signature__ = bound.visible  # type: ignore[attr-defined]  # as inspect documents it
    shown.__annotations__ = {name: kind for name, kind in function.__annotations__.items() if name not in bound.hidden}
    metadata = FunctionTool.from_defaults(shown).metadata
    given = tool.metadata.description
    description = metadata.description if given.startswith(f"{mine.name}(") else given
    tool._metadata = ToolMetadata(description, mine.name, cast("Any", metadata.fn_schema), tool.metadata.return_direct)
