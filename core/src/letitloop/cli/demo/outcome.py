"""What came out: counted from the evidence, and checked against an uninterrupted run."""

from __future__ import annotations

import hashlib
import signal
from collections import Counter
from dataclasses import dataclass
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from letitloop.cli.demo.documents import Section
    from letitloop.cli.demo.lives import Life
    from letitloop.cli.demo.receiver import Delivery

__all__ = ["Outcome", "Run", "steps_of"]


def steps_of(sections: int) -> list[str]:
    """Name the steps of the workflow, in its order."""
    return ["split", *(f"summarise#{number}" for number in range(1, sections + 1)), "merge", "deliver"]


@dataclass(frozen=True)
class Run:
    """One run of the workflow and its evidence.

    Args:
        lives: its processes, in order.
        counted: the lines of its counter file.
        deliveries: what the receiver got from it.
    """

    lives: Sequence[Life]
    counted: Sequence[dict[str, Any]]
    deliveries: Sequence[Delivery]

    @property
    def brief(self) -> str:
        """The result of the last life."""
        return self.lives[-1].brief or ""

    @property
    def intent(self) -> dict[str, Any]:
        """What the ledger knows of the delivery at the end."""
        return self.lives[-1].intent

    def delivery_differences(self, name: str) -> list[str]:
        """Say in what the receiver and the ledger do not agree that it was delivered once, and what."""
        found: list[str] = []
        if len(self.deliveries) != 1:
            found.append(f"the {name} run delivered {len(self.deliveries)} times instead of once")
        if any(delivery.body != self.brief.encode() for delivery in self.deliveries):
            found.append(f"the {name} run delivered something else than its result")
        state, sent = self.intent.get("state"), list(self.intent.get("events", ())).count("dispatched")
        if (state, sent) != ("SUCCEEDED", 1):
            found.append(f"the ledger has the delivery of the {name} run as {state}, dispatched {sent} times")
        if any(delivery.key != self.intent.get("provider_key") for delivery in self.deliveries):
            found.append(f"the {name} run delivered under another key than its intent's")
        return found

    def calls(self, pid: int | None = None) -> Counter[str]:
        """Count the real calls of each step's function, as the counter file has them.

        Args:
            pid: of this process only.
        """
        return Counter(line["step"] for line in self.counted if line["what"] == "start" and pid in (None, line["pid"]))

    def summariser_calls(self) -> int:
        """Count the real calls of the summariser."""
        return sum(count for step, count in self.calls().items() if step.startswith("summarise"))

    def seconds(self) -> float:
        """Add up how long its processes lived."""
        return sum(life.ended for life in self.lives)

    def as_json(self) -> dict[str, Any]:
        """Give the run as plain data."""
        return {
            "seconds": self.seconds(),
            "calls": dict(self.calls()),
            "summariser_calls": self.summariser_calls(),
            "deliveries": len(self.deliveries),
            "idempotency_keys": sorted({delivery.key for delivery in self.deliveries}),
            "intent": self.intent,
        }


