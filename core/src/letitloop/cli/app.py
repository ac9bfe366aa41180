"""The click group ``lil``: it knows its commands by name and loads a command's module only when that command is run.

A new command is a line in :data:`COMMANDS`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import click

from letitloop.errors import Halt, LetItLoopError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["COMMANDS", "LazyGroup", "close_to", "lil"]

# name -> (module:attribute of the click command, the line that `lil --help` shows)
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("letitloop.cli.demo:demo", "Watch a run being killed and resumed, on real text."),
    "watch": ("letitloop.cli.watch:watch", "Start a program, and start it again when it dies."),
    "runs": ("letitloop.cli.runs:runs", "List runs."),
    "show": ("letitloop.cli.show:show", "Show a run: its lives, its steps on a timeline, its failures."),
    "rewind": ("letitloop.cli.runs:rewind", "Take back what a run recorded from a step on."),
    "forget": ("letitloop.cli.runs:forget", "Remove runs, for good."),
    "export": ("letitloop.cli.export:export", "Write everything that a run recorded as JSON."),
    "verify": ("letitloop.cli.verify:verify", "Verify every checksum of logs, seals and proofs."),
    "repair": ("letitloop.cli.logs:repair", "Rewrite a damaged log with its whole records."),
    "compact": ("letitloop.cli.logs:compact", "Drop what no longer counts from runs' logs."),
    "seal": ("letitloop.cli.seals:seal", "Print a sealed log's head, to keep elsewhere."),
    "proof": ("letitloop.cli.seals:proof", "Write a sealed log with its head to a file that proves itself."),
    "ledger": ("letitloop.cli.ledger:ledger", "Actions on the outside world: list, reconcile, resolve, approve..."),
    "doctor": ("letitloop.cli.doctor:doctor", "Check a store: disk, ledger, owners, open intents, clock."),
    "completion": ("letitloop.cli.completion:completion", "Print a shell's completion script."),
}

EXIT_CODES = """\b
Exit codes:
  0  done; of logs: all are good (a torn tail is: the next start cuts it off)
  1  it could not be done, or damage was found: the message says what to do
  2  the command line means nothing: unknown option, missing file, bad value;
     of lil ledger: the outcome of the intent is still unknown
  130  Ctrl+C
"""


def close_to(word: str, names: Iterable[str]) -> str:
    """Return the names that a mistyped word is close to, for a question; empty if none is.

    >>> close_to("shwo", ["runs", "show"]), close_to("xyz", ["runs"])
    ("'show'", '')
    """
    from difflib import get_close_matches

    return " or ".join(repr(name) for name in get_close_matches(word.lower(), names, n=3, cutoff=0.6))


class LazyGroup(click.Group):
    """A group whose commands are imported on use.

    Args:
        lazy: the commands, as in :data:`COMMANDS`.
    """

    def __init__(self, *args: Any, lazy: dict[str, tuple[str, str]] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.lazy, *(name for name in super().list_commands(ctx) if name not in self.lazy)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        known = self.lazy.get(cmd_name)
        if known is None:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = known[0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name[:1].isalnum() and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            meant = close_to(name, self.list_commands(ctx))
            if meant:
                ctx.fail(f"No such command {name!r}. Did you mean {meant}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, self.lazy[name][1]) for name in self.lazy]
        rows += [(name, command.get_short_help_str()) for name, command in sorted(self.commands.items())]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (LetItLoopError, Halt) as error:
            # every message of ours says what happened and what to do: a traceback would add nothing
            from letitloop.cli.common import message

            raise click.ClickException(message(error)) from error
        except KeyboardInterrupt:
            click.echo("\nInterrupted.", err=True)
            ctx.exit(128 + 2)  # what shells expect of a program that SIGINT ended


def _version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:  # noqa: FBT001  click's signature
    if not value or ctx.resilient_parsing:
        return
    from letitloop.version import __version__

    click.echo(f"letitloop {__version__}")
    ctx.exit()


@click.group(cls=LazyGroup, lazy=COMMANDS, epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Show the version and exit.")
def lil() -> None:
    """Runs that survive SIGKILL, OOM and power loss."""
