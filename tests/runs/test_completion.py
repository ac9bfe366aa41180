"""What a finished run does, what is told of runs, and how one is forgotten, sealed, encoded."""

from __future__ import annotations

import re
import time
import zlib

import pytest

from letitloop import (
    Codecs,
    DirectoryStore,
    MemoryStore,
    RunFinished,
    RunNotFound,
    SealError,
    UnencodableError,
    UnknownType,
    atomic_marker,
    current_run,
    durable,
    step,
)
from letitloop.errors import InvalidArgument
from letitloop.runs.history import describe_run, find_run, list_runs, rewind_run
from tests.runs.helpers import crash, crashes

KEY = b"0123456789abcdef"


@pytest.fixture
def store():
    return MemoryStore()


def _job(store, **options):
    calls = []

    @durable(store=store, **options)
    def job(n=1):
        return step("work", lambda: calls.append(n) or [n, len(calls)])

    job.calls = calls
    return job


# --- on_complete -------------------------------------------------------------------------------------------------------------


def test_a_named_goal_is_done_once_and_says_so(store, capfd):
    job = _job(store, goal_id="sync")
    first = job()
    assert capfd.readouterr() == ("", "")
    assert job() == first
    out, err = capfd.readouterr()
    assert out == ""
    assert job.calls == [1]
    run = job.runs.show()
    for part in ("letitloop:", run.id, "'sync'", time.strftime("%Y-%m-%d"), "runs.forget", f"lil forget {run.id}", "on_complete"):
        assert part in err
    assert err.count("\n") == 1


def test_an_unnamed_function_runs_whenever_it_is_called(store, capfd):
    job = _job(store)
    assert [job(), job(), job()] == [[1, 1], [1, 2], [1, 3]]
    assert capfd.readouterr().err == ""
    assert len(job.runs.list()) == 1


def test_on_complete_return_hands_out_a_fresh_result_each_time(store):
    job = _job(store, on_complete="return")
    job().append("mutated")
    assert job() == [1, 1]
    assert job() == [1, 1]


def test_on_complete_restart_starts_a_named_goal_anew(store):
    job = _job(store, goal_id="sync", on_complete="restart")
    assert [job(), job()] == [[1, 1], [1, 2]]


def test_on_complete_raise_says_that_it_is_finished(store):
    job = _job(store, goal_id="sync", on_complete="raise")
    job()
    with pytest.raises(RunFinished, match=r"sync.*finished on"):
        job()
    with pytest.raises(RunFinished):
        job()
    assert job.calls == [1]
    assert job(2) == [2, 2]


@pytest.mark.parametrize("on_complete", [None, "return", "restart", "raise"])
def test_an_unfinished_run_is_resumed_whatever_on_complete_says(store, on_complete):
    calls = []

    @durable(store=store, goal_id="g", on_complete=on_complete)
    def job():
        step("work", lambda: calls.append(1))
        if dying:
            crash()
        return "done"

    dying = True
    crashes(job)
    dying = False
    assert job() == "done"
    assert calls == [1]


def test_a_result_of_none_is_a_result(store):
    calls = []

    @durable(store=store, goal_id="g")
    def job():
        step("work", calls.append, 1)

    assert job() is None
    assert job() is None
    assert calls == [1]


def test_a_restarted_run_that_dies_is_resumed_and_not_given_the_old_result(store):
    calls = []

    @durable(store=store)
    def job():
        value = step("work", lambda: calls.append(1) or len(calls))
        if dying:
            crash()
        return value

    dying = False
    assert job() == 1
    dying = True
    crashes(job)
    dying = False
    assert job() == 2
    assert calls == [1, 1]


async def test_an_async_goal_is_done_once_too(store, capfd):
    @durable(store=store, goal_id="g")
    async def job():
        return 1

    assert [await job(), await job()] == [1, 1]
    assert "recorded result" in capfd.readouterr().err


# --- runs --------------------------------------------------------------------------------------------------------------------


def test_runs_are_listed_shown_and_forgotten(store):
    job, other = _job(store, goal_id="a"), _job(store, goal_id="b")
    job(1)
    job(2)
    other(1)
    mine = [run for run in job.runs.list() if run.goal_id == "a"]
    assert [run.status for run in mine] == ["finished"] * 2
    assert mine[0].created >= mine[1].created
    shown = job.runs.show(2)
    assert (shown.goal_id, shown.status, len(shown.lives)) == ("a", "finished", 1)
    (work,) = shown.steps
    assert (work.key, work.status, work.life) == ("work", "ok", 1)
    assert work.size > 0
    assert abs(work.started - time.time()) < 60
    assert job.runs.forget(2) is True
    assert job.runs.forget(2) is False
    with pytest.raises(RunNotFound):
        job.runs.show(2)
    assert job(2)[1] == 3
    assert job(1)[1] == 1


