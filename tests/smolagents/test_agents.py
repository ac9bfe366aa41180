"""What is particular to smolagents: each trap that its lifecycle holds for a durable agent."""

from __future__ import annotations

import dataclasses
import os
import threading

import pandas
import PIL.Image
import pytest
from smolagents import CodeAgent, LocalPythonExecutor, Tool, ToolCallingAgent, local_python_executor, tool
from smolagents.agents import MultiStepAgent, RunResult
from smolagents.memory import ActionStep
from smolagents.utils import AgentGenerationError

from letitloop import (
    DecodeError,
    InvalidArgument,
    LogWriteFailed,
    StepChanged,
    Trusted,
    UnencodableError,
    UnknownOutcome,
    durable,
    effect,
    effect_context,
    step,
)
from letitloop.adapters.smolagents import SmolagentsWALCallback, durable_agent, restore_agent_memory, unwrap
from tests.effects.bank import Bank
from tests.smolagents.conftest import Died
from tests.smolagents.scripted import Pay, Probe, Script, Streaming, calls, code

QUIET = {"verbosity_level": -1}


class DyingOnce(Probe):
    """Ends the process, when ``switch`` is on."""

    def __init__(self, switch, name="die"):
        super().__init__(name=name)
        self.switch = switch

    def forward(self, what):
        if self.switch["on"]:
            raise Died
        return super().forward(what)


def code_agent(steps, tools=(), *, session="agent", callbacks=(), policies=None, model=Script, options=None, **kwargs):
    script = model([code(one) for one in steps])
    callback = SmolagentsWALCallback(session_id=session, tools=policies, **(options or {}))
    agent = CodeAgent(tools=list(tools), model=script, step_callbacks=[*callbacks, callback], **{**QUIET, **kwargs})
    return agent, script


def calling_agent(answers, tools=(), *, session="agent", policies=None, model=Script, **kwargs):
    script = model(answers)
    callback = SmolagentsWALCallback(session_id=session, tools=policies)
    return ToolCallingAgent(tools=list(tools), model=script, step_callbacks=[callback], **{**QUIET, **kwargs}), script


# --- wrapping ----------------------------------------------------------------------------------------------------------------


def test_an_agent_without_the_callback_is_untouched(tmp_path):
    SmolagentsWALCallback(session_id="somebody else's")
    probe, model = Probe(), Script([code("final_answer(probe(what=1))")])
    agent = CodeAgent(tools=[probe], model=model, **QUIET)
    executor = agent.python_executor
    assert agent.run("go") == "<1>"
    assert agent.model is model
    assert agent.python_executor is executor
    assert agent.tools["probe"] is probe
    assert not (tmp_path / "letitloop-store").exists()


def test_the_class_is_patched_once():
    SmolagentsWALCallback(session_id="one")
    first = MultiStepAgent.run
    SmolagentsWALCallback(session_id="two")
    assert MultiStepAgent.run is first


def test_wrapping_twice_changes_nothing():
    probe, model = Probe(), Script([code("final_answer(probe(what=1))")])
    agent = CodeAgent(tools=[probe], model=model, **QUIET)
    callback = SmolagentsWALCallback(session_id="twice")
    assert callback.bind(agent) is agent
    inside = agent.model, agent.python_executor, agent.tools["probe"], agent.run
    callback.bind(agent)
    durable_agent(agent)
    durable_agent(agent, session_id="twice")
    assert (agent.model, agent.python_executor, agent.tools["probe"], agent.run) == inside
    assert agent.run("go") == "<1>"
    assert model.asked == ["0 of " + model.asked[0].partition(" of ")[2]]
    assert probe.seen == [1]
    with pytest.raises(InvalidArgument, match="unwrap"):
        durable_agent(agent, session_id="another")


def test_unwrap_gives_the_stock_agent_back():
    helper = CodeAgent(tools=[], model=Script([]), name="helper", description="helps", **QUIET)
    probe, model = Probe(), Script([code("final_answer(probe(what=1))")])
    agent = CodeAgent(tools=[probe], model=model, managed_agents=[helper], final_answer_checks=[len], **QUIET)
    before = dict(vars(agent)), dict(vars(helper)), dict(agent.tools)
    executor = agent.python_executor
    durable_agent(agent, session_id="unwrap")
    assert agent.model is not model
    assert helper.model is not before[1]["model"]
    unwrap(agent)
    assert (dict(vars(agent)), dict(vars(helper)), dict(agent.tools)) == before
    assert agent.python_executor is executor
    agent.final_answer_checks = []
    assert agent.run("go") == "<1>"


