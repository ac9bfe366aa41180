"""The value table: each row is a name and a value that is recorded exactly, or one that is refused."""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import pathlib
import re
import threading
import types
import uuid
import zoneinfo

import numpy as np
from pydantic_core import TzInfo

from tests.codecs import shapes as s

NEW_YORK = zoneinfo.ZoneInfo("America/New_York")


def nested(levels, kind=list):
    value = 1
    for _ in range(levels):
        value = [value] if kind is list else (value,) if kind is tuple else {"k": value} if kind is dict else s.Node("n", value)
    return value


def pydantic_private():
    value = s.PM(a=1, t=(1, 2), d=dt.datetime(2020, 1, 1, tzinfo=dt.timezone.utc))
    value._secret = "changed"
    return value


def with_cache():
    value = s.Cached(4)
    assert value.double == 8
    return value


def with_attribute():
    value = s.DC(1, 2)
    value.note = "more"
    return value


def hashed():
    value = s.ATHash("a")
    hash(value)
    return value


SHARED = [1]

EXACT = {
    "None": None,
    "True": True,
    "False": False,
    "ints at every edge": [
        sign * (1 << bits) + d for bits in (0, 5, 7, 8, 15, 16, 31, 32, 62, 63, 64) for d in (-1, 0, 1) for sign in (1, -1)
    ],
    "str at every edge": ["x" * n for n in (0, 31, 32, 255, 256, 65535, 65536)],
    "bytes at every edge": [b"x" * n for n in (0, 255, 256, 65535, 65536)],
    "list at every edge": [[1] * n for n in (0, 15, 16, 65536)],
    "dict at every edge": [dict.fromkeys(map(str, range(n)), n) for n in (0, 15, 16, 65536)],
    "tuple at every edge": [(1,) * n for n in (0, 1, 2, 3, 7, 15, 16, 255, 65536)],
    "unicode": "äöü€𝄞\0\u202e",
    "tuple": (1, (2,)),
    "list": [1, [2]],
    "set": {1, (2, 3)},
    "frozenset": frozenset([1]),
    "empty containers": [(), [], {}, set(), frozenset(), "", b"", collections.deque()],
    "bytes": b"a",
    "bytearray": bytearray(b"a"),
    "bytearray (nested)": [bytearray(b"a")],
    "bytearray (deeper)": {"a": {"b": [1, bytearray(b"x" * 300), "\u0104"]}},
    "bytearray in a tuple": (1, [bytearray(b"abc")]),
    "bytearray in a dataclass": s.DC(1, bytearray(b"a")),
    "bytearray beside int keys": {1: bytearray(b"a")},
    "bytearray in OrderedDict": collections.OrderedDict(a=bytearray(70000)),
    "datetime naive": dt.datetime(2020, 1, 1, 1, 2, 3, 4),
    "datetime utc": dt.datetime(2020, 1, 1, tzinfo=dt.timezone.utc),
    "datetime fixed off": dt.datetime(2020, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=5, minutes=30))),
    "datetime named fixed off": dt.datetime(2020, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=-5), "EST")),
    "datetime named zero off": dt.datetime(2020, 1, 1, tzinfo=dt.timezone(dt.timedelta(0), "Z")),
    "datetime empty name": dt.datetime(2020, 1, 1, tzinfo=dt.timezone(dt.timedelta(0), "")),
    "datetime odd off": dt.datetime(2020, 1, 1, tzinfo=dt.timezone(dt.timedelta(seconds=-1, microseconds=7))),
    "datetime zoneinfo fold=1": dt.datetime(2025, 11, 2, 1, 30, tzinfo=NEW_YORK, fold=1),
    "datetime zoneinfo fold=0": dt.datetime(2025, 11, 2, 1, 30, tzinfo=NEW_YORK, fold=0),
    "datetime pydantic zone": dt.datetime(2020, 1, 1, tzinfo=TzInfo(-3600)),
    "datetime limits": [dt.datetime.min, dt.datetime.max],
    "date": dt.date(2020, 1, 1),
    "time": dt.time(1, 2, 3, 4, fold=1),
    "time tz": dt.time(1, 2, tzinfo=dt.timezone.utc),
    "timedelta neg": dt.timedelta(microseconds=-1),
    "timedelta limits": [dt.timedelta.min, dt.timedelta.max],
    "Decimal": decimal.Decimal("1.10"),
    "Decimal forms": [decimal.Decimal(x) for x in ("-0", "0E+3", "1E-400", "Infinity", "-Infinity", "NaN", "-NaN7")],
    "Decimal long": decimal.Decimal("1" * 100 + ".25"),
    "Decimal sNaN": decimal.Decimal("sNaN123"),
    "UUID": uuid.UUID(int=0),
    "UUID safe": uuid.UUID(int=5, is_safe=uuid.SafeUUID.safe),
    "UUID unsafe": uuid.UUID(int=5, is_safe=uuid.SafeUUID.unsafe),
    "PosixPath": pathlib.PosixPath("/a/b"),
    "PosixPath odd": [pathlib.PosixPath(""), pathlib.PosixPath("//x/../y"), pathlib.PosixPath("a\udcff")],
    "PurePosixPath": pathlib.PurePosixPath("a/b"),
    "PureWindowsPath": pathlib.PureWindowsPath("c:/x"),
    "Enum": s.Color.RED,
    "Enum alias": s.Color.CRIMSON,
    "Enum with hooks": s.Loud.ONE,
    "IntEnum": s.Level.HIGH,
    "str Enum": s.Word.X,
    "StrEnum": s.Text.X,
    "Enum nested in a class": s.Outer.Kind.A,
    "Flag": s.Access.READ,
    "Flag combo": s.Access.READ | s.Access.WRITE,
    "Flag none": s.Access(0),
    "IntFlag combo": s.Bits.A | s.Bits.B,
    "IntFlag unknown bits": s.Bits(9),
    "namedtuple": s.PointN(1, 2),
    "NamedTuple": s.PointT(1, [2]),
    "NamedTuple subclass": s.Loose(1, 2),
    "dataclass(tuple field)": s.DC(1, (2,)),
    "frozen": s.Frozen(1, (2,)),
    "slots": s.Slots(1, (2,)),
    "frozen+slots": s.FrozenSlots(1, (2,)),
    "no fields": [s.NoFields(), s.Empty()],
    "init=False field": s.Computed(1),
    "field without value": s.Unset(1),
    "inherit": s.Child(1, (2,), 2.0),
    "slots and dict": s.MixedChild(1, 2),
    "generic": s.Box([1]),
    "generic with parameter": s.Box[int](1),
    "nested class": s.Outer.Inner(1),
    "cached property": with_cache(),
    "attribute that is no field": with_attribute(),
    "hooks": s.Hostile(-1),
    "pydantic tuple+dt+private": pydantic_private(),
    "pydantic extra": s.PX(a=1, zz=(1, 2)),
    "pydantic union": s.PU(pet=s.Dog(age=3)),
    "pydantic fields_set": s.PM(a=1),
    "pydantic all set": s.PM(a=1, t=(), d=None),
    "pydantic generic": s.PGInt(v=1),
    "pydantic root": s.PRoot([1, 2]),
    "pydantic root with private": s.PRootPrivate([1, 2]),
    "pydantic construct": s.PStrict.model_construct(a=99),
    "attrs": s.AT(1, (2,)),
    "attrs frozen": s.ATFrozen(1),
    "attrs dict": s.ATDict(1),
    "attrs hash": hashed(),
    "int 2**70": 2**70,
    "big ints": [sign * 2**n + d for n in (64, 71, 72, 1000) for d in (-1, 0, 1) for sign in (1, -1)],
    "inf": [float("inf"), float("-inf")],
    "nan": float("nan"),
    "-0.0": -0.0,
    "float limits": [5e-324, 1.7976931348623157e308, 0.1],
    "dict int keys": {1: 2},
    "dict tuple keys": {(1, 2): 3, ((1,), "a"): (4,)},
    'dict mixed 1/"1"': {1: "a", "1": "b", None: 0, 2.5: 1, b"x": 2, frozenset([1]): 3, 2**70: 4},
    "dict keys of classes": {s.FrozenSlots(1, 2): 1, s.Color.RED: 2, uuid.UUID(int=1): 3, dt.date(2020, 1, 1): 4, s.Text.X: 5},
    "OrderedDict": collections.OrderedDict([("b", 1), ("a", 2)]),
    "OrderedDict mixed": collections.OrderedDict([((1,), 1), ("a", (2,))]),
    "deque(maxlen)": collections.deque([1, 2], maxlen=2),
    "deque": collections.deque([1, (2,)]),
    "Counter": collections.Counter("aab"),
    "Counter int keys": collections.Counter([3, 3, 1]),
    "complex": complex(1, -0.0),
    "lone surrogate": "a\ud800",
    "lone surrogate as key": {"a\udfff": (1,), "b": "c\ud800"},
    "np.float32": np.float32(1.5),
    "np.float64": np.float64(1.5),
    "np.int64": np.int64(5),
    "np.bool": np.bool_(True),
    "np.str": np.str_("ab"),
    "np.bytes": np.bytes_(b"ab"),
    "np.complex": np.complex64(1j),
    "np arr 2d C": np.arange(6.0).reshape(2, 3),
    "np arr 2d F": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "np arr big endian": np.arange(3, dtype=">i2"),
    "np arr empty": np.zeros((0, 3), dtype="i4"),
    "np arr 0d": np.array(5),
    "np arr str": np.array(["ab", "c"]),
    "np arr dates": np.array(["2020-01-01", "NaT"], dtype="M8[ms]"),
    "np datetime64": np.datetime64("2020-01-01"),
    "np timedelta64": np.timedelta64(5, "s"),
    "np nan payload": np.frombuffer(b"\x01\x00\xc0\x7f", dtype="<f4"),
    "shared ref": [SHARED, SHARED],
    "depth 400": nested(400),
    "depth 400 of tuples": nested(400, tuple),
    "depth 400 of dicts": nested(400, dict),
    "depth 400 of objects": nested(400, object),
    "depth 300": nested(300),
    "depth 200 of tuples and lists": [nested(99, tuple), nested(99)],
}


