"""Markers among processes that are killed: one completes it, nobody is inside beside another, and a death inside is told."""

from __future__ import annotations

import os
import random
import resource
import select
import signal

import pytest

from letitloop import DirectoryStore, StoreError, UnknownOutcome, atomic_marker, durable
from tests.runs.helpers import Trace, ended, finished, fork, kill, killed

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="these tests fork")


@pytest.fixture
def store(tmp_path):
    return DirectoryStore(tmp_path / "s")


@pytest.fixture
def trace(tmp_path):
    return Trace(tmp_path / "trace")


def shared(store, **options):
    return atomic_marker("m", namespace="tests", store=store, **options)


def test_a_death_inside_the_block_is_told_to_the_next(store, trace):
    def work():
        with shared(store) as marker:
            trace(marker.idempotency_key)
            kill()

    killed(work)
    with pytest.raises(UnknownOutcome, match=r"died inside its block"), shared(store, on_uncertain="halt"):
        raise AssertionError("entered")
    with shared(store) as marker:
        assert marker
        assert marker.uncertain
        assert [marker.idempotency_key] == trace.events
        marker.record("by hand")
    with shared(store, on_uncertain="halt") as marker:
        assert not marker
        assert marker.result == "by hand"


def test_a_death_before_or_after_the_block_is_not_uncertain(store):
    def after():
        with shared(store) as marker:
            marker.record(1)
        kill()

    killed(after)
    with shared(store, on_uncertain="halt") as marker:
        assert not marker
        assert marker.result == 1


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_eight_processes_that_are_killed_at_random_complete_it_once(store, trace, seed):
    """Each worker writes when it is inside; the parent kills workers at events that it draws, and starts new ones."""
    dice = random.Random(seed)
    report, tell = os.pipe()

    def worker():
        pid = os.getpid()
        os.write(tell, b"%08d start\n" % pid)
        with shared(store) as marker:
            if marker:
                trace(f"enter {pid} {marker.uncertain}")
                os.write(tell, b"%08d enter\n" % pid)
                trace(f"act {pid}")
                os.write(tell, b"%08d acted\n" % pid)
                marker.record(pid)
        trace(f"left {pid} {bool(marker)} {marker.result}")

    alive, deaths, codes = set(), 0, {}
    for _ in range(8):
        alive.add(fork(worker))
    while alive:
        ready, _, _ = select.select([report], [], [], 0.02)
        if ready:
            line = os.read(report, 15)
            pid, what = int(line[:8]), line[9:-1]
            chance = {b"start": 0.1, b"enter": 0.6, b"acted": 0.5}[what]
            if pid in alive and deaths < 12 and dice.random() < chance:
                os.kill(pid, signal.SIGKILL)
        while alive:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            if pid not in alive:
                continue
            alive.remove(pid)
            codes[pid] = os.waitstatus_to_exitcode(status)
            if codes[pid] == -signal.SIGKILL:
                deaths += 1
                alive.add(fork(worker))
    os.close(report)
    os.close(tell)
    assert set(codes.values()) <= {0, -signal.SIGKILL}
    events = [line.split() for line in trace.events]
    entered = [(int(pid), uncertain == "True") for what, pid, uncertain in (e for e in events if e[0] == "enter")]
    left = [(int(e[1]), e[2] == "True", e[3]) for e in events if e[0] == "left"]
    completed = [pid for pid, executed, _ in left if executed]
    assert len(completed) <= 1  # it may have been killed between the completion and its last words
    assert {result for _, _, result in left} == {str(entered[-1][0])}  # everybody gets the value of the last one inside
    assert [uncertain for _, uncertain in entered] == [i > 0 for i in range(len(entered))]
    for pid, _ in entered[:-1]:
        assert codes[pid] == -signal.SIGKILL  # nobody was inside after one that lived on
    # enter and act of one process are never interleaved with those of another
    inside = [int(e[1]) for e in events if e[0] in ("enter", "act")]
    assert inside == sorted(inside, key=inside.index)


def test_nobody_enters_while_the_first_lives(store, trace):
    ready, go = os.pipe(), os.pipe()

    def first():
        with shared(store) as marker:
            trace("first in")
            os.write(ready[1], b"r")
            os.read(go[0], 1)
            trace("first out")
            marker.record("first")

    def later():
        with shared(store) as marker:
            trace(f"later {bool(marker)} {marker.result}")

    pid = fork(first)
    os.read(ready[0], 1)
    others = [fork(later) for _ in range(7)]
    os.write(go[1], b"g")
    assert [ended(pid) for pid in [pid, *others]] == [0] * 8
    assert trace.events == ["first in", "first out", *["later False first"] * 7]


def test_a_child_forked_inside_the_block_neither_holds_nor_completes_it(store, trace):
    ready, stay = os.pipe(), os.pipe()

    def work():
        with shared(store):
            if os.fork() == 0:
                os.write(ready[1], b"%010d" % os.getpid())
                os.close(stay[1])
                os.read(stay[0], 1)  # until the test closes its end
                os._exit(0)
            os.read(go[0], 1)
            kill()

    go = os.pipe()
    pid = fork(work)
    grandchild = int(os.read(ready[0], 10))
    os.write(go[1], b"g")
    assert ended(pid) == -signal.SIGKILL

    def enter():
        with shared(store) as marker:
            trace(f"{bool(marker)} {marker.uncertain}")

    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        waiter = fork(lambda: (signal.alarm(20), enter()))  # killed by the alarm if the grandchild holds the marker
        assert ended(waiter) == 0
        assert trace.events == ["True True"]
    finally:
        os.kill(grandchild, signal.SIGKILL)


def test_a_child_that_falls_out_of_the_block_does_not_complete_it(store, trace):
    def work():
        with shared(store) as marker:
            pid = os.fork()
            if pid:
                os.waitpid(pid, 0)
                trace("parent still inside")
                kill()
            marker.record("by the child")
        os._exit(0)

    killed(work)
    with shared(store) as marker:
        assert marker
        assert marker.uncertain


def test_a_full_disk_is_a_named_error_and_the_block_is_not_entered(store):
    def work():
        with shared(store):
            pass
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        with pytest.raises(StoreError, match="ledger") as caught, atomic_marker("full", namespace="tests", store=store):
            raise AssertionError("entered")
        assert "not" in str(caught.value)

    finished(work)
    with atomic_marker("full", namespace="tests", store=store, on_uncertain="halt") as marker:
        assert marker


def test_a_run_that_dies_in_its_marker_and_halts_reaches_the_caller(trace):
    @durable(goal_id="g")
    def job():
        with atomic_marker("pay", on_uncertain="halt") as should:
            if should:
                trace("paid")
                kill()
        return "done"

    killed(job)
    for _ in range(2):
        with pytest.raises(UnknownOutcome) as caught:
            job()
        assert job.runs.show().id in str(caught.value)
    assert trace.events == ["paid"]


def test_processes_with_other_markers_do_not_wait_for_each_other(store, trace):
    ready, go = os.pipe(), os.pipe()

    def slow():
        with shared(store):
            os.write(ready[1], b"r")
            os.read(go[0], 1)

    pid = fork(slow)
    os.read(ready[0], 1)
    with atomic_marker("other", namespace="tests", store=store) as marker:
        assert marker
    os.write(go[1], b"g")
    assert ended(pid) == 0
