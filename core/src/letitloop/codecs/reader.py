"""The wire in plain Python: the decoder that needs no stack.

It is asked where the C libraries give up (lone surrogates, deep nesting, damage), and says what is wrong at which byte.
"""

from __future__ import annotations

from struct import unpack_from

from letitloop.codecs import ext
from letitloop.errors import DecodeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Build = Callable[[int, Any], Any]

_FIXED: dict[int, tuple[str, int]] = {
    0xCA: (">f", 4), 0xCB: (">d", 8), 0xCC: (">B", 1), 0xCD: (">H", 2), 0xCE: (">I", 4), 0xCF: (">Q", 8),
    0xD0: (">b", 1), 0xD1: (">h", 2), 0xD2: (">i", 4), 0xD3: (">q", 8),
}  # fmt: skip
_SIZED: dict[int, tuple[str, str, int]] = {
    0xC4: ("bin", ">B", 1), 0xC5: ("bin", ">H", 2), 0xC6: ("bin", ">I", 4), 0xC7: ("ext", ">B", 1), 0xC8: ("ext", ">H", 2),
    0xC9: ("ext", ">I", 4), 0xD9: ("str", ">B", 1), 0xDA: ("str", ">H", 2), 0xDB: ("str", ">I", 4), 0xDC: ("array", ">H", 2),
    0xDD: ("array", ">I", 4), 0xDE: ("map", ">H", 2), 0xDF: ("map", ">I", 4),
}  # fmt: skip
_SIMPLE = {0xC0: None, 0xC2: False, 0xC3: True}


def _kind(data: bytes, at: int) -> tuple[str, int, int]:
    """Read a head: kind, length (or the value, for a fixed integer), and the offset behind it."""
    first = data[at]
    if first < 0x80:
        return "int", first, at + 1
    if first >= 0xE0:
        return "int", first - 0x100, at + 1
    if first < 0xC0:
        kind = "map" if first < 0x90 else "array" if first < 0xA0 else "str"
        return kind, first & (0x1F if kind == "str" else 0x0F), at + 1
    if first in _SIZED:
        kind, form, width = _SIZED[first]
        return kind, unpack_from(form, data, at + 1)[0], at + 1 + width
    if 0xD4 <= first <= 0xD8:
        return "ext", 1 << (first - 0xD4), at + 1
    return "fixed", first, at + 1


class _Open:
    """A container that is being read."""

    __slots__ = ("code", "end", "items", "kind", "left")

    def __init__(self, kind: str, left: int, code: int, end: int) -> None:
        self.kind, self.left, self.code, self.end = kind, left, code, end
        self.items: list[Any] = []


def decode(data: bytes, build: Build) -> Any:
    """Decode one value without recursion.

    Args:
        data: the bytes.
        build: gives the value for a code and its body.

    Raises:
        DecodeError: the bytes are no value.
    """
    stack: list[_Open] = []
    at, size = 0, len(data)
    try:
        while True:
            kind, length, at = _kind(data, at)
            if kind in ("array", "map", "ext") and (length or kind == "ext"):
                at, value, opened = _open(data, at, kind, length, build)
                if opened is not None:
                    stack.append(opened)
                    if len(stack) > ext.MAX_DECODE_DEPTH:
                        raise DecodeError(f"the record is nested more than {ext.MAX_DECODE_DEPTH} levels deep")
                    continue
            else:
                at, value = _leaf(data, at, kind, length)
            while stack:
                top = stack[-1]
                top.items.append(value)
                top.left -= 1
                if top.left:
                    break
                value = _close(stack.pop(), at, build)
            else:
                if at != size:
                    raise DecodeError(f"{size - at} bytes follow the value")
                return value
    except (DecodeError, MemoryError, RecursionError):
        raise
    except Exception as error:  # too short, not UTF-8, an unhashable key: whatever damaged bytes can lead to
        raise DecodeError(f"the bytes are no recorded value: {error!r} at byte {at} of {size}") from error


def _take(data: bytes, at: int, length: int) -> bytes:
    if length > len(data) - at:
        raise DecodeError(f"the record ends inside a value: {length} bytes are declared at byte {at}, {len(data) - at} are left")
    return data[at : at + length]


def _open(data: bytes, at: int, kind: str, length: int, build: Build) -> tuple[int, Any, _Open | None]:
    if kind == "ext":
        code = unpack_from("b", data, at)[0]
        if code < ext.STRUCTURED or code >= ext.STRUCTURED + 16:
            return at + 1 + length, build(code, _take(data, at + 1, length)), None
        if length > len(data) - at - 1:
            raise DecodeError("the record ends inside a value")
        return at + 1, None, _Open(kind, 1, code, at + 1 + length)
    count = length * 2 if kind == "map" else length
    if count > len(data) - at:  # every item takes a byte: refuse a huge length before room is made for it
        raise DecodeError(
            f"the record ends inside a value: {count} items are declared at byte {at}, {len(data) - at} bytes are left"
        )
    return at, None, _Open(kind, count, 0, 0)


def _close(top: _Open, at: int, build: Build) -> Any:
    if top.kind == "array":
        return top.items
    if top.kind == "map":
        return dict(zip(top.items[::2], top.items[1::2], strict=True))
    if at != top.end:
        raise DecodeError("an extension's length and its body differ")
    return build(top.code, top.items[0])


def _leaf(data: bytes, at: int, kind: str, length: int) -> tuple[int, Any]:
    if kind == "int":
        return at, length
    if kind == "str":
        return at + length, _take(data, at, length).decode("utf-8", "surrogatepass")
    if kind == "bin":
        return at + length, _take(data, at, length)
    if kind == "array":
        return at, []
    if kind == "map":
        return at, {}
    if length in _SIMPLE:
        return at, _SIMPLE[length]
    form, width = _FIXED.get(length, ("", 0))
    if not width:
        raise DecodeError(f"the byte 0x{length:02x} starts no value")
    return at + width, unpack_from(form, data, at)[0]
