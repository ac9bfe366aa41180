"""Tool calls: done as their policy says, and once, however often CrewAI dispatches them."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import wraps
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from crewai.tools.agent_tools.base_agent_tools import BaseAgentTool
from crewai.tools.base_tool import BaseTool, Tool
from crewai.utilities.string_utils import sanitize_tool_name
from pydantic import create_model

try:
    from crewai.tools.tool_failure import ToolFailure
    from crewai.tools.tool_failure import resolve_tool_failure_policy as resolve
except ImportError:  # early versions of 1.15
    ToolFailure = None  # type: ignore[assignment, misc]

    def resolve(*_: Any) -> None:  # type: ignore[misc]
        """Tell models of every failure."""


from letitloop.effects.guard import Effect
from letitloop.errors import ActionConflict, IntentFailed, InvalidArgument, LetItLoopError, NotAuthorized
from letitloop.integration.policies import atool_call, tool_call
from letitloop.runs.failures import decode_failure, encode_failure
from letitloop.runs.scope import restore
from letitloop_crewai.asking import digest
from letitloop_crewai.driving import as_it_was, current_frame, failing_as_then, frame_around, framed, outside
from letitloop_crewai.names import effect_of, names_of
from letitloop_crewai.steady import steady

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
    from contextlib import AbstractContextManager

    from letitloop.integration.patching import Patches
    from letitloop.integration.policies import Policies, Policy
    from letitloop_crewai.driving import Frame

__all__ = ["hide_trusted", "wrap_tool"]

_FOR_THE_MODEL = (ActionConflict, IntentFailed, NotAuthorized)
"""What an effect raises that a model may read: certainly nothing happened, and it may choose another action."""


class _Reported(Exception):
    """A failure that a tool returned, for which CrewAI ends the kickoff."""

    def __init__(self, failure: Any) -> None:
        super().__init__(str(failure.message))
        self.failure = failure


def wrap_tool(patches: Patches, tool: Any) -> None:
    """Make a tool durable wherever a wrapped kickoff calls it; anywhere else it is as it was.

    Args:
        patches: what is replaced, for it to be taken back.
        tool: the tool.
    """
    if isinstance(tool, BaseAgentTool):
        patches.replace(tool, "_run", lambda stock: _composite(stock, tool))
        return
    signature = _signature(tool)
    if isinstance(tool, Tool):
        patches.replace(tool, "func", lambda stock: _durable(stock, tool, signature))
        return
    patches.replace(tool, "_run", lambda stock: _durable(stock, tool, signature))
    cls: Any = type(tool)  # pyright: ignore[reportUnknownVariableType]
    if cls._arun is not BaseTool._arun:
        patches.replace(tool, "_arun", lambda stock: _durable_async(stock, tool, signature))


def _named_policy(tool: Any, policies: Policies) -> Policy | None:
    """Return a tool's own policy: by one of its names."""
    return next((policies.tools[one] for one in names_of(tool) if one in policies.tools), None)


# --- what an effect binds to -------------------------------------------------------------------------------------------------


def _function(tool: Any) -> Any:
    return tool.func if isinstance(tool, Tool) else tool._run  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def _signature(tool: Any) -> Callable[..., Any]:
    """Return the function whose parameters an effect is bound to; it carries the action out where there is no provider."""
    stock: Any = _function(tool)
    kinds = {one.kind for one in inspect.signature(stock).parameters.values()}
    if not kinds & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}:
        return stock  # type: ignore[no-any-return]  # a function of the user's

    def act(**arguments: Any) -> Any:
        return stock(**arguments)

    fields = list(tool.args_schema.model_fields) if tool.args_schema is not None else []
    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in fields]
    act.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # as inspect documents it
    act.__qualname__ = type(tool).__qualname__
    return act


