"""``lil runs``, ``lil rewind`` and ``lil forget``: which runs there are, and taking back what they recorded."""

from __future__ import annotations

import re
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from letitloop.cli.common import (
    Command,
    ago,
    all_runs,
    console,
    count,
    driver,
    fitting,
    given_key,
    iso,
    json_option,
    key_option,
    log_of,
    moment,
    nothing_here,
    open_store,
    plain,
    print_json,
    run_argument,
    size,
    store_option,
    table,
    threads_here,
)
from letitloop.errors import LogLocked
from letitloop.runs.history import find_run, forget_run, rewind_run

if TYPE_CHECKING:
    from letitloop.runs.history import RunInfo
    from letitloop.store.directory import DirectoryStore

__all__ = ["STYLES", "as_dict", "forget", "rewind", "runs"]

STYLES = {"running": "cyan", "finished": "green", "failed": "red", "interrupted": "yellow", "damaged": "bold red"}
_GOAL = 30  # as much of a goal as the list shows, in characters
_ERROR = 90  # as much of an error
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604_800}


@click.command(cls=Command)
@store_option
@json_option
def runs(*, store: str | None, as_json: bool) -> None:
    """List the runs of a store, the newest first; a run inside a run stands under it.

    LIVES counts the processes that worked on a run: more than one means that it was resumed. In brackets: how many of them a
    watcher started because the one before had died.
    """
    place = open_store(store, whole=True)
    found = all_runs(place)
    if as_json:
        print_json([as_dict(run) for run in found])
    elif not found:
        click.echo(nothing_here(place))
    else:
        _print(found)
        if threads := threads_here(place):
            click.echo(f"\nAnd{threads}")


def as_dict(run: RunInfo) -> dict[str, Any]:
    """Return a run's line as data."""
    return {
        "run": run.id,
        "goal": run.goal_id,
        "function": run.function,
        "status": run.status,
        "steps": _steps(run),
        "lives": len(run.lives),
        "restarts": sum(bool(life.restart) for life in run.lives),
        "pid": run.pid or None,
        "parent": run.parent,
        "created": iso(run.created),
        "updated": iso(run.updated),
        "size": run.size,
        "error": run.error or None,
        "detail": run.detail or None,
    }


def _steps(run: RunInfo) -> int:
    """Count the steps that have an outcome; an attempt before it, and the note that an effect began, are no steps of their own."""
    return len({step.key for step in run.steps if step.status in ("ok", "failed")})


def _print(found: list[RunInfo]) -> None:
    from rich.text import Text

    out = console()
    shown = _tree(found)
    cells = _cells(shown)
    # a name is what the other commands take, so it is never broken; names start with the goal, which therefore gives way first
    columns = fitting(cells, out.width, ("goal", "started", "size", "lives", "age", "steps", "status"))
    if "status" in columns:
        grid = table(*columns, right=("steps", "lives", "age", "size"))
        for number, (run, _) in enumerate(shown):
            row = [cells[name][number] for name in columns]
            grid.add_row(*(Text(cell, style=STYLES.get(run.status, "") if cell is run.status else "") for cell in row))
        out.print(grid)
    else:
        for run, _ in shown:
            out.print(Text.assemble(run.id, "  ", (run.status, STYLES.get(run.status, ""))), soft_wrap=True)
    told = False
    for run in found:
        said = {"failed": run.error, "damaged": run.detail}.get(run.status, "")
        if said or run.pid:
            if not told:
                out.print()
            told = True
            what = f"process {run.pid} drives it" if run.pid else plain(said)
            if run.status == "failed" and len(what) > _ERROR:
                what = what[: _ERROR - 1] + "… (lil show has all of it)"
            out.print(Text.assemble((run.id, "bold"), f": {what}"), soft_wrap=True)


def _cells(shown: list[tuple[RunInfo, int]]) -> dict[str, list[str]]:
    """Return the table's columns by their names."""
    goals = {run.id: run.goal_id for run, _ in shown}
    cells: dict[str, list[str]] = {name: [] for name in ("run", "goal", "status", "steps", "lives", "started", "age", "size")}
    for run, depth in shown:
        goal = run.goal_id or ("(unreadable)" if run.status == "damaged" else "(no record)")
        if run.parent and run.parent not in goals:
            goal += f" (inside {run.parent})"
        goal = plain(goal)
        cells["run"].append(f"{'  ' * (depth - 1)}└ {run.id}" if depth else run.id)
        cells["goal"].append(goal if len(goal) <= _GOAL else goal[: _GOAL - 1] + "…")
        cells["status"].append(run.status)
        cells["steps"].append(f"{_steps(run):,}")
        restarts = sum(bool(life.restart) for life in run.lives)
        told = f" ({count(restarts, 'restart')})" if restarts else ""
        cells["lives"].append(f"{len(run.lives)}{told}" if run.lives else "")
        cells["started"].append(moment(run.created, short=True))
        cells["age"].append(ago(run.created))
        cells["size"].append(size(run.size) if run.size else "")
    return cells


def _tree(found: list[RunInfo]) -> list[tuple[RunInfo, int]]:
    """Return the runs with their depth: each under the run inside which it was called."""
    inside: dict[str | None, list[RunInfo]] = {}
    names = {run.id for run in found}
    for run in found:
        inside.setdefault(run.parent if run.parent in names and run.parent != run.id else None, []).append(run)
    shown: list[tuple[RunInfo, int]] = []
    pending = [(run, 0) for run in reversed(inside.get(None, []))]
    while pending:
        run, depth = pending.pop()
        shown.append((run, depth))
        pending += [(child, depth + 1) for child in inside.pop(run.id, [])]
    return shown


