"""A store leaves a directory that was there as it is, and what others left in it is no reason to fall over."""

from __future__ import annotations

import os
import time

import pytest

from letitloop import DirectoryStore, InvalidArgument, current_run, durable, step
from tests.runs.helpers import crash, crashes

pytestmark = pytest.mark.timeout(30)


def _where():
    return current_run().store.location


# --- whose directory it is ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["argument", "variable"])
def test_an_empty_name_is_no_name(tmp_path, monkeypatch, how):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LETITLOOP_STORE", "")
    options = {"store": ""} if how == "argument" else {}
    try:
        assert durable(_where, goal_id="g", **options)() == str(tmp_path / ".letitloop")
    except InvalidArgument:
        assert how == "argument"
    assert {path.name for path in tmp_path.iterdir()} <= {".letitloop"}


@pytest.mark.parametrize("store", [".", "project", "./project/", b"project"])
def test_a_directory_that_was_there_is_not_made_invisible_to_git(tmp_path, monkeypatch, store):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "project").mkdir()
    durable(lambda: 1, goal_id="g", store=store)()
    assert not list(tmp_path.rglob(".gitignore"))


@pytest.mark.parametrize("store", ["new", "a/b/new", b"new", "new \n\udcff é"])
def test_a_directory_that_is_made_is_ignored_by_git(tmp_path, monkeypatch, store):
    monkeypatch.chdir(tmp_path)
    where = durable(_where, goal_id="g", store=store)()
    assert where == os.path.join(tmp_path, os.fsdecode(store))
    with open(os.path.join(where, ".gitignore")) as file:
        assert file.read() == "*\n"


def test_an_ignore_file_of_somebody_else_stays(tmp_path):
    (tmp_path / ".gitignore").write_text("mine\n")
    durable(lambda: 1, goal_id="g", store=tmp_path)()
    assert (tmp_path / ".gitignore").read_text() == "mine\n"


# --- what others left --------------------------------------------------------------------------------------------------------

LOCKS = [
    b"pid 99999999999999999999999\n",
    b"pid 0\n",
    b"pid -1\n",
    b"pid 1\n",
    "pid ²\n".encode(),
    b"garbage" * 100,
    b"\xff" * 600_000,
]


@pytest.mark.parametrize("content", LOCKS, ids=lambda content: repr(content[:12]))
def test_whatever_a_lock_file_holds_runs_are_listed_and_go_on(tmp_path, content):
    store = DirectoryStore(tmp_path / "s")

    @durable(goal_id="g", store=store)
    def job():
        step("a", int)
        if dying:
            crash()
        return 5

    dying = True
    crashes(job)
    dying = False
    (path,) = (tmp_path / "s" / "runs").glob("*.wal.lock")
    path.write_bytes(content)
    assert [run.id for run in job.runs] == store.names("runs")
    assert job() == 5
    assert [run.status for run in job.runs] == ["finished"]


def test_a_clock_before_1970_stops_no_run(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "time_ns", lambda: -5)
    monkeypatch.setattr(time, "time", lambda: -5e-9)
    job = durable(lambda: step("a", int), goal_id="g", store=tmp_path / "s")
    assert job() == 0
    assert [run.status for run in job.runs] == ["finished"]
