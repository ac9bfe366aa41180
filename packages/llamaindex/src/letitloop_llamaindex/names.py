"""The names in ``tools=``, held against the tools there are: a policy whose name is misspelt guards nothing."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from letitloop.effects.guard import Effect
from letitloop.errors import InvalidArgument
from letitloop_llamaindex.late import tools_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from workflows.workflow import Workflow

    from letitloop.integration.policies import Policies, Policy

__all__ = ["Names"]


class Names:
    """The names of the tools of all workflows of one runtime.

    Attributes:
        policies: the runtime's.
    """

    def __init__(self, policies: Policies) -> None:
        self.policies = policies
        self._workflows: WeakSet[Any] = WeakSet()
        self._met: dict[str, bool] = {}
        self._told: set[str] = set()

    def track(self, workflow: Workflow) -> None:
        """Note a workflow that has this runtime."""
        self._workflows.add(workflow)

    def untrack(self, workflow: Workflow) -> None:
        """A workflow has another runtime now."""
        self._workflows.discard(workflow)

    def met(self, names: Iterable[str]) -> None:
        """Note tools that an agent has got."""
        for name in names:
            self._met.setdefault(name, False)

    def called(self, name: str, policy: Policy) -> None:
        """Note a tool that a step calls by hand.

        Raises:
            InvalidArgument: ``tools=`` has an effect for it, and it has none.
        """
        self._met[name] = isinstance(policy, Effect)
        if isinstance(self.policies.tools.get(name), Effect) and not isinstance(policy, Effect):
            raise InvalidArgument(
                f"durable_tool {name!r} has the policy {policy!r}, and tools= of the runtime has an effect of that name: tools= is "
                "for the tools of agents. It was not called. Give the tool its policy: durable_tool(fn, effect(…))."
            )

    def check(self) -> None:
        """Look for policies of tools that there are none of, before a run.

        Raises:
            InvalidArgument: a tool has nearly that name, and no policy.
        """
        if self.policies.tools:
            self._check(ended=False)

    def check_again(self) -> None:
        """Look for them after a run whose steps have all been carried out here: by now every tool is known."""
        if self.policies.tools:
            self._check(ended=True)

    def _check(self, *, ended: bool) -> None:
        tools = [tools_of(workflow) for workflow in list(self._workflows)]
        complete, late = None not in tools, {} in tools
        known = {name: guarded for found in (*filter(None, tools), self._met) for name, guarded in found.items()}
        for name, near in self.policies.misnamed(known, [name for name, guarded in known.items() if guarded]).items():
            what = f"tools={{{name!r}: …}}: no agent of this runtime has a tool of that name"
            if near and complete and not ended:
                raise InvalidArgument(
                    f"{what}, and {near!r} has no policy: is that the one meant? Nothing was run. Give the tool's name as the "
                    "model sees it."
                )
            if (near or ended or (complete and not late)) and name not in self._told:
                self._told.add(name)
                perhaps = f" {near!r} has no policy: is that the one meant?" if near else ""
                logging.getLogger("letitloop").warning("letitloop: %s so far, so that policy guards nothing.%s", what, perhaps)
