"""Bytes that no encoder wrote: named errors, no code run, no module imported, no memory taken."""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import textwrap

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from letitloop.codecs import default_codecs
from letitloop.codecs import ext as codes
from letitloop.errors import DecodeError
from tests.codecs.table import EXACT

SAMPLES = [default_codecs.encode(value) for name, value in EXACT.items() if "edge" not in name and "depth 400" not in name]
CODES = [*range(-128, 0), *range(0x10, 0x2B), 0x30, 0x70, 0x71, 0x7F, 0, 1, 2, 3, 4, 5, 6, 7]


def decode_or_named_error(data):
    for decode in (default_codecs.decode, default_codecs._unpacker.reference, default_codecs._unpacker.unpack_msgpack):
        try:
            decode(data)
        except DecodeError as error:
            assert str(error)  # noqa: PT017


@given(st.binary(max_size=200))
def test_random_bytes(data):
    decode_or_named_error(data)


@given(st.sampled_from(CODES), st.binary(max_size=60))
def test_random_bodies(code, body):
    decode_or_named_error(
        msgpack.packb(msgpack.ExtType(code, body)) if code >= 0 else b"\xc7" + bytes((len(body), code & 0xFF)) + body
    )


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 70000) | st.floats() | st.text(max_size=5) | st.binary(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=3) | st.sampled_from(["v", "u", "x", "s", "e", "p"]), inner, max_size=4)
    ),
    max_leaves=8,
)
tags = st.sampled_from(
    ["DC", "Slots", "PointN", "PM", "AT", "Color", "Access", "Box", "Plain", "Outer.Inner", "T", "function", "no"]
)


@given(st.sampled_from(range(0x20, 0x2A)), plain)
def test_wrong_structures(code, body):
    decode_or_named_error(msgpack.packb(msgpack.ExtType(code, msgpack.packb(body))))


@given(tags, st.sampled_from("datpre?"), plain, st.none() | plain)
def test_wrong_objects(name, kind, fields, meta):
    body = [f"tests.codecs.shapes:{name}", kind, fields] + ([] if meta is None else [meta])
    decode_or_named_error(msgpack.packb(msgpack.ExtType(codes.OBJECT, msgpack.packb(body))))
    decode_or_named_error(msgpack.packb(msgpack.ExtType(codes.ENUM, msgpack.packb([body[0], fields]))))


@given(st.sampled_from(["<f8", "|V3", "O", "<M8[ns]", "i4,i4", "(2,)i4", "<U1", "|S0", "x", "<f99"]), plain, st.binary(max_size=30))
def test_wrong_arrays(dtype, shape, raw):
    decode_or_named_error(msgpack.packb(msgpack.ExtType(codes.NDARRAY, msgpack.packb([dtype, shape, raw]))))
    decode_or_named_error(msgpack.packb(msgpack.ExtType(codes.NUMPY_SCALAR, msgpack.packb([dtype, raw]))))


@pytest.mark.parametrize("seed", range(20))
def test_damaged_records(seed):
    rng = random.Random(seed)
    for sample in SAMPLES:
        for _ in range(12):
            data = bytearray(sample[:4000])
            for _ in range(rng.randint(1, 3)):
                at = rng.randrange(len(data))
                match rng.randrange(4):
                    case 0:
                        data[at] ^= 1 << rng.randrange(8)
                    case 1:
                        data[at] = rng.randrange(256)
                    case 2:
                        del data[at : at + rng.randint(1, 8)]
                    case _:
                        data[at:at] = rng.randbytes(rng.randint(1, 4))
                if not data:
                    break
            decode_or_named_error(bytes(data))


def test_every_cut_is_noticed():
    for sample in SAMPLES:
        for length in range(min(len(sample), 300)):
            with pytest.raises(DecodeError):
                default_codecs.decode(sample[:length])


def test_what_follows_a_value_is_noticed_by_the_reference_decoder():
    with pytest.raises(DecodeError, match="1 bytes follow"):
        default_codecs._unpacker.reference(b"\x01\x02")