def test_unwrap_takes_the_callback_away():
    agent, model = code_agent(["final_answer(1)"])
    unwrap(agent)
    agent.run("go")
    unwrap(agent).run("go")
    assert len(model.asked) == 2
    assert type(agent.model) is Script


def test_a_wrapped_agent_passes_for_what_it_is():
    agent, _ = code_agent(["final_answer(1)"], [Probe()], session="kinds")
    stock = CodeAgent(tools=[Probe()], model=Script([]), **QUIET)
    durable_agent(agent, session_id="kinds")
    assert isinstance(agent.model, Script)
    assert isinstance(agent.python_executor, LocalPythonExecutor)
    assert type(agent.model).__name__ == "Script"
    assert not hasattr(agent.model, "generate_stream")
    agent.model.temperature = 3
    assert agent.model.temperature == 3
    assert isinstance(agent.tools["probe"], Probe)
    assert agent.system_prompt == stock.system_prompt
    streaming, _ = code_agent(["final_answer(1)"], model=Streaming, session="kinds-2")
    durable_agent(streaming, session_id="kinds-2")
    assert hasattr(streaming.model, "generate_stream")


@tool
def double(n: int) -> int:
    """Doubles a number.

    Args:
        n: the number.
    """
    return 2 * n


def test_to_dict_still_works():
    stock = CodeAgent(tools=[double], model=Script([]), **QUIET).to_dict()
    agent, _ = code_agent([], [double], session="to_dict")
    durable_agent(agent, session_id="to_dict")
    assert agent.to_dict() == stock


@pytest.mark.parametrize("way", ["callback", "bound"])
def test_a_class_with_a_run_of_its_own(next_life, way):
    class Brief(CodeAgent):
        prepared = 0

        def run(self, task, **kwargs):
            Brief.prepared += 1
            return super().run(f"Be brief. {task}", **kwargs)

    for life in range(2):
        callback = SmolagentsWALCallback(session_id="brief")
        agent = Brief(
            tools=[], model=Script([code("final_answer(1)")]), step_callbacks=[callback] if way == "callback" else [], **QUIET
        )
        if way == "bound":
            durable_agent(agent, session_id="brief")
        for n in (1, 2):
            assert agent.run("go") == 1
            assert agent.memory.steps[0].task == "Be brief. go"
            assert Brief.prepared == 2 * life + n
        assert len(agent.model.asked) == (0 if life else 2)
        next_life()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"tools": {"probe": "rerun"}}, "tools"),
        ({"default": "rerun"}, "default"),
        ({"on_change": "reuse"}, "on_change"),
        ({"agent_name": "another"}, "agent_name"),
        ({"store": "memory:another"}, "store"),
        ({"session_id": "another"}, "another callback"),
    ],
)
@pytest.mark.parametrize("way", ["callback", "bound"])
def test_wrapping_again_otherwise_is_refused(way, options, named):
    policies = {"probe": effect(key="probe/{what}")}
    callback = SmolagentsWALCallback(session_id="again", tools=policies)
    agent = CodeAgent(tools=[Probe()], model=Script([]), step_callbacks=[callback] if way == "callback" else [], **QUIET)
    if way == "bound":
        durable_agent(agent, session_id="again", tools=policies)
    inside = agent.model
    with pytest.raises(InvalidArgument, match=named if options.keys() != {"session_id"} else "unwrap"):
        durable_agent(agent, **{"session_id": "again", **options})
    assert agent.model is inside
    assert durable_agent(agent, session_id="again", tools={"probe": effect(key="probe/{what}")}) is agent


def test_a_managed_agent_that_is_bound_otherwise_is_refused():
    helper = CodeAgent(tools=[Probe()], model=Script([]), name="helper", description="helps", **QUIET)
    durable_agent(helper, session_id="helper", tools={"probe": "rerun"})
    agent = CodeAgent(tools=[], model=Script([]), managed_agents=[helper], **QUIET)
    with pytest.raises(InvalidArgument, match="helper"):
        durable_agent(agent, session_id="its manager")


def test_a_policy_for_no_tool_is_refused():
    helper = CodeAgent(tools=[Probe()], model=Script([]), name="helper", description="helps", **QUIET)
    agent = CodeAgent(tools=[double], model=Script([]), managed_agents=[helper], **QUIET)
    with pytest.raises(InvalidArgument, match=r"'probes'.*double, final_answer, probe, python_interpreter"):
        durable_agent(agent, session_id="names", tools={"probes": "rerun"})
    durable_agent(agent, session_id="names", tools={"probe": "rerun", "double": "rerun", "python_interpreter": "record"})
    agent, model = code_agent(["final_answer(1)"], policies={"probes": "rerun"})
    with pytest.raises(InvalidArgument, match="'probes'"):
        agent.run("go")
    assert model.asked == []


