"""The demo on a terminal: progress while it runs, tables when it is over. Without a terminal it prints plain lines."""

from __future__ import annotations

import shlex
import sys
import textwrap
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from letitloop.cli.demo.outcome import steps_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator

    from letitloop.cli.demo.lives import Life
    from letitloop.cli.demo.outcome import Outcome
    from letitloop.cli.demo.stage import Plan, Watch

__all__ = ["duration", "open_console", "progress", "show"]

ACTS = ("first life", "second life", "uninterrupted")
STYLES = {"ran": "green", "replayed": "cyan", "in flight": "red", "-": "dim"}


def duration(seconds: float) -> str:
    """Write a duration for people.

    >>> duration(0.0000312), duration(0.0042), duration(0.25), duration(2.5)
    ('31 µs', '4.2 ms', '250 ms', '2.50 s')
    """
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 0.01:
        return f"{seconds * 1000:.1f} ms"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def open_console() -> Console:
    """Open the terminal to print on; without one, lines are wide."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")  # a document's characters may be none of the terminal's
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120  # a file or a pipe has no width: what matters is that no line is cut short
    return console


@contextmanager
def progress(plan: Plan) -> Generator[Watch, None, None]:
    """Show the three acts as they go; gives the function that is to be told of each event."""
    console = open_console()
    names = sorted({section.document for section in plan.sections})
    head = Text.assemble(
        ("lil demo brief", "bold"), f": {len(plan.sections)} sections of {len(names)} document{'s' * (len(names) != 1)}"
    )
    head.append(", the process is killed " + (f"after {plan.kill_at}" if plan.kill_at else "half-way"))
    console.print(head)
    if plan.left_out:
        console.print(f"{plan.left_out} more sections are left out: this demo takes {len(plan.sections)} at most.")
    total = len(steps_of(len(plan.sections)))
    columns = (
        TextColumn("{task.fields[act]}"),
        BarColumn(bar_width=14 if console.width < 100 else 28),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks = [bars.add_task("", total=total, start=False, act=act, note="") for act in ACTS]

        def watch(act: int, life: Life, event: str, step: str) -> None:
            if event == "started":
                bars.start_task(tasks[act])
            elif event == "over":
                bars.update(tasks[act], completed=len(life.returned), note=_note(life))
                bars.stop_task(tasks[act])
                if not console.is_terminal:
                    console.print(f"{ACTS[act]}: pid {life.pid}, {_note(life)}")
            elif step:
                bars.update(tasks[act], completed=len(life.returned), note=step)

        yield watch


def _note(life: Life) -> str:
    if life.killed is not None:
        return f"killed (SIGKILL) after {life.killed_after}"
    replayed = sum(step not in life.calls for step in life.returned)
    return f"{replayed} replayed, {len(life.returned) - replayed} ran"


def show(outcome: Outcome, kept: dict[str, str | None]) -> None:
    """Print what came out."""
    console = open_console()
    console.print()
    console.print(_steps(outcome, console))
    console.print(_counts(outcome))
    second = outcome.second
    what = "new work began" if second.calls else "the result was there"
    console.print(
        f"Resumed in {duration(second.resumed())}, from the start of the process until {what} "
        f"({duration(second.ready)} of it Python and imports).",
        style="bold",
    )
    console.print()
    for line in outcome.interrupted.brief.splitlines():
        if line.startswith("> "):
            console.print(Text(textwrap.shorten(line, 230, placeholder=" ..."), style="italic"))
    for name, value in kept.items():
        if value:
            console.print(Text(f"{name.capitalize()}: {value}"), soft_wrap=True)
    if kept.get("store") and outcome.interrupted.intent:
        named = f"{outcome.interrupted.intent['namespace']} {outcome.interrupted.intent['key']}"
        console.print(
            Text(f"The delivery's intent: lil ledger events {named} --store {shlex.quote(str(kept['store']))}"), soft_wrap=True
        )
    console.print(_verdict(outcome))


def _steps(outcome: Outcome, console: Console) -> Table:
    # of a narrow terminal the titles get what the other columns leave
    room = max(8, min(40, console.width - 66))
    table = Table(title="What ran and what was replayed", title_justify="left", title_style="bold")
    for name in ("step", "section", f"first life\npid {outcome.first.pid}", f"second life\npid {outcome.second.pid}"):
        table.add_column(name, no_wrap=True)
    for step in outcome.steps:
        title = Text(outcome.title(step))
        title.truncate(room, overflow="ellipsis")
        again = step in outcome.ran_again()
        table.add_row(step, title, _cell(outcome, outcome.first, step), _cell(outcome, outcome.second, step, again=again))
    return table


def _cell(outcome: Outcome, life: Life, step: str, *, again: bool = False) -> Text:
    state = outcome.state(life, step)
    if state == "in flight":
        return Text("in flight, lost", style=STYLES[state])
    if state == "replayed":
        return Text(f"replayed in {duration(life.returned[step][1])}", style=STYLES[state])
    if state == "ran":
        text = Text(f"ran{' again' if again else ''} {duration(life.done[step] - life.calls[step])}", style=STYLES[state])
        if step == life.killed_after:
            text.append(" <- killed", style="bold red")
        return text
    return Text("-", style=STYLES[state])


def _counts(outcome: Outcome) -> Table:
    table = Table(title="Counted from the evidence", title_justify="left", title_style="bold")
    for name, justify in (("", "left"), ("killed and resumed", "right"), ("uninterrupted", "right")):
        table.add_column(name, justify="right" if justify == "right" else "left")
    one, other = outcome.interrupted, outcome.uninterrupted
    rows = [
        ("summariser calls", one.summariser_calls(), other.summariser_calls()),
        ("  in flight at the kill, called again", len([s for s in outcome.ran_again() if "#" in s]), 0),
        ("finished calls repeated", len(outcome.repeated()), 0),
        ("deliveries", len(one.deliveries), len(other.deliveries)),
        ("  the intent in the ledger", one.intent.get("state", "-"), other.intent.get("state", "-")),
    ]
    for name, left, right in rows:
        table.add_row(name, str(left), str(right))
    table.add_row("time, all lives", duration(one.seconds()), duration(other.seconds()))
    return table


def _verdict(outcome: Outcome) -> Text:
    differences = outcome.differences()
    if not differences:
        return Text("OK: same brief as uninterrupted, delivered once, no finished call repeated.", style="bold green")
    return Text("\n".join(["NOT OK:", *(f"- {difference}" for difference in differences)]), style="bold red")
