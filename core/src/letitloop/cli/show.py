"""``lil show``: one run, its lives, its steps on a timeline, its failures."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from letitloop.cli.common import (
    GAP,
    Command,
    ago,
    all_runs,
    console,
    count,
    described,
    duration,
    fitting,
    given_key,
    iso,
    json_option,
    key_option,
    log_of,
    moment,
    open_store,
    plain,
    print_json,
    run_argument,
    size,
    store_option,
    table,
)
from letitloop.cli.ledger_at import OPEN
from letitloop.cli.markers import Markers
from letitloop.cli.runs import STYLES, as_dict
from letitloop.runs.history import find_run
from letitloop.wal.lock import NOTE_SIZE

if TYPE_CHECKING:
    from rich.console import Console

    from letitloop.runs.history import Life, RunInfo, StepInfo

__all__ = ["show"]

_MOST_ROWS = 60
_MARKER_STYLES = {"effect": "magenta", "done": "magenta", "open": "yellow", "unfinished": "dim"}
_INTENT_STYLES = {"succeeded": "magenta", "unknown": "yellow", "dispatched": "cyan", "prepared": "cyan", "cancelled": "dim"}
_STEP_STYLES = {"ok": "green", "failed": "red", "retried": "yellow", **_MARKER_STYLES, **_INTENT_STYLES}
_WIDE = 80
"""As many columns as a line needs for a timeline."""


@click.command(cls=Command)
@run_argument()
@click.option("--traceback", is_flag=True, help="Print the tracebacks of failures.")
@click.option("--all", "everything", is_flag=True, help=f"Print every step; left out, the middle of more than {_MOST_ROWS} is.")
@store_option
@key_option
@json_option
def show(*, run: str, traceback: bool, everything: bool, store: str | None, key_file: str | None, as_json: bool) -> None:
    """Show one run: its lives, its steps with a timeline, its failures.

    RUN is a run's name, or enough of its start. A life is one process's work on the run; the bars of the timeline stand side by
    side life by life, without the time between. With the key, the seal of a sealed log is verified.

    \b
    done        a marker's block was completed: its action happened, once
    open        it was entered and not completed: its action may have happened
    unfinished  an earlier attempt at the same marker or intent
    succeeded, unknown ...  the state of an intent: lil ledger show
    effect      the store's ledger knows no such marker or intent
    """  # noqa: D301 - a real backspace: it keeps click from re-wrapping the table
    place = open_store(store)
    at = log_of(place, find_run(place, run))
    info = described(place, at.name, given_key(key_file))
    recorded = {step.key.encode("utf-8", "replace")[:NOTE_SIZE] for step in info.steps if step.status in ("ok", "failed")}
    flying = [note.decode("utf-8", "replace") for note in at.notes() if note not in recorded]
    markers = Markers.of(place, info)
    children = [child.id for child in all_runs(place) if child.parent == info.id]
    if as_json:
        print_json(_data(info, markers, flying, children, at.path))
        return
    out = console()
    _print_head(out, info, markers, children, at.path, flying)
    if info.lives:
        _print_lives(out, info, flying)
    if info.steps:
        _print_steps(out, info, markers, everything=everything)
    _print_markers(out, markers)
    _print_failures(out, info, traceback=traceback)


def _ends(info: RunInfo, flying: list[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Say for each life how it ended and what was in flight then; a life's successor recorded it, the last one left a note."""
    ends: list[tuple[str, tuple[str, ...]]] = [("ended", later.in_flight) for later in info.lives[1:]]
    last = {"finished": "finished", "failed": "failed", "running": "alive"}.get(info.status, "ended")
    ends.append((last, tuple(flying) if last in ("alive", "ended") else ()))
    return ends


def _data(info: RunInfo, markers: Markers, flying: list[str], children: list[str], path: str) -> dict[str, Any]:
    lives = [
        {
            "life": number,
            "at": iso(life.at),
            "pid": life.pid,
            "restarted_after": life.restart or None,
            "ended": ended,
            "in_flight_at_end": list(left),
        }
        for number, (life, (ended, left)) in enumerate(zip(info.lives, _ends(info, flying), strict=False), 1)
    ]
    steps = [
        {
            "step": step.key,
            "status": markers.status.get(step.seq, step.status),
            "seq": step.seq,
            "life": step.life,
            "started": iso(step.started),
            "took": step.took,
            "size": step.size,
            "error": step.error or None,
            "traceback": step.traceback or None,
        }
        for step in info.steps
    ]
    ledger = {"markers": markers.as_data(), "intents": markers.intents_as_data(), "ledger_error": markers.damage or None}
    return {**as_dict(info), "path": path, "children": children, "lives": lives, "steps": steps, **ledger}


