"""Intents among processes, and on a disk that fails: what is sent is recorded first, and by one of them alone."""

from __future__ import annotations

import os
import random
import re
import resource
import shutil
import sqlite3
import subprocess
import sys

import pytest

from letitloop import Ledger, StoreError, UnknownOutcome, failpoints
from letitloop.effects import ledger_file
from letitloop.effects.provider import Caps, Succeeded
from tests.effects import races
from tests.effects.bank import Bank, Till
from tests.effects.lives import Life, lived, row_of, state_of

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="these tests fork")

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def test_eight_processes_on_one_key_some_of_them_killed(tmp_path):
    races.one_key(tmp_path, seed=random.randrange(10**6), rounds=10)


def test_eight_processes_on_many_keys_lose_and_double_nothing(tmp_path):
    races.many_keys(tmp_path, seed=random.randrange(10**6), intents=160)


def test_while_one_acts_the_others_are_told_so(tmp_path):
    bank, path = Bank(str(tmp_path / "bank"), "opaque", "slow"), tmp_path / "ledger.db"

    def work(life):
        return Ledger(path).run("n", "k", bank, {"amount": 1})

    first = Life(work, stops=("bank.slow",))
    assert first.until("bank.slow")
    assert [lived(work)["raised"] for _ in range(4)] == ["InFlight"] * 4
    first.go()
    assert first.end() == {"value": {"moved": 1}}
    assert [lived(work) for _ in range(2)] == [{"value": {"moved": 1}}] * 2
    assert len(bank.requests()) == 1


# --- first the record, then the world ----------------------------------------------------------------------------------------


class Watched(Till):
    """Looks at the ledger's files while it acts, as another process would after this one's death."""

    def __init__(self, path, ledger):
        super().__init__(path)
        self.ledger = os.fspath(ledger)
        self.seen = []

    def execute(self, dispatch):
        row = lived(lambda life: row_of(self.ledger, dispatch.key)["state"])["value"]
        with open(f"{self.ledger}-wal", "rb") as file:
            wal = file.read()
        self.seen.append((row, dispatch.attempt, dispatch.epoch, wal.count(b"DISPATCHED") > 0))
        return super().execute(dispatch)


def test_whoever_looks_while_the_provider_acts_finds_the_dispatch_on_record(tmp_path):
    path = tmp_path / "ledger.db"
    ledger, till = Ledger(path), Watched(str(tmp_path / "till"), path)
    for key in ("a", "b"):
        ledger.run("n", key, till, {"order": key})
    assert till.seen == [("DISPATCHED", 1, 1, True)] * 2


def test_points_are_passed_in_this_order(tmp_path):
    passed = []
    bank, ledger = Bank(str(tmp_path / "bank"), "receipt", "lost"), Ledger(tmp_path / "ledger.db")
    assert ledger.list() == []
    failpoints.observe(passed.append)
    try:
        assert ledger.run("n", "k", bank, {"amount": 1}) == {"moved": 1}
    finally:
        failpoints.observe(None)
    assert [name for name in passed if not name.startswith("fs.")] == [
        "intent.before_claim",
        "ledger.commit",
        "intent.claimed",
        "bank.posted",
        "bank.committed",
        "intent.before_unknown",
        "ledger.commit",
        "intent.settled",
        "intent.takeover",
        "bank.asked",
        "intent.before_reconciled",
        "ledger.commit",
    ]


