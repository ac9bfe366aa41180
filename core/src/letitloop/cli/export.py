"""``lil export``: everything that a run recorded, as JSON."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from letitloop.cli.common import (
    Command,
    count,
    described,
    given_key,
    iso,
    key_option,
    log_of,
    open_store,
    print_json,
    run_argument,
    store_option,
)
from letitloop.cli.jsonable import Tagged, base64, fields, to_json, unpack
from letitloop.cli.runs import as_dict
from letitloop.errors import DecodeError
from letitloop.runs.history import find_run
from letitloop.runs.journal import standing
from letitloop.runs.records import (
    ATTEMPT,
    EFFECT,
    END,
    ENDED,
    FAILED,
    OK,
    RESUME,
    START,
    VOID,
    unpack_head,
    unpack_void,
)
from letitloop.wal.log import CLOSE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from letitloop.wal.format import Entry
    from letitloop.wal.recovery import View

__all__ = ["export"]

_NAMES = {
    CLOSE: "close",
    START: "start",
    RESUME: "resume",
    OK: "ok",
    FAILED: "failed",
    ATTEMPT: "attempt",
    VOID: "void",
    EFFECT: "effect",
    END: "end",
    ENDED: "ended",
}


@click.command(cls=Command)
@run_argument()
@click.option("--output", "-o", metavar="FILE", type=click.Path(dir_okay=False), help="Write to this file, not to standard output.")
@click.option("--raw", is_flag=True, help="Add each record's payload as base64.")
@click.option(
    "--json", "as_json", is_flag=True, help="With --output: say as JSON what was written. The export itself is JSON anyway."
)
@store_option
@key_option
def export(*, run: str, output: str | None, raw: bool, as_json: bool, store: str | None, key_file: str | None) -> None:
    """Write everything that RUN recorded as JSON, one record a line.

    Values that JSON can't hold become objects with "$type", e.g. {"$type": "tuple", "items": [1, 2]}. Records that were taken back
    (rewind, changed steps) are there, with "counts": false. Of a damaged log the whole records before the damage are exported.
    """
    place = open_store(store)
    at = log_of(place, find_run(place, run))
    key = given_key(key_file)
    head = as_dict(described(place, at.name, key))
    view = at.view(key)
    try:
        if output is None:
            for piece in _pieces(head, view, raw=raw):
                click.echo(piece, nl=False)
            return
        _write(output, _pieces(head, view, raw=raw))
        written = len(view.entries)
    finally:
        view.close()
    if as_json:
        print_json({"run": at.name, "output": output, "records": written, "bytes": os.path.getsize(output)})
    else:
        click.echo(f"{output}: {count(written, 'record')} of run {at.name}", file=sys.stderr)


def _write(target: str, pieces: Iterator[str]) -> None:
    """Write a file that appears in one step, or not at all; it is as private as the store."""
    handle, name = tempfile.mkstemp(prefix=".lil-export-", dir=os.path.dirname(os.path.abspath(target)))
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.writelines(pieces)
        os.replace(name, target)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise


def _pieces(head: dict[str, Any], view: View, *, raw: bool) -> Iterator[str]:
    """Yield the export's text; a record at a time, so that a long run needs no memory."""
    header = view.header
    log = {"uuid": header.uuid.hex(), "generation": header.generation, "sealed": header.sealed, "verdict": view.found.verdict}
    first = json.dumps({"format": "letitloop-export", "version": 1, **head, "log": log}, indent=2)
    yield first[:-2] + ',\n  "records": ['
    counting = {entry.seq for entry in standing(view.entries, view.read, view.path)}
    separator, life = "\n    ", 0
    for entry in view.entries:
        life += entry.kind in (START, RESUME)
        record = _record(entry, view.read(entry), raw=raw)
        if entry.kind in (OK, FAILED, ATTEMPT, END, ENDED):
            record["counts"] = entry.seq in counting
        record["life"] = life
        yield separator + json.dumps(record)
        separator = ",\n    "
    yield "\n  ]\n}\n"


def _record(entry: Entry, payload: bytes, *, raw: bool) -> dict[str, Any]:
    record: dict[str, Any] = {"seq": entry.seq, "kind": _NAMES.get(entry.kind, entry.kind)}
    if entry.key:
        record["key"] = entry.key.decode("utf-8", "replace")
    try:
        record.update(_meaning(entry.kind, payload))
    except DecodeError as error:
        record["unreadable"] = str(error)
        raw = True
    if raw:
        record["payload"] = base64(payload)
    return record


def _meaning(kind: int, payload: bytes) -> dict[str, Any]:
    if kind in (OK, END, FAILED, ATTEMPT):
        head = unpack_head(payload)
        body = payload[head.body_at :]
        found: dict[str, Any] = {"started": iso(head.started), "took": head.took, "overlapped": head.overlapped}
        if head.fingerprint:
            found["fingerprint"] = head.fingerprint.hex()
        return {**found, "value": to_json(body)} if kind in (OK, END) else {**found, "failure": _failure(body)}
    if kind == ENDED:
        error = fields(unpack(payload)).get("error")
        if isinstance(error, bytes):
            return {"steps": to_json(payload).get("steps"), "failure": _failure(error)}
        return {"value": to_json(payload)}
    if kind == VOID:
        return dict(zip(("from_seq", "upto_seq"), unpack_void(payload), strict=True))
    return {"value": to_json(payload)} if payload else {}


def _failure(body: bytes) -> Any:
    """Write a failure; its arguments and attributes are values within the value."""
    found: dict[str, Any] = {}
    for name, value in fields(unpack(body)).items():
        if name in ("args", "state") and isinstance(value, bytes):
            found[name] = to_json(value)
        elif isinstance(name, str) and (value is None or isinstance(value, str)):
            found[name] = value
        else:
            found[str(name)] = "?" if isinstance(value, Tagged) else repr(value)
    return found