def test_two_threads_in_one_session_are_refused():
    inside, go_on = threading.Event(), threading.Event()

    def wait(what):
        inside.set()
        go_on.wait()
        return what

    first, _ = code_agent(["final_answer(probe(what=1))"], [Probe(answer=wait)], session="one session")
    second, model = code_agent(["final_answer(2)"], session="one session")
    results = []
    thread = threading.Thread(target=lambda: results.append(first.run("go")))
    thread.start()
    inside.wait()
    try:
        with pytest.raises(InvalidArgument, match="another thread"):
            second.run("go")
    finally:
        go_on.set()
        thread.join()
    assert (results, model.asked) == ([1], [])
    assert second.run("go") == 2


def test_an_agent_that_a_tool_runs_in_the_same_session(next_life):
    for asked in (1, 0):
        inner, model = code_agent(["final_answer(2)"], session="one session", options={"agent_name": "inner"})
        outer, _ = code_agent(
            ["final_answer(probe(what=1))"],
            [Probe(answer=lambda what, inner=inner: inner.run("inside"))],
            session="one session",
            policies={"probe": "rerun"},
            max_steps=2,
        )
        assert outer.run("go") == 2
        assert len(model.asked) == asked
        next_life()


def test_code_may_call_in_another_order_next_time(next_life):
    """As over a set, whose order is another one in each process."""
    steps = ["found = []\nfor one in order(what=1):\n    found.append(probe(what=one))\nfinal_answer(found)"]
    switch = {"on": True}

    def look(what):
        if switch["on"] and what == "c":
            raise Died
        return f"<{what}>"

    probe = Probe(answer=look)
    for order in ("abcda", "daabc"):
        tools = [probe, Probe(answer=lambda what, order=order: list(order), name="order")]
        agent, _ = code_agent(steps, tools, policies={"order": "rerun"})
        if switch["on"]:
            with pytest.raises(Died):
                agent.run("go")
            switch["on"] = False
        else:
            assert agent.run("go") == [f"<{one}>" for one in order]
        next_life()
    assert probe.seen == ["a", "b", "c", "d", "a", "c"]


def test_code_may_call_managed_agents_in_another_order(next_life):
    switch = {"on": True}
    asked = []
    for order in ("ab", "ba", "ab"):
        model = Script([code("final_answer(1)")])
        helper = CodeAgent(tools=[], model=model, name="helper", description="helps", provide_run_summary=False, **QUIET)
        agent, _ = code_agent(
            ["for one in order(what=1):\n    helper(task=one)\ndie(what=1)\nfinal_answer(2)"],
            [Probe(answer=lambda what, order=order: list(order), name="order"), DyingOnce(switch)],
            managed_agents=[helper],
            policies={"order": "rerun"},
        )
        if switch["on"]:
            with pytest.raises(Died):
                agent.run("go")
            switch["on"] = False
        else:
            assert agent.run("go") == 2
        asked.append(len(model.asked))
        next_life()
    assert asked == [2, 0, 0]


def test_code_that_asks_something_else_when_it_is_executed_again_is_told(next_life):
    steps = ["x = probe(what=clock(what=1))\ndie(what=1)\nfinal_answer(x)"]
    switch = {"on": True}

    def life(now, **options):
        tools = [Probe(), DyingOnce(switch), Probe(answer=lambda what: now, name="clock")]
        return code_agent(steps, tools, policies={"clock": "rerun"}, options=options)[0]

    with pytest.raises(Died):
        life(1).run("go")
    switch["on"] = False
    next_life()
    with pytest.raises(StepChanged, match="tool probe") as caught:
        life(2).run("go")
    assert caught.value.arguments == ("code",)
    next_life()
    assert life(2, on_change="rerun").run("go") == "<2>"


def test_a_tool_object_that_two_agents_share(next_life):
    probe = Probe()
    for _ in range(2):
        one, first = code_agent(["final_answer(probe(what='a'))"], [probe], session="one")
        other, second = calling_agent(
            [calls(("1", "probe", {"what": "b"})), calls(("2", "final_answer", {"answer": "x"}))], [probe], session="other"
        )
        assert one.run("go") == "<a>"
        assert other.run("go") == "x"
        next_life()
    assert probe.seen == ["a", "b"]
    assert "forward" not in vars(probe)
    assert (first.asked, second.asked) == ([], [])


