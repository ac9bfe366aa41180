"""The ledger's file: secrets, restored copies, schemas, modes, forks, commits that fail, threads, Ctrl+C."""

from __future__ import annotations

import base64
import dis
import importlib.util
import os
import shutil
import sqlite3
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import pytest

from letitloop import (
    ActionConflict,
    Approval,
    ApprovalRequired,
    DirectoryStore,
    InFlight,
    IntentFailed,
    IntentNotFound,
    InvalidArgument,
    Ledger,
    MemoryStore,
    Redacted,
    StoreError,
    UnknownOutcome,
    atomic_marker,
)
from letitloop.effects import ledger_file
from letitloop.effects.provider import NotExecuted
from letitloop.wal.files import OsFs
from tests.effects.acting import (
    ARGUMENTS,
    KEY,
    PATIENCE,
    SHOP,
    Bank,
    Clock,
    at,
    capable,
    closed,
    commits_fail,
    content,
    happens,
    loses_its_reply,
    never_arrives,
    raises,
    rejects,
    run,
    unsettled,
)
from tests.interrupts import Interrupt, each_place, in_memory
from tests.runs.helpers import ended, finished, fork, kill, killed

CARD = "4111-1111-1111-1234"
WITH_CARD = {**ARGUMENTS, "card": CARD}


@pytest.fixture
def folder():
    with in_memory() as path:
        yield path


@pytest.fixture
def path(folder):
    return f"{folder}/actions.db"


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def ledger(path, clock):
    return Ledger(path, clock=clock)


@pytest.fixture
def bank():
    return Bank()


# --- secrets -----------------------------------------------------------------------------------------------------------------


def forms(text):
    """Return how a text may lie in a file."""
    raw = text.encode()
    return [raw, raw.hex().encode(), base64.b64encode(raw)[:-3], text.encode("utf-16-le")]


def assert_absent(text, path):
    found = content(path)
    assert found
    assert not [form for form in forms(text) if form in found]


LIVES = [(happens,), (loses_its_reply,), (never_arrives,), (rejects,)]


@pytest.mark.parametrize("says", LIVES, ids=lambda says: says[0].__name__)
def test_no_redacted_value_lies_anywhere_in_the_file_whatever_becomes_of_the_intent(ledger, path, says):
    bank = Bank(*says)
    for _ in range(2):
        try:
            run(ledger, bank, arguments=WITH_CARD, redact=("card",), approval=Approval())
        except (ApprovalRequired, UnknownOutcome, IntentFailed):
            pass
        else:
            break
        if ledger.get(SHOP, KEY).state == "PREPARED":
            ledger.approve(SHOP, KEY, by="alice")
    assert bank.sent[0].arguments["card"] == CARD, "the provider needs it"
    assert_absent(CARD, path)
    closed(ledger)
    assert_absent(CARD, path)
    kept = ledger.get(SHOP, KEY).arguments["card"]
    assert isinstance(kept, Redacted)
    assert len(kept.sha256) == 64


@pytest.mark.parametrize("text", [f"card {CARD} was declined", f"card={CARD}", {"card": CARD}], ids=["words", "pair", "data"])
def test_a_redacted_value_in_a_provider_s_words_is_not_kept_either(ledger, path, text):
    for n, says in enumerate([raises(ValueError(text)), lambda bank, dispatch: NotExecuted("rejected", str(text))]):
        with pytest.raises((UnknownOutcome, IntentFailed)):
            run(ledger, Bank(says), key=f"k{n}", arguments=WITH_CARD, redact=("card",))
    assert_absent(CARD, path)


@pytest.mark.parametrize(
    ("secret", "words"),
    [
        ({"number": CARD, "cvc": "987"}, f"card {CARD} was declined"),
        ([CARD], f"card {CARD} was declined"),
        (CARD, "x" * 470 + f" card {CARD} was declined"),
        (CARD, "x" * 1985 + f" card {CARD} was declined"),
        (CARD, f"card {CARD!r:>30} was declined" * 3),
    ],
    ids=["inside a mapping", "inside a list", "cut off", "cut off far behind", "quoted"],
)
def test_no_part_of_a_redacted_value_in_a_provider_s_words_is_kept(ledger, path, secret, words):
    for n, says in enumerate([raises(ValueError(words)), lambda bank, dispatch: NotExecuted("rejected", words)]):
        with pytest.raises((UnknownOutcome, IntentFailed)):
            run(ledger, Bank(says), key=f"k{n}", arguments={**ARGUMENTS, "card": secret}, redact=("card",))
    assert_absent(CARD[:8], path)


