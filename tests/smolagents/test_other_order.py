"""What models are told of sets, which each process prints in another order: nothing has changed, and nothing is done again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from letitloop import StepChanged
from tests.smolagents.helpers import calling_agent, code_agent
from tests.smolagents.other_order import SCENARIOS, Found, one
from tests.smolagents.scripted import Probe

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def lives(tmp_path_factory):
    """What came of each agent in three processes."""
    store = str(tmp_path_factory.mktemp("store"))
    told = []
    for life in range(3):
        env = {**os.environ, "PYTHONHASHSEED": str(life + 1), "LETITLOOP_STORE": store}
        command = [sys.executable, "-m", "tests.smolagents.other_order", str(life)]
        ended = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        told.append(json.loads(ended.stdout.splitlines()[-1]))
    assert told[1]["order"] != told[2]["order"]  # else this shows nothing
    return told


@pytest.mark.parametrize("name", [one.__name__ for one in SCENARIOS])
def test_another_order_is_no_change(lives, name):
    (result, done), (died, before), (again, after) = (life[name] for life in lives)
    assert died == "Died"
    assert again == result
    assert sorted(before + after) == sorted(done)  # calls of one answer are made at the same time


@pytest.mark.parametrize("make", [lambda names: names, Found, lambda names: [{"a": names}]], ids=["set", "dataclass", "nested"])
def test_another_set_is_a_change(next_life, make):
    answers = [one("probe", what="a"), one("final_answer", answer="ok")]
    agent, _ = calling_agent(answers, [Probe(answer=lambda _: make({"a", "b"}))], policies={"probe": "rerun"})
    agent.run("go")
    next_life()
    agent, model = calling_agent(answers, [Probe(answer=lambda _: make({"a", "c"}))], policies={"probe": "rerun"})
    with pytest.raises(StepChanged, match="text"):
        agent.run("go")
    assert model.asked == []


@pytest.mark.parametrize("on_change", ["raise", "rerun"])
def test_other_additional_arguments_are_a_change(next_life, on_change):
    for tags in ({"a", "b"}, {"a", "c"}):
        agent, model = code_agent(["final_answer(sorted(tags))"], options={"on_change": on_change})
        if on_change == "raise" and "c" in tags:
            with pytest.raises(StepChanged, match="additional_args"):
                agent.run("go", additional_args={"tags": tags})
            assert model.asked == []
        else:
            assert agent.run("go", additional_args={"tags": tags}) == sorted(tags)
            assert str(tags) in agent.memory.steps[0].task
        next_life()


@pytest.mark.parametrize("kind", ["calls", "code"])
def test_whoever_reads_the_steps_is_given_the_values_themselves(next_life, kind):
    tool, callbacks = Probe(answer=lambda _: {"a", "b"}), []
    for _ in range(2):
        seen = []
        if kind == "code":
            steps = ["x = probe(what=1)\nx", "final_answer(x)"]
            agent, _ = code_agent(steps, [tool], callbacks=[lambda step: callbacks.append(type(step.action_output))])
            agent.final_answer_checks = [lambda answer, memory, agent: isinstance(answer, set)]
        else:
            agent, _ = calling_agent([one("probe", what="tags"), one("final_answer", answer="tags")], [tool])
        for event in agent.run("go", stream=True, additional_args={"tags": {"c", "d"}}):
            seen += [type(getattr(event, name)).__name__ for name in ("output", "action_output") if hasattr(event, name)]
        assert "Shown" not in seen
        assert seen.count("set") == (5 if kind == "code" else 4)
        next_life()
    assert set(callbacks) <= {set}