def test_a_run_in_progress_is_told_with_its_pid_and_is_not_forgotten(store):
    import os

    from letitloop import LogLocked

    @durable(store=store, goal_id="g")
    def job():
        shown = job.runs.show()
        with pytest.raises(LogLocked):
            job.runs.forget()
        return shown.status, shown.pid

    assert job() == ("running", os.getpid())


def test_lives_and_epochs_are_counted(store):
    epochs = []

    @durable(store=store, goal_id="g")
    def job():
        epochs.append(current_run().epoch)
        step(f"life-{len(epochs)}", int)
        if len(epochs) < 3:
            crash()

    crashes(job)
    crashes(job)
    assert job.runs.show().status == "interrupted"
    job()
    assert epochs == [1, 2, 3]
    shown = job.runs.show()
    assert len(shown.lives) == 3
    assert [record.life for record in shown.steps] == [1, 2, 3]


def test_a_run_is_found_by_the_start_of_its_name(store):
    job = _job(store, goal_id="alpha")
    job(1)
    name = job.runs.show(1).id
    assert find_run(store, "alpha") == find_run(store, name) == name
    job(2)
    with pytest.raises(RunNotFound, match="2 runs"):
        find_run(store, "alpha")
    with pytest.raises(RunNotFound):
        find_run(store, "beta")
    assert [run.id for run in list_runs(store)] == [run.id for run in job.runs.list()]


def test_a_rewound_run_does_again_what_came_from_that_step_on(store):
    calls = []

    @durable(store=store, goal_id="g")
    def job():
        for name in ("a", "b", "c", "b"):
            step(name, lambda name=name: calls.append(name))
        crash()

    crashes(job)
    name = job.runs.show().id
    with pytest.raises(InvalidArgument, match=r"a, b, c, b#2"):
        rewind_run(store, name, "absent")
    assert rewind_run(store, name, "b") == ["b", "c", "b#2"]
    calls.clear()
    crashes(job)
    assert calls == ["b", "c", "b"]
    with pytest.raises(RunNotFound):
        rewind_run(store, "absent", "b")


def test_a_finished_run_can_be_rewound(store):
    calls = []

    @durable(store=store, goal_id="g")
    def job():
        step("a", lambda: calls.append("a"))
        step("b", lambda: calls.append("b"))
        return len(calls)

    assert job() == 2
    rewind_run(store, job.runs.show().id, "b")
    assert job() == 3
    assert calls == ["a", "b", "b"]


# --- markers of a run --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["forget", "restart", "other arguments", "resume", "rewind"])
def test_markers_belong_to_their_run(store, way):
    sent = []

    @durable(store=store, goal_id="g", on_complete="restart" if way == "restart" else None)
    def job(n=1):
        step("before", int, n)
        with atomic_marker("mail") as should:
            if should:
                sent.append(n)
        if dying:
            crash()

    dying = way in ("resume", "rewind")
    if dying:
        crashes(job)
    else:
        job()
    dying = False
    if way == "forget":
        job.runs.forget()
    if way == "rewind":
        rewind_run(store, job.runs.show().id, "before")
    job(2 if way == "other arguments" else 1)
    assert len(sent) == (1 if way in ("resume", "rewind") else 2)


# --- seal, codecs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["argument", "variable", "text"])
def test_a_sealed_run_needs_its_key(tmp_path, monkeypatch, how):
    calls = []

    def make(key):
        if how == "variable":
            monkeypatch.setenv("LETITLOOP_SEAL_KEY", key.decode() if key else "")
            key = None
        elif how == "text" and key:
            key = key.decode()

        @durable(store=tmp_path, goal_id="g", seal_key=key)
        def job():
            step("work", lambda: calls.append(1))
            if dying:
                crash()
            return "done"

        return job

    dying = True
    crashes(make(KEY))
    dying = False
    for wrong in (b"another key, as long", None):
        with pytest.raises(SealError):
            make(wrong)()
    assert calls == [1]
    assert make(KEY)() == "done"
    assert make(KEY).runs.show().status == "finished"
    assert calls == [1]


def test_a_changed_sealed_log_is_refused(tmp_path):
    calls = []

    @durable(store=tmp_path, goal_id="g", seal_key=KEY)
    def job():
        step("work", lambda: calls.append(1) or "the value as it was")
        step("more", int, 1)
        crash()

    crashes(job)
    (path,) = (tmp_path / "runs").glob("*.wal")
    data = path.read_bytes()
    assert b"the value as it was" in data
    path.write_bytes(data.replace(b"the value as it was", b"the value as it is!"))
    with pytest.raises(Exception, match=r"seal|damaged|chain") as caught:
        job()
    assert type(caught.value).__name__ in ("SealError", "LogCorrupt")
    assert calls == [1]


