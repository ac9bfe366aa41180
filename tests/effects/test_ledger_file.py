"""The ledger's file: copies that are put back, modes, settings, schemas, and files of others, which are left as they are."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sqlite3
import stat
from pathlib import Path

import pytest

from letitloop import DirectoryStore, Ledger, StoreError, atomic_marker
from letitloop.effects import ledger_file
from tests.effects.acting import KEY, SHOP, Bank, capable, closed, loses_its_reply, run

# --- restored and replaced ---------------------------------------------------------------------------------------------------


def copied(ledger, path):
    """Close the ledger and copy its file."""
    closed(ledger)
    shutil.copy(path, f"{path}.copy")


def put_back(ledger, path):
    closed(ledger)
    for suffix in ("-wal", "-shm"):
        Path(path + suffix).unlink(missing_ok=True)
    shutil.copy(f"{path}.copy", path)


VERBS = {
    "run": lambda ledger, bank: run(ledger, bank),
    "get": lambda ledger, bank: ledger.get(SHOP, KEY),
    "list": lambda ledger, bank: ledger.list(),
    "resend": lambda ledger, bank: ledger.resend(SHOP, KEY, bank),
    "approve": lambda ledger, bank: ledger.approve(SHOP, KEY, by="a"),
    "prune": lambda ledger, bank: ledger.intents.prune(2e9),
    "authorize": lambda ledger, bank: ledger.authorize("refund"),
    "run_redacted": lambda ledger, bank: run(ledger, bank, redact=("currency",)),
}


@pytest.mark.parametrize("verb", VERBS)
def test_an_older_copy_that_was_put_back_is_noticed_by_every_verb(ledger, path, verb):
    bank = Bank(window=60)
    run(ledger, bank, key="before")
    copied(ledger, path)
    run(ledger, bank)
    put_back(ledger, path)
    again = Ledger(path, clock=ledger.clock)
    for _ in range(2):
        with pytest.raises(StoreError, match="restored from a copy"):
            VERBS[verb](again, bank)
    assert len(bank.sent) == 2


def test_a_restored_ledger_that_was_accepted_goes_on_and_notices_the_next_one(ledger, path, bank):
    run(ledger, bank, key="before")
    copied(ledger, path)
    run(ledger, bank)
    put_back(ledger, path)
    accepted = Ledger(path, accept_restored=True)
    assert [intent.key for intent in accepted.list()] == ["before"]
    closed(accepted)
    plain = Ledger(path)
    run(plain, bank, key="after")
    put_back(plain, path)
    with pytest.raises(StoreError, match="restored"):
        Ledger(path).list()


def test_an_older_copy_is_noticed_although_pruning_forgot_its_events(ledger, path, clock, bank):
    run(ledger, bank, key="before")
    copied(ledger, path)
    run(ledger, bank)
    clock.now += 10
    assert ledger.intents.prune(clock()) == 2
    put_back(ledger, path)
    with pytest.raises(StoreError, match="restored"):
        Ledger(path).list()


def test_a_ledger_without_its_mark_or_with_an_unreadable_one_is_used(ledger, path, bank):
    run(ledger, bank)
    for damage in (
        lambda mark: mark.unlink(),
        lambda mark: mark.write_bytes(b"\xff\0 garbage"),
        lambda mark: mark.write_bytes(b""),
    ):
        closed(ledger)
        damage(Path(path + "-mark"))
        assert run(Ledger(path), bank)
    assert len(bank.sent) == 1


def test_another_ledger_in_its_place_is_noticed(folder, path, bank):
    ledger, other = Ledger(path), Ledger(f"{folder}/other.db")
    run(ledger, bank)
    run(other, bank, key="other")
    closed(ledger)
    closed(other)
    shutil.copy(f"{folder}/other.db", path)
    with pytest.raises(StoreError, match="another lay there"):
        run(Ledger(path), bank)
    assert len(bank.sent) == 2


@pytest.mark.parametrize("how", ["removed", "renamed away", "replaced by an older copy"])
def test_a_ledger_that_is_taken_away_while_it_is_open_acts_no_more(ledger, path, bank, how):
    run(ledger, bank, key="before")
    connection = sqlite3.connect(path)
    connection.execute(f"vacuum into '{path}.copy'")
    connection.close()
    run(ledger, bank)
    if how == "removed":
        os.unlink(path)
    elif how == "renamed away":
        os.rename(path, f"{path}.away")
    else:
        os.replace(f"{path}.copy", path)
    with pytest.raises(StoreError):
        run(ledger, bank, key="after")
    with pytest.raises(StoreError):
        run(ledger, bank)
    assert len(bank.sent) == 2


# --- the file ----------------------------------------------------------------------------------------------------------------


def test_all_files_are_the_owner_s_alone_whatever_the_umask(folder, bank):
    before = os.umask(0)
    try:
        ledger = Ledger(f"{folder}/sub/actions.db")
        run(ledger, bank)
        run(Ledger(store=DirectoryStore(f"{folder}/store")), bank)
    finally:
        os.umask(before)
    modes = {
        os.path.join(where, name): stat.S_IMODE(os.stat(os.path.join(where, name)).st_mode)
        for root in ("sub", "store")
        for where, _, names in os.walk(f"{folder}/{root}")
        for name in names
        if name != ".gitignore"
    }
    assert {name.rpartition(".db")[2] for name in modes if ".db" in name} >= {"", "-wal", "-shm", "-mark"}
    assert {name: oct(mode) for name, mode in modes.items() if mode & 0o077} == {}


def test_a_commit_is_durable_by_settings_that_were_read_back(ledger, bank):
    run(ledger, bank)
    connection = ledger_file.open_ledger(ledger.location)._connection
    assert connection.execute("pragma journal_mode").fetchone() == ("wal",)
    assert connection.execute("pragma synchronous").fetchone() == (2,)


def test_a_journal_mode_that_cannot_be_had_is_refused(path, monkeypatch, bank):
    connect = sqlite3.connect

    class Elsewhere:
        """A connection to a file on a network file system, as SQLite says it."""

        def __init__(self, *args, **kwargs):
            self.real = connect(*args, **kwargs)

        def execute(self, statement, *values):
            return self.real.execute(statement.replace("journal_mode=wal", "journal_mode=delete"), *values)

        def __getattr__(self, name):
            return getattr(self.real, name)

    monkeypatch.setattr(sqlite3, "connect", Elsewhere)
    with pytest.raises(StoreError, match="network file systems"):
        run(Ledger(path), bank)
    assert not bank.sent


@pytest.mark.parametrize(
    ("statement", "match"),
    [
        ("pragma application_id=77", "no ledger of letitloop"),
        (f"pragma application_id={ledger_file._APPLICATION_ID}; pragma user_version=99", "a newer ledger"),
    ],
)
def test_a_file_of_another_program_or_of_a_newer_version_is_left_as_it_is(path, bank, statement, match):
    connection = sqlite3.connect(path)
    connection.executescript(f"create table theirs(x); insert into theirs values(1); {statement}")
    connection.close()
    with pytest.raises(StoreError, match=match):
        run(Ledger(path), bank)
    connection = sqlite3.connect(path)
    assert connection.execute("select name from sqlite_master").fetchall() == [("theirs",)]
    connection.close()
    assert not bank.sent


def test_a_database_of_another_program_that_names_none_is_left_as_it_is(path, bank):
    connection = sqlite3.connect(path)
    connection.executescript("create table theirs(x); insert into theirs values(1)")
    connection.close()
    with pytest.raises(StoreError, match="no ledger of letitloop"):
        run(Ledger(path), bank)


@pytest.mark.parametrize(
    "data", [b"no database, and longer than a header of one would have to be" * 99, b"SQLite format 3\0" + b"\xff" * 4096]
)
def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(path, bank, data):
    Path(path).write_bytes(data)
    with pytest.raises(StoreError):
        run(Ledger(path), bank)
    assert Path(path).read_bytes() == data
    assert not bank.sent


def test_a_directory_or_a_place_that_cannot_be_written_is_refused(folder, bank):
    Path(f"{folder}/file").touch()
    for bad in (folder, f"{folder}/file/actions.db"):
        with pytest.raises(StoreError):
            run(Ledger(bad), bank)
    assert not bank.sent


def test_a_ledger_of_markers_alone_made_by_an_earlier_version_is_carried_over(path, bank):
    connection = sqlite3.connect(path)
    connection.executescript(f"""
        create table meta(k text primary key, v text) strict;
        create table marker(namespace text not null, name text not null, state text not null, idempotency_key text not null,
            attempts integer not null, owner text not null, started real not null, finished real, error text, result blob,
            primary key(namespace, name)) strict;
        insert into meta values('ledger_uuid', '00112233445566778899aabbccddeeff');
        insert into marker values('marker/tests', 'm', 'DONE', 'k', 1, 'o', 1.0, 2.0, null, null);
        pragma application_id={ledger_file._APPLICATION_ID};
        pragma user_version=1;
    """)
    connection.close()
    ledger = Ledger(path)
    run(ledger, bank)
    assert ledger.get(SHOP, KEY).state == "SUCCEEDED"
    connection = sqlite3.connect(path)
    assert connection.execute("select name, state from marker").fetchall() == [("m", "DONE")]
    assert connection.execute("select v from meta where k='ledger_uuid'").fetchone() == ("00112233445566778899aabbccddeeff",)
    connection.close()


def test_a_store_s_ledger_holds_markers_and_intents_side_by_side(folder, bank):
    store = DirectoryStore(f"{folder}/store")
    with atomic_marker("m", namespace="tests", store=store) as marker:
        assert marker
    run(Ledger(store=store), bank)
    closed(Ledger(store=store))
    with atomic_marker("m", namespace="tests", store=store) as marker:
        assert not marker
    assert run(Ledger(store=store), bank)
    assert len(bank.sent) == 1


def test_an_sqlite_without_strict_tables_will_do(path, monkeypatch, clock):
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    spec = importlib.util.spec_from_file_location("older_ledger_file", ledger_file.__file__)
    older = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(older)
    assert "strict" not in older._SCHEMA
    monkeypatch.setattr("letitloop.effects.ledger.open_ledger", older.open_ledger)
    ledger = Ledger(path, clock=clock)
    bank = capable(loses_its_reply)
    assert run(ledger, bank)
    clock.now += 9
    assert ledger.intents.prune(clock()) == 1
    connection = sqlite3.connect(path)
    assert not connection.execute("select count(*) from sqlite_master where sql like '%strict%'").fetchone()[0]
    connection.close()


@pytest.mark.parametrize("statement", ["update event set kind='odd'", "delete from event", "update event set at=0 where seq > 3"])
def test_history_cannot_be_changed_even_by_hand(ledger, path, clock, bank, statement):
    run(ledger, bank)
    run(ledger, bank, key="other")
    clock.now += 9
    ledger.intents.prune(clock() - 5)
    connection = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError, match="append only"):
        connection.execute(statement)
    connection.close()
