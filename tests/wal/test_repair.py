"""Repair: what stays, in which order, and that neither a crash nor a full disk loses the log or its damaged bytes."""

from __future__ import annotations

import errno

import pytest

from letitloop.errors import ForeignFile, LogCorrupt, LogLocked, LogWriteFailed, SealError
from letitloop.testing import SimFs
from letitloop.wal.format import ROT
from letitloop.wal.lock import Lock
from letitloop.wal.memory import MemoryFs
from letitloop.wal.recovery import open_log, view_log
from letitloop.wal.repair import repair_log

PATH = "/sim/run.wal"
TORN = "/sim/torn"
KEY = b"a key of 16 bytes or more"


def written(fs, records=8, *, seal_key=None):
    """Write a log of records 0 to ``records`` - 1, closed; return their places."""
    fs.mkdir("/sim")
    log = open_log(PATH, fs=fs, seal_key=seal_key)
    entries = [log.append(16 + i, b"key", bytes([65 + i]) * 20) for i in range(records)]
    log.close()
    return entries


def patch(fs, offset, data):
    handle = fs.open(PATH, write=True)
    fs.pwrite(handle, data, offset)
    fs.sync(handle)
    fs.close(handle)


def content(fs, path=PATH):
    handle = fs.open(path, write=False)
    try:
        return fs.pread(handle, fs.size(handle), 0)
    finally:
        fs.close(handle)


def payloads(fs, **options):
    log = open_log(PATH, fs=fs, **options)
    try:
        return {entry.seq: log.read(entry)[:1] for entry in log.entries if entry.kind >= 16}
    finally:
        log.abandon()


@pytest.mark.parametrize("seal_key", [None, KEY], ids=["plain", "sealed"])
@pytest.mark.parametrize("salvage", [False, True])
@pytest.mark.parametrize("at", range(8))
def test_what_stays_keeps_its_number(at, salvage, seal_key):
    fs = MemoryFs()
    entries = written(fs, seal_key=seal_key)
    patch(fs, entries[at].offset, b"?")
    damaged = content(fs)
    with pytest.raises(LogCorrupt):
        open_log(PATH, fs=fs, seal_key=seal_key)
    done = repair_log(PATH, fs=fs, seal_key=seal_key, salvage=salvage, quarantine=TORN)
    assert done.changed
    assert (done.verdict, done.first, done.damaged, done.kept) == (ROT, at, 1, at)
    stays = [seq for seq in range(8) if seq < at or (salvage and seq > at)]
    assert payloads(fs, seal_key=seal_key) == {seq: bytes([65 + seq]) for seq in stays}
    assert content(fs, done.copy) == damaged
    view = view_log(PATH, fs=fs, seal_key=seal_key)
    assert view.header.generation == 1
    assert view.header.sealed == (seal_key is not None)


def test_a_gap_of_several_records_is_filled():
    fs = MemoryFs()
    entries = written(fs)
    for at in (2, 3, 6):
        patch(fs, entries[at].offset, b"?")
    done = repair_log(PATH, fs=fs, salvage=True)
    assert done.damaged == 3
    assert list(payloads(fs)) == [0, 1, 4, 5, 7]
    log = open_log(PATH, fs=fs)
    assert log.append(16, b"", b"more").seq == len(log.entries) - 1


def test_a_repaired_log_tells_rot_again():
    fs = MemoryFs()
    patch(fs, written(fs)[2].offset, b"?")
    repair_log(PATH, fs=fs, salvage=True)
    view = view_log(PATH, fs=fs)
    patch(fs, view.entries[5].offset, b"?")
    assert view_log(PATH, fs=fs).found.verdict == ROT


def test_a_salvaged_record_of_a_sealed_log_must_be_genuine():
    from zlib import crc32

    fs = MemoryFs()
    entries = written(fs, seal_key=KEY)
    patch(fs, entries[2].offset, b"?")
    forged = entries[4]
    start, stop = forged.offset - 32 - 3, forged.offset + forged.size + 36
    patch(fs, forged.offset, b"!")
    salt = view_log(PATH, fs=fs).header.salt
    patch(fs, start, crc32(content(fs)[start + 4 : stop], salt).to_bytes(4, "little"))
    done = repair_log(PATH, fs=fs, seal_key=KEY, salvage=True)
    assert [entry.seq for entry in done.lost] == [4], "its checksum is right and its tag is not"
    assert 4 not in payloads(fs, seal_key=KEY)


