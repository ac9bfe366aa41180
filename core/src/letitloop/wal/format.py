"""The bytes of a log: header, frames, and what a file means after a crash. Pure: nothing here touches a file.

A log is one file: a header of 64 bytes, frames one after another without gaps, then zeros (preallocated, not yet used) up to
the end of the file. All integers are little endian.

Header, 64 bytes::

    offset size field
         0    6  magic         b"LILWAL"
         6    2  version       1; a reader refuses any other
         8   16  uuid          random; its crc32 is the file's SALT
        24    8  created       nanoseconds since 1970-01-01 UTC
        32    4  flags         bit 0: SEALED (each frame carries a tag); other bits are zero
        36    4  generation    how often the log was rewritten by compaction or repair
        40    8  key id        first 8 bytes of sha256("letitloop seal key" + key); zero if not sealed
        48   12  reserved      zero
        60    4  crc           crc32 of bytes 0 to 59

Frame, 36 bytes and its key and payload::

    offset size field
         0    4  crc           crc32, started from SALT, of everything after it, end mark included
         4    4  length        bytes after the fixed 32: key + payload + tag + end mark
         8    1  kind          what the record is; 1 to 127 must be known to its reader, 128 and up may be skipped
         9    1  flags         zero
        10    2  key length
        12    4  epoch         the how-manieth opening for writing wrote this frame, from 1; never falls along the file
        16    8  seq           0, 1, 2, … along the file
        24    8  durable_upto  every frame with a smaller seq was synced BEFORE this frame was written (the watermark)
        32    -  key
         -    -  payload
         -   32  tag           in a sealed log only: HMAC-SHA256(key, previous tag + bytes 4 up to here); before the first
                               frame the previous tag is the header's 64 bytes
         -    4  end mark      total frame length xor 0xA5A5A5A5, so never zero

The salt keeps a frame of another log, embedded in a payload or left by a reused block, from being taken for one of ours. The
length is covered by the crc, and is held against the size of the file before anything is read or allocated by it.

What a file means after a crash. Let P be the end of the longest run of valid frames from the header on, and N the seq expected
there:

* Everything from P on is zero: CLEAN. A process died, or power failed, between two batches.
* A valid frame with a seq above N lies further on and its watermark is above N: ROT. Frame N had been synced before that frame
  was written, so no crash explains its damage. The log is refused for writing.
* Valid frames lie further on, but none has such a watermark: TORN. They belong to a batch whose sync never returned, of which
  the disk kept some sectors and lost others. Nobody was told that any of them is durable.
* The bytes at P are the shape of an interrupted write: the frame runs past the end of the file, its end mark is zero, or one of
  the 512-byte sectors it lies in is all zero: TORN.
* Otherwise SUSPECT: the last frame is complete and its checksum is wrong. Either it was being written, or it was acknowledged
  and has rotted. A log that guards effects is refused; others treat it as torn and say so.

A torn tail is copied beside the log, then zeroed, then synced, before the next frame is written.

Sources: the recovery rules follow etcd's WAL (zero sector test, copy before truncation) and ZODB's FileStorage (redundant
trailing length, truncation of the tail alone); the watermark is the recovery point of Kafka's logs, kept in each frame.
"""

from __future__ import annotations

from struct import Struct
from zlib import crc32

from letitloop.errors import ForeignFile, LogVersionError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Read = Callable[[int, int], bytes]
    """``read(size, offset)``: up to ``size`` bytes from ``offset``, fewer only at the end of the file."""

__all__ = [
    "CLEAN",
    "FIXED_SIZE",
    "FRAME_OVERHEAD",
    "HEADER_SIZE",
    "MAX_RECORD",
    "ROT",
    "SUSPECT",
    "TAG_SIZE",
    "TORN",
    "Entry",
    "Header",
    "Scan",
    "frame",
    "frame_tag",
    "parse_header",
    "scan",
]

MAGIC = b"LILWAL"
VERSION = 1
HEADER_SIZE = 64
SEALED = 1

