"""``atomic_marker``: a block that is completed once, whoever tries, and says so when that cannot be known.

A marker is a row of the ledger and a lock that the kernel holds for the process inside the block. Whoever has the lock and finds
the row STARTED knows that the process that started it is gone, and that nobody can tell how far it came.
"""

from __future__ import annotations

import os
import time
from base64 import b32encode
from contextvars import ContextVar
from threading import current_thread
from weakref import ref

from letitloop import failpoints
from letitloop.codecs import default_codecs
from letitloop.codecs.digest import sha256
from letitloop.codecs.fingerprint import type_name
from letitloop.effects.ledger_file import LedgerFile, open_ledger
from letitloop.errors import AsyncMisuse, InvalidArgument, LogLocked, StepOutsideRun, UnknownOutcome
from letitloop.runs.failures import text_of
from letitloop.runs.identity import escape
from letitloop.runs.importing import check_may_run
from letitloop.runs.scope import current_scope, restore, running_loop
from letitloop.store.directory import resolve_store
from letitloop.wal.lock import Lock
from letitloop.wal.lock import remove as remove_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from contextvars import Token
    from types import TracebackType
    from typing import Literal

    from letitloop.codecs import Codecs
    from letitloop.runs.run import Run
    from letitloop.store.protocol import Store

__all__ = ["Marker", "MarkerState", "atomic_marker", "marker_states"]

_HALTED = (
    'It was not run again. Find out at the provider; then use on_uncertain="run" and, if it did happen, leave the block without '
    "acting (marker.uncertain tells), which completes it."
)

# weakly: a block whose end was cut off by Ctrl+C must not be held, and locked, by this
_held: ContextVar[tuple[ref[_MarkerContext], ...]] = ContextVar("letitloop_markers", default=())


class Marker:
    """What the block of an :func:`atomic_marker` gets; true if the block is to act.

    Attributes:
        uncertain: an earlier process died inside the block: the action may have happened.
        idempotency_key: the same string each time this marker is tried, for providers that take one.
        result: what an earlier completion recorded with :meth:`record`, else None.
    """

    __slots__ = ("_before", "_codecs", "_encoded", "_execute", "idempotency_key", "result", "uncertain")

    def __init__(self, *, execute: bool, uncertain: bool, idempotency_key: str, result: object, codecs: Codecs) -> None:
        self._execute = execute
        self._codecs = codecs
        self._encoded: bytes | None = None
        self.uncertain = uncertain
        self.idempotency_key = idempotency_key
        self.result = result

    def __bool__(self) -> bool:
        return self._execute

    def __repr__(self) -> str:
        return f"<marker {'to execute' if self._execute else 'completed'}{', uncertain' if self.uncertain else ''}>"

    def record(self, value: object) -> None:
        """Keep a value with the marker's completion; later runs find it in ``result``.

        Args:
            value: anything that the codecs can record.

        Raises:
            UnencodableError: it cannot be recorded; record something else before the block ends.
            InvalidArgument: the marker was completed before, and its value stands.
        """
        if not self._execute:
            raise InvalidArgument(
                "this marker was completed before; its recorded value stands. Record inside `if should_execute:`."
            )
        self._encoded = self._codecs.encode(value, path="record(value)")
        self.result = value