def test_a_forged_record_before_the_damage_refuses_the_repair():
    from zlib import crc32

    fs = MemoryFs()
    entries = written(fs, seal_key=KEY)
    patch(fs, entries[5].offset, b"?")
    start, stop = entries[1].offset - 32 - 3, entries[1].offset + entries[1].size + 36
    patch(fs, entries[1].offset, b"!")
    patch(fs, start, crc32(content(fs)[start + 4 : stop], view_log(PATH, fs=fs).header.salt).to_bytes(4, "little"))
    before = content(fs)
    with pytest.raises(SealError, match="seal is broken"):
        repair_log(PATH, fs=fs, seal_key=KEY)
    with pytest.raises(SealError, match="no key"):
        repair_log(PATH, fs=fs)
    assert content(fs) == before


def test_what_is_whole_foreign_absent_or_held_is_left():
    fs = MemoryFs()
    with pytest.raises(FileNotFoundError):
        repair_log(PATH, fs=fs)
    written(fs)
    whole = content(fs)
    assert not repair_log(PATH, fs=fs).changed
    assert content(fs) == whole
    log = open_log(PATH, fs=fs)
    with pytest.raises(LogLocked):
        repair_log(PATH, fs=fs)
    log.close()
    patch(fs, 0, b"X")
    with pytest.raises(ForeignFile):
        repair_log(PATH, fs=fs)


def test_the_note_of_what_was_in_flight_outlives_a_repair():
    fs = MemoryFs()
    patch(fs, written(fs)[2].offset, b"?")
    lock = Lock.acquire(fs, PATH)
    lock.note(b"in flight")
    lock.abandon()
    repair_log(PATH, fs=fs)
    assert open_log(PATH, fs=fs).lock.left_behind == [b"in flight"]


class Failing:
    """An ``Fs`` whose ``at``-th call that changes something is refused."""

    CHANGES = frozenset({"pwrite", "truncate", "sync", "sync_dir", "replace", "mkdir"})

    def __init__(self, fs, at):
        self._fs, self.left, self.active = fs, at, True

    def __getattr__(self, name):
        inner = getattr(self._fs, name)

        def call(*args, **kwargs):
            if self.active and name in self.CHANGES:
                self.left -= 1
                if self.left == 0:
                    raise OSError(errno.ENOSPC, "No space left on device")
            return inner(*args, **kwargs)

        return call


def test_a_full_disk_leaves_the_log_or_the_repaired_one():
    for at in range(1, 100):
        fs = MemoryFs()
        patch(fs, written(fs)[3].offset, b"?")
        before = content(fs)
        try:
            repair_log(PATH, fs=Failing(fs, at), quarantine=TORN)
        except LogWriteFailed:
            after = content(fs)
            assert after == before or list(payloads(fs)) == [0, 1, 2]
            assert before in (after, *(content(fs, f"{TORN}/{name}") for name in fs.listdir(TORN)))
            repair_log(PATH, fs=fs, quarantine=TORN)
            assert list(payloads(fs)) == [0, 1, 2]
        else:
            break
    assert 8 < at < 99, "every call was refused once"


@pytest.mark.parametrize("strict_dirs", [False, True], ids=["ordinary", "strict"])
def test_a_power_cut_leaves_the_damaged_log_or_the_repaired_one_and_the_damaged_bytes(strict_dirs):
    fs = SimFs(strict_dirs=strict_dirs)
    patch(fs, written(fs)[3].offset, b"?")
    fs.sync_dir("/sim")
    fs.sync_dir("/")
    before = content(fs)
    start = len(fs.operations)
    repair_log(PATH, fs=fs, salvage=True, quarantine=TORN)
    repaired = content(fs)
    seen = set()
    for state in fs.crash_states(leave_out=(".lock",), start=start):
        again = SimFs.from_state(state, strict_dirs=strict_dirs)
        after = content(again)
        assert after in (before, repaired), state.why
        seen.add(after)
        if after == repaired:
            assert content(again, f"{TORN}/run.wal.rot-1") == before, state.why
            assert list(payloads(again)) == [0, 1, 2, 4, 5, 6, 7]
        else:
            repair_log(PATH, fs=again, quarantine=TORN)
            assert list(payloads(again)) == [0, 1, 2]
    assert seen == {before, repaired}