_HEADER = Struct("<6sH16sQII8s12x")
_U32 = Struct("<I")
_FIXED = Struct("<IIBBHIQQ")
_COVERED = Struct("<IBBHIQQ")  # the fixed part without the crc
FIXED_SIZE = _FIXED.size
END_MARK = 0xA5A5A5A5
FRAME_OVERHEAD = FIXED_SIZE + 4
TAG_SIZE = 32
SECTOR = 512
MAX_RECORD = 1 << 30
MAX_KEY = 0xFFFF
_CHUNK = 1 << 20

CLEAN = "clean"
TORN = "torn"
ROT = "rot"
SUSPECT = "suspect"


class Header:
    """A log's header.

    Args:
        uuid: 16 random bytes.
        created: nanoseconds since 1970-01-01 UTC.
        key_id: 8 bytes that name the seal's key; zeros for a log without a seal.
        sealed: whether each frame carries a tag.
        generation: how often the log was rewritten.
    """

    __slots__ = ("created", "generation", "key_id", "salt", "sealed", "uuid")

    def __init__(self, uuid: bytes, created: int, *, key_id: bytes = bytes(8), sealed: bool = False, generation: int = 0) -> None:
        self.uuid = uuid
        self.created = created
        self.key_id = key_id
        self.sealed = sealed
        self.generation = generation
        self.salt = crc32(uuid)

    def to_bytes(self) -> bytes:
        """Return the header's 64 bytes."""
        flags = SEALED if self.sealed else 0
        body = _HEADER.pack(MAGIC, VERSION, self.uuid, self.created, flags, self.generation, self.key_id)
        return body + _U32.pack(crc32(body))


def parse_header(data: bytes, path: str) -> Header:
    """Read a header from the first 64 bytes of a file.

    Args:
        data: the file's first bytes; fewer than 64 if the file is shorter.
        path: the file's name, for the message.

    Raises:
        ForeignFile: the bytes are no header of a log.
        LogVersionError: the log is of a version that this reader does not know.
    """
    if data[:6] != MAGIC or len(data) < HEADER_SIZE:
        raise ForeignFile(
            f"{path} is not a letitloop log: it does not start with the {HEADER_SIZE}-byte header of one. It was left as it is; "
            "move it away if a log should live under this name.",
            path=path,
        )
    magic, version, uuid, created, flags, generation, key_id = _HEADER.unpack_from(data)
    del magic
    if _U32.unpack_from(data, HEADER_SIZE - 4)[0] != crc32(data[: HEADER_SIZE - 4]):
        raise ForeignFile(
            f"{path} starts like a letitloop log but its header is damaged (checksum mismatch). It was left as it is; "
            "restore it from a copy, or remove it to start the run anew.",
            path=path,
        )
    if version != VERSION or flags & ~SEALED:
        raise LogVersionError(
            f"{path} was written by a newer letitloop (log version {version}, flags {flags:#x}; this one reads version {VERSION}). "
            "It was left as it is: upgrade letitloop to go on with this run.",
            path=path,
        )
    return Header(uuid, created, key_id=key_id, sealed=bool(flags & SEALED), generation=generation)


class Entry:
    """Where a record lies in its log.

    Attributes:
        kind: what the record is, 1 to 255; its meaning belongs to whoever wrote it.
        key: the record's key.
        offset: where its payload starts, in bytes from the start of the file; -1 until it is written.
        size: the payload's length in bytes.
        seq: the record's sequence number; -1 until it is written.
    """

    __slots__ = ("key", "kind", "offset", "seq", "size")

    def __init__(self, kind: int, key: bytes, offset: int, size: int, seq: int) -> None:
        self.kind = kind
        self.key = key
        self.offset = offset
        self.size = size
        self.seq = seq

    def __repr__(self) -> str:
        return f"Entry(kind={self.kind}, key={self.key!r}, offset={self.offset}, size={self.size}, seq={self.seq})"


