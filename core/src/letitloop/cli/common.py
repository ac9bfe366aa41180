"""What the commands share: their options, how logs are found by name, how errors end, how numbers look."""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from letitloop.errors import Halt, LetItLoopError, RunNotFound
from letitloop.runs.history import RunInfo, describe_run, find_run
from letitloop.runs.opening import ROOM, seal_key_from
from letitloop.store.directory import VARIABLE, DirectoryStore, resolve_store
from letitloop.wal.lock import left_notes
from letitloop.wal.recovery import view_log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from click.shell_completion import CompletionItem
    from rich.console import Console

    from letitloop.store.protocol import Store
    from letitloop.wal.files import Fs
    from letitloop.wal.recovery import View

__all__ = [
    "NOTE",
    "Command",
    "LogAt",
    "ago",
    "all_runs",
    "console",
    "count",
    "duration",
    "given_key",
    "iso",
    "json_option",
    "key_option",
    "locate",
    "log_of",
    "moment",
    "nothing_here",
    "open_store",
    "plain",
    "print_json",
    "run_argument",
    "size",
    "store_option",
    "table",
]

NOTE = 126
"""As much of a key as the note of a call in flight holds, in bytes."""

F = TypeVar("F", bound="Callable[..., Any]")


class Command(click.Command):
    """A command whose errors end in one message on standard error and exit code 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (LetItLoopError, Halt) as error:
            raise click.ClickException(plain(str(error)) or type(error).__name__) from error
        except OSError as error:
            if error.errno == errno.EPIPE:  # `lil runs | head`: click knows what to do
                raise
            where = f"{error.filename}: " if error.filename else ""
            raise click.ClickException(f"{where}{error.strerror or error}. Nothing more was done.") from error


# --- options -----------------------------------------------------------------------------------------------------------------


def json_option(function: F) -> F:
    """Add ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else.")(function)


def store_option(function: F) -> F:
    """Add ``--store``."""
    text = f"The store. Left out: the environment's {VARIABLE}, else ./.letitloop."
    return click.option("--store", metavar="DIR", type=click.Path(), help=text)(function)


def key_option(function: F) -> F:
    """Add ``--key-file``."""
    text = "The key of a sealed log: the file's bytes without a line end. Left out: the environment's LETITLOOP_SEAL_KEY."
    return click.option("--key-file", metavar="FILE", type=click.Path(exists=True, dir_okay=False), help=text)(function)


def run_argument(name: str = "run", *, many: bool = False, required: bool = True, metavar: str = "") -> Callable[[F], F]:
    """Add an argument that names runs; a shell completes it."""
    return click.argument(
        name,
        nargs=-1 if many else 1,
        required=required,
        metavar=metavar or ("RUN..." if many else "RUN"),
        shell_complete=_complete,
    )


def _complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    try:
        names = resolve_store(ctx.params.get("store")).names(ROOM)
    except (LetItLoopError, OSError):
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def given_key(key_file: str | None) -> bytes | None:
    """Return the seal's key: a file's bytes, else the environment's, else None."""
    if key_file is None:
        return seal_key_from(None)
    return Path(key_file).read_bytes().rstrip(b"\r\n")


# --- stores and logs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LogAt:
    """Where a log lies.

    Attributes:
        label: how the command calls it: the run's name, ``threads/NAME``, or the file's path as it was given.
        path: its file.
        fs: its file system.
        room: its room in the store; empty for a file that was given by its path.
        name: its name in that room.
        torn: the folder that keeps what was cut out of it.
    """

    label: str
    path: str
    fs: Fs
    room: str
    name: str
    torn: str

    def view(self, seal_key: bytes | None = None) -> View:
        """Open it for reading, without its lock."""
        return view_log(self.path, fs=self.fs, seal_key=seal_key)

    def sealed_key(self, key: bytes | None) -> bytes | None:
        """Return the key if the log is sealed, else None: a key in the environment is no reason to refuse a log without a seal."""
        view = self.view()
        try:
            return key if view.header.sealed else None
        finally:
            view.close()

    def notes(self) -> list[bytes]:
        """Return the keys of the calls that were in flight when its last holder died, or are now."""
        return left_notes(self.fs, self.path)


def open_store(store: str | None) -> DirectoryStore:
    """Return the store that the command line or the environment names; it need not exist."""
    found: Store = resolve_store(store)
    if not isinstance(found, DirectoryStore):
        raise click.ClickException(f"the store {found.location} is no directory; this command works on directories.")
    return found


def log_of(store: DirectoryStore, name: str, room: str = ROOM) -> LogAt:
    """Return where a log of the store lies."""
    label = name if room == ROOM else f"{room}/{name}"
    return LogAt(label, store._path(room, name), store._fs, room, name, os.path.join(store.root, "torn"))


