"""The seam of tools: each agent gets a stand-in of a tool, whose ``forward`` is done as the tool's policy says."""

from __future__ import annotations

import functools
import inspect
from keyword import iskeyword
from typing import TYPE_CHECKING, Any

from letitloop.codecs.ext import class_of
from letitloop.effects.guard import Effect
from letitloop.effects.ledger import Ledger
from letitloop.effects.templates import Template
from letitloop.errors import InvalidArgument, RecordedError
from letitloop.integration.policies import tool_call
from letitloop.runs.identity import base_of, escape
from letitloop_smolagents._framework import default_tools
from letitloop_smolagents._given import Given, answer
from letitloop_smolagents._stop import NOT_SHOWN, Stop, as_it_was, executed_again, raise_seen, seen
from letitloop_smolagents._values import identity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from letitloop.integration.policies import Policy
    from letitloop.runs.scope import Scope
    from letitloop_smolagents._binding import Binding

__all__ = ["Member", "same_policies", "same_policy", "stock_of", "tool_for"]

STOCK = "__letitloop_stock__"
_UNNAMED = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


def stock_of(tool: Any) -> Any:
    """Return the tool of which :func:`tool_for` gave this, or the tool itself."""
    return getattr(tool, STOCK, tool)


def tool_for(binding: Binding, tool: Any, policy: Policy | None) -> Any:
    """Return a stand-in of a tool for one agent; the tool itself stays as it is, and may serve other agents.

    Args:
        binding: the agent's.
        tool: the tool.
        policy: what the user declared for it by name; None if nothing.

    Raises:
        InvalidArgument: an effect's key needs what is no parameter of the tool.
    """
    if policy is None and type(tool) is default_tools.FinalAnswerTool:
        return tool  # it returns what it is given
    if not hasattr(tool, "forward"):
        if policy == "rerun":
            return tool
        raise InvalidArgument(
            f"tool {tool.name!r} has no forward(), so its calls cannot be recorded. Nothing was wrapped. If calling it again does "
            f'no harm, declare tools={{{tool.name!r}: "rerun"}}.'
        )
    chosen = policy or binding.policies.default
    act = _acting(tool)
    hidden = frozenset[str]()
    if isinstance(chosen, Effect):
        act = _by_name(tool, act)
        hidden = chosen.bind(act, tool.name).hidden
    names = [name for name in tool.inputs if name not in hidden]

    @functools.wraps(tool.forward)
    def forward(*args: Any, **kwargs: Any) -> Any:
        if binding.scope is None:
            return act(*args, **kwargs)
        value = binding.in_context(lambda: _call(binding, tool.name, chosen, _bound(names, args, kwargs), act, (args, kwargs)))
        binding.obtained(value)
        return value

    own: dict[str, Any] = {STOCK: tool, "forward": forward, "is_initialized": True}  # the tool itself is set up when it is called
    if hidden:
        own["inputs"] = {name: tool.inputs[name] for name in names}
    return _twin_of(tool, own)


