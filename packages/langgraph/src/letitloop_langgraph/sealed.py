"""What steps record goes through the serialiser that the saver was given, as everything else in the thread's log does.

The codecs write a value exactly, or refuse it; the user's serialiser then takes the bytes, and may encrypt them. What it made is a
list of its type tag and its bytes behind one byte that no encoding begins with, so that records from before are read as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from letitloop.codecs import Codecs, default_codecs
from letitloop.errors import DecodeError
from letitloop_langgraph.records import pack, unpack
from letitloop_langgraph.serde import CodecSerializer

if TYPE_CHECKING:
    from langgraph.checkpoint.serde.base import SerializerProtocol

__all__ = ["ThreadCodecs"]

_SEALED = b"\xc1"  # no encoding begins with it


class ThreadCodecs(Codecs):
    """The core's codecs, with a saver's serialiser around what they write.

    Attributes:
        serde: the serialiser of the saver whose graph runs; the codecs' own one leaves the bytes as they are.

    Example:
        >>> codecs = ThreadCodecs()
        >>> codecs.encode((1, "two")) == Codecs().encode((1, "two"))
        True
    """

    __slots__ = ("serde",)

    def __init__(self) -> None:  # not Codecs.__init__: there may be thousands of threads, and their codecs are one
        for name in Codecs.__slots__:
            if name != "__weakref__":
                setattr(self, name, getattr(default_codecs, name))
        self.serde: SerializerProtocol = CodecSerializer()

    def encode(self, value: object, *, path: str = "result") -> bytes:
        """Encode a value; arguments and errors are those of :meth:`Codecs.encode`."""
        data = super().encode(value, path=path)
        if isinstance(self.serde, CodecSerializer):
            return data
        tag, body = self.serde.dumps_typed(data)
        return _SEALED + pack([tag, bytes(body)])

    def decode(self, data: bytes | bytearray | memoryview) -> object:
        """Decode what :meth:`encode` gave, or the core's codecs.

        Raises:
            DecodeError: the bytes are no recorded value, or the serialiser is not the one that wrote them.
        """
        if bytes(data[:1]) != _SEALED:
            return super().decode(data)
        tag, body = unpack(bytes(data[1:]))
        inner = self.serde.loads_typed((tag, body))
        if not isinstance(inner, bytes):
            raise DecodeError(f"a step's record is one of {tag!r}, which the saver's serialiser reads as {type(inner).__name__}.")
        return super().decode(inner)