def atomic_marker(
    name: str,
    *,
    on_uncertain: Literal["run", "halt"] = "run",
    namespace: str | None = None,
    store: Store | str | os.PathLike[str] | None = None,
) -> _MarkerContext:
    """Guard a block so that it is completed once.

    ``with atomic_marker("mail") as should_execute:``, then act ``if should_execute:``.

    The marker belongs to the run and scope it stands in. Threads and processes that meet at one marker take turns. Leaving the
    block normally completes it; an exception leaves it open. If a process died inside the block, the next one is told
    (``uncertain``).

    Args:
        name: the marker's name in its scope, 1 to 512 characters.
        on_uncertain: what follows a death, or an exception, inside the block: ``"run"`` it again, or ``"halt"`` with
            :class:`UnknownOutcome`.
        namespace: what the marker belongs to instead of the run, for one that several runs or programs share.
        store: whose ledger, outside a run; the run's store inside one.

    Returns:
        A context manager, for ``with`` and ``async with``, that gives a :class:`Marker`.

    Raises:
        StepOutsideRun: there is no run here and no ``namespace``.
        InvalidArgument: a value means nothing, or the marker is entered inside itself.
        UnknownOutcome: it is uncertain and ``on_uncertain="halt"``.
        StoreError: the ledger cannot be used.

    Example:
        >>> from letitloop import atomic_marker, durable
        >>> sent = []
        >>> @durable(goal_id="marker-example", store="memory:marker-example", on_complete="restart")
        ... def notify() -> None:
        ...     for _ in range(2):
        ...         with atomic_marker("slack") as should_execute:
        ...             if should_execute:
        ...                 sent.append("hello")
        >>> notify()
        >>> sent
        ['hello']
    """
    if on_uncertain not in ("run", "halt"):
        raise InvalidArgument(f"atomic_marker(on_uncertain={on_uncertain!r}): it is 'run' or 'halt'. Nothing was run.")
    scope = current_scope()
    run = scope.run if scope is not None and scope.run.active else None
    if namespace is None and (scope is None or run is None):
        raise StepOutsideRun(
            f"marker {name!r} was used outside any run, so nothing tells to which it belongs; its block was not executed. Use it "
            "in a function decorated with @durable, or pass namespace=… for a marker that is done once for all."
        )
    key = escape(name, "marker")
    if namespace is not None:
        escape(namespace, "marker namespace")
    if namespace is None and scope is not None and run is not None:
        key = scope.prefix.decode("utf-8", "surrogatepass") + key
        owner = f"run/{run.instance}"
    else:
        owner = f"marker/{namespace}"
    where = run.store if run is not None and store is None else resolve_store(store)
    codecs = run.codecs if run is not None else default_codecs
    return _MarkerContext(where.ledger, owner, key, run, codecs, on_uncertain)