def test_a_tool_is_set_up_when_it_is_first_called(next_life):
    class Slow(Probe):
        setups = 0

        def setup(self):
            Slow.setups += 1
            self.is_initialized = True

    for _ in range(2):
        agent, _ = code_agent(["probe(what=1)\nfinal_answer(probe(what=2))"], [Slow()])
        assert agent.run("go") == "<2>"
        next_life()
    assert Slow.setups == 1


# --- identity ----------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Order:
    number: int


def image(color):
    return PIL.Image.new("RGB", (2, 2), color)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"task": "something else"}, "task"),
        ({"model_id": "another"}, "model"),
        ({"settings": {"temperature": 1}}, "model_settings"),
        ({"instructions": "Be brief."}, "system_prompt"),
        ({"description": "Looks twice."}, "system_prompt"),
        ({"args": {"order": Order(2), "table": pandas.DataFrame({"n": [1, 2]})}}, "additional_args"),
        ({"args": {"order": Order(1), "table": pandas.DataFrame({"n": [1, 3]})}}, "additional_args"),
        ({"images": [image("blue")]}, "images"),
        ({"max_steps": 3}, "max_steps"),
    ],
)
def test_what_changed_is_named(next_life, change, named):
    def run(**given):
        model = Script([code("x = 1"), code("final_answer(x)")], model_id=given.get("model_id", "m"), **given.get("settings", {}))
        probe = Probe()
        probe.description = given.get("description", "Looks at something.")
        agent = CodeAgent(
            tools=[probe],
            model=model,
            instructions=given.get("instructions"),
            step_callbacks=[SmolagentsWALCallback(session_id="changes")],
            **QUIET,
        )
        args = given.get("args", {"order": Order(1), "table": pandas.DataFrame({"n": [1, 2]})})
        agent.run(
            given.get("task", "go"),
            additional_args=args,
            images=given.get("images", [image("red")]),
            max_steps=given.get("max_steps"),
        )
        next_life()
        return model

    run()
    assert run().asked == []
    with pytest.raises(StepChanged) as caught:
        run(**change)
    assert named in caught.value.arguments


def test_a_changed_tool_schema_is_named(next_life):
    answers = [calls(("1", "probe", {"what": "a"})), calls(("2", "final_answer", {"answer": "x"}))]
    agent, _ = calling_agent(answers, [Probe()])
    agent.run("go")
    next_life()
    agent, _ = calling_agent(answers, [Probe(), Probe(name="another")])
    with pytest.raises(StepChanged) as caught:
        agent.run("go")
    assert "tools" in caught.value.arguments


def test_changed_inputs_may_be_run_again(next_life):
    agent, _ = code_agent(["final_answer(probe(what='a'))"], [Probe()])
    agent.run("go")
    next_life()
    agent, model = code_agent(["final_answer(probe(what='a'))"], [Probe()], options={"on_change": "rerun"})
    assert agent.run("go elsewhere") == "<a>"
    assert len(model.asked) == 1


def test_equal_prompts_twice(next_life):
    for asked in (2, 0):
        agent, model = code_agent(["final_answer(probe(what='a'))"], [Probe()])
        assert [agent.run("go"), agent.run("go")] == ["<a>", "<a>"]
        assert len(model.asked) == asked
        next_life()


def test_ids_of_text_parsed_calls_stay_the_same(next_life):
    ids = []
    for _ in range(2):
        agent, model = calling_agent(
            ['{"name": "probe", "arguments": {"what": "a"}}', '{"name": "final_answer", "arguments": {"answer": "x"}}'], [Probe()]
        )
        assert agent.run("go") == "x"
        ids.append([call.id for one in agent.memory.steps if isinstance(one, ActionStep) for call in one.tool_calls])
        next_life()
    assert ids[0] == ids[1]
    assert model.asked == []


def test_calls_with_empty_or_equal_ids_are_all_carried_out(next_life):
    for seen in (["a", "b", "c"], []):
        probe = Probe()
        agent, _ = calling_agent(
            [
                calls(("", "probe", {"what": "a"}), ("", "probe", {"what": "b"}), ("x", "probe", {"what": "c"})),
                calls(("2", "final_answer", {"answer": "x"})),
            ],
            [probe],
        )
        agent.run("go")
        assert sorted(probe.seen) == seen
        assert agent.memory.steps[1].observations == "<a>\n<b>\n<c>"
        next_life()


# --- tools -------------------------------------------------------------------------------------------------------------------


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


SENT = []


@tool
def mail(to: str, campaign: Trusted[str]) -> str:
    """Sends a mail.

    Args:
        to: whom to.
        campaign: which campaign it is of.
    """
    SENT.append((to, campaign))
    return "sent"


