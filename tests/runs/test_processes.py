"""Processes that really die, that meet at one run, that fork, and disks that fill up."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import textwrap

import pytest

from letitloop import (
    LogError,
    LogLocked,
    LogPoisoned,
    Retry,
    atomic_marker,
    carry,
    current_run,
    durable,
    step,
)
from letitloop.runs.history import rewind_run
from letitloop.store.directory import DirectoryStore
from letitloop.testing import Fault, FaultFs
from letitloop.wal.files import OsFs
from tests.runs.helpers import Trace, crash, crashes, ended, finished, fork, kill, killed

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="these tests fork")


@pytest.fixture
def trace(tmp_path):
    return Trace(tmp_path / "trace")


# --- SIGKILL -----------------------------------------------------------------------------------------------------------------


def test_a_killed_process_loses_nothing_that_a_step_returned(tmp_path, trace):
    @durable(goal_id="g")
    def job():
        total = 0
        for n in range(5):
            total += step("work", lambda n=n: trace(f"work {n}", value=n))
            if deaths and deaths[0] == n:
                kill()
        return total

    deaths = [0]
    killed(job)
    killed(job)
    deaths = [2]
    killed(job)
    deaths = [4]
    killed(job)
    deaths = []
    assert job() == 10
    assert trace.events == [f"work {n}" for n in range(5)]


def test_what_was_in_flight_at_a_kill_is_told_and_only_that(tmp_path, trace):
    @durable(goal_id="g")
    def job():
        trace("in flight: " + json.dumps(sorted(current_run().in_flight)))
        step("a" * 200, int, 1)
        try:
            step("fails", int, "x")
        except ValueError:
            pass
        step("done", int, 1)
        step("dying", kill if dying else int)

    dying = True
    killed(job)
    killed(job)
    dying = False
    job()
    assert [line.partition(": ")[2] for line in trace.events] == ["[]", '["dying"]', '["dying"]']


def test_a_failed_step_is_not_in_flight(trace):
    @durable(goal_id="g")
    def job():
        trace("in flight: " + json.dumps(sorted(current_run().in_flight)))
        try:
            step("fails", int, "x")
        except ValueError:
            pass
        if dying:
            kill()

    dying = True
    killed(job)
    dying = False
    job()
    assert trace.events[1] == "in flight: []"


def test_several_steps_in_flight_are_told(trace):
    import threading
    from concurrent.futures import ThreadPoolExecutor

    @durable(goal_id="g")
    def job():
        trace("in flight: " + json.dumps(sorted(current_run().in_flight)))
        if not dying:
            return
        start = threading.Barrier(3)

        def work(n):
            start.wait()
            if n == 0:
                kill()
            threading.Event().wait()

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(carry(lambda n: step(f"work-{n}", work, n)), range(3)))

    dying = True
    killed(job)
    dying = False
    job()
    assert trace.events[1] == 'in flight: ["work-0", "work-1", "work-2"]'


def test_a_rewound_step_that_is_in_flight_again_is_told(trace):
    @durable(goal_id="g")
    def job():
        trace("in flight: " + json.dumps(sorted(current_run().in_flight)))
        step("a", int, 1)
        step("b", kill if dying_at == "b" else int)
        if dying_at == "end":
            kill()

    dying_at = "end"
    killed(job)
    rewind_run(DirectoryStore(os.environ["LETITLOOP_STORE"]), job.runs.show().id, "b")
    dying_at = "b"
    killed(job)
    dying_at = None
    job()
    assert trace.events[-1] == 'in flight: ["b"]'


def test_nothing_is_in_flight_after_a_clean_end(trace):
    @durable(goal_id="g")
    def job():
        seen.append(current_run().in_flight)
        step("fails", int, "x")

    seen = []
    for _ in range(2):
        with pytest.raises(ValueError, match="invalid literal"):
            job()
    assert seen == [(), ()]


def test_a_run_killed_before_its_first_record_is_still_known(trace):
    @durable(goal_id="g")
    def job():
        step("first", kill if dying else int)
        return "done"

    dying = True
    killed(job)
    killed(job)
    shown = job.runs.show()
    assert (shown.goal_id, shown.status, len(shown.lives)) == ("g", "interrupted", 2)
    dying = False
    assert job() == "done"


def test_attempts_of_killed_processes_count(trace):
    @durable(goal_id="g")
    def job():
        def work():
            trace("attempt")
            if len(trace.events) in (2, 4):
                kill()
            raise ValueError(len(trace.events))

        return step("work", retry=Retry(attempts=3, backoff=0))(work)()

    killed(job)  # 1 failed, 2 died
    killed(job)  # 3 failed (the second recorded attempt), 4 died
    with pytest.raises(ValueError, match="5"):
        job()
    assert len(trace.events) == 5


def test_a_killed_child_process_is_free_at_once_and_a_live_one_is_named(trace):
    """Both sides of the lock: refused while the holder lives, without its pid being guessed; free the moment it is dead."""

    @durable(goal_id="g")
    def job():
        return step("work", work)

    ready, go = os.pipe(), os.pipe()

    def holder():
        nonlocal work

        def work():
            os.write(ready[1], b"r")
            os.read(go[0], 1)
            kill()

        job()

    work = int
    pid = fork(holder)
    assert os.read(ready[0], 1) == b"r"
    with pytest.raises(LogLocked, match=str(pid)) as caught:
        job()
    assert caught.value.pid == pid
    assert job.runs.show().status == "running"
    assert job.runs.show().pid == pid
    with pytest.raises(LogLocked):
        job.runs.forget()
    os.write(go[1], b"g")
    assert ended(pid) == -signal.SIGKILL
    assert job.runs.show().status == "interrupted"
    assert job() == 0


def test_who_waits_for_a_run_gets_it_when_its_holder_ends(trace):
    @durable(goal_id="g", on_locked="wait")
    def job():
        return step("work", work)

    ready, go = os.pipe(), os.pipe()

    def holder():
        nonlocal work

        def work():
            os.write(ready[1], b"r")
            os.read(go[0], 1)
            return trace("work", value="of the holder")

        job()

    def waiter():
        nonlocal work
        work = lambda: trace("work", value="of the waiter")  # noqa: E731 - it has to be assigned
        os.write(ready[1], b"w")
        trace(job())

    work = None
    first = fork(holder)
    assert os.read(ready[0], 1) == b"r"
    second = fork(waiter)
    assert os.read(ready[0], 1) == b"w"
    os.write(go[1], b"g")
    assert (ended(first), ended(second)) == (0, 0)
    assert trace.events == ["work", "of the holder"]


def test_who_waits_for_a_run_gets_it_when_its_holder_is_killed(trace):
    @durable(goal_id="g", on_locked="wait")
    def job():
        return step("work", work)

    ready, go = os.pipe(), os.pipe()

    def holder():
        nonlocal work

        def work():
            os.write(ready[1], b"r")
            os.read(go[0], 1)
            kill()

        job()

    def waiter():
        nonlocal work
        work = lambda: trace("work")  # noqa: E731 - it has to be assigned
        os.write(ready[1], b"w")
        job()

    work = None
    first = fork(holder)
    os.read(ready[0], 1)
    second = fork(waiter)
    os.read(ready[0], 1)
    os.write(go[1], b"g")
    assert (ended(first), ended(second)) == (-signal.SIGKILL, 0)
    assert trace.events == ["work"]


# --- fork --------------------------------------------------------------------------------------------------------------------


def test_a_forked_child_records_nothing_and_does_not_free_the_run(trace):
    @durable(goal_id="g")
    def job():
        step("before", int, 1)

        def child():
            with pytest.raises(LogError, match=rf"process {os.getppid()}\b.*fork"):
                step("in the child", trace, "in the child")
            trace("refused")
            raise SystemExit(0)

        pid = fork(child)
        ended(pid)
        assert job.runs.show().pid == os.getpid()  # still held, by its own process
        step("after", int, 2)
        return "done"

    assert job() == "done"
    assert trace.events[-1] == "refused"
    assert [record.key for record in job.runs.show().steps] == ["before", "after"]


def test_a_forked_child_that_returns_out_of_the_run_leaves_the_parent_s_alone(trace):
    @durable(goal_id="g")
    def job():
        step("before", int, 1)
        pid = os.fork()
        if pid == 0:
            return "child"
        os.waitpid(pid, 0)
        step("after", int, 2)
        return "parent"

    def run():
        try:
            value = job()
        except BaseException as exc:
            trace(type(exc).__name__)
            os._exit(0)
        trace(value)

    finished(run)
    assert trace.events == ["LogError", "parent"]
    assert job() == "parent"


def test_a_forked_child_may_have_a_run_of_its_own(trace):
    @durable(goal_id="child")
    def child(n):
        return step("work", lambda: trace(f"child {n}"))

    @durable(goal_id="parent")
    def parent():
        pids = [fork(lambda n=n: child(n)) for n in range(4)]
        codes = [ended(pid) for pid in pids]
        return step("after", lambda: codes)

    assert parent() == [0] * 4
    assert sorted(trace.events) == [f"child {n}" for n in range(4)]


# --- disks -------------------------------------------------------------------------------------------------------------------


def test_a_full_disk_acknowledges_nothing_more_and_the_next_process_goes_on(trace):
    @durable(goal_id="g")
    def job(limit):
        if limits:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limits, limits))
        for n in range(40):
            step("work", lambda n=n: trace(f"called {n}", value=bytes([n]) * 1000))
            trace(f"returned {n}")
        return "done"

    def starved():
        with pytest.raises(LogPoisoned) as caught:
            job(1)
        assert isinstance(caught.value.__cause__, OSError)
        assert caught.value.__cause__.errno == errno.EFBIG
        assert caught.value.path in str(caught.value)
        assert "start the program again" in str(caught.value)

    limits = 20_000
    finished(starved)
    returned = [int(line.split()[1]) for line in trace.events if line.startswith("returned")]
    assert returned == list(range(len(returned)))
    assert 5 < len(returned) < 25
    limits = None
    assert job(1) == "done"
    for n in returned:
        assert trace.events.count(f"called {n}") == 1


@pytest.mark.parametrize("kind", ["pwrite", "sync"])
@pytest.mark.parametrize("nth", range(1, 9))
def test_a_disk_that_fails_once_never_loses_or_repeats_what_was_returned(tmp_path, kind, nth):
    calls, returned = [], []
    fs = FaultFs(OsFs())

    @durable(store=DirectoryStore(tmp_path / "s", fs=fs), goal_id="g")
    def job():
        if failing:
            fs.add(Fault(kind, nth=nth, error=errno.EIO))
        for n in range(3):
            step("work", lambda n=n: calls.append(n))
            returned.append(n)
        return "done"

    failing = True
    try:
        assert job() == "done"
    except LogPoisoned:
        pass
    else:
        assert kind == "pwrite" or fs.injected == []  # a note about what is in flight may be lost, a sync may not
    failing = False
    fs.clear()
    first = list(returned)
    returned.clear()
    assert job() == "done"
    for n in first:
        assert calls.count(n) == 1


def test_a_failure_while_closing_is_not_taken_for_success(tmp_path):
    fs = FaultFs(OsFs())

    @durable(store=DirectoryStore(tmp_path / "s", fs=fs), goal_id="g")
    def job():
        step("work", int, 1)
        if failing:
            fs.add(Fault("sync", times=-1))
        return "done"

    failing = True
    with pytest.raises(LogPoisoned):
        job()
    failing = False
    fs.clear()
    assert job() == "done"


def test_a_partial_write_is_mended_by_the_next_process(tmp_path):
    fs = FaultFs(OsFs())
    calls = []

    @durable(store=DirectoryStore(tmp_path / "s", fs=fs), goal_id="g")
    def job():
        step("a", lambda: calls.append("a"))
        if failing:
            fs.add(Fault("pwrite", nth=2, short=20, error=errno.ENOSPC))
            fs.add(Fault("pwrite", nth=1, short=20, error=errno.ENOSPC))
        step("b", lambda: calls.append("b"))

    failing = True
    with pytest.raises(LogPoisoned):
        job()
    failing = False
    fs.clear()
    job()
    assert calls.count("a") == 1
    assert calls.count("b") <= 2


def test_a_short_write_of_the_system_is_completed(tmp_path):
    fs = FaultFs(OsFs())

    @durable(store=DirectoryStore(tmp_path / "s", fs=fs), goal_id="g")
    def job():
        fs.add(Fault("pwrite", nth=2, short=7, error=0))
        value = step("a", lambda: "x" * 500)
        if dying:
            crash()
        return value

    dying = True
    crashes(job)
    dying = False
    assert job() == "x" * 500


# --- the readme's shape, as a program ----------------------------------------------------------------------------------------

PROGRAM = """
import os, sys
from letitloop import atomic_marker, durable, step

