"""How channel values become bytes: the core's codecs, which also read what LangGraph's own serialiser wrote.

What is written comes back with its exact types or is refused, with the path of the culprit. Nothing is imported and nothing is
called at load, but the constructors of the types that LangGraph itself counts as safe, for values that its serialiser wrote.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import ormsgpack
from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_TYPES
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer, _create_msgpack_ext_hook
from langgraph.types import Send

from letitloop.codecs import Codecs
from letitloop.errors import DecodeError, UnknownType

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

__all__ = ["CodecSerializer", "array_of", "codecs_for", "items_of"]

TAG = "letitloop"
"""The type tag of what the codecs wrote."""

_NAMED_KINDS = (0, 1, 2, 3, 4, 5)  # extensions of LangGraph's serialiser that name a class


def codecs_for(codecs: Codecs | None = None) -> Codecs:
    """Return codecs that know LangGraph's own types.

    Args:
        codecs: the user's, which get to know them; new ones that fall back to the registered defaults if left out.
    """
    known = codecs or Codecs()
    known.register(Send, encode=_take_send, decode=_make_send, name="langgraph.types:Send")
    return known


class CodecSerializer:
    """The default serialiser of :class:`LetItLoopCheckpointSaver`.

    Args:
        codecs: how values become bytes; the registered defaults if left out.
        allowlist: classes, as (module, name), that values written by LangGraph's serialiser may name, besides those it counts as
            safe. Their modules must be imported by the program: nothing is imported at load.

    Example:
        >>> serde = CodecSerializer()
        >>> serde.loads_typed(serde.dumps_typed({"point": (1, 2)}))
        {'point': (1, 2)}
    """

    def __init__(self, codecs: Codecs | None = None, allowlist: Collection[tuple[str, ...]] = ()) -> None:
        self.codecs = codecs_for(codecs)
        self._allowed = frozenset(tuple(entry[:2]) for entry in allowlist)
        self._hook = _create_msgpack_ext_hook(set(self._allowed))
        self._json = JsonPlusSerializer(allowed_msgpack_modules=None)

    def with_allowlist(self, extra: Iterable[tuple[str, ...]]) -> CodecSerializer:
        """Return a serialiser that reads these classes too, where LangGraph's own serialiser wrote them."""
        other = type(self).__new__(type(self))
        other.codecs = self.codecs
        other._allowed = self._allowed | frozenset(tuple(entry[:2]) for entry in extra)
        other._hook = _create_msgpack_ext_hook(set(other._allowed))
        other._json = self._json
        return other

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Return a value's type tag and bytes.

        Raises:
            UnencodableError: a part of it cannot be recorded exactly; its path is named.
        """
        if obj is None:
            return "null", b""
        if type(obj) is bytes:
            return "bytes", obj
        return TAG, self.codecs.encode(obj, path="value")

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Return the value that type tag and bytes stand for.

        Raises:
            DecodeError: they stand for none that may be read.
        """
        tag, body = data
        if tag == TAG:
            return self.codecs.decode(body)
        if tag == "null":
            return None
        if tag == "bytes":
            return body
        if tag == "bytearray":
            return bytearray(body)
        if tag == "msgpack":
            return self._foreign(body)
        if tag == "json":
            return self._json.loads_typed(data)
        raise DecodeError(
            f"a value is recorded as {tag!r}, which is not read: it would run code, or its serialiser is unknown. Give the saver "
            "the serialiser that wrote it (serde=)."
        )

    def _foreign(self, body: bytes) -> Any:
        refused: list[UnknownType] = []

        def check(code: int, data: bytes) -> Any:
            # every class that is named at any depth, before anything is made
            inner = ormsgpack.unpackb(data, ext_hook=check, option=ormsgpack.OPT_NON_STR_KEYS)
            if code in _NAMED_KINDS:
                try:
                    self._check(str(inner[0]), str(inner[1]))
                except UnknownType as exc:
                    refused.append(exc)

        try:
            ormsgpack.unpackb(body, ext_hook=check, option=ormsgpack.OPT_NON_STR_KEYS)
            if not refused:
                return ormsgpack.unpackb(body, ext_hook=self._hook, option=ormsgpack.OPT_NON_STR_KEYS)
        except (ValueError, LookupError, TypeError) as exc:
            raise DecodeError(f"a value that LangGraph's serialiser wrote cannot be read: {exc}") from exc
        raise refused[0]

    def _check(self, module: str, name: str) -> None:
        if (module, name) not in SAFE_MSGPACK_TYPES and (module, name) not in self._allowed:
            raise UnknownType(
                f"a value that LangGraph's serialiser wrote names {module}.{name}, which is not on the allow list. Nothing was "
                f"imported or called. If it is yours: CodecSerializer(allowlist=[({module!r}, {name!r})]).",
                tag=f"{module}:{name}",
            )
        if module not in sys.modules:
            raise UnknownType(
                f"a value that LangGraph's serialiser wrote names {module}.{name}, and {module} is not imported. Import it first.",
                tag=f"{module}:{name}",
            )


# --- lists of the codecs' own wire format, item by item ----------------------------------------------------------------------


def items_of(body: bytes) -> tuple[int, int] | None:
    """Return how many items an encoded list has and where they start, or None if it is no list.

    An encoded list is a header and the items' encodings one after the other, so that lists can be cut and joined as bytes.

    >>> items_of(Codecs().encode([1, 2]))
    (2, 1)
    """
    first = body[0] if body else 0
    if 0x90 <= first <= 0x9F:
        return first & 0x0F, 1
    if first == 0xDC:
        return int.from_bytes(body[1:3], "big"), 3
    if first == 0xDD:
        return int.from_bytes(body[1:5], "big"), 5
    return None


def array_of(count: int) -> bytes:
    """Return the header of an encoded list.

    >>> array_of(2) + b"".join(map(Codecs().encode, [1, 2])) == Codecs().encode([1, 2])
    True
    """
    if count < 16:
        return bytes((0x90 | count,))
    if count < 1 << 16:
        return b"\xdc" + count.to_bytes(2, "big")
    return b"\xdd" + count.to_bytes(4, "big")


def _take_send(send: Send) -> list[Any]:
    return [send.node, send.arg] if getattr(send, "timeout", None) is None else [send.node, send.arg, send.timeout]


def _make_send(fields: list[Any]) -> Send:
    made: Send = Send.__new__(Send)
    made.node, made.arg = fields[0], fields[1]
    if "timeout" in Send.__slots__:  # langgraph 1.1 and later
        made.timeout = fields[2] if len(fields) > 2 else None
    return made
