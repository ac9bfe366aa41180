"""A ledger among processes that die or fork, and among threads: one of them acts, and the others are told so."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from letitloop import InFlight, Ledger, MemoryStore, UnknownOutcome
from letitloop.effects import ledger_file
from tests.effects.acting import KEY, SHOP, Bank, at, at_once, capable, closed, loses_its_reply, never_arrives, run, waits_for
from tests.runs.helpers import ended, finished, fork, kill, killed

# --- processes ---------------------------------------------------------------------------------------------------------------


def test_eight_processes_may_be_the_first_to_open_it(tmp_path):
    """A pool of workers that starts on a new machine: SQLite itself answers "locked" at once to some of them."""
    for number in range(40):
        path = tmp_path / f"{number}.db"
        gate, go = os.pipe()

        def opens(path=path, gate=gate, go=go):
            os.close(go)
            os.read(gate, 1)
            assert Ledger(path).list() == []

        children = [fork(opens) for _ in range(8)]
        os.close(go)
        os.close(gate)
        assert [ended(pid) for pid in children] == [0] * 8


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
    bank = Bank(waits_for(told, 7))

    def thread(_):
        try:
            return run(ledger, bank)
        except InFlight:
            told.release()
            return "in flight"

    assert at_once(thread).count("in flight") == 7
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

    def thread(_):
        try:
            return ledger.resend(SHOP, KEY, bank)["refunded"]
        except InFlight:
            return 1200

    assert set(at_once(thread)) == {1200}
    assert len(bank.sent) == 2
