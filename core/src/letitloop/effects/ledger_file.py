"""The ledger's SQLite file: opened so that a commit survives a power cut, and written by one process at a time.

Tables: ``marker`` (:mod:`letitloop.effects.marker`), and ``intent``, ``event``, ``stub`` and ``ticket``
(:mod:`letitloop.effects.intents`). A sibling file ``<path>-mark`` holds the number of the newest event: a ledger that is older than
it was restored from a copy, and has forgotten actions that happened.

``journal_mode=WAL`` with ``synchronous=FULL``, both read back: in the power-loss model, WAL with FULL loses no acknowledged
commit, while a rollback journal with FULL can lose one whose journal had not yet been unlinked on disk. A writer takes a file
lock before ``BEGIN IMMEDIATE``: SQLite's own busy handler sleeps, and under contention that costs tens of milliseconds.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import contextmanager

from letitloop import failpoints
from letitloop.effects.owners import Owner, is_alive, is_working
from letitloop.errors import StoreError
from letitloop.wal.files import default_fs
from letitloop.wal.memory import MemoryFs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

    from letitloop.wal.files import Fs

__all__ = ["LedgerFile", "close_ledger", "close_ledgers", "open_ledger"]

_APPLICATION_ID = 0x4C494C31  # "LIL1"
_SCHEMA_VERSION = 2
_MARK = "-mark"
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
create table if not exists intent(
    namespace text not null,
    key text not null,
    state text not null check(state in ('PREPARED', 'DISPATCHED', 'SUCCEEDED', 'FAILED', 'UNKNOWN', 'CANCELLED')),
    attempt integer not null,
    epoch integer not null,
    sends integer not null,
    operation text not null,
    provider text not null,
    identity text not null,
    arguments blob not null,
    payload blob not null,
    created real not null,
    updated real not null,
    owner text,
    dispatched_at real,
    key_expires_at real,
    next_check_at real,
    checks integer not null,
    group_key text,
    amount integer,
    max_intents integer,
    max_sum integer,
    approval text check(approval in ('pending', 'granted', 'consumed')),
    approval_ttl real,
    approval_expires real,
    approval_payload blob,
    approver text,
    result blob,
    receipt blob,
    basis text,
    kind text,
    failure text,
    detail blob,
    retry integer not null,
    run_id text,
    step_key text,
    compensates text,
    ticket text,
    version integer not null,
    primary key(namespace, key)
){_STRICT[1:] + ", " if _STRICT else ""}without rowid;
create index if not exists intent_waiting on intent(state, next_check_at) where state in ('PREPARED', 'UNKNOWN');
create index if not exists intent_group on intent(namespace, group_key) where group_key is not null;
create index if not exists intent_compensates on intent(compensates) where compensates is not null;
create table if not exists event(
    seq integer primary key,
    namespace text not null,
    key text not null,
    attempt integer not null,
    epoch integer not null,
    at real not null,
    kind text not null,
    before text not null,
    after text not null,
    actor text not null,
    evidence blob
){_STRICT};
create index if not exists event_anomaly on event(kind) where kind = 'anomaly';
create table if not exists stub(
    namespace text not null,
    key text not null,
    state text not null,
    payload blob not null,
    result_sha blob,
    group_key text,
    amount integer,
    primary key(namespace, key)
){_STRICT[1:] + ", " if _STRICT else ""}without rowid;
create index if not exists stub_group on stub(namespace, group_key) where group_key is not null;
create table if not exists ticket(
    id text primary key,
    operation text not null,
    terms blob not null,
    created real not null,
    used_namespace text,
    used_key text
){_STRICT}
"""
APPEND_ONLY = """
create trigger if not exists event_kept before delete on event begin select raise(abort, 'events are append only'); end;
create trigger if not exists event_unchanged before update on event begin select raise(abort, 'events are append only'); end
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
        self.owners = _owners(self._path)
        self.poisoned = False
        self._owner: Owner | None = None
        self._high = 0
        self._pid = os.getpid()
        self._guard = threading.Lock()
        self._writer = self._mark = -1
        try:
            self._prepare()
            self._connection = sqlite3.connect(self._path or ":memory:", isolation_level=None, timeout=30, check_same_thread=False)
            try:
                self._set_up()
            except BaseException:
                self._connection.close()
                self._close_files()
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
        # SQLite answers "locked" at once, without waiting, where two connections change a new file to WAL side by side
        with self._locked():
            if self._path:
                self._be_durable()
            with self._in_transaction() as inside:
                self._make_tables(inside)

    def _be_durable(self) -> None:
        connection = self._connection
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

    def _make_tables(self, inside: sqlite3.Connection) -> None:
        found = inside.execute("pragma application_id").fetchone()[0]
        version = inside.execute("pragma user_version").fetchone()[0]
        fresh = found == version == inside.execute("select count(*) from sqlite_master").fetchone()[0] == 0
        if not fresh and (found != _APPLICATION_ID or version > _SCHEMA_VERSION):
            raise StoreError(
                f"{self._path} is {'a newer ledger' if found == _APPLICATION_ID else 'no ledger of letitloop'} (application id "
                f"{found:#x}, version {version}). It was left as it is and nothing was run."
            )
        if version < _SCHEMA_VERSION:
            for statement in _SCHEMA.split(";"):
                inside.execute(statement)
            for statement in APPEND_ONLY.strip().split("\n"):
                inside.execute(statement)
            inside.execute("insert or ignore into meta values('ledger_uuid', ?)", (os.urandom(16).hex(),))
            inside.execute(f"pragma application_id={_APPLICATION_ID}")
            inside.execute(f"pragma user_version={_SCHEMA_VERSION}")
        self._file = _identity(self._path)
        self.uuid: str = inside.execute("select v from meta where k='ledger_uuid'").fetchone()[0]

    @contextmanager
    def transaction(self) -> Generator[sqlite3.Connection]:
        """Write in one transaction: durable when the block is left, undone if it raises."""
        with self._locked(), self._in_transaction() as inside:
            yield inside

    @contextmanager
    def _locked(self) -> Generator[None]:
        with self._guard:
            # one handle for all transactions: if an interrupt keeps the lock from being freed, the next one has it anyway
            if self._path:
                self.fs.lock(self._writer, wait=True)
            try:
                yield
            finally:
                if self._path:
                    self.fs.unlock(self._writer)

    @contextmanager
    def _in_transaction(self) -> Generator[sqlite3.Connection]:
        connection = self._connection
        if self.poisoned:
            raise StoreError(
                f"a write to the ledger {self._path} failed earlier in this process, and this handle of it is not used again. "
                "Nothing was run."
            )
        try:
            connection.execute("begin immediate")
            yield connection
            if failpoints.active:
                failpoints.hit("ledger.commit")
            connection.execute("commit")
        except BaseException as exc:
            if connection.in_transaction:
                connection.execute("rollback")
            self._high = 0
            if isinstance(exc, (sqlite3.Error, OSError)):
                raise StoreError(
                    f"the ledger {self._path} could not be written: {exc}. What it held before stands: an action whose start "
                    "could not be recorded was not executed, and one whose end could not be recorded is uncertain. Free space "
                    "or mend the disk, then start again."
                ) from exc
            raise
        self._write_mark()

    def rows(self, query: str, values: tuple[object, ...] | dict[str, object]) -> list[tuple[Any, ...]]:
        """Return all rows of a query; readers take no lock."""
        with self._guard:
            try:
                return self._connection.execute(query, values).fetchall()
            except sqlite3.Error as exc:
                raise StoreError(
                    f"the ledger {self._path} could not be read: {exc}. Nothing was run. Restore it from a copy: removing it "
                    "forgets which effects have happened."
                ) from exc

    def row(self, query: str, values: tuple[object, ...]) -> tuple[Any, ...] | None:
        """Return the first row of a query, or None."""
        found = self.rows(query, values)
        return found[0] if found else None

    def _close_files(self) -> None:
        for handle in (self._writer, self._mark):
            if handle >= 0:
                self.fs.close(handle)
        self._writer = self._mark = -1

    # --- who is alive --------------------------------------------------------------------------------------------------------

    @property
    def owner(self) -> Owner:
        """This process, as an owner of dispatches; its lock is taken at the first use."""
        if self._owner is None:
            with self._guard:
                if self._owner is None:
                    self._owner = Owner(self.fs, self.owners)
        return self._owner

    def close(self) -> None:
        """Close the file; this object is used no more, and owns nothing: what it was working on is open.

        Waits for a transaction that another thread is in.
        """
        with self._guard:
            self.poisoned = True
            if self._owner is not None:
                self._owner.end()
            self._connection.close()
            self._close_files()

    def alive(self, name: str) -> bool:
        """Tell whether the process that rows call ``name`` lives."""
        return is_alive(self.fs, self.owners, name)

    def working(self, name: str, namespace: str, key: str, epoch: int) -> bool:
        """Tell whether the process that rows call ``name`` lives and has that dispatch under way."""
        return is_working(self.fs, self.owners, name, namespace, key, epoch)

    # --- how much it has seen ------------------------------------------------------------------------------------------------

    def advance(self, seq: int) -> None:
        """Tell, inside a transaction, the number of the newest event: it is noted beside the file once that is committed."""
        self._high = seq

    def _write_mark(self) -> None:
        if not self._high or not self._path:
            return
        try:
            if self._mark < 0:
                self._mark = self.fs.open(self._path + _MARK, write=True, create=True)
            # not synced: after a power cut it may be older than the ledger, which means nothing, and never newer
            self.fs.pwrite(self._mark, f"{self.uuid} {self._high:020d}\n".encode(), 0)
        except OSError:  # a full disk: what was committed stands, and the mark stays older
            pass
        self._high = 0

    def check_age(self, *, accept: bool) -> None:
        """Compare the ledger with the mark beside it.

        Args:
            accept: go on with a ledger that was restored from a copy, or put in another's place.

        Raises:
            StoreError: it is older than its mark, or another ledger than the mark's.
        """
        if not self._path or not self.fs.exists(self._path + _MARK):
            return
        handle = self.fs.open(self._path + _MARK, write=False)
        try:
            uuid, _, high = self.fs.pread(handle, 64, 0).decode("ascii", "replace").partition(" ")
        finally:
            self.fs.close(handle)
        row = self.row("select coalesce(max(seq), 0) from event", ())
        newest = row[0] if row is not None else 0
        if not high.strip().isdigit() or (uuid == self.uuid and int(high) <= newest):
            return
        if not accept:
            raise StoreError(
                f"the ledger {self._path} is not the one that was written last: "
                + (f"it ends with event {newest}, and {int(high)} were recorded" if uuid == self.uuid else "another lay there")
                + ". It was restored from a copy, or replaced, and has forgotten actions that happened since. Nothing was run. Put "
                "the newest file back; or look at the providers for what is missing, then open it once with accept_restored=True."
            )
        with self.transaction():
            self.advance(newest)

    def usable(self) -> bool:
        """Tell whether this object is of this process and its file is still the one at its path."""
        if self._pid != os.getpid() or self.poisoned:
            return False
        return self._file == _identity(self._path)


def _identity(path: str) -> tuple[int, int] | None:
    """Return what tells a file from another one that was put in its place; None of a ledger in memory."""
    try:
        found = os.stat(path) if path else None
    except OSError:
        return (0, 0)  # of no file
    return None if found is None else (found.st_dev, found.st_ino)


def _owners(path: str) -> str:
    """Return the directory of the owners' locks: a store's own, or one beside a ledger that a user named."""
    folder, name = os.path.split(path)
    return os.path.join(folder, "owners" if name in ("", "ledger.db") else f"{name}-owners")


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
                _drop(ledger)
            ledger = _open[location] = LedgerFile(location)
        return ledger


def _drop(ledger: LedgerFile) -> None:
    """Part with an opening that is of no use any more.

    Raises:
        StoreError: another file was put in its place, beside its log: nobody knows what the two come to.
    """
    if ledger._pid != os.getpid():
        _dropped.append(ledger)  # a parent's connection must not be closed by its forked child
        return
    if not ledger.poisoned and os.path.exists(ledger._path):
        raise StoreError(
            f"another file lies at {ledger._path} than when this process opened the ledger. Nothing was run. Stop every program "
            "that uses it, put the right file there, with no -wal and -shm of another, and start again."
        )
    ledger.close()


def close_ledger(location: str) -> None:
    """Close a ledger in this process, if it is open; whoever uses it again opens it again."""
    with _opening:
        ledger = _open.pop(location, None)
        if ledger is not None and ledger._pid == os.getpid():
            ledger.close()


def close_ledgers() -> None:
    """Close every ledger that this process has opened."""
    for location in list(_open):
        close_ledger(location)


def _after_fork_in_child() -> None:
    global _opening
    _opening = threading.Lock()
    for ledger in _open.values():
        if ledger._owner is not None:
            ledger._owner.abandon()
        # the child's copy of the descriptor would keep the lock after its parent's death
        ledger._close_files()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
