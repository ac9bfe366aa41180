"""Intents inside durable runs: a replay asks the ledger, a crash is reconciled, and nothing takes an effect back."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest

from letitloop import (
    ActionConflict,
    Approval,
    ApprovalRequired,
    DirectoryStore,
    InFlight,
    IntentFailed,
    Ledger,
    MemoryStore,
    Retry,
    StepChanged,
    StoreError,
    UnknownOutcome,
    async_step,
    atomic_marker,
    carry,
    current_run,
    durable,
    effect,
    scope,
    step,
)
from letitloop.effects.provider import Succeeded
from letitloop.testing import assert_replayable, plain
from tests.cli.stores import lil
from tests.effects.acting import (
    ARGUMENTS,
    KEY,
    PATIENCE,
    SHOP,
    Bank,
    at,
    capable,
    closed,
    commits_fail,
    does_not_send,
    in_flight,
    loses_its_reply,
    never_arrives,
    raises,
    rejects,
    returns,
)
from tests.interrupts import in_memory
from tests.runs.helpers import crash, crashes, kill, killed


@pytest.fixture
def store():
    with in_memory() as path:
        yield DirectoryStore(f"{path}/store")


@pytest.fixture
def ledger(store):
    return Ledger(store=store)


@pytest.fixture
def bank():
    return Bank()


RESULT = {"refunded": 1200, "to": KEY}


# --- one program, sync and async ---------------------------------------------------------------------------------------------


class Act(NamedTuple):
    """What a program asks for: an action through the ledger."""

    ledger: Ledger
    bank: Bank
    key: str = KEY
    options: dict | None = None
    arguments: dict = ARGUMENTS

    def sync(self):
        return self.ledger.run(SHOP, self.key, self.bank, self.arguments, **self.options or {})

    async def later(self):
        return await self.ledger.arun(SHOP, self.key, self.bank, self.arguments, **self.options or {})


class Do(NamedTuple):
    """What a program asks for: a step."""

    name: str
    fn: object
    arguments: tuple = ()

    def sync(self):
        return step(self.name, self.fn, *self.arguments)

    async def later(self):
        return await async_step(self.name, self.fn, *self.arguments)


@pytest.fixture(params=["sync", "async"])
def program(request, store):
    """Make a durable function of a generator that yields what is to be done; it is called without arguments."""

    def make(body, **options):
        options = {"goal_id": "job", "store": store, "sync": "process", "on_complete": "return", **options}

        @durable(**options)
        def job():
            plan = body()
            value, go_on = None, plan.send
            while True:
                try:
                    order = go_on(value)
                except StopIteration as done:
                    return done.value
                try:
                    value, go_on = order.sync(), plan.send
                except BaseException as exc:
                    value, go_on = exc, plan.throw

        @durable(**options)
        async def ajob():
            plan = body()
            value, go_on = None, plan.send
            while True:
                try:
                    order = go_on(value)
                except StopIteration as done:
                    return done.value
                try:
                    value, go_on = await order.later(), plan.send
                except BaseException as exc:
                    value, go_on = exc, plan.throw

        if request.param == "sync":
            return job

        def call():
            return asyncio.run(ajob())

        call.durable = ajob
        return call

    return make


def the_durable(job):
    return getattr(job, "durable", job)


class Ends(Exception):
    """The end of a drive that the next one goes on from."""


class Once:
    """A step that fails the first time."""

    def __init__(self, error=Ends):
        self.error, self.calls = error, 0

    def __call__(self):
        self.calls += 1
        if self.calls == 1:
            raise self.error
        return "done"


def logs(store):
    """Return the bytes of all logs of runs."""
    folder = os.path.join(store.root, "runs")
    found = b""
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), "rb") as file:
            found += file.read()
    return found


# --- replay ------------------------------------------------------------------------------------------------------------------


def test_a_replay_asks_the_ledger_and_not_the_provider(program, store, ledger):
    bank = Bank(returns(Succeeded({"secret-result": 1})))
    later = Once()

    def body():
        result = yield Act(ledger, bank)
        yield Do("later", later)
        return result

    job = program(body)
    with pytest.raises(Ends):
        job()
    assert b"secret-result" not in logs(store), "the log has a reference, the ledger has the result"
    assert job() == {"secret-result": 1}
    assert job() == {"secret-result": 1}
    assert (len(bank.sent), later.calls) == (1, 2)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_run_uses_its_store_s_ledger_unless_it_is_given_another(program, store, bank, tmp_path, elsewhere):
    given = Ledger(tmp_path / "actions.db") if elsewhere else Ledger()

    def body():
        return (yield Act(given, bank))

    assert program(body)() == RESULT
    assert [intent.key for intent in Ledger(store=store).list()] == ([] if elsewhere else [KEY])
    assert (tmp_path / "actions.db").exists() == elsewhere
    assert not os.path.exists(os.environ["LETITLOOP_STORE"])


def test_an_intent_knows_the_run_and_the_step_that_it_was_begun_in(program, ledger, bank):
    names = []

    def body():
        names.append(current_run().id)
        yield Act(ledger, bank)

    program(body)()
    intent = ledger.get(SHOP, KEY)
    assert intent.run_id == names[0]
    assert KEY.split("/")[0] in intent.step_key


def test_a_second_call_under_one_key_in_one_run_is_the_same_action(program, ledger, bank):
    def body():
        first = yield Act(ledger, bank)
        return first, (yield Act(ledger, bank))

    assert program(body)() == (RESULT, RESULT)
    assert len(bank.sent) == 1


def test_a_finished_run_that_is_started_anew_acts_no_second_time(program, ledger, bank):
    def body():
        return (yield Act(ledger, bank))

    job = program(body, on_complete="restart")
    assert [job() for _ in range(3)] == [RESULT] * 3
    assert len(bank.sent) == 1


def test_changed_arguments_of_an_effect_are_a_conflict_on_replay_too(program, ledger, bank):
    amount = 1200
    later = Once()

    def body():
        yield Act(ledger, bank, arguments={**ARGUMENTS, "amount_minor": amount})
        yield Do("later", later)

    for policy in ("raise", "rerun", "reuse"):
        job = program(body, on_change=policy)
        with pytest.raises((Ends, ActionConflict)):
            job()
        amount = 987654
        with pytest.raises(ActionConflict) as caught:
            job()
        assert caught.value.fields == ("amount_minor",)
        assert "987654" not in str(caught.value)
    assert len(bank.sent) == 1


def test_results_are_the_same_fresh_and_replayed(program, ledger):
    odd = {"a": (1, None), 7: {b"raw"}, "t": 1.5}
    bank = Bank(returns(Succeeded(odd)))
    seen = []
    later = Once()

    def body():
        seen.append((yield Act(ledger, bank)))
        yield Do("later", later)

    job = program(body)
    with pytest.raises(Ends):
        job()
    job()
    assert seen == [odd, odd]
    assert seen[0] is not seen[1]


def test_replayable_with_effects_and_nothing_is_called_or_changed(program, ledger):
    bank = Bank(rejects)
    names = ["first", "second"]

    def body():
        try:
            yield Act(ledger, bank, names[0])
        except IntentFailed as failed:
            return failed.kind, (yield Act(ledger, bank, names[1]))

    job = program(body)
    assert job()[0] == "rejected"
    before = ledger.list(), ledger.events(SHOP, "first"), ledger.events(SHOP, "second")
    assert_replayable(the_durable(job))
    assert (ledger.list(), ledger.events(SHOP, "first"), ledger.events(SHOP, "second")) == before
    assert len(bank.sent) == 2
    names[1] = "third"
    with pytest.raises(AssertionError, match="third"):
        assert_replayable(the_durable(job))
    assert len(bank.sent) == 2
    assert len(ledger.list()) == 2


def test_lil_show_tells_of_a_run_with_effects(program, store, ledger, bank):
    names = []

    def body():
        names.append(current_run().id)
        yield Act(ledger, bank)
        try:
            yield Act(ledger, Bank(rejects), "order-43/refund-1")
        except IntentFailed:
            return "done"

    program(body)()
    for options in ([], ["--json"]):
        text = lil("show", names[0], "--store", store.root, *options)
        assert "order-42" in text
        assert "order-43" in text
    assert "finished" in lil("runs", "--store", store.root) or "done" in lil("runs", "--store", store.root)


# --- crashes -----------------------------------------------------------------------------------------------------------------

POINTS = [
    "intent.in_run",
    "intent.before_claim",
    "intent.claimed",
    "intent.replied",
    "intent.before_settle",
    "ledger.commit",
    "intent.settled",
    "step.called",
    "step.recorded",
]


@pytest.mark.parametrize("point", POINTS)
def test_wherever_the_process_is_killed_the_next_drives_finish_with_one_effect(program, store, ledger, point):
    bank = capable(kept=os.path.join(os.path.dirname(store.root), "effects"))
    retry = {"retry": ("not_sent", "tombstoned")}

    def body():
        return (yield Act(ledger, bank, options=retry))

    ledger.run(SHOP, "before", bank)
    job = program(body)

    def dies():
        with at(point, kill):
            job()

    killed(dies)
    try:
        result = job()
    except IntentFailed:  # it was made certain that it had not happened
        assert ledger.get(SHOP, KEY).kind == "tombstoned"
        assert point == "intent.claimed"
        result = job()
    assert result == RESULT
    assert len(bank.keys) == 2


def test_a_process_killed_after_an_opaque_provider_acted_leaves_a_run_that_halts_until_it_is_resolved(program, store, ledger):
    bank = Bank(kept=os.path.join(os.path.dirname(store.root), "effects"))

    def body():
        return (yield Act(ledger, bank))

    job = program(body)

    def dies():
        with at("intent.replied", kill):
            job()

    killed(dies)
    for _ in range(2):
        with pytest.raises(UnknownOutcome):
            job()
    ledger.resolve(SHOP, KEY, outcome="succeeded", evidence="bank statement", by="carol", result="by hand")
    assert job() == "by hand"
    assert len(bank.keys) == 1


def test_a_ledger_that_cannot_be_written_after_the_dispatch_halts_the_run_and_the_next_drive_asks(program, ledger):
    bank = capable()

    def body():
        try:
            return (yield Act(ledger, bank))
        except Exception:
            return "swallowed"

    ledger.run(SHOP, "before", bank)
    job = program(body)
    with commits_fail(2), pytest.raises(UnknownOutcome):
        job()
    assert job() == RESULT
    assert len(bank.effects) == 2


def test_losing_the_log_loses_no_guard(program, store, ledger, bank):
    def body():
        return (yield Act(ledger, bank))

    job = program(body)
    job()
    shutil.rmtree(os.path.join(store.root, "runs"))
    assert job() == RESULT
    assert len(bank.sent) == 1


def remove_ledger(ledger, *, mark):
    closed(ledger)
    path = ledger.location.removeprefix("sqlite:")
    for suffix in ("", "-wal", "-shm", "-mark" if mark else ""):
        if os.path.exists(path + suffix):
            os.unlink(path + suffix)


@pytest.mark.parametrize("mark", [True, False])
def test_losing_the_ledger_is_noticed_by_whoever_replays(program, ledger, bank, mark):
    later = Once()

    def body():
        try:
            yield Act(ledger, bank)
        except Exception:
            pass
        yield Do("later", later)

    job = program(body)
    with pytest.raises(Ends):
        job()
    remove_ledger(ledger, mark=mark)
    if mark:
        with pytest.raises(UnknownOutcome, match="does not know it"):
            job()
        assert later.calls == 1, "no handler hides that"
    else:
        with pytest.raises(StoreError, match="another lay there"):
            program_without_handler(program, ledger, bank)()
    assert len(bank.sent) == 1


def program_without_handler(program, ledger, bank):
    def body():
        return (yield Act(ledger, bank))

    return program(body)


# --- an unknown outcome ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("handler", [Exception, BaseException])
def test_an_unknown_outcome_halts_the_run_whatever_the_program_catches(program, ledger, handler):
    bank = Bank(loses_its_reply)
    after = []

    def body():
        try:
            yield Act(ledger, bank)
        except handler:
            after.append("caught")
        try:
            yield Do("after", lambda: after.append("step"))
        except handler:
            after.append("caught again")
        try:
            yield Act(ledger, bank, "other")
        except handler:
            after.append("caught once more")
        return "went on"

    job = program(body)
    for _ in range(2):
        with pytest.raises(UnknownOutcome) as caught:
            job()
        assert caught.value.key == KEY
    assert "step" not in after
    assert len(bank.sent) == 1, "neither the open one again nor another one"
    ledger.resolve(SHOP, KEY, outcome="succeeded", evidence="bank statement", by="carol")
    assert job() == "went on"
    assert [one.key for one in bank.sent] == [KEY, "other"]


def test_a_retry_of_the_step_around_never_sends_again(program, ledger):
    bank = Bank(*[rejects] * 9)
    calls = []

    def around():
        calls.append(1)
        return ledger.run(SHOP, KEY, bank, ARGUMENTS)

    def body():
        return (yield Retried(around))

    with pytest.raises(IntentFailed):
        program(body)()
    assert (len(calls), len(bank.sent)) == (3, 1)
    assert len(ledger.events(SHOP, KEY)) == 3


class Retried(NamedTuple):
    fn: object

    def sync(self):
        return step("around", retry=Retry(attempts=3, backoff=0.0))(self.fn)()

    async def later(self):
        return await async_step("around", retry=Retry(attempts=3, backoff=0.0))(self.fn)()


@pytest.mark.parametrize("says", [loses_its_reply, never_arrives, raises(ValueError("odd"))])
def test_a_retry_of_the_step_around_an_unknown_outcome_does_not_happen(program, ledger, says):
    bank = Bank(*[says] * 9)
    calls = []

    def around():
        calls.append(1)
        return ledger.run(SHOP, KEY, bank, ARGUMENTS)

    def body():
        return (yield Retried(around))

    with pytest.raises(UnknownOutcome):
        program(body)()
    assert (len(calls), len(bank.sent)) == (1, 1)


def test_an_effect_inside_a_step_that_failed_after_it_happens_once(program, ledger, bank):
    later = Once()

    def around():
        result = ledger.run(SHOP, KEY, bank, ARGUMENTS)
        return result, later()

    def body():
        return (yield Do("around", around))

    job = program(body)
    with pytest.raises(Ends):
        job()
    assert job() == (RESULT, "done")
    assert len(bank.sent) == 1


# --- a failure ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("meanwhile", ["nothing", "allowed again", "done by another program"])
def test_a_failure_that_the_program_caught_replays_as_the_same_branch(program, ledger, meanwhile):
    bank = Bank(rejects)
    later = Once()
    seen = []

    def body():
        try:
            yield Act(ledger, bank)
        except IntentFailed as failed:
            seen.append((failed.kind, failed.namespace, failed.key, failed.certificate, failed.detail, str(failed)))
        yield Do("instead", str, ("other way",))
        yield Do("later", later)
        return "other way"

    job = program(body)
    with pytest.raises(Ends):
        job()
    if meanwhile != "nothing":
        ledger.retry_failed(SHOP, KEY)
    if meanwhile == "done by another program":
        ledger.run(SHOP, KEY, bank, ARGUMENTS)
    sent = len(bank.sent)
    assert job() == "other way"
    assert len(bank.sent) == sent
    assert seen[0] == seen[1]
    assert seen[0][:5] == ("rejected", SHOP, KEY, "the account is closed", {"code": 402})


def test_a_failure_that_ended_the_run_is_tried_again(program, ledger):
    bank = Bank(does_not_send, rejects)

    def body():
        return (yield Act(ledger, bank))

    job = program(body)
    with pytest.raises(IntentFailed, match="connection refused"):
        job()
    with pytest.raises(IntentFailed, match="the account is closed"):
        job()
    with pytest.raises(IntentFailed, match="the account is closed"):
        job()
    assert len(bank.sent) == 2
    ledger.retry_failed(SHOP, KEY)
    assert job() == RESULT
    assert [one.attempt for one in bank.sent] == [1, 2, 3]


def test_what_waits_for_an_approval_ends_the_run_and_the_next_drive_sends_it(program, ledger, bank):
    def body():
        return (yield Act(ledger, bank, options={"approval": Approval()}))

    job = program(body)
    for _ in range(2):
        with pytest.raises(ApprovalRequired):
            job()
    ledger.approve(SHOP, KEY, by="alice")
    assert job() == RESULT
    assert len(bank.sent) == 1


def test_what_another_one_is_carrying_out_ends_the_run_and_the_next_drive_has_its_result(program, ledger, bank):
    def body():
        return (yield Act(ledger, bank))

    job = program(body)
    with in_flight(ledger, bank), pytest.raises(InFlight):
        job()
    assert job() == RESULT
    assert len(bank.sent) == 1


# --- changed inputs ----------------------------------------------------------------------------------------------------------


def test_a_rerun_that_would_take_an_effect_back_is_refused(program, ledger, bank):
    given = 1
    later = Once()
    calls = []

    def body():
        yield Do("input", calls.append, (given,))
        yield Act(ledger, bank)
        yield Do("later", later)

    job = program(body, on_change="rerun")
    with pytest.raises(Ends):
        job()
    given = 2
    with pytest.raises(StepChanged, match="order-42") as caught:
        job()
    assert "take back effects" in str(caught.value)
    assert (calls, len(bank.sent), later.calls) == ([1], 1, 1)


@pytest.mark.parametrize("lost", [rejects, loses_its_reply])
def test_a_rerun_is_refused_too_where_the_effect_failed_or_is_open(program, ledger, lost):
    """The record of the attempt is what counts: what became of it may change."""
    given = 1
    bank = Bank(lost)

    def body():
        yield Do("input", str, (given,))
        yield Act(ledger, bank)

    job = program(body, on_change="rerun")
    with pytest.raises((IntentFailed, UnknownOutcome)):
        job()
    given = 2
    with pytest.raises(StepChanged):
        job()


def test_a_rerun_of_what_follows_the_effect_leaves_it_alone(program, ledger, bank):
    given = 1
    later = Once()

    def body():
        yield Act(ledger, bank)
        value = yield Do("input", str, (given,))
        yield Do("later", later)
        return value

    job = program(body, on_change="rerun")
    with pytest.raises(Ends):
        job()
    given = 2
    assert job() == "2"
    assert len(bank.sent) == 1


def test_after_lil_rewind_the_effect_is_asked_for_and_not_repeated(program, store, ledger, bank):
    names = []

    def body():
        names.append(current_run().id)
        value = yield Do("input", str, (1,))
        return value, (yield Act(ledger, bank))

    job = program(body)
    job()
    lil("rewind", names[0], "input", "--store", store.root, code=None)
    assert job() == ("1", RESULT)
    assert len(bank.sent) == 1


# --- scopes, threads, tasks --------------------------------------------------------------------------------------------------


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
    for thread in threading.enumerate():
        if thread.name == "letitloop-provider":
            await asyncio.to_thread(thread.join, PATIENCE)
    assert await job() == RESULT
    assert len(bank.effects) == 1


# --- a guarded function ------------------------------------------------------------------------------------------------------


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
