"""The value table: exact or refused, and the three encoders give the same bytes."""

from __future__ import annotations

import sqlite3

import pytest

from letitloop.codecs import Codecs, default_codecs
from letitloop.errors import DecodeError, UnencodableError
from tests.codecs.same import difference
from tests.codecs.table import EXACT, REFUSED, nested


@pytest.mark.parametrize("name", EXACT)
def test_a_value_comes_back_exactly(name):
    value = EXACT[name]
    data = default_codecs.encode(value)
    assert difference(value, default_codecs.decode(data)) == ""
    assert difference(value, default_codecs.decode(memoryview(data))) == ""


@pytest.mark.parametrize("name", EXACT)
def test_a_value_inside_others_comes_back_exactly(name):
    value = {"a": [1, (EXACT[name], "x")]}
    assert difference(value, default_codecs.decode(default_codecs.encode(value))) == ""


@pytest.mark.parametrize("name", EXACT)
def test_the_encoders_give_the_same_bytes(name):
    value = EXACT[name]
    packer = default_codecs._packer
    fast = default_codecs.encode(value)
    assert packer.reference(value, "result") == fast
    if not name.startswith("depth 400"):
        assert packer.pack_msgpack(value) == fast


@pytest.mark.parametrize("name", EXACT)
def test_the_decoders_give_the_same_value(name):
    value = EXACT[name]
    data = default_codecs.encode(value)
    unpacker = default_codecs._unpacker
    assert difference(value, unpacker.reference(data)) == ""
    assert difference(value, unpacker.unpack_msgpack(data)) == ""


@pytest.mark.parametrize("name", REFUSED)
def test_a_value_is_refused(name):
    with pytest.raises(UnencodableError, match=r"result.*: cannot record .* exactly"):
        default_codecs.encode(REFUSED[name])
    with pytest.raises(UnencodableError, match=r"^result\['a'\]\[1\]\[0\].*: cannot record .* exactly"):
        default_codecs.encode({"a": [1, (REFUSED[name],)]})


def test_the_path_of_the_culprit_is_named():
    from tests.codecs import shapes as s

    connection = sqlite3.connect(":memory:")
    connection.close()  # a closed one is as little to be recorded
    user = s.DC(1, connection)
    with pytest.raises(UnencodableError) as caught:
        default_codecs.encode({"user": user})
    assert str(caught.value).startswith("result['user'].b: cannot record sqlite3.Connection exactly")
    assert caught.value.path == "result['user'].b"
    assert caught.value.type_name == "sqlite3.Connection"
    user.b.close()
    model = s.PX(a=1, more=object())
    for value, path in (
        (object(), "out"),
        ([1, object()], "out[1]"),
        ({1: {"b": object()}}, "out[1]['b']"),
        ({object}, "out{item}"),
        ({(1, object): 2}, "out (the key <tuple>)[1]"),
        ({"k" * 100: object()}, "out['" + "k" * 56 + "...]"),
        (s.PointT(1, [object()]), "out.b[0]"),
        (s.AT(object(), 1), "out.a"),
        ([model], "out[0].more"),
    ):
        with pytest.raises(UnencodableError) as caught:
            default_codecs.encode(value, path="out")
        assert caught.value.path == path


def test_a_cycle_is_called_a_cycle():
    with pytest.raises(UnencodableError, match=r"^result\[0\]\['a'\]\[0\]: cannot record list exactly: it is a cycle"):
        default_codecs.encode(REFUSED["cycle"])
    with pytest.raises(UnencodableError, match=r"^result\.next\[0\]\.next: .* it is a cycle"):
        default_codecs.encode(REFUSED["cycle of objects"])
    with pytest.raises(UnencodableError, match="levels deep"):
        default_codecs.encode(REFUSED["too deep"])


def test_deep_in_the_call_stack_nothing_but_named_errors():
    def down(levels, value):
        if levels:
            return down(levels - 1, value)
        return default_codecs.decode(default_codecs.encode(value))

    value = nested(20, tuple)
    outcomes = set()
    for levels in range(900, 1000):
        try:
            outcomes.add(difference(value, down(levels, value)) or "exact")
        except UnencodableError:
            outcomes.add("refused")
        except DecodeError as error:
            assert "call stack" in str(error)  # noqa: PT017
        except RecursionError:  # the test's own function
            break
    assert "exact" in outcomes


def test_a_value_is_decoded_anew_at_every_call():
    data = default_codecs.encode([1])
    assert default_codecs.decode(data) is not default_codecs.decode(data)


def test_codecs_may_be_shared_by_threads():
    from concurrent.futures import ThreadPoolExecutor

    codecs = Codecs()
    values = [value for name, value in EXACT.items() if "depth" not in name and "edge" not in name]
    expected = [default_codecs.encode(value) for value in values]
    with ThreadPoolExecutor(8) as pool:
        for got in pool.map(lambda _: [codecs.encode(value) for value in values], range(32)):
            assert got == expected
