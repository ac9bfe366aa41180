"""Fingerprints: equal for equal arguments in every process, different for different ones, never an error."""

from __future__ import annotations

import collections
import datetime as dt
import functools
import os
import re
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
from hypothesis import given

from letitloop.codecs import Codecs, default_codecs
from tests.codecs import shapes as s
from tests.codecs.table import EXACT, REFUSED, nested
from tests.codecs.test_round_trip import values

fingerprint = default_codecs.fingerprint


def of(value):
    return fingerprint((value,), {})


def test_shape():
    assert fingerprint((), {}) == b""
    assert len(fingerprint((1,), {})) == 20
    assert len(fingerprint((1, 2), {"a": 3, "b": 4})) == 32
    assert fingerprint((1,), {"b": 1, "a": 2}) == fingerprint((1,), {"a": 2, "b": 1})


def test_hints_tell_which_argument_changed():
    large = "x" * 5000
    one = fingerprint((1, large), {"a": 3, "b": large})
    two = fingerprint((1, large + "y"), {"a": 4, "b": large})
    changed = [one[at : at + 4] != two[at : at + 4] for at in range(16, 32, 4)]
    assert changed == [False, True, True, False]
    assert one[:16] != two[:16]


def test_the_name_of_a_keyword_counts():
    assert fingerprint((), {"a": 1}) != fingerprint((), {"b": 1}) != fingerprint((1,), {})
    assert fingerprint((1, 2), {}) != fingerprint((2, 1), {})


DIFFERENT = [
    1,
    1.0,
    True,
    "1",
    b"1",
    None,
    0,
    -0.0,
    0.0,
    False,
    [],
    (),
    {},
    set(),
    [1],
    (1,),
    {1},
    frozenset([1]),
    {"a": 1},
    {"a": 2},
    {1: "a"},
    {"1": "a"},
    2**70,
    2**71,
    s.DC(1, 2),
    s.DC(1, 3),
    s.Frozen(1, 2),
    s.Color.RED,
    s.Color.GREEN,
    s.Level.LOW,
    dt.date(2020, 1, 1),
    dt.datetime(2020, 1, 1),
    s.PM(a=1),
    s.PM(a=2),
    s.PX(a=1),
    s.PX(a=1, b=2),
    s.MyInt(1),
    s.MyInt(2),
    s.MyStr("a"),
    s.MyList([1]),
    range(3),
    range(4),
    slice(1),
    collections.defaultdict(list, a=1),
    collections.defaultdict(list, a=2),
    s.function,
    nested,
    len,
    print,
    str.upper,
    "".join,
    s.Plain,
    s.DC,
    object(),
    s.Plain(),
    lambda: 0,
    np.int64(1),
    np.arange(3),
    np.arange(4),
    re.compile("a"),
    nested(600),
    nested(601),
    threading.Lock(),
    [threading.Lock()],
    default_codecs.encode,
    "a\ud800",
    "a\ud801",
    {"a\ud800": 1},
    {"deep": {1: [s.MyInt(5)]}},
    {"deep": {1: [s.MyInt(6)]}},
    dt.datetime(2020, 1, 1, tzinfo=type("Zone", (dt.tzinfo,), {"utcoffset": lambda *_: dt.timedelta(1)})()),
]


def test_different_arguments_have_different_fingerprints():
    seen = {}
    for value in DIFFERENT:
        other = seen.setdefault(of(value), value)
        assert other is value, (other, value)


def test_equal_arguments_have_equal_fingerprints():
    for one, two in (
        ({"a": 1, "b": {"d": 1, "c": 2}}, {"b": {"c": 2, "d": 1}, "a": 1}),
        ({1: 2, "a": 3, (1,): 4}, {(1,): 4, "a": 3, 1: 2}),
        ({3, 1, 2, "a", (1,)}, {"a", (1,), 1, 2, 3}),
        (object(), object()),
        (s.Plain(1), s.Plain(2)),
        (threading.Lock(), threading.Lock()),
        ([lambda: 0], [lambda: 1]),
        (s.DC(1, object()), s.DC(1, object())),
        ({"deep": [({1: object()},)]}, {"deep": [({1: object()},)]}),
        (s.PM(a=1), s.PM(a=1, t=())),
        (b"a", bytearray(b"a")),
        (b"a", memoryview(b"a")),
        (b"ac", memoryview(b"abc")[::2]),
        (functools.partial(len), functools.partial(print)),
    ):
        assert of(one) == of(two)


def test_a_filled_cache_changes_nothing():
    one, two = s.Cached(4), s.Cached(4)
    assert two.double == 8
    assert of(one) == of(two)
    one, two = s.ATHash("a"), s.ATHash("a")
    hash(two)
    assert of(one) == of(two)


def test_a_local_class_counts_by_its_fields():
    import dataclasses

    @dataclasses.dataclass
    class Local:
        a: int

    assert of(Local(1)) == of(Local(1)) != of(Local(2))


