"""The click command ``lil demo crash``."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, cast

import click

from letitloop.cli.demo.lives import ChildFailed
from letitloop.cli.demo.options import InputError, as_text, checked_directory, probe, terminable, write

__all__ = ["crash"]

EVIDENCE = "evidence.json"
REPORT = "report.html"


@click.command()
@click.option(
    "--directory",
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Keep ledger, the service's log, evidence and report here; a new or empty one, or of this demo. "
    "Left out: a new temporary one, which is kept.",
)
@click.option(
    "--report/--no-report", default=True, help="Write report.html, which opens offline, to the directory; it is the default."
)
@click.option("--json", "as_json", is_flag=True, help="Print the evidence as JSON, and nothing else.")
def crash(*, directory: str | None, report: bool, as_json: bool) -> None:
    """Watch a process die when its action has happened, and a second one go on.

    A child process pays a refund at a service on the loopback interface and dies (os._exit) as soon as the service has committed.
    With a provider that can be asked for a receipt the second process reconciles the action; with an opaque one its outcome is
    UNKNOWN. Neither sends it again. The exit code is 1 if the service's own log or the ledger say otherwise.
    """
    from letitloop.cli.demo import crash_play, crash_show

    place = _directory(directory)
    try:
        with terminable(), contextlib.nullcontext(None) if as_json else crash_show.progress() as watch:
            found = crash_play.perform(place, watch)
    except BaseException as error:
        if directory is None:
            shutil.rmtree(place, ignore_errors=True)  # nobody was told where it is
        if isinstance(error, ChildFailed):
            raise click.ClickException(str(error)) from error
        raise
    written = place / REPORT if report else None
    evidence: dict[str, Any] = {
        **found.as_json(),
        "report": None if written is None else str(written),
        "commands": crash_show.commands(found),
    }
    write(place / EVIDENCE, as_text(evidence) + "\n", "evidence")
    if written is not None:
        write(written, crash_show.page(found), "report")
    if as_json:
        click.echo(as_text(evidence))
    else:
        crash_show.show(found, written)
    if found.differences():
        sys.exit(1)


def _directory(name: str | None) -> Path:
    """Make the directory; one that holds anything but an earlier time of this demo is left alone."""
    if name is None:
        return Path(tempfile.mkdtemp(prefix="lil-demo-crash-"))
    path = checked_directory(Path(name), "--directory")
    if any(path.iterdir()) and not _ours(path / EVIDENCE):
        raise InputError(f"--directory {path} holds files that are not of this demo. Nothing was done. Name a new one.")
    for file in (EVIDENCE, REPORT):
        probe(path / file, "--directory: the file")
    return path


def _ours(evidence: Path) -> bool:
    try:
        found: Any = json.loads(evidence.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and cast("dict[str, Any]", found).get("demo") == "crash"
