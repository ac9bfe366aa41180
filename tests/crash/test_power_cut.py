"""The log on a disk that loses power at every instant, in every legal way, also while it recovers."""

from __future__ import annotations

import contextlib

import pytest

from letitloop.errors import LogSuspect
from letitloop.store.directory import DirectoryStore
from letitloop.testing import SimFs
from tests.crash import simulated, worlds

BOTH_MODELS = pytest.mark.parametrize("strict_dirs", [False, True], ids=["ordinary", "strict"])
EACH_WORKLOAD = pytest.mark.parametrize("name", simulated.WORKLOADS)

# every so-manieth state is crashed again during recovery; the others are large or many
DEEP = {"append": 1, "group commit": 3, "several writes, one sync": 11, "extension": 11, "clean close": 3, "compaction": 3}


@BOTH_MODELS
@EACH_WORKLOAD
def test_what_was_acknowledged_survives_a_power_cut(name, strict_dirs):
    fs, history = simulated.run(worlds.real(), simulated.WORKLOADS[name], strict_dirs=strict_dirs)
    assert simulated.power_cuts(worlds.real(), fs, history, deep=DEEP[name]) > 100


@BOTH_MODELS
@EACH_WORKLOAD
def test_what_was_acknowledged_survives_a_kill_and_then_a_power_cut(name, strict_dirs):
    assert simulated.kills_then_power_cuts(worlds.real(), simulated.WORKLOADS[name], strict_dirs=strict_dirs) > 100


@pytest.mark.parametrize("round_", range(20))
def test_what_threads_were_told_survives_a_power_cut(round_):
    """The threads meet differently in each round; what they did is recorded and then judged like any other workload."""
    fs, history = simulated.run(worlds.real(), simulated.threads, strict_dirs=True)
    assert simulated.power_cuts(worlds.real(), fs, history, deep=101, per_instant=40, seed=round_) > 100


def test_the_level_process_survives_a_kill_at_every_operation():
    """What ``append`` returned without a sync is with the kernel: it outlives the process, not the power."""

    def workload(disk, returned):
        log = worlds.real().open_log(simulated.PATH, fs=disk, sync="process")
        for index in range(6):
            log.append(simulated.STEP, b"p%d" % index, simulated.payload(index, 3000))
            returned.append((b"p%d" % index, simulated.payload(index, 3000)))
        log.close()

    whole = SimFs()
    workload(whole, [])
    for last in range(1, len(whole.operations) + 1):
        for half in (False, True):
            fs, returned = SimFs(), []
            with contextlib.suppress(simulated.Killed):
                workload(simulated.Mortal(fs, last, half=half), returned)
            fs.kill()
            log = worlds.real().open_log(simulated.PATH, fs=fs)
            assert simulated.found(log)[: len(returned)] == returned
            assert len(simulated.found(log)) <= len(returned) + 1


@BOTH_MODELS
def test_a_log_with_effects_survives_or_refuses_by_name(strict_dirs):
    fs, history = simulated.run(worlds.real(), simulated.guarded, strict_dirs=strict_dirs)
    assert simulated.power_cuts(worlds.real(), fs, history, allowed=(LogSuspect,)) > 100


@BOTH_MODELS
@pytest.mark.parametrize("root", ["/sim/store", "/sim/new/deep/store"])
def test_a_new_store_is_there_after_a_power_cut(root, strict_dirs):
    """The directories that the first run makes are as durable as what it records in them."""
    fs = SimFs(strict_dirs=strict_dirs)
    log = DirectoryStore(root, fs=fs).open_log("runs", "first")
    log.append(simulated.STEP, b"k", b"v")
    fs.ack(simulated.Promise((b"k",)))
    log.close()
    for state in fs.crash_states(leave_out=(".lock", ".gitignore")):
        again = SimFs.from_state(state, strict_dirs=strict_dirs)
        log = DirectoryStore(root, fs=again).open_log("runs", "first")
        simulated.judge(state, simulated.found(log), simulated.History([[(b"k", b"v")]]), where="in a new store")


@BOTH_MODELS
def test_a_removed_log_is_gone_or_whole(strict_dirs):
    fs = SimFs(strict_dirs=strict_dirs)
    store = DirectoryStore("/sim/store", fs=fs)
    log = store.open_log("runs", "first")
    log.append(simulated.STEP, b"k", b"v")
    log.close()
    fs.ack("recorded")
    store.remove("runs", "first")
    fs.ack("removed")
    removal = next(instant for instant, op in enumerate(fs.operations) if op.kind == "unlink" and op.path.endswith(".wal"))
    for state in fs.crash_states(leave_out=(".lock", ".gitignore")):
        log = DirectoryStore("/sim/store", fs=SimFs.from_state(state)).open_log("runs", "first")
        got = simulated.found(log)
        assert got in ([], [(b"k", b"v")])
        if "removed" in state.acks:
            assert got == []
        elif "recorded" in state.acks and state.instant <= removal:
            assert got == [(b"k", b"v")]
