"""A ledger as it lies there: read without a lock, and without a file that was not there before.

So that looking is possible on a read-only disk, in a copy, and beside a program that is at work.
"""

from __future__ import annotations

import os
import sqlite3

from letitloop.effects import ledger_file
from letitloop.effects.intent import Row
from letitloop.effects.intents import _SELECT, EVENTS, PRUNABLE, ROWS, Recorded, pruning
from letitloop.effects.ledger_file import open_ledger
from letitloop.effects.states import DISPATCHED, UNKNOWN
from letitloop.errors import StoreError
from letitloop.wal.files import default_fs
from letitloop.wal.lock import SUFFIX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    T = TypeVar("T")

__all__ = [
    "OwnerLock",
    "events_in",
    "intents_of_run",
    "is_open",
    "owner_locks",
    "owner_of",
    "owners_folder",
    "prunable_in",
    "read",
    "read_events",
    "read_row",
    "read_rows",
    "read_stub",
    "rows_in",
]

_INTENTS = 2  # the version of the schema that brought intents
_YOUNG = 60.0  # seconds within which an owner's lock file that is still empty is taken for one that is being made


def read(location: str, ask: Callable[[sqlite3.Connection], T], absent: T, *, version: int = _INTENTS) -> T:
    """Answer a question from a ledger; no ledger is made where there is none, and nothing is changed.

    Args:
        location: ``sqlite:PATH`` or ``memory:NAME``.
        ask: puts the question, perhaps more than once.
        absent: the answer if there is no ledger, or an older one without these tables.
        version: the version of the schema that brought the tables.

    Raises:
        StoreError: the ledger is damaged, another program's, newer than this program, or cannot be read.
    """
    kind, _, path = location.partition(":")

    def guarded(connection: sqlite3.Connection) -> T:
        return ask(connection) if _version(connection) >= version else absent

    if kind != "sqlite":
        with open_ledger(location).transaction() as inside:
            return guarded(inside)
    if not os.path.exists(path):
        return absent
    try:
        return _read_file(path, guarded)
    except (sqlite3.Error, OSError) as exc:
        raise StoreError(f"the ledger {path} cannot be read: {exc}. It was left as it is.") from exc


def _read_file(path: str, ask: Callable[[sqlite3.Connection], T]) -> T:
    """Ask a file. A reader in WAL mode makes -wal and -shm where they are not, so a file that nobody has open is read otherwise.

    Without a -wal the file is all there is, and it is read just as it is. With a -wal and no -shm, which a copy or a cleaned
    directory leaves, both are copied to a temporary directory. If a writer came meanwhile, what was read does not count.
    """
    before = _log_size(path)
    if before is None or not os.path.exists(path + "-shm"):
        try:
            found = _open(path, "immutable=1", ask) if not before else _read_copy(path, ask)
        except (sqlite3.Error, OSError):
            if _log_size(path) == before:
                raise
        else:
            if _log_size(path) == before and (before is None or not os.path.exists(path + "-shm")):
                return found
    return _open(path, "mode=ro", ask)


def _log_size(path: str) -> int | None:
    try:
        return os.stat(path + "-wal").st_size
    except FileNotFoundError:
        return None


def _read_copy(path: str, ask: Callable[[sqlite3.Connection], T]) -> T:
    import shutil
    import tempfile

    with tempfile.TemporaryDirectory(prefix="letitloop-") as folder:
        copy = os.path.join(folder, "ledger.db")
        for end in ("", "-wal"):
            shutil.copyfile(path + end, copy + end)
        return _open(copy, "mode=rw", ask)


def _open(path: str, mode: str, ask: Callable[[sqlite3.Connection], T]) -> T:
    from urllib.parse import quote

    connection = sqlite3.connect(f"file:{quote(os.path.abspath(path))}?{mode}", uri=True, timeout=5)
    try:
        return ask(connection)
    finally:
        connection.close()


def _version(connection: sqlite3.Connection) -> int:
    """Return the schema's version; 0 of a file whose maker has made no table yet."""
    if not connection.execute("select count(*) from sqlite_master").fetchone()[0]:
        return 0
    name = connection.execute("pragma application_id").fetchone()[0]
    version: int = connection.execute("pragma user_version").fetchone()[0]
    if name != ledger_file._APPLICATION_ID:
        raise sqlite3.DatabaseError(f"it is no ledger of letitloop (application id {name:#x})")
    if version > ledger_file._SCHEMA_VERSION:
        raise sqlite3.DatabaseError(f"it is a newer ledger (version {version}), which needs a newer letitloop")
    return version


# --- intents -----------------------------------------------------------------------------------------------------------------


def rows_in(connection: sqlite3.Connection, *, state: str | None = None, namespace: str | None = None) -> list[Row]:
    """Return intents in the order of their identities."""
    found = connection.execute(_SELECT + ROWS, {"state": state, "namespace": namespace})
    return [Row(*one) for one in found]


def events_in(
    connection: sqlite3.Connection, namespace: str | None = None, key: str | None = None, *, kind: str | None = None
) -> list[Recorded]:
    """Return events, oldest first: an intent's, or all of a kind."""
    found = connection.execute(EVENTS, {"namespace": namespace, "key": key, "kind": kind})
    return [Recorded(*one) for one in found]


