"""What tools and executors are given and give: trusted arguments, failures, late results, images, sets, steps inside them."""

from __future__ import annotations

import threading

import pytest
from smolagents import Tool, local_python_executor, tool
from smolagents.memory import ActionStep

from letitloop import InvalidArgument, Trusted, UnknownOutcome, effect, effect_context, step
from tests.smolagents.conftest import Died
from tests.smolagents.helpers import DyingOnce, calling_agent, code_agent
from tests.smolagents.scripted import Probe, calls, image


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


class Remote(Tool):
    """As the tools of an MCP server, of LangChain or of a Space are: what their parameters are called the inputs say alone."""

    name = "pay"
    description = "Pays somebody."
    inputs = {  # noqa: RUF012 - as smolagents wants it
        "to": {"type": "string", "description": "whom"},
        "cents": {"type": "integer", "description": "how much"},
        "note": {"type": "string", "description": "what for", "nullable": True},
    }
    output_type = "string"
    skip_forward_signature_validation = True

    def forward(self, *args, **kwargs):
        if args:
            raise ValueError("a server is told by name")
        SENT.append(kwargs)
        return "paid"


class Half(Remote):
    def forward(self, to, **kwargs):
        return super().forward(to=to, **kwargs)


@pytest.mark.parametrize("make", [Remote, Half])
@pytest.mark.parametrize("policy", ["record", "effect"])
def test_a_tool_that_takes_what_it_is_given_unnamed(next_life, make, policy):
    SENT.clear()
    policies = {"pay": effect(key="pay/{to}") if policy == "effect" else policy}
    switch = {"on": True}
    for dies in (True, False):
        switch["on"] = dies
        agent, _ = code_agent(
            ["x = pay(to='ada', cents=3)", "die(what=1)\nfinal_answer(x)"], [make(), DyingOnce(switch)], policies=policies
        )
        caller, _ = calling_agent(
            [calls(("1", "pay", {"to": "bob", "cents": 4, "note": "tea"})), calls(("2", "final_answer", {"answer": "x"}))],
            [make()],
            policies=policies,
            session="caller",
        )
        if dies:
            with pytest.raises(Died):
                agent.run("go")
        else:
            assert agent.run("go") == "paid"
        caller.run("go")
        assert caller.memory.steps[1].observations == "paid"
        next_life()
    assert SENT == [{"to": "ada", "cents": 3}, {"to": "bob", "cents": 4, "note": "tea"}]


def test_an_effect_of_a_tool_whose_inputs_are_no_names_is_refused():
    tool = Remote()
    tool.inputs = {"from": {"type": "string", "description": "who"}}
    agent, _ = code_agent(["final_answer(1)"], [tool], policies={"pay": effect(key="pay/{from}")})
    with pytest.raises(InvalidArgument, match="by name"):
        agent.run("go")


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
