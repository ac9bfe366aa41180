"""What the ledger knows of the markers and intents that a run's log names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from letitloop.cli.common import iso, moment, plain
from letitloop.cli.ledger_at import OPEN, LedgerAt
from letitloop.cli.ledger_view import note, where
from letitloop.effects.marker import MarkerState, marker_states
from letitloop.effects.reading import intents_of_run
from letitloop.errors import StoreError

if TYPE_CHECKING:
    from letitloop.effects.intent import Row
    from letitloop.runs.history import RunInfo, StepInfo
    from letitloop.store.protocol import Store

__all__ = ["Markers"]


@dataclass
class Markers:
    """A run's markers and intents.

    Attributes:
        info: the run.
        states: what the ledger knows of them, by their keys.
        damage: why the ledger could not be read; empty if it could.
        intents: the intents that were begun in the run, or met in it, with what :meth:`LedgerAt.standing` says of each.
        status: what became of what each record of an effect tells of, by the record's seq. Of a marker: ``"done"`` or ``"open"``.
            Of an intent: its state in lower case, ``"unknown"`` also if its owner is gone. Of both: ``"unfinished"`` (an earlier
            attempt), or ``"effect"`` where the ledger knows neither.
    """

    info: RunInfo
    states: dict[str, MarkerState] = field(default_factory=dict[str, MarkerState])
    intents: list[tuple[Row, str]] = field(default_factory=list[tuple["Row", str]])
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
                found._look_up_intents(store, effects)
            except StoreError as error:
                found.damage = str(error)
        last = {step.key: step.seq for step in effects}
        for step in effects:
            known = found._status(step)
            found.status[step.seq] = known if step.seq == last[step.key] or known == "effect" else "unfinished"
        return found

    def _look_up_intents(self, store: Store, effects: list[StepInfo]) -> None:
        place = LedgerAt(store.ledger.partition(":")[2])
        names = [_name(step.key) for step in effects if step.key not in self.states]
        rows = intents_of_run(store.ledger, self.info.id, names) if names else []
        self.intents = [(row, place.standing(row)) for row in rows]

    def _status(self, step: StepInfo) -> str:
        state = self.states.get(step.key)
        if state is not None:
            return "done" if state.state == "DONE" else "open"
        found = [(row, standing) for row, standing in self.intents if row.step_key == step.key]
        found = found or [(row, standing) for row, standing in self.intents if row.key == _name(step.key)]
        if not found:
            return "effect"
        row, standing = found[min(_number(step.key), len(found)) - 1]  # two namespaces may have one key
        return "unknown" if standing == "owner gone" else row.state.lower()

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

    def intent_lines(self) -> list[tuple[str, str]]:
        """Say of each intent that needs somebody what is to be known: its identity and the sentence."""
        noted = [(where(row), note(row, standing)) for row, standing in self.intents]
        return [(name, plain(f"{text}. What to do: lil ledger show {name}")) for name, text in noted if text]

    def intents_as_data(self) -> list[dict[str, Any]]:
        """Return the intents as data."""
        return [
            {
                "namespace": row.namespace,
                "key": row.key,
                "state": row.state,
                "open": standing in OPEN,
                "operation": row.operation,
                "attempt": row.attempt,
                "run_id": row.run_id,
                "step_key": row.step_key,
                "reason": row.failure,
                "updated": iso(row.updated),
            }
            for row, standing in self.intents
        ]

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


def _name(key: str) -> str:
    """Return the name that a step was given from its key.

    >>> _name("branch/refund%2F42#2")
    'refund/42'
    """
    return unquote(key.rpartition("/")[2].partition("#")[0], errors="surrogatepass")


def _number(key: str) -> int:
    """Return the how-manieth step of its name a key means."""
    number = key.rpartition("/")[2].partition("#")[2]
    return int(number) if number.isdigit() and number.isascii() and len(number) < 9 else 1
