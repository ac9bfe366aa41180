"""Who works on a log, and what was being worked on: the sibling file ``<log>.lock``.

The lock is the kernel's (``flock``): it ends with the process that holds it, however that ends, and no clock is involved. It is
taken on a file of its own, because a lock on the log itself would stay on the old inode when compaction renames a new file into
its place, and a second process would then lock the new one (split brain).

The file's bytes are for people and for the next holder; nothing depends on them::

    offset size field
         0   64  "pid 4711", a line end, padded with spaces
    64 + 128i     slot i: u16 length, then that many bytes: what call i is, while it is in flight

A slot is written before a call starts and is not synced, so it survives the process but perhaps not a power cut. It is not wiped
when the call ends: its record in the log tells that, and the next call writes over it.
"""

from __future__ import annotations

import os
from itertools import count
from struct import Struct
from weakref import WeakSet

from letitloop.errors import LogLocked
from letitloop.wal.files import process_alive

TYPE_CHECKING = False
if TYPE_CHECKING:
    from letitloop.wal.files import Fs

__all__ = ["MAX_NOTES", "NOTE_SIZE", "SUFFIX", "Lock", "holder", "left_notes", "note_at", "pack_note", "remove"]

SUFFIX = ".lock"
_HEAD = 64
_SLOT = 128
_LENGTH = Struct("<H")
NOTE_SIZE = _SLOT - 2
_HEADS = [_LENGTH.pack(length) for length in range(NOTE_SIZE + 1)]
MAX_NOTES = 4096


class Lock:
    """A held lock.

    Attributes:
        path: the lock file.
        left_behind: what was in flight when the previous holder died, oldest slot first; empty after a clean release.
    """

    __slots__ = ("__weakref__", "_free", "_fs", "_handed_on", "_handle", "_slots", "left_behind", "path")

    def __init__(self, fs: Fs, path: str, handle: int) -> None:
        self._fs = fs
        self._handle = -1  # until all is well: whoever opened it closes it, and __del__ must not close it a second time
        self._free: list[int] = []
        self._handed_on = False
        self._slots = count()
        self.path = path
        self.left_behind = _notes(fs, handle)
        fs.truncate(handle, 0)
        fs.pwrite(handle, f"pid {os.getpid()}\n".encode().ljust(_HEAD), 0)
        _held.add(self)
        self._handle = handle

    @classmethod
    def acquire(cls, fs: Fs, log_path: str, *, wait: bool = False) -> Lock:
        """Take the lock of the log at ``log_path``.

        Args:
            fs: the file system.
            log_path: the log's file; it need not exist.
            wait: block until the holder ends, instead of raising.

        Raises:
            LogLocked: another process, or another opening in this one, holds it.
        """
        path = log_path + SUFFIX
        while True:
            handle = fs.open(path, write=True, create=True)
            try:
                if not fs.lock(handle, wait=wait):
                    pid = _pid(fs, handle)
                    who = "this process (opened twice)" if pid == os.getpid() else f"process {pid}" if pid else "another process"
                    raise LogLocked(
                        f"{log_path} is held by {who}, which is alive. Nothing was changed. Wait for it to end, or pass "
                        'on_locked="wait".',
                        path=log_path,
                        pid=pid,
                    )
                if fs.same_file(handle, path):
                    return cls(fs, path, handle)
            except BaseException:
                fs.close(handle)
                raise
            fs.close(handle)  # whoever held it removed log and lock: a new file has the name now

    def note(self, what: bytes) -> int:
        """Write down that a call is in flight and return its slot.

        Args:
            what: at most ``NOTE_SIZE`` bytes are kept.
        """
        try:
            slot = self._free.pop()
        except IndexError:
            slot = next(self._slots)  # atomic: any thread may note
        size = len(what)
        self._write(slot, _HEADS[size] + what if size <= NOTE_SIZE else pack_note(what))
        return slot

    def free(self, slot: int) -> None:
        """Give a slot back."""
        self._free.append(slot)

    def wipe(self, slot: int) -> None:
        """Wipe a slot, where no record in the log tells that its call has ended."""
        self._write(slot, bytes(2))

    def _write(self, slot: int, data: bytes) -> None:
        if slot < MAX_NOTES and self._handle >= 0:
            try:
                self._fs.pwrite(self._handle, data, note_at(slot))
            except OSError:  # a full disk: a note is told to people, and no step fails for it
                pass

    def hand_on(self) -> None:
        """Leave what the previous holder left: this one worked on the log and not on the run."""
        for note in self.left_behind:
            self.note(note)
        self.keep()

    def release(self) -> None:
        """Let the next holder in; the notes are wiped, unless they were handed on."""
        try:
            if not self._handed_on:
                self._fs.truncate(self._handle, 0)
        except OSError:  # the notes stay, and nothing depends on them
            pass
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the file and leave its bytes: for a forked child, whose closing does not free its parent's lock."""
        handle, close = self._handle, self._fs.close
        if handle >= 0:
            self._handle = -1  # no interrupt is taken between this line and the system's call
            close(handle)
        _held.discard(self)

    def __del__(self) -> None:
        # the net under an interrupted opening or close: the lock must not outlive all who know of it
        if getattr(self, "_handle", -1) >= 0:
            try:
                self.abandon()
            except BaseException:  # noqa: S110 - nobody is left to be told
                pass

    def keep(self) -> None:
        """Leave the notes when the lock is released: a call was interrupted, and the next holder is to be told."""
        self._handed_on = True

    @property
    def held(self) -> bool:
        """Whether this process holds the lock: not after its release, and not in a forked child."""
        return self._handle >= 0


