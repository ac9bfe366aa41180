"""``lil verify``: a full checksum scan of logs, and what its outcome means."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from letitloop.cli.common import (
    EMPTY_LOG,
    Command,
    LogAt,
    console,
    count,
    fitting,
    given_key,
    json_option,
    key_option,
    locate,
    log_of,
    nothing_here,
    open_store,
    plain,
    print_json,
    run_argument,
    size,
    store_option,
    table,
)
from letitloop.cli.heads import Head, head_of, is_bundle, missing, parse_head, unpacked
from letitloop.errors import DecodeError, ForeignFile, InvalidArgument, LogVersionError, SealError, command
from letitloop.runs.journal import standing
from letitloop.runs.opening import ROOM
from letitloop.runs.records import GUARDED
from letitloop.wal.format import CLEAN, ROT, SUSPECT, TORN
from letitloop.wal.lock import holder

if TYPE_CHECKING:
    from letitloop.store.directory import DirectoryStore
    from letitloop.wal.recovery import View

__all__ = ["Outcome", "examine", "verify"]

_STYLES = {CLEAN: "green", TORN: "yellow"}
_SCANS = 4
_NO_KEY = "set LETITLOOP_SEAL_KEY or give --key-file"


@dataclass
class Outcome:
    """What was found out about one log.

    Attributes:
        log: what it was called on the command line, or its name in the store.
        path: its file.
        verdict: ``clean``, ``torn``, ``rot``, ``suspect``; or ``foreign``, ``newer``, ``unreadable``, ``undecodable``,
            ``broken seal``, ``other key``, ``other head``, ``unproved``.
        means: what that means.
        advice: what to do, if anything.
        facts: numbers: records, size, offset, the seal.
    """

    log: str
    path: str
    verdict: str = CLEAN
    means: str = ""
    advice: str = ""
    facts: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def good(self) -> bool:
        """Whether nothing that was promised is in doubt."""
        return self.verdict in (CLEAN, TORN)

    def say(self, verdict: str, means: str, advice: str = "") -> None:
        """Set the verdict with its reason."""
        self.verdict, self.means, self.advice = verdict, means, advice


@click.command(cls=Command)
@run_argument("names", many=True, required=False, metavar="[RUN|FILE|PROOF]...")
@click.option("--head", metavar="HEAD", help="Check that the log still contains this head, which `lil seal` printed.")
@store_option
@key_option
@json_option
def verify(*, names: tuple[str, ...], head: str | None, store: str | None, key_file: str | None, as_json: bool) -> None:
    """Read logs from end to end and verify every checksum; nothing is locked or changed.

    Left out, all logs of the store are verified. A PROOF is what `lil proof` writes. With the key, a sealed log's chain is
    verified too; a proof and --head need the key.

    \b
    clean    every record is whole
    torn     a write was cut short by a crash; good: the next start cuts it off
    suspect  the last record is damaged; whether it was acknowledged can't be told
    rot      a record that was durable has changed; refused until it is repaired
    """  # noqa: D301 - a real backspace: it keeps click from re-wrapping the table
    place, key = open_store(store, whole=not names), given_key(key_file)
    wanted = _wanted_head(head, names, key)
    if names:
        found = [_named(place, name, key, wanted) for name in dict.fromkeys(names)]
    else:
        logs = [log_of(place, name, room) for room in (ROOM, "threads") for name in place.names(room)]
        found = [examine(at, key) for at in logs]
    if as_json:
        print_json([_data(one) for one in found])
    elif not found:
        click.echo(nothing_here(place))
    else:
        _print(found)
    if not all(one.good for one in found):
        sys.exit(1)


def _wanted_head(text: str | None, names: tuple[str, ...], key: bytes | None) -> Head | None:
    if text is None:
        return None
    if len(names) != 1:
        raise click.UsageError("--head is the head of one log: name that one.")
    if key is None:
        raise click.UsageError(f"--head proves nothing without the key: {_NO_KEY}.")
    try:
        return parse_head(text)
    except InvalidArgument as error:
        raise click.BadParameter(str(error), param_hint="'--head'") from None


def _named(place: DirectoryStore, name: str, key: bytes | None, wanted: Head | None) -> Outcome:
    at = locate(place, name)
    if at.room or not is_bundle(at.path):
        return examine(at, key, wanted)
    try:
        with unpacked(at.path) as (path, head, run):
            inside = LogAt(at.label, path, at.fs, "", run, at.torn)
            found = examine(inside, key, wanted or head)
            found.path, found.means = at.path, found.means.replace(path, at.path)
            found.facts["proof_of"] = run
            if found.verdict == CLEAN and found.facts["head"] != str(head):
                found.say("other head", "its log goes on after the head that it names: it was made of two", "do not trust it")
            elif found.verdict == CLEAN and found.facts["seal"] != "verified":
                found.say("unproved", "its checksums are right, but without the key nothing is proved", _NO_KEY)
            elif found.good and found.verdict != CLEAN:
                found.say("unproved", f"a proof holds whole records only; here, {found.means}", "do not trust it")
            return found
    except ForeignFile as error:
        found = Outcome(at.label, at.path)
        found.say("foreign", str(error))
        return found


# --- one log -----------------------------------------------------------------------------------------------------------------


def examine(at: LogAt, key: bytes | None, wanted: Head | None = None) -> Outcome:
    """Scan a log and judge it.

    Args:
        at: the log.
        key: verify the seal with it.
        wanted: a head that the log must contain; without the key nothing is concluded from it.
    """
    out = Outcome(at.label, at.path)
    try:
        view = _settled(at, key)
    except ForeignFile as error:
        if at.room and os.path.getsize(at.path) == 0:
            out.say(TORN, EMPTY_LOG, "nothing")
        else:
            out.say("foreign", str(error))
    except LogVersionError as error:
        out.say("newer", str(error))
    except SealError as error:
        broken = "the seal is broken" in str(error)
        out.say("broken seal" if broken else "other key", str(error))
    except OSError as error:
        out.say("unreadable", f"the system says: {error.strerror or error}", "mend the disk or the permissions, then verify again")
    else:
        try:
            _judge(out, at, view, key, wanted)
        finally:
            view.close()
    return out


def _settled(at: LogAt, key: bytes | None) -> View:
    """Open and scan the log; again if its writer was seen in the middle of a write."""
    view = at.view(key)
    for _ in range(_SCANS):
        if view.found.verdict == CLEAN or holder(at.fs, at.path) is None:
            break
        before = (view.found.verdict, view.found.end)
        view.close()
        view = at.view(key)
        if (view.found.verdict, view.found.end) == before:
            break
    return view


def _judge(out: Outcome, at: LogAt, view: View, key: bytes | None, wanted: Head | None) -> None:
    found, header = view.found, view.header
    seal = "none" if not header.sealed else "verified" if key is not None else "not checked"
    out.facts.update(
        records=len(found.entries),
        bytes=found.size,
        uuid=header.uuid.hex(),
        generation=header.generation,
        openings=found.epoch,
        seal=seal,
    )
    if header.sealed:
        out.facts.update(key_id=header.key_id.hex(), head=str(head_of(view)))
    out.say(found.verdict, found.detail)
    if found.verdict != CLEAN:
        out.facts.update(
            offset=found.end, record=found.seq, durable=found.durable, damaged_bytes=found.tail, later=len(found.later)
        )
        _explain(out, at, view)
    if wanted is not None and found.verdict in (CLEAN, TORN):
        why = missing(view, wanted)
        if why:
            advice = "compare it with a copy; after a compaction or repair that you know of, take a new head"
            out.say("other head", f"the log does not contain the head: {why}", advice)
        else:
            out.means += f"; it contains the head of {count(wanted.records, 'record')}"
    if out.good and at.room == ROOM:
        try:
            standing(found.entries, view.read, at.path)
        except LogVersionError as error:
            out.say("newer", str(error))
        except DecodeError as error:
            out.say("undecodable", f"its checksums are right, but a record is not what a run writes: {error}")


def _explain(out: Outcome, at: LogAt, view: View) -> None:
    """Say what a verdict means and what to do about it."""
    found = view.found
    pid = holder(at.fs, at.path)
    if found.verdict == TORN:
        out.means += ": a kill or power cut cut a write short before anybody was told that it is durable"
        out.advice = "nothing: the next start cuts it off, keeps a copy in the store's torn folder, and goes on"
        if pid is not None:
            out.means, out.advice = f"{found.detail}: process {pid or '(unknown)'} is writing it now", "nothing"
    elif found.verdict == ROT:
        out.means += ": no crash explains it; the disk, the memory or a hand changed it"
        kept = count(found.seq, "record")
        out.advice = f"restore the file from a copy, or {command('repair', at.label)}: it keeps the damaged file, and {kept}"
        if found.later:
            out.advice += f"; with --salvage also {count(len(found.later), 'record')} after the damage"
    elif found.verdict == SUSPECT:
        out.means += ": either a write was cut short, or it was acknowledged and has rotted"
        if any(entry.kind in GUARDED for entry in found.entries):
            cut = command("repair", at.label)
            out.advice = f"the run holds effects, so it is refused; {cut} cuts the record off and keeps a copy"
        else:
            out.advice = "the next start cuts it off and keeps a copy, and that step runs again"


# --- output ------------------------------------------------------------------------------------------------------------------


def _data(one: Outcome) -> dict[str, Any]:
    said = {"log": one.log, "path": one.path, "verdict": one.verdict, "ok": one.good}
    return {**said, "means": one.means, "advice": one.advice or None, **one.facts}


def _print(found: list[Outcome]) -> None:
    from rich.text import Text

    out = console()
    cells: dict[str, list[str]] = {name: [] for name in ("log", "verdict", "records", "size", "seal", "damage at")}
    for one in found:
        facts = one.facts
        cells["log"].append(plain(one.log))
        cells["verdict"].append(one.verdict)
        cells["records"].append(f"{facts['records']:,}" if "records" in facts else "")
        cells["size"].append(size(facts["bytes"]) if "bytes" in facts else "")
        cells["seal"].append("" if facts.get("seal") == "none" else facts.get("seal", ""))
        cells["damage at"].append(f"offset {facts['offset']:,}, record {facts['record']:,}" if "offset" in facts else "")
    columns = fitting(cells, out.width, ("seal", "size", "records", "damage at"))
    grid = table(*columns, right=("records", "size"))
    grid.columns[0].overflow, grid.columns[0].no_wrap = "fold", False  # the path of a file may be longer than any line
    for number, one in enumerate(found):
        style = _STYLES.get(one.verdict, "bold red")
        grid.add_row(*(Text(cells[name][number], style=style if name == "verdict" else "") for name in columns))
    out.print(grid)
    for one in found:
        if one.verdict != CLEAN or len(found) == 1:
            out.print()
            out.print(Text.assemble((plain(one.log), "bold"), f": {plain(one.means)}"), soft_wrap=True)
            if one.advice:
                out.print(Text.assemble(("to do: ", "bold"), plain(one.advice)), soft_wrap=True)
    bad = sum(not one.good for one in found)
    unchecked = sum(one.facts.get("seal") == "not checked" for one in found)
    out.print()
    text = f"{count(len(found), 'log')}: " + (f"{bad} not good" if bad else "all good")
    if unchecked:
        text += f"; {count(unchecked, 'seal')} not checked ({_NO_KEY})"
    out.print(Text(text, style="bold red" if bad else "bold"), soft_wrap=True)
