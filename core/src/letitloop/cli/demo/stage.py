"""The play in three acts: a run that is killed, its resumption, and the same run left alone."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import partial

from letitloop.cli.demo.lives import Life, live
from letitloop.cli.demo.outcome import Outcome, Run
from letitloop.cli.demo.receiver import Receiver
from letitloop.cli.demo.watched import live_watched
from letitloop.cli.demo.witness import read_counter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from letitloop.cli.demo.documents import Section

    # told of the act (0, 1, 2), the life, the event and the step
    Watch = Callable[[int, Life, str, str], None]

__all__ = ["Plan", "perform"]


@dataclass(frozen=True)
class Plan:
    """What is to be done.

    Args:
        documents: name and bytes of each document.
        sections: what they are split into, as far as it is used.
        left_out: how many sections are not used.
        kill_at: the step to kill at; empty: half of the sections.
    """

    documents: Sequence[tuple[str, bytes]]
    sections: Sequence[Section]
    left_out: int = 0
    kill_at: str = ""

    def kills(self, life: Life, step: str) -> bool:
        """Tell whether the process is to be killed now that ``step`` has returned."""
        if self.kill_at:
            return step == self.kill_at
        return sum(name.startswith("summarise") for name in life.returned) >= (len(self.sections) + 1) // 2


def perform(plan: Plan, work: Path, store: Path, watch: Watch | None = None, *, supervised: bool = False) -> Outcome:
    """Run the workflow, kill it, resume it, and run it once more in another store without a kill.

    Args:
        plan: what is to be done.
        work: a directory for documents, counter files and the second store.
        store: the store of the run that is killed.
        watch: told of everything as it happens.
        supervised: a watcher starts the killed process again, not we.

    Raises:
        ChildFailed: a process of the workflow ended without a result and without being killed by us.
    """
    paths = _lay_out(plan, work)
    edition = secrets.token_hex(4)  # a store that was used before knows other editions of this run
    with Receiver() as receiver:

        def arguments(name: str) -> list[str]:
            own = ["--counter", str(work / f"{name}.calls"), "--deliver-to", receiver.url(f"/{name}")]
            return [*own, "--edition", edition, "--", *paths]

        def act(number: int, name: str, place: Path, kill_when: Callable[[Life, str], bool] | None = None) -> Life:
            return live(
                arguments(name),
                store=place,
                transcript=work / f"{name}.output",
                kill_when=kill_when,
                watch=None if watch is None else partial(watch, number),
            )

        if supervised:
            first, second = live_watched(
                arguments("interrupted"),
                store=store,
                transcript=work / "interrupted.output",
                kill_when=plan.kills,
                watch=watch or _ignore,
            )
        else:
            first = act(0, "interrupted", store, plan.kills)
            second = act(1, "interrupted", store) if first.killed is not None else first
        alone = act(2, "uninterrupted", work / "uninterrupted")

        def run(name: str, *lives: Life) -> Run:
            counted = read_counter(str(work / f"{name}.calls"))
            for life in lives:
                life.add(counted)
            return Run(lives, counted, receiver.deliveries(f"/{name}"))

        return Outcome(
            sections=plan.sections,
            left_out=plan.left_out,
            requested=plan.kill_at,
            interrupted=run("interrupted", first, second),
            uninterrupted=run("uninterrupted", alone),
        )


def _ignore(_act: int, _life: Life, _event: str, _step: str) -> None:
    """Watch nothing."""


def _lay_out(plan: Plan, work: Path) -> list[str]:
    """Copy the documents: what was read from a pipe is there for every life, and nobody changes it in between."""
    paths: list[str] = []
    for number, (name, data) in enumerate(plan.documents, 1):
        path = work / "documents" / str(number) / name
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
        paths.append(str(path))
    return paths