@click.command(cls=Command)
@run_argument()
@click.argument("step")
@store_option
@key_option
@json_option
def rewind(*, run: str, step: str, store: str | None, key_file: str | None, as_json: bool) -> None:
    """Take back what RUN recorded from STEP on, so that it runs again.

    STEP is a key as `lil show RUN` prints it, e.g. fetch#2 or branch-1/fetch. Nothing is erased: the log learns that those
    records no longer count. Effects and markers have happened and stay; they do not happen again.
    """
    place = open_store(store)
    at = log_of(place, find_run(place, run))
    again = rewind_run(place, at.name, step, seal_key=at.sealed_key(given_key(key_file)))
    if as_json:
        print_json({"run": at.name, "step": step, "runs_again": again})
        return
    click.echo(f"run {at.name} goes back to before {plain(step)}: {count(len(again), 'step')} will run again at its next start.")
    click.echo("  " + "\n  ".join(plain(key) for key in again))


@click.command(cls=Command)
@run_argument("names", many=True, required=False, metavar="[RUN]...")
@click.option("--all", "everything", is_flag=True, help="All runs of the store that the options below choose.")
@click.option("--finished", is_flag=True, help="Finished runs only.")
@click.option("--older-than", metavar="AGE", help="Runs that recorded nothing since, e.g. 30min, 12h, 7d, 4w.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@store_option
@json_option
def forget(
    *,
    names: tuple[str, ...],
    everything: bool,
    finished: bool,
    older_than: str | None,
    yes: bool,
    store: str | None,
    as_json: bool,
) -> None:
    """Remove runs with all that they recorded, for good; the next such call is a new run.

    Runs that were called inside a removed run are removed with it, and the options choose them with it alone: their results are
    a part of what it recorded. A run that a live process drives is never removed, nor one inside it.
    """
    place = open_store(store, whole=not names)
    if not names and not (everything or finished or older_than):
        raise click.UsageError("Name the runs, or choose them with --all, --finished or --older-than.")
    if names and everything:
        raise click.UsageError("--all and names of runs exclude each other.")
    chosen = _chosen(place, names, older_than, finished=finished)
    if not chosen:
        if as_json:
            print_json({"removed": [], "kept": []})
        else:
            click.echo("no run is to be forgotten: none matches." if place.names("runs") else nothing_here(place))
        return
    if not yes:
        _confirm(chosen, asked=bool(names))
    removed, kept = _forget(place, chosen, strict=bool(names))
    if as_json:
        print_json({"removed": removed, "kept": kept})
        return
    for name in removed:
        click.echo(f"removed {name}")
    for name in kept:
        click.echo(f"kept {name}: a live process drives it")
    if names and kept:
        sys.exit(1)


def _chosen(place: DirectoryStore, names: tuple[str, ...], older_than: str | None, *, finished: bool) -> list[str]:
    """Return the runs to remove, without those that go with the run around them."""
    limit = time.time() - _seconds(older_than) if older_than else None
    wanted = list(dict.fromkeys(find_run(place, name) for name in names)) if names else None
    if wanted is not None and limit is None and not finished:
        return wanted
    known = {run.id: run for run in all_runs(place)}
    return [
        name
        for name in (known if wanted is None else wanted)
        if name in known
        and (wanted is not None or known[name].parent not in known)
        and (not finished or known[name].status == "finished")
        and (limit is None or 0 < max(known[one].updated for one in _inside(known, name)) < limit)
        and ((limit is None and not finished) or known[name].status != "running")
    ]


def _inside(known: dict[str, RunInfo], name: str) -> list[str]:
    """Return a run and the runs inside it."""
    family = [name]
    for one in family:
        family += [run.id for run in known.values() if run.parent == one and run.id not in family]
    return family


def _seconds(text: str) -> float:
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", text.lower())
    if found is None or found[2] not in _UNITS:
        raise click.BadParameter(f"{text!r} is no age: write a number and s, min, h, d or w, e.g. 7d.", param_hint="'--older-than'")
    return float(found[1]) * _UNITS[found[2]]


def _confirm(chosen: list[str], *, asked: bool) -> None:
    """Ask on a terminal; elsewhere only runs that were named one by one are removed without ``--yes``."""
    if sys.stdin.isatty():
        listed = "\n  ".join([*chosen[:20], *([f"... and {len(chosen) - 20} more"] if len(chosen) > 20 else [])])
        click.confirm(f"  {listed}\nForget {count(len(chosen), 'run')} for good?", abort=True, err=True)
    elif not asked:
        raise click.UsageError(f"This would remove {count(len(chosen), 'run')}. There is no terminal to ask on: say --yes.")


def _forget(place: DirectoryStore, chosen: list[str], *, strict: bool) -> tuple[list[str], list[str]]:
    removed: list[str] = []
    kept: list[str] = []
    known = {run.id: run for run in all_runs(place)}
    driven = {name: _driven(known, name) for name in chosen}
    for name in chosen:
        pid = driven[name]
        if strict and pid is not None:  # before anything is removed
            raise click.ClickException(
                f"run {name} is being driven by {driver(pid)}, which is alive. Nothing was changed. Wait for it to end."
            )
    for name in chosen:
        if name not in place.names("runs"):
            continue  # went with the run around it
        if driven[name] is not None:
            kept.append(name)
            continue
        try:
            removed += forget_run(place, name)
        except LogLocked:  # somebody took it up just now
            kept.append(name)
    return removed, kept


def _driven(known: dict[str, RunInfo], name: str) -> int | None:
    """Return the process that drives a run, one inside it, or one around it; None if there is none."""
    family = _inside(known, name) if name in known else []
    above = known[name].parent if name in known else None
    while above in known and above not in family:
        family.append(above)
        above = known[above].parent
    return next((known[one].pid for one in family if known[one].status == "running"), None)
