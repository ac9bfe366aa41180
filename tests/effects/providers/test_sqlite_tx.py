"""Effect and receipt in one transaction: every outcome, every lost commit, and operations that try to leave the transaction."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from letitloop import InvalidArgument
from letitloop.effects.intent import Redacted
from letitloop.effects.provider import Found, NotExecuted, NotFound, StillRunning, Succeeded, Unavailable, Unknown
from letitloop.effects.providers import SqliteProvider
from tests.effects.providers.interleaving import Crash, dispatch, handles

ACTION = dispatch({"item": "lamp", "pieces": 3}, operation="take")


def take(connection, arguments):
    connection.execute("update stock set pieces = pieces - ? where item = ?", (arguments["pieces"], arguments["item"]))
    return {"left": connection.execute("select pieces from stock").fetchone()[0]}


@pytest.fixture(params=["delete", "wal"])
def path(request, tmp_path):
    path = tmp_path / "shop ?#%.db"
    shop = sqlite3.connect(path)
    shop.execute(f"pragma journal_mode={request.param}")
    shop.execute("create table stock(item text primary key, pieces int check(pieces >= 0))")
    shop.execute("insert into stock values('lamp', 10)")
    shop.commit()
    shop.close()
    return path


def pieces(path):
    shop = sqlite3.connect(path)
    try:
        return shop.execute("select pieces from stock").fetchone()[0]
    finally:
        shop.close()


def provider(path, operation=take, **options):
    return SqliteProvider(path, {"take": operation}, **{"timeout": 0.05, **options})


class Connection(sqlite3.Connection):
    """One whose COMMIT goes wrong; the class says how."""

    def execute(self, sql, *args):
        if sql == "commit":
            return self.end()
        return super().execute(sql, *args)


@pytest.fixture
def commits(monkeypatch):
    """Let the next COMMIT end as a function of the connection says."""
    real = sqlite3.connect

    def install(end):
        ends = [end]

        def connect(*args, **kwargs):
            if not ends:
                return real(*args, **kwargs)
            kind = type("Faulty", (Connection,), {"end": ends.pop()})
            return real(*args, factory=kind, **kwargs)

        monkeypatch.setattr(sqlite3, "connect", connect)

    return install


# --- the plain course --------------------------------------------------------------------------------------------------------


def test_an_operation_is_carried_out_once(path):
    shop = provider(path)
    assert isinstance(shop.reconcile(ACTION), NotFound)
    receipt = {"lil_receipt": ACTION.provider_key}
    assert shop.execute(ACTION) == Succeeded({"left": 7}, receipt, "tx")
    assert shop.execute(ACTION) == Succeeded({"left": 7}, receipt, "replay")
    found = Found({"left": 7}, ACTION.provider_key, dict(ACTION.arguments), receipt)
    assert shop.reconcile(ACTION) == found
    assert shop.tombstone(ACTION) == found
    assert pieces(path) == 7


def test_the_result_comes_back_exactly(path):
    value = {"when": (1, b"\0"), "seen": {1, 2}, "none": None}
    shop = provider(path, lambda connection, arguments: value)
    assert shop.execute(ACTION).result == value
    assert provider(path).reconcile(ACTION).result == value


def test_a_tombstone_keeps_a_late_worker_from_acting(path):
    shop = provider(path)
    first = shop.tombstone(ACTION)
    assert (type(first), first.kind) == (NotExecuted, "tombstoned")
    for answer in (shop.execute(ACTION), shop.reconcile(ACTION), shop.tombstone(ACTION)):
        assert answer == first
    assert pieces(path) == 10
    assert isinstance(shop.execute(dispatch(ACTION.arguments, operation="take", attempt=2)), Succeeded)


def test_another_action_under_the_same_key_is_noticed(path):
    shop = SqliteProvider(path, {"take": take, "give": take})
    shop.execute(ACTION)
    other = dispatch({"item": "lamp", "pieces": 4}, operation="take")
    assert isinstance(shop.execute(other), Unknown)
    assert shop.reconcile(other).arguments["pieces"].startswith("sha256:")
    assert isinstance(shop.execute(dispatch(ACTION.arguments, operation="give")), Unknown)
    redacted = dispatch({"item": Redacted("5" * 64), "pieces": 3}, operation="take")
    assert shop.reconcile(redacted).arguments == {"pieces": 3}
    assert pieces(path) == 7


def test_the_user_s_connection_settings_are_set(path):
    def on_connect(connection):
        connection.row_factory = lambda cursor, row: {names[0]: value for names, value in zip(cursor.description, row, strict=True)}
        connection.create_function("twice", 1, lambda value: 2 * value)

    def operation(connection, arguments):
        row = connection.execute("select twice(pieces) as two from stock").fetchone()
        return row["two"]

    shop = provider(path, operation, on_connect=on_connect)
    assert shop.execute(ACTION).result == 20
    assert shop.execute(ACTION).result == 20
    assert shop.reconcile(ACTION).result == 20


def test_commits_are_synced(path):
    levels = []
    provider(path, lambda connection, arguments: levels.append(connection.execute("pragma synchronous").fetchone()[0])).execute(
        ACTION
    )
    assert levels == [3]


def test_nothing_stays_open(path):
    shop = provider(path)
    before = handles()
    for verb in (shop.reconcile, shop.execute, shop.execute, shop.reconcile, shop.tombstone):
        verb(ACTION)
    provider(path, lambda *_: 1 / 0).execute(dispatch({}, operation="take", key="other"))
    with pytest.raises(Crash):
        provider(path, crash).execute(dispatch({}, operation="take", key="third"))
    assert handles() == before


def crash(connection, arguments):
    take(connection, {"item": "lamp", "pieces": 1})
    raise Crash


def test_an_operation_is_not_called_for_what_is_settled(path):
    calls = []
    shop = provider(path, lambda connection, arguments: calls.append(1))
    shop.execute(ACTION)
    shop.execute(ACTION)
    other = dispatch({}, operation="take", key="order-2")
    shop.tombstone(other)
    shop.execute(other)
    assert calls == [1]


# --- operations that fail, or leave the transaction --------------------------------------------------------------------------


def test_an_operation_that_raises_is_rolled_back_and_rejected_for_good(path):
    def operation(connection, arguments):
        take(connection, arguments)
        raise ValueError("no lamps today")

    reply = provider(path, operation).execute(ACTION)
    assert reply.kind == "rejected"
    assert "builtins.ValueError: no lamps today" in reply.certificate
    assert pieces(path) == 10
    for answer in (provider(path).execute(ACTION), provider(path).reconcile(ACTION), provider(path).tombstone(ACTION)):
        assert (type(answer), answer.kind) == (NotExecuted, "rejected")
        assert "no lamps today" in answer.certificate
    assert pieces(path) == 10


def test_a_constraint_is_a_rejection(path):
    reply = provider(path).execute(dispatch({"item": "lamp", "pieces": 11}, operation="take"))
    assert reply.kind == "rejected"
    assert "CHECK" in reply.certificate


def test_a_constraint_that_is_checked_at_the_commit_is_a_rejection(path):
    def operation(connection, arguments):
        connection.execute("create table if not exists parent(id integer primary key)")
        connection.execute("create table child(p references parent(id) deferrable initially deferred)")
        connection.execute("insert into child values(5)")

    shop = provider(path, operation, on_connect=lambda connection: connection.execute("pragma foreign_keys=on"))
    reply = shop.execute(ACTION)
    assert reply.kind == "rejected"
    assert "FOREIGN KEY" in reply.certificate
    assert shop.reconcile(ACTION).kind == "rejected"


def test_a_result_that_cannot_be_recorded_is_rolled_back(path):
    def operation(connection, arguments):
        take(connection, arguments)
        return object()

    reply = provider(path, operation).execute(ACTION)
    assert reply.kind == "rejected"
    assert "UnencodableError" in reply.certificate
    assert pieces(path) == 10


@pytest.mark.parametrize("swallowed", [False, True], ids=["raised", "swallowed"])
@pytest.mark.parametrize(
    "leave",
    [
        lambda connection: connection.commit(),
        lambda connection: connection.rollback(),
        lambda connection: connection.execute("commit"),
        lambda connection: connection.execute("END"),
        lambda connection: connection.execute("rollback"),
        lambda connection: connection.executescript("update stock set pieces = 0"),
        lambda connection: connection.execute("attach ':memory:' as other"),
    ],
)
def test_an_operation_cannot_end_its_transaction(path, leave, swallowed):
    def operation(connection, arguments):
        result = take(connection, arguments)
        try:
            leave(connection)
        except sqlite3.Error:
            if not swallowed:
                raise
        return result

    reply = provider(path, operation).execute(ACTION)
    if swallowed:
        assert reply.basis == "tx"
        assert pieces(path) == 7
    else:
        assert reply.kind == "rejected"
        assert pieces(path) == 10


def test_nothing_is_written_after_an_error_that_rolled_back(path):
    statement = "update stock set pieces = pieces - 1"

    def operation(connection, arguments):
        connection.execute(statement)
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute("insert or rollback into stock values('lamp', 1)")
        assert not connection.in_transaction
        for again in (statement, "create table other(x)", "with one as (select 1) update stock set pieces = 0"):
            with pytest.raises(sqlite3.Error):
                connection.execute(again)
        return "fine"

    reply = provider(path, operation).execute(ACTION)
    assert reply.kind == "rejected"
    assert "rolled its transaction back" in reply.certificate
    assert pieces(path) == 10


def test_savepoints_are_the_operation_s(path):
    def operation(connection, arguments):
        connection.execute("savepoint s")
        connection.execute("update stock set pieces = 0")
        connection.execute("rollback to s")
        connection.execute("release s")
        return take(connection, arguments)

    assert provider(path, operation).execute(ACTION).result == {"left": 7}


def test_a_connection_that_the_operation_closed_has_written_nothing(path):
    def operation(connection, arguments):
        take(connection, arguments)
        connection.close()

    assert isinstance(provider(path, operation).execute(ACTION), Unknown)
    assert pieces(path) == 10
    assert provider(path).tombstone(ACTION).kind == "tombstoned"


def test_an_interrupt_is_rolled_back_and_passes(path):
    with pytest.raises(Crash):
        provider(path, crash).execute(ACTION)
    assert pieces(path) == 10
    assert isinstance(provider(path).execute(ACTION), Succeeded)


# --- commits whose reply is lost ---------------------------------------------------------------------------------------------


def test_a_commit_that_was_made_but_failed_is_known_by_its_receipt(path, commits):
    def end(connection):
        sqlite3.Connection.execute(connection, "commit")
        raise sqlite3.OperationalError("disk I/O error")

    commits(end)
    assert provider(path).execute(ACTION) == Succeeded({"left": 7}, {"lil_receipt": ACTION.provider_key}, "tx")
    assert pieces(path) == 7


def test_a_commit_that_failed_is_unknown_until_it_is_asked_about(path, commits):
    def end(connection):
        raise sqlite3.OperationalError("disk I/O error")

    commits(end)
    reply = provider(path).execute(ACTION)
    assert isinstance(reply, Unknown)
    assert "disk I/O error" in reply.reason
    assert pieces(path) == 10
    assert isinstance(provider(path).reconcile(ACTION), NotFound)
    assert provider(path).tombstone(ACTION).kind == "tombstoned"


def test_a_rejection_that_cannot_be_recorded_is_unknown(path, commits):
    def end(connection):
        raise sqlite3.OperationalError("disk I/O error")

    commits(end)
    reply = provider(path, lambda *_: 1 / 0).execute(ACTION)
    assert isinstance(reply, Unknown)
    assert "ZeroDivisionError" in reply.reason


def test_a_tombstone_that_was_not_committed_certifies_nothing(path, commits):
    def end(connection):
        raise sqlite3.OperationalError("disk I/O error")

    commits(end)
    assert isinstance(provider(path).tombstone(ACTION), Unavailable)
    assert isinstance(provider(path).reconcile(ACTION), NotFound)


@pytest.mark.parametrize("committed", [False, True])
def test_a_process_that_is_killed_leaves_both_or_neither(path, committed):
    program = f"""
