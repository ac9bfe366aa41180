"""Layer L0: what the reader makes of a log whose bytes were damaged, at every place."""

from __future__ import annotations

import random
from dataclasses import dataclass

from letitloop.errors import ForeignFile, LogCorrupt, LogError, LogSuspect, LogVersionError
from letitloop.testing import SimFs
from tests.crash.simulated import GUARDED, PATH, STEP, Violation
from tests.crash.worlds import World

HEADER = 64


@dataclass
class Sample:
    """A small log: its bytes, where each frame starts (and the last one ends), and what its records are."""

    data: bytes
    starts: list[int]
    records: list[tuple[bytes, bytes]]

    def whole(self, size: int) -> int:
        """Return how many records lie whole in the first ``size`` bytes."""
        return sum(end <= size for end in self.starts[1:])


def small_log(world: World, *, kind: int = STEP, closed: bool = False, ahead: int = 0) -> Sample:
    """Return a log of six records, each synced by itself; ``ahead`` zeros follow it, as preallocated."""
    fs = SimFs()
    log = world.open_log(PATH, fs=fs)
    records = [(b"key-%d" % index, bytes([65 + index]) * (7 * index)) for index in range(6)]
    for key, data in records:
        log.append(kind, key, data)
    ends = [entry.offset + entry.size + 4 for entry in log.entries]
    if closed:
        log.close()
    data = fs.kill_state().files[PATH]
    if closed:
        ends.append(len(data))
    else:
        data = data[: ends[-1]] + bytes(ahead)
    return Sample(data, [HEADER, *ends], records)


def disk(data: bytes) -> SimFs:
    fs = SimFs()
    handle = fs.open(PATH, write=True, create=True)
    fs.pwrite(handle, data, 0)
    fs.close(handle)
    return fs


def opened(world: World, data: bytes, what: str):
    """Open these bytes; return the records and the verdict, or the named error."""
    fs = disk(data)
    try:
        log = world.open_log(PATH, fs=fs, guarded=frozenset({GUARDED}))
    except LogError as error:
        return error, ""
    except BaseException as error:
        raise Violation(f"a foreign exception for {what}: {error!r}") from error
    return [(entry.key, log.read(entry)) for entry in log.entries if entry.kind >= STEP], log.recovered.verdict


def expect(condition: bool, what: str) -> None:
    if not condition:
        raise Violation(what)


def truncations(world: World) -> None:
    """Cut off at every length: a prefix, torn unless the cut lies between two records."""
    sample = small_log(world)
    for size in range(len(sample.data) + 1):
        got, verdict = opened(world, sample.data[:size], f"a cut at {size}")
        if 0 < size < HEADER:
            expect(isinstance(got, ForeignFile), f"cut at {size}: {got!r}")
            continue
        whole = sample.whole(size)
        expect(got == sample.records[:whole], f"cut at {size}: {got!r}, not the first {whole} records")
        if size:
            expect(verdict == ("clean" if size in sample.starts else "torn"), f"cut at {size}: verdict {verdict}")


def truncations_with_zeros_behind(world: World) -> None:
    """A process died in the preallocated area: the rest is zeros. Page-granular cuts never end within the last four bytes."""
    sample = small_log(world)
    for size in range(HEADER, len(sample.data)):
        got, verdict = opened(world, sample.data[:size] + bytes(5000), f"a cut at {size}, zeros behind")
        whole = sample.whole(size)
        trailing = len(sample.data[:size]) - len(sample.data[:size].rstrip(b"\0"))
        expect(got == sample.records[:whole], f"cut at {size}, zeros behind: {got!r}, not the first {whole} records")
        if size not in sample.starts and size - trailing > sample.starts[whole]:
            near_end = sample.starts[whole + 1] - size < 4
            expect(verdict == "torn" or (near_end and verdict == "suspect"), f"cut at {size}, zeros behind: verdict {verdict}")


def flips(world: World) -> None:
    """Flip every bit: rot in a record that a later one vouches for, a doubt about the last one, a refusal for the header."""
    for kind in (STEP, GUARDED):
        sample = small_log(world, kind=kind, ahead=600)
        for bit in range(sample.starts[-1] * 8):
            offset = bit // 8
            data = bytearray(sample.data)
            data[offset] ^= 1 << (bit % 8)
            got, verdict = opened(world, bytes(data), f"bit {bit} flipped")
            what = f"kind {kind}, bit {bit % 8} of byte {offset} flipped: {got!r} {verdict}"
            if offset < HEADER:
                expect(isinstance(got, (ForeignFile, LogVersionError)), what)
                continue
            record = sample.whole(offset)
            if record < len(sample.records) - 1:
                expect(isinstance(got, LogCorrupt), what)
                expect((got.seq, got.offset) == (record, sample.starts[record]), what)
            elif isinstance(got, LogSuspect):
                expect(kind == GUARDED, what)
            else:
                expect(got == sample.records[:-1], what)
                in_length = sample.starts[record] + 4 <= offset < sample.starts[record] + 8
                expect(verdict == "suspect" or in_length, what)
                expect(kind == STEP or in_length, what)


