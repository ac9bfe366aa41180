"""What ``lil show`` tells of markers: completed, open, being executed, earlier attempts; and of a ledger that cannot be read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from letitloop import DirectoryStore, MemoryStore, StoreError, atomic_marker, current_run, durable
from letitloop.effects.marker import marker_states
from letitloop.runs.history import describe_run
from tests.cli import stores
from tests.cli.stores import data, lil, workflow

SYNC = """
import os, signal, sys
from letitloop import atomic_marker, durable, step
@durable(goal_id="sync")
def run():
    step("fetch", int)
    with atomic_marker("slack_notification") as go:
        if go:
            match os.environ["AT"]:
                case "kill": os.kill(os.getpid(), signal.SIGKILL)
                case "raise": raise ValueError("no \\x1b net")
                case "wait": print("inside", flush=True); sys.stdin.read()
    step("report", int)
run()
"""


@pytest.fixture(autouse=True)
def _wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")


def sync(at):
    return stores.python(SYNC, check=False, AT=at)


def statuses():
    return [one["status"] for one in data("show", "sync")["steps"] if one["step"] == "slack_notification"]


def ledger() -> Path:
    return Path(os.environ["LETITLOOP_STORE"], "ledger.db")


def test_a_completed_marker_is_done():
    name = workflow()
    found = data("show", name)
    assert [one["status"] for one in found["steps"] if one["step"] == "notify"] == ["done", "ok"]
    assert (found["markers"]["notify"]["state"], found["markers"]["notify"]["attempts"]) == ("done", 1)
    assert found["markers"]["notify"]["finished"] >= found["markers"]["notify"]["started"]
    assert "\nopen" not in lil("show", name)


def test_a_marker_whose_process_died_is_open_until_it_is_completed():
    sync("kill")
    assert statuses() == ["open"]
    pid = data("show", "sync")["lives"][0]["pid"]
    said = lil("show", "sync")
    (line,) = [line for line in said.splitlines() if line.startswith("open: ")]
    assert line.startswith("open: slack_notification: its block was entered (attempt 1, 20")
    assert line.endswith(
        f", by pid {pid}) and not completed; its action may or may not have happened. The next run is told (marker.uncertain)."
    )
    assert "1 open marker, see below: find out whether its action happened" in next(
        line for line in said.splitlines() if line.startswith("next ")
    )
    sync("kill")
    assert statuses() == ["unfinished", "open"]
    assert "(attempt 2, " in lil("show", "sync")
    sync("end")
    assert statuses() == ["unfinished", "unfinished", "done"]
    assert "may or may not" not in lil("show", "sync")


def test_a_marker_that_an_exception_left_says_which():
    sync("raise")
    assert statuses() == ["open"]
    assert r"and left by ValueError: no \x1b net; its action may" in lil("show", "sync")
    assert data("show", "sync")["markers"]["slack_notification"]["error"] == "ValueError: no \x1b net"


def test_a_marker_that_is_being_executed_is_not_uncertain():
    child = subprocess.Popen(
        [sys.executable, "-c", SYNC],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=stores.environment(AT="wait"),
    )
    try:
        assert child.stdout.readline() == "inside\n"
        said = lil("show", "sync")
        assert "its block is being executed now (attempt 1, " in said
        assert "may or may not" not in said
        assert "find out whether" not in said
    finally:
        child.communicate("", timeout=30)
    assert statuses() == ["done"]


def test_a_caught_exception_in_a_finished_run_promises_no_next_run():
    @durable(goal_id="sync")
    def run():
        try:
            with atomic_marker("slack_notification"):
                raise ValueError
        except ValueError:
            return

    run()
    said = lil("show", "sync")
    assert "may or may not have happened.\n" in said
    assert "next      1 open marker" in said


@pytest.mark.parametrize("harm", ["text", "rot", "directory", "foreign"])
def test_a_damaged_ledger_is_one_line(harm):
    sync("kill")
    for file in (ledger(), Path(f"{ledger()}-wal"), Path(f"{ledger()}-shm")):
        file.unlink(missing_ok=True)
    match harm:
        case "text":
            ledger().write_text("hello")
        case "rot":
            ledger().write_bytes(b"SQLite format 3\0" + b"\xff" * 8176)
        case "directory":
            ledger().mkdir()
        case _:
            import sqlite3

            with sqlite3.connect(ledger()) as connection:
                connection.execute("create table other(a)")
            connection.close()
    lines = [line for line in lil("show", "sync").splitlines() if "cannot be told" in line]
    assert len(lines) == 1
    assert "ledger.db cannot be read: " in lines[0]
    found = data("show", "sync")
    assert "cannot be read" in found["ledger_error"]
    assert found["markers"] == {}
    assert statuses() == ["effect"]


def test_looking_makes_and_changes_nothing(tmp_path):
    assert marker_states(f"sqlite:{tmp_path / 'none' / 'ledger.db'}", "x") == {}
    assert list(tmp_path.iterdir()) == []
    sync("end")
    files = {path: path.read_bytes() for path in ledger().parent.iterdir() if path.is_file()}
    lil("show", "sync")
    assert {path: path.read_bytes() for path in ledger().parent.iterdir() if path.is_file()} == files
    ledger().write_bytes(b"")  # its maker was killed before it made the table
    assert data("show", "sync")["markers"] == {}


@pytest.mark.parametrize("make", [MemoryStore, lambda: DirectoryStore(os.environ["LETITLOOP_STORE"])])
def test_the_states_are_those_of_one_run(make):
    store = make()

    @durable(goal_id=lambda n: f"run-{n}", store=store)
    def run(n):
        with atomic_marker(f"mark-{n}"):
            return current_run().id

    for n in (1, 2):
        (key, state), *more = marker_states(store.ledger, describe_run(store, run(n)).instance).items()
        assert (key, state.state, state.attempts, state.owner, state.error) == (f"mark-{n}", "DONE", 1, f"pid {os.getpid()}", "")
        assert state.finished >= state.started > 0
        assert not more
    assert marker_states(store.ledger, "") == {}


def test_a_ledger_of_an_unknown_kind_is_refused():
    with pytest.raises(StoreError):
        marker_states("weird:there", "x")
