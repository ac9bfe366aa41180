"""What an agent or a team keeps from run to run, as plain data: what changed in it, and how to change another one so."""

from __future__ import annotations

import copy
from collections import deque
from typing import TYPE_CHECKING, Any

from autogen_agentchat.agents import AssistantAgent, BaseChatAgent
from autogen_agentchat.base import Team
from autogen_core.memory import MemoryQueryResult
from autogen_core.model_context import ChatCompletionContext

from letitloop_autogen.managers import manager_of
from letitloop_autogen.values import packed_memories, unpacked_memories

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autogen_core.memory import ListMemory

__all__ = ["Contents", "States", "difference"]

_IN_CONTEXTS = (BaseChatAgent.save_state, AssistantAgent.save_state)
"""What says no more of an agent than its contexts do."""
_PLAIN = (str, int, float, bool, bytes, type(None))


class States:
    """The state of an agent or a team.

    Args:
        one: the agent or the team.
    """

    def __init__(self, one: Any) -> None:
        self._one = one
        self._saves = isinstance(one, Team) or type(one).save_state not in _IN_CONTEXTS

    async def now(self) -> dict[str, Any]:
        """Return it. The agents of a team are none of it: they have states of their own."""
        found: dict[str, Any] = {}
        if self._saves:
            found["own"] = _without_agents(copy.deepcopy(dict(await self._one.save_state())))
        for name, context in (await self._contexts()).items():
            found[name] = copy.deepcopy(dict(await context.save_state()))
        return found

    async def change(self, change: Any) -> bool:
        """Change it as it was changed before; return whether it was then what it is now."""
        fits: list[bool] = [True]
        new = _changed(await self.now(), change, fits)
        contexts, parts = await self._contexts(), change[1]
        for name in [one for one in new if one in parts]:
            if name == "own":
                await self._one.load_state(_with_agents(new[name], await self._one.save_state()))
            elif name in contexts:
                await contexts[name].load_state(new[name])
        return fits[0]

    def unsaved(self) -> dict[str, Any]:
        """Return a mark of what an agent keeps, as far as it can be seen, and does not tell when its state is saved."""
        if self._saves or type(self._one).__module__.partition(".")[0] in ("autogen_agentchat", "autogen_ext"):
            return {}
        marks: dict[str, Any] = {}
        for name, value in vars(self._one).items():
            if isinstance(value, _PLAIN):
                marks[name] = value
            elif isinstance(value, (list, tuple, set, frozenset, deque)):
                marks[name] = [id(item) for item in value]  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
            elif isinstance(value, dict):
                marks[name] = [(key, id(item)) for key, item in value.items()]  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
        return marks

    async def _contexts(self) -> dict[str, ChatCompletionContext]:
        """Return the conversations that an agent or a team's manager holds: many a ``save_state`` leaves them out."""
        holder = await manager_of(self._one) if isinstance(self._one, Team) else self._one
        held: dict[str, Any] = getattr(holder, "__dict__", {})
        return {f"context {name}": value for name, value in held.items() if isinstance(value, ChatCompletionContext)}


class Contents(States):
    """What a list memory holds, which a process takes with it when it dies.

    Args:
        memory: the memory.
    """

    def __init__(self, memory: ListMemory) -> None:
        self._memory = memory

    async def now(self) -> dict[str, Any]:
        return {"contents": copy.deepcopy(packed_memories(MemoryQueryResult(results=self._memory.content)))}

    async def change(self, change: Any) -> bool:
        fits: list[bool] = [True]
        now = await self.now()
        held, new = now["contents"], _changed(now, change, fits)["contents"]
        if new[: len(held)] == held:
            self._memory.content.extend(unpacked_memories(new[len(held) :]).results)
        else:
            self._memory.content = unpacked_memories(new).results
        return fits[0]

    def unsaved(self) -> dict[str, Any]:
        return {}


def difference(before: Any, after: Any) -> list[Any] | None:
    """Return what changed: a conversation that has grown is not told again from its beginning.

    >>> difference({"said": ["a"], "turn": 1}, {"said": ["a", "b"], "turn": 2})
    ['in', {'said': ['+', 1, ['b']], 'turn': ['=', 2]}, []]
    """
    if before == after:
        return None
    if isinstance(before, dict) and isinstance(after, dict):
        parts = {
            name: ["=", value] if name not in before else difference(before[name], value)
            for name, value in after.items()  # pyright: ignore[reportUnknownVariableType]
        }
        return ["in", {name: one for name, one in parts.items() if one is not None}, [one for one in before if one not in after]]
    if isinstance(before, list) and isinstance(after, list) and after[: len(before)] == before:
        return ["+", len(before), after[len(before) :]]
    return ["=", after]


def _changed(value: Any, change: Any, fits: list[bool]) -> Any:
    kind, *rest = change
    if kind == "=":
        return rest[0]
    if kind == "+":
        length, tail = rest
        have: list[Any] = value if isinstance(value, list) else []
        fits[0] &= isinstance(value, list) and len(have) == length
        return [*have, *tail]
    parts, gone = rest
    fits[0] &= isinstance(value, dict)
    new: dict[str, Any] = dict(value) if isinstance(value, dict) else {}
    for name, part in parts.items():
        fits[0] &= name in new or part[0] == "="
        new[name] = _changed(new.get(name), part, fits)
    return {name: one for name, one in new.items() if name not in gone}


def _without_agents(state: dict[str, Any]) -> dict[str, Any]:
    for one in state.get("agent_states", {}).values():
        if "message_buffer" in one:
            one.pop("agent_state", None)
    return state


def _with_agents(state: dict[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return a team's state with those of its agents, as they are now."""
    current = now.get("agent_states", {})
    whole = {
        name: {**one, "agent_state": current[name]["agent_state"]} if "message_buffer" in one and name in current else one
        for name, one in state.get("agent_states", {}).items()
    }
    return {**state, "agent_states": whole} if whole else state
