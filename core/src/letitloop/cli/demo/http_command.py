"""The click command ``lil demo http``."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import sys
import tempfile
from pathlib import Path

import click

from letitloop.cli.demo.options import InputError, as_text, probe, terminable, write

__all__ = ["http"]


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the evidence as JSON, and nothing else.")
@click.option(
    "--report",
    metavar="FILE.html",
    type=click.Path(),
    help="Write a report with a picture, which opens offline, and beside it the evidence as FILE.evidence.json.",
)
def http(*, as_json: bool, report: str | None) -> None:
    """Watch one lost reply, and four strategies that deal with it.

    A service on the loopback interface pays a refund, commits, and closes the connection before it replies. A blind retry pays
    twice. A key that the service honours does not. letitloop asks for the receipt, and pays once; where the receipt can't be had
    the outcome is UNKNOWN, and a repeat is blocked. All counts come from the service's own log. The exit code is 1 if one of them
    is not as claimed.
    """
    if importlib.util.find_spec("httpx") is None:
        raise click.ClickException('lil demo http needs httpx. Install it: pip install "letitloop[http]"')
    from letitloop.cli.demo import http_play, http_show

    files = None if report is None else (Path(report), evidence_beside(Path(report)))
    for file in files or ():
        probe(file, "--report")
    work = Path(tempfile.mkdtemp(prefix="lil-demo-"))
    try:
        with terminable(), contextlib.nullcontext(None) if as_json else http_show.progress() as watch:
            comparison = http_play.perform(work, watch)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    evidence = comparison.as_json()
    if files is not None:
        write(files[0], http_show.page(comparison), "report")
        write(files[1], as_text(evidence) + "\n", "evidence")
    kept = {"report": files and str(files[0]), "evidence": files and str(files[1])}
    if as_json:
        click.echo(as_text({**evidence, **kept}))
    else:
        http_show.show(comparison, kept)
    if comparison.differences():
        sys.exit(1)


def evidence_beside(report: Path) -> Path:
    """Name the file that takes the evidence.

    >>> str(evidence_beside(Path("out/lost.html")))
    'out/lost.evidence.json'
    """
    if not report.name:
        raise InputError(f"--report {report} cannot be written: it names no file")
    return report.with_name(f"{report.stem}.evidence.json")
