"""The model of the disk is checked before anything is judged by it."""

from __future__ import annotations

import itertools
import posixpath

import pytest

from letitloop.testing.simfs import CrashState, SimFs


def append(fs: SimFs, path: str, *pieces: bytes, sync: bool) -> None:
    handle = fs.open(path, write=True, create=True)
    offset = fs.size(handle)
    for piece in pieces:
        offset += fs.pwrite(handle, piece, offset)
        if sync:
            fs.sync(handle)
        fs.ack(piece)
    fs.close(handle)


def lost(state: CrashState, path: str) -> bool:
    return not state.files.get(path, b"").startswith(b"".join(token for token in state.acks if isinstance(token, bytes)))


def new(*, strict_dirs: bool = False) -> SimFs:
    return SimFs(strict_dirs=strict_dirs, directories=["/sim"])


def test_a_synced_append_is_never_lost() -> None:
    fs = new()
    append(fs, "/sim/a", b"one", b"two", b"x" * 1500, sync=True)
    states = list(fs.crash_states())
    assert len(states) > 40
    assert not [state.why for state in states if lost(state, "/sim/a")]


def test_an_unsynced_append_is_lost_in_some_states() -> None:
    fs = new()
    append(fs, "/sim/a", b"one", b"two", sync=False)
    assert [state for state in fs.crash_states() if lost(state, "/sim/a")]


def test_a_new_file_needs_its_directory_synced_in_the_strict_model_only() -> None:
    for strict in (False, True):
        fs = new(strict_dirs=strict)
        append(fs, "/sim/a", b"one", sync=True)
        assert any(lost(state, "/sim/a") for state in fs.crash_states()) is strict
        fs.sync_dir("/sim")
        assert not any(lost(state, "/sim/a") for state in fs.crash_states(start=len(fs.operations)))


def test_a_rename_is_lost_until_the_directory_is_synced() -> None:
    for strict in (False, True):
        fs = new(strict_dirs=strict)
        append(fs, "/sim/a", b"old", sync=True)
        append(fs, "/sim/b", b"new", sync=True)
        fs.sync_dir("/sim")
        fs.replace("/sim/b", "/sim/a")
        after = [state.files for state in fs.crash_states(start=len(fs.operations))]
        assert sorted(after, key=str) == [{"/sim/a": b"new"}, {"/sim/a": b"old", "/sim/b": b"new"}]
        fs.sync_dir("/sim")
        assert [state.files for state in fs.crash_states(start=len(fs.operations))] == [{"/sim/a": b"new"}]


def test_a_rename_may_come_before_the_data_it_publishes() -> None:
    fs = new()
    append(fs, "/sim/a", b"old", sync=True)
    handle = fs.open("/sim/b", write=True, create=True)
    fs.pwrite(handle, b"new", 0)
    fs.replace("/sim/b", "/sim/a")
    assert {b"old", b"new", b""} <= {state.files["/sim/a"] for state in fs.crash_states(start=len(fs.operations))}


def test_names_are_journalled_in_order() -> None:
    """An unlink and a create of the same name are never swapped: the new file is not lost to the old one's removal."""
    fs = new()
    append(fs, "/sim/a", b"old", sync=True)
    fs.sync_dir("/sim")
    fs.unlink("/sim/a")
    append(fs, "/sim/a", b"new", sync=True)
    assert {state.files.get("/sim/a") for state in fs.crash_states(start=len(fs.operations))} == {b"new"}
    contents = {state.files.get("/sim/a") for state in fs.crash_states()}
    assert None in contents  # between the unlink and the create
    assert b"old" in contents


def test_a_sync_of_a_file_commits_earlier_names_but_not_later_ones() -> None:
    fs = new()
    first = fs.open("/sim/first", write=True, create=True)
    second = fs.open("/sim/second", write=True, create=True)
    fs.sync(first)
    last = [state.files for state in fs.crash_states(start=len(fs.operations))]
    assert last == [{"/sim/first": b""}, {"/sim/first": b"", "/sim/second": b""}]
    fs.sync(second)
    assert len(list(fs.crash_states(start=len(fs.operations)))) == 1


def test_a_directory_that_is_lost_takes_its_files_along() -> None:
    fs = new(strict_dirs=True)
    fs.mkdir("/sim/sub")
    append(fs, "/sim/sub/a", b"one", sync=True)
    fs.sync_dir("/sim/sub")
    assert any(lost(state, "/sim/sub/a") for state in fs.crash_states(start=len(fs.operations)))
    fs.sync_dir("/sim")
    assert not any(lost(state, "/sim/sub/a") for state in fs.crash_states(start=len(fs.operations)))


def test_every_subset_of_a_few_pending_writes() -> None:
    fs = new()
    handle = fs.open("/sim/a", write=True, create=True)
    fs.pwrite(handle, bytes(5), 0)
    fs.sync(handle)
    for index in range(5):
        fs.pwrite(handle, b"x", index)
    found = {state.files["/sim/a"] for state in fs.crash_states(start=len(fs.operations))}
    assert {bytes(subset) for subset in itertools.product(b"\0x", repeat=5)} <= found