def frame(
    salt: int,
    kind: int,
    key: bytes,
    payload: bytes,
    epoch: int,
    seq: int,
    durable_upto: int,
    seal: Callable[[bytes], bytes] | None = None,
) -> bytes:
    """Build the bytes of one frame.

    Args:
        salt: crc32 of the file's uuid.
        kind: 1 to 255.
        key: at most 65,535 bytes.
        payload: at most 1 GiB.
        epoch: the number of this opening for writing.
        seq: the frame's sequence number.
        durable_upto: the watermark.
        seal: given the bytes that a tag covers, returns the tag of 32 bytes; ``None`` in a log without a seal.
    """
    size = len(key)
    if seal is None:
        length = size + len(payload) + 4
        mark = _U32.pack((FIXED_SIZE + length) ^ END_MARK)
        body = b"".join((_COVERED.pack(length, kind, 0, size, epoch, seq, durable_upto), key, payload, mark))
    else:
        length = size + len(payload) + 4 + TAG_SIZE
        body = b"".join((_COVERED.pack(length, kind, 0, size, epoch, seq, durable_upto), key, payload))
        body += seal(body) + _U32.pack((FIXED_SIZE + length) ^ END_MARK)
    return _U32.pack(crc32(body, salt)) + body


class Scan:
    """What :func:`scan` found.

    Attributes:
        verdict: ``CLEAN``, ``TORN``, ``ROT`` or ``SUSPECT``.
        entries: the valid records from the header on, in their order.
        end: where the last of them ends: the next frame belongs here.
        seq: the sequence number expected at ``end``.
        epoch: the epoch of the last valid record; 0 in an empty log.
        durable: the highest watermark seen; after damage, that of a later frame too.
        tail: how many bytes after ``end`` are not zero up to their last; 0 when clean.
        size: the file's size.
        later: valid records found after the damage, for a salvage.
        detail: the verdict's reason, for people.
    """

    __slots__ = ("detail", "durable", "end", "entries", "epoch", "later", "seq", "size", "tail", "verdict")

    def __init__(self, entries: list[Entry], end: int, epoch: int, durable: int, size: int) -> None:
        self.verdict = CLEAN
        self.entries = entries
        self.end = end
        self.seq = len(entries)
        self.epoch = epoch
        self.durable = durable
        self.tail = 0
        self.size = size
        self.later: list[Entry] = []
        self.detail = "every record is whole"


def scan(read: Read, size: int, header: Header, check: Callable[[Entry, bytes], None] | None = None) -> Scan:
    """Walk a log, verify every checksum, and tell what its end means.

    Args:
        read: ``read(size, offset)`` over the file.
        size: the file's size in bytes.
        header: the file's header.
        check: called with each valid record and its frame's bytes, in order, e.g. to verify a seal; may raise.
    """
    entries: list[Entry] = []
    end, epoch, durable = _walk(read, size, header, entries, check)
    found = Scan(entries, end, epoch, durable, size)
    found.tail = _used(read, end, size) - end
    if found.tail:
        _judge(found, read, header)
    return found


def _walk(
    read: Read, size: int, header: Header, entries: list[Entry], check: Callable[[Entry, bytes], None] | None
) -> tuple[int, int, int]:
    """Append the valid frames from the header on to ``entries``; return the end, the last epoch and the last watermark."""
    salt = header.salt
    trailer = 4 + (TAG_SIZE if header.sealed else 0)
    unpack, append = _FIXED.unpack_from, entries.append
    base, want = HEADER_SIZE, _CHUNK
    seq = last_epoch = last_durable = 0
    while base + FRAME_OVERHEAD <= size:
        data = read(min(want, size - base), base)
        view, limit, at = memoryview(data), len(data), 0
        if limit < min(want, size - base):
            size = base + limit  # the file was cut off meanwhile
        want = _CHUNK
        while at + FRAME_OVERHEAD <= limit:
            crc, length, kind, flags, key_length, epoch, number, durable = unpack(data, at)
            stop = at + FIXED_SIZE + length
            if stop > limit:
                if base + stop > size:
                    return base + at, last_epoch, last_durable
                want = max(_CHUNK, stop - at)  # the frame goes on in the next chunk
                break
            body = at + FIXED_SIZE + key_length
            if (
                number != seq
                or crc32(view[at + 4 : stop], salt) != crc
                or not kind
                or flags
                or body + trailer > stop
                or not last_durable <= durable <= seq
                or epoch < last_epoch
                or _U32.unpack_from(data, stop - 4)[0] != (stop - at) ^ END_MARK
            ):
                return base + at, last_epoch, last_durable
            entry = Entry(kind, data[at + FIXED_SIZE : body], base + body, stop - trailer - body, seq)
            if check is not None:
                check(entry, data[at:stop])
            append(entry)
            seq += 1
            last_epoch, last_durable = epoch, durable
            at = stop
        base += at
    return base, last_epoch, last_durable


