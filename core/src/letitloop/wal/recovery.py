"""Opening a log: what a crash left is recovered and made durable before anything of it is handed out.

The rules are those of :mod:`letitloop.wal.format`; here they are applied: a torn tail is copied aside and cut off, a rotten log is
refused, and a doubtful last record is refused where effects depend on it.
"""

from __future__ import annotations

import os
import time

from letitloop.errors import InvalidArgument, LogCorrupt, LogSuspect, LogWriteFailed, SealError, command
from letitloop.wal.files import default_fs
from letitloop.wal.format import HEADER_SIZE, ROT, SUSPECT, TORN, Entry, Header, Scan, parse_header, scan
from letitloop.wal.lock import Lock
from letitloop.wal.lock import remove as remove_lock
from letitloop.wal.log import LEVELS, Log, new_file
from letitloop.wal.seal import Seal, key_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from letitloop.wal.files import Fs

__all__ = ["View", "open_log", "remove_log", "seal_for", "view_log"]

_MAX_COPIES = 8


class View:
    """A log that is open for reading only, without its lock.

    Attributes:
        path: the log's file.
        header: its header.
        found: what a scan of it found when it was opened.
    """

    __slots__ = ("_fs", "_handle", "found", "header", "path")

    def __init__(self, fs: Fs, path: str, handle: int, header: Header, found: Scan) -> None:
        self._fs = fs
        self._handle = handle
        self.path = path
        self.header = header
        self.found = found

    @property
    def entries(self) -> list[Entry]:
        """The valid records, in their order."""
        return self.found.entries

    def read(self, entry: Entry) -> bytes:
        """Return a record's payload."""
        return self._fs.pread(self._handle, entry.size, entry.offset)

    def close(self) -> None:
        """Close the file."""
        self._fs.close(self._handle)


def open_log(
    path: str,
    *,
    fs: Fs | None = None,
    sync: str = "power",
    seal_key: bytes | None = None,
    wait: bool = False,
    create: bool = True,
    guarded: frozenset[int] = frozenset(),
    quarantine: str | None = None,
) -> Log:
    """Open a log for writing: take its lock, recover what a crash left, make that durable, and only then hand it out.

    Args:
        path: the log's file; its directory must exist.
        fs: the file system; the machine's own by default.
        sync: ``"power"`` or ``"process"``: what an append survives.
        seal_key: the secret of a sealed log, at least 16 bytes; a new log becomes a sealed one.
        wait: wait for a live holder to end, instead of raising.
        create: make the log if it is absent.
        guarded: kinds whose loss must not be risked: with one of them in the log, a doubtful last record is refused.
        quarantine: the directory that a torn tail is copied to; the log's own by default.

    Raises:
        LogLocked: another process holds the log.
        ForeignFile, LogVersionError: the file is no log, or a newer one's.
        LogCorrupt: a synced record is damaged.
        LogSuspect: the last record is doubtful and the log holds a guarded kind.
        SealError: the log is sealed and the key is missing or wrong, or the chain is broken.
        LogWriteFailed: the file system refused to create or mend the log.
        FileNotFoundError: the log is absent and ``create`` is false.

    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/example.wal"
        >>> log = open_log(path)
        >>> entry = log.append(16, b"greeting", b"hello")
        >>> log.close()
        >>> log = open_log(path)
        >>> [(entry.key, log.read(entry)) for entry in log.entries if entry.kind >= 16]
        [(b'greeting', b'hello')]
        >>> log.close()
    """
    if sync not in LEVELS:
        raise InvalidArgument(
            f"sync={sync!r} is no durability level; use 'power' (survives a power cut) or 'process' (survives a kill)."
        )
    fs = fs or default_fs()
    lock: Lock | None = None
    handle = -1
    try:
        try:
            lock = Lock.acquire(fs, path, wait=wait)
            handle, header = _open_or_create(fs, path, seal_key, create=create)
            seal = seal_for(header, seal_key, path)
            found = _recover(fs, path, handle, header, seal, guarded, quarantine or os.path.dirname(path))
        except OSError as exc:
            if isinstance(exc, FileNotFoundError) and not create:
                raise
            raise LogWriteFailed(
                f"{path} could not be opened for writing: {exc}. Nothing was acknowledged. Mend the disk, its space or its "
                "permissions, then start again.",
                path=path,
            ) from exc
        return Log(fs, path, handle, header, found, lock, seal, sync)
    except BaseException:
        if handle >= 0:
            fs.close(handle)
        if lock is not None:
            lock.release()
        raise


def view_log(path: str, *, fs: Fs | None = None, seal_key: bytes | None = None) -> View:
    """Open a log for reading only; nothing is locked, mended or changed, and damage is told in ``found.verdict``.

    Args:
        path: the log's file.
        fs: the file system; the machine's own by default.
        seal_key: verify the seal with this key; without it a sealed log is read unverified.

    Raises:
        FileNotFoundError: the log is absent.
        ForeignFile, LogVersionError: the file is no log, or a newer one's.
        SealError: the key is wrong, or the chain is broken.
    """
    fs = fs or default_fs()
    handle = fs.open(path, write=False)
    try:
        header = parse_header(fs.pread(handle, HEADER_SIZE, 0), path)
        seal = Seal(seal_key, header, path) if seal_key is not None and header.sealed else None
        found = scan(
            lambda size, offset: fs.pread(handle, size, offset), fs.size(handle), header, None if seal is None else seal.check
        )
        return View(fs, path, handle, header, found)
    except BaseException:
        fs.close(handle)
        raise