class Mail(Tool):
    name = "mail"
    description = "Sends a mail."
    inputs = {  # noqa: RUF012 - as smolagents wants it
        "to": {"type": "string", "description": "whom to"},
        "campaign": {"type": "string", "description": "which campaign it is of"},
    }
    output_type = "string"

    def forward(self, to: str, campaign: Trusted[str]) -> str:
        SENT.append((to, campaign))
        return "sent"


@pytest.mark.parametrize("make", [lambda: mail, Mail], ids=["function", "class"])
def test_trusted_parameters_are_hidden_from_the_model(next_life, make):
    SENT.clear()
    policies = {"mail": effect(key="mail/{campaign}/{to}")}
    for _ in range(2):
        agent, _ = code_agent(["final_answer(mail(to='ada', campaign='mine'))"], [make()], policies=policies)
        caller, _ = calling_agent(
            [calls(("1", "mail", {"to": "ada"})), calls(("2", "final_answer", {"answer": "x"}))],
            [make()],
            policies=policies,
            session="caller",
        )
        with effect_context(campaign="spring"):
            assert agent.run("go") == "sent"
            caller.run("go")
        for one in (agent, caller):
            assert "campaign" not in one.memory.system_prompt.system_prompt
        assert caller.memory.steps[1].observations == "sent"
        next_life()
    assert SENT == [("ada", "spring")]
    assert "campaign" in mail.inputs


def test_a_failure_of_a_class_that_is_gone_says_what_it_said(next_life):
    class Gone(Exception):
        pass

    def fail(what):
        raise Gone("it broke")

    texts = []
    for _ in range(2):
        agent, model = calling_agent(
            [calls(("1", "probe", {"what": "a"})), calls(("2", "final_answer", {"answer": "x"}))], [Probe(answer=fail)]
        )
        agent.run("go")
        texts.append(str(agent.memory.steps[1].error))
        next_life()
    assert texts[0] == texts[1]
    assert "Gone: it broke" in texts[1]
    assert model.asked == []


def test_a_tool_of_policy_rerun_runs_again(next_life):
    probe = Probe()
    for _ in range(2):
        agent, _ = calling_agent(
            [calls(("1", "probe", {"what": "a"})), calls(("2", "final_answer", {"answer": "x"}))],
            [probe],
            policies={"probe": "rerun"},
        )
        agent.run("go")
        next_life()
    assert probe.seen == ["a", "a"]


def test_a_result_that_cannot_be_recorded_reaches_the_caller():
    agent, model = code_agent(["try:\n    probe(what=1)\nexcept Exception:\n    pass", "final_answer(1)"], [Probe(answer=open)])
    agent.tools["probe"].answer = lambda what: threading.Lock()
    with pytest.raises(UnencodableError, match="lock"):
        agent.run("go")
    assert len(model.asked) == 1


def test_steps_and_context_inside_a_tool_of_a_code_agent(next_life):
    done = []

    @tool
    def inner(n: int) -> str:
        """Does a step.

        Args:
            n: a number.
        """
        from letitloop.effects.context import current_context

        step("inside", done.append, n)
        return str(current_context().tenant)

    for _ in range(2):
        agent, _ = code_agent(["final_answer(inner(n=1))"], [inner])
        with effect_context(tenant="acme"):
            assert agent.run("go") == "acme"
        next_life()
    assert done == [1]


def test_an_executor_timeout_and_the_effect_that_comes_late(next_life, monkeypatch):
    timed_out = threading.Event()

    class TimedOut(local_python_executor.ExecutionTimeoutError):
        def __init__(self, *args):
            super().__init__(*args)
            agent.python_executor.timeout_seconds = 60  # the first code alone is given no time
            timed_out.set()

    monkeypatch.setattr(local_python_executor, "ExecutionTimeoutError", TimedOut)

    def late(what):
        timed_out.wait()
        return f"late {what}"

    for life in range(2):
        probe = Probe(answer=late)
        switch = {"on": life == 0}
        agent, model = code_agent(
            ["x = probe(what=1)", "die(what=1)\nfinal_answer(x)"],
            [probe, DyingOnce(switch)],
            executor_kwargs={"timeout_seconds": 0.05 if life == 0 else 60},
        )
        if life == 0:
            with pytest.raises(Died):
                agent.run("go")
            assert probe.seen == [1]
        else:
            assert agent.run("go") == "late 1"
            assert probe.seen == []
            assert model.asked == []
            assert "exceeded the maximum execution time" in str(agent.memory.steps[1].error)
        next_life()