def locate(store: DirectoryStore, word: str) -> LogAt:
    """Return the log that a word means: a run's name or the start of one, ``threads/NAME``, or a file's path.

    Raises:
        RunNotFound: there is neither such a run nor such a file.
    """
    room, slash, name = word.partition("/")
    if slash and room == "threads" and name in store.names(room):
        return log_of(store, name, room)
    if word in store.names(ROOM):
        return log_of(store, word)
    if os.path.isfile(word):
        path = os.path.abspath(word)
        above = os.path.dirname(path)
        home = os.path.dirname(above) if os.path.basename(above) in (ROOM, "threads") else ""
        return LogAt(word, path, store._fs, "", os.path.basename(path), os.path.join(home, "torn") if home else above)
    if os.sep in word or word.endswith((".wal", ".zip")):
        raise RunNotFound(f"there is no file {word}, and no run of that name in the store {store.location}.")
    return log_of(store, find_run(store, word))


def all_runs(store: Store, names: Iterable[str] | None = None) -> list[RunInfo]:
    """Return what is known of the runs of a store, the newest first; one that cannot be described does not hide the others."""
    found: list[RunInfo] = []
    for name in store.names(ROOM) if names is None else names:
        try:
            found.append(describe_run(store, name))
        except RunNotFound:
            continue  # somebody forgot it meanwhile
        except (LetItLoopError, OSError) as error:
            damaged = RunInfo(name)
            damaged.status, damaged.detail = "damaged", str(error)
            found.append(damaged)
    return sorted(found, key=lambda run: (run.created, run.id), reverse=True)


def nothing_here(store: Store) -> str:
    """Say that a store holds no runs, and how it would come to hold some."""
    return (
        f"no runs here yet: {store.location} holds none. Call a @durable function, or watch one with 'lil demo'; --store or "
        f"{VARIABLE} names another store."
    )


# --- output ------------------------------------------------------------------------------------------------------------------


def print_json(value: object) -> None:
    """Print a value as JSON, in ASCII, so that no terminal's or pipe's encoding matters."""
    click.echo(json.dumps(value, indent=2))


def console() -> Console:
    """Return a console: colours on a terminal, plain lines that are not cut short anywhere else."""
    from rich.console import Console

    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")
    found = Console(highlight=False, markup=False, emoji=False, soft_wrap=False)
    if not found.is_terminal and "COLUMNS" not in os.environ:
        found.width = 140
    return found


def table(*columns: str, right: tuple[str, ...] = ()) -> Any:
    """Return a rich table with these columns."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold", padding=(0, 1))
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", no_wrap=True)
    return made


def plain(text: str) -> str:
    r"""Return a text in which nothing controls a terminal.

    >>> plain("step\x1b[2J\n")
    'step\\x1b[2J\\n'
    """
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def size(number: int) -> str:
    """Write a number of bytes for people.

    >>> size(64), size(6598), size(12_345_678)
    ('64 B', '6.6 KB', '12.3 MB')
    """
    if number < 1000:
        return f"{number} B"
    value = float(number)
    for unit in ("KB", "MB", "GB"):
        value /= 1000
        if value < 999.95:
            return f"{value:.1f} {unit}"
    return f"{value / 1000:.1f} TB"


def duration(seconds: float) -> str:
    """Write a duration for people.

    >>> duration(0), duration(0.0203), duration(2.5), duration(200), duration(8000), duration(400000)
    ('<0.1 ms', '20.3 ms', '2.50 s', '3 min', '2.2 h', '4.6 d')
    """
    if seconds < 0.0001:
        return "<0.1 ms"
    if seconds < 0.9995:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 100:
        return f"{seconds:.2f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86400:.1f} d"


def ago(at: float) -> str:
    """Write how long ago a moment was: ``3 min``, ``2 h``, ``5 d``; empty if it is not known."""
    if not at:
        return ""
    seconds = max(0.0, time.time() - at)
    for limit, unit, name in ((60, 1, "s"), (3600, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{int(seconds / unit)} {name}"
    return f"{int(seconds / 86400)} d"


def moment(at: float, *, short: bool = False) -> str:
    """Write a moment in local time; empty if it is not known."""
    if not at:
        return ""
    try:
        return time.strftime("%Y-%m-%d %H:%M" if short else "%Y-%m-%d %H:%M:%S", time.localtime(at))
    except (ValueError, OverflowError, OSError):
        return "?"  # a damaged clock's


def iso(at: float) -> str | None:
    """Write a moment for programs: ISO 8601 in UTC; None if it is not known."""
    if not at:
        return None
    try:
        return datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return None


def count(number: int, what: str) -> str:
    """Write a number of things.

    >>> count(1, "record"), count(2000, "record")
    ('1 record', '2,000 records')
    """
    return f"{number:,} {what}{'s' * (number != 1)}"