def test_a_key_that_is_too_short_is_refused(tmp_path):
    with pytest.raises((SealError, InvalidArgument), match="16"):
        durable(store=tmp_path, seal_key=b"short")(lambda: 1)()


class Money:
    def __init__(self, cents):
        self.cents = cents

    def __eq__(self, other):
        return type(other) is Money and other.cents == self.cents

    __hash__ = None


def test_codecs_of_a_run_are_its_own(store):
    codecs = Codecs()
    codecs.register(Money, name="money", encode=lambda money: money.cents, decode=Money)

    def work():
        return Money(5)

    @durable(store=store, goal_id="g", codecs=codecs)
    def job():
        value = step("work", work)
        if dying:
            crash()
        return value

    dying = True
    crashes(job)
    dying = False
    assert job() == Money(5)
    assert job() == Money(5)

    @durable(store=store, goal_id="h")
    def without():
        return step("work", work)

    with pytest.raises(UnencodableError, match="Money"):
        without()

    @durable(store=store, goal_id="g")
    def stranger():
        return 1

    with pytest.raises(UnknownType, match="money"):
        stranger()


def test_a_class_that_is_gone_is_named_and_nothing_is_called(store):
    import sys
    import types
    from dataclasses import make_dataclass

    module = types.ModuleType("letitloop_tests_gone")
    module.Point = make_dataclass("Point", ["x"], namespace={"__module__": module.__name__})
    module.Point.__module__ = module.__name__
    sys.modules[module.__name__] = module
    calls = []

    @durable(store=store, goal_id="g")
    def job():
        value = step("work", lambda: calls.append(1) or module.Point(1))
        if dying:
            crash()
        return value.x

    dying = True
    try:
        crashes(job)
        del sys.modules[module.__name__]
        dying = False
        with pytest.raises(UnknownType, match=r"letitloop_tests_gone"):
            job()
        sys.modules[module.__name__] = module
        assert job() == 1
    finally:
        sys.modules.pop(module.__name__, None)
    assert calls == [1]


# --- stores ------------------------------------------------------------------------------------------------------------------


def test_a_memory_store_by_name_is_shared_and_by_object_is_its_own():
    calls = []

    def make(store):
        return durable(store=store, goal_id="g")(lambda: step("work", lambda: calls.append(1)))

    make("memory:completion-a")()
    make("memory:completion-a")()
    assert calls == [1]
    make("memory:completion-b")()
    make(MemoryStore())()
    make(MemoryStore())()
    assert len(calls) == 4


def test_the_environment_names_the_store_at_the_time_of_the_call(tmp_path, monkeypatch):
    job = durable(lambda: 1)
    for name in ("one", "two"):
        monkeypatch.setenv("LETITLOOP_STORE", str(tmp_path / name))
        job()
        assert len(DirectoryStore(tmp_path / name).names("runs")) == 1


def test_level_process_is_recorded_and_replayed_the_same(tmp_path):
    calls = []

    @durable(store=tmp_path, goal_id="g", sync="process")
    def job():
        step("work", lambda: calls.append(1))
        if dying:
            crash()

    dying = True
    crashes(job)
    dying = False
    job()
    assert calls == [1]


def test_a_damaged_run_is_described_as_far_as_it_goes_and_others_are_not_affected(tmp_path):
    job = _job(DirectoryStore(tmp_path), goal_id="g")
    job(1)
    job(2)
    path = tmp_path / "runs" / f"{job.runs.show(1).id}.wal"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    assert sorted(run.status for run in list_runs(DirectoryStore(tmp_path))) == ["damaged", "finished"]
    assert describe_run(DirectoryStore(tmp_path), path.stem).detail


def test_a_foreign_file_and_a_newer_log_are_named_and_left_alone(tmp_path):
    job = _job(DirectoryStore(tmp_path), goal_id="g")
    job(1)
    path = tmp_path / "runs" / f"{job.runs.show(1).id}.wal"
    data = path.read_bytes()
    newer = data[:6] + b"\x63\0" + data[8:60]
    newer += zlib.crc32(newer).to_bytes(4, "little") + data[64:]
    for content, name in ((b"#!/bin/sh\necho hello\n" * 9, "ForeignFile"), (newer, "LogVersionError")):
        path.write_bytes(content)
        with pytest.raises(Exception, match=re.escape(str(path))) as caught:
            job(1)
        assert type(caught.value).__name__ == name
        assert path.read_bytes() == content
        assert [run.status for run in list_runs(DirectoryStore(tmp_path))] == ["damaged"]
    assert job.calls == [1]