class _Twin:
    """Comes before the tool's class among the bases of a stand-in's: whoever counts the subclasses of that is told of none."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        pass


def _twin_of(tool: Any, own: dict[str, Any]) -> Any:
    """Return an object that shows some attributes of its own, and is in everything else the tool: what is set here is set there.

    A copy of it, or what comes out of a pickle, is one of the tool.
    """
    cls: Any = class_of(tool)
    shown: dict[str, Any] = {name: _shown(tool, name, value) for name, value in own.items()}
    about = {"__module__": cls.__module__, "__doc__": cls.__doc__, "__class__": _shown(tool, "__class__", cls)}
    made: Any = type(cls)(cls.__name__, (_Twin, cls), {**about, **shown, "__reduce_ex__": lambda _, form: tool.__reduce_ex__(form)})
    twin: Any = object.__new__(made)
    twin.__dict__ = tool.__dict__
    return twin


def _shown(tool: Any, name: str, value: Any) -> property:
    return property(lambda _: value, lambda _, given: setattr(tool, name, given))


def _acting(tool: Any) -> Callable[..., Any]:
    """Return the tool's own work as a function with the tool's own parameters; the tool is set up before its first call."""
    forward = tool.forward  # as it is declared: what does the work may be given to the tool later
    plain = inspect.unwrap(forward)  # what @tool was put on: the forward that it makes claims a parameter self

    @functools.wraps(plain)
    def act(*args: Any, **kwargs: Any) -> Any:
        if not getattr(tool, "is_initialized", True):
            tool.setup()
        return tool.forward(*args, **kwargs)

    if inspect.ismethod(forward):
        act.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]  # a function may have one
    return act


def _by_name(tool: Any, act: Callable[..., Any]) -> Callable[..., Any]:
    """Return a tool's own work as a function that an effect can bind to.

    Tools of an MCP server, of LangChain or of a Space take what they are given unnamed: what it is called their inputs say.
    """
    kinds = {one.kind for one in inspect.signature(act).parameters.values()}
    if not kinds & _UNNAMED or not all(name.isidentifier() and not iskeyword(name) for name in tool.inputs):
        return act
    optional = {name for name, one in tool.inputs.items() if one.get("nullable") or "default" in one}

    @functools.wraps(act)
    def by_name(*args: Any, **kwargs: Any) -> Any:
        return act(*args, **{name: value for name, value in kwargs.items() if value is not None or name not in optional})

    kind, empty = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty
    parameters = [inspect.Parameter(name, kind, default=None if name in optional else empty) for name in tool.inputs]
    by_name.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # a function may have one
    return by_name


def _bound(names: list[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    named = {names[n] if n < len(names) else f"argument {n + 1}": value for n, value in enumerate(args)}
    return {**named, **kwargs}


def _call(
    binding: Binding,
    name: str,
    policy: Policy,
    arguments: dict[str, Any],
    act: Callable[..., Any],
    given: tuple[tuple[Any, ...], dict[str, Any]],
) -> Any:
    if policy == "rerun":
        return act(*given[0], **given[1])
    scope = binding.place()
    before = scope.run.log.next_seq
    fresh: list[Any] = []
    raised: list[Exception] = []

    def work() -> Any:
        binding.goes_live(name)
        objects = Given(arguments)
        try:
            fresh.append(act(*given[0], **given[1]))
        except Exception as exc:
            if isinstance(exc, NOT_SHOWN) or scope.run.halted:
                raise
            raised.append(exc)
            return seen(exc, binding.codecs)
        return objects.record(fresh[0])

    try:
        if isinstance(policy, Effect):
            _check_effect(binding, scope, policy, name, arguments, act)
            return tool_call(scope, name, policy, arguments, work, signature=act)
        told = {word: identity(value) for word, value in arguments.items()}
        value = tool_call(scope, name, policy, told, work, place=binding.told(told))
    except NOT_SHOWN as exc:
        raise Stop(exc) from exc
    except RecordedError as exc:
        raise as_it_was(exc) from None
    finally:
        if scope.run.log.next_seq != before:
            binding.went_live()
    if raised:
        raise raised[0]
    if fresh:
        return fresh[0]
    raise_seen(value, binding.codecs, f"tool {name}")
    return answer(value, arguments)


def _check_effect(
    binding: Binding, scope: Scope, policy: Effect, name: str, arguments: dict[str, Any], act: Callable[..., Any]
) -> None:
    """In finished code that is executed again, let no effect through that it did not have."""
    if executed_again.get() is None:
        return
    (_, key, _, _), _ = policy.bind(act, name)._prepare((), arguments)
    base = scope.prefix + escape(key, "step").encode()
    if not any(base_of(one.key) == base for one in scope.run.journal.entries()):  # one that failed was asked for, too
        binding.check_closed(f"{name} ({key})")


class Member:
    """A managed agent as the code of an agent calls it."""

    def __init__(self, binding: Binding, agent: Any) -> None:
        self._binding = binding
        self._agent = agent

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        binding = self._binding
        if binding.scope is None:
            return self._agent(*args, **kwargs)
        value = binding.in_context(lambda: binding.call_member(self._agent, args, kwargs))
        binding.obtained(value)
        return value

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_agent"], name)


def same_policies(one: Mapping[str, Policy], other: Mapping[str, Policy]) -> bool:
    """Tell whether two sets of policies do the same."""
    return one.keys() == other.keys() and all(same_policy(policy, other[name]) for name, policy in one.items())


def same_policy(one: Policy, other: Policy) -> bool:
    """Tell whether two policies do the same; two effects do if they were made alike."""
    if not isinstance(one, Effect) or not isinstance(other, Effect):
        return one == other
    return all(_plainly(mine) == _plainly(other.__dict__[name]) for name, mine in one.__dict__.items())


def _plainly(part: Any) -> Any:
    if isinstance(part, Ledger):
        return part._path, part._store and part._store.location
    return part.__dict__ if isinstance(part, Template) else part
