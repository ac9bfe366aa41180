"""``lil doctor``: whether a store can be relied on, and what in its ledger waits for somebody."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from letitloop.cli.common import Command, console, json_option, open_store, plain, print_json
from letitloop.cli.doctor_checks import BAD, OK, WARN, Finding, check_disk, check_ledger, check_logs
from letitloop.cli.ledger_at import find_ledger

if TYPE_CHECKING:
    from letitloop.cli.ledger_at import LedgerAt

__all__ = ["doctor"]

_STYLES = {OK: "green", WARN: "yellow", BAD: "bold red"}
_MOST_ITEMS = 20


@click.command(cls=Command)
@click.option("--fix", is_flag=True, help="Remove the lock files that dead processes left.")
@click.option("--store", metavar="DIR", type=click.Path(), help="The store, as for other commands.")
@click.option("--ledger", metavar="FILE", type=click.Path(dir_okay=False), help="A ledger of its own, not a store's.")
@click.option("--cipher", metavar="MODULE:NAME", help="What decrypts an encrypted ledger: an object, or what makes it.")
@json_option
def doctor(*, fix: bool, store: str | None, ledger: str | None, cipher: str | None, as_json: bool) -> None:
    """Check a store: where it lies, whether it can be written, its ledger, what waits for somebody, the clock.

    Nothing is changed or made; --fix removes lock files that dead processes left, and nothing else. The exit code is 1 if
    something is bad; an outcome that is unknown, or an approval that is waited for, is none. Logs are read by 'lil verify'.
    """
    place = find_ledger(store, ledger, cipher, whole=True)
    found = _examine(place, None if ledger is not None else store, own=ledger is not None, fix=fix)
    bad = [one for one in found if one.verdict == BAD]
    if as_json:
        checks = [
            {
                "check": one.check,
                "verdict": one.verdict,
                "said": one.said,
                "to_do": one.to_do or None,
                "items": [data for _, data in one.items],
            }
            for one in found
        ]
        print_json({"ok": not bad, "ledger": place.path, "checks": checks})
    else:
        _print(found)
    if bad:
        sys.exit(1)


def _examine(place: LedgerAt, store: str | None, *, own: bool, fix: bool) -> list[Finding]:
    """Make all checks; of a ledger of its own there is no store to look at."""
    folder = os.path.dirname(place.path)
    files = [place.path, place.path + "-wal", place.path + "-shm", place.path + ".wlock"]
    found: list[Finding] = []
    if not own:
        there = os.path.isdir(folder)
        found.append(Finding("store", OK, folder if there else f"{folder}: not there yet; the first run makes it"))
    found += check_disk(folder, files)
    found += check_ledger(place, fix=fix)
    if not own:
        found.append(check_logs(open_store(store)))
    return found


def _print(found: list[Finding]) -> None:
    from rich.text import Text

    out = console()
    for one in found:
        head = Text.assemble((f"{one.verdict:<5}", _STYLES[one.verdict]), (f"{one.check:<12}", "bold"), plain(one.said))
        out.print(head, soft_wrap=True)
        for line, _ in one.items[:_MOST_ITEMS] if one.verdict != OK else ():
            out.print(Text(f"       {plain(line)}"), soft_wrap=True)
        if len(one.items) > _MOST_ITEMS and one.verdict != OK:
            out.print(Text(f"       ... and {len(one.items) - _MOST_ITEMS} more: --json has all", style="dim"), soft_wrap=True)
        if one.to_do:
            out.print(Text.assemble(("     to do: ", "bold"), plain(one.to_do)), soft_wrap=True)
    bad, warned = (sum(one.verdict == verdict for one in found) for verdict in (BAD, WARN))
    out.print()
    if bad:
        text, style = f"{bad} bad" + (f", {warned} to look at" if warned else ""), "bold red"
    else:
        text, style = f"good; {warned} to look at" if warned else "all good", "bold"
    out.print(Text(text, style=style))
