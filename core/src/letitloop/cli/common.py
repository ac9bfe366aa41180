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

from letitloop.errors import Halt, LetItLoopError, LogLocked, RunNotFound
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
    "EMPTY_LOG",
    "GAP",
    "Command",
    "LogAt",
    "ago",
    "all_runs",
    "console",
    "count",
    "described",
    "driver",
    "duration",
    "fitting",
    "given_key",
    "iso",
    "json_option",
    "key_option",
    "locate",
    "log_of",
    "message",
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

EMPTY_LOG = "the file is empty: nothing is recorded in it, and the next start begins the run"
"""What is said of a log of no bytes, which a power cut may leave."""

GAP = 3
"""The columns between two columns of a table."""

F = TypeVar("F", bound="Callable[..., Any]")


class Command(click.Command):
    """A command whose errors end in one message on standard error and exit code 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (LetItLoopError, Halt) as error:
            raise click.ClickException(message(error)) from error
        except OSError as error:
            if error.errno == errno.EPIPE:  # `lil runs | head`: click knows what to do
                raise
            where = f"{error.filename}: " if error.filename else ""
            raise click.ClickException(f"{where}{error.strerror or error}. Nothing more was done.") from error


def message(error: LetItLoopError | Halt) -> str:
    """Return what an error says to somebody at a command line, in which nothing controls a terminal."""
    if isinstance(error, LogLocked):  # its own advice is for a program
        room, name = os.path.split(error.path)
        room = os.path.basename(room)
        known = name.endswith(".wal") and room in (ROOM, "threads")
        what = error.path if not known else f"run {name[:-4]}" if room == ROOM else f"{room}/{name[:-4]}"
        return plain(f"{what} is being driven by {driver(error.pid)}, which is alive. Nothing was changed. Wait for it to end.")
    return plain(str(error)).replace("Name another with store= or", "Name another with --store or") or type(error).__name__


def driver(pid: int) -> str:
    """Name a process whose id may not be known."""
    return f"process {pid}" if pid else "another process"


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


def open_store(store: str | None, *, whole: bool = False) -> DirectoryStore:
    """Return the store that the command line or the environment names.

    Args:
        store: what the command line says, if anything.
        whole: the command is about all that is in it, so a directory that was named and is not there is a mistake: that nothing
            was found would be no answer.
    """
    found: Store = resolve_store(store)
    if not isinstance(found, DirectoryStore):
        raise click.ClickException(f"the store {found.location} is no directory; this command works on directories.")
    if whole and store is not None and not os.path.exists(found.root):
        raise click.BadParameter(f"there is no directory {found.root}.", param_hint="'--store'")
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


def described(store: DirectoryStore, name: str, seal_key: bytes | None = None) -> RunInfo:
    """Return what is known of a run; also of one whose records have right checksums and hold what no run writes.

    Raises:
        RunNotFound: there is no run of that name.
        SealError: the seal is broken, or the key is wrong.
    """
    try:
        info = describe_run(store, name, seal_key=seal_key)
        _make_plausible(info)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, LetItLoopError):
            raise
        info = RunInfo(name)
        info.status = "damaged"
        info.detail = f"its checksums are right, but a record is not what a run writes ({type(error).__name__}: {error})"
    if info.status == "damaged" and _is_empty(log_of(store, name).path):
        info.status, info.detail = "interrupted", EMPTY_LOG
    return info


def _make_plausible(info: RunInfo) -> None:
    """Replace what cannot be printed or computed with, which only a damaged or made-up record holds."""
    info.goal_id, info.function = str(info.goal_id), str(info.function)
    info.parent = info.parent if isinstance(info.parent, str) else None
    info.created, info.updated = _seconds(info.created), _seconds(info.updated)
    for step in info.steps:
        step.started, step.took = _seconds(step.started), _seconds(step.took)
    for life in info.lives:
        life.at, life.in_flight = _seconds(life.at), tuple(str(key) for key in life.in_flight)
        life.pid = int(life.pid)


def _seconds(number: float) -> float:
    return number if 0 <= number < 1e11 else 0.0


def _is_empty(path: str) -> bool:
    try:
        return os.path.getsize(path) == 0
    except OSError:
        return False


def all_runs(store: DirectoryStore) -> list[RunInfo]:
    """Return what is known of the runs of a store, the newest first; one that cannot be described does not hide the others."""
    found: list[RunInfo] = []
    for name in store.names(ROOM):
        try:
            found.append(described(store, name))
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
        f"{VARIABLE} names another store.{threads_here(store)}"
    )


def threads_here(store: Store) -> str:
    """Say how many threads of LangGraph there are, which are no runs; nothing if there are none."""
    number = len(store.names("threads"))
    return f" {count(number, 'thread')} of LangGraph: app.get_state tells of them, 'lil verify' checks them." if number else ""


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
    columns = os.environ.get("COLUMNS", "")
    wanted = int(columns) if columns.isdecimal() and columns.isascii() else 0
    if wanted or not found.is_terminal:
        # rich takes a dumb terminal for one of 80 columns, whatever COLUMNS says
        found.size = (max(wanted, 20) if wanted else 140, found.height)
    return found


def fitting(columns: dict[str, list[str]], width: int, give_way: Iterable[str]) -> list[str]:
    """Return the columns of a table that fit on a line.

    Args:
        columns: each column's texts, by the column's name.
        width: the line's columns.
        give_way: which columns are left out, the first one first, while the rest does not fit.

    >>> fitting({"run": ["sync-1"], "age": ["3 min"], "size": ["1.5 KB"]}, 16, ["size", "age"])
    ['run', 'age']
    """
    from rich.cells import cell_len

    room = {name: max(map(cell_len, [name, *texts])) for name, texts in columns.items()}
    shown = list(columns)
    for name in give_way:
        if sum(room[one] for one in shown) + GAP * (len(shown) - 1) <= width:
            break
        if name in shown:
            shown.remove(name)
    return shown


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
