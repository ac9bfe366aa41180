"""Mending a damaged log: the records that are whole go into a new file that replaces the log in one step.

Recovery never does this by itself, since it gives up records that somebody may have been promised. The damaged file is copied
first, byte for byte, and is never removed. A record keeps its sequence number, because payloads may refer to it: the places of
lost records are filled with empty CLOSE records, which every reader skips.
"""

from __future__ import annotations

import os

from letitloop.errors import LogWriteFailed
from letitloop.wal.files import default_fs
from letitloop.wal.format import (
    CLEAN,
    FIXED_SIZE,
    FRAME_OVERHEAD,
    HEADER_SIZE,
    TAG_SIZE,
    TORN,
    Entry,
    Header,
    frame,
    frame_tag,
    parse_header,
    scan,
)
from letitloop.wal.lock import Lock
from letitloop.wal.log import CLOSE, new_file
from letitloop.wal.recovery import seal_for
from letitloop.wal.seal import Seal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from letitloop.wal.files import Fs
    from letitloop.wal.format import Scan

__all__ = ["Repair", "repair_log"]

_CHUNK = 1 << 20


class Repair:
    """What :func:`repair_log` did.

    Attributes:
        path: the log's file.
        verdict: what a scan of the damaged log found.
        detail: the verdict's reason, for people.
        changed: whether the log was rewritten.
        copy: the damaged file's copy; empty if nothing was changed.
        kept: how many records before the damage stay.
        salvaged: the records after the damage that stay.
        lost: the records after the damage that were whole and do not stay.
        first: the sequence number of the damaged record.
        damaged: how many records were damaged, as far as the sequence numbers tell.
        before: the file's size in bytes, before.
        after: the same, after.
    """

    __slots__ = ("after", "before", "changed", "copy", "damaged", "detail", "first", "kept", "lost", "path", "salvaged", "verdict")

    def __init__(self, path: str, found: Scan) -> None:
        self.path = path
        self.verdict = found.verdict
        self.detail = found.detail
        self.changed = False
        self.copy = ""
        self.kept = found.seq
        self.salvaged: list[Entry] = []
        self.lost: list[Entry] = []
        self.first = found.seq
        self.damaged = 0
        self.before = found.size
        self.after = found.size


def repair_log(
    path: str,
    *,
    fs: Fs | None = None,
    seal_key: bytes | None = None,
    salvage: bool = False,
    quarantine: str | None = None,
) -> Repair:
    """Rewrite a damaged log with the records that are whole; the damaged file is kept as ``<name>.rot-<n>``.

    A log that is clean, or whose torn tail the next opening cuts off by itself, is left as it is (with ``salvage``, whole records
    in a torn tail are saved). The new file has a uuid of its own and the next generation. It is written and synced under another
    name and then renamed, so that a crash at any point leaves the old file or the new one.

    Args:
        path: the log's file.
        fs: the file system; the machine's own by default.
        seal_key: the secret of a sealed log; the records that stay are verified with it and sealed anew.
        salvage: keep the whole records after the damage too; in a sealed log those alone whose tag can be verified.
        quarantine: the directory that the damaged file is copied to; the log's own by default.

    Raises:
        FileNotFoundError: the log is absent.
        LogLocked: a live process holds the log.
        ForeignFile, LogVersionError: the file is no log, or a newer one's.
        SealError: the log is sealed and the key is missing or wrong, or the chain of the records before the damage is broken.
        LogWriteFailed: the file system refused a write; the log is as it was.

    Example:
        >>> import tempfile
        >>> from letitloop.wal.recovery import open_log
        >>> path = tempfile.mkdtemp() + "/example.wal"
        >>> log = open_log(path)
        >>> entries = [log.append(16, b"", bytes([65 + i]) * 9) for i in range(4)]
        >>> log.close()
        >>> with open(path, "r+b") as file:
        ...     _ = file.seek(entries[1].offset)
        ...     _ = file.write(b"?")
        >>> done = repair_log(path, salvage=True)
        >>> done.verdict, done.kept, [entry.seq for entry in done.salvaged]
        ('rot', 1, [2, 3, 4])
        >>> log = open_log(path)
        >>> [log.read(entry) for entry in log.entries if entry.kind == 16]
        [b'AAAAAAAAA', b'CCCCCCCCC', b'DDDDDDDDD']
        >>> log.close()
    """
    fs = fs or default_fs()
    if not fs.exists(path):
        raise FileNotFoundError(path)
    try:
        lock = Lock.acquire(fs, path)
        try:
            return _repair(fs, path, seal_key, quarantine or os.path.dirname(path), salvage=salvage)
        finally:
            lock.hand_on()
            lock.release()
    except OSError as exc:
        raise LogWriteFailed(
            f"{path} could not be repaired: {exc}. The log is as it was. Mend the disk, its space or its permissions, then repair "
            "it again.",
            path=path,
        ) from exc


