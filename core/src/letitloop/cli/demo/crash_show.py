"""``lil demo crash`` on a terminal, and as a report."""

from __future__ import annotations

import shlex
from contextlib import contextmanager
from html import escape

from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table
from rich.text import Text

from letitloop.cli.demo.crash_child import DEATH, NAMESPACE
from letitloop.cli.demo.crash_play import CASES, LEDGER, LOG
from letitloop.cli.demo.display import open_console
from letitloop.cli.demo.picture import Arrow, Dot, Panel, picture
from letitloop.cli.demo.service import effects, posts
from letitloop.cli.demo.sheet import assertions, log_table, now, rows, sheet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from letitloop.cli.demo.crash_play import Crash, Crashed, Watch
    from letitloop.cli.demo.picture import Event

__all__ = ["commands", "page", "progress", "show"]

GOOD = "OK: one effect each, by the service's own log; every assertion holds."
BOOK, FIRST, SERVICE, SECOND = range(4)  # the lanes of the picture


@contextmanager
def progress() -> Generator[Watch, None, None]:
    """Show both cases as they go; gives the function that is to be told."""
    console = open_console()
    console.print(Text.assemble(("lil demo crash", "bold"), ": a process dies when the service has committed"))
    columns = (SpinnerColumn(finished_text="*"), TextColumn("{task.fields[title]}"), TextColumn("{task.fields[note]}"))
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks = [bars.add_task("", total=1, start=False, title=case.title, note="") for case in CASES]

        def watch(number: int, what: str, over: bool) -> None:  # noqa: FBT001  one signature for all that is told
            bars.start_task(tasks[number])
            bars.update(tasks[number], completed=over, note=what)
            if not console.is_terminal:
                console.print(f"{CASES[number].title}: {what}")

        yield watch


def _lines(crash: Crash) -> list[tuple[str, list[str]]]:
    """List what came out: a line's name, and its text for each case."""
    of = crash.crashed
    gone = [f"{one.between['state']}{', owner gone' if one.between['owner_alive'] is False else ''}" for one in of]
    return [
        ("first process", [f"pid {one.first.pid}, exit {one.first.status}" for one in of]),
        ("effects then", [str(one.paid) for one in of]),
        ("ledger then", gone),
        ("second process", [f"pid {one.second.pid}, {one.ended()}" for one in of]),
        ("ledger now", [one.intent["state"] for one in of]),
        ("POSTs", [str(posts(one.log)) for one in of]),
        ("effects", [str(effects(one.log)) for one in of]),
    ]


def commands(crash: Crash) -> list[str]:
    """List the commands to look at what is left, and to settle what is unknown."""
    at = f"--ledger {shlex.quote(str(crash.directory / LEDGER))}"
    found = [f"lil ledger list {at}"]
    found += [f"lil ledger events {NAMESPACE} {one.key} {at}" for one in crash.crashed]
    unknown = [one.key for one in crash.crashed if one.intent["state"] == "UNKNOWN"]
    seen = shlex.quote(f"it stands in {LOG}")
    return [*found, *(f"lil ledger resolve {NAMESPACE} {key} {at} --as succeeded --evidence {seen} --by YOU" for key in unknown)]


def show(crash: Crash, report: Path | None = None) -> None:
    """Print what came out."""
    console = open_console()
    console.print()
    table = Table(title="Died when the service had committed", title_justify="left", title_style="bold")
    table.add_column("")
    for one in crash.crashed:
        table.add_column(one.case.title)
    for name, texts in _lines(crash):
        styled = [Text(text, style="yellow" if "UNKNOWN" in text else "green" if "SUCC" in text else "") for text in texts]
        table.add_row(name, *styled)
    console.print(table)
    console.print("Look at it:")
    for command in commands(crash):
        console.print(Text(f"  {command}"), soft_wrap=True)
    console.print(Text(f"Directory: {crash.directory}"), soft_wrap=True)
    if report is not None:
        console.print(Text(f"Report: {report}"), soft_wrap=True)
    differences = crash.differences()
    if differences:
        console.print(Text("\n".join(["NOT OK:", *(f"- {difference}" for difference in differences)]), style="bold red"))
    else:
        console.print(GOOD, style="bold green")


