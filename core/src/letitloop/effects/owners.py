"""Who is alive: a lock that the kernel holds for each process that dispatches, and no clock.

Each process has one file under ``owners/``, locked for as long as it lives. The kernel frees the lock on SIGKILL too, so that
another process finds out at once. A pid alone would not do: it is used again, and means nothing in another container.
"""

from __future__ import annotations

import atexit
import errno
import os
from threading import Lock

from letitloop.codecs.digest import sha256
from letitloop.wal.lock import MAX_NOTES, SUFFIX, left_notes, note_at, pack_note, remove
from letitloop.wal.lock import Lock as FileLock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from letitloop.wal.files import Fs

__all__ = ["Owner", "is_alive", "is_working", "owners"]

_PREFIX = "process-"


class Owner:
    """This process, as an owner of dispatches, for one ledger.

    Args:
        fs: the file system that the lock lies in.
        folder: the directory of the owners' locks.

    Attributes:
        name: how rows call it.
        under_way: the dispatches that this process is working on, as (namespace, key, epoch), and who in it.
    """

    __slots__ = ("_free", "_fs", "_guard", "_lock", "_next", "_notes", "_slots", "name", "under_way")

    def __init__(self, fs: Fs, folder: str) -> None:
        self.name = f"{_PREFIX}{os.getpid()}-{os.urandom(4).hex()}"
        self.under_way: dict[tuple[str, str, int], object] = {}
        self._fs = fs
        self._guard = Lock()
        self._slots: dict[tuple[str, str, int], int] = {}
        self._free: list[int] = []
        self._next = 0
        self._lock = FileLock.acquire(fs, os.path.join(folder, self.name))
        self._notes = fs.open(self._lock.path, write=True)
        atexit.register(self.end)

    def begin(self, namespace: str, key: str, epoch: int, holder: object) -> None:
        """Say, in the lock's file too, that a dispatch is under way, and who in this process works on it.

        Raises:
            OSError: that could not be written; others would take the dispatch for abandoned.
        """
        claimed = (namespace, key, epoch)
        with self._guard:
            if self._free:
                slot = self._free.pop()
            elif self._next < MAX_NOTES:
                slot, self._next = self._next, self._next + 1
            else:
                raise OSError(errno.ENOSPC, f"this process has {MAX_NOTES:,} actions under way, and cannot say so of more")
        self.under_way[claimed] = holder
        self._slots[claimed] = slot
        self._fs.pwrite(self._notes, pack_note(_note(*claimed)), note_at(slot))

    def finish(self, namespace: str, key: str, epoch: int) -> None:
        """Say that a dispatch is no longer under way, whatever came of it."""
        claimed = (namespace, key, epoch)
        self.under_way.pop(claimed, None)
        slot = self._slots.pop(claimed, None)
        if slot is not None and self._notes >= 0:
            try:
                self._fs.pwrite(self._notes, pack_note(b""), note_at(slot))
            except OSError:  # it counts as under way for as long as this process lives
                return
            with self._guard:
                self._free.append(slot)

    def abandon(self) -> None:
        """Close what a forked child has of this, which is its parent's."""
        notes, self._notes = self._notes, -1
        if notes >= 0:
            self._fs.close(notes)

    def end(self) -> None:
        """Give the lock up; not in a forked child, which never had it."""
        try:
            remove(self._fs, self._lock)
        except OSError:  # the directory was removed: the lock is free all the same
            self._lock.abandon()
        self.abandon()


def is_working(fs: Fs, folder: str, name: str, namespace: str, key: str, epoch: int) -> bool:
    """Tell whether an owner lives and has a dispatch under way: it may have given that up, by an interrupt or a full disk.

    Args:
        fs: the file system that the locks lie in.
        folder: the directory of the owners' locks.
        name: an owner's name.
        namespace: whose intent it is.
        key: which intent it is.
        epoch: the how-manieth owner of it.
    """
    return is_alive(fs, folder, name) and _note(namespace, key, epoch) in left_notes(fs, os.path.join(folder, name))


def _note(namespace: str, key: str, epoch: int) -> bytes:
    return sha256(f"{namespace}\0{key}\0{epoch}".encode()).digest()


def is_alive(fs: Fs, folder: str, name: str) -> bool:
    """Tell whether the process that rows call ``name`` lives. The lock file of a dead one is removed.

    Args:
        fs: the file system that the locks lie in.
        folder: the directory of the owners' locks.
        name: an owner's name.
    """
    path = os.path.join(folder, name + SUFFIX)
    try:
        handle = fs.open(path, write=True)
    except FileNotFoundError:
        return False
    try:
        if not fs.lock(handle, wait=False):
            return True
        if fs.exists(path):
            fs.unlink(path)
    finally:
        fs.close(handle)
    return False


def owners(fs: Fs, folder: str) -> list[str]:
    """Return the names of all owners whose lock file is there, alive or not."""
    return sorted(name[: -len(SUFFIX)] for name in fs.listdir(folder) if name.startswith(_PREFIX) and name.endswith(SUFFIX))
