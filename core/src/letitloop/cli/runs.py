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
)
from letitloop.errors import LogLocked
from letitloop.runs.history import find_run, forget_run, rewind_run

if TYPE_CHECKING:
    from letitloop.runs.history import RunInfo
    from letitloop.store.directory import DirectoryStore

__all__ = ["STYLES", "as_dict", "forget", "rewind", "runs"]

STYLES = {"running": "cyan", "finished": "green", "failed": "red", "interrupted": "yellow", "damaged": "bold red"}
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604_800}


@click.command(cls=Command)
@store_option
@json_option
def runs(*, store: str | None, as_json: bool) -> None:
    """List the runs of a store, the newest first; a run inside a run stands under it.

    LIVES counts the processes that worked on a run: more than one means that it was resumed.
    """
    place = open_store(store)
    found = all_runs(place)
    if as_json:
        print_json([as_dict(run) for run in found])
    elif not found:
        click.echo(nothing_here(place))
    else:
        _print(found)


def as_dict(run: RunInfo) -> dict[str, Any]:
    """Return a run's line as data."""
    return {
        "run": run.id,
        "goal": run.goal_id,
        "function": run.function,
        "status": run.status,
        "steps": len(run.steps),
        "lives": len(run.lives),
        "pid": run.pid or None,
        "parent": run.parent,
        "created": iso(run.created),
        "updated": iso(run.updated),
        "size": run.size,
        "error": run.error or None,
        "detail": run.detail or None,
    }


def _print(found: list[RunInfo]) -> None:
    from rich.text import Text

    out = console()
    names = {run.id for run in found}
    goals = {run.id: run.goal_id for run in found}
    shown = _tree(found)
    # a name is what the other commands take, so it is never cut; the goal, which names start with, gives way, then the date
    room = out.width - max(len(run.id) + 2 * depth for run, depth in shown) - 66
    with_goal, with_start = room >= 8, room >= -10
    columns = ["run", *["goal"] * with_goal, "status", "steps", "lives", *["started"] * with_start, "age", "size"]
    grid = table(*columns, right=("steps", "lives", "age", "size"))
    if with_goal:
        grid.columns[1].overflow, grid.columns[1].max_width = "ellipsis", min(room, 30)
    grid.columns[0].overflow, grid.columns[0].no_wrap = "fold", False
    for run, depth in shown:
        goal = run.goal_id or ("(unreadable)" if run.status == "damaged" else "(no record)")
        inside = f" (inside {goals.get(run.parent, run.parent)})" if run.parent and run.parent not in names else ""
        grid.add_row(
            f"{'  ' * (depth - 1)}└ {run.id}" if depth else run.id,
            *[plain(goal + inside)] * with_goal,
            Text(run.status, style=STYLES.get(run.status, "")),
            f"{len(run.steps):,}",
            str(len(run.lives) or ""),
            *[moment(run.created, short=True)] * with_start,
            ago(run.created),
            size(run.size) if run.size else "",
        )
    out.print(grid)
    told = False
    for run in found:
        said = {"failed": run.error, "damaged": run.detail}.get(run.status, "")
        if said or run.pid:
            if not told:
                out.print()
            told = True
            what = f"process {run.pid} drives it" if run.pid else plain(said)
            out.print(Text.assemble((run.id, "bold"), f": {what}"), soft_wrap=True)


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

    Runs that were called inside a removed run are removed with it. A run that a live process drives is never removed.
    """
    place = open_store(store)
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


def _chosen(place: DirectoryStore, names: tuple[str, ...], older_than: str | None, *, finished: bool) -> list[str]:
    limit = time.time() - _seconds(older_than) if older_than else None
    wanted = list(dict.fromkeys(find_run(place, name) for name in names)) if names else None
    if limit is None and not finished:
        return place.names("runs") if wanted is None else wanted
    return [
        run.id
        for run in all_runs(place, wanted)
        if (not finished or run.status == "finished") and (limit is None or 0 < run.updated < limit) and run.status != "running"
    ]


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
    for name in chosen:
        if name not in place.names("runs"):
            continue  # went with the run around it
        try:
            removed += forget_run(place, name)
        except LogLocked:
            if strict:
                raise
            kept.append(name)
    return removed, kept
