"""Intents in async code: cancellation wherever a task waits, late results, threads, loops; and nothing blocks the event loop."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar

import pytest

from letitloop import InFlight, IntentFailed, IntentNotFound, Ledger, MemoryStore, UnknownOutcome
from letitloop.effects import ledger_file
from letitloop.effects.provider import NotExecuted, NotFound, Unknown
from tests.effects.acting import (
    ARGUMENTS,
    KEY,
    PATIENCE,
    RESULT,
    SHOP,
    Bank,
    at,
    capable,
    kinds,
    loses_its_reply,
    never_arrives,
    rejects,
    run,
    threads_ended,
)
from tests.interrupts import in_memory


@pytest.fixture
def ledger():
    with in_memory() as path:
        yield Ledger(f"{path}/actions.db")


def arun(ledger, bank, key=KEY, **options):
    return ledger.arun(SHOP, key, bank, ARGUMENTS, **options)


class AsyncBank(Bank):
    """Acts on the event loop, and waits for leave before and after."""

    def __init__(self, *says, **options):
        super().__init__(*says, **options)
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()

    execute = None

    async def aexecute(self, dispatch):
        self.sent.append(dispatch)
        self.begun.set()
        await self.go_on.wait()
        reply = (self.says.pop(0) if self.says else Bank.act)(self, dispatch)
        await asyncio.sleep(0)
        return reply


class SlowBank(Bank):
    """Acts on a thread, and waits for leave there."""

    def __init__(self, *says, **options):
        super().__init__(*says, **options)
        self.begun, self.go_on, self.ended = threading.Event(), threading.Event(), threading.Event()
        self.threads = []

    def execute(self, dispatch):
        self.threads.append(threading.current_thread())
        self.begun.set()
        assert self.go_on.wait(PATIENCE)
        try:
            return super().execute(dispatch)
        finally:
            self.ended.set()

    async def has_begun(self):
        assert await asyncio.to_thread(self.begun.wait, PATIENCE)

    async def has_ended(self):
        """Wait until its thread has given its result to whoever takes it, and that has been kept."""
        assert await asyncio.to_thread(self.ended.wait, PATIENCE)
        await threads_ended()


# --- who acts where ----------------------------------------------------------------------------------------------------------


async def test_an_async_provider_acts_on_the_loop_s_thread_and_a_plain_one_does_not(ledger):
    where = []

    class Here(Bank):
        async def aexecute(self, dispatch):
            where.append(threading.current_thread())
            return self.act(dispatch)

    await arun(ledger, Here(), "a")
    await arun(ledger, Bank(lambda bank, dispatch: (where.append(threading.current_thread()), bank.act(dispatch))[1]), "b")
    assert where[0] is threading.current_thread()
    assert where[1] is not threading.current_thread()


async def test_async_lookups_are_awaited_and_plain_ones_asked_on_a_thread(ledger):
    where = []

    class Asks(Bank):
        async def areconcile(self, dispatch):
            await asyncio.sleep(0)
            where.append("areconcile")
            return NotFound()

        async def atombstone(self, dispatch):
            where.append("atombstone")
            return NotExecuted("tombstoned", "its key is occupied")

    with pytest.raises(IntentFailed):
        await arun(ledger, Asks(never_arrives, lookup="strong", tombstone=True))
    assert where == ["areconcile", "atombstone"]
    plain = capable(never_arrives)
    with pytest.raises(IntentFailed):
        await arun(ledger, plain, "b")
    assert plain.asked == ["reconcile", "tombstone"]


async def test_a_plain_provider_sees_the_context_of_its_caller(ledger):
    who = ContextVar("who", default="nobody")
    seen = []
    who.set("ada")
    await arun(ledger, Bank(lambda bank, dispatch: (seen.append(who.get()), bank.act(dispatch))[1]))
    assert seen == ["ada"]


async def test_a_provider_without_a_sync_side_does_for_all_async_verbs(ledger):
    bank = AsyncBank(window=60)
    bank.go_on.set()
    bank.says.append(lambda bank, dispatch: Unknown("lost"))
    with pytest.raises(UnknownOutcome):
        await arun(ledger, bank)
    assert await ledger.aresend(SHOP, KEY, bank) == RESULT
    bank.says.append(rejects)
    with pytest.raises(IntentFailed):
        await arun(ledger, bank, "b")
    assert await ledger.aretry_failed(SHOP, "b", bank) == {"refunded": 1200, "to": "b"}


@pytest.mark.parametrize("error", [ValueError, StopIteration, StopAsyncIteration, TimeoutError, asyncio.TimeoutError, OSError])
@pytest.mark.parametrize("where", ["thread", "loop"])
async def test_whatever_exception_it_raises_the_outcome_is_unknown(ledger, where, error):
    class Here(Bank):
        async def aexecute(self, dispatch):
            self.sent.append(dispatch)
            raise error("odd")

    def there(bank, dispatch):
        raise error("odd")

    with pytest.raises(UnknownOutcome, match=r"odd|coroutine raised"):
        await arun(ledger, Here() if where == "loop" else Bank(there))
    assert ledger.get(SHOP, KEY).state == "UNKNOWN"


async def test_what_an_async_provider_returns_that_is_no_reply_is_unknown(ledger):
    with pytest.raises(UnknownOutcome, match="no reply"):
        await arun(ledger, ReturnsNothing())
    assert ledger.get(SHOP, KEY).state == "UNKNOWN"


class ReturnsNothing(Bank):
    async def aexecute(self, dispatch):
        return None


# --- cancellation ------------------------------------------------------------------------------------------------------------


async def cancelled(task):
    task.cancel("enough")
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, PATIENCE)


async def test_a_task_that_is_cancelled_before_it_began_leaves_nothing(ledger):
    bank = Bank()
    task = asyncio.create_task(arun(ledger, bank))
    await cancelled(task)
    with pytest.raises(IntentNotFound):
        ledger.get(SHOP, KEY)
    assert await arun(ledger, bank) == RESULT


async def test_a_task_that_is_cancelled_while_it_claims_has_sent_nothing_and_says_so(ledger):
    reached, go_on = threading.Event(), threading.Event()

    def wait():
        if not reached.is_set():
            reached.set()
            assert go_on.wait(PATIENCE)

    bank = Bank()
    await arun(ledger, bank, "before")
    with at("ledger.commit", wait):
        task = asyncio.create_task(arun(ledger, bank))
        assert await asyncio.to_thread(reached.wait, PATIENCE)
        task.cancel()
        asyncio.get_running_loop().call_soon(go_on.set)
        with pytest.raises(asyncio.CancelledError):
            await task
    assert len(bank.sent) == 1
    intent = ledger.get(SHOP, KEY)
    assert (intent.state, intent.kind) == ("FAILED", "not_sent")
    assert await arun(ledger, bank) == RESULT


async def test_a_task_that_is_cancelled_while_an_async_provider_acts_leaves_the_outcome_unknown(ledger):
    bank = AsyncBank()
    task = asyncio.create_task(arun(ledger, bank))
    await bank.begun.wait()
    assert ledger.get(SHOP, KEY).state == "DISPATCHED"
    await cancelled(task)
    intent = ledger.get(SHOP, KEY)
    assert intent.state == "UNKNOWN"
    assert "Cancelled" in intent.reason
    with pytest.raises(UnknownOutcome):
        await arun(ledger, bank)
    assert len(bank.sent) == 1


async def test_a_result_that_comes_after_the_cancellation_is_kept_and_settles_what_is_unknown(ledger):
    bank = SlowBank()
    task = asyncio.create_task(arun(ledger, bank))
    await bank.has_begun()
    await cancelled(task)
    assert ledger.get(SHOP, KEY).state == "UNKNOWN"
    bank.go_on.set()
    await bank.has_ended()
    assert kinds(ledger)[-2:] == ["late_result", "succeeded"]
    assert await arun(ledger, bank) == RESULT
    assert len(bank.sent) == 1


@pytest.mark.parametrize("reply", [rejects, lambda bank, dispatch: Unknown("502"), never_arrives, lambda bank, dispatch: None])
async def test_what_is_no_success_and_comes_after_the_cancellation_settles_nothing(ledger, reply):
    bank = SlowBank(reply)
    task = asyncio.create_task(arun(ledger, bank))
    await bank.has_begun()
    await cancelled(task)
    bank.go_on.set()
    await bank.has_ended()
    intent = ledger.get(SHOP, KEY)
    assert intent.state in ("UNKNOWN", "FAILED")
    assert intent.state == "UNKNOWN" or intent.kind == "rejected", "its own owner's certificate, of its only sending"
    assert ledger.anomalies() == []


async def test_a_late_result_of_what_a_person_called_failed_is_an_anomaly(ledger):
    bank = SlowBank()
    task = asyncio.create_task(arun(ledger, bank))
    await bank.has_begun()
    await cancelled(task)
    ledger.resolve(SHOP, KEY, outcome="failed", evidence="case 7", by="carol")
    bank.go_on.set()
    await bank.has_ended()
    (anomaly,) = ledger.anomalies()
    assert anomaly.evidence["what"] == "contradiction"
    assert ledger.get(SHOP, KEY).state == "FAILED"


async def test_a_result_that_was_on_its_way_to_the_loop_when_the_task_was_cancelled_is_not_lost(ledger):
    bank = SlowBank()
    task = asyncio.create_task(arun(ledger, bank))
    await bank.has_begun()
    bank.go_on.set()
    assert bank.ended.wait(PATIENCE)  # here, not on a thread: the loop must not take what the provider's thread gives it
    bank.threads[-1].join(PATIENCE)
    await cancelled(task)
    await threads_ended()
    assert ledger.get(SHOP, KEY).state == "SUCCEEDED"
    assert await arun(ledger, bank) == RESULT
    assert len(bank.sent) == 1


async def test_a_task_that_is_cancelled_while_the_outcome_is_recorded_has_it_recorded(ledger):
    reached, go_on = threading.Event(), threading.Event()
    commits = []

    def wait():
        commits.append(1)
        if len(commits) == 2:
            reached.set()
            assert go_on.wait(PATIENCE)

    bank = Bank()
    await arun(ledger, bank, "before")
    with at("ledger.commit", wait):
        task = asyncio.create_task(arun(ledger, bank))
        assert await asyncio.to_thread(reached.wait, PATIENCE)
        task.cancel()
        asyncio.get_running_loop().call_soon(go_on.set)
        with pytest.raises(asyncio.CancelledError):
            await task
    assert ledger.get(SHOP, KEY).state == "SUCCEEDED"
    assert ledger.get(SHOP, KEY).result == RESULT
    assert ledger.anomalies() == []
    assert await arun(ledger, bank) == RESULT


@pytest.mark.parametrize("method", ["reconcile", "tombstone"])
async def test_a_task_that_is_cancelled_while_it_asks_leaves_the_outcome_unknown_and_can_ask_again(ledger, method):
    bank = capable(never_arrives)
    begun, go_on = threading.Event(), threading.Event()
    original = getattr(bank, method)

    def waits(dispatch):
        begun.set()
        assert go_on.wait(PATIENCE)
        return original(dispatch)

    setattr(bank, method, waits)
    task = asyncio.create_task(arun(ledger, bank))
    assert await asyncio.to_thread(begun.wait, PATIENCE)
    await cancelled(task)
    assert ledger.get(SHOP, KEY).state == "UNKNOWN"
    go_on.set()
    assert (await ledger.areconcile(SHOP, KEY, bank)).state == "FAILED"


@pytest.mark.parametrize("times", [2, 3, 5])
async def test_a_task_that_is_cancelled_again_and_again_is_settled_all_the_same(ledger, times):
    bank = AsyncBank()
    task = asyncio.create_task(arun(ledger, bank))
    await bank.begun.wait()
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ledger.get(SHOP, KEY).state == "UNKNOWN"


async def test_a_task_that_is_cancelled_at_any_turn_of_the_loop_is_in_a_true_state_and_recovers(ledger):
    """The loop's turns are the places where a task can be cancelled: each is tried, until the action is done before."""
    turns = 0
    while True:
        key = f"k{turns}"
        bank = capable()
        task = asyncio.create_task(arun(ledger, bank, key, retry=("not_sent", "tombstoned")))
        for _ in range(turns):
            await asyncio.sleep(0)
        done = task.done()
        task.cancel()
        await asyncio.wait([task])
        try:
            state = ledger.get(SHOP, key).state
        except IntentNotFound:
            state = None
            assert not bank.sent
        assert state != "DISPATCHED"
        for _ in range(3):
            try:
                found = await arun(ledger, bank, key, retry=("not_sent", "tombstoned"))
            except (IntentFailed, InFlight):
                continue
            break
        assert found == {"refunded": 1200, "to": key}
        assert len(bank.effects) == 1
        if done or turns > 300:
            break
        turns += 1
    assert turns > 2


