"""Which parts of an agent or a team are replaced, and by what."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NoReturn

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
from autogen_core.memory import ListMemory, Memory
from autogen_core.models import ChatCompletionClient
from autogen_core.tools import BaseTool, Workbench

from letitloop.errors import InvalidArgument
from letitloop.integration.patching import Patches
from letitloop.runs.run import Call
from letitloop.runs.scope import current
from letitloop_autogen.driving import Member, in_stopped_run
from letitloop_autogen.kept import durable_change
from letitloop_autogen.leaves import (
    DurableExecutor,
    DurableMemory,
    DurableTermination,
    durable_approval,
    durable_input,
    durable_selector,
)
from letitloop_autogen.managers import begin_anew
from letitloop_autogen.models import DurableModelClient, count_replayed
from letitloop_autogen.noise import be_quiet
from letitloop_autogen.parts import Parts, Place, attributes
from letitloop_autogen.states import Contents, States
from letitloop_autogen.turns import durable_reply, durable_run, durable_run_stream, durable_turn
from letitloop_autogen.workbenches import DurableStaticWorkbench, DurableWorkbench, durable_workbench

if TYPE_CHECKING:
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


_STAND_INS = (DurableModelClient, DurableStaticWorkbench, DurableWorkbench, DurableExecutor, DurableMemory)
_CALLERS = (ChatCompletionClient, Workbench, CodeExecutor, Memory)
"""What makes calls that are recorded."""


class Wrapping:
    """The agents and teams of one serializer.

    Args:
        shared: what they share.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._patches = Patches()
        self._members: dict[int, tuple[Any, Member]] = {}
        self._stand_ins: dict[tuple[int, int, bool], Any] = {}
        self._memories: dict[int, dict[int, int]] = {}
        self._numbers: dict[str, int] = {}
        be_quiet(in_stopped_run)

    def undo(self) -> None:
        """Give the stock objects back."""
        self._patches.undo()
        for _, member in self._members.values():
            member.look = member.changed = lambda: None
        self._members.clear()
        self._shared.members.clear()
        self._numbers.clear()
        self._stand_ins.clear()

    def begin(self, one: Any, name: str | None = None) -> None:
        """Wrap an agent or a team with all that is found in it; if something is refused, nothing is changed."""
        patched, members = len(self._patches), len(self._members)
        try:
            self.wrap(one, name)
        except BaseException:
            self._patches.undo(patched)
            for key in list(self._members)[members:]:
                self._shared.members.pop(self._members.pop(key)[1].key, None)
            self._numbers.clear()
            raise

    def wrap(self, one: Any, name: str | None = None, home: Member | None = None, *, guest: bool = False) -> None:
        """Wrap an agent or a team; once."""
        if id(one) in self._members:
            member = self._members[id(one)][1]
            if member.guest and not guest:  # it was found inside another one before
                member.guest, member.home = False, home
            return
        owner = getattr(getattr(one, "run_stream", None), "letitloop_session", None)
        if owner is not None:
            if guest:
                return
            raise InvalidArgument(
                f"{one.name!r} is wrapped by the session {owner!r} already. Nothing was changed. Use that one, or its unwrap()."
            )
        if getattr(one, "_initialized", False) and isinstance(one, Team):
            raise InvalidArgument(
                f"team {one.name!r} has been run or reset before it was wrapped: AutoGen has handed its model client, conditions "
                "and functions to its manager, where they cannot be replaced. Nothing was changed. Wrap a team before its first "
                "run; make a new one of the same agents for this."
            )
        member = Member(self._shared, name or str(one.name), States(one), home, guest=guest)
        self._members[id(one)] = one, member
        self._give_key(member)
        self._patches.add(one, "__deepcopy__", lambda _: self._refuse_copy(one))
        member.ordered = home is not None and home.side_by_side
        if isinstance(one, Team):
            member.team, member.begin_anew = True, lambda: begin_anew(one)
            self._wrap_team(one, member)
        else:
            self._wrap_agent(one, member)

    def _give_key(self, member: Member) -> None:
        """Let records find an agent in each life: by its name, and its place among those of that name."""
        where, known, number = current.get(), self._shared.members, self._numbers.get(member.name, 1)
        if isinstance(where, Call):
            member.made_in = where.key
            return
        while (key := member.name if number == 1 else f"{member.name} {number}") in known:
            number += 1
        member.key, known[key], self._numbers[member.name] = key, member, number

    def _refuse_copy(self, one: Any) -> NoReturn:
        raise InvalidArgument(
            f"{one.name!r} is wrapped by the session {self._shared.session.id!r}, and was to be copied: the original would do what "
            "a copy is asked, in its own place in the log. Nothing was copied. Copy it before it is wrapped, or unwrap() first."
        )

    def _wrap_agent(self, agent: Any, member: Member) -> None:
        self._replace_method(agent, "on_messages", durable_reply, member)
        self._replace_method(agent, "on_messages_stream", durable_turn, member)
        self._wrap_runs(agent, member)
        self._replace_method(agent, "on_reset", durable_change, member)
        if isinstance(agent, UserProxyAgent):
            self._patches.replace(agent, "input_func", lambda stock: durable_input(stock, member))
            self._patches.replace(agent, "_is_async", lambda _: True)
        if isinstance(agent, CodeExecutorAgent) and agent._approval_func is not None:
            self._patches.replace(agent, "_approval_func", lambda stock: durable_approval(stock, member))
            self._patches.replace(agent, "_approval_func_is_async", lambda _: True)
        self._wrap_parts(agent, member)

    def _wrap_team(self, team: Any, member: Member) -> None:
        member.side_by_side = type(team) not in _ONE_BY_ONE
        self._wrap_runs(team, member)
        self._replace_method(team, "reset", durable_change, member)
        for attribute in ("_selector_func", "_candidate_func"):
            if getattr(team, attribute, None) is not None:
                self._replace_selector(team, attribute, member)
        self._wrap_parts(team, member)
        condition = getattr(team, "_termination_condition", None)
        if isinstance(condition, TerminationCondition):
            wrapped = self._condition(condition, member, [0])
            if wrapped is not condition:
                self._patches.replace(team, "_termination_condition", lambda _: wrapped)

    def _wrap_runs(self, one: Any, member: Member) -> None:
        self._replace_method(one, "run", durable_run, member)
        self._replace_method(one, "run_stream", durable_run_stream, member)
        self._replace_method(one, "load_state", durable_change, member)

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

    def _wrap_parts(self, one: Any, member: Member) -> None:
        """Replace what makes calls, wherever it lies in an object; and look again when it is asked to."""
        seen: dict[str, Any] = {}

        def look(known: dict[str, Any]) -> None:
            parts = Parts(
                str(one.name),
                self._patches,
                lambda value, place: self._stand_in(value, place, member),
                lambda value: isinstance(value, _CALLERS),
            )
            for name, value in list(attributes(one)):
                if known.get(name, known) is not value:
                    parts.attribute(one, name, value)
                    seen[name] = getattr(one, name, None)

        member.look = lambda: look({})
        member.changed = lambda: look(seen)
        look({})

    def _stand_in(self, value: Any, place: Place, member: Member) -> Any:
        """Return what stands in for a value at a place, which may be the value itself; None: look into it."""
        if isinstance(value, (ChatAgent, Team)):
            self.wrap(value, home=member, guest=place is Place.DEEP)
        elif isinstance(value, TaskRunnerTool):
            self.wrap(value._task_runner, home=member, guest=place is Place.DEEP)
        elif isinstance(value, _STAND_INS):
            return self._stands_already(value, place, member)
        elif isinstance(value, _CALLERS):
            return self._new(value, place, member)
        elif not isinstance(value, (BaseTool, TerminationCondition)):
            return None
        return value  # pyright: ignore[reportUnknownVariableType]  # a tool of any arguments

    def _stands_already(self, value: Any, place: Place, member: Member) -> Any:
        other: Member = value._member
        if place is Place.OWN and other is not member:
            return self._new(value._inner, place, member)  # an agent that was given what another one has
        if other.shared is not self._shared:
            raise InvalidArgument(
                f"{member.name!r} holds a {type(value._inner).__name__} in a container or a helper object that the session "
                f"{other.shared.session.id!r} has wrapped. Nothing was changed. Wrap all agents that share it by one serializer, "
                "or give each a container of its own."
            )
        return value

    def _new(self, value: Any, place: Place, member: Member) -> Any:
        key = id(member), id(value), place is not Place.OWN
        if key not in self._stand_ins:
            self._stand_ins[key] = made = self._made(value, member)
            made._shared_part = place is not Place.OWN
        return self._stand_ins[key]

    def _made(self, value: Any, member: Member) -> Any:
        names = self._shared.names
        if isinstance(value, ChatCompletionClient):
            for method in ("total_usage", "actual_usage"):
                self._patches.replace(value, method, lambda stock: count_replayed(stock, value))
            return DurableModelClient(value, member)
        if isinstance(value, CodeExecutor):
            names.other("execute_code")
            return DurableExecutor(value, member)
        if isinstance(value, Memory):
            numbers = self._memories.setdefault(id(member), {})
            number = numbers.setdefault(id(value), len(numbers))
            if isinstance(value, ListMemory):
                self._hold(value, f"memory {number} of {member.name}")
            return DurableMemory(value, member, number)
        workbench = durable_workbench(value, member)
        if isinstance(workbench, DurableStaticWorkbench):
            names.static(value)
            for tool in value._tools:
                self._stand_in(tool, Place.OWN, member)
            workbench.prepare()  # a policy that does not fit a tool is refused here
        else:
            names.dynamic(value)
        return workbench

    def _hold(self, memory: ListMemory, name: str) -> None:
        """Let a recorded call that changes a memory record how: it is answered without changing it in later lives."""
        if hasattr(memory.add, "letitloop_session"):
            return
        keeper = Member(self._shared, name, Contents(memory))
        self._members[id(memory)] = memory, keeper
        self._give_key(keeper)
        self._patches.add(memory, "__deepcopy__", lambda memo: _copied(memory, memo))
        for method in ("add", "clear"):
            self._replace_method(memory, method, durable_change, keeper)

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


def _copied(memory: ListMemory, memo: dict[int, Any]) -> ListMemory:
    """Return a deep copy of a memory as it is without us."""
    twin = memo[id(memory)] = object.__new__(type(memory))
    held = {name: value for name, value in vars(memory).items() if name not in ("add", "clear", "__deepcopy__")}
    vars(twin).update(copy.deepcopy(held, memo))
    return twin
