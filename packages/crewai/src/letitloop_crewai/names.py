"""The names in ``tools=``, held against the tools there are: a policy whose name is misspelt guards nothing."""

from __future__ import annotations

import inspect
from threading import Lock
from typing import TYPE_CHECKING, Any

from crewai.tools.agent_tools.base_agent_tools import BaseAgentTool
from crewai.utilities.string_utils import sanitize_tool_name

from letitloop.effects.guard import Effect
from letitloop.errors import InvalidArgument
from letitloop_crewai.telling import tell

if TYPE_CHECKING:
    from collections.abc import Iterable

    from letitloop.integration.policies import Policies

__all__ = ["Names", "effect_of", "names_of"]


def names_of(tool: Any) -> list[str]:
    """Return what a tool may be called in ``tools=``: its name, as the model knows it, and as its MCP server does."""
    found = [str(tool.name), sanitize_tool_name(tool.name), getattr(tool, "original_tool_name", None)]
    return [one for one in found if isinstance(one, str)]


def effect_of(function: Any) -> Effect | None:
    """Return the effect that a tool's function was decorated with."""
    found = getattr(inspect.unwrap(function, stop=lambda one: isinstance(getattr(one, "effect", None), Effect)), "effect", None)
    return found if isinstance(found, Effect) else None


class Names:
    """The tools of all crews and agents of one handler, and the agents that learn theirs from a server when they work."""

    def __init__(self) -> None:
        self._known: dict[str, bool] = {}  # by name, whether something guards it besides the policies
        self._unlisted: dict[int, Any] = {}
        self._told: set[str] = set()
        self._guard = Lock()

    def agent(self, agent: Any) -> None:
        """Note an agent; its tools are noted by :meth:`tools`."""
        if getattr(agent, "mcps", None) or getattr(agent, "apps", None):
            with self._guard:
                self._unlisted.setdefault(id(agent), agent)

    def tools(self, tools: Iterable[Any]) -> None:
        """Note tools."""
        for tool in tools or ():
            function = getattr(tool, "func", None) or getattr(tool, "_run", None)
            guarded = isinstance(tool, BaseAgentTool) or (function is not None and effect_of(function) is not None)
            with self._guard:
                self._known.update(dict.fromkeys(names_of(tool), guarded))

    def listed(self, agent: Any) -> None:
        """Note that an agent's servers have told what tools there are."""
        with self._guard:
            if id(agent) in self._unlisted:
                self._unlisted[id(agent)] = None

    def note(self, names: Iterable[str]) -> None:
        """Note tools that a part of the program had which is answered from the log."""
        with self._guard:
            for name in names:
                self._known.setdefault(name, False)

    def found(self, policies: Policies) -> list[str]:
        """Return the names of policies that a tool has."""
        with self._guard:
            return sorted(name for name in policies.tools if name in self._known)

    def check(self, policies: Policies, *, ended: bool = False, silent: bool = False) -> None:
        """Look for policies of tools that there are none of.

        Args:
            policies: the handler's.
            ended: a kickoff has come to its end: what no server has told by now guarded nothing in it.
            silent: more tools are still to come, as in a flow: what none has yet is not told.

        Raises:
            InvalidArgument: a tool has nearly that name, and no policy.
        """
        with self._guard:
            known = dict(self._known)
            unlisted = not ended and any(one is not None for one in self._unlisted.values())
        for name, near in policies.misnamed(known, [name for name, guarded in known.items() if guarded]).items():
            what = f"tools={{{name!r}: …}}: no tool of a wrapped crew or flow has that name"
            if near and not unlisted and not ended:
                raise InvalidArgument(
                    f"{what}, and {near!r} has no policy: is that the one meant? It was not called. Give the tool's name as the "
                    f"model sees it; if it is another tool, give {near!r} a policy too."
                )
            if name not in self._told and not unlisted and not silent:
                self._told.add(name)
                perhaps = f" {near!r} has no policy: is that the one meant?" if near else ""
                tell(f"{what} so far, so that policy guards nothing.{perhaps}", loud=True)
