"""What an outcome does to the run that asked for it: an unknown one halts it, and a failure is replayed as the same branch."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from letitloop import Approval, ApprovalRequired, InFlight, IntentFailed, Retry, UnknownOutcome, async_step, step
from tests.effects.acting import (
    ARGUMENTS,
    KEY,
    RESULT,
    SHOP,
    Bank,
    does_not_send,
    in_flight,
    loses_its_reply,
    never_arrives,
    raises,
    rejects,
)
from tests.effects.in_runs.programs import Act, Do, Ends, Once

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