def test_a_value_stays_redacted_though_a_later_call_does_not_ask_for_that(ledger, path):
    bank = Bank(never_arrives, raises(ValueError(f"card {CARD} was declined")), window=60)
    with pytest.raises(UnknownOutcome):
        run(ledger, bank, arguments=WITH_CARD, redact=("card",))
    with pytest.raises(UnknownOutcome):
        run(ledger, bank, arguments=WITH_CARD, recover="resend")
    assert len(bank.sent) == 2
    assert_absent(CARD, path)
    assert isinstance(ledger.get(SHOP, KEY).arguments["card"], Redacted)


def test_a_redacted_argument_has_to_be_the_same_in_a_repeat(ledger, bank):
    run(ledger, bank, arguments=WITH_CARD, redact=("card",))
    assert run(ledger, bank, arguments=WITH_CARD, redact=("card",))
    other = {**WITH_CARD, "card": "4111-1111-1111-9999"}
    with pytest.raises(ActionConflict) as caught:
        run(ledger, bank, arguments=other, redact=("card",))
    assert caught.value.fields == ("card",)
    assert "4111" not in str(caught.value)
    assert len(bank.sent) == 1


def test_equal_secrets_of_two_ledgers_or_two_arguments_have_different_hashes(folder, bank):
    hashes = set()
    for n in range(2):
        ledger = Ledger(f"{folder}/{n}.db")
        run(ledger, bank, arguments={**WITH_CARD, "again": CARD}, redact=("card", "again"))
        kept = ledger.get(SHOP, KEY).arguments
        hashes |= {kept["card"].sha256, kept["again"].sha256}
    assert len(hashes) == 4


def test_what_is_redacted_can_be_sent_again_only_by_whoever_has_all_arguments(ledger):
    bank = Bank(never_arrives, window=60)
    with pytest.raises(UnknownOutcome):
        run(ledger, bank, arguments=WITH_CARD, redact=("card",))
    with pytest.raises(UnknownOutcome, match=r"hashes.*run\(\)"):
        ledger.resend(SHOP, KEY, bank)
    assert len(bank.sent) == 1
    run(ledger, bank, arguments=WITH_CARD, redact=("card",), recover="resend")
    assert [one.arguments["card"] for one in bank.sent] == [CARD, CARD]


def test_a_failed_attempt_with_redacted_arguments_is_made_again_by_whoever_has_all_of_them(ledger):
    bank = Bank(rejects)
    with pytest.raises(IntentFailed):
        run(ledger, bank, arguments=WITH_CARD, redact=("card",))
    with pytest.raises(InvalidArgument, match="hashes"):
        ledger.retry_failed(SHOP, KEY, bank)
    assert len(bank.sent) == 1
    run(ledger, bank, arguments=WITH_CARD, redact=("card",))
    assert [one.arguments["card"] for one in bank.sent] == [CARD, CARD]


def test_a_lookup_is_given_hashes_where_the_caller_gives_no_values(ledger):
    bank = Bank(never_arrives, lookup="strong")
    seen = []
    bank.reconcile = lambda dispatch: seen.append(dispatch.arguments["card"])
    with pytest.raises(UnknownOutcome):
        run(ledger, bank, arguments=WITH_CARD, redact=("card",))
    ledger.reconcile(SHOP, KEY, bank)
    assert seen[0] == CARD
    assert isinstance(seen[1], Redacted)


class Xor:
    """No cipher to be used; one that can be seen through in a test."""

    def __init__(self, key=0x5A):
        self.key = key
        self.fails = False

    def encrypt(self, data):
        if self.fails:
            raise RuntimeError("the key service is away")
        return b"X" + bytes(byte ^ self.key for byte in data)

    def decrypt(self, data):
        if self.fails or data[:1] != b"X":
            raise ValueError("cannot be decrypted")
        return bytes(byte ^ self.key for byte in data[1:])


