"""Heads and proofs: what shows that a sealed log is the one it was, kept apart from the log.

A head is ``lil1:UUID:RECORDS:TAG:KEYID``: the log's uuid, its number of records, the last one's tag, the key's id, in hex. A proof
is a zip file of two members: ``log.wal``, the log's bytes up to its logical end, and ``head.json``, which names its head.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import struct
import tempfile
import zipfile
import zlib
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from letitloop.errors import ForeignFile, InvalidArgument
from letitloop.wal.format import TAG_SIZE, Entry

if TYPE_CHECKING:
    from collections.abc import Generator

    from letitloop.wal.recovery import View

__all__ = ["Head", "head_of", "is_bundle", "missing", "parse_head", "unpacked", "write_bundle"]

_CHUNK = 1 << 20
_MEMBERS = ("head.json", "log.wal")
# what reading a damaged zip file may raise: the zipfile module has an error of its own for some of it only (a flipped bit says
# "encrypted" or "of a newer version", RuntimeError; it cuts a field short, struct.error; it points before the file, OSError EINVAL)
_DAMAGE = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    zlib.error,
    struct.error,
    LookupError,
    TypeError,
    ValueError,
    EOFError,
    RuntimeError,
    OSError,
)


@dataclass(frozen=True)
class Head:
    """The head of a sealed log.

    Attributes:
        uuid: the log's, in hex.
        records: how many records it held.
        tag: the last record's tag, in hex; empty if it held none.
        key_id: names the key, in hex.
    """

    uuid: str
    records: int
    tag: str
    key_id: str

    def __str__(self) -> str:
        return f"lil1:{self.uuid}:{self.records}:{self.tag}:{self.key_id}"

    def as_dict(self) -> dict[str, Any]:
        """Return its fields as data."""
        return {"uuid": self.uuid, "records": self.records, "tag": self.tag, "key_id": self.key_id}


def parse_head(text: str) -> Head:
    """Read a head as ``lil seal`` prints it.

    Raises:
        InvalidArgument: it is none.
    """
    parts = text.strip().split(":")
    try:
        version, uuid, records, tag, key_id = parts
        if version != "lil1" or [len(bytes.fromhex(part)) for part in (uuid, key_id)] != [16, 8]:
            raise ValueError
        if len(bytes.fromhex(tag)) != (TAG_SIZE if int(records) else 0) or int(records) < 0:
            raise ValueError
        return Head(uuid.lower(), int(records), tag.lower(), key_id.lower())
    except ValueError:
        raise InvalidArgument(f"{text!r} is no head: 'lil seal RUN' prints one, lil1:UUID:RECORDS:TAG:KEYID.") from None


def _tag(view: View, entry: Entry) -> str:
    return view.read(Entry(entry.kind, b"", entry.offset + entry.size, TAG_SIZE, entry.seq)).hex()


def head_of(view: View) -> Head:
    """Return the head of a sealed log."""
    entries = view.entries
    return Head(view.header.uuid.hex(), len(entries), _tag(view, entries[-1]) if entries else "", view.header.key_id.hex())


def missing(view: View, head: Head) -> str:
    """Tell why a sealed log does not contain a head; empty if it does."""
    if not view.header.sealed:
        return "the log has no seal"
    if view.header.uuid.hex() != head.uuid:
        rewritten = f" or was rewritten since by compaction or repair (generation {view.header.generation})"
        return f"it is another log{rewritten if view.header.generation else ''}: its uuid is {view.header.uuid.hex()}"
    if view.header.key_id.hex() != head.key_id:
        return f"it is sealed with another key (id {view.header.key_id.hex()})"
    if len(view.entries) < head.records:
        return f"its tail was cut off: it holds {len(view.entries)} records, the head says {head.records}"
    if head.records and _tag(view, view.entries[head.records - 1]) != head.tag:
        return f"record {head.records - 1} is not the one that the head was taken at"
    return ""


def write_bundle(view: View, target: str, run: str) -> Head:
    """Write a proof: the log's bytes up to the last whole record, and its head; the file appears in one step."""
    head, end = head_of(view), view.found.end
    folder = os.path.dirname(os.path.abspath(target))
    handle, name = tempfile.mkstemp(prefix=".lil-proof-", dir=folder)
    try:
        digest = hashlib.sha256()
        with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bundle:
            with bundle.open(zipfile.ZipInfo("log.wal"), "w", force_zip64=True) as member:
                for offset in range(0, end, _CHUNK):
                    data = view.read(Entry(0, b"", offset, min(_CHUNK, end - offset), 0))
                    digest.update(data)
                    member.write(data)
            said = {"format": "letitloop-proof", "version": 1, "run": run, "head": head.as_dict(), "bytes": end}
            bundle.writestr(zipfile.ZipInfo("head.json"), json.dumps({**said, "sha256": digest.hexdigest()}, indent=2) + "\n")
        os.replace(name, target)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise
    return head


def is_bundle(path: str) -> bool:
    """Tell whether a file looks like a proof."""
    with open(path, "rb") as file:
        return file.read(2) == b"PK"


@contextmanager
def unpacked(path: str) -> Generator[tuple[str, Head, str], None, None]:
    """Unpack a proof for the time of the block; gives the log's file, the head that it is to have, and the run's name.

    Raises:
        ForeignFile: the file is no proof, or its members contradict each other.
    """
    with tempfile.TemporaryDirectory(prefix="lil-proof-") as folder:
        log = os.path.join(folder, "log.wal")
        try:
            with zipfile.ZipFile(path) as bundle:
                head, run = _unpack(bundle, log)
        except _DAMAGE as error:
            if isinstance(error, OSError) and error.errno != errno.EINVAL:
                raise
            raise ForeignFile(f"{path} is no proof, or a damaged one: {error}. Nothing was changed.", path=path) from None
        yield log, head, run


def _unpack(bundle: zipfile.ZipFile, log: str) -> tuple[Head, str]:
    members = {info.filename: info.file_size for info in bundle.infolist()}
    if any(info.compress_type not in (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED) for info in bundle.infolist()):
        raise ValueError("a member is compressed in a way that no proof is")
    if sorted(members) != sorted(_MEMBERS) or members["head.json"] > _CHUNK:
        raise ValueError(f"its members are {', '.join(sorted(members)) or 'none'}")
    said = json.loads(bundle.read("head.json"))
    if said["format"] != "letitloop-proof" or said["version"] != 1:
        raise ValueError("its head.json is of another format or version")
    if members["log.wal"] != said["bytes"]:
        raise ValueError("head.json and log.wal differ in size")
    digest = hashlib.sha256()
    with bundle.open("log.wal") as source, open(log, "wb") as target:
        while data := source.read(_CHUNK):
            digest.update(data)
            target.write(data)
    if digest.hexdigest() != said["sha256"]:
        raise ValueError("log.wal is not the file that head.json describes")
    head = Head(**{name: said["head"][name] for name in ("uuid", "records", "tag", "key_id")})
    return parse_head(str(head)), str(said["run"])