class _MarkerContext:
    """The context manager of one marker; its way in and its way out are each one durable transaction."""

    __slots__ = (
        "__weakref__",
        "_before",
        "_codecs",
        "_key",
        "_ledger",
        "_location",
        "_lock",
        "_marker",
        "_namespace",
        "_on_uncertain",
        "_run",
        "_token",
        "_who",
    )

    def __init__(self, location: str, namespace: str, key: str, run: Run | None, codecs: Codecs, on_uncertain: str) -> None:
        self._location = location
        self._namespace = namespace
        self._key = key
        self._run = run
        self._codecs = codecs
        self._on_uncertain = on_uncertain
        self._ledger: LedgerFile | None = None
        self._who: object = None
        self._lock: Lock | None = None
        self._marker: Marker | None = None
        self._before: tuple[object, ...] | None = None  # the row that was there when the block was entered
        self._token: Token[tuple[ref[_MarkerContext], ...]] | None = None

    # --- the context manager's four doors ------------------------------------------------------------------------------------

    def __enter__(self) -> Marker:
        self._refuse_nesting()
        self._who = _whoever()
        marker = self._enter()
        try:
            self._token = _held.set((*_held.get(), ref(self)))
        except BaseException:  # Ctrl+C: the block is not entered, so __exit__ will not be called
            self._undo()
            raise
        return marker

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        try:
            if self._token is not None:
                restore(_held, self._token)
        finally:
            self._exit(exc)

    async def __aenter__(self) -> Marker:
        from letitloop.runs.drive_async import acquire_in_thread

        self._refuse_nesting()
        self._who = _whoever()
        marker = await acquire_in_thread(self._enter, lambda _: self._undo())
        self._token = _held.set((*_held.get(), ref(self)))
        return marker

    async def __aexit__(self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        from letitloop.runs.drive_async import in_thread

        if self._token is not None:
            restore(_held, self._token)
        await in_thread(lambda: self._exit(exc))

    def inside(self, namespace: str, key: str) -> bool:
        """Tell whether this is that marker, and its block is being executed."""
        held = self._lock is not None and self._lock.held
        return held and (self._namespace, self._key) == (namespace, key)

    def _refuse_nesting(self) -> None:
        around = [context for held in _held.get() if (context := held()) is not None]
        if any(context.inside(self._namespace, self._key) for context in around):
            raise InvalidArgument(
                f"marker {self._key!r} was entered inside itself and would wait for ever; its block was not executed."
            )

    # --- the way in ----------------------------------------------------------------------------------------------------------

    def _enter(self) -> Marker:
        check_may_run("the block of a marker")
        ledger = self._ledger = open_ledger(self._location)
        done = self._completed(ledger)
        if done is not None:
            self._tell_again()
            return done
        if self._run is not None:
            self._run.about_to_act(self._key)
        digest = sha256(f"{self._namespace}\0{self._key}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
        # the kernel frees it when the process dies, so whoever holds it knows that nobody else is inside
        self._lock = self._acquire(ledger, os.path.join(ledger.owners, f"marker-{digest}"))
        try:
            done = self._completed(ledger)  # by whoever held the lock meanwhile; a completed marker is false, and not None
            return self._start(ledger) if done is None else done
        except BaseException:
            self._release()
            raise

    def _acquire(self, ledger: LedgerFile, path: str) -> Lock:
        if running_loop() is None:
            return Lock.acquire(ledger.fs, path, wait=True)
        try:
            return Lock.acquire(ledger.fs, path, wait=False)
        except LogLocked as exc:
            if exc.pid == os.getpid():
                raise AsyncMisuse(
                    f"marker {self._key!r} is held by another task or thread of this process, and waiting for it here would stop "
                    "the event loop for ever. Its block was not executed. Use `async with atomic_marker(…)` in async code."
                ) from None
        return Lock.acquire(ledger.fs, path, wait=True)

    def _tell_again(self) -> None:
        """Warn, once a marker, whoever meets a marker that it has completed itself: in a loop that skips all but the first."""
        if self._run is not None and self._run.markers.get((self._namespace, self._key)) == self._who:
            import logging

            self._run.markers.pop((self._namespace, self._key))
            logging.getLogger("letitloop").warning(
                "letitloop: marker %r of run %s is met again by the task that completed it, and its block is skipped: a marker is "
                "completed once in its scope. In a loop, give each its own name, or open a scope for each item.",
                self._key,
                self._run.id,
            )

    def _completed(self, ledger: LedgerFile) -> Marker | None:
        row = ledger.row(
            "select state, idempotency_key, result from marker where namespace=? and name=?", (self._namespace, self._key)
        )
        if row is None or row[0] != "DONE":
            return None
        self._release()
        result = None if row[2] is None else self._codecs.decode(row[2])
        self._marker = Marker(execute=False, uncertain=False, idempotency_key=row[1], result=result, codecs=self._codecs)
        return self._marker

    def _start(self, ledger: LedgerFile) -> Marker:
        where = (self._namespace, self._key)
        row = self._before = ledger.row("select attempts, owner, started, error from marker where namespace=? and name=?", where)
        if row is not None and self._on_uncertain == "halt":
            halted = UnknownOutcome(self._uncertain(row, _HALTED), namespace=self._namespace, key=self._key)
            if self._run is not None:
                self._run.halt(halted)
            raise halted
        if row is not None:
            import logging  # 14 ms of import, for an action whose outcome is uncertain

            logging.getLogger("letitloop").warning("letitloop: %s", self._uncertain(row, "Its block runs again."))
        if self._run is not None and self._namespace.startswith("run/"):
            self._run.effect(self._key)
        if failpoints.active:
            failpoints.hit("marker.before_start")
        key = _idempotency_key(*where)
        with ledger.transaction() as inside:
            inside.execute(
                "insert into marker(namespace, name, state, idempotency_key, attempts, owner, started)"
                " values(?,?,'STARTED',?,1,?,?)"
                " on conflict do update set attempts=attempts+1, owner=excluded.owner, started=excluded.started, error=null",
                (*where, key, f"pid {os.getpid()}", time.time()),
            )
        if failpoints.active:
            failpoints.hit("marker.started")
        self._marker = Marker(execute=True, uncertain=row is not None, idempotency_key=key, result=None, codecs=self._codecs)
        return self._marker

    def _uncertain(self, row: tuple[object, ...], what_now: str) -> str:
        attempts, owner, started, error = row
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(started)))  # type: ignore[arg-type]  # a REAL column
        how = f"its block raised {error}" if error else f"{owner} died inside its block"
        of = f"run {self._run.id}" if self._run is not None else self._namespace
        return (
            f"marker {self._key!r} of {of}: attempt {attempts} began on {at} and {how}, so its action may or may not have "
            f"happened. {what_now}"
        )

    # --- the way out ---------------------------------------------------------------------------------------------------------

    def _exit(self, exc: BaseException | None) -> None:
        marker, ledger = self._marker, self._ledger
        try:
            if marker is None or ledger is None or not marker or self._lock is None or not self._lock.held:
                return  # nothing was begun, or this is a child forked inside the block: it is its parent's
            if failpoints.active:
                failpoints.hit("marker.before_done")
            where = (self._namespace, self._key)
            with ledger.transaction() as inside:
                if exc is None:
                    inside.execute(
                        "update marker set state='DONE', finished=?, error=null, result=? where namespace=? and name=?",
                        (time.time(), marker._encoded, *where),
                    )
                else:
                    text = f"{type_name(type(exc)).rpartition(':')[2]}: {text_of(exc)}"[:500].encode("utf-8", "replace").decode()
                    inside.execute("update marker set error=? where namespace=? and name=?", (text, *where))
            if exc is None and self._run is not None:
                self._run.markers[where] = self._who
            if failpoints.active:
                failpoints.hit("marker.done")
        finally:
            self._release()

    def _undo(self) -> None:
        """Put the row back as it was: the task was cancelled before its block began, so certainly nothing happened."""
        try:
            if self._marker and self._ledger is not None:
                where = (self._namespace, self._key)
                with self._ledger.transaction() as inside:
                    if self._before is None:
                        inside.execute("delete from marker where namespace=? and name=?", where)
                    else:
                        inside.execute(
                            "update marker set attempts=?, owner=?, started=?, error=? where namespace=? and name=?",
                            (*self._before, *where),
                        )
        finally:
            self._release()

    def _release(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None and self._ledger is not None:
            remove_lock(self._ledger.fs, lock)


def _whoever() -> object:
    """Return what stands for the task, or for the thread, that runs this."""
    if running_loop() is not None:
        from asyncio import current_task

        return current_task()
    return current_thread()


def _idempotency_key(namespace: str, name: str) -> str:
    """Return 40 characters that name the action, and reveal nothing of it."""
    digest = sha256(f"lil1\0{namespace}\0{name}".encode("utf-8", "surrogatepass")).digest()
    return b32encode(digest).decode().lower()[:40]


# --- looking at markers ------------------------------------------------------------------------------------------------------


class MarkerState:
    """What the ledger knows of one marker.

    Attributes:
        state: ``"DONE"``, or ``"STARTED"``: its block was entered and not completed.
        attempts: how often its block was entered to act.
        owner: who entered it last, ``pid N``.
        started: when that was, in seconds since 1970-01-01 UTC.
        finished: when it was completed, in seconds since 1970-01-01 UTC; 0 if it was not.
        error: class and message of an exception that left the block, else empty.
    """

    __slots__ = ("attempts", "error", "finished", "owner", "started", "state")

    def __init__(self, state: str, attempts: int, owner: str, started: float, finished: float, error: str) -> None:
        self.state = state
        self.attempts = attempts
        self.owner = owner
        self.started = started
        self.finished = finished
        self.error = error

    def __repr__(self) -> str:
        return f"<{self.state} in attempt {self.attempts}>"


def marker_states(location: str, instance: str) -> dict[str, MarkerState]:
    """Return what a ledger knows of a run's markers, by their keys; no ledger is made where there is none.

    Args:
        location: ``sqlite:PATH`` or ``memory:NAME``.
        instance: the run's, as its log's first record has it.

    Raises:
        StoreError: the ledger is damaged, another program's, or cannot be read.
    """
    from letitloop.effects.reading import read

    return read(location, lambda inside: _states(inside, instance), {}, version=1)


def _states(connection: sqlite3.Connection, instance: str) -> dict[str, MarkerState]:
    rows = connection.execute(
        "select name, state, attempts, owner, started, finished, error from marker where namespace=? order by name",
        (f"run/{instance}",),
    )
    return {
        name: MarkerState(state, attempts, owner, started, finished or 0.0, error or "")
        for name, state, attempts, owner, started, finished, error in rows
    }
