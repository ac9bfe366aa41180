"""Ends of a run that no call of it tells of: an interruption, an error of a step callback.

One is recorded as a failure of the run, at the point where it came. If the program went on with something else, it is history, and
comes at the same point again; if the process died with it, or the same run was called again, the run goes on there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from letitloop.integration.open_leaves import OpenLeaf
from letitloop.runs.identity import step_key
from letitloop_smolagents._stop import as_it_was

if TYPE_CHECKING:
    from letitloop.runs.scope import Scope

__all__ = ["Ends"]


class Ends:
    """The ends of one run.

    Args:
        scope: the run's.
    """

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._taken: dict[str, int] = {}
        self._answered: set[str] = set()

    def known(self, point: str) -> Exception | None:
        """Return the error that ended the run at a point, if the program survived it."""
        scope = self._scope
        while step_key(scope.prefix + point.encode(), self._taken.get(point, 0) + 1) in scope.run.journal.index:
            leaf = self._leaf(point)
            if not leaf.known:
                leaf.record(None, wait=False)  # it ended nothing: the run goes on, and what follows must not make it history
                continue
            try:
                leaf.answer()
            except Exception as exc:
                self._answered.add(point)
                return as_it_was(exc)
        return None

    def note(self, point: str, error: Exception) -> None:
        """Record that an error ends the run at a point, if that is not on record.

        Raises:
            LogPoisoned: it cannot be recorded.
        """
        if point not in self._answered and not self._scope.run.halted:  # what halted the run is told to the caller instead
            self._leaf(point).fail(error)

    def _leaf(self, point: str) -> OpenLeaf:
        self._taken[point] = self._taken.get(point, 0) + 1
        return OpenLeaf(self._scope, point, {})
