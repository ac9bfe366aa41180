r"""Recorded values as JSON, from their bytes: no class is looked up, so any value of any program can be exported.

What JSON holds stays as it is: null, booleans, numbers, strings, arrays, objects with string keys. All else is an object with
``$type``::

    {"$type": "tuple", "items": [...]}            also set, frozenset, deque (with "maxlen")
    {"$type": "dict", "items": [[key, value]]}    a dict with other keys, or with a key "$type"; also OrderedDict, Counter
    {"$type": "bytes", "base64": "..."}           also bytearray
    {"$type": "float", "value": "nan"}            also inf, -inf
    {"$type": "int", "value": "..."}              beyond 64 bit
    {"$type": "datetime", "value": "..."}         also date, time, timedelta (seconds), Decimal, UUID, complex, paths
    {"$type": "object", "class": "module:Name", "fields": {...}}
    {"$type": "enum", "class": "module:Name", "value": "MEMBER"}
    {"$type": "ndarray", "dtype": ..., "shape": [...], "base64": "..."}
    {"$type": "unreadable", "base64": "...", "error": "..."}
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from typing import Any

from letitloop.codecs import ext, reader, values
from letitloop.errors import DecodeError

__all__ = ["base64", "fields", "to_json", "unpack"]

_SEQUENCES = {ext.TUPLE: "tuple", ext.SET: "set", ext.FROZENSET: "frozenset"}
_MAPS = {ext.ORDERED_DICT: "OrderedDict", ext.COUNTER: "Counter"}
_TEXTS = {ext.DECIMAL: "Decimal", ext.UUID: "UUID", ext.COMPLEX: "complex"}
_TIMES = {ext.DATETIME: "datetime", ext.DATE: "date", ext.TIME: "time"}


class Tagged:
    """An extension that was read: its code and body. It stands for a value that may be a dict's key, so it has a hash."""

    __slots__ = ("body", "code")

    def __init__(self, code: int, body: Any) -> None:
        self.code = code
        self.body = body


def base64(data: bytes) -> str:
    """Return bytes as base64 text."""
    return b64encode(data).decode("ascii")


def unpack(data: bytes) -> Any:
    """Return a recorded value with its extensions as :class:`Tagged`.

    Raises:
        DecodeError: the bytes are no recorded value.
    """
    return reader.decode(data, Tagged)


def to_json(data: bytes) -> Any:
    """Return a recorded value's bytes as what :func:`json.dumps` takes; damage becomes an ``unreadable`` object.

    Args:
        data: what a run recorded.

    Example:
        >>> from letitloop.codecs import default_codecs
        >>> to_json(default_codecs.encode({"at": (1, 2.5), 3: b"x"}))
        {'$type': 'dict', 'items': [['at', {'$type': 'tuple', 'items': [1, 2.5]}], [3, {'$type': 'bytes', 'base64': 'eA=='}]]}
    """
    try:
        found = _plain(unpack(data))
        json.dumps(found)  # a value nested deeper than this interpreter's JSON writer goes
    except (DecodeError, RecursionError, ValueError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        return {"$type": "unreadable", "base64": base64(data), "error": reason}
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Tagged):
        return _tagged(value.code, value.body)
    if isinstance(value, bytes):
        return {"$type": "bytes", "base64": base64(value)}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$type": "float", "value": str(value)}
    if isinstance(value, list):
        return [_plain(item) for item in _items(value)]
    if isinstance(value, dict):
        pairs = _pairs(value)
        if all(isinstance(key, str) for key, _ in pairs) and "$type" not in value:
            return {key: _plain(item) for key, item in pairs}
        return {"$type": "dict", "items": [[_plain(key), _plain(item)] for key, item in pairs]}
    return value


def fields(value: Any) -> dict[Any, Any]:
    """Return a map that was read.

    Raises:
        DecodeError: it is none.
    """
    return dict(_pairs(value))


def _items(value: Any) -> list[Any]:
    if not _is(value, list):
        raise DecodeError(f"an array is due, not {type(value).__name__}")
    return [*value]


def _pairs(value: Any) -> list[tuple[Any, Any]]:
    if not _is(value, dict):
        raise DecodeError(f"a map is due, not {type(value).__name__}")
    return [*value.items()]


def _is(value: Any, kind: type) -> bool:
    """Tell a value's type, without narrowing it to a list or dict of what type checkers do not know."""
    return isinstance(value, kind)


def _tagged(code: int, body: Any) -> Any:
    if code in _SEQUENCES:
        return {"$type": _SEQUENCES[code], "items": [_plain(item) for item in _items(body)]}
    if code in _MAPS:
        return {"$type": _MAPS[code], "items": [[_plain(key), _plain(item)] for key, item in _pairs(body)]}
    if code == ext.DEQUE:
        most, items = _items(body)
        return {"$type": "deque", "maxlen": most, "items": [_plain(item) for item in _items(items)]}
    if code == ext.BYTEARRAY:
        return {"$type": "bytearray", "base64": base64(body)}
    if code == ext.BIGINT:
        number = int.from_bytes(body, "little", signed=True)
        return {"$type": "int", "value": str(number) if abs(number) < 1 << 4096 else hex(number)}
    if code == ext.OBJECT:
        tag, kind, fields, *meta = _items(body)
        found = {"$type": "object", "class": tag, "kind": kind, "fields": _plain(fields)}
        return {**found, "meta": _plain(meta[0])} if meta else found
    if code == ext.ENUM:
        tag, member, *version = _items(body)
        found = {"$type": "enum", "class": tag, "value": _plain(member)}
        return {**found, "version": version[0]} if version else found
    if code == ext.NDARRAY:
        dtype, shape, data = _items(body)
        return {"$type": "ndarray", "dtype": _plain(dtype), "shape": _plain(shape), "base64": base64(data)}
    if code == ext.NUMPY_SCALAR:
        dtype, data = _items(body)
        return {"$type": "numpy", "dtype": _plain(dtype), "base64": base64(data)}
    return _scalar(code, body)


def _scalar(code: int, body: bytes) -> Any:
    """Write the extensions with a raw body, by the codecs' own decoders."""
    if code == ext.PATH:
        return {"$type": "path", "class": body[:1].decode("ascii", "replace"), "value": body[1:].decode("utf-8", "surrogatepass")}
    try:
        value: Any = values.BUILDERS[code](body)
    except Exception as error:
        raise DecodeError(f"an extension of code {code:#x} cannot be read: {error!r}") from error
    if code in _TEXTS:
        return {"$type": _TEXTS[code], "value": str(value)}
    if code == ext.TIMEDELTA:
        return {"$type": "timedelta", "days": value.days, "seconds": value.seconds, "microseconds": value.microseconds}
    found = {"$type": _TIMES[code], "value": value.isoformat()}
    zone = getattr(value, "tzinfo", None)
    if zone is not None:
        found["zone"] = str(zone)
    return {**found, "fold": 1} if getattr(value, "fold", 0) else found
