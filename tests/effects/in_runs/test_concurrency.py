"""Actions in scopes, threads and tasks of a run: each happens once, in any order, and belongs to the run that was carried there."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from letitloop import Ledger, MemoryStore, UnknownOutcome, async_step, atomic_marker, carry, durable, scope, step
from tests.effects.acting import ARGUMENTS, KEY, PATIENCE, RESULT, SHOP, Bank, capable, loses_its_reply, threads_ended
from tests.effects.in_runs.programs import Ends, Once
from tests.runs.helpers import crash, crashes


def test_an_action_is_one_in_whatever_scope_it_is_asked_for(store, ledger, bank):
    later = Once()

    @durable(goal_id="job", store=store, sync="process")
    def job():
        found = []
        for name in ("a", "b", "a"):
            with scope(name):
                found.append(ledger.run(SHOP, KEY, bank, ARGUMENTS))
        with scope("own"):
            found.append(ledger.run(SHOP, "other", bank))
        step("later", later)
        return found

    with pytest.raises(Ends):
        job()
    assert job() == [RESULT] * 3 + [{"refunded": None, "to": "other"}]
    assert len(bank.sent) == 2


def test_threads_that_carry_the_run_act_each_once_in_any_order(store, ledger, bank):
    order = list(range(8))
    later = Once()

    @durable(goal_id="job", store=store, sync="process")
    def job():
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(carry(lambda n: ledger.run(SHOP, f"k{n}", bank, ARGUMENTS)), order))
        step("later", later)
        return found

    with pytest.raises(Ends):
        job()
    order.reverse()
    assert job() == [{"refunded": 1200, "to": f"k{n}"} for n in order]
    assert sorted(one.key for one in bank.sent) == sorted(f"k{n}" for n in range(8))
    assert {intent.run_id for intent in ledger.list()} == {job.runs.show().id}


def test_an_unknown_outcome_in_a_thread_that_carries_the_run_halts_it(store, ledger):
    bank = Bank(loses_its_reply)

    @durable(goal_id="job", store=store, sync="process")
    def job():
        def work():
            try:
                carried()
            except Exception:
                pass

        carried = carry(lambda: ledger.run(SHOP, KEY, bank, ARGUMENTS))
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(PATIENCE)
        return "went on"

    for _ in range(2):
        with pytest.raises(UnknownOutcome):
            job()
    assert len(bank.sent) == 1


def test_a_thread_that_does_not_carry_the_run_acts_outside_it(store, bank):
    ledger = Ledger(store=MemoryStore())

    @durable(goal_id="job", store=store, sync="process")
    def job():
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(ledger.run, SHOP, KEY, bank, ARGUMENTS).result()

    assert job() == RESULT
    assert ledger.get(SHOP, KEY).run_id is None


async def test_effects_that_are_gathered_happen_once_each(store, ledger, bank):
    later = Once()

    @durable(goal_id="job", store=store, sync="process")
    async def job():
        found = await asyncio.gather(*(ledger.arun(SHOP, f"k{n}", bank, ARGUMENTS) for n in range(20)))
        await async_step("later", later)
        return found

    with pytest.raises(Ends):
        await job()
    assert await job() == [{"refunded": 1200, "to": f"k{n}"} for n in range(20)]
    assert len(bank.sent) == 20


async def test_one_unknown_outcome_among_gathered_effects_halts_the_run_and_the_others_are_kept(store, ledger):
    lost = Bank(loses_its_reply)
    bank = Bank()

    @durable(goal_id="job", store=store, sync="process")
    async def job():
        acts = (ledger.arun(SHOP, f"k{n}", one, ARGUMENTS) for n, one in enumerate([bank, lost, bank]))
        found = await asyncio.gather(*acts, return_exceptions=True)
        return [type(one).__name__ for one in found]

    for _ in range(2):
        with pytest.raises(UnknownOutcome):
            await job()
    assert (len(bank.sent), len(lost.sent)) == (2, 1)
    ledger.resolve(SHOP, "k1", outcome="failed", evidence="bank statement", by="carol")
    assert await job() == ["dict", "IntentFailed", "dict"]
    assert (len(bank.sent), len(lost.sent)) == (2, 1)


def test_one_action_asked_for_by_two_runs_happens_once(store, ledger, bank):
    def body(n):
        return ledger.run(SHOP, KEY, bank, ARGUMENTS)

    job = durable(goal_id=lambda n: f"job-{n}", store=store, sync="process")(body)
    assert [job(n) for n in range(3)] == [RESULT] * 3
    assert len(bank.sent) == 1


def test_a_marker_and_an_intent_of_one_name_are_two_things(store, ledger, bank):
    @durable(goal_id="job", store=store, sync="process")
    def job():
        with atomic_marker(KEY) as marker:
            if marker:
                marker.record(1)
        return ledger.run(SHOP, KEY, bank, ARGUMENTS), marker.result

    assert job()[0] == RESULT
    assert len(bank.sent) == 1


def test_a_crash_of_the_run_after_the_effect_is_recorded_goes_on_behind_it(store, ledger, bank):
    dies = True

    @durable(goal_id="job", store=store, sync="process")
    def job():
        result = ledger.run(SHOP, KEY, bank, ARGUMENTS)
        if dies:
            crash()
        return result

    crashes(job)
    dies = False
    assert job() == RESULT
    assert len(bank.sent) == 1


async def test_a_sync_effect_in_an_async_run_is_journaled_too(store, ledger, bank):
    later = Once()

    @durable(goal_id="job", store=store, sync="process")
    async def job():
        result = ledger.run(SHOP, KEY, bank, ARGUMENTS)
        await async_step("later", later)
        return result

    with pytest.raises(Ends):
        await job()
    assert await job() == RESULT
    assert len(bank.sent) == 1
    assert ledger.get(SHOP, KEY).run_id == job.runs.show().id


def test_an_event_loop_inside_a_sync_run_may_act_in_it(store, ledger, bank):
    later = Once()

    @durable(goal_id="job", store=store, sync="process")
    def job():
        async def both():
            return await asyncio.gather(*(ledger.arun(SHOP, key, bank, ARGUMENTS) for key in (KEY, "other")))

        found = asyncio.run(both())
        step("later", later)
        return found

    with pytest.raises(Ends):
        job()
    assert job() == [RESULT, {"refunded": 1200, "to": "other"}]
    assert len(bank.sent) == 2


async def test_a_cancelled_run_leaves_the_outcome_unknown_and_the_next_drive_finds_the_late_result(store, ledger):
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def waits(bank, dispatch):
        begun.set()
        assert go_on.wait(PATIENCE)
        return bank.act(dispatch)

    bank = capable(waits)

    @durable(goal_id="job", store=store, sync="process")
    async def job():
        try:
            return await ledger.arun(SHOP, KEY, bank, ARGUMENTS)
        finally:
            ended.set()

    task = asyncio.create_task(job())
    assert await asyncio.to_thread(begun.wait, PATIENCE)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
    assert ledger.get(SHOP, KEY).state == "UNKNOWN"
    go_on.set()
    await threads_ended()
    assert await job() == RESULT
    assert len(bank.effects) == 1