PROGRAM = """
import os, sys
from letitloop import Ledger
from letitloop.effects.providers import FunctionProvider

def act(text):
    os.write(1, b"a byte of the provider\\n")
    return text

ledger = Ledger(sys.argv[1])
for key in "abc":
    ledger.run("n", key, FunctionProvider(act, identity="shop"), {"text": key})
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed: the order of the system calls is not seen")
def test_no_byte_of_a_provider_leaves_before_the_dispatch_is_on_the_disk(tmp_path):
    trace = tmp_path / "trace"
    calls = "trace=write,pwrite64,writev,pwritev,fsync,fdatasync,sendto,sendmsg"
    command = ["strace", "-f", "-y", "-s", "1000000", "-e", calls, "-o", str(trace)]
    command += [sys.executable, "-c", PROGRAM, str(tmp_path / "ledger.db")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and "ptrace" in done.stderr:
        pytest.skip(f"strace is not permitted here: {done.stderr.strip()[:200]}")
    assert done.returncode == 0, done.stderr
    lines = trace.read_text(errors="replace").splitlines()
    sent = [number for number, line in enumerate(lines) if "a byte of the provider" in line]
    assert len(sent) == 3
    begin = 0
    for number in sent:
        wal = [
            (index, re.search(r"\b(fsync|fdatasync)\(", lines[index]) is not None)
            for index in range(begin, number)
            if "ledger.db-wal>" in lines[index]
        ]
        written = [index for index, synced in wal if not synced and "DISPATCHED" in lines[index]]
        assert written, "the dispatch was written before the provider's byte"
        last = max(index for index, synced in wal if not synced)
        assert any(index > last and re.search(r"= 0$", lines[index]) for index, synced in wal if synced), "and synced"
        begin = number + 1


# --- a ledger that cannot be written, or not durably -------------------------------------------------------------------------


@pytest.mark.parametrize("error", ["eio", "enospc"])
def test_a_dispatch_that_cannot_be_recorded_is_not_sent(tmp_path, error):
    bank, path = Bank(str(tmp_path / "bank"), "opaque"), tmp_path / "ledger.db"

    def work(life):
        return Ledger(path).run("n", "k", bank, {"amount": 1})

    assert lived(work, failpoint=f"ledger.commit:{error}@2")["raised"] == "StoreError"
    assert (state_of(path), bank.requests()) == (None, [])
    assert lived(work) == {"value": {"moved": 1}}


@pytest.mark.parametrize("error", ["eio", "enospc"])
@pytest.mark.parametrize("kind", ["opaque", "receipt"])
def test_an_outcome_that_cannot_be_recorded_is_unknown_and_the_handle_is_not_used_again(tmp_path, error, kind):
    bank, path = Bank(str(tmp_path / "bank"), kind), tmp_path / "ledger.db"

    def work(life):
        ledger = Ledger(path)
        assert ledger.list() == []
        handle = ledger_file._open[ledger.location]
        with pytest.raises(UnknownOutcome) as caught:
            ledger.run("n", "k", bank, {"amount": 1})
        assert caught.value.reason == "ledger write failed"
        assert state_of(path) == "DISPATCHED"
        assert handle.poisoned
        with pytest.raises(StoreError), handle.transaction():
            raise AssertionError("it is used again")
        assert len(bank.done()) == 1
        # the same program goes on, with another handle, and finds it open
        if kind == "opaque":
            with pytest.raises(UnknownOutcome):
                ledger.run("n", "k", bank, {"amount": 1})
        else:
            assert ledger.run("n", "k", bank, {"amount": 1}) == {"moved": 1}

    assert lived(work, failpoint=f"ledger.commit:{error}@3") == {"value": None}
    assert (state_of(path), len(bank.requests())) == ("UNKNOWN" if kind == "opaque" else "SUCCEEDED", 1)


def test_a_disk_that_is_really_full_when_the_outcome_is_to_be_recorded(tmp_path):
    path, till = tmp_path / "ledger.db", Till(str(tmp_path / "till"))

    class Filling(Till):
        def execute(self, dispatch):
            reply = super().execute(dispatch)
            size = os.path.getsize(f"{path}-wal")
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
            return reply

    till.__class__ = Filling

    def work(life):
        return Ledger(path).run("n", "k", till, {"order": 1})

    assert lived(work)["raised"] == "UnknownOutcome"
    till.__class__ = Till
    assert lived(work)["raised"] == "UnknownOutcome"
    assert till.counted == ["k"]
    assert state_of(path) == "UNKNOWN"


@pytest.mark.parametrize(("pragma", "answer"), [("pragma journal_mode=wal", "'delete'"), ("pragma synchronous", "1")])
def test_a_file_system_that_cannot_make_it_durable_is_refused(tmp_path, monkeypatch, pragma, answer):
    class Elsewhere(sqlite3.Connection):
        def execute(self, query, *values):
            return super().execute(f"select {answer}" if query == pragma else query, *values)

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **options: connect(*args, factory=Elsewhere, **options))
    till = Till(str(tmp_path / "till"))
    with pytest.raises(StoreError, match="durable"):
        Ledger(tmp_path / "ledger.db").run("n", "k", till, {"order": 1})
    assert not os.path.exists(till.path)


def test_the_ledger_is_set_up_to_survive_a_power_cut(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.run("n", "k", Till(str(tmp_path / "till")), {"order": 1})
    connection = ledger_file._open[ledger.location]._connection
    assert connection.execute("pragma journal_mode").fetchone() == ("wal",)
    assert connection.execute("pragma synchronous").fetchone() == (2,)
    assert os.stat(tmp_path / "ledger.db").st_mode & 0o777 == 0o600


# --- forks -------------------------------------------------------------------------------------------------------------------


def test_a_forked_child_has_a_ledger_of_its_own(tmp_path):
    path, till = tmp_path / "ledger.db", Till(str(tmp_path / "till"))
    ledger = Ledger(path)
    assert ledger.run("n", "parent", till, {"order": 1}) == "parent"

    def work(life):
        return [ledger.run("n", key, till, {"order": 1}) for key in ("parent", "child")]

    assert lived(work) == {"value": ["parent", "child"]}
    assert ledger.run("n", "child", till, {"order": 1}) == "child"
    assert till.counted == ["parent", "child"]


def test_a_child_that_is_forked_while_its_parent_acts_does_not_take_it_over(tmp_path):
    path, outcomes = tmp_path / "ledger.db", []
    ledger = Ledger(path)

    class Forking:
        name, caps = "forking", Caps()

        def identity(self):
            return "forking/1"

        def validate(self, operation, arguments):
            pass

        def execute(self, dispatch):
            if not outcomes:
                outcomes.append(lived(lambda life: ledger.run("n", "k", self, {})))
                outcomes.append(lived(lambda life: ledger.reconcile("n", "k", self).state))
            return Succeeded(1)

    assert ledger.run("n", "k", Forking(), {}) == 1
    assert [outcome.get("raised") for outcome in outcomes] == ["InFlight", "InFlight"]
    assert ledger.get("n", "k").state == "SUCCEEDED"
