"""``durable_config``: a finished run is answered, each run of a thread is one of its own, other inputs are refused."""

from __future__ import annotations

import asyncio

import pytest

from letitloop import step
from letitloop_langgraph import InputsChanged, durable_config
from tests.langgraph.helpers import Counted, chain, restarted


def test_a_finished_run_returns_its_result_and_other_inputs_are_refused(saver):
    count = Counted()
    app = chain(saver, node=lambda state: {"xs": [step("work", count, "a")]})
    inputs = {"xs": ["in"]}
    for _ in range(3):
        assert app.invoke(inputs, durable_config("1", inputs)) == {"xs": ["in", "did a"]}
        restarted(saver)
    assert count.calls == ["a"]
    with pytest.raises(InputsChanged):
        app.invoke({"xs": ["other"]}, durable_config("1", {"xs": ["other"]}))
    with pytest.raises(InputsChanged):
        asyncio.run(app.ainvoke({"xs": ["other"]}, durable_config("1", {"xs": ["other"]})))
    assert count.calls == ["a"]


def test_several_runs_of_a_thread_are_each_answered(saver):
    count = Counted()
    app = chain(saver, node=lambda state: {"xs": [step("work", count, state["xs"][-1])]})

    def script():
        turns = []
        for turn in ("one", "two", "three"):
            inputs = {"xs": [turn]}
            turns.append(app.invoke(inputs, durable_config("1", inputs, run=turn)))
        return turns

    first = script()
    restarted(saver)
    assert script() == first
    assert [len(turn["xs"]) for turn in first] == [2, 4, 6]
    assert count.calls == ["one", "two", "three"]


def test_more_of_the_config_is_kept():
    config = durable_config("1", None, run="r", recursion_limit=7, configurable={"user": "u"}, metadata={"m": 1})
    assert config["recursion_limit"] == 7
    assert config["configurable"] == {"user": "u", "thread_id": "1"}
    assert config["metadata"] == {"m": 1, "run_id": "letitloop:r"}
