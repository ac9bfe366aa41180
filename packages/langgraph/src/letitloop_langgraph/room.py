"""All threads of one store, as the savers of this process share them."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary, ref

from letitloop.codecs import default_codecs
from letitloop.runs.records import START, as_fields
from letitloop_langgraph import lease
from letitloop_langgraph.thread import Thread

if TYPE_CHECKING:
    from letitloop.store.protocol import Store

__all__ = ["Room", "room_of"]

_KEPT = 256
"""How many threads' indexes stay in memory although their logs were closed long ago."""


class Room:
    """The threads of a store.

    Args:
        store: the store.
        sync: what a record survives: ``"power"`` or ``"process"``.
        patience: seconds to wait for a thread that another process works on.
    """

    def __init__(self, store: Store, *, sync: str, patience: float) -> None:
        self.store = store
        self.patience = patience
        self._sync = sync
        self._threads: dict[str, Thread] = {}
        self._known: WeakValueDictionary[str, Thread] = WeakValueDictionary()  # those that somebody still holds as well
        self._guard = threading.Lock()

    def thread(self, thread_id: str) -> Thread:
        """Return a thread; nothing is opened."""
        with self._guard:
            thread = self._threads.get(thread_id)
            if thread is None:
                thread = self._known.get(thread_id)
                if thread is None:
                    thread = Thread(self.store, thread_id, sync=self._sync, patience=self.patience)
                    thread.owner = ref(self)
                    self._known[thread_id] = thread
                if len(self._threads) >= _KEPT:
                    self._let_go()
                self._threads[thread_id] = thread
            return thread

    def have_patience(self, seconds: float) -> None:
        """Wait longer for other processes from now on."""
        with self._guard:
            self.patience = seconds
            for thread in self._known.values():
                thread.patience = seconds

    def survive_power_cuts(self) -> None:
        """Have every thread keep what it acknowledges through a power cut from now on."""
        with self._guard:
            weaker = list(self._known.values()) if self._sync != "power" else []
            self._sync = "power"
        for thread in weaker:
            thread.survive_power_cuts()

    def _let_go(self) -> None:
        """Forget threads that were closed so long ago that no graph is under way in them."""
        before = time.monotonic() - lease.LIVE
        closed = [one for one in self._threads.values() if one.log is None and not one.users and 0.0 < one.closed_at < before]
        closed.sort(key=lambda one: one.closed_at)
        for one in closed[: max(1, len(self._threads) - _KEPT // 2)]:
            del self._threads[one.id]

    def ids(self) -> list[str]:
        """Return the ids of all threads in the store."""
        found: list[str] = []
        for name in self.store.names(lease.ROOM):
            thread_id = self._id_of(name)
            if thread_id is not None:
                found.append(thread_id)
        return found

    def _id_of(self, name: str) -> str | None:
        known = next((one.id for one in list(self._threads.values()) if one.name == name), None)
        if known is not None:
            return known
        try:
            view = self.store.view_log(lease.ROOM, name)
        except FileNotFoundError:
            return None  # removed meanwhile
        try:
            start = next((entry for entry in view.entries if entry.kind == START), None)
            described = {} if start is None else as_fields(default_codecs.decode(view.read(start)))
        finally:
            view.close()
        thread_id = described.get("thread_id")
        return thread_id if isinstance(thread_id, str) else None

    def close(self) -> None:
        """Give every thread back that nothing is under way in; the next use opens it again."""
        for thread in list(self._threads.values()):
            with thread.guard:
                if not thread.users:
                    thread.close()

    def forked(self) -> None:
        """This is the child of a fork: what is open belongs to the parent."""
        self._guard = threading.Lock()
        for thread in self._threads.values():
            thread.forked()


_rooms: WeakValueDictionary[str, Room] = WeakValueDictionary()
_guard = threading.Lock()


def room_of(store: Store, *, sync: str, patience: float) -> Room:
    """Return the room of a store that all savers of this process share.

    Who has the most patience, and who wants records to survive the most, decides for all of them.
    """
    with _guard:
        room = _rooms.get(store.location)
        if room is None:
            room = _rooms[store.location] = Room(store, sync=sync, patience=patience)
        if patience > room.patience:
            room.have_patience(patience)
    if sync == "power":
        room.survive_power_cuts()
    return room


def _after_fork_in_child() -> None:
    global _guard  # another thread of the parent may have held it
    _guard = threading.Lock()
    lease.forked()
    for room in list(_rooms.values()):
        room.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
