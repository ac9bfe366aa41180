"""How threads share a sync: baton passing with a buffer.

A thread that wants its record durable queues it. If nobody leads, it leads: it writes all that is queued with one ``pwrite``, syncs
once, and wakes those whose records it carried: the first of them, which wakes the next one in its turn. The last one promotes the
first thread that queued meanwhile. There is one sync at a time, and never a batch written by a leader while another batch is being
synced.
"""

from __future__ import annotations

import threading
from _thread import get_ident
from itertools import pairwise

from letitloop import failpoints

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from letitloop.wal.files import Fs
    from letitloop.wal.format import Entry

__all__ = ["GroupCommit"]

_PATIENCE = 0.5  # seconds
_PROMOTED = -1  # whoever was promoted leads, and has not woken up yet
_CHOOSING = -2  # whoever is woken last of a batch chooses who leads next


class _Waiter:
    """A thread that waits for its record to become durable, or to lead.

    Attributes:
        gate: released to wake it.
        promoted: it is to lead.
        woken: its record was carried by a leader.
        next: whom it wakes in its turn.
        left: it waits no more, and whoever wakes it wakes the next one as well.
    """

    __slots__ = ("gate", "left", "next", "promoted", "woken")

    def __init__(self) -> None:
        self.gate = threading.Lock()
        self.gate.acquire()
        self.promoted = self.woken = False
        self.next: _Waiter | None = None
        self.left = False


class GroupCommit:
    """The part of a log that makes what is queued durable, for all threads that wait for it at once.

    Attributes:
        next_seq: the sequence number that the next written record will have; all below ``_durable`` survive a power cut.
        _guard: held around each change of what is here, and each write.
        _syncing: held during a sync.
        _leader: the thread that leads; 0 if none does, ``_PROMOTED`` or ``_CHOOSING`` in between.
        _waiters: the threads whose records no leader has taken up yet.
        _poison: what failed, if something did.
    """

    next_seq: int
    _fs: Fs
    _handle: int
    _durable: int
    _guard: threading.Lock
    _syncing: threading.Lock
    _leader: int
    _waiters: list[_Waiter]
    _poison: str | None

    def _write_queue(self) -> None:
        """Write what is queued; called with the guard held."""
        raise NotImplementedError

    def _check_whole(self) -> None:
        """Raise what failed, if something did; called with the guard held."""
        raise NotImplementedError

    def _fail(self, what: str, exc: OSError) -> NoReturn:
        """Acknowledge nothing more, and raise."""
        raise NotImplementedError

    def _join(self) -> _Waiter | None:
        """Lead, or queue up behind the leader; called with the guard held."""
        if not self._leader or self._leader == get_ident():  # our own: a signal handler's exception cut our lead short
            self._leader = get_ident()
            return None
        me = _Waiter()
        self._waiters.append(me)
        return me

    def _commit(self, entry: Entry, me: _Waiter | None) -> None:
        """Return when ``entry`` is durable: by leading, or by waiting for a leader that carries it."""
        while True:
            if me is None or self._await(entry, me):
                self._lead()
                return
            with self._guard:
                if 0 <= entry.seq < self._durable:
                    return
                self._check_whole()
                me = self._join()  # the leader was interrupted before its sync returned

    def _await(self, entry: Entry, me: _Waiter) -> bool:
        """Wait to be woken, and wake the next one; tell whether this thread leads now."""
        try:
            while not me.gate.acquire(timeout=_PATIENCE):
                with self._guard:
                    if self._given_up(entry, me):
                        break
            if me.woken:
                self._wake(me.next)
        except BaseException:  # KeyboardInterrupt: the record stays queued, and neither baton nor wake-up must be lost
            self._leave(me)
            raise
        return me.promoted

    def _given_up(self, entry: Entry, me: _Waiter) -> bool:
        """Tell whether whoever was to wake this thread has been ended by an exception (Ctrl+C, no memory); guard held.

        If it was merely slow, two lead for a moment, one sync after the other.
        """
        done = me.promoted or self._poison is not None or 0 <= entry.seq < self._durable
        syncing = self._syncing.locked()
        if syncing and not done:
            return False
        if me in self._waiters:
            self._waiters.remove(me)
            me.promoted = not syncing  # even if there is nothing left to do: somebody has to hand the lead on
        me.left = True
        return True

    def _leave(self, me: _Waiter) -> None:
        """Wait no more, and pass on what this thread was given."""
        successor: _Waiter | None = None
        with self._guard:
            me.left = True
            if me in self._waiters:
                self._waiters.remove(me)
            elif me.promoted:
                successor = self._successor()
        if successor is not None:
            successor.gate.release()
        elif me.woken:
            self._wake(me.next)

    def _wake(self, waiter: _Waiter | None) -> None:
        """Wake a thread of a batch, which wakes the next one in its turn; after the last one, choose who leads next.

        One after the other, since all of them need the interpreter, and would fight for it if they were woken at once. And no
        sync starts meanwhile: it would carry the record of the first one alone, and all others would wait for one more.
        """
        successor: _Waiter | None = None
        with self._guard:
            while waiter is not None:
                if waiter.woken:
                    return
                waiter.woken = True
                waiter.gate.release()
                if not waiter.left:
                    return
                waiter = waiter.next
            if self._leader == _CHOOSING:
                successor = self._successor()
        if successor is not None:
            successor.gate.release()

    def _lead(self) -> None:
        """Write all that is queued, sync it, wake those whose records were carried, and with them hand the baton on."""
        batch: list[_Waiter] = []
        try:
            with self._guard:
                self._leader = get_ident()
                batch, self._waiters = self._waiters, batch
                self._check_whole()
                self._write_queue()
                written = self.next_seq
            if self._durable < written:
                try:
                    with self._syncing:
                        self._fs.sync(self._handle)
                except OSError as exc:
                    self._fail("sync", exc)
                self._durable = max(self._durable, written)
                if failpoints.active:
                    failpoints.hit("wal.synced")
        finally:
            successor: _Waiter | None = None
            with self._guard:
                if batch:
                    self._leader = _CHOOSING
                else:
                    successor = self._successor()
            if successor is not None:
                successor.gate.release()
            if batch:
                for waiter, following in pairwise(batch):
                    waiter.next = following
                self._wake(batch[0])

    def _successor(self) -> _Waiter | None:
        """Choose who leads next; called with the guard held."""
        if not self._waiters:
            self._leader = 0
            return None
        successor = self._waiters.pop(0)
        successor.promoted = True
        self._leader = _PROMOTED
        return successor