def test_with_a_cipher_nothing_that_a_provider_was_told_or_said_is_readable(path):
    ledger = Ledger(path, cipher=Xor())
    words = f"the holder of {CARD} said no"
    bank = Bank(raises(ValueError(words)), lambda bank, dispatch: NotExecuted("rejected", words, {"about": CARD}))
    with pytest.raises(UnknownOutcome):
        run(ledger, bank, key="a", arguments=WITH_CARD)
    with pytest.raises(IntentFailed):
        run(ledger, bank, key="b", arguments=WITH_CARD)
    ledger.resolve(SHOP, "a", outcome="succeeded", evidence=words, by="carol", result=WITH_CARD, receipt=WITH_CARD)
    ledger.authorize("refund", scope={"card": CARD})
    assert run(ledger, bank, key="a", arguments=WITH_CARD) == WITH_CARD
    assert ledger.get(SHOP, "b").detail == {"about": CARD}
    assert ledger.events(SHOP, "a")[-1].evidence == words
    assert_absent(CARD, path)
    closed(ledger)
    assert_absent(CARD, path)


def test_a_cipher_makes_no_two_actions_of_one_and_still_notices_others(path, bank):
    ledger = Ledger(path, cipher=Xor())
    run(ledger, bank)
    assert run(Ledger(path, cipher=Xor()), bank)
    with pytest.raises(ActionConflict) as caught:
        run(ledger, bank, arguments={**ARGUMENTS, "amount_minor": 1})
    assert caught.value.fields == ("amount_minor",)
    assert len(bank.sent) == 1


@pytest.mark.parametrize("other", [None, Xor(0x11)], ids=["none", "another"])
def test_with_no_cipher_or_another_one_nothing_is_sent_and_nothing_written(path, other):
    ledger = Ledger(path, cipher=Xor())
    run(ledger, Bank())
    with pytest.raises(UnknownOutcome):
        run(ledger, Bank(never_arrives), key="open")
    before = ledger.get(SHOP, "open"), ledger.events(SHOP, "open")
    stranger, bank = Ledger(path, cipher=other), capable(window=60)
    for key in ("new", "open"):
        with pytest.raises(StoreError, match="encrypted"):
            run(stranger, bank, key=key, recover="resend")
    with pytest.raises(StoreError, match="encrypted"):
        stranger.resolve(SHOP, "open", outcome="failed", evidence="e", by="carol")
    assert not bank.sent
    assert not bank.asked
    assert (ledger.get(SHOP, "open"), ledger.events(SHOP, "open")) == before
    assert len(ledger.list()) == 2


def test_a_ledger_that_was_readable_does_not_become_half_encrypted(path, bank):
    run(Ledger(path), bank)
    with pytest.raises(StoreError, match="not encrypted"):
        run(Ledger(path, cipher=Xor()), bank, key="new")
    assert len(bank.sent) == 1


def test_a_cipher_that_fails_before_the_dispatch_sends_nothing(path, bank):
    cipher = Xor()
    cipher.fails = True
    ledger = Ledger(path, cipher=cipher)
    with pytest.raises(RuntimeError, match="key service"):
        run(ledger, bank)
    assert not bank.sent
    assert ledger.list() == []


def test_a_cipher_that_fails_after_the_dispatch_leaves_the_outcome_unknown(path):
    cipher = Xor()
    ledger = Ledger(path, cipher=cipher)

    def acts(bank, dispatch):
        cipher.fails = True
        return bank.act(dispatch)

    bank = capable(acts)
    with pytest.raises(UnknownOutcome):
        run(ledger, bank)
    cipher.fails = False
    assert run(ledger, bank) == {"refunded": 1200, "to": KEY}
    assert len(bank.effects) == 1


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


# --- commits that fail -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [OSError(5, "EIO"), OSError(28, "ENOSPC"), sqlite3.OperationalError("disk I/O error")])
def test_a_commit_that_fails_before_the_dispatch_sends_nothing_and_can_be_tried_again(ledger, bank, error):
    run(ledger, bank, key="before")
    with commits_fail(1, error=error), pytest.raises(StoreError, match="not executed"):
        run(ledger, bank)
    assert len(bank.sent) == 1
    with pytest.raises(IntentNotFound):
        ledger.get(SHOP, KEY)
    assert run(ledger, bank)
    assert len(bank.sent) == 2


@pytest.mark.parametrize("error", [OSError(5, "EIO"), sqlite3.OperationalError("disk I/O error")])
def test_a_commit_that_fails_after_the_dispatch_is_an_unknown_outcome_and_the_next_opening_asks(ledger, path, error):
    bank = capable()
    run(ledger, bank, key="before")
    first = ledger_file.open_ledger(ledger.location)
    with commits_fail(2, error=error), pytest.raises(UnknownOutcome) as caught:
        run(ledger, bank)
    assert caught.value.reason == "ledger write failed"
    assert (caught.value.namespace, caught.value.key) == (SHOP, KEY)
    assert first.poisoned
    with pytest.raises(StoreError, match="not used again"), first.transaction():
        pass
    assert ledger.get(SHOP, KEY).state == "DISPATCHED"
    assert run(ledger, bank) == {"refunded": 1200, "to": KEY}
    assert len(bank.sent) == 2
    assert [event.kind for event in ledger.events(SHOP, KEY)] == ["prepared", "dispatched", "takeover", "succeeded"]


