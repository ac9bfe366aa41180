"""``lil repair`` and ``lil compact``: rewriting a log with the records that are whole, or that count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from letitloop.cli.common import (
    Command,
    LogAt,
    count,
    given_key,
    json_option,
    key_option,
    locate,
    log_of,
    message,
    nothing_here,
    open_store,
    plain,
    print_json,
    run_argument,
    size,
    store_option,
)
from letitloop.errors import Halt, LetItLoopError, RunNotFound
from letitloop.runs.history import find_run
from letitloop.runs.journal import standing
from letitloop.runs.opening import ROOM
from letitloop.runs.records import EFFECT, END, GUARDED, STEP_KINDS
from letitloop.wal.format import CLEAN, TORN
from letitloop.wal.log import CLOSE
from letitloop.wal.repair import Repair, repair_log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from letitloop.store.directory import DirectoryStore
    from letitloop.wal.format import Entry

__all__ = ["compact", "repair"]

EMPTY = 128
"""The kind of a record that keeps the place of one that was dropped: readers skip what they do not know from 128 on."""


@click.command(cls=Command)
@run_argument(metavar="RUN|FILE")
@click.option("--salvage", is_flag=True, help="Keep the whole records after the damage too.")
@store_option
@key_option
@json_option
def repair(*, run: str, salvage: bool, store: str | None, key_file: str | None, as_json: bool) -> None:
    """Rewrite a damaged log with its whole records, so that its run can go on.

    The damaged file is kept, byte for byte, in the store's torn folder. Without --salvage the log ends before the damage, and
    all later steps run again. With it the later records stay and only what the damaged ones held is lost; if one of those was a
    rewind, what it took back counts again. Effects and markers are in the ledger, which keeps them from happening twice.
    """
    at = locate(open_store(store), run)
    try:
        done = repair_log(at.path, fs=at.fs, seal_key=given_key(key_file), salvage=salvage, quarantine=at.torn)
    except FileNotFoundError:
        raise RunNotFound(f"there is no log {at.path}.") from None
    again = list(dict.fromkeys(entry.key.decode("utf-8", "replace") for entry in done.lost if entry.kind in STEP_KINDS))
    if as_json:
        print_json(_repaired(at, done, again))
    else:
        _tell_repair(at, done, again)


def _repaired(at: LogAt, done: Repair, again: list[str]) -> dict[str, Any]:
    return {
        "log": at.label,
        "path": at.path,
        "verdict": done.verdict,
        "means": done.detail,
        "changed": done.changed,
        "copy": done.copy or None,
        "kept": done.kept,
        "salvaged": len(done.salvaged),
        "damaged": done.damaged if done.verdict != CLEAN else 0,
        "given_up": len(done.lost) if done.changed else 0,
        "runs_again": again if done.changed else [],
        "bytes_before": done.before,
        "bytes_after": done.after,
    }


def _tell_repair(at: LogAt, done: Repair, again: list[str]) -> None:
    if not done.changed:
        if done.verdict == TORN:
            click.echo(f"{at.label}: {done.detail}. Nothing was changed: the next start cuts it off by itself and keeps a copy.")
        else:
            click.echo(f"{at.label} is whole ({count(done.kept, 'record')}): there is nothing to repair.")
        return
    click.echo(f"{at.label}: {done.detail}.")
    click.echo(f"  kept       {count(done.kept, 'record')} before the damage")
    if done.salvaged:
        click.echo(f"  salvaged   {count(len(done.salvaged), 'record')} after it")
    click.echo(f"  lost       {count(done.damaged, 'damaged record')}, from record {done.first} on")
    if done.lost:
        click.echo(f"  given up   {count(len(done.lost), 'whole record')} after it")
    click.echo(f"  copy       {done.copy}")
    click.echo(f"  size       {size(done.before)} -> {size(done.after)}")
    click.echo("\nat its next start this runs again: what the damaged records held" + (", and the steps" if again else "."))
    for key in again[:50]:
        click.echo(f"  {plain(key)}")
    if len(again) > 50:
        click.echo(f"  ... and {len(again) - 50} more (--json lists all)")
    if any(entry.kind == EFFECT for entry in done.lost):
        click.echo("effects and markers among them are in the ledger: they, and the steps inside them, do not happen again.")
    if any(entry.kind == END for entry in done.lost):
        click.echo("the run was finished; its next start drives it to its end once more.")


# --- compact -----------------------------------------------------------------------------------------------------------------


@click.command(cls=Command)
@run_argument("names", many=True, required=False, metavar="[RUN]...")
@click.option("--all", "everything", is_flag=True, help="All runs of the store.")
@store_option
@key_option
@json_option
def compact(*, names: tuple[str, ...], everything: bool, store: str | None, key_file: str | None, as_json: bool) -> None:
    """Drop from runs' logs what no longer counts: records that a rewind or a changed step took back, and room kept in advance.

    Results, failures, effects and lives stay. A sealed log gets a new chain: take a new head with `lil seal`.
    """
    place, key = open_store(store, whole=everything), given_key(key_file)
    if bool(names) == everything:
        raise click.UsageError("Name the runs, or say --all.")
    found: list[dict[str, Any]] = []
    for name in place.names(ROOM) if everything else dict.fromkeys(find_run(place, name) for name in names):
        try:
            found.append(_compact(place, log_of(place, name), key))
        except (LetItLoopError, Halt) as error:
            if not everything:
                raise
            found.append({"run": name, "skipped": message(error)})
    if as_json:
        print_json(found)
    elif not found:
        click.echo(nothing_here(place))
    else:
        for one in found:
            _tell_compact(one)


def _tell_compact(one: dict[str, Any]) -> None:
    if "skipped" in one:
        click.echo(f"{one['run']}: left as it is: {one['skipped']}")
    elif one["bytes_before"] == one["bytes_after"]:
        click.echo(f"{one['run']}: nothing to drop ({size(one['bytes_before'])})")
    else:
        before, after = one["bytes_before"], one["bytes_after"]
        sizes = f"{size(before)} -> {size(after)} ({before:,} -> {after:,} bytes)"
        click.echo(f"{one['run']}: {count(one['dropped'], 'record')} dropped, {sizes}")


def _compact(place: DirectoryStore, at: LogAt, key: bytes | None) -> dict[str, Any]:
    view = at.view()
    try:
        before, sealed, whole = view.found.size, view.header.sealed, view.found.verdict == CLEAN
        idle = whole and before == view.found.end and not _dropped(view.entries, view.read, at.path)
    finally:
        view.close()
    if idle:
        return {"run": at.name, "dropped": 0, "bytes_before": before, "bytes_after": before}
    log = place.open_log(ROOM, at.name, create=False, guarded=GUARDED, seal_key=key if sealed else None)
    try:
        log.lock.hand_on()
        dropped = _dropped(log.entries, log.read, at.path)
        if dropped:
            log.compact(lambda entries: _in_place(entries, dropped))
    finally:
        log.close()
    view = at.view()
    try:
        return {"run": at.name, "dropped": len(dropped), "bytes_before": before, "bytes_after": view.found.size}
    finally:
        view.close()


def _dropped(entries: list[Entry], read: Callable[[Entry], bytes], path: str) -> set[int]:
    """Return the seqs of the records that no longer count: those that were taken back, and the VOID records that took them back."""
    counting = {entry.seq for entry in standing(entries, read, path)}
    return {entry.seq for entry in entries if entry.seq not in counting and entry.kind not in (CLOSE, EMPTY)}


def _in_place(entries: list[Entry], dropped: set[int]) -> Iterable[Entry]:
    """Return the records with dropped ones emptied: payloads refer to sequence numbers, so every record keeps its own."""
    last = max((entry.seq for entry in entries if entry.seq not in dropped and entry.kind not in (CLOSE, EMPTY)), default=-1)
    for entry in entries:
        if entry.seq in dropped or entry.kind == CLOSE:
            entry.kind, entry.key, entry.size = EMPTY, b"", 0
    return [entry for entry in entries if entry.seq <= last]
