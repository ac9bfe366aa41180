"""The libraries under the codecs: loaded late, noticed when they fail, and never in the way of Ctrl-C."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from letitloop.codecs import Codecs, engine
from letitloop.errors import UnencodableError
from tests.codecs import shapes as s
from tests.codecs.same import difference
from tests.codecs.table import EXACT


def run(script):
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)


def test_the_import_loads_nothing_costly():
    run("""
    import sys
    before = set(sys.modules)
    import letitloop.codecs
    loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
    forbidden = {
        "asyncio", "inspect", "dataclasses", "typing", "logging", "uuid", "pathlib", "subprocess", "json", "sqlite3",
        "ormsgpack", "msgpack", "datetime", "decimal", "zoneinfo", "numpy", "pydantic", "attr", "ctypes",
    }
    assert not loaded & forbidden, loaded & forbidden
    """)


def test_plain_values_need_the_fast_library_only():
    run("""
    import sys
    from letitloop.codecs import default_codecs
    value = {"a": [1, (2.5, "x"), b"y", None, {3}], "b": "z" * 1000}
    assert default_codecs.decode(default_codecs.encode(value)) == value
    default_codecs.fingerprint((value,), {"k": value})
    assert "ormsgpack" in sys.modules and "msgpack" not in sys.modules
    """)


def test_the_first_small_values_pass_without_a_library():
    run("""
    import sys
    from letitloop.codecs import Codecs
    codecs = Codecs()
    value = {"a": [1, (2.5, "x"), b"y", None, True], "b": "z" * 1000}
    data = codecs.encode(value)
    assert codecs.decode(data) == value
    first = codecs.fingerprint((value, 3), {"k": value})
    assert "ormsgpack" not in sys.modules and "msgpack" not in sys.modules
    for _ in range(200):
        codecs.decode(data)
    assert "ormsgpack" in sys.modules, "it is worth its import by now"
    assert (codecs.encode(value), codecs.fingerprint((value, 3), {"k": value})) == (data, first)
    assert codecs.decode(data) == value
    """)


@pytest.mark.parametrize("big", ["'x' * 5000", "list(range(5000))", "[[i] for i in range(100)]", "{i: 'abc' for i in range(100)}"])
def test_a_large_first_value_is_not_done_slowly(big):
    run(f"""
    import sys
    from letitloop.codecs import Codecs
    value = {big}
    data = Codecs().encode(value)
    assert "ormsgpack" in sys.modules and Codecs().decode(data) == value
    """)


@pytest.mark.parametrize("name", EXACT)
def test_the_first_values_are_the_bytes_of_later_ones(name, monkeypatch):
    """By a codec that takes each value for one of the first, of any size."""
    value = EXACT[name]
    expected, mark = Codecs().encode(value), Codecs().fingerprint((value,), {})
    monkeypatch.setattr(engine, "_worth_importing", lambda _size: False)
    assert Codecs().encode(value) == expected
    assert Codecs().fingerprint((value,), {}) == mark
    assert difference(value, Codecs().decode(expected)) == ""


def test_datetime_is_imported_when_a_record_holds_one():
    run("""
    import sys
    from letitloop.codecs import default_codecs
    decoded = default_codecs.decode(bytes.fromhex("c70d14" "07e40101010203" "00000004" "00" "55"))
    assert repr(decoded) == "datetime.datetime(2020, 1, 1, 1, 2, 3, 4, tzinfo=datetime.timezone.utc)"
    """)


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupt_inside_a_function_is_not_swallowed(raised):
    def fail(_):
        raise raised

    codecs = Codecs()
    codecs.register(s.Plain, encode=lambda p: p.x, decode=fail)
    data = codecs.encode([(s.Plain(1),)])
    with pytest.raises(raised):
        codecs.decode(data)
    codecs.register(s.Plain, encode=fail, decode=fail)
    for value in ([(s.Plain(1),)], {1: s.Plain(1)}, [{2: [(s.Plain(1),)]}]):
        with pytest.raises(raised):
            codecs.encode(value)
    with pytest.raises(raised):
        codecs.fingerprint(([(s.Plain(1),)],), {})


def test_ctrl_c_is_not_swallowed_wherever_it_arrives():
    """ormsgpack swallows what its hooks raise, also what a signal handler raises in a hook's first instant."""
    run("""
    import gc, signal
    from letitloop.codecs import default_codecs as codecs
    gc.disable()  # what a signal handler raises in a callback of the collector is lost
    value = {"a": [(i, (i,), {i}, frozenset([(i,)])) for i in range(20)]}
    data = codecs.encode(value)
    arrived = seen = 0

    def handler(*_):
        global arrived
        arrived += 1
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, handler)
    for attempt in range(400):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.00002 + attempt * 0.000001)
            while True:
                codecs.encode(value) if attempt % 2 else codecs.decode(data)
        except KeyboardInterrupt:
            seen += 1
    assert seen == arrived == 400, (seen, arrived)
    """)


def test_an_error_of_one_call_does_not_leak_into_the_next():
    codecs = Codecs()
    with pytest.raises(UnencodableError):
        codecs.encode([(object(),)])
    value = {1: [(2,)], "deep": [[[(3,)]]]}
    assert codecs.decode(codecs.encode(value)) == value
