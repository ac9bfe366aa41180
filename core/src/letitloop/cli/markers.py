"""What the ledger knows of the markers that a run's log names: completed, open, or unfinished earlier attempts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from letitloop.cli.common import iso, moment, plain
from letitloop.effects.marker import MarkerState, marker_states
from letitloop.errors import StoreError

if TYPE_CHECKING:
    from letitloop.runs.history import RunInfo
    from letitloop.store.protocol import Store

__all__ = ["Markers"]


@dataclass
class Markers:
    """A run's markers.

    Attributes:
        info: the run.
        states: what the ledger knows of them, by their keys.
        damage: why the ledger could not be read; empty if it could.
        status: what became of the block that each record of a marker tells of, by the record's seq: ``"done"``, ``"open"``,
            ``"unfinished"`` (an earlier attempt), or ``"effect"`` where the ledger does not know the marker.
    """

    info: RunInfo
    states: dict[str, MarkerState] = field(default_factory=dict[str, MarkerState])
    damage: str = ""
    status: dict[int, str] = field(default_factory=dict[int, str])

    @classmethod
    def of(cls, store: Store, info: RunInfo) -> Markers:
        """Look a run's markers up; a run without any needs no ledger."""
        found = cls(info)
        effects = [step for step in info.steps if step.status == "effect"]
        if effects and info.instance:
            try:
                found.states = marker_states(store.ledger, info.instance)
            except StoreError as error:
                found.damage = str(error)
        last = {step.key: step.seq for step in effects}
        for step in effects:
            state = found.states.get(step.key)
            known = "effect" if state is None else "done" if state.state == "DONE" else "open"
            found.status[step.seq] = known if step.seq == last[step.key] or state is None else "unfinished"
        return found

    @property
    def open(self) -> dict[str, MarkerState]:
        """Those whose block was entered and not completed."""
        return {key: state for key, state in self.states.items() if state.state != "DONE"}

    def inside(self, state: MarkerState) -> bool:
        """Tell whether the process that drives the run now is inside the block."""
        return self.info.status == "running" and not state.error and state.owner == f"pid {self.info.pid}"

    def uncertain(self) -> list[str]:
        """Return the keys of those whose action may or may not have happened."""
        return [key for key, state in self.open.items() if not self.inside(state)]

    def lines(self) -> list[tuple[str, str]]:
        """Say of each open marker what that means: its key and the sentence."""
        return [(key, self._meaning(state)) for key, state in self.open.items()]

    def _meaning(self, state: MarkerState) -> str:
        attempt = f"attempt {state.attempts}, {moment(state.started)}, by {state.owner}"
        if self.inside(state):
            return f"its block is being executed now ({attempt})."
        how = f"left by {state.error}" if state.error else "not completed"
        told = "" if self.info.status == "finished" else " The next run is told (marker.uncertain)."
        return plain(f"its block was entered ({attempt}) and {how}; its action may or may not have happened.{told}")

    def as_data(self) -> dict[str, Any]:
        """Return the markers by their keys as data."""
        return {
            key: {
                "state": "done" if state.state == "DONE" else "open",
                "attempts": state.attempts,
                "owner": state.owner,
                "started": iso(state.started),
                "finished": iso(state.finished),
                "error": state.error or None,
            }
            for key, state in self.states.items()
        }
