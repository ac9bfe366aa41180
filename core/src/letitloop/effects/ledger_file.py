"""The ledger's SQLite file: opened so that a commit survives a power cut, and written by one process at a time.

``journal_mode=WAL`` with ``synchronous=FULL``, both read back: in the power-loss model, WAL with FULL loses no acknowledged
commit, while a rollback journal with FULL can lose one whose journal had not yet been unlinked on disk. A writer takes a file
lock before ``BEGIN IMMEDIATE``: SQLite's own busy handler sleeps, and under contention that costs tens of milliseconds.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import contextmanager

from letitloop.errors import StoreError
from letitloop.wal.files import default_fs
from letitloop.wal.memory import MemoryFs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

    from letitloop.wal.files import Fs

__all__ = ["LedgerFile", "open_ledger"]

_APPLICATION_ID = 0x4C494C31  # "LIL1"
_SCHEMA_VERSION = 1
_STRICT = " strict" if sqlite3.sqlite_version_info >= (3, 37) else ""
_SCHEMA = f"""
create table if not exists meta(k text primary key, v text){_STRICT};
create table if not exists marker(
    namespace text not null,
    name text not null,
    state text not null check(state in ('STARTED', 'DONE')),
    idempotency_key text not null,
    attempts integer not null,
    owner text not null,
    started real not null,
    finished real,
    error text,
    result blob,
    primary key(namespace, name)
){_STRICT};
"""


class LedgerFile:
    """An open ledger; shared by the threads of one process, and dropped by a forked child.

    Attributes:
        fs: the file system that locks belonging to this ledger lie in.
        owners: the directory of those locks.
    """

    def __init__(self, location: str) -> None:
        kind, _, path = location.partition(":")
        if kind not in ("sqlite", "memory"):
            raise StoreError(f"a ledger at {kind}: is not known to this version. Nothing was run.")
        self._path = path if kind == "sqlite" else ""
        self.fs: Fs = default_fs() if self._path else MemoryFs()
        self.owners = os.path.join(os.path.dirname(self._path), "owners")
        self._pid = os.getpid()
        self._guard = threading.Lock()
        self._writer = -1
        try:
            self._prepare()
            self._connection = sqlite3.connect(self._path or ":memory:", isolation_level=None, timeout=30, check_same_thread=False)
            try:
                self._set_up()
            except BaseException:
                self._connection.close()
                if self._writer >= 0:
                    self.fs.close(self._writer)
                raise
        except (OSError, sqlite3.Error) as exc:
            raise StoreError(
                f"the ledger {path} cannot be used: {exc}. Nothing was run. It needs a local file system and write permission; a "
                "damaged file has to be restored from a copy, since removing it forgets which effects have happened."
            ) from exc

    def _prepare(self) -> None:
        """Make the directories, and the file with mode 0600 before SQLite would make it with the umask's."""
        if not self._path:
            return
        fs = self.fs
        fs.mkdir(os.path.dirname(self._path))
        fs.mkdir(self.owners)
        if not fs.exists(self._path):
            fs.close(fs.open(self._path, write=True, create=True))
            fs.sync_dir(os.path.dirname(self._path))
        self._writer = fs.open(self._path + ".wlock", write=True, create=True)

    def _set_up(self) -> None:
        connection = self._connection
        if self._path:
            mode = connection.execute("pragma journal_mode=wal").fetchone()[0]
            connection.execute("pragma synchronous=full")
            level = connection.execute("pragma synchronous").fetchone()[0]
            if mode != "wal" or level != 2:
                raise StoreError(
                    f"the ledger {self._path} cannot be made durable here (journal_mode={mode}, synchronous={level}; wal and 2 are "
                    "needed): network file systems cannot. Nothing was run. Put the store on a local disk."
                )
            connection.execute("pragma fullfsync=1")  # macOS: fsync alone does not flush the drive's cache
            connection.execute("pragma checkpoint_fullfsync=1")
            connection.execute("pragma journal_size_limit=4194304")
        with self.transaction() as inside:
            found = inside.execute("pragma application_id").fetchone()[0]
            version = inside.execute("pragma user_version").fetchone()[0]
            if found not in (0, _APPLICATION_ID) or version > _SCHEMA_VERSION:
                raise StoreError(
                    f"{self._path} is {'a newer ledger' if found == _APPLICATION_ID else 'no ledger of letitloop'} (application id "
                    f"{found:#x}, version {version}). It was left as it is and nothing was run."
                )
            if version < _SCHEMA_VERSION:
                for statement in _SCHEMA.split(";"):
                    inside.execute(statement)
                inside.execute("insert or ignore into meta values('ledger_uuid', ?)", (os.urandom(16).hex(),))
                inside.execute(f"pragma application_id={_APPLICATION_ID}")
                inside.execute(f"pragma user_version={_SCHEMA_VERSION}")

    @contextmanager
    def transaction(self) -> Generator[sqlite3.Connection]:
        """Write in one transaction: durable when the block is left, undone if it raises."""
        with self._guard, self._writer_lock():
            connection = self._connection
            try:
                connection.execute("begin immediate")
                yield connection
                connection.execute("commit")
            except BaseException as exc:
                if connection.in_transaction:
                    connection.execute("rollback")
                if isinstance(exc, sqlite3.Error):
                    raise StoreError(
                        f"the ledger {self._path} could not be written: {exc}. What it held before stands: a marker whose start "
                        "could not be recorded was not executed, and one whose end could not be recorded is uncertain. Free space "
                        "or mend the disk, then start again."
                    ) from exc
                raise

    def row(self, query: str, values: tuple[object, ...]) -> tuple[Any, ...] | None:
        """Return the first row of a query, or None; readers take no lock."""
        with self._guard:
            try:
                found: tuple[Any, ...] | None = self._connection.execute(query, values).fetchone()
            except sqlite3.Error as exc:
                raise StoreError(
                    f"the ledger {self._path} could not be read: {exc}. Nothing was run. Restore it from a copy: removing it "
                    "forgets which effects have happened."
                ) from exc
            return found

    @contextmanager
    def _writer_lock(self) -> Generator[None]:
        if not self._path:
            yield
            return
        # one handle for all transactions: if an interrupt keeps the lock from being freed, the next transaction has it anyway
        self.fs.lock(self._writer, wait=True)
        try:
            yield
        finally:
            self.fs.unlock(self._writer)

    def usable(self) -> bool:
        """Tell whether this object is of this process and its file is still the one at its path."""
        if self._pid != os.getpid():
            return False
        return not self._path or self.fs.exists(self._path)


_open: dict[str, LedgerFile] = {}
_dropped: list[LedgerFile] = []
_opening = threading.Lock()


def open_ledger(location: str) -> LedgerFile:
    """Return the ledger at a location, opened once a process.

    Args:
        location: ``sqlite:PATH`` or ``memory:NAME``.

    Raises:
        StoreError: it cannot be used, or cannot be made durable there.
    """
    ledger = _open.get(location)
    if ledger is not None and ledger.usable():
        return ledger
    with _opening:
        ledger = _open.get(location)
        if ledger is None or not ledger.usable():
            if ledger is not None:
                _dropped.append(ledger)  # a parent's connection must not be closed by its forked child
            ledger = _open[location] = LedgerFile(location)
        return ledger


def _after_fork_in_child() -> None:
    global _opening
    _opening = threading.Lock()
    for ledger in _open.values():
        # the child's copy of the descriptor would keep the lock after its parent's death
        writer, ledger._writer = ledger._writer, -1
        if writer >= 0:
            ledger.fs.close(writer)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
