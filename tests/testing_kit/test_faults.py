"""A file system that fails on request, and only then."""

from __future__ import annotations

import errno

import pytest

from letitloop.testing import Fault, FaultFs, SimFs


def test_it_passes_everything_on():
    fs = FaultFs(SimFs())
    fs.mkdir("/sim/sub")
    handle = fs.open("/sim/sub/a", write=True, create=True)
    assert fs.pwrite(handle, b"abc", 0) == 3
    fs.sync(handle)
    fs.truncate(handle, 2)
    assert (fs.size(handle), fs.pread(handle, 9, 0)) == (2, b"ab")
    assert fs.lock(handle, wait=False)
    fs.replace("/sim/sub/a", "/sim/sub/b")
    assert fs.same_file(handle, "/sim/sub/b")
    assert not fs.exists("/sim/sub/a")
    fs.sync_dir("/sim/sub")
    assert fs.listdir("/sim/sub") == ["b"]
    fs.unlink("/sim/sub/b")
    fs.close(handle)
    assert fs.injected == []
    assert fs.calls["pwrite"] == fs.calls["sync"] == fs.calls["lock"] == 1


def test_the_nth_call_of_a_kind_fails():
    fs = FaultFs(SimFs(), Fault("pwrite", nth=2, error=errno.ENOSPC, times=2))
    handle = fs.open("/sim/a", write=True, create=True)
    fs.pwrite(handle, b"a", 0)
    for _ in range(2):
        with pytest.raises(OSError, match="No space left on device"):
            fs.pwrite(handle, b"b", 1)
    fs.pwrite(handle, b"c", 1)
    assert fs.pread(handle, 9, 0) == b"ac"
    assert fs.injected == [("pwrite", 2), ("pwrite", 3)]


def test_short_writes_with_and_without_an_error():
    fs = FaultFs(SimFs(), Fault("pwrite", error=0, short=2), Fault("pwrite", nth=2, error=errno.ENOSPC, short=1, times=-1))
    handle = fs.open("/sim/a", write=True, create=True)
    assert fs.pwrite(handle, b"abcd", 0) == 2
    with pytest.raises(OSError, match="No space"):
        fs.pwrite(handle, b"cd", 2)
    assert fs.pread(handle, 9, 0) == b"abc"
    fs.clear()
    assert fs.pwrite(handle, b"d", 3) == 1


def test_a_fault_may_strike_after_the_work_is_done():
    fs = FaultFs(SimFs())
    handle = fs.open("/sim/a", write=True, create=True)
    fs.add(Fault("truncate", after=True))
    with pytest.raises(OSError, match="Input/output"):
        fs.truncate(handle, 7)
    assert fs.size(handle) == 7


def test_a_failed_sync_loses_what_was_pending_for_good():
    """The next sync succeeds and makes nothing durable of it: that is what a kernel does."""
    disk = SimFs()
    fs = FaultFs(disk)
    handle = fs.open("/sim/a", write=True, create=True)
    fs.sync(handle)
    fs.pwrite(handle, b"lost", 0)
    fs.add(Fault("sync"))
    with pytest.raises(OSError, match="Input/output"):
        fs.sync(handle)
    fs.sync(handle)
    assert fs.pread(handle, 9, 0) == b"lost"
    assert [state.files["/sim/a"] for state in disk.crash_states(start=len(disk.operations))] == [b""]


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="'fsync' is no method"):
        Fault("fsync")
