"""A log that is open for writing: append, compaction, close; how threads share a sync is in :mod:`letitloop.wal.group_commit`.

``Log`` knows records, not meanings: a kind, a key and a payload each. What it promises: when :meth:`Log.append` returns, the
record is on disk at the log's level and will be read back by every later opening, or that opening raises a named error.

Two levels, named for what they survive: ``"power"`` (fdatasync before the call returns) and ``"process"`` (the bytes are with the
kernel: SIGKILL and OOM leave them, a power cut may not).

After a failed write or sync nothing more is acknowledged (:class:`LogPoisoned`): the kernel reports a lost page once and would
report success for the next sync (the fsync failure that PostgreSQL treats as a panic since 2018).
"""

from __future__ import annotations

import os
import threading
import weakref
from _thread import get_ident
from collections import deque

from letitloop import failpoints
from letitloop.errors import (
    LogCorrupt,
    LogError,
    LogPoisoned,
    RecordTooLarge,
)
from letitloop.wal.format import (
    FIXED_SIZE,
    HEADER_SIZE,
    MAX_KEY,
    MAX_RECORD,
    Entry,
    Header,
    Scan,
    frame,
)
from letitloop.wal.group_commit import GroupCommit
from letitloop.wal.lock import Lock
from letitloop.wal.seal import Seal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import NoReturn

    from letitloop.wal.files import Fs

__all__ = ["CLOSE", "LEVELS", "Log", "new_file"]

CLOSE = 1
"""The kind of the record that a clean close writes. Kinds 2 to 15 are reserved for the log; 16 to 255 belong to its users."""

LEVELS = ("power", "process")

_SMALLEST_STEP = 8 << 10
_LARGEST_STEP = 256 << 10
_NEAR = 32 << 10


