"""``lil watch``: a program is started, and again when it dies."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Any

import click

from letitloop.cli.common import Command, plain
from letitloop.errors import InvalidArgument

__all__ = ["watch"]

_LATE = ("--max-restarts", "--backoff", "--max-backoff")
"""The options that are the watcher's behind the target too."""


class _Watch(Command):
    """A command whose own options end where the target begins."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own, target = self._split(args)
        ctx.meta["letitloop.target"] = target
        return super().parse_args(ctx, own)

    def _split(self, args: list[str]) -> tuple[list[str], list[str]]:
        """Return the watcher's options, and the target with its arguments; ``--`` first in those means a command."""
        own: list[str] = []
        takes_value = {
            name for option in self.params if isinstance(option, click.Option) and not option.is_flag for name in option.opts
        }
        rest = list(args)
        while rest:
            word = rest[0]
            if word == "--":
                return own, rest
            if not word.startswith("-") or word in ("-", "-m") or (word.startswith("-m") and not word.startswith("--")):
                break
            own.append(rest.pop(0))
            if word in takes_value and rest:
                own.append(rest.pop(0))
        head = 2 if rest[:1] == ["-m"] else 1
        target, rest = rest[:head], rest[head:]
        while rest:
            word = rest.pop(0)
            if word == "--":
                return own, target + rest
            name, equals, _ = word.partition("=")
            if name in _LATE:
                own.append(word)
                if not equals and rest:
                    own.append(rest.pop(0))
            else:
                target.append(word)
        return own, target

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "{SCRIPT | -m MODULE | -- COMMAND} [ARG]..."]


_EXIT_CODES = """\b
Exit codes: those of the program, 128+n if signal n ended it, and
  2    the command line means nothing, or there is no such script
  80   UnknownOutcome ended it: somebody has to find out what happened
  81   StepChanged ended it: its inputs or its code changed
  126  the command may not be run
  127  there is no such command
"""


@click.command(cls=_Watch, epilog=_EXIT_CODES)
@click.option(
    "--max-restarts", metavar="N", type=click.IntRange(0), default=10, show_default=True, help="Restarts within --window."
)
@click.option("--window", metavar="SECONDS", type=float, default=600, show_default=True, help="How long a restart counts.")
@click.option(
    "--backoff", metavar="SECONDS", type=float, default=1.0, show_default=True, help="The first wait; each next one doubles."
)
@click.option("--max-backoff", metavar="SECONDS", type=float, default=60.0, show_default=True, help="The longest wait.")
@click.option(
    "--max-rapid-failures",
    metavar="N",
    type=click.IntRange(0),
    default=5,
    show_default=True,
    help="Give up after so many deaths in a row within --healthy-after without progress; 0: never for that.",
)
@click.option(
    "--healthy-after", metavar="SECONDS", type=float, default=30.0, show_default=True, help="A life that long is no failure."
)
@click.option(
    "--restart-on",
    metavar="WHAT",
    multiple=True,
    help="signal, crash (an exception), any (also an exit code), or exit:CODES. Left out: signal,crash.",
)
@click.option("--grace", metavar="SECONDS", type=float, default=10.0, show_default=True, help="From Ctrl+C or SIGTERM to SIGKILL.")
@click.option("--timeout", metavar="SECONDS", type=float, help="End a process that lives longer (SIGABRT), and start it again.")
@click.option("--stall", metavar="SECONDS", type=float, help="The same for one whose logs have not grown for so long.")
@click.option("--on-restart", metavar="CMD", help="A shell command that gets each death as JSON on its standard input.")
@click.option("--log-json", is_flag=True, help="Tell each death as a line of JSON.")
def watch(
    *,
    max_restarts: int,
    window: float,
    backoff: float,
    max_backoff: float,
    max_rapid_failures: int,
    healthy_after: float,
    restart_on: tuple[str, ...],
    grace: float,
    timeout: float | None,
    stall: float | None,
    on_restart: str | None,
    log_json: bool,
) -> None:
    """Start a program, and start it again when it dies; its durable runs go on where they were.

    \b
    lil watch agent.py --ticker AAPL         a Python script
    lil watch -m package.module              a Python module
    lil watch -- ./any-command --with args   anything else

    Options before the target are the watcher's. Behind it --max-restarts, --backoff and --max-backoff still are; everything else,
    and everything after --, goes to the target.
    """  # noqa: D301 - a real backspace: it keeps click from re-wrapping the table
    from letitloop.supervision.policy import DEFAULT_RESTART_ON, Policy
    from letitloop.supervision.program import watch_program
    from letitloop.supervision.reports import Teller
    from letitloop.supervision.watcher import Limits

    name, command, python = _target(click.get_current_context().meta["letitloop.target"])
    try:
        policy = Policy(
            max_restarts=max_restarts,
            window=window,
            backoff=backoff,
            max_backoff=max_backoff,
            max_rapid_failures=max_rapid_failures,
            healthy_after=healthy_after,
            restart_on=restart_on or DEFAULT_RESTART_ON,
        )
        limits = Limits(grace=grace, timeout=timeout, stall=stall)
    except InvalidArgument as error:
        raise click.UsageError(str(error)) from error
    teller = Teller(as_json=log_json, command=on_restart or "")
    ending = watch_program(name, command, policy=policy, limits=limits, teller=teller, python=python)
    sys.exit(ending.code)