def _repair(fs: Fs, path: str, seal_key: bytes | None, quarantine: str, *, salvage: bool) -> Repair:
    handle = fs.open(path, write=False)
    try:
        old = parse_header(fs.pread(handle, HEADER_SIZE, 0), path)
        key = seal_key if old.sealed else None
        seal = seal_for(old, key, path)
        found = scan(
            lambda size, offset: fs.pread(handle, size, offset), fs.size(handle), old, None if seal is None else seal.check
        )
        done = Repair(path, found)
        for entry in _plausible(found):
            kept = salvage and (key is None or _authentic(fs, handle, entry, Seal(key, old, path)))
            (done.salvaged if kept else done.lost).append(entry)
        after = [*done.salvaged, *done.lost]
        last = max((entry.seq for entry in after), default=found.seq)
        done.damaged = last + 1 - found.seq - len(after) if after else 1
        if found.verdict == CLEAN or (found.verdict == TORN and not done.salvaged):
            return done
        done.copy = _copy(fs, handle, path, quarantine)
        header = Header(os.urandom(16), old.created, key_id=old.key_id, sealed=old.sealed, generation=old.generation + 1)
        done.after = _write(fs, handle, path, header, found, done.salvaged, key)
        done.changed = True
        return done
    finally:
        fs.close(handle)


def _plausible(found: Scan) -> Iterator[Entry]:
    """Yield the later records whose distance from the damage has room for all that must have stood between."""
    for entry in found.later:
        if entry.seq - found.seq <= (entry.offset - found.end) // FRAME_OVERHEAD:
            yield entry


def _authentic(fs: Fs, handle: int, entry: Entry, seal: Seal) -> bool:
    """Tell whether a record's tag follows from the bytes where the tag of the record before it stands."""
    start = entry.offset - FIXED_SIZE - len(entry.key)
    stop = entry.offset + entry.size + TAG_SIZE + 4
    data = fs.pread(handle, stop - start, start)
    seal.head = fs.pread(handle, TAG_SIZE, start - 4 - TAG_SIZE)
    covered, tag = frame_tag(data)
    return seal.tag(covered) == tag


def _copy(fs: Fs, handle: int, path: str, quarantine: str) -> str:
    """Copy the whole damaged file, durably; return the copy's path."""
    fs.mkdir(quarantine)
    start = f"{os.path.basename(path)}.rot-"
    numbers = [name[len(start) :] for name in fs.listdir(quarantine) if name.startswith(start)]
    number = max((int(text) for text in numbers if text.isdigit()), default=0) + 1
    target = os.path.join(quarantine, f"{start}{number}")
    copy = fs.open(target, write=True, create=True)
    try:
        offset = 0
        while data := fs.pread(handle, _CHUNK, offset):
            _write_all(fs, copy, data, offset)
            offset += len(data)
        fs.sync(copy)
    finally:
        fs.close(copy)
    fs.sync_dir(quarantine)
    fs.sync_dir(os.path.dirname(quarantine))
    return target


def _write(fs: Fs, handle: int, path: str, header: Header, found: Scan, salvaged: list[Entry], key: bytes | None) -> int:
    """Write the new file, read it back, and put it in the log's place; return its size."""
    name = path + ".compact"  # the next opening removes what a crash leaves under this name
    tag = None if key is None else Seal(key, header, path).tag
    target = new_file(fs, name, header)
    try:
        end, seq, pending = HEADER_SIZE, 0, bytearray()
        for entry in _filled([*found.entries, *salvaged]):
            payload = fs.pread(handle, entry.size, entry.offset) if entry.offset >= 0 else b""
            # nobody sees the file before it is synced, so each record may say that all before it are durable
            pending += frame(header.salt, entry.kind, entry.key, payload, found.epoch + 1, seq, seq, tag)
            seq += 1
            if len(pending) >= _CHUNK:
                _write_all(fs, target, bytes(pending), end)
                end += len(pending)
                pending.clear()
        _write_all(fs, target, bytes(pending), end)
        end += len(pending)
        check = None if key is None else Seal(key, header, path).check
        again = scan(lambda size, offset: fs.pread(target, size, offset), fs.size(target), header, check)
        if (again.verdict, again.seq, again.end) != (CLEAN, seq, end):
            raise OSError(5, "what was written is not what is read back")
        fs.sync(target)
    finally:
        fs.close(target)
    fs.replace(name, path)
    fs.sync_dir(os.path.dirname(path))
    return end


def _filled(entries: list[Entry]) -> Iterator[Entry]:
    """Yield the records, and an empty one for each sequence number that is missing between them."""
    seq = 0
    for entry in entries:
        while seq < entry.seq:
            yield Entry(CLOSE, b"", -1, 0, seq)
            seq += 1
        yield entry
        seq += 1


def _write_all(fs: Fs, handle: int, data: bytes, offset: int) -> None:
    written = 0
    while written < len(data):
        more = fs.pwrite(handle, data[written:], offset + written)
        if not more:
            raise OSError(5, "the system wrote nothing")
        written += more