def test_images(next_life):
    seen = []

    def look(step, agent):
        if isinstance(step, ActionStep) and step.step_number == 1:
            step.observations_images = [image("green")]
        seen.append(getattr(step, "_lil_replayed", None))

    for replayed in (False, True):
        agent, model = code_agent(
            ["picture = probe(what='red')", "final_answer(picture.getpixel((0, 0)))"],
            [Probe(answer=image)],
            callbacks=[look],
            policies={"python_interpreter": "record"},
        )
        assert agent.run("go", images=[image("blue")]) == (255, 0, 0)
        assert seen[-2:] == [replayed, replayed]
        next_life()
    assert model.asked == []


def test_an_image_as_the_result(next_life):
    for _ in range(2):
        agent, model = calling_agent(
            [calls(("1", "probe", {"what": "red"})), calls(("2", "final_answer", {"answer": "image.png"}))], [Probe(answer=image)]
        )
        agent.tools["probe"].output_type = "image"
        assert agent.run("go").to_raw().getpixel((1, 1)) == (255, 0, 0)
        next_life()
    assert model.asked == []


# --- runs --------------------------------------------------------------------------------------------------------------------


def test_other_callbacks_can_tell_a_replayed_step(next_life):
    switch = {"on": True}
    told = []
    callback = SmolagentsWALCallback(session_id="told")

    def watch(step, agent=None):
        told.append((step.step_number, step._lil_replayed, callback.is_replaying))

    steps = ["x = 1", "die(what=1)", "final_answer(x)"]
    for life in range(2):
        agent = CodeAgent(
            tools=[DyingOnce(switch)], model=Script([code(one) for one in steps]), step_callbacks=[watch, callback], **QUIET
        )
        if life == 0:
            with pytest.raises(Died):
                agent.run("go")
            told.clear()
            switch["on"] = False
            next_life()
        else:
            agent.run("go")
    assert told == [(1, True, True), (2, False, False), (3, False, False)]


def test_final_answer_checks_are_not_asked_again(next_life):
    asked = []

    def good(answer, memory, agent):
        asked.append(answer)
        return answer == 2

    for _ in range(2):
        agent, model = code_agent(["final_answer(1)", "final_answer(2)"], final_answer_checks=[good])
        assert agent.run("go") == 2
        assert "Check good failed" in str(agent.memory.steps[1].error)
        next_life()
    assert asked == [1, 2]
    assert model.asked == []


def test_the_recorded_result_of_a_full_run(next_life):
    results = []
    for _ in range(2):
        agent, model = code_agent(["x = 1", "final_answer('done')"])
        results.append(agent.run("go", return_full_result=True))
        next_life()
    assert isinstance(results[1], RunResult)
    assert results[0] == results[1]
    assert type(results[0].output) is type(results[1].output)
    assert model.asked == []


def test_a_result_that_cannot_be_recorded_is_made_again(next_life):
    for _ in range(2):
        agent, model = code_agent(["final_answer(n for n in [probe(what=1)])"], [Probe()])
        assert list(agent.run("go")) == ["<1>"]
        next_life()
    assert model.asked == []


@pytest.mark.parametrize("kind", ["code", "calls"])
def test_a_stream_that_is_cut_at_its_last_piece_is_asked_again(next_life, kind):
    class Cut(Streaming):
        on = True

        def generate_stream(self, *args, **kwargs):
            pieces = list(super().generate_stream(*args, **kwargs))
            yield from pieces[:-1]
            if Cut.on:
                raise Died
            yield pieces[-1]

    for life in range(3):
        Cut.on = life == 0
        if kind == "code":
            agent, model = code_agent(["final_answer(probe(what='a'))"], [Probe()], model=Cut, stream_outputs=True)
        else:
            answers = [
                calls(("", "probe", {"what": "a"}), ("", "probe", {"what": "b"})),
                calls(("1", "final_answer", {"answer": "<a>"})),
            ]
            agent, model = calling_agent(answers, [Probe()], model=Cut, stream_outputs=True)
        if life == 0:
            with pytest.raises(Died):
                agent.run("go")
        else:
            assert agent.run("go") == "<a>"
        assert len(model.asked) == (1 if life == 0 else 0 if life == 2 else len(model.answers))
        next_life()


def test_a_stream_of_steps(next_life):
    for asked in (2, 0):
        agent, model = code_agent(["x = 1", "final_answer(x)"])
        steps = list(agent.run("go", stream=True))
        assert steps[-1].output == 1
        assert len(model.asked) == asked
        next_life()


def test_whoever_stops_reading_a_stream_can_run_again(next_life):
    for asked in (3, 0):
        agent, model = code_agent(["x = 1", "final_answer(x)"])
        steps = agent.run("go", stream=True)
        for one in steps:
            if isinstance(one, ActionStep):
                break
        steps.close()
        assert agent.run("go") == 1
        assert len(model.asked) == asked
        next_life()