import os, sqlite3
from letitloop.effects.providers import SqliteProvider
from letitloop.effects.provider import Dispatch
class Dying(sqlite3.Connection):
    def execute(self, sql, *args):
        if sql == "commit":
            if {committed}:
                super().execute(sql)
            os.kill(os.getpid(), 9)
        return super().execute(sql, *args)
real = sqlite3.connect
sqlite3.connect = lambda *args, **kwargs: real(*args, factory=Dying, **kwargs)
def take(connection, arguments):
    connection.execute("update stock set pieces = pieces - 3")
SqliteProvider({str(path)!r}, {{"take": take}}).execute(Dispatch("n", "k", 1, 1, {ACTION.provider_key!r}, "take", {{}}, 0.0))
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
    assert isinstance(provider(path).reconcile(ACTION), Found if committed else NotFound)
    assert isinstance(provider(path).tombstone(ACTION), Found if committed else NotExecuted)
    assert pieces(path) == (7 if committed else 10)


# --- at the same time --------------------------------------------------------------------------------------------------------


def test_a_tombstone_while_the_transaction_is_open_is_still_running(path):
    answers = []

    def operation(connection, arguments):
        result = take(connection, arguments)
        other = provider(path)
        answers.extend([other.tombstone(ACTION), other.reconcile(ACTION), other.execute(ACTION)])
        return result

    assert provider(path, operation).execute(ACTION).basis == "tx"
    assert [type(answer) for answer in answers] == [StillRunning, NotFound, NotExecuted]
    assert answers[2].kind == "not_sent"
    assert pieces(path) == 7
    assert isinstance(provider(path).tombstone(ACTION), Found)