class Log(GroupCommit):
    """A log that is open for writing; made by :func:`letitloop.wal.recovery.open_log`, never directly.

    Attributes:
        path: the log's file.
        header: its header.
        entries: its records, in their order; those of this opening included once they are written.
        epoch: the how-manieth opening for writing this is, from 1.
        recovered: what the scan at opening found, with its verdict.
        next_seq: the sequence number that the next written record will have.
        usable: whether the log still takes records; if not, :meth:`check` says why.
        lock: the held lock; its notes say what is in flight, and what was when the previous process died.
    """

    def __init__(
        self, fs: Fs, path: str, handle: int, header: Header, found: Scan, lock: Lock, seal: Seal | None, sync: str
    ) -> None:
        self.path = path
        self.header = header
        self.entries: list[Entry] = found.entries
        self.epoch = found.epoch + 1
        self.recovered = found
        self.lock = lock
        self._fs = fs
        self._handle = handle
        self._seal = seal
        self._tag = None if seal is None else seal.tag
        self._power = sync == "power"
        self._end = found.end
        self._allocated = found.size
        self.next_seq = found.seq
        self._durable = found.seq
        self._opened_at = found.seq
        self._rewrites = 0  # how often a compaction began or ended: odd while one moves the records
        self._near: tuple[int, bytes] = (0, b"")  # a piece of the file that was read last: runs are replayed in their order
        self._guard = threading.Lock()  # all of the state above and below, and every write
        self._syncing = threading.Lock()
        self._queue: deque[tuple[Entry, bytes]] = deque()  # appended to without the guard: its own operations are atomic
        self._leader = 0
        self._waiters = []
        self._poison = None
        self._foreign = ""  # in a forked child: whose log it is
        self._cause: BaseException | None = None
        self._closed = False
        self.usable = True
        _open_logs.add(self)

    # --- writing -------------------------------------------------------------------------------------------------------------

    def append(self, kind: int, key: bytes, payload: bytes, *, power: bool = False) -> Entry:
        """Append a record and return when it is durable at the log's level.

        Args:
            kind: 16 to 255.
            key: at most 65,535 bytes.
            payload: at most 1 GiB.
            power: survive a power cut even if the log's level is ``"process"``.

        Returns:
            Where the record lies.

        Raises:
            RecordTooLarge: key or payload exceed their limit; nothing was written.
            LogPoisoned: this write, or an earlier one, failed; nothing more is acknowledged.
        """
        if len(payload) > MAX_RECORD or len(key) > MAX_KEY:
            raise _too_large(key, payload, self.path)
        entry = Entry(kind, key, -1, len(payload), -1)
        with self._guard:
            if not self.usable:
                self.check()
            if not (power or self._power):
                if self._queue:
                    self._queue.append((entry, payload))
                    self._write_queue()
                else:
                    self._write_one(entry, payload)
                return entry
            self._queue.append((entry, payload))
            me = self._join()
        if me is None:
            self._lead()
        else:
            self._commit(entry, me)
        return entry

    def queue(self, kind: int, key: bytes, payload: bytes) -> Entry:
        """Append a record that rides along: it is written with the next batch, :meth:`flush` or close, and is not waited for.

        Args:
            kind: 16 to 255.
            key: at most 65,535 bytes.
            payload: at most 1 GiB.

        Raises:
            RecordTooLarge: key or payload exceed their limit; nothing was queued.
            LogPoisoned: an earlier write failed.
        """
        if len(payload) > MAX_RECORD or len(key) > MAX_KEY:
            raise _too_large(key, payload, self.path)
        entry = Entry(kind, key, -1, len(payload), -1)
        self.check()
        self._queue.append((entry, payload))  # without the guard: an event loop must not wait for a write of another thread
        return entry

    def write(self) -> None:
        """Hand all queued records to the kernel, so that they survive this process; do not sync.

        Raises:
            LogPoisoned: this write, or an earlier one, failed.
        """
        with self._guard:
            self.check()
            self._write_queue()

    def flush(self) -> None:
        """Return when every record queued or written so far survives a power cut.

        Raises:
            LogPoisoned: this write, or an earlier one, failed.
        """
        with self._guard:
            self.check()
            if not self._queue and self._durable == self.next_seq:
                return
            last = self._last()
            me = self._join()
        self._commit(last, me)

    def _last(self) -> Entry:
        """Return the last record queued or written so far; a stand-in where it is written already."""
        return self._queue[-1][0] if self._queue else Entry(CLOSE, b"", -1, 0, self.next_seq - 1)

    def _write_queue(self) -> None:
        """Write all queued records with one ``pwrite``; called with the guard held."""
        queue = self._queue
        if queue:
            try:
                first = queue.popleft()
                if not queue:
                    self._write_one(*first)
                    return
                pending = [first]
                while queue:
                    pending.append(queue.popleft())
                self._write(pending)
            except BaseException as exc:
                self._half_done(exc)  # what was taken out of the queue is nowhere else, and others may wait for it

    def _write(self, records: list[tuple[Entry, bytes]]) -> None:
        """Give records their place in the file and write them; called with the guard held."""
        try:
            data, offsets = self._frames(records)
            self._put(data)
        except BaseException as exc:
            self._half_done(exc)
        if failpoints.active:
            failpoints.hit("wal.written")
        for (entry, _), offset in zip(records, offsets, strict=True):
            entry.offset = offset  # not before: whoever reads it takes that for a sign that it is there
            self.entries.append(entry)

    def _write_one(self, entry: Entry, payload: bytes) -> None:
        """Do the same for one record, by a shorter way: most records come alone."""
        try:
            seq, key = self.next_seq, entry.key
            offset = self._end + FIXED_SIZE + len(key)
            entry.seq = seq
            data = frame(self.header.salt, entry.kind, key, payload, self.epoch, seq, self._durable, self._tag)
            self.next_seq = seq + 1
            self._put(data)
        except BaseException as exc:
            self._half_done(exc)
        if failpoints.active:
            failpoints.hit("wal.written")
        entry.offset = offset
        self.entries.append(entry)

    def _put(self, data: bytes) -> None:
        """Write frames at the end of the log."""
        offset = self._end
        end = offset + len(data)
        if end > self._allocated:
            # with zeros ahead of it, so that the next syncs have no new size to record
            step = min(max(self._allocated, _SMALLEST_STEP), _LARGEST_STEP)
            self._allocated = max(end, self._allocated + step)
            data = data.ljust(self._allocated - offset, b"\0")  # + bytes(n) takes 20 times as long
        written = self._fs.pwrite(self._handle, data, offset)
        if written < len(data):
            self._write_rest(data, offset, written)
        self._end = end

    def _half_done(self, exc: BaseException) -> NoReturn:
        """An interrupted write may be half done: after it this object no longer knows what the file holds."""
        self._poison_with("write", exc)
        if isinstance(exc, OSError):
            self._check_whole()
        raise exc

    def _frames(self, records: list[tuple[Entry, bytes]]) -> tuple[bytes, list[int]]:
        """Give records their numbers; return their bytes, and where their payloads come to lie in the file."""
        salt, epoch, durable = self.header.salt, self.epoch, self._durable
        seal = self._tag
        seq, end = self.next_seq, self._end + FIXED_SIZE
        frames: list[bytes] = []
        offsets: list[int] = []
        for entry, payload in records:
            key = entry.key
            data = frame(salt, entry.kind, key, payload, epoch, seq, durable, seal)
            offsets.append(end + len(key))
            entry.seq = seq
            seq += 1
            end += len(data)
            frames.append(data)
        self.next_seq = seq
        return b"".join(frames), offsets

    def _write_rest(self, data: bytes, offset: int, written: int) -> None:
        while written < len(data):
            more = self._fs.pwrite(self._handle, data[written:], offset + written)
            if not more:
                raise OSError(5, "the system wrote nothing")
            written += more

    # --- failure -------------------------------------------------------------------------------------------------------------

    def _fail(self, what: str, exc: OSError) -> NoReturn:
        with self._guard:
            self._poison_with(what, exc)
            self._check_whole()
        raise AssertionError("unreachable") from exc

    def _poison_with(self, what: str, exc: BaseException) -> None:
        self.usable = False
        if self._poison is None:
            self._cause = exc
            self._poison = (
                f"{self.path}: a {what} failed ({str(exc) or type(exc).__name__}). What was returned before is on disk; this "
                "record and all after it are not acknowledged. Free space or mend the disk if that is the cause, then start the "
                "program again: it goes on from the last acknowledged step."
            )

    def _check_whole(self) -> None:
        if self._foreign:
            raise LogError(self._foreign, path=self.path)
        if self._poison is not None:
            raise LogPoisoned(self._poison, path=self.path) from self._cause

    def check(self) -> None:
        """Refuse what would come to nothing: work whose record this log could not take.

        Raises:
            LogPoisoned: a write or sync failed earlier.
            LogError: the log is closed, or this is a forked child's copy.
        """
        self._check_whole()
        if self._closed:
            raise LogError(f"{self.path} is closed: its run has ended in this process. Nothing was written.", path=self.path)

    def _forked(self) -> None:
        """Make this copy of the log unusable: it belongs to the parent process."""
        self._guard = threading.Lock()  # it may have been held by a thread that does not exist here
        self._syncing = threading.Lock()
        self._foreign = (
            f"{self.path} belongs to process {os.getppid()}, and this is a child forked from it. Nothing was run or written here, "
            "and the parent goes on undisturbed. Return the child's result to the parent, and record it there."
        )
        self.lock.abandon()
        self._let_go()

    # --- reading -------------------------------------------------------------------------------------------------------------

    def read(self, entry: Entry) -> bytes:
        """Return a record's payload."""
        while True:
            rewrites = self._rewrites
            try:
                data = self._read(entry)
            except (OSError, LogError):
                if rewrites == self._rewrites and not rewrites & 1:
                    raise
            else:
                if rewrites == self._rewrites and not rewrites & 1:
                    return data
            with self._guard:  # a compaction was moving records: after it they are at rest
                pass

    def _read(self, entry: Entry) -> bytes:
        if 0 <= entry.seq < self._opened_at:  # what was there when the log was opened does not change
            start, near = self._near
            at = entry.offset - start
            if at >= 0:
                data = near[at : at + entry.size]
                if len(data) == entry.size:
                    return data
            if entry.size < _NEAR >> 2:
                near = self._fs.pread(self._handle, _NEAR, entry.offset)
                if len(near) >= entry.size:
                    self._near = (entry.offset, near)
                    return near[: entry.size]
        if entry.offset < 0:
            self.write()
        if self._handle < 0:
            self.check()
        data = self._fs.pread(self._handle, entry.size, entry.offset)
        if len(data) != entry.size:
            raise LogCorrupt(
                f"{self.path} was cut off by somebody while it was open: record {entry.seq} at offset {entry.offset} is gone. "
                "Restore the file from a copy.",
                path=self.path,
                offset=entry.offset,
                seq=entry.seq,
                durable=self._durable,
            )
        return data

    @property
    def syncs(self) -> bool:
        """Whether an append waits for a sync by default: the level is ``"power"``."""
        return self._power

    def survive_power_cuts(self) -> None:
        """Raise the level to ``"power"``: for what is appended from here on."""
        self._power = True

    def head(self) -> tuple[bytes, int, bytes]:
        """Return the log's uuid, its number of records and the seal's last tag (empty without a seal)."""
        with self._guard:
            return self.header.uuid, self.next_seq, b"" if self._seal is None else self._seal.head

    # --- compaction and close ------------------------------------------------------------------------------------------------

    def compact(self, keep: Callable[[list[Entry]], Iterable[Entry]]) -> None:
        """Rewrite the log with some of its records only, by way of a new file that replaces it in one step.

        The records are numbered anew; where payloads refer to numbers, keep placeholders for what goes.

        Args:
            keep: given the log's records, returns those that stay; their order in the log is kept and their places are updated
                in place. It is called when no other thread can append any more, and must not write to the log itself.

        Raises:
            LogPoisoned: a write failed; the old file is still whole.
        """

        def rewrite() -> None:
            self.check()
            kept = {id(entry) for entry in keep(self.entries)}
            entries = [entry for entry in self.entries if id(entry) in kept and entry.kind != CLOSE]
            self._rewrites += 1
            try:
                self._replace_by(entries)
            except OSError as exc:
                self._poison_with("compaction", exc)
                self._check_whole()
            finally:
                self._rewrites += 1

        self._at_rest(rewrite)

    def _replace_by(self, entries: list[Entry]) -> None:
        payloads = [(entry, self._fs.pread(self._handle, entry.size, entry.offset)) for entry in entries]
        old = self.header
        header = Header(os.urandom(16), old.created, key_id=old.key_id, sealed=old.sealed, generation=old.generation + 1)
        handle = new_file(self._fs, self.path + ".compact", header)
        previous, self._handle = self._handle, handle
        self.header = header
        if self._seal is not None:
            self._seal.head = header.to_bytes()
        self.next_seq, self._durable, self._end, self._allocated = 0, 0, HEADER_SIZE, HEADER_SIZE
        self.entries = []
        for payload in payloads:
            # nobody sees the file before it is synced, so each record may say that all before it are durable
            self._durable = self.next_seq
            self._write([payload])
        self._fs.sync(handle)
        self._fs.replace(self.path + ".compact", self.path)
        self._fs.sync_dir(os.path.dirname(self.path))
        self._fs.close(previous)
        self._durable = self.next_seq
        self._near = (0, b"")
        self._opened_at = -1  # the new file has no CLOSE yet

    def close(self) -> None:
        """Make everything durable, mark the end, cut off what was allocated ahead, and free the lock.

        A poisoned log is closed as it is; its next opening recovers. Closing twice does nothing.

        Raises:
            LogPoisoned: the last write or sync failed.
        """
        with self._guard:
            if self._closed:
                return
            self.usable = False
            self._closed = True  # from here on nothing is queued by a thread that outlives the run
        try:
            if self._poison is None:
                self._at_rest(self._close_cleanly)
        finally:
            self._let_go()
            self.lock.release()

    def _at_rest(self, do: Callable[[], None]) -> None:
        """Do something with the guard held when all that is queued is durable and no thread leads or waits."""
        while True:
            with self._guard:
                self._check_whole()
                busy = self._waiters or self._leader not in (0, get_ident())
                if not busy and not self._queue and self._durable == self.next_seq:
                    do()
                    return
                last = self._last()
                me = self._join()
            self._commit(last, me)

    def _let_go(self) -> None:
        with self._guard:
            self.usable = False
            self._closed = True
            handle, close = self._handle, self._fs.close
            if handle >= 0:
                self._handle = -1  # whoever still holds this log must not meet a file that took the number over
                close(handle)  # no interrupt is taken between these two lines
            _open_logs.discard(self)

    def _close_cleanly(self) -> None:
        """Mark the end and cut off what was allocated ahead; called with the guard held."""
        if not self._fs.same_file(self._handle, self.path):
            raise LogError(
                f"{self.path} was removed or renamed while it was open. The {self.next_seq} records of this run are in no "
                "file of that name: what was done is not recorded there. Put the file back if you still have it.",
                path=self.path,
            )
        if self.next_seq == self._opened_at and not self._allocated > self._end:
            return
        if self.next_seq > self._opened_at:
            self._queue.append((Entry(CLOSE, b"", -1, 0, -1), b""))
            self._write_queue()
        try:
            self._fs.truncate(self._handle, self._end)
            self._fs.sync(self._handle)
        except OSError as exc:
            self._poison_with("close", exc)
            self._check_whole()

    def __del__(self) -> None:
        # the net under an interrupted opening or close: the lock must not outlive all who know of it
        if getattr(self, "_handle", -1) >= 0:
            try:
                self._let_go()
            except BaseException:  # noqa: S110 - nobody is left to be told
                pass

    def abandon(self) -> None:
        """Close without writing anything more: what a killed process would leave, for tests and for giving up."""
        self._let_go()
        self.lock.abandon()


def _too_large(key: bytes, payload: bytes, path: str) -> RecordTooLarge:
    what = f"a payload of {len(payload):,} bytes" if len(payload) > MAX_RECORD else f"a key of {len(key):,} bytes"
    return RecordTooLarge(
        f"{path}: {what} exceeds the limit (1 GiB a record, 65,535 bytes a key). Nothing was written. Store large data in a "
        "file or an object store and record its address.",
        path=path,
    )


def new_file(fs: Fs, path: str, header: Header) -> int:
    """Make a file with nothing but a header in it, not synced yet, and return its handle."""
    handle = fs.open(path, write=True, create=True)
    try:
        fs.truncate(handle, 0)
        data = header.to_bytes()
        written = 0
        while written < len(data):
            written += fs.pwrite(handle, data[written:], written)
    except BaseException:
        fs.close(handle)
        raise
    return handle


_open_logs: weakref.WeakSet[Log] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for log in list(_open_logs):
        log._forked()
    _open_logs.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
