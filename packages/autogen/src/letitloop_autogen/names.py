"""The names in ``tools=``, held against the tools there are: a policy whose name is misspelt guards nothing."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from letitloop.errors import InvalidArgument
from letitloop_autogen.tools import guarded_by

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autogen_core.tools import StaticWorkbench, Workbench

    from letitloop.integration.policies import Policies

__all__ = ["Names"]


class Names:
    """The names of the tools of all wrapped agents."""

    def __init__(self) -> None:
        self._static: list[StaticWorkbench] = []
        self._unlisted: list[Workbench] = []
        self._others: set[str] = set()
        self._told: set[str] = set()

    def static(self, workbench: StaticWorkbench) -> None:
        """Note a workbench whose tools are known at any time."""
        self._static.append(workbench)

    def dynamic(self, workbench: Workbench) -> None:
        """Note a workbench that tells its tools when it is asked."""
        self._unlisted.append(workbench)

    def listed(self, workbench: Workbench, names: Iterable[str], policies: Policies) -> None:
        """Note what such a workbench told.

        Raises:
            InvalidArgument: as :meth:`check`.
        """
        self._others.update(names)
        if any(one is workbench for one in self._unlisted):
            self._unlisted = [one for one in self._unlisted if one is not workbench]
            self.check(policies)

    def other(self, name: str) -> None:
        """Note what has a policy and is in no workbench."""
        self._others.add(name)

    def check(self, policies: Policies) -> None:
        """Look for policies of tools that there are none of.

        Raises:
            InvalidArgument: a tool has nearly that name, and no policy.
        """
        if not policies.tools:
            return
        unguarded, known = set(self._others), set(self._others)
        for workbench in self._static:
            shown = {original: name for name, original in workbench._override_name_to_original.items()}
            for tool in workbench._tools:
                known.add(name := shown.get(tool.name, tool.name))
                if guarded_by(tool) is None:
                    unguarded.add(name)
        for name, near in policies.misnamed(known, known - unguarded).items():
            what = f"tools={{{name!r}: …}}: no wrapped agent has a tool of that name"
            if near and not self._unlisted:
                raise InvalidArgument(
                    f"{what}, and {near!r} has no policy: is that the one meant? Nothing was done. Give the tool's name as the "
                    "model sees it."
                )
            if name not in self._told and (near or not self._unlisted):
                self._told.add(name)
                perhaps = f" {near!r} has no policy: is that the one meant?" if near else ""
                logging.getLogger("letitloop").warning("letitloop: %s so far, so that policy guards nothing.%s", what, perhaps)