def flips_after_a_clean_close(world: World) -> None:
    """The closing record vouches for every other: only its own bits leave a doubt, and no record with it."""
    sample = small_log(world, kind=GUARDED, closed=True)
    for bit in range(HEADER * 8, len(sample.data) * 8):
        data = bytearray(sample.data)
        data[bit // 8] ^= 1 << (bit % 8)
        got, verdict = opened(world, bytes(data), f"bit {bit} flipped")
        record = sample.whole(bit // 8)
        what = f"closed, bit {bit} flipped in record {record}: {got!r} {verdict}"
        if record < len(sample.records):
            expect(isinstance(got, LogCorrupt) and got.seq == record, what)
        else:
            expect(isinstance(got, LogSuspect) or got == sample.records, what)


def garbage_tails(world: World) -> None:
    """Random bytes behind a sound log: never a record, never a foreign exception, never rot."""
    sample = small_log(world)
    rng = random.Random(20)
    for trial in range(300):
        size = rng.choice((1, 3, 17, 36, 40, 200, 600))
        tail = rng.randbytes(size) + bytes(rng.choice((0, 3, 700)))
        got, verdict = opened(world, sample.data + tail, f"garbage {trial}")
        expect(got == sample.records, f"garbage {trial}: {got!r}")
        expect(verdict in ("torn", "suspect") or not tail.strip(b"\0"), f"garbage {trial}: verdict {verdict}")


def old_records_behind_the_end(world: World) -> None:
    """What a reused block may hold: earlier records of this log are not read again, nor are another log's."""
    sample = small_log(world)
    other = small_log(world)
    for number, tail in enumerate(
        (
            sample.data[sample.starts[0] : sample.starts[2]],
            sample.data[sample.starts[5] : sample.starts[6]],
            bytes(40) + sample.data[sample.starts[1] : sample.starts[3]],
            other.data[HEADER:],
            other.data,
        )
    ):
        got, _ = opened(world, sample.data + tail, f"old records {number}")
        expect(got == sample.records, f"old records {number} behind the end: {got!r}")


def a_log_inside_a_torn_record(world: World) -> None:
    """A record that holds another log's bytes is cut: the frames in it are not taken for later ones of this log."""
    inner_fs = SimFs()
    inner = world.open_log(PATH, fs=inner_fs)
    for index in range(12):
        inner.append(STEP, b"inner-%d" % index, b"inner")
    payload = inner_fs.kill_state().files[PATH][: inner.entries[-1].offset + 9]
    fs = SimFs()
    log = world.open_log(PATH, fs=fs)
    log.append(STEP, b"outer", b"outer")
    log.append(STEP, b"holds a log", payload)
    entry = log.entries[-1]
    data = fs.kill_state().files[PATH]
    end = entry.offset + entry.size + 4
    for size in (end - 1, end - 5, end - 40, entry.offset + 600):
        for zeros in (0, 4096):
            got, verdict = opened(world, data[:size] + bytes(zeros), "a log in a torn record")
            expect(got == [(b"outer", b"outer")], f"a log in a record torn at {size}: {got!r}")
            expect(verdict in ("torn", "suspect"), f"a log in a record torn at {size}: {verdict}")


def a_lost_record_with_its_successor(world: World) -> None:
    """A frame is missing and the next one stands in its place: it is not read under the wrong number."""
    sample = small_log(world)
    for gone in range(len(sample.records) - 1):
        data = sample.data[: sample.starts[gone]] + sample.data[sample.starts[gone + 1] :]
        got, _ = opened(world, data, f"record {gone} cut out")
        ok = isinstance(got, LogCorrupt) or got == sample.records[:gone]
        expect(ok, f"record {gone} cut out: {got!r}")


def decoder(world: World) -> None:
    """All of the above."""
    for part in (
        truncations,
        truncations_with_zeros_behind,
        flips,
        flips_after_a_clean_close,
        garbage_tails,
        old_records_behind_the_end,
        a_log_inside_a_torn_record,
        a_lost_record_with_its_successor,
    ):
        part(world)