def hide_trusted(patches: Patches, tool: Any, policies: Policies) -> None:
    """Take trusted parameters out of what any model is told of a wrapped tool.

    Args:
        patches: what is replaced, for it to be taken back.
        tool: the tool; several handlers may hold it, and one whose policy hides parameters hides them for all.
        policies: the handler's.
    """
    policy = _named_policy(tool, policies)
    durable = _function(tool)
    if not isinstance(policy, Effect) or tool.args_schema is None or not hasattr(durable, "letitloop_signature"):
        return
    hidden = policy.bind(durable.letitloop_signature, tool.name).hidden
    schema = tool.args_schema
    if hidden & schema.model_fields.keys():
        shown: Any = {name: (one.annotation, one) for name, one in schema.model_fields.items() if name not in hidden}
        patches.replace(tool, "args_schema", lambda _: create_model(schema.__name__, **shown))
        patches.replace(tool, "description", lambda told: told.rpartition("Tool Description: ")[2])
        tool._generate_description()  # early versions of 1.15 put the schema into the description
    if hidden:
        durable.letitloop_hidden |= hidden
        parameters = inspect.signature(durable).parameters.items()
        durable.__signature__ = inspect.Signature([one for name, one in parameters if name not in hidden])


def _telling(durable: Any, signature: Callable[..., Any]) -> Any:
    """Return a durable function that knows what an effect binds to, for whoever hides parameters of it later."""
    durable.letitloop_signature = signature
    durable.letitloop_hidden = frozenset[str]()
    return durable


# --- one call ----------------------------------------------------------------------------------------------------------------


class _ToolCall:
    """One dispatch of a tool in a part of a kickoff."""

    def __init__(self, frame: Frame, tool: Any, arguments: Mapping[str, Any]) -> None:
        self.frame = frame
        self._tool = tool
        self.name: str = sanitize_tool_name(tool.name)
        self.arguments = arguments
        policies = frame.drive.shared.policies
        self.policy: Policy = _named_policy(tool, policies) or policies.default
        self.place = digest(dict(arguments))[:8] + frame.answers.position()
        self.fresh: list[Any] = []
        self._codecs = frame.scope.run.codecs

    def repeated(self) -> Callable[[], Any] | None:
        """Return what came of the same action of the model before: the framework's retry gets that, and is not dispatched.

        Raises:
            Stopped: the kickoff has to stop; or the model was not to know of all parameters, and this handler does not fill them.
        """
        self.frame.drive.check()
        hidden: frozenset[str] = getattr(_function(self._tool), "letitloop_hidden", frozenset[str]())
        if hidden and not isinstance(self.policy, Effect) and hidden - self.arguments.keys():
            why = InvalidArgument(
                f"tool {self.name!r} is shared with a crew of another handler, whose policy hides its trusted parameters "
                f"({', '.join(sorted(hidden))}) from models; this handler has no effect as its policy, so nothing fills them. It "
                "was not called. Give both handlers the policy, or each crew a tool of its own."
            )
            raise self.frame.drive.stop(why)
        tried = self.frame.tried
        return None if tried is None or self.policy == "rerun" else tried.get(self.name)

    def outcome(self, value: Any, error: Exception | None) -> list[Any]:
        """Return what is recorded of a dispatch. What it raised is a result too: the model goes on from it."""
        if isinstance(error, LetItLoopError) and not isinstance(error, _FOR_THE_MODEL):
            raise error
        if error is not None and self._ends_the_run():
            raise error
        if error is not None:
            self.fresh.append(error)
            return ["raised", encode_failure(error, self._codecs)]
        if ToolFailure is not None and isinstance(value, ToolFailure) and self._ends_the_run():
            raise _Reported(value)
        self.fresh.append(value)
        return ["returned", value]

    def _ends_the_run(self) -> bool:
        """Tell whether the tool's failure goes to the caller of ``kickoff``: it is tried again then, as a model's is."""
        frame = self.frame
        crew = getattr(frame.agent, "crew", None)
        return str(getattr(resolve(self._tool, frame.agent, frame.task, crew), "value", "")) == "raise"

    def finish(self, recorded: Any) -> Any:
        """Return or raise what came of it, fresh or recorded."""
        if self.policy != "record":
            return self.settle(recorded, None)
        kind, body = recorded
        if self.fresh:
            body = self.fresh[0]
        elif kind == "raised":
            body = as_it_was(decode_failure(body, self._codecs, f"tool {self.name!r} of run {self.frame.scope.run.id}"))
        return self.settle(None, body) if kind == "raised" else self.settle(body, None)

    def settle(self, value: Any, error: Exception | None) -> Any:
        """Keep the outcome for the framework's retries, and hand it on."""
        if isinstance(error, _Reported):
            value, error = error.failure, None
        value = steady(value)

        def hand_on() -> Any:
            if error is not None:
                raise error
            return value

        if self.frame.tried is not None:
            self.frame.tried[self.name] = hand_on
        return hand_on()