@dataclass(frozen=True)
class Outcome:
    """The interrupted run beside the uninterrupted one.

    Args:
        sections: what was summarised.
        left_out: how many sections the limit cut off.
        requested: the step that ``--kill-at`` named; empty: half of the sections.
        interrupted: the run that was killed and resumed.
        uninterrupted: the run that was left alone.
    """

    sections: Sequence[Section]
    left_out: int
    requested: str
    interrupted: Run
    uninterrupted: Run

    @property
    def steps(self) -> list[str]:
        """The steps of the workflow, in its order."""
        return steps_of(len(self.sections))

    @property
    def first(self) -> Life:
        """The life that was killed."""
        return self.interrupted.lives[0]

    @property
    def second(self) -> Life:
        """The life that resumed."""
        return self.interrupted.lives[-1]

    def title(self, step: str) -> str:
        """Say what a step is about: for a summariser call, the section's title."""
        number = step.partition("#")[2]
        return self.sections[int(number) - 1].title if number else ""

    def state(self, life: Life, step: str) -> str:
        """Tell what happened to a step in a life: ``ran``, ``replayed``, ``in flight`` or ``-``."""
        state = life.state(step)
        # recorded, and killed before the workflow had the value: the log knows better than the workflow did
        recorded = life is self.first and self.second.state(step) == "replayed"
        return "ran" if state == "in flight" and recorded else state

    def recorded(self) -> dict[str, int]:
        """Tell, from the run's log, in which life each step was recorded."""
        found: dict[str, int] = {}
        for record in self.second.log.get("records", ()):
            name = str(record["key"])
            if record["status"] == "ok":
                found.setdefault("summarise#1" if name == "summarise" else name, record["life"])
        return found

    def replayed(self) -> list[str]:
        """List the steps that the second life answered from the log."""
        return [step for step in self.steps if self.second.state(step) == "replayed"]

    def ran_again(self) -> list[str]:
        """List the steps that were in flight at the kill and were called again."""
        again = self.interrupted.calls(self.second.pid)
        return [step for step in self.steps if self.state(self.first, step) == "in flight" and again[step]]

    def repeated(self) -> list[str]:
        """List the steps that had finished in the first life and were called again all the same: there must be none."""
        again = self.interrupted.calls(self.second.pid)
        return [step for step in self.first.returned if again[step]]

    def differences(self) -> list[str]:
        """Say what is not as it should be; empty: all is well."""
        found: list[str] = []
        if self.first.status != -signal.SIGKILL or self.first.killed is None:
            found.append(f"the first life was not killed by SIGKILL: status {self.first.status}")
        if self.interrupted.brief != self.uninterrupted.brief:
            found.append("the brief of the interrupted run differs from that of the uninterrupted one")
        for name, run in (("interrupted", self.interrupted), ("uninterrupted", self.uninterrupted)):
            found += run.delivery_differences(name)
            missing = [step for step in self.steps if not run.calls()[step]]
            if missing:
                found.append(f"the {name} run has no evidence of a call for {', '.join(missing)}")
        if self.repeated():
            found.append(f"finished steps were called again: {', '.join(self.repeated())}")
        log = self.recorded()
        unrecorded = [step for step in self.steps if log.get(step) != (1 if self.state(self.second, step) == "replayed" else 2)]
        if unrecorded:
            found.append(f"the log tells otherwise in which life it recorded: {', '.join(unrecorded)}")
        unseen = [step for step in self.first.returned if self.interrupted.calls(self.first.pid)[step] != 1]
        if unseen:
            found.append(f"the first life did not call exactly once: {', '.join(unseen)}")
        return found

    def as_json(self) -> dict[str, Any]:
        """Give everything as plain data."""
        differences = self.differences()
        return {
            "demo": "brief",
            "ok": not differences,
            "differences": differences,
            "sections": [
                {"step": step, "document": section.document, "title": section.title, "characters": len(section.text)}
                for step, section in zip(self.steps[1:], self.sections, strict=False)
            ],
            "sections_left_out": self.left_out,
            "kill": {
                "requested": self.requested or None,
                "after": self.first.killed_after,
                "signal": "SIGKILL",
                "pid": self.first.pid,
                "status": self.first.status,
                "seconds": self.first.killed,
            },
            "log": self.second.log,
            "lives": [self._life(life) for life in self.interrupted.lives],
            "replayed": self.replayed(),
            "ran_again": self.ran_again(),
            "repeated": self.repeated(),
            "resume_seconds": self.second.resumed(),
            "interrupted": self.interrupted.as_json(),
            "uninterrupted": self.uninterrupted.as_json(),
            "brief_sha256": hashlib.sha256(self.interrupted.brief.encode()).hexdigest(),
            "brief": self.interrupted.brief,
        }

    def _life(self, life: Life) -> dict[str, Any]:
        steps = [
            {
                "step": step,
                "state": self.state(life, step),
                "called_at": life.calls.get(step),
                "call_seconds": life.done[step] - life.calls[step] if step in life.done else None,
                "returned_at": life.returned[step][0] if step in life.returned else None,
                "waited_seconds": life.returned[step][1] if step in life.returned else None,
            }
            for step in self.steps
            if self.state(life, step) != "-"
        ]
        return {"pid": life.pid, "status": life.status, "seconds": life.ended, "ready_at": life.ready, "steps": steps}
