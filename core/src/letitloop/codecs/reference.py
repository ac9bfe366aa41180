"""The wire in plain Python: the encoder that knows where it is.

Both C libraries must give these bytes (the tests hold them to it). At run time this encoder is asked when they fail: for values
nested too deep for them, for a bytearray inside a container, which they would turn into bytes, and to name a culprit's path.
It walks without recursion, so no value overflows the interpreter's stack.
"""

from __future__ import annotations

from struct import Struct, pack

from letitloop.codecs import ext
from letitloop.codecs.ext import Refused, class_of
from letitloop.errors import UnencodableError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any

    Path = tuple[Any, str, Any]  # parent, style, key; rendered only for an error
    Node = Generator[tuple[Any, Path], bytes, bytes]
    Explode = Callable[[Any], tuple[int, Any]]

_FLOAT = Struct(">Bd")


# --- heads -------------------------------------------------------------------------------------------------------------------


def _head(size: int, fix: int, fix_limit: int, codes: tuple[int, int, int]) -> bytes:
    """The head of something of a length: the fixed form, then 8, 16 and 32 bit (code 0 for a form that does not exist)."""
    if size < fix_limit:
        return bytes((fix | size,))
    if size < 0x100 and codes[0]:
        return bytes((codes[0], size))
    if size < 0x10000:
        return pack(">BH", codes[1], size)
    if size < 0x100000000:
        return pack(">BI", codes[2], size)
    raise Refused("it is longer than 4 GiB")


def array_head(size: int) -> bytes:
    """Encode the head of an array of ``size`` items."""
    return _head(size, 0x90, 16, (0, 0xDC, 0xDD))


def map_head(size: int) -> bytes:
    """Encode the head of a map of ``size`` pairs."""
    return _head(size, 0x80, 16, (0, 0xDE, 0xDF))


_FIXEXT = {1: 0xD4, 2: 0xD5, 4: 0xD6, 8: 0xD7, 16: 0xD8}


def extension(code: int, body: bytes) -> bytes:
    """Encode an extension."""
    size = len(body)
    if size in _FIXEXT:
        return bytes((_FIXEXT[size], code)) + body
    return _head(size, 0, 0, (0xC7, 0xC8, 0xC9)) + bytes((code,)) + body


def _integer(value: int) -> bytes | None:
    if value >= 0:
        if value < 0x80:
            return bytes((value,))
        for limit, code, form in ((8, 0xCC, ">BB"), (16, 0xCD, ">BH"), (32, 0xCE, ">BI"), (64, 0xCF, ">BQ")):
            if value < 1 << limit:
                return pack(form, code, value)
        return None
    if value >= -32:
        return pack("b", value)
    for limit, code, form in ((7, 0xD0, ">Bb"), (15, 0xD1, ">Bh"), (31, 0xD2, ">Bi"), (63, 0xD3, ">Bq")):
        if value >= -(1 << limit):
            return pack(form, code, value)
    return None


def _scalar(value: Any) -> bytes | None:
    """Encode what msgpack has natively and what holds nothing else; ``None`` for everything else."""
    cls = class_of(value)
    if cls is str:
        data: bytes = value.encode("utf-8", "surrogatepass")
        return _head(len(data), 0xA0, 32, (0xD9, 0xDA, 0xDB)) + data
    if cls is int:
        return _integer(value)
    if cls is float:
        return _FLOAT.pack(0xCB, value)
    if cls is bytes:
        data = value
        return _head(len(data), 0, 0, (0xC4, 0xC5, 0xC6)) + data
    if value is None:
        return b"\xc0"
    if cls is bool:
        return b"\xc3" if value else b"\xc2"
    return None


# --- paths -------------------------------------------------------------------------------------------------------------------


def _short(key: Any) -> str:
    if type(key) in (str, int, float, bool, bytes) or key is None:
        text = repr(key)
        return text if len(text) <= 60 else text[:57] + "..."
    return f"<{type(key).__qualname__}>"


def _render(path: Path) -> str:
    parts: list[str] = []
    node: Any = path
    style: str
    while node is not None:
        node, style, key = node
        texts = {"[": f"[{_short(key)}]", ".": f".{key}", "{": "{item}", "k": f" (the key {_short(key)})"}
        parts.append(texts.get(style, style))
    if len(parts) > 24:
        parts[12:-12] = ["..."]
    return "".join(reversed(parts))


def _label(value: Any) -> str:
    cls = class_of(value)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _refusal(value: Any, path: Path, reason: str) -> UnencodableError:
    where, what = _render(path), _label(value)
    text = f"{where}: cannot record {what} exactly{': ' if reason else ''}{reason}"
    return UnencodableError(text, path=where, type_name=what)


# --- encoding ----------------------------------------------------------------------------------------------------------------


class _CycleMet(Exception):
    """The canonical form of a value with a cycle is another one."""