def pack_note(what: bytes) -> bytes:
    """Return a slot's bytes; at most ``NOTE_SIZE`` bytes are kept."""
    return _HEADS[min(len(what), NOTE_SIZE)] + what[:NOTE_SIZE]


def note_at(slot: int) -> int:
    """Return where in the file a slot lies."""
    return _HEAD + slot * _SLOT


def holder(fs: Fs, log_path: str) -> int | None:
    """Return the pid of the live process that holds the log at ``log_path``, 0 if it left none, None if nobody holds it.

    The probe itself takes the lock for an instant, and a run that starts in that instant would be refused. So it is not made
    where the file tells by itself: a clean release leaves it empty, and a killed holder leaves the pid of a dead process.
    """
    path = log_path + SUFFIX
    if not fs.exists(path):
        return None
    handle = fs.open(path, write=False)
    try:
        pid = _pid(fs, handle)
        if not pid or not process_alive(pid):
            return None
        return None if fs.lock(handle, wait=False) else pid
    finally:
        fs.close(handle)


def left_notes(fs: Fs, log_path: str) -> list[bytes]:
    """Return what is in flight in the log at ``log_path``, or was when its last holder died; nothing is locked."""
    path = log_path + SUFFIX
    if not fs.exists(path):
        return []
    handle = fs.open(path, write=False)
    try:
        return _notes(fs, handle)
    finally:
        fs.close(handle)


def remove(fs: Fs, lock: Lock) -> None:
    """Remove the lock file of a log that is gone, and release it; whoever waits for it will make a new one."""
    if lock.held:
        fs.unlink(lock.path)
        lock.abandon()


def _pid(fs: Fs, handle: int) -> int:
    head = fs.pread(handle, _HEAD, 0).split()
    return int(head[1]) if len(head) > 1 and head[0] == b"pid" and head[1].isdigit() else 0


def _notes(fs: Fs, handle: int) -> list[bytes]:
    data = fs.pread(handle, MAX_NOTES * _SLOT, _HEAD)
    notes: list[bytes] = []
    for at in range(0, len(data) - 1, _SLOT):
        length = _LENGTH.unpack_from(data, at)[0]
        if 0 < length <= _SLOT - 2 and at + 2 + length <= len(data):
            notes.append(data[at + 2 : at + 2 + length])
    return notes


_held: WeakSet[Lock] = WeakSet()


def _after_fork_in_child() -> None:
    # the child's copy of the descriptor would keep the lock after its parent's death
    for lock in list(_held):
        lock.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