def remove_log(path: str, *, fs: Fs | None = None) -> None:
    """Remove a log with its lock file, for good, whatever state it is in; one that is absent is no error.

    Args:
        path: the log's file.
        fs: the file system; the machine's own by default.

    Raises:
        LogLocked: a live process holds the log.
    """
    fs = fs or default_fs()
    lock = Lock.acquire(fs, path)
    try:
        for name in (path, path + ".new", path + ".compact"):
            if fs.exists(name):
                fs.unlink(name)
    except BaseException:
        lock.release()
        raise
    remove_lock(fs, lock)
    fs.sync_dir(os.path.dirname(path))


def _open_or_create(fs: Fs, path: str, seal_key: bytes | None, *, create: bool) -> tuple[int, Header]:
    for leftover in (path + ".new", path + ".compact"):
        if fs.exists(leftover):  # its maker died before it got its name, so nobody was promised anything in it
            fs.unlink(leftover)
    if fs.exists(path):
        handle = fs.open(path, write=True)
        try:
            head = fs.pread(handle, HEADER_SIZE, 0)
            if head:
                return handle, parse_header(head, path)
        except BaseException:
            fs.close(handle)
            raise
        fs.close(handle)
    if not create:
        raise FileNotFoundError(path)
    identity = bytes(8) if seal_key is None else key_id(seal_key)
    header = Header(os.urandom(16), max(0, time.time_ns()), key_id=identity, sealed=seal_key is not None)
    if seal_key is not None:
        Seal(seal_key, header, path)  # refuse a bad key before the file exists
    handle = new_file(fs, path + ".new", header)
    try:
        fs.sync(handle)
        fs.replace(path + ".new", path)
        fs.sync_dir(os.path.dirname(path))
    except BaseException:
        fs.close(handle)
        raise
    return handle, header


def seal_for(header: Header, seal_key: bytes | None, path: str) -> Seal | None:
    """Return the chain that a key continues; None for a log without a seal.

    Raises:
        SealError: a sealed log and no key, another key, or a key and a log without a seal.
    """
    if not header.sealed:
        if seal_key is not None:
            raise SealError(
                f"{path} was created without a seal, so a key cannot continue one. It was left as it is; drop seal_key= for this "
                "run, or forget the run to start it sealed.",
                path=path,
            )
        return None
    if seal_key is None:
        raise SealError(
            f"{path} is sealed (key id {header.key_id.hex()}) and no key was given. It was left as it is; set LETITLOOP_SEAL_KEY "
            "or pass seal_key=.",
            path=path,
        )
    return Seal(seal_key, header, path)


def _recover(fs: Fs, path: str, handle: int, header: Header, seal: Seal | None, guarded: frozenset[int], quarantine: str) -> Scan:
    """Scan the log, refuse what must not be written to, cut off a torn tail, and make durable what will be handed out."""
    found = scan(lambda size, offset: fs.pread(handle, size, offset), fs.size(handle), header, None if seal is None else seal.check)
    if found.verdict == ROT:
        raise LogCorrupt(
            f"{path}: {found.detail} (offset {found.end}). The file was left as it is and is refused for writing. Restore it from "
            f"a copy, or run {command('repair', path)}, which keeps the damaged file and goes on from the {found.seq} records "
            "before it.",
            path=path,
            offset=found.end,
            seq=found.seq,
            durable=found.durable,
        )
    if found.verdict == SUSPECT and any(entry.kind in guarded for entry in found.entries):
        raise LogSuspect(
            f"{path}: {found.detail} (offset {found.end}), and this run holds effects, so it is not cut off on a guess. The file "
            f"was left as it is. Look at it with {command('verify', path)}; {command('repair', path)} cuts the record off.",
            path=path,
            offset=found.end,
            seq=found.seq,
        )
    if found.verdict in (TORN, SUSPECT):
        _set_aside(fs, path, handle, found, quarantine)
    # Records, a CLOSE included, may be in the page cache alone, and so may the log's name after its maker was killed: handed out
    # now and lost in a power cut later, they would be lost results.
    fs.sync(handle)
    fs.sync_dir(os.path.dirname(path))
    return found


def _set_aside(fs: Fs, path: str, handle: int, found: Scan, quarantine: str) -> None:
    """Copy the torn tail out of the log, cut it off, and make both durable."""
    fs.mkdir(quarantine)
    name = os.path.basename(path)
    taken = [other for other in fs.listdir(quarantine) if other.startswith(f"{name}.torn-")]
    numbers = sorted(int(other.rpartition("-")[2]) for other in taken if other.rpartition("-")[2].isdigit())
    for number in numbers[: max(0, len(numbers) - _MAX_COPIES + 1)]:
        fs.unlink(os.path.join(quarantine, f"{name}.torn-{number}"))
    target = os.path.join(quarantine, f"{name}.torn-{numbers[-1] + 1 if numbers else 1}")
    copy = fs.open(target, write=True, create=True)
    try:
        data = fs.pread(handle, found.tail, found.end)
        written = 0
        while written < len(data):
            written += fs.pwrite(copy, data[written:], written)
        fs.sync(copy)
    finally:
        fs.close(copy)
    fs.sync_dir(quarantine)
    fs.truncate(handle, found.end)
    found.size = found.end