def test_a_tombstone_just_before_the_transaction_begins_is_seen_in_it(path, monkeypatch):
    """The worker has opened its connection and sleeps; it sees the row only because it looks inside its transaction."""
    real = sqlite3.connect
    asked = []

    def connect(*args, **kwargs):
        connection = real(*args, **kwargs)
        if not asked:
            asked.append(None)
            asked.append(provider(path).tombstone(ACTION))
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect)
    reply = provider(path).execute(ACTION)
    assert asked[1].kind == reply.kind == "tombstoned"
    assert pieces(path) == 10


def test_a_worker_between_the_rollback_and_the_end_of_a_key_is_not_overlooked(path, monkeypatch):
    """One operation raises; before its key is ended, another sending of it succeeds: that is what happened."""
    done = []

    def failing(connection, arguments):
        raise ValueError("no")

    class Late(sqlite3.Connection):
        def execute(self, sql, *args):
            cursor = super().execute(sql, *args)
            if sql == "rollback":
                monkeypatch.setattr(sqlite3, "connect", plain)
                done.append(provider(path).execute(ACTION))
            return cursor

    plain = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **kwargs: plain(*args, factory=Late, **kwargs))
    reply = provider(path, failing).execute(ACTION)
    assert done[0].basis == "tx"
    assert (reply.result, reply.basis) == ({"left": 7}, "replay")
    assert pieces(path) == 7