def test_steps_that_nobody_read_to_their_end_are_given_up(next_life):
    for asked in (3, 0):
        agent, model = code_agent(["x = 1", "final_answer(x)"])
        steps = agent.run("go", stream=True)
        next(one for one in steps if isinstance(one, ActionStep))
        assert agent.run("go") == 1
        with pytest.raises(InvalidArgument, match="given up"):
            next(steps)
        assert len(model.asked) == asked
        next_life()


def test_an_agent_that_is_being_run_refuses_another_run():
    agent, model = code_agent(["try:\n    probe(what=1)\nexcept Exception as e:\n    said = str(e)\nfinal_answer(said)"], [Probe()])
    agent.tools["probe"].answer = lambda what: agent.run("inside")
    with pytest.raises(InvalidArgument, match="being run already"):
        agent.run("go")
    assert len(model.asked) == 1


def test_a_model_that_failed_is_asked_again_and_nothing_else(next_life):
    probe = Probe()
    agent, model = code_agent(["x = probe(what=1)", "final_answer(x)"], [probe])
    good, model.answers[1] = model.answers[1], RuntimeError("overloaded")
    with pytest.raises(AgentGenerationError):
        agent.run("go")
    model.answers[1] = good
    assert agent.run("go") == "<1>"  # in the same process
    assert [one.partition(" ")[0] for one in model.asked] == ["0", "1", "1"]
    assert probe.seen == [1]
    next_life()
    agent, model = code_agent(["x = probe(what=1)", "final_answer(x)"], [probe])
    assert agent.run("go") == "<1>"
    assert model.asked == []


def test_a_failure_that_the_script_survived_is_history(next_life):
    for asked in (2, 0):
        agent, model = code_agent(["final_answer(1)"])
        model.answers = [RuntimeError("no")]
        with pytest.raises(AgentGenerationError):
            agent.run("first")
        model.answers = [code("final_answer(1)")]
        assert agent.run("second") == 1
        assert len(model.asked) == asked
        next_life()


def test_inside_a_durable_function(next_life):
    probe = Probe()

    @durable(goal_id="around an agent")
    def work():
        agent, model = code_agent(["final_answer(probe(what=1))"], [probe])
        before = step("before", len, "abc")
        return before, str(agent.run("go")), str(agent.run("go")), len(model.asked)

    assert work() == (3, "<1>", "<1>", 2)
    next_life()
    assert work() == (3, "<1>", "<1>", 2)
    assert probe.seen == [1, 1]


def test_planning_is_recorded(next_life):
    for asked in (4, 0):
        agent, model = code_agent(["x = 1", "y = 2", "final_answer(x)"], planning_interval=3)
        assert agent.run("go") == 1
        assert len(model.asked) == asked
        next_life()


def test_compatibility_words(tmp_path, next_life):
    options = {"wal_dir": str(tmp_path / "wal"), "auto_resume": False}
    agent, _ = code_agent(["final_answer(1)"], options=options)
    assert agent.run("go") == 1
    assert os.listdir(tmp_path / "wal" / "runs")
    next_life()
    agent, model = code_agent(["final_answer(1)"], options=options)
    assert agent.run("go") == 1
    assert len(model.asked) == 1  # a new log: the earlier one is left as it is
    assert len(list((tmp_path / "wal" / "runs").glob("*.wal"))) == 2
    next_life()
    options["auto_resume"] = True
    agent, model = code_agent(["final_answer(1)"], options=options)
    assert agent.run("go") == 1
    next_life()
    options["auto_resume"] = False
    agent, model = code_agent(["final_answer(1)"], options=options)
    assert restore_agent_memory(agent) > 2
    assert agent.run("go") == 1
    assert model.asked == []
    bare = CodeAgent(tools=[], model=Script([code("final_answer(1)")]), **QUIET)
    durable_agent(bare, session_id="agent", wal_dir=str(tmp_path / "wal"), auto_resume=True, agent_name="named")
    assert bare.run("go") == 1
    assert len(bare.model.asked) == 1
    with pytest.raises(InvalidArgument, match="wal_dir"):
        SmolagentsWALCallback(session_id="x", store="memory:", wal_dir="y")


def test_what_means_nothing_is_refused():
    with pytest.raises(InvalidArgument, match="no agent"):
        durable_agent(object(), session_id="x")
    with pytest.raises(InvalidArgument, match="business key"):
        SmolagentsWALCallback(session_id="x", tools={"python_interpreter": effect(key="a/{b}")})
    with pytest.raises(InvalidArgument, match="policy"):
        SmolagentsWALCallback(session_id="x", tools={"probe": "sometimes"})