def _target(words: list[str]) -> tuple[str, list[str], bool]:
    """Return what the target is called, its command, and whether it is Python.

    Raises:
        click.UsageError: there is none.
    """
    from letitloop.supervision.program import interpreter

    if words[:1] == ["--"]:
        if not words[1:]:
            raise click.UsageError("Name the command: lil watch -- COMMAND [ARG]...")
        return _command(words[1:])
    if not words:
        raise click.UsageError("Name what is to be watched: a script, -m MODULE, or -- COMMAND.")
    if words[0].startswith("-m"):
        module = words[0][2:] or (words[1] if len(words) > 1 else "")
        if not module:
            raise click.UsageError("Name the module: lil watch -m MODULE [ARG]...")
        arguments = words[1:] if words[0][2:] else words[2:]
        return plain(module), [*interpreter(), "-m", module, *arguments], True
    script = words[0]
    if not os.path.exists(script):
        hint = f" To run the command of that name: lil watch -- {' '.join(words)}" if shutil.which(script) else ""
        raise click.UsageError(f"There is no script {plain(script)}. Nothing was started.{plain(hint)}")
    if os.path.isfile(script) and os.access(script, os.X_OK) and not _is_python(script):
        raise click.UsageError(
            f"{plain(script)} is no Python script. To run it as a command: lil watch -- {plain(' '.join(words))}"
        )
    return plain(os.path.basename(script.rstrip("/")) or script), [*interpreter(), *words], True


def _is_python(script: str) -> bool:
    """Tell whether a file that can be run by itself is a Python script: it says so, or nothing else."""
    if script.endswith((".py", ".pyw", ".pyz", ".pyc")):
        return True
    try:
        with open(script, "rb") as file:
            first = file.readline(256)
    except OSError:
        return True
    if first.startswith(b"#!"):
        return b"python" in first
    return not first.startswith((b"\x7fELF", b"\xcf\xfa\xed\xfe", b"MZ"))


def _command(words: list[str]) -> tuple[str, list[str], bool]:
    found: Any = shutil.which(words[0])
    if found is None:
        exists = os.path.exists(words[0]) and os.sep in words[0]
        said = "may not be run: it is no executable file" if exists else "was not found"
        click.echo(f"Error: {plain(words[0])} {said}. Nothing was started.", err=True)
        sys.exit(126 if exists else 127)
    return plain(os.path.basename(words[0])), words, "python" in os.path.basename(words[0])