class Broken:
    __slots__ = ()

    def __getattr__(self, name):
        raise RuntimeError(name)

    def __repr__(self):
        raise RuntimeError

    def __eq__(self, other):
        raise RuntimeError

    __hash__ = object.__hash__


class BrokenStr(str):
    __slots__ = ()

    def __str__(self):
        raise RuntimeError


class BrokenMeta(type):
    def __getattribute__(cls, name):
        raise RuntimeError(name)


class BrokenClass(metaclass=BrokenMeta):
    pass


def test_it_never_raises():
    broken = [Broken(), [Broken()], BrokenStr("a"), BrokenClass(), BrokenClass, {Broken(): 1}]
    for value in [*REFUSED.values(), *broken]:
        assert len(fingerprint((value, [value]), {"a": value})) == 28
        assert of(value) == of(value)


@pytest.mark.parametrize("value", EXACT.values(), ids=list(EXACT))
def test_a_decoded_argument_has_the_fingerprint_of_the_original(value):
    assert of(default_codecs.decode(default_codecs.encode(value))) == of(value)


@pytest.mark.parametrize("value", EXACT.values(), ids=list(EXACT))
def test_the_c_library_gives_the_canonical_form(value):
    printer = default_codecs._fingerprinter
    assert printer._packer.reference(value, "argument") == printer.canonical(value)


@given(values)
def test_the_c_library_gives_the_canonical_form_of_anything(value):
    printer = default_codecs._fingerprinter
    assert printer._packer.reference(value, "argument") == printer.canonical(value)


def test_cycles_and_graphs_end():
    nodes = [s.Node(str(i)) for i in range(12)]
    for node in nodes:
        node.next = [other for other in nodes if other is not node]
    assert of(nodes[0]) == of(nodes[0])
    tree = s.Node("root", [s.Node(str(i)) for i in range(200)])
    for child in tree.next:
        child.next = tree
    assert of(tree) == of(tree)
    ring = [s.Node("a")]
    ring[0].next = {"back": ring}
    other = [s.Node("b")]
    other[0].next = {"back": other}
    assert of(ring) != of(other)


def test_a_failing_registered_function_counts_by_type():
    codecs = Codecs()
    codecs.register(s.Plain, encode=lambda p: 1 / p.x, decode=s.Plain)
    assert codecs.fingerprint((s.Plain(0),), {}) == codecs.fingerprint((s.Plain(0),), {})
    assert codecs.fingerprint((s.Plain(1),), {}) != codecs.fingerprint((s.Plain(2),), {})


SCRIPT = """
import collections, dataclasses, datetime, decimal, enum, pathlib, sys, threading, uuid
from letitloop.codecs import default_codecs
class Color(enum.Flag):
    RED = 1
    BLUE = 2
@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    tags: frozenset
cycle = []
cycle.append((cycle, {"a": cycle}))
words = [str(i) for i in range(50)]
args = (
    1, "a", 2.5, {"b": 1, "a": [1, (2,)]}, set(words), frozenset(words), {w: {w} for w in words},
    {Point(1, frozenset(words)): 2, "x": 1, 3: None},
    Point(1, frozenset(words)), Color.RED | Color.BLUE, datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc),
    decimal.Decimal("1.10"),
    uuid.UUID(int=5), pathlib.PurePosixPath("a/b"), pathlib.PosixPath("/x"), threading.Lock(), object(), len, cycle,
    lambda: 0, range(3), 2**80,
    collections.Counter(words), collections.OrderedDict.fromkeys(words), [set(words) for _ in range(3)],
    {1: {(w, w) for w in words}}, Point,
)
sys.stdout.write(default_codecs.fingerprint(args, {"z": 1, "a": set(words)}).hex())
"""


@pytest.mark.parametrize("seed", ["0", "1", "4711"])
def test_every_process_gives_the_same_fingerprint(seed):
    def run(hash_seed):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(SCRIPT)], env=environment, capture_output=True, text=True, check=True
        ).stdout

    assert run(seed) == run("99") == KNOWN


KNOWN = (
    "19b8cc954efd76c132bf5089336ee7dea505df1bcc70ce9901496fc59178b6eb94dc5f15ff054b52a233e906a2a5e5d9b481"
    "bbf166cbab48e37c461fc82570f3cb2489d48bdf92f0f7e002b9ae8de120b24270e3f6e7204e5e7e53f5b80ffe72228f1ce8"
    "71cfe5b20ab1a9ad8e15bebae353aab6786bcfa70b496236c1240daf852c4faf"
)


def test_a_known_fingerprint():
    """What a log of today holds must be understood by every later version, on every version of Python."""
    assert fingerprint((1,), {}).hex() == "4bf5122f344554c53bde2ebb8cd2b7e3d1600ad6"
