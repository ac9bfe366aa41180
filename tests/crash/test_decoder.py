"""Every truncation, every flipped bit, every kind of garbage: a prefix of the records or a named error, and the right verdict."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from letitloop.errors import LogError
from tests.crash import decoding, worlds
from tests.crash.simulated import STEP

WORLD = worlds.real()


@pytest.mark.parametrize(
    "part",
    [
        decoding.truncations,
        decoding.truncations_with_zeros_behind,
        decoding.flips,
        decoding.flips_after_a_clean_close,
        decoding.garbage_tails,
        decoding.old_records_behind_the_end,
        decoding.a_log_inside_a_torn_record,
        decoding.a_lost_record_with_its_successor,
    ],
    ids=lambda part: part.__name__,
)
def test_decoder(part):
    part(WORLD)


SAMPLE = decoding.small_log(WORLD, ahead=100)


@given(
    st.lists(
        st.tuples(st.integers(decoding.HEADER, len(SAMPLE.data) - 1), st.binary(min_size=1, max_size=40)), min_size=1, max_size=4
    )
)
def test_any_damage_leaves_a_prefix_or_a_named_error(patches):
    data = bytearray(SAMPLE.data)
    for offset, patch in patches:
        data[offset : offset + len(patch)] = patch
    got, _ = decoding.opened(WORLD, bytes(data), repr(patches))
    assert isinstance(got, LogError) or got == SAMPLE.records[: len(got)]


@given(st.binary(max_size=400))
def test_any_file_is_a_log_or_a_named_error(data):
    got, _ = decoding.opened(WORLD, data, repr(data))
    assert isinstance(got, LogError) or got == []


@given(st.binary(max_size=300))
def test_any_bytes_behind_a_sound_header_are_no_records(tail):
    got, _ = decoding.opened(WORLD, SAMPLE.data[: decoding.HEADER] + tail, repr(tail))
    assert got == [] or SAMPLE.data[decoding.HEADER :].startswith(tail[:40])


def test_damaged_bytes_are_kept_beside_the_log():
    sample = decoding.small_log(WORLD)
    for number in range(1, 4):
        fs = decoding.disk(sample.data + b"\x07torn tail\x07")
        fs.mkdir("/sim/torn")
        for earlier in range(1, number):
            handle = fs.open(f"/sim/torn/run.wal.torn-{earlier}", write=True, create=True)
            fs.close(handle)
        log = WORLD.open_log(decoding.PATH, fs=fs, quarantine="/sim/torn")
        files = fs.kill_state().files
        assert files[f"/sim/torn/run.wal.torn-{number}"].rstrip(b"\0") == b"\x07torn tail\x07"
        assert files[decoding.PATH] == sample.data
        log.append(STEP, b"on", b"we go")
        assert [entry.key for entry in log.entries][-1] == b"on"


def test_a_reader_changes_nothing():
    sample = decoding.small_log(WORLD)
    fs = decoding.disk(sample.data + b"\x07torn tail\x07")
    before = len(fs.operations)
    view = WORLD.view_log(decoding.PATH, fs=fs)
    assert view.found.verdict in ("torn", "suspect")
    assert [(entry.key, view.read(entry)) for entry in view.entries] == sample.records
    view.close()
    assert len(fs.operations) == before
