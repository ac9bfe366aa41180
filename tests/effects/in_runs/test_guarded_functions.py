"""A guarded function inside a run is journaled as what is run through the ledger is."""

from __future__ import annotations

import asyncio

import pytest

from letitloop import Ledger, MemoryStore, UnknownOutcome, async_step, durable, effect, step
from letitloop.testing import assert_replayable, plain
from tests.effects.acting import ARGUMENTS, KEY, RESULT, SHOP
from tests.effects.in_runs.programs import Ends, Once


def test_a_guarded_function_in_a_run_is_journaled_as_the_ledger_s_run_is(store, ledger):
    acted = []
    later = Once()

    @effect(key="mail/{to}")
    def mail(to: str) -> str:
        acted.append(to)
        return f"mailed {to}"

    @durable(goal_id="job", store=store, sync="process")
    def job():
        found = [mail("ada"), mail("ben"), mail("ada")]
        step("later", later)
        return found

    with pytest.raises(Ends):
        job()
    assert job() == ["mailed ada", "mailed ben", "mailed ada"]
    assert acted == ["ada", "ben"]
    assert {intent.key for intent in ledger.list()} == {"mail/ada", "mail/ben"}, "the run's own ledger"
    assert_replayable(job)


async def test_a_guarded_async_function_in_a_run_is_journaled_too(store, ledger):
    acted = []
    later = Once()

    @effect(key="mail/{to}")
    async def mail(to: str) -> str:
        acted.append(to)
        await asyncio.sleep(0)
        return f"mailed {to}"

    @durable(goal_id="job", store=store, sync="process")
    async def job():
        found = await asyncio.gather(*(mail(to) for to in ("ada", "ben", "cleo")))
        await async_step("later", later)
        return found

    with pytest.raises(Ends):
        await job()
    assert await job() == ["mailed ada", "mailed ben", "mailed cleo"]
    assert sorted(acted) == ["ada", "ben", "cleo"]
    assert len(ledger.list()) == 3


def test_a_guarded_function_that_raises_in_a_run_halts_it(store, ledger):
    acted = []

    @effect(key="mail/{to}")
    def mail(to: str) -> str:
        acted.append(to)
        raise ConnectionError("lost")

    @durable(goal_id="job", store=store, sync="process")
    def job():
        try:
            mail("ada")
        except Exception:
            return "swallowed"

    for _ in range(2):
        with pytest.raises(UnknownOutcome):
            job()
    assert acted == ["ada"]


def test_where_steps_are_plain_calls_effects_still_go_through_the_ledger(store, bank):
    ledger = Ledger(store=MemoryStore())

    @durable(goal_id="job", store=store, sync="process")
    def job():
        return ledger.run(SHOP, KEY, bank, ARGUMENTS)

    with plain():
        assert job() == RESULT
        assert job() == RESULT
    assert len(bank.sent) == 1
