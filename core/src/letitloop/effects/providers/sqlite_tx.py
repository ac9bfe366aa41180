"""Actions in the user's own SQLite database, each exactly once: its effect and its receipt are one transaction.

The receipt is a row of the table ``lil_receipt`` whose primary key is the provider key, written in the transaction that the
operation writes in. There is a row if and only if the effect is there. A tombstone is a row of another kind: whoever comes later
finds it, inside the transaction that it would have acted in, and rolls back.

The operation cannot end that transaction. While it runs, SQLite is told to refuse BEGIN, COMMIT, ROLLBACK, ATTACH and DETACH, and
every statement once an error has rolled the transaction back.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from contextlib import closing
from urllib.parse import quote

from letitloop.codecs import default_codecs
from letitloop.effects.provider import (
    Caps,
    Found,
    NotExecuted,
    NotFound,
    StillRunning,
    Succeeded,
    Unavailable,
    Unknown,
)
from letitloop.effects.providers.receipts import PERMANENT, differing, digests, stated
from letitloop.errors import InvalidArgument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from letitloop.effects.provider import Answer, Dispatch, Reply

__all__ = ["SqliteProvider"]

_TABLE = """
create table if not exists lil_receipt(
    provider_key text primary key,
    kind text not null check(kind in ('done', 'tombstone', 'rejected')),
    operation text not null,
    arguments text not null,  -- a hash of each, by name
    result blob,              -- of what is done, as letitloop's codecs write it
    reason text,              -- of what is not
    written real not null
)
"""
_ROW = "select kind, operation, arguments, result, reason from lil_receipt where provider_key = ?"
_FORBIDDEN = (22, 24, 25)  # the authorizer's codes for BEGIN, COMMIT and ROLLBACK, for ATTACH, and for DETACH
_BUSY = (5, 6)  # SQLITE_BUSY, SQLITE_LOCKED


class _Row:
    """A row of ``lil_receipt``."""

    def __init__(self, kind: str, operation: str, arguments: str, result: bytes | None, reason: str | None) -> None:
        self.kind = kind
        self.operation = operation
        self.arguments: dict[str, str] = json.loads(arguments)
        self.encoded = result
        self.reason = reason or ""

    def result(self) -> object:
        return None if self.encoded is None else default_codecs.decode(self.encoded)

    def refusal(self, key: str) -> NotExecuted:
        if self.kind == "tombstone":
            return NotExecuted(
                "tombstoned", f"lil_receipt holds a tombstone for {key}: the action did not happen and cannot any more"
            )
        return NotExecuted("rejected", f"{self.reason}; it was rolled back, and lil_receipt ends the key {key}")


class SqliteProvider:
    """Carries out operations in a SQLite database, each exactly once.

    An operation is a function of a connection and the arguments. It writes through that connection only, and returns what the
    caller gets; letitloop's codecs must be able to record it. It leaves the transaction to the provider. If it raises, all that it
    wrote is rolled back and the action is rejected, for good.

    The table ``lil_receipt`` is created in the database. Its rows are the receipts: deleting one forgets that the action happened.
    A connection is opened for each call and closed after it, so that several threads and processes may use the provider at once.
    Commits are made with ``synchronous=EXTRA``: they survive a power cut in every journal mode.

    Args:
        path: the database's file; it must exist.
        operations: what can be done, by the operation's name.
        name: what the provider is called in the ledger.
        timeout: how long to wait for another writer, in seconds.
        on_connect: called with each new connection, outside any transaction: for pragmas, functions, a row factory.

    Raises:
        InvalidArgument: there is no such file, or an operation is no function.

    Example:
        >>> import sqlite3, time
        >>> from letitloop.effects.provider import Dispatch
        >>> shop = sqlite3.connect("shop.db")
        >>> _ = shop.execute("create table stock(item text primary key, pieces int)")
        >>> _ = shop.execute("insert into stock values('lamp', 10)")
        >>> shop.commit()
        >>> def take(connection, arguments):
        ...     connection.execute("update stock set pieces = pieces - :pieces where item = :item", arguments)
        ...     return connection.execute("select pieces from stock where item = :item", arguments).fetchone()[0]
        >>> provider = SqliteProvider("shop.db", {"take": take})
        >>> dispatch = Dispatch("shop", "order/1", 1, 1, "k" * 40, "take", {"item": "lamp", "pieces": 3}, time.time())
        >>> provider.execute(dispatch).result
        7
        >>> provider.execute(dispatch)  # again: the receipt answers
        Succeeded(result=7, receipt={'lil_receipt': 'kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk'}, basis='replay')
        >>> shop.close()
    """

    caps = Caps(redispatch=PERMANENT, lookup="strong", tombstone=True, atomic=True)

    def __init__(
        self,
        path: str | os.PathLike[str],
        operations: Mapping[str, Callable[[sqlite3.Connection, Mapping[str, Any]], object]],
        *,
        name: str = "sqlite",
        timeout: float = 30.0,
        on_connect: Callable[[sqlite3.Connection], object] | None = None,
    ) -> None:
        self._path: str = os.path.realpath(os.fspath(path))
        if not os.path.isfile(self._path):
            raise InvalidArgument(
                f"SqliteProvider({self._path!r}): there is no such file. Nothing was done. Create the database first."
            )
        for operation, function in operations.items():
            if not callable(function):
                raise InvalidArgument(f"the operation {operation!r} is {function!r}, which is no function. Nothing was done.")
        self.name = name
        self._operations = dict(operations)
        self._timeout = timeout
        self._on_connect = on_connect

    def __repr__(self) -> str:
        return f"SqliteProvider({self._path!r}, {sorted(self._operations)})"

    def identity(self) -> str:
        """Return the path of the database."""
        return f"sqlite/1 {self._path.encode('utf-8', 'backslashreplace').decode()}"

    def validate(self, operation: str, arguments: Mapping[str, Any]) -> None:
        """Check that there is such an operation.

        Raises:
            InvalidArgument: there is none; nothing was recorded or written.
        """
        if operation not in self._operations:
            raise InvalidArgument(
                f"{operation!r} is none of {sorted(self._operations)}, the operations of {self!r}. Nothing was done."
            )

    def execute(self, dispatch: Dispatch) -> Reply:
        """Run the operation and write its receipt in one transaction, or answer with the receipt that is there."""
        self.validate(dispatch.operation, dispatch.arguments)
        guard = _Guard()
        try:
            connection = self._connect(guard)
        except Exception as exc:
            return NotExecuted("not_sent", f"the database could not be opened: {exc}")
        with closing(connection):
            try:
                connection.execute("begin immediate")
                row = _found(connection, dispatch.provider_key)
            except sqlite3.Error as exc:
                return NotExecuted("not_sent", f"no transaction could be begun: {exc}")
            if row is not None:
                return _repeated(row, dispatch)
            try:
                # outside a transaction, Python now begins one before it changes data: which the guard refuses, even for a statement
                # that was compiled before (Python 3.10 caches some whatever it is told)
                connection.isolation_level = "DEFERRED"
                with guard:
                    result = self._operations[dispatch.operation](connection, dispatch.arguments)
                    # a statement that failed may have undone everything, whatever the operation made of its error
                    if not connection.in_transaction:
                        raise sqlite3.OperationalError("an error inside the operation rolled its transaction back")
                encoded = default_codecs.encode(result)
                _insert(connection, dispatch, "done", encoded, None)
            except Exception as exc:
                return self._reject(connection, dispatch, exc)
            try:
                connection.execute("commit")
            except sqlite3.IntegrityError as exc:  # a constraint that is checked here: the transaction is still open
                return self._reject(connection, dispatch, exc)
            except sqlite3.Error as exc:
                failure = f"the commit failed: {exc}"
            else:
                return Succeeded(result, {"lil_receipt": dispatch.provider_key}, "tx")
        return self._after_commit(dispatch, failure)

    def reconcile(self, dispatch: Dispatch) -> Answer:
        """Read the receipt; a transaction that is still open cannot be seen, so nothing found is no proof."""
        try:
            with closing(self._connect(_Guard())) as connection:
                row = _found(connection, dispatch.provider_key)
        except sqlite3.Error as exc:
            return _unavailable(exc)
        return NotFound("there is no receipt") if row is None else _answer(row, dispatch)

    def tombstone(self, dispatch: Dispatch) -> Found | StillRunning | NotExecuted | Unavailable:
        """Write a tombstone unless there is a receipt: SQLite has one writer, so no transaction is open that could add one."""
        try:
            with closing(self._connect(_Guard())) as connection:
                connection.execute("begin immediate")
                row = _found(connection, dispatch.provider_key)
                if row is None:
                    _insert(connection, dispatch, "tombstone", None, None)
                    row = _found(connection, dispatch.provider_key)
                    assert row is not None, "it was inserted"
                    connection.execute("commit")
        except sqlite3.Error as exc:
            return _unavailable(exc)
        return _answer(row, dispatch)

    def _connect(self, guard: _Guard) -> sqlite3.Connection:
        # no cached statements: what the guard refuses is refused when a statement is compiled
        connection = sqlite3.connect(
            f"file:{quote(os.fsencode(self._path))}?mode=rw",
            uri=True,
            timeout=self._timeout,
            isolation_level=None,
            cached_statements=0,
        )
        try:
            connection.execute("pragma synchronous=extra")
            if self._on_connect is not None:
                self._on_connect(connection)
            guard.watch(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _reject(self, connection: sqlite3.Connection, dispatch: Dispatch, exc: Exception) -> Reply:
        """Undo what the operation wrote, and end the key: a sending of the same key that is under way elsewhere finds that."""
        what = f"{type(exc).__module__}.{type(exc).__qualname__}: {exc}"
        try:
            if connection.in_transaction:
                connection.execute("rollback")
            connection.execute("begin immediate")
            row = _found(connection, dispatch.provider_key)
            if row is not None:
                return _repeated(row, dispatch)
            _insert(connection, dispatch, "rejected", None, f"the operation raised {what}")
            connection.execute("commit")
        except sqlite3.Error as error:
            return self._after_commit(dispatch, f"the operation raised {what}, and its end could not be recorded: {error}")
        return NotExecuted("rejected", f"the operation raised {what}; it was rolled back", {"error": what})

    def _after_commit(self, dispatch: Dispatch, failure: str) -> Reply:
        """Look at the receipt where it cannot be told what became of a transaction."""
        try:
            with closing(self._connect(_Guard())) as connection:
                row = _found(connection, dispatch.provider_key)
        except sqlite3.Error as exc:
            return Unknown(f"{failure}; and the receipt could not be read: {exc}")
        if row is None:
            return Unknown(f"{failure}; and there is no receipt now")
        answer = _repeated(row, dispatch)
        return Succeeded(answer.result, answer.receipt, "tx") if isinstance(answer, Succeeded) else answer


class _Guard:
    """Keeps an operation from ending the transaction that it runs in."""

    def __init__(self) -> None:
        self._on = False

    def watch(self, connection: sqlite3.Connection) -> None:
        def authorize(action: int, *_: str | None) -> int:
            if self._on and (action in _FORBIDDEN or not connection.in_transaction):
                return sqlite3.SQLITE_DENY
            return sqlite3.SQLITE_OK

        connection.set_authorizer(authorize)

    def __enter__(self) -> None:
        self._on = True

    def __exit__(self, *_: object) -> None:
        self._on = False


def _found(connection: sqlite3.Connection, key: str) -> _Row | None:
    cursor = connection.cursor()
    cursor.row_factory = None  # the user's is for the operations
    if cursor.execute("select 1 from sqlite_master where type = 'table' and name = 'lil_receipt'").fetchone() is None:
        return None
    row = cursor.execute(_ROW, (key,)).fetchone()
    return None if row is None else _Row(*row)


def _insert(connection: sqlite3.Connection, dispatch: Dispatch, kind: str, result: bytes | None, reason: str | None) -> None:
    arguments = json.dumps(digests(dispatch.arguments), sort_keys=True)
    values = (dispatch.provider_key, kind, dispatch.operation, arguments, result, reason, time.time())
    connection.execute(_TABLE)
    connection.execute("insert into lil_receipt values(?, ?, ?, ?, ?, ?, ?)", values)


def _repeated(row: _Row, dispatch: Dispatch) -> Reply:
    """Answer a repeat of a key from its row."""
    if row.kind != "done":
        return row.refusal(dispatch.provider_key)
    wrong = differing(row.arguments, dispatch.arguments)
    if row.operation != dispatch.operation or wrong:
        return Unknown(f"this key has the receipt of another action ({row.operation}; differing: {wrong}). Nothing was done now.")
    return Succeeded(row.result(), {"lil_receipt": dispatch.provider_key}, "replay")


def _answer(row: _Row, dispatch: Dispatch) -> Found | NotExecuted:
    if row.kind != "done":
        return row.refusal(dispatch.provider_key)
    arguments = stated(row.arguments, dispatch.arguments)
    return Found(row.result(), dispatch.provider_key, arguments, {"lil_receipt": dispatch.provider_key})


def _unavailable(exc: sqlite3.Error) -> StillRunning | Unavailable:
    code = getattr(exc, "sqlite_errorcode", None)  # 3.11 and later
    busy = code & 0xFF in _BUSY if code is not None else "locked" in str(exc)
    if busy:
        return StillRunning(f"a writer holds the database, and it may be this dispatch: {exc}")
    return Unavailable(f"the database could not be asked: {exc}")
