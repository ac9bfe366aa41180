"""``serde=`` of the saver, the store and the cache: everything that holds a user's value goes through it, what steps record too."""

from __future__ import annotations

import contextlib
import operator
import re
from pathlib import Path
from typing import Annotated, TypedDict

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from letitloop import async_step, step
from letitloop.errors import DecodeError
from letitloop_langgraph import DurableMiddleware, LetItLoopCache, LetItLoopCheckpointSaver, LetItLoopStore
from tests.langgraph.helpers import Counted, restarted
from tests.langgraph.programs import Scripted, asked

CONFIG = {"configurable": {"thread_id": "t"}, "metadata": {"tenant": "METADATA-secret"}}


class Shifted:
    def encrypt(self, plaintext):
        return "shift", bytes((byte + 90) % 256 for byte in plaintext)

    def decrypt(self, ciphername, ciphertext):
        assert ciphername == "shift"
        return bytes((byte - 90) % 256 for byte in ciphertext)


class Calls:
    def call(self, name):
        return contextlib.nullcontext()


class State(TypedDict, total=False):
    xs: Annotated[list, operator.add]
    question: str


class Refused(Exception):
    pass


def on_disk(folder):
    """Return what is readable of any value."""
    return [
        found for path in Path(folder).rglob("*") if path.is_file() for found in re.findall(rb".{0,40}secret", path.read_bytes())
    ]


def encrypting():
    return EncryptedSerializer(Shifted())


def graph_of(saver, counted, after=lambda: None):
    def fail(what):
        raise Refused(counted(what))

    def node(state):
        found = [step("diagnose", counted, "RESULT-secret, " + state["question"])]
        try:
            step("fail", fail, "FAILURE-secret")
        except Refused as exc:
            found.append(str(exc))
        step("went on", lambda: None)
        found.append(step("ask", lambda: interrupt("INTERRUPT-secret")))
        after()
        return {"xs": found}

    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    return graph.compile(checkpointer=saver)


def test_nothing_in_a_log_is_readable_and_all_of_it_answers(tmp_path):
    counted, raised = Counted(), []

    def once():
        if not raised:
            raised.append(1)
            raise RuntimeError("LEAVING-secret")

    saver = LetItLoopCheckpointSaver(store=tmp_path, serde=encrypting())
    app = graph_of(saver, counted, once)
    app.invoke({"xs": [], "question": "INPUT-secret"}, CONFIG)
    restarted(saver)
    with pytest.raises(RuntimeError):
        app.invoke(Command(resume="ANSWER-secret"), CONFIG)
    restarted(saver)
    done = app.invoke(None, CONFIG)
    assert done["xs"] == ["did RESULT-secret, INPUT-secret", "did FAILURE-secret", "ANSWER-secret"]
    assert counted.calls == ["RESULT-secret, INPUT-secret", "FAILURE-secret"]
    saver.close()
    assert on_disk(tmp_path) == []


async def test_async_steps_are_not_readable_either(tmp_path):
    counted = Counted()

    async def node(state):
        return {"xs": [await async_step("a", counted.later, "ASYNC-secret")]}

    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    saver = LetItLoopCheckpointSaver(store=tmp_path, serde=encrypting())
    assert await graph.compile(checkpointer=saver).ainvoke({"xs": []}, CONFIG) == {"xs": ["did ASYNC-secret"]}
    saver.close()
    assert on_disk(tmp_path) == []


def test_what_agents_record_is_not_readable(tmp_path):
    from langchain.agents import create_agent
    from langchain_core.tools import tool

    @tool
    def look(what: str) -> str:
        """Look."""
        return f"TOOL-secret {what}"

    saver = LetItLoopCheckpointSaver(store=tmp_path, serde=encrypting())
    answers = [asked(("look", {"what": "ARGUMENT-secret"}, "c1")), AIMessage("MODEL-secret")]
    model = Scripted(calls=Calls(), answers=answers)
    agent = create_agent(model, [look], middleware=[DurableMiddleware()], checkpointer=saver)
    messages = agent.invoke({"messages": [("user", "USER-secret")]}, CONFIG)["messages"]
    assert [one.content for one in messages if isinstance(one, ToolMessage)] == ["TOOL-secret ARGUMENT-secret"]
    assert messages[-1].content == "MODEL-secret"
    saver.close()
    assert on_disk(tmp_path) == []


def test_items_of_a_store_and_of_a_cache_are_not_readable(tmp_path):
    memory = LetItLoopStore(store=tmp_path, serde=encrypting())
    memory.put(("users",), "ada", {"colour": "ITEM-secret"})
    cache = LetItLoopCache(store=tmp_path, serde=encrypting())
    cache.set({(("node",), "key"): ("CACHED-secret", None)})
    memory.close()
    cache.close()
    assert on_disk(tmp_path) == []
    again = LetItLoopStore(store=tmp_path, serde=encrypting())
    assert again.get(("users",), "ada").value == {"colour": "ITEM-secret"}
    assert LetItLoopCache(store=tmp_path, serde=encrypting()).get([(("node",), "key")]) == {(("node",), "key"): "CACHED-secret"}


def test_steps_stay_exact_whatever_the_serialiser_makes_of_values(tmp_path):
    counted, raised = Counted(), []

    def node(state):
        found = step("exact", lambda: (counted("a"), {1, 2}, b"x"))
        if not raised:
            raised.append(1)
            raise RuntimeError
        return {"xs": [repr(found)]}

    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    saver = LetItLoopCheckpointSaver(store=tmp_path, serde=JsonPlusSerializer())
    app = graph.compile(checkpointer=saver)
    with pytest.raises(RuntimeError):
        app.invoke({"xs": []}, CONFIG)
    restarted(saver)
    assert app.invoke(None, CONFIG) == {"xs": [repr(("did a", {1, 2}, b"x"))]}
    assert counted.calls == ["a"]


def test_a_saver_without_the_serialiser_refuses_what_it_cannot_read(tmp_path):
    saver = LetItLoopCheckpointSaver(store=tmp_path, serde=encrypting())
    graph_of(saver, Counted()).invoke({"xs": [], "question": ""}, CONFIG)
    restarted(saver)
    with pytest.raises(DecodeError, match="serde="):
        graph_of(LetItLoopCheckpointSaver(store=tmp_path), Counted()).invoke(Command(resume="a"), CONFIG)
