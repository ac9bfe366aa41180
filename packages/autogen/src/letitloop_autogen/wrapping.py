"""Which attributes of an agent or a team are replaced, and by what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autogen_agentchat.agents import CodeExecutorAgent, UserProxyAgent
from autogen_agentchat.base import ChatAgent, Team, TerminationCondition
from autogen_agentchat.base._termination import AndTerminationCondition, OrTerminationCondition
from autogen_agentchat.conditions import (
    FunctionCallTermination,
    HandoffTermination,
    MaxMessageTermination,
    SourceMatchTermination,
    StopMessageTermination,
    TextMentionTermination,
    TextMessageTermination,
    TokenUsageTermination,
)
from autogen_agentchat.teams import MagenticOneGroupChat, RoundRobinGroupChat, SelectorGroupChat, Swarm
from autogen_agentchat.tools._task_runner_tool import TaskRunnerTool
from autogen_core.code_executor import CodeExecutor
from autogen_core.memory import Memory
from autogen_core.models import ChatCompletionClient
from autogen_core.tools import StaticWorkbench, Workbench

from letitloop.errors import InvalidArgument
from letitloop.integration.patching import Patches
from letitloop_autogen.driving import Member
from letitloop_autogen.leaves import (
    DurableExecutor,
    DurableMemory,
    DurableTermination,
    durable_approval,
    durable_input,
    durable_selector,
)
from letitloop_autogen.models import DurableModelClient, count_replayed
from letitloop_autogen.turns import durable_reply, durable_run, durable_run_stream, durable_turn
from letitloop_autogen.workbenches import durable_workbench

if TYPE_CHECKING:
    from collections.abc import Callable

    from letitloop_autogen.driving import Shared

__all__ = ["Wrapping"]

_ONE_BY_ONE = (MagenticOneGroupChat, RoundRobinGroupChat, SelectorGroupChat, Swarm)
"""Teams in which one agent speaks at a time."""
_SAY_THE_SAME = (
    FunctionCallTermination,
    HandoffTermination,
    MaxMessageTermination,
    SourceMatchTermination,
    StopMessageTermination,
    TextMentionTermination,
    TextMessageTermination,
    TokenUsageTermination,
)
"""Conditions that depend on the messages alone; they are asked again."""


def _items(mapping: Any) -> list[tuple[Any, Any]]:
    return list(mapping.items())


def _always(value: Any) -> Callable[[Any], Any]:
    return lambda _: value


class Wrapping:
    """The agents and teams of one serializer.

    Args:
        shared: what they share.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._patches = Patches()
        self._members: dict[int, tuple[Any, Member]] = {}

    def undo(self) -> None:
        """Give the stock objects back."""
        self._patches.undo()
        self._members.clear()

    def wrap(self, one: Any, name: str | None = None, home: Member | None = None) -> Member:
        """Wrap an agent or a team, and what is found in it; once."""
        if id(one) in self._members:
            return self._members[id(one)][1]
        owner = getattr(getattr(one, "run_stream", None), "letitloop_session", None)
        if owner is not None:
            raise InvalidArgument(
                f"{one.name!r} is wrapped by the session {owner!r} already. Nothing was changed. Use that one, or its unwrap()."
            )
        member = Member(self._shared, name or str(one.name), home)
        self._members[id(one)] = one, member
        member.ordered = home is not None and home.side_by_side
        if isinstance(one, Team):
            self._wrap_team(one, member)
        else:
            self._wrap_agent(one, member)
        return member

    def _wrap_agent(self, agent: Any, member: Member) -> None:
        self._replace_method(agent, "on_messages", durable_reply, member)
        self._replace_method(agent, "on_messages_stream", durable_turn, member)
        self._wrap_runs(agent, member)
        if isinstance(agent, UserProxyAgent):
            self._patches.replace(agent, "input_func", lambda stock: durable_input(stock, member))
            self._patches.replace(agent, "_is_async", lambda _: True)
        if isinstance(agent, CodeExecutorAgent) and agent._approval_func is not None:
            self._patches.replace(agent, "_approval_func", lambda stock: durable_approval(stock, member))
            self._patches.replace(agent, "_approval_func_is_async", lambda _: True)
        self._wrap_attributes(agent, member)

    def _wrap_team(self, team: Any, member: Member) -> None:
        member.side_by_side = type(team) not in _ONE_BY_ONE
        self._wrap_runs(team, member)
        for attribute in ("_selector_func", "_candidate_func"):
            if getattr(team, attribute, None) is not None:
                self._replace_selector(team, attribute, member)
        self._wrap_attributes(team, member)
        condition = getattr(team, "_termination_condition", None)
        if isinstance(condition, TerminationCondition):
            wrapped = self._condition(condition, member, [0])
            if wrapped is not condition:
                self._patches.replace(team, "_termination_condition", lambda _: wrapped)

    def _wrap_runs(self, one: Any, member: Member) -> None:
        self._replace_method(one, "run", durable_run, member)
        self._replace_method(one, "run_stream", durable_run_stream, member)

    def _replace_method(self, one: Any, name: str, make: Any, member: Member) -> None:
        def replacement(stock: Any) -> Any:
            from functools import wraps

            method: Any = wraps(stock)(make(stock, member))
            method.letitloop_session = self._shared.session.id
            return method

        self._patches.replace(one, name, replacement)

    def _replace_selector(self, team: Any, attribute: str, member: Member) -> None:
        self._patches.replace(team, attribute, lambda stock: durable_selector(stock, member, attribute.strip("_")))

    # --- what is found in an object ------------------------------------------------------------------------------------------

    def _wrap_attributes(self, one: Any, member: Member) -> None:
        for attribute, value in _items(one.__dict__):
            found = self._found(value, member)
            if found is not value:
                self._patches.replace(one, attribute, _always(found))

    def _found(self, value: Any, member: Member) -> Any:
        """Return what stands in for an attribute's value, which is the value itself if nothing does."""
        if type(value) is dict:
            for _, item in _items(value):
                self._one(item, member, 0)
            return value  # pyright: ignore[reportUnknownVariableType]  # a dictionary of anything
        if type(value) not in (list, tuple):
            return self._one(value, member, 0)
        items = [self._one(item, member, number) for number, item in enumerate(value)]
        return value if all(new is old for new, old in zip(items, value, strict=True)) else type(value)(items)

    def _one(self, value: Any, member: Member, number: int) -> Any:
        if isinstance(value, (ChatAgent, Team)):
            self.wrap(value, home=member)
        elif isinstance(value, TaskRunnerTool):
            self.wrap(value._task_runner, home=member)
        elif isinstance(value, ChatCompletionClient):
            for method in ("total_usage", "actual_usage"):
                self._patches.replace(value, method, lambda stock: count_replayed(stock, value))
            return DurableModelClient(value, member)
        elif isinstance(value, Workbench):
            for tool in value._tools if isinstance(value, StaticWorkbench) else ():
                self._one(tool, member, 0)
            return durable_workbench(value, member)
        elif isinstance(value, CodeExecutor):
            return DurableExecutor(value, member)
        elif isinstance(value, Memory):
            return DurableMemory(value, member, number)
        return value

    def _condition(self, condition: Any, member: Member, count: list[int]) -> TerminationCondition:
        """Return a condition whose parts are recorded where they say something else next time."""
        if isinstance(condition, (AndTerminationCondition, OrTerminationCondition)):
            parts = tuple(self._condition(one, member, count) for one in condition._conditions)
            if any(new is not old for new, old in zip(parts, condition._conditions, strict=True)):
                self._patches.replace(condition, "_conditions", lambda _: parts)
            return condition
        if type(condition) in _SAY_THE_SAME or isinstance(condition, DurableTermination):
            return condition  # type: ignore[no-any-return]  # a condition
        count[0] += 1
        return DurableTermination(condition, member, count[0])