def cyclic():
    value = []
    value.append({"a": (value,)})
    return value


def cyclic_objects():
    first, second = s.Node("a"), s.Node("b")
    first.next, second.next = [second], first
    return first


def local_class():
    import dataclasses

    @dataclasses.dataclass
    class Local:
        a: int

    return Local(1)


def strange_counter():
    value = collections.Counter("a")
    value.note = 1
    return value


def longer_tuple():
    return tuple.__new__(s.PointN, (1, 2, 3))


REFUSED = {
    # the value, and how its path ends
    "defaultdict(list)": collections.defaultdict(list, a=[1]),
    "int subclass": s.MyInt(3),
    "str subclass": s.MyStr("q"),
    "list subclass": s.MyList([1]),
    "str subclass as key": {s.MyStr("q"): 1},
    "Exception": ValueError("boom", 3),
    "range": range(3),
    "slice": slice(1),
    "Ellipsis": ...,
    "NotImplemented": NotImplemented,
    "type": int,
    "plain object": object(),
    "instance": s.Plain(),
    "memoryview": memoryview(b"a"),
    "memoryview (nested)": [memoryview(b"a")],
    "memoryview as key": {memoryview(b"a"): 1},
    "cycle": cyclic(),
    "cycle of objects": cyclic_objects(),
    "too deep": nested(1500),
    "too deep, tuples": nested(1500, tuple),
    "too deep, objects": nested(1500, object),
    "mappingproxy": types.MappingProxyType({}),
    "re.Pattern": re.compile("a"),
    "lambda": lambda: 0,
    "function": s.function,
    "generator": (i for i in ()),
    "lock": threading.Lock(),
    "module": types,
    "local class": local_class(),
    "dataclass that is an exception": s.ErrorLike(1),
    "zone of no name": dt.datetime(2020, 1, 1, tzinfo=type("Zone", (dt.tzinfo,), {})()),
    "np object array": np.array([object()]),
    "np structured": np.zeros(2, dtype=[("a", "i4")]),
    "np matrix": np.ma.masked_array([1]),
    "Counter with attribute": strange_counter(),
    "named tuple of another length": longer_tuple(),
}