def test_a_disk_that_stays_full_after_the_dispatch_is_an_unknown_outcome_too(ledger):
    bank = capable()
    run(ledger, bank, key="before")

    def fills_up(bank, dispatch):
        full.__enter__()
        return bank.act(dispatch)

    full = commits_fail()
    bank.says.append(fills_up)
    try:
        with pytest.raises(UnknownOutcome) as caught:
            run(ledger, bank)
    finally:
        full.__exit__(None, None, None)
    assert caught.value.reason == "ledger write failed"
    assert run(ledger, bank) == {"refunded": 1200, "to": KEY}
    assert len(bank.effects) == 2


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_commit_that_fails_while_an_outcome_is_asked_for_changes_nothing(ledger, n):
    bank = capable()
    unsettled(ledger, bank)
    with commits_fail(n):
        try:
            ledger.reconcile(SHOP, KEY, bank)
        except StoreError:
            assert n <= 2
        else:
            assert n == 3
    assert ledger.get(SHOP, KEY).state == ["DISPATCHED", "UNKNOWN", "SUCCEEDED"][n - 1]
    assert ledger.reconcile(SHOP, KEY, bank).state == "SUCCEEDED"


def test_other_threads_in_the_middle_of_an_action_are_told_when_the_handle_is_poisoned(ledger):
    """Their provider has acted; what came of it is recorded by a new opening, or open for the next who asks. Never lost."""
    bank = capable()
    begun, go_on = threading.Event(), threading.Event()

    def waits(bank, dispatch):
        begun.set()
        assert go_on.wait(PATIENCE)
        return bank.act(dispatch)

    bank.says.append(waits)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(run, ledger, bank, "slow")
        assert begun.wait(PATIENCE)
        with commits_fail(2), pytest.raises(UnknownOutcome):
            run(ledger, bank, "fails")
        go_on.set()
        try:
            assert slow.result(PATIENCE) == {"refunded": 1200, "to": "slow"}
        except UnknownOutcome:
            pass
    for key in ("slow", "fails"):
        assert run(ledger, bank, key) == {"refunded": 1200, "to": key}
    assert len(bank.effects) == len(bank.sent) == 2


@pytest.mark.parametrize("door", ["pwrite", "open"])
def test_a_mark_that_cannot_be_written_spoils_nothing_that_was_committed(ledger, monkeypatch, path, bank, door):
    """It is written after the commit: nothing there may look as if the action had failed."""
    original = getattr(OsFs, door)

    def fails(*args, **kwargs):
        if any(str(one).endswith("-mark") or (isinstance(one, bytes) and len(one) == 54) for one in args):
            raise OSError(28, "No space left on device")
        return original(*args, **kwargs)

    monkeypatch.setattr(OsFs, door, fails if door == "open" else staticmethod(fails))
    assert run(ledger, bank) == {"refunded": 1200, "to": KEY}
    assert ledger.get(SHOP, KEY).state == "SUCCEEDED"
    assert len(bank.sent) == 1


# --- clocks ------------------------------------------------------------------------------------------------------------------


def test_a_clock_that_goes_back_loses_and_repeats_nothing(ledger, clock):
    bank = capable(loses_its_reply)
    with pytest.raises(UnknownOutcome):
        run(ledger, bank, recover="block")
    clock.now -= 1e6
    assert run(ledger, bank)
    clock.now -= 1e6
    assert run(ledger, bank)
    assert len(bank.sent) == 1
    times = [event.at for event in ledger.events(SHOP, KEY)]
    assert times == sorted(times, reverse=True), "history keeps its order by number, not by time"
    assert ledger.intents.prune(clock()) == 0


# --- processes ---------------------------------------------------------------------------------------------------------------


def test_a_process_that_dies_after_the_provider_acted_leaves_what_the_next_one_finds(ledger, folder):
    bank = capable(kept=f"{folder}/effects")
    run(ledger, bank, key="before")

    def dies():
        with at("intent.replied", kill):
            run(ledger, bank)

    killed(dies)
    assert ledger.get(SHOP, KEY).state == "DISPATCHED"
    assert run(ledger, bank) == {"refunded": 1200, "to": KEY}
    assert len(bank.keys) == 2