async def test_a_time_limit_around_it_is_a_cancellation(ledger):
    """One that ends the moment the provider has begun."""
    bank = AsyncBank()
    task = asyncio.ensure_future(arun(ledger, bank))
    await bank.begun.wait()
    with pytest.raises((TimeoutError, asyncio.TimeoutError)):
        await asyncio.wait_for(task, 0.001)
    assert ledger.get(SHOP, KEY).state == "UNKNOWN"


def test_a_loop_that_ends_under_a_task_leaves_the_outcome_unknown_for_the_next(ledger):
    bank = SlowBank()

    async def is_abandoned():
        task = asyncio.create_task(arun(ledger, bank))
        await bank.has_begun()
        return task

    asyncio.run(is_abandoned())
    assert ledger.get(SHOP, KEY).state == "UNKNOWN"
    bank.go_on.set()
    assert bank.ended.wait(PATIENCE)
    bank.threads[-1].join(PATIENCE)
    assert ledger.get(SHOP, KEY).state == "SUCCEEDED"
    assert asyncio.run(arun(ledger, bank)) == RESULT


def test_a_coroutine_that_is_thrown_away_in_the_middle_leaves_an_outcome_that_the_next_one_finds_open(ledger):
    bank = AsyncBank(lookup="strong")
    loop = asyncio.new_event_loop()
    coroutine = arun(ledger, bank)

    async def begins():
        task = asyncio.ensure_future(coroutine)
        await bank.begun.wait()
        return task

    task = loop.run_until_complete(begins())
    coroutine.close()
    assert ledger.get(SHOP, KEY).state in ("DISPATCHED", "UNKNOWN")
    task.cancel()
    loop.run_until_complete(asyncio.wait([task]))
    loop.close()
    with pytest.raises(UnknownOutcome):
        run(ledger, Bank())
    assert len(bank.sent) == 1