def _named(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return a call's arguments by name."""
    if not args:
        return kwargs
    return dict(inspect.signature(function).bind_partial(*args, **kwargs).arguments)


def _durable(stock: Callable[..., Any], tool: Any, signature: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(stock):
        return _durable_async(stock, tool, signature)

    @wraps(stock)
    def run(*args: Any, **kwargs: Any) -> Any:
        frame = current_frame()
        if frame is None:
            if (part := _effect_inside(tool, signature)) is None:
                return stock(*args, **kwargs)
            with part as bound:
                return bound.call(**_named(stock, args, kwargs))
        call = _ToolCall(frame, tool, _named(stock, args, kwargs))
        if (repeated := call.repeated()) is not None:
            return repeated()

        def dispatch() -> Any:
            if call.policy == "rerun":
                return stock(*args, **kwargs)
            try:
                with outside():
                    value = _awaited(stock(*args, **kwargs))
            except Exception as error:
                return call.outcome(None, error)
            return call.outcome(value, None)

        try:
            with frame.drive.watched(passing=_FOR_THE_MODEL), failing_as_then():
                return _carried_out(frame, stock, call, dispatch, signature)
        except _FOR_THE_MODEL as error:
            return call.settle(None, error)
        except Exception as error:
            if call.policy == "rerun":
                raise
            return call.settle(None, error)

    return _telling(run, signature)  # type: ignore[no-any-return]  # the same function


def _effect_inside(tool: Any, signature: Callable[..., Any]) -> AbstractContextManager[Any] | None:
    """Return what an effect is carried out by that a leaf call makes (a tool, a callback); None for what is a part of the call.

    It belongs to that call, and so lies in its scope; its policy holds as it does where a model calls the tool.
    """
    frame = frame_around()
    if frame is None:
        return None
    policies = frame.drive.shared.policies
    policy = _named_policy(tool, policies) or policies.default
    if not isinstance(policy, Effect) or effect_of(_function(tool)) is not None:
        return None
    bound = policy.bind(signature, sanitize_tool_name(tool.name))

    @contextmanager
    def carrying_out() -> Generator[Any]:
        frame.drive.check()
        with frame.drive.watched(passing=_FOR_THE_MODEL):
            yield bound

    return carrying_out()


def _carried_out(
    frame: Frame,
    stock: Callable[..., Any],
    call: _ToolCall,
    dispatch: Callable[[], Any],
    signature: Callable[..., Any],
) -> Any:
    own = effect_of(stock)
    with _one_at_a_time(_action(own or call.policy, signature, call)):
        if own is not None:
            with outside():
                return call.settle(stock(**call.arguments), None)
        return call.finish(
            tool_call(frame.scope, call.name, call.policy, call.arguments, dispatch, signature=signature, place=call.place)
        )


_busy: WeakValueDictionary[tuple[str, str], _Busy] = WeakValueDictionary()
_making = Lock()
_mine: ContextVar[tuple[_Busy, ...]] = ContextVar("letitloop_crewai_busy", default=())
"""The actions that this thread or task is inside of."""


class _Busy:
    """One action that is under way in this process."""

    def __init__(self) -> None:
        self.lock = Lock()


def _action(policy: Policy, signature: Callable[..., Any], call: _ToolCall) -> _Busy | None:
    """Return what an effect's call has to wait for; None if it is none, or is made from inside the same action."""
    if not isinstance(policy, Effect):
        return None
    (namespace, key, *_), _ = policy.bind(inspect.unwrap(signature), call.name)._prepare((), dict(call.arguments))
    with _making:
        busy = _busy.get((namespace, key))
        if busy is None:
            busy = _busy[namespace, key] = _Busy()
    return None if busy in _mine.get() else busy


@contextmanager
def _one_at_a_time(busy: _Busy | None) -> Generator[None]:
    """Let the second of two calls of one action, which run side by side, find the first one's result on record."""
    if busy is None:
        yield
        return
    with busy.lock, _inside(busy):
        yield


@asynccontextmanager
async def _one_at_a_time_async(busy: _Busy | None) -> AsyncGenerator[None]:
    """Do so in async code: the other call may be in this very loop, which must go on, or in another thread."""
    if busy is None:
        yield
        return
    while not busy.lock.acquire(blocking=False):  # noqa: ASYNC110 - no event of a loop is told by a thread
        await asyncio.sleep(0.01)
    try:
        with _inside(busy):
            yield
    finally:
        busy.lock.release()


@contextmanager
def _inside(busy: _Busy) -> Generator[None]:
    token = _mine.set((*_mine.get(), busy))
    try:
        yield
    finally:
        restore(_mine, token)


def _awaited(value: Any) -> Any:
    """Return what a sync tool's coroutine comes to, as CrewAI does it."""
    return asyncio.run(value) if inspect.iscoroutine(value) else value


def _durable_async(stock: Callable[..., Any], tool: Any, signature: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(stock)
    async def arun(*args: Any, **kwargs: Any) -> Any:
        frame = current_frame()
        if frame is None:
            if (part := _effect_inside(tool, signature)) is None:
                return await stock(*args, **kwargs)
            with part as bound:
                return await bound.acall(**_named(stock, args, kwargs))
        call = _ToolCall(frame, tool, _named(stock, args, kwargs))
        if (repeated := call.repeated()) is not None:
            return repeated()

        async def dispatch() -> Any:
            if call.policy == "rerun":
                return await stock(*args, **kwargs)
            try:
                with outside():
                    value = await stock(*args, **kwargs)
            except Exception as error:
                return call.outcome(None, error)
            return call.outcome(value, None)

        try:
            with frame.drive.watched(passing=_FOR_THE_MODEL), failing_as_then():
                return await _acarried_out(frame, stock, call, dispatch, signature)
        except _FOR_THE_MODEL as error:
            return call.settle(None, error)
        except Exception as error:
            if call.policy == "rerun":
                raise
            return call.settle(None, error)

    return _telling(arun, signature)  # type: ignore[no-any-return]  # the same function


async def _acarried_out(
    frame: Frame,
    stock: Callable[..., Any],
    call: _ToolCall,
    dispatch: Callable[[], Awaitable[Any]],
    signature: Callable[..., Any],
) -> Any:
    own = effect_of(stock)
    async with _one_at_a_time_async(_action(own or call.policy, signature, call)):
        if own is not None:
            with outside():
                return call.settle(await stock(**call.arguments), None)
        return call.finish(
            await atool_call(frame.scope, call.name, call.policy, call.arguments, dispatch, signature=signature, place=call.place)
        )


def _composite(stock: Callable[..., Any], tool: Any) -> Callable[..., Any]:
    """Return a delegation's call: it is no action of its own, and the coworker's calls are recorded each by itself."""

    @wraps(stock)
    def run(*args: Any, **kwargs: Any) -> Any:
        frame = current_frame()
        if frame is None:
            return stock(*args, **kwargs)
        frame.drive.check()
        inner = frame.inner(f"{sanitize_tool_name(tool.name)} {digest(_named(stock, args, kwargs))[:8]}{frame.answers.position()}")
        with framed(inner):
            return stock(*args, **kwargs)

    return run