def test_overlapping_pending_writes_are_applied_in_order() -> None:
    fs = new()
    handle = fs.open("/sim/a", write=True, create=True)
    fs.pwrite(handle, b"note", 0)
    fs.pwrite(handle, b"commit", 0)
    found = {
        state.files["/sim/a"] for state in fs.crash_states(start=len(fs.operations)) if "torn" not in state.why and state.files
    }
    assert found == {b"commit", b"note", b""}
    fs.sync(handle)
    assert [state.files["/sim/a"] for state in fs.crash_states(start=len(fs.operations))] == [b"commit"]


def test_torn_writes_are_cut_at_sectors_with_the_rest_missing_zeroed_or_garbage() -> None:
    fs = new()
    handle = fs.open("/sim/a", write=True, create=True)
    fs.pwrite(handle, b"o" * 2048, 0)
    fs.sync(handle)
    fs.pwrite(handle, b"n" * 1000, 300)
    found = {state.files["/sim/a"] for state in fs.crash_states(start=len(fs.operations))}
    for cut in (1, 500, 999, 512 - 300, 1024 - 300):
        head = b"o" * 300 + b"n" * cut
        assert head + b"o" * (2048 - len(head)) in found
        assert head + bytes(1000 - cut) + b"o" * 748 in found
        garbage = {content for content in found if content.startswith(head) and content[300 + cut] not in b"on\0"}
        assert garbage
    assert b"o" * 512 + b"n" * 512 + b"o" * 1024 in found  # only the second sector arrived
    assert b"o" * 300 + b"n" * 212 + b"o" * 512 + b"n" * 276 + b"o" * 748 in found  # all but the second sector
    assert all(content[:300] == b"o" * 300 and content[1300:] == b"o" * 748 for content in found)


def test_a_truncation_is_lost_or_kept() -> None:
    fs = new()
    append(fs, "/sim/a", b"0123456789", sync=True)
    handle = fs.open("/sim/a", write=True)
    fs.truncate(handle, 4)
    assert {state.files["/sim/a"] for state in fs.crash_states(start=len(fs.operations))} == {b"0123", b"0123456789"}
    fs.truncate(handle, 6)
    assert b"0123\0\0" in {state.files["/sim/a"] for state in fs.crash_states(start=len(fs.operations))}


def test_a_state_is_a_file_system_that_can_be_crashed_again() -> None:
    fs = new()
    append(fs, "/sim/a", b"one", sync=True)
    seen = 0
    for state in fs.crash_states():
        again = SimFs.from_state(state)
        append(again, "/sim/a", b"more", sync=True)
        for second in again.crash_states():
            seen += 1
            assert b"one" not in second.acks or second.files["/sim/a"].startswith(b"one")
            assert b"more" not in second.acks or second.files["/sim/a"].endswith(b"more")
    assert seen > 100


def test_a_killed_process_loses_nothing_that_was_written() -> None:
    fs = new()
    append(fs, "/sim/a", b"one", b"two", sync=False)
    assert fs.kill_state().files == {"/sim/a": b"onetwo"}


def test_large_zero_writes_stay_cheap_and_states_are_sampled_reproducibly(capsys: pytest.CaptureFixture[str]) -> None:
    fs = new()
    handle = fs.open("/sim/a", write=True, create=True)
    fs.pwrite(handle, bytes(1 << 18), 0)
    for index in range(8):
        fs.pwrite(handle, b"record" * 300, index * 1800)
    drawn = [[state.why for state in fs.crash_states(per_instant=50, seed=seed)] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert "seed=1" in capsys.readouterr().out
    last = list(fs.crash_states(start=len(fs.operations)))[-1]
    assert len(last.files["/sim/a"]) in (1 << 18, 0, *range(1, 1 << 18))


def test_it_behaves_like_the_system_for_callers() -> None:
    fs = new()
    with pytest.raises(FileNotFoundError):
        fs.open("/sim/none", write=False)
    with pytest.raises(FileNotFoundError):
        fs.open("/gone/a", write=True, create=True)
    handle = fs.open("/sim/a", write=True, create=True)
    other = fs.open("/sim/a", write=False)
    with pytest.raises(OSError, match="Bad file"):
        fs.pwrite(other, b"x", 0)
    assert fs.pwrite(handle, b"abc", 2) == 3
    assert fs.pread(other, 99, 0) == b"\0\0abc"
    assert fs.pread(other, 2, 9) == b""
    assert fs.size(other) == 5
    assert fs.lock(handle, wait=False)
    assert not fs.lock(other, wait=False)
    fs.close(handle)
    assert fs.lock(other, wait=True)
    with pytest.raises(OSError, match="Bad file"):
        fs.size(handle)
    with pytest.raises(FileNotFoundError):
        fs.unlink("/sim/b")
    with pytest.raises(FileNotFoundError):
        fs.replace("/sim/b", "/sim/a")
    with pytest.raises(IsADirectoryError):
        fs.open("/sim", write=False)
    with pytest.raises(FileExistsError):
        fs.mkdir("/sim/a")
    with pytest.raises(FileNotFoundError):
        fs.sync_dir("/sim/none")
    fs.mkdir("/sim/x/y")
    fs.mkdir("/sim/x")
    assert sorted(fs.listdir("/sim")) == ["a", "x"]
    assert fs.listdir("/nowhere") == []
    assert fs.exists("/sim/x/y")
    assert posixpath.basename("/sim/a") in fs.listdir("/sim/")
    fs.unlink("/sim/a")
    assert fs.pread(other, 9, 0) == b"\0\0abc"  # an open file outlives its name
    assert not fs.exists("/sim/a")