def test_a_coroutine_that_is_never_awaited_has_done_nothing(ledger):
    arun(ledger, Bank()).close()
    assert ledger.list() == []


# --- several tasks and loops -------------------------------------------------------------------------------------------------


async def test_of_eight_tasks_on_one_key_one_acts_and_the_others_are_told_that_it_does(ledger):
    bank = AsyncBank()
    first = asyncio.create_task(arun(ledger, bank))
    await bank.begun.wait()
    others = await asyncio.gather(*(arun(ledger, bank) for _ in range(7)), return_exceptions=True)
    assert {type(one) for one in others} == {InFlight}
    bank.go_on.set()
    assert await first == RESULT
    assert await asyncio.gather(*(arun(ledger, bank) for _ in range(7))) == [RESULT] * 7
    assert len(bank.sent) == 1


async def test_a_sync_caller_on_another_thread_meets_the_same_intent(ledger):
    bank = AsyncBank()
    task = asyncio.create_task(arun(ledger, bank))
    await bank.begun.wait()
    with pytest.raises(InFlight):
        await asyncio.to_thread(run, ledger, Bank())
    bank.go_on.set()
    assert await task == RESULT
    assert await asyncio.to_thread(run, ledger, Bank()) == RESULT


@pytest.mark.parametrize("memory", [True, False])
def test_two_loops_on_two_threads_share_a_ledger(ledger, memory):
    ledger = Ledger(store=MemoryStore()) if memory else ledger
    bank = Bank()
    start = threading.Barrier(2)
    found = {}

    async def many(who):
        return await asyncio.gather(*(arun(ledger, bank, f"{who}-{n}") for n in range(20)))

    def thread(who):
        start.wait(PATIENCE)
        found[who] = asyncio.run(many(who))

    threads = [threading.Thread(target=thread, args=(who,)) for who in "ab"]
    for one in threads:
        one.start()
    for one in threads:
        one.join(PATIENCE)
    assert found == {who: [{"refunded": 1200, "to": f"{who}-{n}"} for n in range(20)] for who in "ab"}
    assert len(bank.sent) == 40