def test_a_live_process_is_in_flight_for_others_and_the_moment_it_dies_it_is_not(ledger, folder, bank):
    run(ledger, bank, key="before")
    begun, never = os.pipe(), os.pipe()

    def hangs(bank, dispatch):
        os.write(begun[1], b".")
        os.read(never[0], 1)

    pid = fork(lambda: run(ledger, Bank(hangs)))
    os.read(begun[0], 1)
    try:
        with pytest.raises(InFlight) as caught:
            run(ledger, bank)
        assert str(pid) in caught.value.owner
        with pytest.raises(InFlight):
            ledger.resolve(SHOP, KEY, outcome="failed", evidence="impatience", by="carol")
    finally:
        os.kill(pid, 9)
        ended(pid)
    with pytest.raises(UnknownOutcome, match="ended before"):
        run(ledger, bank)
    assert len(bank.sent) == 1


def test_a_fork_in_the_middle_of_an_action_neither_ends_nor_repeats_it(ledger, bank):
    """The child has a copy of everything: it must not act for its parent, nor free what its parent holds."""

    def forks(bank, dispatch):
        def child():
            with pytest.raises(InFlight):
                run(ledger, Bank())
            assert run(ledger, Bank(), key="child's")

        finished(child)
        with pytest.raises(InFlight):
            finished_in_another_process()
        return bank.act(dispatch)

    def finished_in_another_process():
        this_process = ledger_file._open.pop(ledger.location)
        try:
            run(ledger, Bank())
        finally:
            closed(ledger)
            ledger_file._open[ledger.location] = this_process

    bank.says.append(forks)
    assert run(ledger, bank) == {"refunded": 1200, "to": KEY}
    assert ledger.get(SHOP, "child's").state == ledger.get(SHOP, KEY).state == "SUCCEEDED"
    assert ledger.anomalies() == []


def test_a_child_that_comes_back_from_its_parent_s_provider_settles_nothing_twice(ledger, bank):
    run(ledger, bank, key="before")

    def forks(bank, dispatch):
        pid = os.fork()
        if pid == 0:
            raise SystemExit("the child goes on in the parent's call")
        assert ended(pid) == 0
        return bank.act(dispatch)

    parent = os.getpid()
    bank.says.append(forks)
    try:
        result = run(ledger, bank)
    except BaseException:
        if os.getpid() != parent:
            os._exit(0)
        raise
    assert result == {"refunded": 1200, "to": KEY}
    intent = ledger.get(SHOP, KEY)
    assert (intent.state, intent.result) == ("SUCCEEDED", result)


# --- threads -----------------------------------------------------------------------------------------------------------------


def test_of_eight_threads_on_one_key_one_acts_and_the_others_are_told_that_it_does(ledger):
    told = threading.Semaphore(0)

    def waits_for_the_others(bank, dispatch):
        for _ in range(7):
            assert told.acquire(timeout=PATIENCE)
        return bank.act(dispatch)

    bank = Bank(waits_for_the_others)
    start = threading.Barrier(8)

    def thread():
        start.wait(PATIENCE)
        try:
            return run(ledger, bank)
        except InFlight:
            told.release()
            return "in flight"

    with ThreadPoolExecutor(8) as pool:
        results = [future.result(PATIENCE) for future in [pool.submit(thread) for _ in range(8)]]
    assert results.count("in flight") == 7
    assert len(bank.sent) == 1
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: run(ledger, bank), range(8))) == [{"refunded": 1200, "to": KEY}] * 8
    assert len(bank.sent) == 1


@pytest.mark.parametrize("memory", [True, False])
def test_threads_on_keys_of_their_own_lose_and_double_nothing(ledger, memory, bank):
    ledger = Ledger(store=MemoryStore()) if memory else ledger
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: run(ledger, bank, key=f"k{n % 40}"), range(40)))
    assert len(bank.sent) == len({one.key for one in bank.sent}) == 40
    assert {intent.state for intent in ledger.list()} == {"SUCCEEDED"}
    assert [event.seq for n in range(40) for event in ledger.events(SHOP, f"k{n}")].__len__() == 120


