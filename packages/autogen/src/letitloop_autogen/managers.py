"""A team's manager after a run that came to no end of its own: what AutoGen leaves in it makes later runs too short, silently."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from autogen_agentchat.teams._group_chat._base_group_chat_manager import BaseGroupChatManager
from autogen_agentchat.teams._group_chat._graph._digraph_group_chat import GraphFlowManager
from autogen_core import AgentId, SingleThreadedAgentRuntime

from letitloop_autogen.streams import GRACE

if TYPE_CHECKING:
    from autogen_agentchat.base import Team

__all__ = ["begin_anew", "manager_of"]


async def begin_anew(team: Team) -> None:
    """Let the next run of a team begin as after a run that its manager has ended: with the same conversation, counting anew.

    A manager waits until all whom it asked have answered, counts turns, asks conditions that count, and takes the nodes of a graph
    off a list. It puts that right when it ends a run, and not when an error or a cancellation does; ``reset()`` forgets the
    speakers, too.
    """
    manager = await manager_of(team)
    if manager is None:
        return
    await _quieten(team)
    manager._active_speakers.clear()
    manager._current_turn = 0
    if isinstance(manager, GraphFlowManager):
        manager._reset_execution_state()
        manager._triggered_activation_groups.clear()
    if manager._termination_condition is not None:
        await manager._termination_condition.reset()


async def _quieten(team: Any) -> None:
    """Forget what is left in a team's own runtime: a second failure of the run would end the next one before it begins."""
    runtime: Any = team._runtime
    if not team._embedded_runtime or not isinstance(runtime, SingleThreadedAgentRuntime) or runtime._run_context is not None:
        return
    if runtime._background_tasks:
        await asyncio.wait(set(runtime._background_tasks), timeout=GRACE)
    runtime._background_exception = None
    runtime._message_queue = type(runtime._message_queue)()


async def manager_of(team: Any) -> BaseGroupChatManager | None:
    """Return the manager of a team that has been run; None of a team of another make, or on a runtime elsewhere."""
    try:
        where = AgentId(type=team._group_chat_manager_topic_type, key=team._team_id)
        manager: BaseGroupChatManager = await team._runtime.try_get_underlying_agent_instance(where, BaseGroupChatManager)
    except Exception:
        return None
    return manager
