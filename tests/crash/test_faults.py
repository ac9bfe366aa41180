"""A disk that fails: the log says so by name, acknowledges nothing more, and keeps what it had acknowledged."""

from __future__ import annotations

import errno

import pytest

from letitloop.errors import LogPoisoned, LogWriteFailed
from letitloop.testing import Fault, FaultFs, SimFs
from tests.crash import failing, worlds
from tests.crash.simulated import PATH, STEP, found, payload

WORLD = worlds.real()


def test_every_call_fails_once():
    assert failing.every_call_fails_once(WORLD) > 100


def test_a_failed_sync_reaches_every_waiter():
    failing.a_failed_sync_reaches_every_waiter(WORLD)


def test_one_leader_at_a_time():
    for _ in range(5):
        failing.one_leader_at_a_time(WORLD)


@pytest.mark.parametrize("size", [40, 20_000], ids=["append", "extension"])
def test_a_full_disk_is_named_and_what_was_acknowledged_stays(size):
    fs = FaultFs(SimFs())
    log = WORLD.open_log(PATH, fs=fs)
    log.append(STEP, b"before", b"safe")
    fs.add(Fault("pwrite", error=errno.ENOSPC, short=30, times=-1))
    with pytest.raises(LogPoisoned, match=r"No space left.*Free space"):
        log.append(STEP, b"full", payload(1, size))
    fs.clear()
    with pytest.raises(LogPoisoned):
        log.append(STEP, b"again", b"")
    log.close()
    log = WORLD.open_log(PATH, fs=fs)
    assert found(log) == [(b"before", b"safe")]
    log.append(STEP, b"again", b"")
    log.close()


def test_an_io_error_at_the_sync_is_named():
    fs = FaultFs(SimFs())
    log = WORLD.open_log(PATH, fs=fs)
    fs.add(Fault("sync", error=errno.EIO))
    with pytest.raises(LogPoisoned, match=r"a sync failed.*Input/output error"):
        log.append(STEP, b"k", b"v")


def test_a_log_that_cannot_be_made_is_refused_by_name():
    for fault in (Fault("pwrite", nth=2), Fault("sync"), Fault("replace"), Fault("sync_dir")):
        fs = FaultFs(SimFs(), fault)
        with pytest.raises(LogWriteFailed, match="Nothing was acknowledged"):
            WORLD.open_log(PATH, fs=fs)
        log = WORLD.open_log(PATH, fs=fs)
        log.append(STEP, b"k", b"v")
        log.close()