def _print_head(out: Console, info: RunInfo, markers: Markers, children: list[str], path: str, flying: list[str]) -> None:
    from rich.text import Text

    out.print(Text.assemble((info.id, "bold"), "  ", (info.status, STYLES.get(info.status, ""))))
    lines = [("goal", info.goal_id), ("function", info.function)]
    if info.created:
        lines.append(("started", f"{moment(info.created)}, {ago(info.created)} ago"))
        lines.append(("updated", f"{moment(info.updated)}, {ago(info.updated)} ago"))
    lines.append(("log", f"{path}, {size(info.size)}" if info.size else path))
    if info.parent:
        lines.append(("inside", info.parent))
    lines += [("contains" if not number else "", child) for number, child in enumerate(children)]
    if info.pid:
        lines.append(("process", str(info.pid)))
    if flying and not info.lives:
        lines.append(("in flight", ", ".join(flying)))
    lines += [
        ("error", info.error),
        ("damage" if info.status == "damaged" else "log's end", info.detail),
        ("next", _advice(info, markers)),
    ]
    for name, text in lines:
        if text:
            out.print(Text.assemble((f"{name:<10}", "dim"), plain(text)), soft_wrap=True)


def _advice(info: RunInfo, markers: Markers) -> str:
    uncertain = len(markers.uncertain())
    said = [_next_start(info)]
    if uncertain:
        verb = "its action" if uncertain == 1 else "their actions"
        said.append(f"{count(uncertain, 'open marker')}, see below: find out whether {verb} happened")
    unknown = sum(standing in OPEN for _, standing in markers.intents)
    if unknown:
        said.append(f"{count(unknown, 'intent')} of unknown outcome, see below")
    return "; ".join(part for part in said if part)


def _next_start(info: RunInfo) -> str:
    done = sum(step.status == "ok" for step in info.steps)
    if info.status == "damaged":
        return f"lil verify {shlex.quote(info.id)}"
    if info.status == "interrupted":
        return f"start the program again: {count(done, 'step') if done else 'no step'} will be answered from the log"
    if info.status == "failed":
        answered = f"{count(done, 'step')} will be answered from the log"
        return f"start the program again: {answered}, and the step that failed is tried again"
    return ""


def _print_lives(out: Console, info: RunInfo, flying: list[str]) -> None:
    from rich.text import Text

    watched = [f"{plain(later.restart)}; restarted by its watcher" if later.restart else "" for later in info.lives[1:]]
    ends = [(told or ended, left) for told, (ended, left) in zip([*watched, ""], _ends(info, flying), strict=False)]
    cells: dict[str, list[str]] = {"life": [], "began": [], "pid": [], "records": [], "end": []}
    for number, (life, (ended, left)) in enumerate(zip(info.lives, ends, strict=False), 1):
        cells["life"].append(str(number))
        cells["began"].append(moment(life.at))
        cells["pid"].append(str(life.pid or ""))
        cells["records"].append(f"{sum(step.life == number for step in info.steps):,}")
        cells["end"].append(max([ended, "in flight when", *map(plain, left)], key=len))  # a line of it: what is never broken
    columns = fitting(cells, out.width, ("records", "pid", "began", "life"))
    grid = table(*columns, right=("life", "pid", "records"))
    grid.columns[-1].no_wrap, grid.columns[-1].overflow = False, "fold"
    for number, (ended, left) in enumerate(ends):
        end = Text(ended, style=STYLES.get(ended, "cyan" if ended == "alive" else ""))
        if left:
            end.append("; in flight: " if ended == "alive" else "; in flight when it died: ", style="")
            end.append(", ".join(plain(key) for key in left), style="yellow")
        grid.add_row(*(cells[name][number] for name in columns[:-1]), end)
    out.print()
    out.print(grid)


# --- the steps and their timeline --------------------------------------------------------------------------------------------


@dataclass
class _Span:
    """A life's place on the timeline: its seconds, and its columns."""

    start: float
    seconds: float
    left: int = 0
    columns: int = 0