evidence = sys.argv[1]

def note(line):
    with open(evidence, "a") as file:
        file.write(line + "\\n")

def fetch_crm_record(user_id):
    note("fetch")
    return {"id": user_id, "name": "Ada"}

def summarize(user):
    note("summarize")
    return f"{user['name']} is user {user['id']}"

def send_slack(text):
    note("send")
    return {"ok": True, "ts": len(text)}

@durable(goal_id="customer_sync", on_complete=os.environ.get("ON_COMPLETE") or None)
def customer_sync(user_id):
    user = step("fetch_user", fetch_crm_record, user_id=user_id)
    if os.environ.get("DIE") == "fetch":
        os.kill(os.getpid(), 9)
    summary = step("summarize", summarize, user)
    with atomic_marker("slack_notification") as should_execute:
        if should_execute:
            should_execute.record(step("notify", send_slack, summary))
    if os.environ.get("DIE") == "notify":
        os.kill(os.getpid(), 9)
    return summary, should_execute.result

print(customer_sync(123))
"""


def test_the_readmes_workflow_returns_the_same_value_on_every_rerun(tmp_path):
    (tmp_path / "sync.py").write_text(textwrap.dedent(PROGRAM))

    def run(**extra):
        env = {**os.environ, **extra}
        return subprocess.run(
            [sys.executable, "sync.py", "evidence"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )

    assert run(DIE="fetch").returncode == -signal.SIGKILL
    assert run(DIE="notify").returncode == -signal.SIGKILL
    outputs = [run().stdout for _ in range(3)]
    assert outputs == ["('Ada is user 123', {'ok': True, 'ts': 15})\n"] * 3
    assert (tmp_path / "evidence").read_text().split() == ["fetch", "summarize", "send"]


def test_a_marker_in_a_run_gives_the_same_value_live_replayed_and_returned(trace):
    @durable(goal_id="g")
    def job():
        with atomic_marker("m") as should:
            if should:
                should.record({"n": trace("acted", value=7)})
        if dying:
            kill()
        return should.result

    dying = True
    killed(job)
    killed(job)
    dying = False
    assert [job(), job()] == [{"n": 7}] * 2
    assert trace.events == ["acted"]