def test_of_threads_that_ask_about_one_open_outcome_each_gets_the_same_answer(ledger):
    bank = capable(loses_its_reply)
    with pytest.raises(UnknownOutcome):
        run(ledger, bank, recover="block")
    with ThreadPoolExecutor(8) as pool:
        assert {intent.state for intent in pool.map(lambda _: ledger.reconcile(SHOP, KEY, bank), range(8))} == {"SUCCEEDED"}
    assert [event.kind for event in ledger.events(SHOP, KEY)].count("succeeded") == 1
    assert ledger.anomalies() == []


def test_of_threads_that_send_again_one_does(ledger):
    bank = Bank(never_arrives, window=60)
    with pytest.raises(UnknownOutcome):
        run(ledger, bank)
    start = threading.Barrier(8)

    def thread(_):
        start.wait(PATIENCE)
        try:
            return ledger.resend(SHOP, KEY, bank)["refunded"]
        except InFlight:
            return 1200

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(thread, range(8))) == {1200}
    assert len(bank.sent) == 2


# --- Ctrl+C ------------------------------------------------------------------------------------------------------------------


@lru_cache
def resumed_inside(code):
    """Return where a generator goes on inside ``yield from`` or ``await``: CPython takes a signal in the innermost one alone."""
    return {one.offset for one in dis.get_instructions(code) if one.opname == "RESUME" and one.arg & 3 >= 2}


@pytest.fixture
def where_signals_are_taken(monkeypatch):
    original = Interrupt._event

    def event_of_a_signal(self, frame, event, arg):
        if not (event == "call" and frame.f_lasti >= 0 and frame.f_lasti in resumed_inside(frame.f_code)):
            original(self, frame, event, arg)

    monkeypatch.setattr(Interrupt, "_event", event_of_a_signal)


def ctrl_c(test):
    test = pytest.mark.usefixtures("where_signals_are_taken")(test)
    # a generator that is collected may be the place, and what is raised there goes nowhere
    return pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")(test)


@ctrl_c
@pytest.mark.parametrize("says", [happens, loses_its_reply, never_arrives, rejects])
def test_after_ctrl_c_anywhere_the_state_is_a_true_one_and_a_later_run_recovers(ledger, says):
    bank = capable()

    def act(n):
        bank.says[:] = [says]
        try:
            run(ledger, bank, key=f"k{n}")
        except IntentFailed:
            pass

    def check(n):
        bank.says.clear()
        key = f"k{n}"
        try:
            before = ledger.get(SHOP, key)
        except IntentNotFound:
            before = None
        effects = [one for one in bank.effects if one.key == key]
        assert len(effects) <= 1
        if before is None:
            assert not effects
        else:
            assert before.state != "DISPATCHED", "other processes would wait for this one to end"
            assert before.state != "SUCCEEDED" or effects
            assert before.state != "FAILED" or not effects
        retry = ("not_sent", "tombstoned", "rejected")
        try:
            run(ledger, bank, key=key, retry=retry)
        except IntentFailed:  # it was made certain that it had not happened
            pass
        assert run(ledger, bank, key=key, retry=retry) == {"refunded": 1200, "to": key}
        assert len([one for one in bank.effects if one.key == key]) == 1
        assert ledger.anomalies() == []

    act(-1)
    places, failed = each_place(act, check)
    assert not failed
    assert places > 40


@ctrl_c
def test_after_ctrl_c_anywhere_while_an_outcome_is_asked_for_it_can_be_asked_for_again(ledger):
    bank = capable()

    def act(n):
        ledger.reconcile(SHOP, f"k{n}", bank)

    def check(n):
        assert ledger.reconcile(SHOP, f"k{n}", bank).state == "SUCCEEDED"

    for n in range(-1, 400):
        unsettled(ledger, bank, key=f"k{n}")
    act(-1)
    places, failed = each_place(act, check)
    assert not failed
    assert 20 < places < 400


@ctrl_c
def test_after_ctrl_c_anywhere_in_the_first_use_the_ledger_can_be_used(bank):
    with in_memory() as folder:

        def act(n):
            run(Ledger(f"{folder}/{n}.db"), bank)

        def check(n):
            ledger = Ledger(f"{folder}/{n}.db")
            try:
                run(ledger, bank)
            except UnknownOutcome:
                ledger.resolve(SHOP, KEY, outcome="succeeded", evidence="it was asked", by="carol")
            done = threading.Thread(target=run, args=(ledger, bank), daemon=True)
            done.start()
            done.join(PATIENCE)
            assert not done.is_alive(), "it waits"
            closed(ledger)

        places, failed = each_place(act, check)
    assert not failed
    assert places > 40