def test_two_sets_are_shown_as_they_were(next_life):
    texts = []
    for _ in range(2):
        agent, model = calling_agent(
            [calls(("1", "probe", {"what": "a"})), calls(("2", "final_answer", {"answer": "x"}))],
            [Probe(answer=lambda what: {"b", "a", "c"})],
        )
        agent.run("go")
        texts.append(agent.memory.steps[1].observations)
        next_life()
    assert texts[0] == texts[1]
    assert model.asked == []


def test_a_model_object_that_two_agents_share(next_life):
    model = Script([code("final_answer(probe(what='a'))")])
    for _ in range(2):
        one = CodeAgent(tools=[Probe()], model=model, step_callbacks=[SmolagentsWALCallback(session_id="one")], **QUIET)
        two = CodeAgent(tools=[Probe()], model=model, step_callbacks=[SmolagentsWALCallback(session_id="two")], **QUIET)
        assert [one.run("go"), two.run("go")] == ["<a>", "<a>"]
        three = CodeAgent(tools=[Probe()], model=one.model, step_callbacks=[SmolagentsWALCallback(session_id="three")], **QUIET)
        assert three.run("go") == "<a>"
        next_life()
    assert len(model.asked) == 3
    assert "generate" not in vars(model)


def test_two_managed_agents_in_one_answer(next_life):
    for asked in (1, 0):
        helpers = []
        for name in ("left", "right"):
            model = Script([code(f"final_answer(probe(what={name!r}))")])
            helpers.append(CodeAgent(tools=[Probe()], model=model, name=name, description="helps", **QUIET))
        agent, _ = calling_agent(
            [
                calls(("1", "left", {"task": "go"}), ("2", "right", {"task": "go"})),
                calls(("3", "final_answer", {"answer": "x"})),
            ],
            managed_agents=helpers,
        )
        assert agent.run("go") == "x"
        assert "<left>" in agent.memory.steps[1].observations
        assert "<right>" in agent.memory.steps[1].observations
        assert [len(helper.model.asked) for helper in helpers] == [asked, asked]
        next_life()


class Elsewhere(local_python_executor.PythonExecutor):
    """An executor whose state lives in another place."""

    def __init__(self, switch):
        self.switch = switch
        self.executed = []

    def send_tools(self, tools):
        self.tools = tools

    def send_variables(self, variables):
        pass

    def __call__(self, code_action):
        self.executed.append(code_action)
        if self.switch["on"] and "die" in code_action:
            raise Died
        if "bad" in code_action:
            raise RuntimeError("no")
        final = "final" in code_action
        return local_python_executor.CodeOutput(output=[1, 2] if final else None, logs="said\n", is_final_answer=final)


def test_an_executor_elsewhere(next_life):
    switch = {"on": True}
    probe = Probe()
    executor = Elsewhere(switch)
    agent, _ = code_agent(["first()", "bad()", "die()", "final()"], [probe], executor=executor)
    with pytest.raises(Died):
        agent.run("go")
    assert executor.tools["probe"] is probe
    next_life()
    switch["on"] = False
    executor = Elsewhere(switch)
    agent, model = code_agent(["first()", "bad()", "die()", "final()"], [Probe()], executor=executor)
    with pytest.raises(UnknownOutcome, match="Elsewhere"):
        agent.run("go")
    assert executor.executed == []
    next_life()
    agent, model = code_agent(
        ["first()", "bad()", "die()", "final()"], [Probe()], executor=executor, policies={"python_interpreter": "record"}
    )
    assert agent.run("go") == [1, 2]
    assert executor.executed == ["die()", "final()"]
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


def test_a_tool_without_forward(next_life):
    from smolagents.tools import BaseTool

    class Bare(BaseTool):
        name = "bare"
        description = "Does something."
        inputs = {}  # noqa: RUF012 - as smolagents wants it
        output_type = "any"

        def __call__(self, *args, **kwargs):
            return 7

        def to_code_prompt(self):
            return "def bare() -> any: ..."

    agent, _ = code_agent(["final_answer(bare())"], [Bare()])
    with pytest.raises(InvalidArgument, match="rerun"):
        agent.run("go")
    agent, _ = code_agent(["final_answer(bare())"], [Bare()], policies={"bare": "rerun"}, session="bare")
    assert agent.run("go") == 7


def test_a_name_for_the_agent_in_the_log(next_life):
    agent, _ = code_agent(["final_answer(1)"], options={"agent_name": "analyst"})
    agent.run("go")
    next_life()
    callback = SmolagentsWALCallback(session_id="agent")
    assert b"run analyst/model" in callback.session.root().run.journal.results(100)
