"""The click group ``lil demo`` and its command ``lil demo brief``."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from pathlib import Path

import click

from letitloop.cli.app import close_to
from letitloop.cli.demo.crash_command import crash
from letitloop.cli.demo.documents import MOST_SECTIONS, Document, DocumentError, Section, read, shipped, split, text_of
from letitloop.cli.demo.http_command import http
from letitloop.cli.demo.lives import ChildFailed
from letitloop.cli.demo.options import InputError, as_text, checked_directory, probe, terminable, write
from letitloop.cli.demo.outcome import steps_of
from letitloop.cli.demo.stage import Plan, perform

__all__ = ["brief", "demo"]


class _WithDefault(click.Group):
    """A group that runs ``brief`` where no demo is named: ``lil demo a.txt`` is ``lil demo brief a.txt``."""

    default = "brief"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        default = self.commands[self.default]
        options = [option.get_help_record(ctx) for option in default.get_params(ctx) if isinstance(option, click.Option)]
        with formatter.section(f"Options of `{self.default}`"):
            formatter.write_dl([record for record in options if record is not None and not record[0].endswith("--help")])
        super().format_options(ctx, formatter)


@click.group(cls=_WithDefault, options_metavar="", subcommand_metavar="[brief|http|crash] [OPTIONS] [DOCUMENT]...")
def demo() -> None:
    """Watch a run being killed and resumed, on real text.

    `lil demo` is `lil demo brief`, and so is `lil demo my.txt`: the documents you name, or the texts that come along, are
    summarised section by section. In the middle of it the process is killed (SIGKILL) and started again. You see what was
    answered from the log and what ran, and that the brief was delivered once.

    `lil demo http` and `lil demo crash` are about actions on the outside world whose reply is lost.
    """


demo.add_command(http)
demo.add_command(crash)


@demo.command()
@click.argument("documents", nargs=-1, type=click.Path(allow_dash=True), metavar="[DOCUMENT]...")
@click.option(
    "--kill-at",
    metavar="STEP",
    help="Kill the process when STEP has finished: split, summarise#1 .. summarise#N, merge or deliver. "
    "Left out: when half of the sections are summarised.",
)
@click.option("--supervised", is_flag=True, help="Let lil watch start the killed process again, instead of the demo.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else.")
@click.option("--report", metavar="FILE.html", type=click.Path(), help="Write a report with a timeline; it opens offline.")
@click.option("--store", metavar="DIR", type=click.Path(), help="Use and keep this store. Left out: a temporary one.")
@click.option("--keep", is_flag=True, help="Keep the temporary directory: stores, documents, call counters.")
def brief(
    *,
    documents: tuple[str, ...],
    kill_at: str | None,
    supervised: bool,
    as_json: bool,
    report: str | None,
    store: str | None,
    keep: bool,
) -> None:
    """Summarise documents section by section, be killed half-way, resume, deliver the brief once.

    DOCUMENT is a text file of any language (Markdown or plain; - is standard input). Left out, the texts that come along are
    used. The exit code is 0 if the resumed run gave the same brief as an uninterrupted one, delivered it once and repeated no
    finished call; 1 if not; 2 if the input can't be used.
    """
    from letitloop.cli.demo import display

    plan = _plan(documents, kill_at)
    if report is not None:
        probe(Path(report), "--report")
    work = Path(tempfile.mkdtemp(prefix="lil-demo-"))
    try:
        place = checked_directory(Path(store), "--store") if store is not None else work / "store"
        with terminable(), contextlib.nullcontext(None) if as_json else display.progress(plan) as watch:
            outcome = perform(plan, work, place, watch, supervised=supervised)
        if report is not None:
            from letitloop.cli.demo.report import page

            write(Path(report), page(outcome), "report")
        kept = {"store": store and str(place), "directory": str(work) if keep else None, "report": report}
        if as_json:
            click.echo(as_text({**outcome.as_json(), **kept}))
        else:
            display.show(outcome, kept)
    except ChildFailed as error:
        raise click.ClickException(str(error)) from error
    finally:
        if not keep:
            shutil.rmtree(work, ignore_errors=True)
    if outcome.differences():
        sys.exit(1)


def _plan(documents: tuple[str, ...], kill_at: str | None) -> Plan:
    """Read the documents and find the step to kill at, before anything is run."""
    contents: list[tuple[str, bytes]] = []
    sections: list[Section] = []
    try:
        for path in documents or tuple(str(text) for text in shipped()):
            _refuse_typo(path)
            name = "standard input" if path == "-" else Path(path).name or path
            data = read(path)
            contents.append((name, data))
            # a message names the document as the user did, its sections by the file's name alone
            sections += split(Document(name, text_of(data, name if path == "-" else path).text))
    except DocumentError as error:
        raise InputError(str(error)) from None
    steps = steps_of(min(len(sections), MOST_SECTIONS))
    wanted = (kill_at or "").strip().lower().replace("summarize", "summarise")
    if kill_at is not None and wanted not in steps:
        last = len(steps) - 3
        names = "summarise#1" if last == 1 else f"summarise#1 .. summarise#{last}"
        raise InputError(f"--kill-at {kill_at}: there is no such step. The steps are split, {names}, merge and deliver")
    return Plan(contents, sections[:MOST_SECTIONS], max(0, len(sections) - MOST_SECTIONS), wanted)


def _refuse_typo(path: str) -> None:
    """Refuse what is no file and nearly the name of a demo."""
    meant = "" if path == "-" or Path(path).exists() else close_to(path, demo.commands)
    if meant:
        raise InputError(f"there is no file {path}, and no such demo. Did you mean {meant}?")