def _used(read: Read, start: int, size: int) -> int:
    """Return the offset after the last byte from ``start`` on that is not zero; ``start`` if all are zero."""
    stop = size
    while stop > start:
        at = max(start, stop - _CHUNK)
        used = len(read(stop - at, at).rstrip(b"\0"))
        if used:
            return at + used
        stop = at
    return start


def _judge(found: Scan, read: Read, header: Header) -> None:
    """Set the verdict on the bytes after ``found.end``, which are not all zero."""
    tail = read(found.size - found.end, found.end)
    for entry, durable in _later_frames(tail, found, header):
        found.later.append(entry)
        found.durable = max(found.durable, durable)
    if found.later:
        if found.durable > found.seq:
            found.verdict = ROT
            found.detail = f"record {found.seq} is damaged, and record {found.later[-1].seq} says that it had been synced"
        else:
            found.verdict = TORN
            found.detail = f"a batch of which some records are missing, from record {found.seq} on, was never synced"
        return
    reason = _torn_shape(tail, found)
    found.verdict = TORN if reason else SUSPECT
    found.detail = reason or f"record {found.seq}, the last one, is complete but its checksum is wrong"


def _later_frames(tail: bytes, found: Scan, header: Header) -> list[tuple[Entry, int]]:
    """Return the valid frames in ``tail`` that come after the damage, each with its watermark."""
    import re  # only a damaged log is searched

    # From a frame's kind on: no flags, and seq and watermark below 2**32. Trying every byte instead takes a minute for the 64 MiB
    # that a killed write may leave.
    candidate = re.compile(rb"(?s)[^\0]\0.{10}\0\0\0\0.{4}\0\0\0\0")
    trailer = 4 + (TAG_SIZE if header.sealed else 0)
    frames: list[tuple[Entry, int]] = []
    view = memoryview(tail)
    last, match = found.seq, candidate.search(tail, 9)
    while match is not None:
        at = match.start() - 8
        again = match.start() + 1
        crc, length, kind, _, key_length, epoch, seq, durable = _FIXED.unpack_from(tail, at)
        stop = at + FIXED_SIZE + length
        if (
            stop <= len(tail)
            and key_length + trailer <= length
            and seq > last
            and durable <= seq
            and epoch >= found.epoch
            and _U32.unpack_from(tail, stop - 4)[0] == (stop - at) ^ END_MARK
            and crc32(view[at + 4 : stop], header.salt) == crc
        ):
            body = at + FIXED_SIZE + key_length
            key = tail[at + FIXED_SIZE : body]
            frames.append((Entry(kind, key, found.end + body, stop - trailer - body, seq), durable))
            again, last = stop + 8, seq
        match = candidate.search(tail, again)
    return frames


def _torn_shape(tail: bytes, found: Scan) -> str:
    """Tell why the first bad frame is an interrupted write; an empty string if it is complete."""
    if len(tail) < FRAME_OVERHEAD:
        return f"the file ends within record {found.seq}"
    length = _U32.unpack_from(tail, 4)[0]
    if length > MAX_RECORD + MAX_KEY + TAG_SIZE + 4:
        stop = found.tail  # the length itself is damaged: look at all that is there
    else:
        stop = FIXED_SIZE + length
        if stop > len(tail):
            return f"record {found.seq} runs past the end of the file"
        if stop < FRAME_OVERHEAD or not any(tail[stop - 4 : stop]):
            return f"record {found.seq} has no end mark"
    first_sector = -found.end % SECTOR
    for at in range(first_sector - SECTOR if first_sector else 0, stop, SECTOR):
        piece = tail[max(at, 0) : min(at + SECTOR, stop)]
        if piece and not any(piece):
            return f"a sector of record {found.seq} was never written"
    return ""


def frame_tag(data: bytes) -> tuple[bytes, bytes]:
    """Split a sealed frame's bytes into what its tag covers, and the tag."""
    return data[4 : -4 - TAG_SIZE], data[-4 - TAG_SIZE : -4]