def test_one_ledger_serves_one_loop_after_another(ledger):
    bank = Bank()
    for _ in range(3):
        assert asyncio.run(arun(ledger, bank)) == RESULT
    assert len(bank.sent) == 1


# --- the event loop goes on --------------------------------------------------------------------------------------------------


async def heartbeats(n):
    """Return once the loop has turned so often."""
    for _ in range(n):
        await asyncio.sleep(0)


@pytest.mark.parametrize("blocks", ["execute", "reconcile", "tombstone"])
async def test_the_loop_goes_on_while_a_plain_provider_blocks(ledger, blocks):
    """The provider is let go by a task of the same loop: if that could not run, neither would end."""
    bank = capable(never_arrives if blocks == "tombstone" else loses_its_reply)
    begun, go_on = threading.Event(), threading.Event()
    original = getattr(bank, blocks)

    def waits(dispatch):
        begun.set()
        assert go_on.wait(PATIENCE), "the loop was blocked"
        return original(dispatch)

    setattr(bank, blocks, waits)

    async def lets_go():
        while not begun.is_set():
            await asyncio.sleep(0)
        await heartbeats(100)
        go_on.set()

    found, _ = await asyncio.gather(arun(ledger, bank), lets_go(), return_exceptions=True)
    assert found == RESULT or isinstance(found, IntentFailed)