class Encoder:
    """Encodes one value without recursion.

    Args:
        explode: gives code and body of a value that is not msgpack's own; raises ``Refused``.
        canonical: sort maps and sets, take a bytearray for bytes, mark cycles, and go to any depth: the form of a fingerprint.
    """

    __slots__ = ("_canonical", "_explode", "_graph", "_open", "_seen")

    def __init__(self, explode: Explode, *, canonical: bool = False) -> None:
        self._explode = explode
        self._canonical = canonical
        self._open: set[int] = set()
        self._graph = False  # whether a cycle was met: from then on every object is written once
        self._seen: list[Any] = []  # keeps the objects of a graph, so that no id comes twice

    def encode(self, value: Any, path: str) -> bytes:
        """Encode ``value``, which errors call ``path``.

        Raises:
            UnencodableError: a part cannot be recorded; its path is named.
        """
        data = _scalar(value)
        if data is not None:
            return data
        try:
            return self._walk(value, (None, path, None))
        except _CycleMet:
            # walking every path through a graph would take for ever
            self._graph = True
            self._open.clear()
            return self._walk(value, (None, path, None))

    def _walk(self, value: Any, root: Path) -> bytes:
        stack: list[tuple[Node, int]] = [self._enter(value, root)]
        result: Any = None
        while True:
            node, identity = stack[-1]
            try:
                child, where = node.send(result)
            except StopIteration as done:
                stack.pop()
                if not self._graph:
                    self._open.discard(identity)
                result = done.value
                if not stack:
                    return bytes(result)
                continue
            if id(child) in self._open:
                if not self._canonical:
                    raise _refusal(child, where, "it is a cycle, that is, it contains itself")
                if not self._graph:
                    raise _CycleMet from None
                result = extension(ext.CYCLE, b"")
                continue
            if len(stack) >= ext.MAX_DEPTH and not self._canonical:
                raise _refusal(child, where, f"it is nested more than {ext.MAX_DEPTH} levels deep")
            stack.append(self._enter(child, where))
            result = None

    def _enter(self, value: Any, path: Path) -> tuple[Node, int]:
        self._open.add(id(value))
        if self._graph:
            self._seen.append(value)
        return self._node(value, path), id(value)

    def _node(self, value: Any, path: Path) -> Node:
        cls = class_of(value)
        if cls is list:
            return (yield from self._array(value, path, "["))
        if cls is dict:
            return (yield from self._map(value, path, "["))
        try:
            if self._canonical and (cls is bytearray or cls is memoryview):
                return _scalar(bytes(value)) or b""
            code, body = self._explode(value)
        except Refused as error:
            raise _refusal(value, path, error.reason) from error.__cause__
        except Exception as error:
            raise _refusal(value, path, f"taking it apart raised {error!r}") from error
        return extension(code, body if code < ext.STRUCTURED else (yield from self._body(code, body, path)))

    def _body(self, code: int, body: Any, path: Path) -> Node:
        if code in (ext.SET, ext.FROZENSET):
            return (yield from self._array(body, path, "{"))
        if code in (ext.ORDERED_DICT, ext.COUNTER):
            return (yield from self._map(body, path, "["))
        if code == ext.DEQUE:
            items = yield from self._array(body[1], path, "[")
            return array_head(2) + (_scalar(body[0]) or b"") + items
        if code != ext.OBJECT:
            return (yield from self._array(body, path, "["))
        tag, kind, fields = body[:3]
        is_map: Any = type(fields) is dict
        parts = [array_head(len(body)), _scalar(tag) or b"", _scalar(kind) or b""]
        if is_map and kind != "r":
            parts.append((yield from self._map(fields, path, ".")))
        else:
            parts.append((yield from self._child(fields, (path, " (as its registered encode function gives it)", None))))
        if len(body) == 4:
            parts.append(map_head(len(body[3])))
            for name in sorted(body[3]) if self._canonical else body[3]:
                part = body[3][name]
                parts.append(_scalar(name) or b"")
                is_map = type(part) is dict
                parts.append((yield from self._map(part, path, ".")) if is_map else (yield from self._child(part, path)))
        return b"".join(parts)

    def _child(self, value: Any, path: Path) -> Node:
        data = _scalar(value)
        return (yield value, path) if data is None else data

    def _array(self, items: list[Any], path: Path, style: str) -> Node:
        parts: list[bytes] = []
        for index, item in enumerate(items):
            data = _scalar(item)
            if data is None and style == "{" and self._graph:  # which one comes first is chance
                data = extension(ext.OPAQUE, _label(item).encode())
            parts.append((yield item, (path, style, index)) if data is None else data)
        if style == "{" and self._canonical:
            parts.sort()
        return array_head(len(parts)) + b"".join(parts)

    def _map(self, mapping: dict[Any, Any], path: Path, style: str) -> Node:
        pairs: list[tuple[bytes, bytes]] = []
        plain = self._canonical and all(type(key) is str for key in mapping)
        for key in sorted(mapping) if plain else list(mapping):
            head, data = _scalar(key), _scalar(mapping[key])
            if head is None:
                head = yield key, (path, "k", key)
            if data is None:
                data = yield mapping[key], (path, style, key)
            pairs.append((head, data))
        if self._canonical and not plain:
            pairs.sort()
        return map_head(len(pairs)) + b"".join([part for pair in pairs for part in pair])
