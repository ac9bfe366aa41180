"""A replay asks the ledger and not the provider, has the same results, and changed inputs take no effect back."""

from __future__ import annotations

import os

import pytest

from letitloop import (
    ActionConflict,
    IntentFailed,
    Ledger,
    StepChanged,
    UnknownOutcome,
    atomic_marker,
    current_run,
    durable,
    scope,
    step,
)
from letitloop.effects.provider import Succeeded
from letitloop.testing import assert_replayable
from tests.cli.stores import lil
from tests.effects.acting import ARGUMENTS, KEY, RESULT, SHOP, Bank, loses_its_reply, rejects, returns, run
from tests.effects.in_runs.programs import Act, Do, Ends, Once, the_durable


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


@pytest.mark.parametrize("how", ["in it", "in a step in it", "in a scope in it", "a marker", "in the second of two"])
def test_a_rerun_of_a_step_with_an_effect_inside_is_refused(store, ledger, bank, how):
    """Its own record comes after what was done in it."""
    given, marked = ["one"], []

    def act(value):
        run(ledger, bank, key=f"order/{value}")
        return value

    def work(value):
        if how == "in a step in it":
            return step("act", act, value)
        if how == "in a scope in it":
            with scope("part"):
                return act(value)
        if how == "a marker":
            with atomic_marker("mail") as marker:
                if marker:
                    marked.append(value)
                    marker.record(1)
            return value
        return act(value)

    @durable(goal_id="job", store=store, on_change="rerun")
    def job():
        if how == "in the second of two":
            step("work", str, "other")
        step("work", work, given[0])
        raise Ends

    with pytest.raises(Ends):
        job()
    given[0] = "two"
    with pytest.raises(StepChanged, match="mail" if how == "a marker" else "order"):
        job()
    assert len(bank.sent) + len(marked) == 1


def test_a_rerun_of_a_step_beside_one_with_an_effect_is_done(store, ledger, bank):
    given, done = ["one"], []

    def work(value):
        done.append(value)
        if value == "acts":
            run(ledger, bank)

    @durable(goal_id="job", store=store, on_change="rerun")
    def job():
        step("work", work, "acts")
        step("work", work, given[0])
        raise Ends

    with pytest.raises(Ends):
        job()
    given[0] = "two"
    with pytest.raises(Ends):
        job()
    assert done == ["acts", "one", "two"]


def test_effects_in_later_parts_are_named_where_a_rerun_is_offered(store, ledger, bank):
    given = [1]

    @durable(goal_id="job", store=store)
    def job():
        with scope("first"):
            step("ask", str, given[0])
        for number in range(5):
            with scope(f"turn {number}"):
                run(ledger, bank, key=f"order/{number}")
        raise Ends

    with pytest.raises(Ends):
        job()
    given[0] = 2
    with pytest.raises(StepChanged, match=r"on_change='rerun', or .* begun later \(turn.0/order%2F0, .* and 2 more\): they stay"):
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
