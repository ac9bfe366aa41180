"""``lil seal`` and ``lil proof``: what to keep elsewhere, so that a sealed log can be shown to be the one it was."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from letitloop.cli.common import (
    Command,
    LogAt,
    count,
    given_key,
    json_option,
    key_option,
    locate,
    open_store,
    print_json,
    run_argument,
    size,
    store_option,
)
from letitloop.cli.heads import head_of, write_bundle
from letitloop.errors import LogCorrupt, SealError, command
from letitloop.wal.format import CLEAN, TORN

if TYPE_CHECKING:
    from letitloop.wal.recovery import View

__all__ = ["proof", "seal"]


@click.command(cls=Command)
@run_argument(metavar="RUN|FILE")
@store_option
@key_option
@json_option
def seal(*, run: str, store: str | None, key_file: str | None, as_json: bool) -> None:
    """Verify a sealed log and print its head, to keep elsewhere.

    `lil verify RUN --head HEAD` tells later that the log still contains it: the chain alone doesn't show that its end was cut
    off. Compaction and repair start a new chain: take a new head after them.
    """
    at = locate(open_store(store), run)
    view = _verified(at, given_key(key_file))
    try:
        head = head_of(view)
    finally:
        view.close()
    if as_json:
        print_json({"log": at.label, **head.as_dict(), "head": str(head)})
        return
    click.echo(f"log      {at.label}\nuuid     {head.uuid}\nrecords  {head.records}")
    click.echo(f"tag      {head.tag or '-'}\nkey id   {head.key_id}")
    click.echo(f"\nkeep this line elsewhere, for lil verify --head:\n{head}")


@click.command(cls=Command)
@run_argument(metavar="RUN|FILE")
@click.option("--output", "-o", metavar="FILE", required=True, type=click.Path(dir_okay=False), help="Where to write the proof.")
@store_option
@key_option
@json_option
def proof(*, run: str, output: str, store: str | None, key_file: str | None, as_json: bool) -> None:
    """Write a proof: a sealed log with its head, in one zip file that `lil verify FILE` accepts without the store.

    Whoever verifies it needs the key. It holds all that the run recorded: hand it on with the same care.
    """
    at = locate(open_store(store), run)
    view = _verified(at, given_key(key_file))
    try:
        head = write_bundle(view, output, at.label)
        end = view.found.end
    finally:
        view.close()
    if as_json:
        print_json({"log": at.label, "proof": output, "bytes": end, **head.as_dict(), "head": str(head)})
        return
    click.echo(f"{output}: {count(head.records, 'record')} of {at.label}, {size(end)} of log, sealed with the key {head.key_id}")
    click.echo(f"verify it with the key: lil verify {shlex.quote(output)}")


def _verified(at: LogAt, key: bytes | None) -> View:
    """Open a sealed log whose chain holds.

    Raises:
        SealError: the log has no seal, the key is missing or wrong, or the chain is broken.
        LogCorrupt: it is damaged.
    """
    view = at.view(key)
    try:
        if not view.header.sealed:
            raise SealError(
                f"{at.label} has no seal, so it has no head and nothing can be proved of it. Runs are sealed from their start: "
                "with seal_key= or LETITLOOP_SEAL_KEY.",
                path=at.path,
            )
        if key is None:
            raise SealError(
                f"{at.label} is sealed (key id {view.header.key_id.hex()}) and no key was given: set LETITLOOP_SEAL_KEY or give "
                "--key-file. A chain that was not verified proves nothing, so nothing was written.",
                path=at.path,
            )
        if view.found.verdict not in (CLEAN, TORN):
            raise LogCorrupt(
                f"{at.label} is damaged ({view.found.detail}); see {command('verify', at.label)}. Nothing was written.",
                path=at.path,
                offset=view.found.end,
                seq=view.found.seq,
            )
    except BaseException:
        view.close()
        raise
    return view
