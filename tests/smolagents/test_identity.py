"""Which call is which: what changed is named, and calls that come in another order, or look alike, are told apart."""

from __future__ import annotations

import dataclasses

import pandas
import pytest
from smolagents import CodeAgent
from smolagents.memory import ActionStep

from letitloop import StepChanged
from letitloop.adapters.smolagents import SmolagentsWALCallback
from tests.smolagents.conftest import Died
from tests.smolagents.helpers import QUIET, DyingOnce, calling_agent, code_agent
from tests.smolagents.scripted import Probe, Script, calls, code, image


@dataclasses.dataclass
class Order:
    number: int


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
