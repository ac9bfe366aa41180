"""What is done about a tool call that an earlier life of the program made: ``record``, ``rerun``, or an effect."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from letitloop.effects.guard import Effect
from letitloop.errors import InvalidArgument
from letitloop.integration.leaves import aleaf, leaf, was_in_flight
from letitloop.integration.sessions import entered

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping
    from typing import Any, Literal, TypeAlias

    from letitloop.runs.scope import Scope

    Policy: TypeAlias = Literal["record", "rerun"] | Effect

__all__ = ["Policies", "atool_call", "tool_call"]

_NAMED = ("record", "rerun")


@dataclass(frozen=True)
class Policies:
    """The policies of a framework object's tools.

    Attributes:
        tools: a policy by tool name: ``"record"`` (done at least once, its result recorded), ``"rerun"`` (pure or local: done again
            on replay), or an :func:`letitloop.effect`.
        default: the policy of every other tool.

    Raises:
        InvalidArgument: a policy is none of these.

    Example:
        >>> Policies({"search": "record"}).of("search")
        'record'
    """

    tools: Mapping[str, Policy] = field(default_factory=dict[str, "Policy"])
    default: Policy = "record"

    def __post_init__(self) -> None:
        for name, policy in {**self.tools, "default": self.default}.items():
            if policy not in _NAMED and not isinstance(policy, Effect):
                raise InvalidArgument(
                    f"the policy of tool {name!r} is {policy!r}; it has to be 'record', 'rerun', or effect(key=…, provider=…). "
                    "Nothing was wrapped."
                )

    def of(self, tool: str) -> Policy:
        """Return a tool's policy."""
        return self.tools.get(tool, self.default)

    def misnamed(self, known: Collection[str], guarded: Collection[str] = ()) -> dict[str, str]:
        """Return the names that no tool has, each with the tool that is perhaps meant (empty: none): such a policy guards nothing.

        Args:
            known: the names of all tools there are.
            guarded: those that are effects by themselves.

        Example:
            >>> Policies({"refnd": "rerun", "search": "rerun"}).misnamed(["refund", "search"])
            {'refnd': 'refund'}
        """
        wrong = [name for name, policy in self.tools.items() if name not in known and policy != self.default]
        if not wrong:
            return {}
        from difflib import get_close_matches

        free = [name for name in known if name not in self.tools and name not in guarded]
        return {name: next(iter(get_close_matches(name, free, 1)), "") for name in wrong}


def tool_call(
    scope: Scope,
    tool: str,
    policy: Policy,
    arguments: Mapping[str, Any],
    fn: Callable[[], Any],
    *,
    signature: Callable[..., Any] | None = None,
    place: str = "",
    on_change: str | None = None,
) -> Any:
    """Call a tool as its policy says.

    Args:
        scope: where the call belongs.
        tool: its name.
        policy: what is done about a call that happened before.
        arguments: what it is called with, validated.
        fn: calls it.
        signature: the tool's own function, whose parameters an effect is bound to; needed for effects.
        place: tells concurrent calls of one tool apart: a position, never an order of arrival.
        on_change: as of :func:`letitloop.integration.leaves.leaf`, for a call that is recorded.

    Returns:
        The tool's result; of an effect, the provider's.

    Raises:
        StepChanged, UnencodableError, LogPoisoned: as :func:`letitloop.integration.leaves.leaf`.
        UnknownOutcome, ActionConflict, IntentFailed, InFlight, ApprovalRequired, NotAuthorized: of an effect.
        Exception: what the tool raised, now or on record.
    """
    if policy == "rerun":
        return fn()
    if isinstance(policy, Effect):
        with entered(scope):
            return policy.bind(_signature(tool, signature), tool).call(**arguments)
    name = _name(tool, place)
    _tell_repeat(scope, name)
    return leaf(scope, name, arguments, fn, on_change=on_change)


async def atool_call(
    scope: Scope,
    tool: str,
    policy: Policy,
    arguments: Mapping[str, Any],
    fn: Callable[[], Awaitable[Any]],
    *,
    signature: Callable[..., Any] | None = None,
    place: str = "",
    on_change: str | None = None,
) -> Any:
    """Call an async tool as its policy says; arguments and errors are those of :func:`tool_call`."""
    if policy == "rerun":
        return await fn()
    if isinstance(policy, Effect):
        with entered(scope):
            return await policy.bind(_signature(tool, signature), tool).acall(**arguments)
    name = _name(tool, place)
    _tell_repeat(scope, name)
    return await aleaf(scope, name, arguments, fn, on_change=on_change)


def _name(tool: str, place: str) -> str:
    return f"tool {tool} {place}" if place else f"tool {tool}"


def _signature(tool: str, function: Callable[..., Any] | None) -> Callable[..., Any]:
    if function is None:
        raise InvalidArgument(
            f"tool {tool!r} has an effect as its policy, and no function whose parameters it could be bound to. It was not called."
        )
    return function


def _tell_repeat(scope: Scope, name: str) -> None:
    if was_in_flight(scope, name):
        logging.getLogger("letitloop").warning(
            "letitloop: %s of run %s was being carried out when the last process died, and is called again: it may have happened. "
            "If a repeat hurts, give it an effect as its policy.",
            name,
            scope.run.id,
        )