@pytest.mark.parametrize("head", [b"\xdd", b"\xdf", b"\xdb", b"\xc6", b"\xc9", b"\xdc\xff\xff", b"\xde\xff\xff", b"\xda\xff\xff"])
def test_a_huge_declared_length_takes_no_memory(head):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for tail in (b"\xff\xff\xff\xff", b"\x0f\xff\xff\xff", b"\x7f\xff\xff\xff\x20"):
        for data in (head + tail, b"\x91" * 50 + head + tail, b"\xc7\x06\x20" + head + tail):
            decode_or_named_error(data)
            with pytest.raises(DecodeError):
                default_codecs.decode(data)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024


@pytest.mark.parametrize("unit", [b"\x91", b"\x81\xa1k", b"\x81", b"\xd4\x20", b"\xc7\xff\x20", b"\xc9\x7f\xff\xff\xff\x21\x91"])
def test_deep_bytes_are_refused(unit):
    for levels in (100, 1000, 1022, 1024, 10_000, 200_000):
        decode_or_named_error(unit * levels)
        decode_or_named_error(unit * levels + b"\xc0")


def test_deep_nested_extensions_do_not_overflow_the_stack():
    data = b"\x01"
    for _ in range(40):
        data = b"\x91" * 900 + data
        data = b"\xc9" + len(data).to_bytes(4, "big") + b"\x20" + data
    with pytest.raises(DecodeError, match="levels deep"):
        default_codecs.decode(data)


def test_a_deep_key_does_not_overflow_the_stack():
    data = b"\x90"
    for _ in range(9_000):
        data = b"\xc9" + len(data).to_bytes(4, "big") + b"\x20" + b"\x91" + data
    decode_or_named_error(b"\xc9" + (len(data) + 1).to_bytes(4, "big") + b"\x22" + b"\x91" + data)


def test_payloads_of_another_serializer_run_nothing(tmp_path):
    """The four payloads that make another serializer import a module and call a function of it."""
    (tmp_path / "victim.py").write_text("import pathlib\npathlib.Path(__file__).with_name('ran').touch()\ndef f(*a): pass\n")
    script = f"""
    import sys
    sys.path.insert(0, {str(tmp_path)!r})
    import msgpack
    from letitloop.codecs import default_codecs
    from letitloop.errors import DecodeError
    def payload(code, *body):
        return msgpack.packb(msgpack.ExtType(code, msgpack.packb(body)))
    payloads = [
        payload(0, "victim", "f", 1),
        payload(1, "victim", "f", [1]),
        payload(1, "os", "getpid", []),
        payload(1, "subprocess", "getoutput", ["touch {tmp_path / "ran"}"]),
        payload(0x26, "victim:f", "d", {{}}),
        payload(0x26, "victim:f", "r", [1]),
        payload(0x27, "victim:f", "A"),
        payload(0x26, "os:getpid", "r", []),
    ]
    default_codecs.decode(default_codecs.encode({{1: "\\ud800"}}))  # loads the libraries
    before = set(sys.modules)
    for data in payloads:
        for wrapped in (data, b"\\x91" + data, b"\\x81\\xa1k" + data):
            try:
                default_codecs.decode(wrapped)
            except DecodeError:
                continue
            raise SystemExit(f"accepted {{wrapped!r}}")
    assert "victim" not in sys.modules and "subprocess" not in set(sys.modules) - before
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "ran").exists()


def test_a_lazy_module_is_not_loaded_by_a_tag(tmp_path, monkeypatch):
    import importlib.util

    (tmp_path / "lazy_victim.py").write_text("raise AssertionError('the module was loaded')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = importlib.util.find_spec("lazy_victim")
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "lazy_victim", module)
    spec.loader.exec_module(module)
    with pytest.raises(DecodeError):
        default_codecs.decode(msgpack.packb(msgpack.ExtType(codes.OBJECT, msgpack.packb(["lazy_victim:A", "d", {}]))))


@pytest.mark.parametrize("data", ["text", 5, None, [1]])
def test_what_is_no_bytes_is_a_decode_error(data):
    with pytest.raises(DecodeError, match="bytes are expected"):
        default_codecs.decode(data)
