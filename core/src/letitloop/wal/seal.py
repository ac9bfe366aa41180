"""The seal: an HMAC-SHA256 chain over a log's frames, for whoever must be able to show that nobody rewrote it.

``tag[i] = HMAC-SHA256(key, tag[i-1] + covered bytes of frame i)``, and the header stands for the tag before the first frame.
Whoever has the key can verify the chain and continue it. A chain by itself does not show that its tail was cut off: keep the
head (:func:`letitloop.wal.log.Log.head`, ``lil seal``) somewhere else to show that too.

Source of the construction: RFC 2104 (HMAC), chained as in forward-linked audit logs.
"""

from __future__ import annotations

from letitloop.errors import SealError
from letitloop.wal.format import frame_tag

TYPE_CHECKING = False
if TYPE_CHECKING:
    from letitloop.wal.format import Entry, Header

__all__ = ["Seal", "key_id"]


def key_id(key: bytes) -> bytes:
    """Return the 8 bytes by which a header names its key; they do not reveal it."""
    from hashlib import sha256  # 4 ms of import, as below

    return sha256(b"letitloop seal key" + key).digest()[:8]


class Seal:
    """The state of one chain.

    Args:
        key: the secret key, at least 16 bytes.
        header: the log's header.
        path: the log's file, for messages.

    Raises:
        SealError: the log is sealed with another key, or the key is shorter than 16 bytes.
    """

    __slots__ = ("_digest", "_key", "head", "path")

    def __init__(self, key: bytes, header: Header, path: str) -> None:
        from hmac import digest  # 4 ms of import that a log without a seal does not pay

        if len(key) < 16:
            raise SealError(f"the seal key for {path} has {len(key)} bytes; use at least 16. Nothing was written.", path=path)
        if header.key_id != key_id(key):
            raise SealError(
                f"{path} is sealed with another key (key id {header.key_id.hex()}, the given key's is {key_id(key).hex()}). "
                "It was left as it is; give the key that it was created with.",
                path=path,
            )
        self._digest = digest
        self._key = key
        self.head = header.to_bytes()
        self.path = path

    def tag(self, covered: bytes) -> bytes:
        """Continue the chain over the bytes of a new frame and return its tag of 32 bytes."""
        self.head = self._digest(self._key, self.head + covered, "sha256")
        return self.head

    def check(self, entry: Entry, data: bytes) -> None:
        """Verify the next frame and move on to it.

        Raises:
            SealError: its tag does not follow from the frames before it.
        """
        covered, tag = frame_tag(data)
        if self.tag(covered) != tag:
            raise SealError(
                f"{self.path}: the seal is broken at record {entry.seq} (offset {entry.offset}): its bytes are consistent, but "
                "they were not written with this key after the records before it. Nothing was changed. Do not trust this log.",
                path=self.path,
            )
