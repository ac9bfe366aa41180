"""``durable_config``: a finished run is answered, each run of a thread is one of its own, other inputs are refused."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.graph import START, MessagesState, StateGraph

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


def test_ids_of_messages_count_if_the_caller_gave_them():
    def digest(*messages):
        return durable_config("1", {"messages": list(messages)})["metadata"]["letitloop_inputs"]

    assert digest(RemoveMessage("1")) != digest(RemoveMessage("2"))
    drawn = str(uuid.UUID(int=7))
    assert digest(RemoveMessage(drawn)) != digest(RemoveMessage(str(uuid.UUID(int=8))))
    assert digest(HumanMessage("edited", id="2")) != digest(HumanMessage("edited", id="9"))
    assert digest(HumanMessage("new")) == digest(HumanMessage("new", id=drawn)) != digest(HumanMessage("other", id=drawn))
    assert (
        digest(AIMessage("new"))
        == digest(AIMessage("new", id=f"run--{drawn}-0"))
        == digest(AIMessage("new", id=f"lc_run--{drawn}"))
    )


def test_the_callers_own_messages_are_given_an_id_and_are_the_same_inputs(saver):
    graph = StateGraph(MessagesState)
    graph.add_node("node", lambda state: {"messages": [AIMessage("answer")]})
    graph.add_edge(START, "node")
    app = graph.compile(checkpointer=saver)
    inputs = {"messages": [HumanMessage("question")]}
    first = app.invoke(inputs, durable_config("1", inputs))
    assert inputs["messages"][0].id is not None
    assert app.invoke(inputs, durable_config("1", inputs)) == first


def test_other_messages_are_removed_by_another_run(saver):
    graph = StateGraph(MessagesState)
    graph.add_node("node", lambda state: {})
    graph.add_edge(START, "node")
    app = graph.compile(checkpointer=saver)
    app.invoke({"messages": [HumanMessage(name, id=name) for name in "abc"]}, {"configurable": {"thread_id": "1"}})
    for name in "ab":
        inputs = {"messages": [RemoveMessage(name)]}
        if name == "b":
            with pytest.raises(InputsChanged):
                app.invoke(inputs, durable_config("1", inputs, run="a"))
        found = app.invoke(inputs, durable_config("1", inputs, run=name))
    assert [one.id for one in found["messages"]] == ["c"]
