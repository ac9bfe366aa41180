"""Values of the standard library that have an extension code: to a body and back.

Nothing here imports ``datetime``, ``decimal``, ``uuid`` or ``pathlib`` before a value of theirs is seen: an encoder is found
by the type's name and taken only if that module's own class is the very type.
"""

from __future__ import annotations

import sys
from struct import Struct

from letitloop.codecs import ext
from letitloop.codecs.ext import Refused, class_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Exploder = Callable[[Any], tuple[int, Any]]
    Builder = Callable[[Any], Any]

_DATETIME = Struct(">HBBBBBIB")
_DATE = Struct(">HBB")
_TIME = Struct(">BBBIB")
_DELTA = Struct(">iII")
_COMPLEX = Struct(">dd")
_SECONDS = Struct(">i")

_ZONE_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_+-/")
_zones: dict[bytes, Any] = {}
_dt: Any = None  # the modules datetime and uuid, once a value of theirs was read
_uuid_module: Any = None


def _datetime_module() -> Any:
    global _dt
    if _dt is None:
        import datetime

        _dt = datetime
    return _dt


# --- to a body ---------------------------------------------------------------------------------------------------------------


def big_int(value: int) -> tuple[int, bytes]:
    """Encode an integer beyond 64 bit (the libraries ask for these only)."""
    return ext.BIGINT, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)


def _delta_parts(value: Any) -> bytes:
    return _DELTA.pack(value.days, value.seconds, value.microseconds)


def _zone(tz: Any) -> bytes:
    if tz is None:
        return b""
    cls = class_of(tz)
    datetime: Any = sys.modules["datetime"]
    if cls is datetime.timezone:
        if tz is datetime.timezone.utc:
            return b"U"
        initial = tz.__getinitargs__()
        name = b"=" + initial[1].encode("utf-8", "surrogatepass") if len(initial) > 1 else b""
        return b"O" + _delta_parts(initial[0]) + name
    zoneinfo = sys.modules.get("zoneinfo")
    if zoneinfo is not None and cls is zoneinfo.ZoneInfo:
        if tz.key is None or not _ZONE_CHARACTERS.issuperset(tz.key):
            raise Refused("its time zone has no key")
        return b"Z" + str(tz.key).encode()
    pydantic = sys.modules.get("pydantic_core")
    if pydantic is not None and cls is getattr(pydantic, "TzInfo", None):
        seconds = tz.utcoffset(None)
        if not seconds.microseconds:
            return b"P" + _SECONDS.pack(int(seconds.days * 86400 + seconds.seconds))
    raise Refused(
        f"its time zone is a {cls.__module__}.{cls.__qualname__}; datetime.timezone and zoneinfo.ZoneInfo can be recorded, "
        "so convert it with .astimezone()"
    )


def _datetime(value: Any) -> tuple[int, bytes]:
    body = _DATETIME.pack(value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond, value.fold)
    tz = value.tzinfo
    return ext.DATETIME, body if tz is None else body + _zone(tz)


def _date(value: Any) -> tuple[int, bytes]:
    return ext.DATE, _DATE.pack(value.year, value.month, value.day)


def _time(value: Any) -> tuple[int, bytes]:
    return ext.TIME, _TIME.pack(value.hour, value.minute, value.second, value.microsecond, value.fold) + _zone(value.tzinfo)


def _timedelta(value: Any) -> tuple[int, bytes]:
    return ext.TIMEDELTA, _delta_parts(value)


def _uuid(value: Any) -> tuple[int, bytes]:
    safe = value.is_safe.value
    return ext.UUID, value.bytes if safe is None else value.bytes + bytes((safe & 0xFF,))


def _path(letter: bytes) -> Exploder:
    return lambda value: (ext.PATH, letter + str(value).encode("utf-8", "surrogatepass"))


def _no_attributes(value: Any) -> None:
    if getattr(value, "__dict__", None):
        raise Refused("it has attributes of its own")


def _ordered_dict(value: Any) -> tuple[int, dict[Any, Any]]:
    _no_attributes(value)
    return ext.ORDERED_DICT, dict(value)


def _counter(value: Any) -> tuple[int, dict[Any, Any]]:
    _no_attributes(value)
    return ext.COUNTER, dict(value)


BUILTIN: dict[type, Exploder] = {
    tuple: lambda value: (ext.TUPLE, list(value)),
    set: lambda value: (ext.SET, list(value)),
    frozenset: lambda value: (ext.FROZENSET, list(value)),
    int: big_int,
    bytearray: lambda value: (ext.BYTEARRAY, bytes(value)),
    complex: lambda value: (ext.COMPLEX, _COMPLEX.pack(value.real, value.imag)),
}
"""Encoders by type, for the types that every interpreter has loaded."""

_BY_NAME: dict[str, tuple[str, Exploder]] = {
    "datetime": ("datetime", _datetime),
    "date": ("datetime", _date),
    "time": ("datetime", _time),
    "timedelta": ("datetime", _timedelta),
    "Decimal": ("decimal", lambda value: (ext.DECIMAL, str(value).encode())),
    "UUID": ("uuid", _uuid),
    "PosixPath": ("pathlib", _path(b"P")),
    "WindowsPath": ("pathlib", _path(b"W")),
    "PurePosixPath": ("pathlib", _path(b"p")),
    "PureWindowsPath": ("pathlib", _path(b"w")),
    "OrderedDict": ("collections", _ordered_dict),
    "Counter": ("collections", _counter),
    "deque": ("collections", lambda value: (ext.DEQUE, [value.maxlen, list(value)])),
}


def exploder(cls: type) -> Exploder | None:
    """Find the encoder of a standard type, without importing anything."""
    found = BUILTIN.get(cls)
    if found is not None:
        return found
    module, encode = _BY_NAME.get(cls.__qualname__, ("", None))
    if encode is None or getattr(sys.modules.get(module), cls.__qualname__, None) is not cls:
        return None
    return encode