def _spans(lives: list[Life], steps: list[StepInfo], width: int) -> list[_Span | None]:
    """Share ``width`` columns among the lives by the time that each worked; the first ones give way if there are too many."""
    spans: list[_Span] = []
    for number, life in enumerate(lives, 1):
        own = [step for step in steps if step.life == number and step.started]
        start = min([life.at, *(step.started for step in own)])
        spans.append(_Span(start, max([0.0, *(step.started + step.took - start for step in own)])))
    shown = spans[-max(1, (width + 1) // 4) :]
    room, total = width - len(shown) + 1, sum(span.seconds for span in shown)
    spare = room - 2 * len(shown)
    left = 0
    for span in shown:
        span.columns = 2 + (int(spare * span.seconds / total) if total else 0)
        span.left = left
        left += span.columns + 1
    return [None] * (len(spans) - len(shown)) + list(shown)


def _bar(step: StepInfo, spans: list[_Span | None], width: int, ink: str, edge: str) -> Any:
    """Draw one step: a bar where it ran, and an edge between lives."""
    from rich.text import Text

    cells = [" "] * width
    for span in spans:
        if span is not None and 0 < span.left <= width:
            cells[span.left - 1] = edge
    own = spans[step.life - 1] if 0 < step.life <= len(spans) else None
    first = last = -1
    if own is not None and step.started:
        scale = own.columns / own.seconds if own.seconds else 0.0
        first = own.left + min(own.columns - 1, max(0, int((step.started - own.start) * scale)))
        last = own.left + min(own.columns, max(1, round((step.started + step.took - own.start) * scale)))
        last = max(last, first + 1)
        cells[first:last] = [ink] * (last - first)
    text = Text("".join(cells))
    text.stylize("dim")
    if first >= 0:
        text.stylize(f"not dim {_STEP_STYLES.get(step.status, '')}", first, last)
    return text


def _print_steps(out: Console, info: RunInfo, markers: Markers, *, everything: bool) -> None:
    from rich.cells import cell_len
    from rich.text import Text

    hidden = 0 if everything else max(0, len(info.steps) - _MOST_ROWS)
    head = len(info.steps) if not hidden else _MOST_ROWS // 2
    rows = info.steps[:head] + info.steps[head + hidden :]
    cells = _cells(rows, markers)
    wanted = {**cells, "timeline": [" " * 10]} if out.width >= _WIDE else cells
    columns = fitting(wanted, out.width, ("timeline", "size", "took", "life", "status"))
    styles = [_STEP_STYLES.get(status, "") for status in cells["status"]]
    out.print()
    if "status" not in columns:  # no two columns fit beside each other: a name is broken only if it alone is too long
        for number, (key, status) in enumerate(zip(cells["step"], cells["status"], strict=True)):
            if hidden and number == head:
                out.print(Text(f"... {hidden:,} more, see --all", style="dim"), soft_wrap=True)
            out.print(Text.assemble(key, "  ", (status, styles[number])), soft_wrap=True)
        return
    grid = table(*columns, right=("life", "took", "size"))
    timeline = columns[-1] == "timeline"
    width = min(60, out.width - sum(GAP + max(cell_len(text) for text in [name, *cells[name]]) for name in columns[:-1]))
    spans = _spans(info.lives, info.steps, width) if timeline else []
    unicode = out.encoding.lower().startswith("utf")
    for number, step in enumerate(rows):
        if hidden and number == head:
            grid.add_row(f"... {hidden:,} more, see --all", *[""] * (len(columns) - 1), style="dim")
        row = [Text(cells[name][number], style=styles[number] if name == "status" else "") for name in columns if name in cells]
        if timeline:
            row.append(_bar(step, spans, width, "━" if unicode else "=", "┊" if unicode else "|"))
        grid.add_row(*row)
    out.print(grid)


def _cells(steps: list[StepInfo], markers: Markers) -> dict[str, list[str]]:
    """Return the columns of the steps' table by their names, without the timeline."""
    status = [markers.status.get(step.seq, step.status) for step in steps]
    return {
        "step": [plain(step.key) for step in steps],
        "status": status,
        "life": [str(step.life) for step in steps],
        "took": [duration(step.took) if step.status != "effect" else "" for step in steps],
        "size": [size(step.size) if step.status != "effect" else "" for step in steps],
    }


def _print_markers(out: Console, markers: Markers) -> None:
    from rich.text import Text

    intents = markers.intent_lines()
    if not (markers.damage or markers.open or intents):
        return
    out.print()
    for key, meaning in markers.lines():
        out.print(Text.assemble(("open", "yellow"), f": {plain(key)}: {meaning}"), soft_wrap=True)
    for name, meaning in intents:
        out.print(Text.assemble(("intent", "yellow"), f" {name}: {meaning}"), soft_wrap=True)
    if markers.damage:
        said = f"what became of markers and intents cannot be told: {plain(markers.damage)}"
        out.print(Text(said, style="bold red"), soft_wrap=True)


def _print_failures(out: Console, info: RunInfo, *, traceback: bool) -> None:
    from rich.text import Text

    failed = [step for step in info.steps if step.error]
    if not failed:
        return
    out.print()
    out.print(Text("failures", style="bold"))
    for step in failed:
        said = Text.assemble((plain(step.key), _STEP_STYLES.get(step.status, "")), f" ({step.status}, life {step.life}): ")
        out.print(said.append(plain(step.error)), soft_wrap=True)
        if traceback:
            for line in step.traceback.splitlines():
                out.print(Text("    " + plain(line)), soft_wrap=True)
    if not traceback:
        out.print(Text(f"their tracebacks: lil show {shlex.quote(info.id)} --traceback", style="dim"), soft_wrap=True)
