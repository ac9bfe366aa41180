"""What neither a model nor code that catches everything may keep from the caller: outcomes that are unknown, logs that fail."""

from __future__ import annotations

import threading

import pytest
from smolagents import CodeAgent

from letitloop import DecodeError, LogWriteFailed, UnencodableError, UnknownOutcome, effect
from tests.effects.bank import Bank
from tests.smolagents.conftest import Died
from tests.smolagents.helpers import QUIET, DyingOnce, calling_agent, code_agent
from tests.smolagents.scripted import Pay, Probe, Script, calls, code


def bank_policy(bank, **options):
    return {"pay": effect(key="invoice/{number}", provider=bank, **options)}


def test_of_parallel_calls_one_fails_and_the_effect_is_not_repeated(tmp_path):
    bank = Bank(str(tmp_path / "bank"), "window")
    pay = {"number": "1", "amount": 5}

    def broken(what):
        raise ValueError("no")

    agent, _ = calling_agent(
        [
            calls(("1", "pay", pay), ("2", "probe", {"what": "x"})),
            calls(("3", "pay", pay)),
            calls(("4", "final_answer", {"answer": "x"})),
        ],
        [Pay(), Probe(answer=broken)],
        policies=bank_policy(bank),
    )
    agent.run("go")
    assert len(bank.done()) == 1


def unknown_bank(tmp_path):
    return Bank(str(tmp_path / "bank"), "opaque", "lost")


PAY = "try:\n    pay(number='1', amount=5)\nexcept Exception:\n    pass\nfinal_answer('paid')"


def test_unknown_reaches_the_caller_of_a_code_agent(tmp_path, next_life):
    bank = unknown_bank(tmp_path)
    for _ in range(2):
        agent, model = code_agent([PAY], [Pay()], policies=bank_policy(bank))
        with pytest.raises(UnknownOutcome):
            agent.run("go")
        next_life()
    assert model.asked == []
    assert len(bank.done()) == 1


def test_unknown_reaches_the_caller_of_a_tool_calling_agent(tmp_path):
    agent, model = calling_agent(
        [calls(("1", "pay", {"number": "1", "amount": 5}))], [Pay()], policies=bank_policy(unknown_bank(tmp_path))
    )
    with pytest.raises(UnknownOutcome):
        agent.run("go")
    assert len(model.asked) == 1


def test_unknown_is_not_lost_beside_a_call_that_fails(tmp_path):
    def broken(what):
        raise ValueError("no")

    agent, model = calling_agent(
        [calls(("1", "probe", {"what": "x"}), ("2", "pay", {"number": "1", "amount": 5}))],
        [Pay(), Probe(answer=broken)],
        policies=bank_policy(unknown_bank(tmp_path)),
    )
    with pytest.raises(UnknownOutcome):
        agent.run("go")
    assert len(model.asked) == 1


@pytest.mark.parametrize("parent", ["code", "calls"])
def test_unknown_reaches_the_caller_through_a_managed_agent(tmp_path, parent):
    helper = CodeAgent(tools=[Pay()], model=Script([code(PAY)]), name="helper", description="helps", **QUIET)
    policies = bank_policy(unknown_bank(tmp_path))
    if parent == "code":
        agent, model = code_agent(["final_answer(helper(task='pay'))"], managed_agents=[helper], policies=policies)
    else:
        agent, model = calling_agent([calls(("1", "helper", {"task": "pay"}))], managed_agents=[helper], policies=policies)
    with pytest.raises(UnknownOutcome):
        agent.run("go")
    assert len(model.asked) == 1


def test_unknown_that_is_settled_lets_the_same_process_go_on(tmp_path):
    from letitloop import Ledger

    bank = unknown_bank(tmp_path)
    agent, model = code_agent(["x = 1", PAY], [Pay()], policies=bank_policy(bank))
    with pytest.raises(UnknownOutcome) as caught:
        agent.run("go")
    Ledger().resolve(
        caught.value.namespace, caught.value.key, outcome="succeeded", by="ada", evidence="the bank's list", result={"moved": 5}
    )
    assert agent.run("go") == "paid"
    assert len(model.asked) == 2
    assert len(bank.done()) == 1


def test_a_result_that_cannot_be_recorded_reaches_the_caller():
    agent, model = code_agent(["try:\n    probe(what=1)\nexcept Exception:\n    pass", "final_answer(1)"], [Probe(answer=open)])
    agent.tools["probe"].answer = lambda what: threading.Lock()
    with pytest.raises(UnencodableError, match="lock"):
        agent.run("go")
    assert len(model.asked) == 1


def test_what_cannot_be_read_any_more_reaches_the_caller(next_life):
    made = {}
    exec("import dataclasses\n@dataclasses.dataclass\nclass Gone:\n    n: int", made)
    made["Gone"].__module__ = __name__
    globals()["Gone"] = made["Gone"]
    steps = ["x = probe(what=1)", "die(what=1)\nfinal_answer(x.n)"]
    agent, _ = code_agent(steps, [Probe(answer=made["Gone"]), DyingOnce({"on": True})])
    with pytest.raises(Died):
        agent.run("go")
    next_life()
    del globals()["Gone"]
    agent, model = code_agent(steps, [Probe(), DyingOnce({"on": False})])
    with pytest.raises(DecodeError, match="Gone"):
        agent.run("go")
    assert model.asked == []


def test_a_disk_that_refuses_reaches_the_caller(monkeypatch):
    from letitloop.wal.log import Log

    append = Log.append

    def refuse(self, kind, key, payload, **options):
        if b"tool" in key:
            raise LogWriteFailed("the disk is full", path=self.path)
        return append(self, kind, key, payload, **options)

    monkeypatch.setattr(Log, "append", refuse)
    agent, model = code_agent(["try:\n    probe(what=1)\nexcept Exception:\n    pass", "final_answer(1)"], [Probe()])
    with pytest.raises(LogWriteFailed):
        agent.run("go")
    assert len(model.asked) == 1
