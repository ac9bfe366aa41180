"""Programs for the kill sweep to kill: some that survive it, some that must be found out."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from letitloop import durable, failpoints, step
from letitloop.testing import CallLog


def survives(evidence: Path) -> object:
    calls = CallLog(evidence)

    def work(number: int) -> int:
        with calls.call(f"work-{number}"):
            return number * number

    @durable(goal_id="survives")
    def goal() -> list[int]:
        results = []
        for number in range(4):
            results.append(step("work", work, number))
            calls.returned(f"work-{number}")
        return results

    return goal()


def _reach(name: str) -> None:
    if failpoints.active:
        failpoints.hit(name)


def forgets(evidence: Path) -> object:
    """Keeps nothing, so whatever had returned runs again."""
    calls = CallLog(evidence)
    for number in range(3):
        with calls.call(f"work-{number}"):
            _reach("working")
        calls.returned(f"work-{number}")
        _reach("returned")
    return "done"


def forgets_silently(evidence: Path) -> object:
    """The same, and never says that a step has returned."""
    calls = CallLog(evidence)
    for number in range(3):
        with calls.call(f"work-{number}"):
            _reach("working")
    return "done"


def _lives(evidence: Path) -> int:
    marks = evidence / "marks"
    marks.mkdir(exist_ok=True)
    count = len(list(marks.iterdir())) + 1
    (marks / str(count)).touch()
    return count


def differs(evidence: Path) -> object:
    count = _lives(evidence)
    _reach("once")
    return {"lives": count}


def skips(evidence: Path) -> object:
    """Its second life does not do what the first one had not done."""
    calls = CallLog(evidence)
    first = _lives(evidence) == 1
    _reach("start")
    if first:
        with calls.call("work"):
            pass
    return "done"


def hangs(evidence: Path) -> object:
    count = _lives(evidence)
    _reach("once")
    if count > 1:
        threading.Event().wait()
    return "done"


def breaks(evidence: Path) -> object:
    count = _lives(evidence)
    _reach("once")
    if count > 1:
        raise RuntimeError("the second life breaks")
    return "done"


def fails_alone(evidence: Path) -> object:
    raise RuntimeError("not even alone")


def passes_nothing(evidence: Path) -> object:
    return os.path.basename(evidence)