# --- the report --------------------------------------------------------------------------------------------------------------


def page(crash: Crash) -> str:
    """Write the report, as one self-contained HTML page."""
    drawn = picture([_panel(one) for one in crash.crashed], "What two processes, the ledger and the service did, in order")
    cells = ((name, *texts) for name, texts in _lines(crash))
    where = escape(str(crash.directory))
    looks = "\n".join(commands(crash))
    body = f"""<section><h2>Two lives of an action</h2>{drawn}
<p class="key"><i style="background:var(--effect)"></i>money was paid<i style="background:var(--replayed)"></i>on record
<i style="background:var(--lost)"></i>died, or nobody can tell</p></section>
<section><h2>What came out</h2>{rows(("", *(one.case.title for one in crash.crashed)), cells)}</section>
<section><h2>Asserted</h2>{assertions(crash.checks())}</section>
<section><h2>The ledger's history</h2>{_history(crash)}</section>
<section><h2>The service's own log</h2>{log_table(entry for one in crash.crashed for entry in one.log)}</section>
<section><h2>Look at it</h2><pre>{escape(looks)}</pre></section>"""
    return sheet(
        title="lil demo crash: died when the service had committed",
        heading="The process died when the refund was paid",
        lead=f"A process pays a refund through the ledger, and ends with <code>os._exit({DEATH})</code> as soon as the service has "
        "committed. A second process does the same again: once with a provider that can be asked for a receipt, once with one that "
        "cannot.",
        good="One effect each; every assertion holds",
        differences=crash.differences(),
        body=body,
        footer=f"Written by <code>lil demo crash</code> on {now()}. Ledger, log and evidence are in <code>{where}</code>",
    )


def _panel(one: Crashed) -> Panel:
    """Tell a case's story from the ledger and the service's log."""
    events: list[Event] = [Arrow(FIRST, BOOK, one.between["state"])]
    for entry in one.log:
        first = entry["request"] == "POST" and not any(isinstance(event, Dot) and event.kind == "stop" for event in events)
        who = FIRST if first else SECOND
        if not first and events[-1] == Dot(FIRST, f"exit {one.first.status}", "stop"):
            events.append(Arrow(BOOK, SECOND, "open: its owner is gone"))
        events.append(Arrow(who, SERVICE, "POST" if entry["request"] == "POST" else "GET receipt"))
        if entry["effect"] is not None:
            events.append(Dot(SERVICE, f"paid {entry['effect']}", "effect"))
        events.append(Arrow(SERVICE, who, str(entry["reply"])))
        if first:
            events.append(Dot(FIRST, f"exit {one.first.status}", "stop"))
    if len(one.log) == 1:
        events += [Arrow(BOOK, SECOND, "open: its owner is gone"), Dot(SECOND, "no receipt", "stop")]
    state = one.intent["state"]
    events += [Arrow(SECOND, BOOK, state), Dot(BOOK, state, "stop" if state == "UNKNOWN" else "known")]
    happened = effects(one.log)
    verdict = f"{happened} effect{'s' * (happened != 1)}, {one.ended()}"
    return Panel(one.case.title, ("ledger", "first process", "service", "second process"), events, verdict, happened == 1)


def _history(crash: Crash) -> str:
    lines = [
        (
            event["at"],
            event["key"],
            event["kind"],
            event["before"] or "-",
            event["after"],
            event["actor"],
            f"epoch {event['epoch']}",
        )
        for one in crash.crashed
        for event in one.events
    ]
    return rows(("when", "key", "event", "before", "after", "by", "owner"), lines)
