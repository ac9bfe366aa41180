"""Ends of a run that no call of it tells of: an interruption, an error of a step callback.

One is recorded as a failure of the run, at the point where it came. If the program went on with something else, it is history, and
comes at the same point again; if the process died with it, or the same run was called again, the run goes on there.

A run that is out of steps asks for a last answer instead. If it is given more steps in a later life, it goes on there.
"""

from __future__ import annotations

import logging
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

    def ran_out(self, answers: int) -> None:
        """After so many answers of the model the run has no step left: note it, if that is not on record."""
        leaf = self._leaf(f"out of steps after {answers}")
        if not leaf.known:
            leaf.record(None, wait=False)

    def goes_on(self, answers: int, number: int) -> None:
        """After so many answers the run has a step left, of that number: where it had none, take back what it did instead.

        If an effect was part of that, nothing is: what the model is asked now is a change then.
        """
        scope, journal = self._scope, self._scope.run.journal
        ended = journal.index.get(scope.prefix + f"out of steps after {answers}".encode())
        if ended is None or journal.effects_after(ended, scope.prefix):
            return
        logging.getLogger("letitloop").warning(
            "letitloop: run %s was out of steps before step %d. It has more of them now, and goes on there.", scope.run.id, number
        )
        scope.run.take_back(ended, scope.prefix)

    def _leaf(self, point: str) -> OpenLeaf:
        self._taken[point] = self._taken.get(point, 0) + 1
        return OpenLeaf(self._scope, point, {})