def prunable_in(connection: sqlite3.Connection, before: float, now: float, namespace: str | None = None) -> list[Row]:
    """Return what pruning would replace by stubs.

    That is what was settled before a time, is past its provider's window, has no anomaly, and takes back nothing that is kept.
    """
    found = connection.execute(
        _SELECT + PRUNABLE + " order by updated",
        pruning(before, now, namespace),
    )
    return [Row(*one) for one in found]


def read_rows(location: str, *, state: str | None = None, namespace: str | None = None) -> list[Row]:
    """Return a ledger's intents in the order of their identities; see :func:`read`."""
    return read(location, lambda inside: rows_in(inside, state=state, namespace=namespace), [])


def read_row(location: str, namespace: str, key: str) -> Row | None:
    """Return an intent; see :func:`read`."""

    def ask(inside: sqlite3.Connection) -> Row | None:
        found = inside.execute(_SELECT + "where namespace=? and key=?", (namespace, key)).fetchone()
        return None if found is None else Row(*found)

    return read(location, ask, None)


def read_events(location: str, namespace: str, key: str) -> list[Recorded]:
    """Return an intent's events, oldest first; see :func:`read`."""
    return read(location, lambda inside: events_in(inside, namespace, key), [])


def read_stub(location: str, namespace: str, key: str) -> str | None:
    """Return the state that an intent had when it was pruned; None if none was pruned; see :func:`read`."""

    def ask(inside: sqlite3.Connection) -> str | None:
        found: Any = inside.execute("select state from stub where namespace=? and key=?", (namespace, key)).fetchone()
        return None if found is None else found[0]

    return read(location, ask, None)


def intents_of_run(location: str, run: str, keys: list[str]) -> list[Row]:
    """Return the intents that were begun in a run, and those of these keys that another one began; see :func:`read`."""

    def ask(inside: sqlite3.Connection) -> list[Row]:
        found = {row.where: row for row in (Row(*one) for one in inside.execute(_SELECT + "where run_id=?", (run,)))}
        known = {row.key for row in found.values()}
        for key in {*keys} - known:
            for one in inside.execute(_SELECT + "where key=?", (key,)):
                found.setdefault((one[0], one[1]), Row(*one))
        return sorted(found.values(), key=lambda row: (row.created, row.where))

    return read(location, ask, [])


# --- owners ------------------------------------------------------------------------------------------------------------------


class OwnerLock:
    """The lock file of a process that dispatches, or did.

    Attributes:
        name: how rows call the process.
        pid: its id; 0 if it is not known.
        state: ``"alive"``, ``"gone"``, or ``"starting"``: the file is being made.
    """

    __slots__ = ("name", "pid", "state")

    def __init__(self, name: str, pid: int, state: str) -> None:
        self.name = name
        self.pid = pid
        self.state = state


def owners_folder(location: str) -> str:
    """Return the directory of the owners' locks; empty for a ledger in memory."""
    kind, _, path = location.partition(":")
    return ledger_file._owners(path) if kind == "sqlite" else ""


def owner_of(location: str, name: str) -> OwnerLock:
    """Look at an owner. The kernel holds its lock while it lives; nothing else tells, in another container either.

    Raises:
        StoreError: its lock file cannot be opened.
    """
    kind, _, label = name.rpartition("-")[0].rpartition("-")
    pid = int(label) if kind and label.isdigit() else 0
    if not location.startswith("sqlite:"):
        return OwnerLock(name, pid, "alive" if open_ledger(location).alive(name) else "gone")
    fs = default_fs()
    path = os.path.join(owners_folder(location), name + SUFFIX)
    try:
        handle = fs.open(path, write=False)
    except FileNotFoundError:
        return OwnerLock(name, pid, "gone")
    except OSError as exc:
        raise StoreError(f"whether {name} lives cannot be told: {path}: {exc.strerror or exc}. Nothing was changed.") from exc
    try:
        # it writes its pid once it holds the lock: to probe an empty file could keep it from taking it
        if not fs.size(handle) and _age(path) < _YOUNG:
            return OwnerLock(name, pid, "starting")
        if not fs.lock(handle, wait=False):
            return OwnerLock(name, pid, "alive")
        return OwnerLock(name, pid, "gone")
    finally:
        fs.close(handle)


def _age(path: str) -> float:
    import time

    try:
        return time.time() - os.stat(path).st_mtime
    except FileNotFoundError:
        return 0.0


def owner_locks(location: str) -> list[OwnerLock]:
    """Return all owners whose lock file is there, alive or not."""
    from letitloop.effects.owners import owners

    folder = owners_folder(location)
    return [owner_of(location, name) for name in owners(default_fs(), folder)] if folder else []


def is_open(location: str, row: Row) -> bool:
    """Tell whether an outcome is unknown: the row says so, or it was dispatched by an owner that is gone."""
    if row.state == DISPATCHED:
        return row.owner is None or owner_of(location, row.owner).state != "alive"
    return row.state == UNKNOWN
