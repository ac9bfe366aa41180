"""Round trips of generated values, and the parity of the three encoders and the three decoders."""

from __future__ import annotations

import collections
import datetime as dt
import zoneinfo

import msgpack
import ormsgpack
from hypothesis import given
from hypothesis import strategies as st

from letitloop.codecs import default_codecs
from tests.codecs import shapes as s
from tests.codecs.same import difference

zones = st.one_of(
    st.none(),
    st.just(dt.timezone.utc),
    st.builds(dt.timezone, st.timedeltas(dt.timedelta(hours=-23), dt.timedelta(hours=23))),
    st.builds(dt.timezone, st.timedeltas(dt.timedelta(hours=-23), dt.timedelta(hours=23)), st.text(max_size=3)),
    st.sampled_from(["America/New_York", "Europe/Berlin", "UTC"]).map(zoneinfo.ZoneInfo),
)
surrogates = st.text(st.characters(codec=None), max_size=6)
quiet = st.decimals().filter(lambda number: not number.is_snan())  # a signalling NaN has no hash
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-(2**66), 2**66), st.floats(), st.text(max_size=40), surrogates,
    st.binary(max_size=40), st.complex_numbers(), quiet, st.uuids(), st.dates(), st.timedeltas(),
    st.datetimes(timezones=zones), st.times(), st.sampled_from([*s.Color, *s.Level, *s.Word, *map(s.Access, range(8)), s.Bits(9)]),
)  # fmt: skip
keys = st.recursive(
    scalars,
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3) | st.builds(s.FrozenSlots, inner, inner),
    max_leaves=4,
)
values = st.recursive(
    scalars | st.binary(max_size=8).map(bytearray),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.text(max_size=4), inner, max_size=4),
        st.dictionaries(keys, inner, max_size=3),
        st.sets(keys, max_size=3),
        st.dictionaries(keys, inner, max_size=3).map(collections.OrderedDict),
        st.builds(collections.deque, st.lists(inner, max_size=3), st.none() | st.integers(3, 5)),
        st.builds(s.DC, inner, inner),
        st.builds(s.Slots, inner, inner),
        st.builds(s.Child, inner, inner, inner),
        st.builds(s.PointN, inner, inner),
        st.builds(s.AT, inner, inner),
        st.builds(s.PX.model_construct, a=inner, zz=inner),
    ),
    max_leaves=12,
)


@given(values)
def test_any_value_comes_back_exactly(value):
    data = default_codecs.encode(value)
    assert difference(value, default_codecs.decode(data)) == ""


@given(values)
def test_the_encoders_give_the_same_bytes(value):
    data = default_codecs.encode(value)
    assert default_codecs._packer.reference(value, "result") == data
    assert default_codecs._packer.pack_msgpack(value) == data


@given(values)
def test_the_decoders_give_the_same_value(value):
    data = default_codecs.encode(value)
    assert difference(value, default_codecs._unpacker.reference(data)) == ""
    assert difference(value, default_codecs._unpacker.unpack_msgpack(data)) == ""


native = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=300) | st.binary(max_size=300),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=4), inner, max_size=20),
)


@given(native)
def test_what_msgpack_has_is_plain_msgpack(value):
    data = default_codecs.encode(value)
    assert data == msgpack.packb(value) == ormsgpack.packb(value)