# --- back --------------------------------------------------------------------------------------------------------------------


def _array(body: Any) -> list[Any]:
    items: list[Any] = body
    cls = class_of(body)
    if cls is not list:
        raise TypeError("an array is expected")
    return items


def _map(body: Any) -> dict[Any, Any]:
    pairs: dict[Any, Any] = body
    cls = class_of(body)
    if cls is not dict:
        raise TypeError("a map is expected")
    return pairs


def _delta_of(body: bytes) -> Any:
    import datetime

    days, seconds, microseconds = _DELTA.unpack(body)
    return datetime.timedelta(days, seconds, microseconds)


def _read_zone(data: bytes) -> Any:
    if not data:
        return None
    found = _zones.get(data)
    if found is None:
        found = _make_zone(data[:1], data[1:])
        if len(_zones) < 1024:
            _zones[data] = found
    return found


def _make_zone(kind: bytes, rest: bytes) -> Any:
    import datetime

    if kind == b"U" and not rest:
        return datetime.timezone.utc
    if kind == b"O":
        offset, name = _delta_of(rest[:12]), rest[12:]
        if not name:
            return datetime.timezone(offset)
        if name[:1] == b"=":
            return datetime.timezone(offset, name[1:].decode("utf-8", "surrogatepass"))
    if kind == b"P":
        pydantic = sys.modules.get("pydantic_core")
        if pydantic is None:
            raise ValueError("its time zone is pydantic's: import pydantic before the value is read")
        return pydantic.TzInfo(*_SECONDS.unpack(rest))
    if kind == b"Z":
        return _zone_info(rest.decode("ascii"))
    raise ValueError(f"unknown kind of time zone {kind!r}")


def _zone_info(key: str) -> Any:
    if not key or not _ZONE_CHARACTERS.issuperset(key):
        raise ValueError("not the name of a time zone")
    import zoneinfo

    try:
        return zoneinfo.ZoneInfo(key)
    except (KeyError, OSError) as error:
        raise ValueError(f"this machine has no time zone {key!r}; the package tzdata brings them") from error


def _read_datetime(body: bytes) -> Any:
    dt = _dt or _datetime_module()
    year, month, day, hour, minute, second, microsecond, fold = _DATETIME.unpack_from(body)
    tz = _read_zone(body[12:]) if len(body) > 12 else None
    if fold:
        return dt.datetime(year, month, day, hour, minute, second, microsecond, tz, fold=fold)
    return dt.datetime(year, month, day, hour, minute, second, microsecond, tz)


def _read_date(body: bytes) -> Any:
    return (_dt or _datetime_module()).date(*_DATE.unpack(body))


def _read_time(body: bytes) -> Any:
    dt = _dt or _datetime_module()
    hour, minute, second, microsecond, fold = _TIME.unpack_from(body)
    return dt.time(hour, minute, second, microsecond, _read_zone(body[8:]), fold=fold)


def _read_decimal(body: bytes) -> Any:
    import decimal

    return decimal.Decimal(body.decode("ascii"))


def _read_uuid(body: bytes) -> Any:
    global _uuid_module
    if _uuid_module is None:
        import uuid

        _uuid_module = uuid
    safe = _uuid_module.SafeUUID
    if len(body) == 16:
        known = safe.unknown
    elif len(body) == 17:
        known = safe.safe if body[16] == 0 else safe.unsafe
    else:
        raise ValueError("16 or 17 bytes are expected")
    # what the constructor does, without its checks of six ways to call it
    value = object.__new__(_uuid_module.UUID)
    object.__setattr__(value, "int", int.from_bytes(body[:16], "big"))
    object.__setattr__(value, "is_safe", known)
    return value


_PATHS = {b"P": "PosixPath", b"W": "WindowsPath", b"p": "PurePosixPath", b"w": "PureWindowsPath"}


def _read_path(body: bytes) -> Any:
    import pathlib

    return getattr(pathlib, _PATHS[body[:1]])(body[1:].decode("utf-8", "surrogatepass"))


def _read_ordered_dict(body: Any) -> Any:
    import collections

    return collections.OrderedDict(_map(body))


def _read_counter(body: Any) -> Any:
    import collections

    counter: collections.Counter[Any] = collections.Counter()
    plain: Any = dict
    plain.update(counter, _map(body))  # Counter's own would add up
    return counter


def _read_deque(body: Any) -> Any:
    import collections

    maxlen, items = _array(body)
    if maxlen is not None and (type(maxlen) is not int or len(_array(items)) > maxlen):
        raise ValueError("more items than its maxlen")
    return collections.deque(_array(items), maxlen)


BUILDERS: dict[int, Builder] = {
    ext.BYTEARRAY: bytearray,
    ext.BIGINT: lambda body: int.from_bytes(body, "little", signed=True),
    ext.COMPLEX: lambda body: complex(*_COMPLEX.unpack(body)),
    ext.DECIMAL: _read_decimal,
    ext.DATETIME: _read_datetime,
    ext.DATE: _read_date,
    ext.TIME: _read_time,
    ext.TIMEDELTA: _delta_of,
    ext.UUID: _read_uuid,
    ext.PATH: _read_path,
    ext.TUPLE: lambda body: tuple(_array(body)),
    ext.SET: lambda body: set(_array(body)),
    ext.FROZENSET: lambda body: frozenset(_array(body)),
    ext.ORDERED_DICT: _read_ordered_dict,
    ext.COUNTER: _read_counter,
    ext.DEQUE: _read_deque,
}
"""Decoders by code. They may raise any Exception: the codec names the code and raises ``DecodeError``."""
