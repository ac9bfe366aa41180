"""A workbench's tools as a run calls them: sync functions see their step, and effects are carried out by the ledger."""

from __future__ import annotations

import asyncio
import copy
import inspect
from contextvars import copy_context
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from autogen_core.tools import FunctionTool

from letitloop.effects.guard import Effect
from letitloop.errors import (
    ActionConflict,
    Halt,
    IntentFailed,
    InvalidArgument,
    LetItLoopError,
    NotAuthorized,
)
from letitloop.runs.run import Call
from letitloop.runs.scope import current_scope

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from autogen_core import CancellationToken
    from autogen_core.tools import BaseTool
    from pydantic import BaseModel

    from letitloop.effects.guard import BoundEffect

__all__ = ["Stopped", "as_called", "bind_to_schema", "carry_out", "guarded_by", "tool_call_key"]

_FOR_THE_MODEL = (ActionConflict, IntentFailed, NotAuthorized)
"""What an effect raises that a model may read: certainly nothing happened, and it may choose another action."""


class Stopped(Halt):
    """Carries an ordinary exception past a workbench, which would show it to the model as text."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def tool_call_key() -> str:
    """Return the key of the tool call that is being carried out: 40 characters, the same in every life of the program.

    For services that take an idempotency key. Async tools and sync ones, which AutoGen calls in a thread, may both ask.

    Raises:
        InvalidArgument: no recorded tool call is being carried out here.
    """
    scope = current_scope()
    if not isinstance(scope, Call):
        raise InvalidArgument(
            "tool_call_key() was asked outside a recorded tool call. Call it from a tool of a wrapped agent that has the policy "
            "'record'."
        )
    return sha256(scope.run.instance.encode() + b"\0" + scope.key).hexdigest()[:40]


def guarded_by(tool: BaseTool[Any, Any]) -> Effect | None:
    """Return the effect that a tool's function was decorated with."""
    found = getattr(getattr(tool, "_func", None), "effect", None)
    return found if isinstance(found, Effect) else None


def as_called(tool: BaseTool[Any, Any], policy: object) -> BaseTool[Any, Any]:
    """Return the tool as a run calls it; the user's own object is left as it is."""
    own = guarded_by(tool)
    if own is not None and isinstance(tool, FunctionTool):  # the same effect, with what it raises told apart
        return _guarded_function(tool, own.bind(inspect.unwrap(_function(tool))))
    if isinstance(policy, Effect):
        if isinstance(tool, FunctionTool):
            return _guarded_function(tool, policy.bind(_function(tool), tool.name))
        return _guarded_class(tool, policy)
    if isinstance(tool, FunctionTool) and type(tool).run is FunctionTool.run and not asyncio.iscoroutinefunction(_function(tool)):
        carried: Any = copy.copy(tool)
        carried.run = partial(_run_carried, tool)
        return carried  # type: ignore[no-any-return]  # a tool as it was
    return tool


def _function(tool: FunctionTool) -> Callable[..., Any]:
    return tool._func


async def _run_carried(tool: FunctionTool, arguments: BaseModel, cancellation_token: CancellationToken) -> Any:
    """Call a sync function in a thread, with the context of this task; nothing can stop it, so its end is waited for."""
    named = {name: getattr(arguments, name) for name in tool._signature.parameters if hasattr(arguments, name)}
    if tool._has_cancellation_support:
        named["cancellation_token"] = cancellation_token
    call = partial(copy_context().run, partial(_function(tool), **named))
    work = asyncio.get_running_loop().run_in_executor(None, call)
    while not work.done():
        try:
            await asyncio.wait({work})
        except asyncio.CancelledError:
            pass  # whoever cancelled has gone on; what the function does is recorded when it is done
    return work.result()


# --- effects -----------------------------------------------------------------------------------------------------------------


_busy: WeakValueDictionary[tuple[int, str, str], asyncio.Lock] = WeakValueDictionary()


def _one_at_a_time(namespace: str, key: str) -> asyncio.Lock:
    """Return a lock: of two calls of one action in one answer of a model, the second finds the first's result on record."""
    place = id(asyncio.get_running_loop()), namespace, key
    lock = _busy.get(place)
    if lock is None:
        lock = _busy[place] = asyncio.Lock()
    return lock


async def carry_out(bound: BoundEffect, arguments: Mapping[str, Any]) -> Any:
    """Carry out an effect; what no model may read leaves it as a Halt."""
    try:
        (namespace, key, *_), _ = bound._prepare((), dict(arguments))
        async with _one_at_a_time(namespace, key):
            return await bound.acall(**arguments)
    except _FOR_THE_MODEL:
        raise
    except LetItLoopError as error:
        raise Stopped(error) from error


def _guarded_function(tool: FunctionTool, bound: BoundEffect) -> FunctionTool:
    shown: Any = tool._signature

    async def act(**arguments: Any) -> Any:
        return await carry_out(bound, arguments)

    parameters = [one for name, one in shown.parameters.items() if name not in bound.hidden]
    act.__signature__ = shown.replace(parameters=parameters)  # type: ignore[attr-defined]  # as inspect documents it
    act.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": shown.return_annotation}
    guarded = FunctionTool(act, tool.description, tool.name, strict=tool._strict)
    guarded.return_value_as_string = tool.return_value_as_string  # type: ignore[method-assign]  # a subclass may say it otherwise
    return guarded


def _guarded_class(tool: BaseTool[Any, Any], policy: Effect) -> BaseTool[Any, Any]:
    """Guard a tool that is a class of its own: its fields are the parameters of the effect."""
    model = tool.args_type()

    async def act(**arguments: Any) -> Any:
        from autogen_core import CancellationToken

        return await tool.run_json(arguments, CancellationToken())

    _give_signature(act, list(model.model_fields))
    bound = policy.bind(act, tool.name)

    async def run_json(arguments: Mapping[str, Any], cancellation_token: CancellationToken, call_id: str | None = None) -> Any:
        valid = model.model_validate(arguments)
        return await carry_out(bound, {name: getattr(valid, name) for name in model.model_fields})

    async def run_json_stream(
        arguments: Mapping[str, Any], cancellation_token: CancellationToken, call_id: str | None = None
    ) -> AsyncGenerator[Any, None]:
        yield await run_json(arguments, cancellation_token, call_id)

    guarded: Any = copy.copy(tool)
    guarded.run_json = run_json
    if hasattr(tool, "run_json_stream"):  # which a workbench calls instead
        guarded.run_json_stream = run_json_stream
    return guarded  # type: ignore[no-any-return]  # a tool as it was


def bind_to_schema(policy: Effect, schema: Mapping[str, Any], call: Callable[[dict[str, Any]], Any]) -> BoundEffect:
    """Bind an effect to a tool of which there is a schema alone.

    Args:
        policy: the effect.
        schema: the tool's schema.
        call: calls the tool with arguments; awaited.
    """

    async def act(**arguments: Any) -> Any:
        return await call(arguments)

    _give_signature(act, list(schema.get("parameters", {}).get("properties", {})))
    return policy.bind(act, schema["name"])


def _give_signature(function: Callable[..., Any], names: list[str]) -> None:
    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in names]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # as inspect documents it