def test_threads_agree(path):
    for number in range(15):
        action = dispatch({"item": "lamp", "pieces": 0}, operation="take", key=f"order-{number}")
        gate = threading.Barrier(6)

        def party(verb, action=action, gate=gate):
            shop = provider(path, timeout=20)
            gate.wait()
            return getattr(shop, verb)(action)

        with ThreadPoolExecutor(6) as pool:
            replies = list(pool.map(party, ["execute", "tombstone"] * 3))
        happened = isinstance(provider(path).reconcile(action), Found)
        assert all(isinstance(reply, (Succeeded, Found)) == happened for reply in replies)
        assert sum(isinstance(reply, Succeeded) and reply.basis == "tx" for reply in replies) == happened


# --- a database that cannot be used ------------------------------------------------------------------------------------------


def test_a_locked_database_has_been_sent_nothing(path):
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("begin immediate")
    try:
        assert provider(path).execute(ACTION).kind == "not_sent"
        assert isinstance(provider(path).tombstone(ACTION), StillRunning)
        assert isinstance(provider(path).reconcile(ACTION), NotFound)
    finally:
        holder.close()
    assert isinstance(provider(path).execute(ACTION), Succeeded)


def test_a_database_that_is_gone_or_broken(path):
    shop = provider(path)
    os.remove(path)
    assert shop.execute(ACTION).kind == "not_sent"
    assert isinstance(shop.reconcile(ACTION), Unavailable)
    assert isinstance(shop.tombstone(ACTION), Unavailable)
    assert not path.exists()
    path.write_bytes(b"no database" * 100)
    assert shop.execute(ACTION).kind == "not_sent"
    assert isinstance(shop.reconcile(ACTION), Unavailable)
    assert isinstance(shop.tombstone(ACTION), Unavailable)


def test_settings_that_fail_have_sent_nothing(path):
    before = handles()
    reply = provider(path, on_connect=lambda connection: 1 / 0).execute(ACTION)
    assert reply.kind == "not_sent"
    assert handles() == before


def test_what_is_refused_beforehand(path, tmp_path):
    with pytest.raises(InvalidArgument, match="none of"):
        provider(path).validate("give", {})
    with pytest.raises(InvalidArgument, match="Create the database first"):
        SqliteProvider(tmp_path / "none.db", {})
    with pytest.raises(InvalidArgument, match="no function"):
        SqliteProvider(path, {"take": 5})
    provider(path).validate("take", {})


def test_identity_is_the_real_path(path, tmp_path):
    (tmp_path / "alias").symlink_to(path)
    assert provider(tmp_path / "alias").identity() == f"sqlite/1 {path.resolve()}"
