"""A thread's log is open while it is used, and for a moment after that: then another process may have it.

One timer thread closes what has been idle, for all savers of the process.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
import time
from typing import TYPE_CHECKING

from letitloop.errors import LogLocked
from letitloop.runs.opening import ROOM as _RUNS
from letitloop.runs.opening import seal_key_from
from letitloop.runs.records import GUARDED

if TYPE_CHECKING:
    from collections.abc import Callable

    from letitloop.store.protocol import Store
    from letitloop.wal.log import Log
    from letitloop.wal.recovery import View

__all__ = ["ROOM", "Lease", "log_name"]

ROOM = "threads"
"""The room of a store in which threads lie."""

IDLE = 1.0
"""Seconds for which an unused log stays open."""

GLANCE = 0.25
"""Seconds for which a log that was opened to look at it stays open."""

LIVE = 15.0
"""Seconds for which a log stays open while a task that recorded steps has not ended, or ended in a way that nobody tells."""

_POLL = 0.01
assert ROOM != _RUNS


class Lease:
    """The right to write a log, taken when it is needed and given back when it is idle.

    Attributes:
        log: the open log; None while another process may have it.
        users: how many operations are under way that need it open.
        guard: held for whatever is done with the state of a thread, never during a sync.
        patience: seconds to wait for another process.
    """

    def __init__(self, store: Store, name: str, *, sync: str, patience: float) -> None:
        self.store = store
        self.name = name
        self.log: Log | None = None
        self.users = 0
        self.guard = threading.RLock()
        self.closed_at = 0.0
        self.patience = patience
        self.owner: Callable[[], object] = type(None)  # a weak reference to what has to live as long as the log is open
        self._sync = sync
        self._until = 0.0

    # --- what a thread does when its log comes and goes --------------------------------------------------------------------------

    def opened(self, log: Log) -> None:
        """The log was opened."""

    def closing(self, log: Log) -> None:
        """The log is about to be closed."""

    def busy(self) -> bool:
        """Tell whether work is under way that will need the log soon."""
        return False

    # --- using it ----------------------------------------------------------------------------------------------------------------

    def enter(self, *, glance: bool = False, create: bool = True) -> Log:
        """Return the log, open until :meth:`leave`.

        Args:
            glance: it is only looked at.
            create: make it if it is absent.

        Raises:
            LogLocked: another process held it for longer than the patience.
            FileNotFoundError: it is absent and ``create`` is false.
            LogPoisoned: a write failed earlier in this process.
        """
        began = 0.0
        while True:
            try:
                with self.guard:
                    log = self.log
                    if log is None:
                        log = self._open(create=create)
                        self._until = time.monotonic() + GLANCE
                    if not log.usable:
                        log.check()
                    self.users += 1
                    if not glance:
                        self._until = max(self._until, time.monotonic() + IDLE)
                    return log
            except LogLocked as exc:
                now = time.monotonic()
                began = began or now
                if glance:
                    raise
                if now - began >= self.patience:
                    raise self._waited(exc) from None
            time.sleep(_POLL)  # without the guard, which an event loop may need for what takes no time

    def try_enter(self) -> Log | None:
        """Return the log, open until :meth:`leave`, if that takes no time at all; for event loops."""
        if not self.guard.acquire(blocking=False):
            return None
        try:
            return None if self.log is None else self.enter()
        finally:
            self.guard.release()

    async def enter_on_loop(self) -> None:
        """Do as :meth:`enter`, without keeping the event loop waiting for the log to be opened."""
        if self.try_enter() is not None:
            return
        entering = asyncio.ensure_future(asyncio.to_thread(self.enter))
        try:
            await asyncio.shield(entering)
        except asyncio.CancelledError:
            entering.add_done_callback(lambda done: self.leave() if not done.cancelled() and done.exception() is None else None)
            raise

    def leave(self) -> None:
        """The operation is over."""
        with self.guard:
            self.users -= 1

    def view(self) -> View:
        """Open the log for reading, while another process has it.

        Raises:
            FileNotFoundError: it is absent.
        """
        return self.store.view_log(ROOM, self.name)

    def _waited(self, exc: LogLocked) -> LogLocked:
        return LogLocked(
            f"thread log {self.name} is held by process {exc.pid or '(unknown)'}, and was not given back for "
            f"{self.patience:g} seconds: a step or an effect of this thread is under way there. Nothing was run or "
            "recorded here. Wait for it to end, or give the saver more patience (patience=).",
            path=exc.path,
            pid=exc.pid,
        )

    def _open(self, *, create: bool) -> Log:
        log = self.store.open_log(ROOM, self.name, sync=self._sync, seal_key=seal_key_from(None), create=create, guarded=GUARDED)
        try:
            self.log = log
            self.opened(log)
        except BaseException:
            self.log = None
            log.abandon()
            raise
        _closer.watch(self)
        return log

    # --- giving it back ----------------------------------------------------------------------------------------------------------

    def close_if_idle(self) -> bool:
        """Close the log if nothing needs it; tell whether it is closed."""
        if not self.guard.acquire(blocking=False):
            return False
        try:
            if self.log is None:
                return True
            idle = time.monotonic() - self._until
            if self.users or not self.log.usable or idle < 0 or (idle < LIVE and self.busy()):
                return False
            self.close()
            return True
        finally:
            self.guard.release()

    def close(self) -> None:
        """Give the log back now."""
        with self.guard:
            log = self.log
            if log is not None:
                try:
                    self.closing(log)
                finally:
                    self.log = None
                    self.closed_at = time.monotonic()
                    log.close()

    def survive_power_cuts(self) -> None:
        """Somebody needs more than ``"process"``: from here on a record that is acknowledged survives a power cut."""
        with self.guard:
            self._sync = "power"
            if self.log is not None:
                self.log.survive_power_cuts()

    def forked(self) -> None:
        """This is the child of a fork: what was open belongs to the parent."""
        self.guard = threading.RLock()
        self.log, self.users = None, 0


class _Closer:
    """Closes idle leases, on a thread of its own while there are any."""

    def __init__(self) -> None:
        self._open: dict[Lease, object] = {}  # with its owner, so that the next saver of the store finds it
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None

    def watch(self, lease: Lease) -> None:
        with self._guard:
            self._open[lease] = lease.owner()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="letitloop-idle", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while True:
            time.sleep(GLANCE / 2)
            for lease in self._leases():
                try:
                    closed = lease.close_if_idle()
                except BaseException:  # the log is poisoned or gone, and tells so to whoever uses it next
                    closed = lease.log is None
                if closed:
                    with self._guard:
                        self._open.pop(lease, None)
            with self._guard:
                if not self._open:
                    self._thread = None
                    return

    def _leases(self) -> list[Lease]:
        with self._guard:
            return list(self._open)

    def close_all(self) -> None:
        for lease in self._leases():
            try:
                lease.close()
            except BaseException:  # noqa: S110 - the process ends: what was acknowledged is on disk
                pass

    def forked(self) -> None:
        for lease in list(self._open):
            lease.forked()
        self.__init__()  # type: ignore[misc]  # its thread does not exist here


_closer = _Closer()
atexit.register(_closer.close_all)


def forked() -> None:
    """Forget what belongs to the parent process."""
    _closer.forked()


def log_name(thread_id: str) -> str:
    """Return the name of a thread's log: a readable part, and a hash that tells all threads apart.

    >>> log_name("Order 42!")
    'order-42-...'
    """
    from letitloop.runs.identity import run_name

    return run_name(thread_id, b"langgraph")