async def test_the_loop_goes_on_while_another_process_holds_the_ledger_s_write_lock(ledger):
    bank = Bank()
    await arun(ledger, bank, "before")
    opening = ledger_file.open_ledger(ledger.location)
    handle = opening.fs.open(ledger.location.removeprefix("sqlite:") + ".wlock", write=True)
    assert opening.fs.lock(handle, wait=False)
    freed = threading.Event()

    def free():
        if not freed.is_set():
            freed.set()
            opening.fs.unlock(handle)

    # should the loop be blocked, this thread ends that, and the test fails instead of waiting for ever
    rescue = threading.Timer(5, free)
    rescue.start()

    async def lets_go():
        await heartbeats(500)
        on_time = not freed.is_set()
        free()
        return on_time

    verbs = [
        arun(ledger, bank, "a"),
        arun(ledger, bank, "b"),
        arun(ledger, bank, "before"),
        arun(ledger, bank, "c", redact=("currency",)),
        ledger.aget(SHOP, "before"),
        ledger.alist(),
        ledger.aauthorize("refund"),
    ]
    try:
        *_, on_time = await asyncio.gather(*verbs, lets_go())
    finally:
        rescue.cancel()
        free()
        opening.fs.close(handle)
    assert on_time, "the loop was blocked"


async def test_the_first_use_opens_the_file_off_the_loop(monkeypatch):
    with in_memory() as path:
        threads = set()
        original = ledger_file.LedgerFile.__init__

        def noted(self, *args):
            threads.add(threading.current_thread())
            original(self, *args)

        monkeypatch.setattr(ledger_file.LedgerFile, "__init__", noted)
        await arun(Ledger(f"{path}/a.db"), Bank())
        assert threads
        assert threading.current_thread() not in threads
