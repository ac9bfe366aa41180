"""What a user makes once for a program: it wraps agents and teams, and holds the log they are recorded in."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

from autogen_agentchat.base import ChatAgent, Team

from letitloop.errors import InvalidArgument
from letitloop.integration.policies import Policies
from letitloop.integration.sessions import session_from
from letitloop_autogen.driving import Shared
from letitloop_autogen.wrapping import Wrapping

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal

    from typing_extensions import Self

    from letitloop.integration.policies import Policy
    from letitloop.store.protocol import Store

__all__ = ["AutoGenStateSerializer"]

Agent = TypeVar("Agent", bound=ChatAgent)
Group = TypeVar("Group", bound=Team)


class AutoGenStateSerializer:
    """Makes AutoGen agents and teams durable: run again after a crash, they go on where they died.

    Nothing is restored. The stock ``run()`` starts from its first step, and model calls, tool calls, human answers, code
    executions, memory queries and selections that were finished answer from the log. So every state that AutoGen keeps is built by
    AutoGen itself. The same program with the same ``session_id`` goes on; its first ``run()`` is the first run of the session, its
    second the second. A run that had come to its end returns its recorded result.

    Args:
        session_id: the name of this program's log.
        store: a store or a directory; ``LETITLOOP_STORE`` or ``./.letitloop`` by default.
        tools: a policy by tool name: ``"record"`` (at least once, its result recorded), ``"rerun"`` (pure or local: done again on
            replay), or an :func:`letitloop.effect`, carried out by the ledger, whose trusted parameters the model does not see.
        default: the policy of the other tools.
        on_change: what a call that asks something else than the recorded one does: ``"raise"`` :class:`letitloop.StepChanged`,
            ``"rerun"``, or ``"reuse"`` the recorded answer.
        wal_dir: the same as ``store``, by an older name.
        auto_resume: false: this process begins a new log, and leaves the earlier ones of this name as they are.

    Raises:
        InvalidArgument: a policy or an option means nothing.

    Example:
        >>> import asyncio
        >>> from autogen_agentchat.agents import AssistantAgent
        >>> from autogen_ext.models.replay import ReplayChatCompletionClient
        >>> from letitloop.adapters.autogen import AutoGenStateSerializer
        >>> durability = AutoGenStateSerializer(session_id="greeting", store="memory:autogen-example")
        >>> agent = AssistantAgent("greeter", ReplayChatCompletionClient(["Hello!"]))
        >>> result = asyncio.run(durability.wrap_agent(agent).run(task="Say hello."))
        >>> result.messages[-1].content
        'Hello!'
    """

    def __init__(
        self,
        session_id: str,
        *,
        store: Store | str | os.PathLike[str] | None = None,
        tools: Mapping[str, Policy] | None = None,
        default: Policy = "record",
        on_change: Literal["raise", "rerun", "reuse"] = "raise",
        wal_dir: str | os.PathLike[str] | None = None,
        auto_resume: bool = True,
    ) -> None:
        session = session_from(
            session_id, kind="autogen", store=store, wal_dir=wal_dir, on_change=on_change, auto_resume=auto_resume
        )
        self._shared = Shared(session, Policies(dict(tools or {}), default), on_change == "raise")
        self._wrapping = Wrapping(self._shared)

    def __repr__(self) -> str:
        return f"<AutoGenStateSerializer {self.session_id!r}>"

    @property
    def session_id(self) -> str:
        """The name of the log."""
        return self._shared.session.id

    def wrap_agent(self, agent: Agent, agent_name: str | None = None) -> Agent:
        """Make an agent durable, before its first run; once is enough, twice does no harm.

        Args:
            agent: the agent, with what is found in it: its client, workbenches, memories, executor, inner teams, tools that are
                agents or teams. Those that share its client or its tool objects and are not wrapped are untouched.
            agent_name: its name in the log; its own by default.

        Returns:
            The same agent.

        Raises:
            InvalidArgument: it is no agent, or another serializer wraps it.
        """
        if not isinstance(agent, ChatAgent):
            raise InvalidArgument(f"wrap_agent() was given {type(agent).__name__}, which is no agent. Nothing was changed.")
        self._wrapping.begin(agent, agent_name)
        return agent

    def wrap_team(self, team: Group) -> Group:
        """Make a team durable, before its first run: its participants, its manager's model, nested teams.

        Args:
            team: the team.

        Returns:
            The same team.

        Raises:
            InvalidArgument: it is no team, or another serializer wraps it or an agent in it.
        """
        if not isinstance(team, Team):
            raise InvalidArgument(f"wrap_team() was given {type(team).__name__}, which is no team. Nothing was changed.")
        self._wrapping.begin(team)
        return team

    def unwrap(self) -> None:
        """Give the stock agents and teams back: everything that was replaced in them is as it was."""
        self._wrapping.undo()

    def close(self) -> None:
        """Let another process have the session; the process's end does it too."""
        self._shared.session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
