"""``lil demo http`` on a terminal, and as a report."""

from __future__ import annotations

from contextlib import contextmanager
from html import escape

from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table
from rich.text import Text

from letitloop.cli.demo.display import open_console
from letitloop.cli.demo.http_play import KEY, NAMESPACE, STRATEGIES
from letitloop.cli.demo.picture import Arrow, Dot, Panel, picture
from letitloop.cli.demo.service import CLOSED, effects, posts
from letitloop.cli.demo.sheet import assertions, log_table, now, rows, sheet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator

    from letitloop.cli.demo.http_play import Comparison, Played, Watch
    from letitloop.cli.demo.picture import Event

__all__ = ["page", "progress", "show"]

GOOD = "OK: every assertion holds against the service's own log."
CALLER, SERVICE = 0, 1  # the lanes of the picture


@contextmanager
def progress() -> Generator[Watch, None, None]:
    """Show the strategies as they are carried out; gives the function that is to be told."""
    console = open_console()
    console.print(Text.assemble(("lil demo http", "bold"), ": the service commits, and closes the connection before it replies"))
    columns = (SpinnerColumn(finished_text="*"), TextColumn("{task.fields[title]}"), TextColumn("{task.fields[note]}"))
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks = [bars.add_task("", total=1, start=False, title=strategy.title, note="") for strategy in STRATEGIES]

        def watch(number: int, played: Played | None) -> None:
            if played is None:
                bars.start_task(tasks[number])
                return
            bars.update(tasks[number], completed=1, note=counted(played))
            if not console.is_terminal:
                console.print(f"{played.strategy.title}: {counted(played)}")

        yield watch


def counted(played: Played) -> str:
    """Count what the service saw.

    >>> from letitloop.cli.demo.http_play import STRATEGIES, Played, Told
    >>> counted(Played(STRATEGIES[0], Told("error", None, 3, []), [], None, []))
    '0 POSTs, 0 effects'
    """
    sent, happened = posts(played.log), effects(played.log)
    return f"{sent} POST{'s' * (sent != 1)}, {happened} effect{'s' * (happened != 1)}"


def knows(played: Played) -> str:
    """Say what the caller knows in the end."""
    told = played.told
    if told.outcome == "result" and effects(played.log) > 1:
        return "one refund, it believes"
    if told.outcome == "UNKNOWN":
        return f"UNKNOWN; a repeat: {told.repeat}"
    if told.repeat:
        return f"one refund, by receipt; a repeat: {told.repeat}, nothing sent"
    return "one refund" if told.outcome == "result" else told.outcome


def show(comparison: Comparison, kept: dict[str, str | None]) -> None:
    """Print what came out."""
    console = open_console()
    console.print()
    table = Table(title="One lost reply, four strategies", title_justify="left", title_style="bold")
    for name, right in (("strategy", False), ("POSTs", True), ("effects", True), ("the caller knows", False)):
        table.add_column(name, justify="right" if right else "left", no_wrap=right)
    for played in comparison.played:
        happened = effects(played.log)
        style = "bold red" if happened > 1 else "yellow" if played.told.outcome == "UNKNOWN" else "green"
        told = Text(knows(played), style=style)
        table.add_row(played.strategy.title, str(posts(played.log)), Text(str(happened), style=style), told)
    console.print(table)
    console.print("POSTs and effects are counted from the service's own log. Where a service honours keys, they may be enough.")
    for name, value in kept.items():
        if value:
            console.print(Text(f"{name.capitalize()}: {value}"), soft_wrap=True)
    differences = comparison.differences()
    if differences:
        console.print(Text("\n".join(["NOT OK:", *(f"- {difference}" for difference in differences)]), style="bold red"))
    else:
        console.print(GOOD, style="bold green")


# --- the report --------------------------------------------------------------------------------------------------------------


def page(comparison: Comparison) -> str:
    """Write the report, as one self-contained HTML page."""
    drawn = picture([_panel(played) for played in comparison.played], "The requests of each strategy, and what became of them")
    body = f"""<section><h2>What was sent, and what happened</h2>{drawn}
<p class="key"><i style="background:var(--effect)"></i>money was paid<i style="background:var(--replayed)"></i>known for certain
<i style="background:var(--lost)"></i>lost, or refused</p></section>
<section><h2>Side by side</h2>{_beside(comparison)}</section>
<section><h2>Asserted</h2>{assertions(comparison.checks())}</section>
<section><h2>The service's own log</h2>{log_table(entry for played in comparison.played for entry in played.log)}</section>
<section><h2>The ledger's history</h2>{_history(comparison)}</section>
<section><h2>What the callers met</h2>{_met(comparison)}</section>"""
    return sheet(
        title="lil demo http: one lost reply, four strategies",
        heading="The refund was paid, and the reply was lost",
        lead=f"A service pays the refund <code>{escape(KEY)}</code> of <code>{escape(NAMESPACE)}</code>, commits, and closes the "
        "connection before it replies. Four callers deal with that, each at an account of its own.",
        good="Every assertion holds against the service's own log",
        differences=comparison.differences(),
        body=body,
        footer=f"Written by <code>lil demo http</code> on {now()}.",
    )


def _panel(played: Played) -> Panel:
    """Tell a strategy's story from the service's log."""
    events: list[Event] = []
    for entry in played.log:
        events.append(Arrow(CALLER, SERVICE, "POST" if entry["request"] == "POST" else "GET receipt"))
        if entry["effect"] is not None:
            events.append(Dot(SERVICE, f"paid {entry['effect']}", "effect"))
        events.append(Arrow(SERVICE, CALLER, str(entry["reply"]), lost=entry["reply"] == CLOSED))
    told = played.told
    if told.outcome == "UNKNOWN":
        events.append(Dot(CALLER, "UNKNOWN", "stop"))
    elif told.outcome == "result":
        by = "by receipt" if played.intent and played.intent["basis"] == "receipt" else "by reply"
        events.append(Dot(CALLER, by, "known"))
    happened = effects(played.log)
    verdict = f"{happened} effect{'s' * (happened != 1)}" + (f"; a repeat is {told.repeat}" if told.outcome == "UNKNOWN" else "")
    return Panel(played.strategy.title, ("caller", "service"), events, verdict, happened == 1)


def _beside(comparison: Comparison) -> str:
    lines = ((one.strategy.title, posts(one.log), effects(one.log), knows(one)) for one in comparison.played)
    return rows(("strategy", "POSTs", "effects", "the caller knows"), lines, number=(1, 2))


def _history(comparison: Comparison) -> str:
    lines = [
        (played.strategy.title, event["kind"], event["before"] or "-", event["after"], event["actor"])
        for played in comparison.played
        for event in played.events
    ]
    return rows(("strategy", "event", "before", "after", "by"), lines)


def _met(comparison: Comparison) -> str:
    lines = [(played.strategy.title, error) for played in comparison.played for error in played.told.errors]
    return rows(("strategy", "error"), lines)
