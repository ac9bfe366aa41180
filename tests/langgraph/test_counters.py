"""What LangGraph counts in a task (interrupts, subgraphs, ``@task`` calls), where what took numbers is answered from the log.

Every answer names the question that it was given to, so one that reaches another question is seen. The same programs are run with
plain functions in place of the leaves and LangGraph's own saver.
"""

from __future__ import annotations

import asyncio
import operator
import os
import warnings
from typing import Annotated, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, RetryPolicy, Send, interrupt

from letitloop import MemoryStore, async_step, effect, scope, step
from letitloop.errors import UnknownOutcome
from letitloop.testing import kill_sweep
from letitloop_langgraph import LetItLoopCheckpointSaver, adurable_tool_call, durable_config, durable_tool_call
from tests.langgraph.helpers import restarted

warnings.simplefilter("ignore")
MODES = ["sync", "async", "exit"]
WAYS = ["sync", "async"]
HERE = {"configurable": {"thread_id": "1"}}
FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


class State(TypedDict, total=False):
    xs: Annotated[list, operator.add]


class Asked(TypedDict, total=False):
    q: str
    answer: str


# --- the programs: what a node does, with leaves that are steps or plain calls ---------------------------------------------------


@task
def told(q):
    return f"told {q}"


@task
async def atold(q):
    return f"told {q}"


class Leaves:
    """How a program does its leaves, and a graph that it may call."""

    def __init__(self, durable, *, calls=None):
        self.durable = durable
        self.calls = calls
        graph = StateGraph(Asked)
        graph.add_node("work", self.work)
        graph.add_edge(START, "work")
        self.sub = graph.compile()
        graph = StateGraph(Asked)
        graph.add_node("work", self.awork)
        graph.add_edge(START, "work")
        self.asub = graph.compile()

    def do(self, name, fn):
        done = step(name, fn) if self.durable else fn()
        if self.calls is not None:
            self.calls.returned(name)
        return done

    async def ado(self, name, fn):
        async def later():
            return await fn()

        done = await (async_step(name, later) if self.durable else fn())
        if self.calls is not None:
            self.calls.returned(name)
        return done

    def look(self, q):
        if self.calls is None:
            return f"looked at {q}"
        with self.calls.call(f"look {q}"):
            return f"looked at {q}"

    async def alook(self, q):
        return self.look(q)

    def work(self, state):
        q = state["q"]
        found = self.do(f"look {q}", lambda: self.look(q))
        if q.startswith("ask"):
            found += " " + self.do(f"sure {q}", lambda: interrupt(f"{q}, sure?")) + " " + interrupt(f"{q}, really?")
        return {"answer": found}

    async def awork(self, state):
        q = state["q"]
        found = await self.ado(f"look {q}", lambda: self.alook(q))
        if q.startswith("ask"):
            found += " " + await self.ado(f"sure {q}", lambda: asking(f"{q}, sure?")) + " " + interrupt(f"{q}, really?")
        return {"answer": found}


async def asking(question):
    return interrupt(question)


def interrupts(on, state):
    a = on.do("a", lambda: interrupt("a?"))
    b = interrupt("b?")
    c = on.do("c", lambda: [on.do("c1", lambda: interrupt("c1?")), interrupt("c2?"), interrupt("c3?")])
    return {"xs": [a, b, *c, on.do("nothing", lambda: "nothing"), interrupt("d?"), on.do("e", lambda: interrupt("e?"))]}


async def ainterrupts(on, state):
    async def several():
        return [await on.ado("c1", lambda: asking("c1?")), interrupt("c2?"), interrupt("c3?")]

    async def nothing():
        return "nothing"

    a = await on.ado("a", lambda: asking("a?"))
    b = interrupt("b?")
    c = await on.ado("c", several)
    return {"xs": [a, b, *c, await on.ado("nothing", nothing), interrupt("d?"), await on.ado("e", lambda: asking("e?"))]}


def subgraphs(on, state):
    a = on.do("sub a", lambda: on.sub.invoke({"q": "a"})["answer"])
    b = on.sub.invoke({"q": "ask b"})["answer"]
    c = on.do("sub c", lambda: on.sub.invoke({"q": "ask c"})["answer"])
    d = on.do("both", lambda: [on.do("sub d", lambda: on.sub.invoke({"q": "d"})["answer"]), on.sub.invoke({"q": "e"})["answer"]])
    return {"xs": [a, b, c, *d, on.sub.invoke({"q": "f"})["answer"], interrupt("g?"), on.sub.invoke({"q": "ask h"})["answer"]]}


async def asubgraphs(on, state):
    async def sub(q):
        return (await on.asub.ainvoke({"q": q}))["answer"]

    async def both():
        return [await on.ado("sub d", lambda: sub("d")), await sub("e")]

    a = await on.ado("sub a", lambda: sub("a"))
    b = await sub("ask b")
    c = await on.ado("sub c", lambda: sub("ask c"))
    d = await on.ado("both", both)
    return {"xs": [a, b, c, *d, await sub("f"), interrupt("g?"), await sub("ask h")]}


def tasks(on, state):
    a = on.do("a", lambda: told("a").result())
    b = told("b").result()
    c = on.do("c", lambda: [told("c1").result(), on.do("c2", lambda: told("c2").result())])
    return {"xs": [a, b, *c, interrupt("d?"), told("e").result(), on.do("f", lambda: told("f").result()), interrupt("g?")]}


async def atasks(on, state):
    async def several():
        async def inner():
            return await atold("c2")

        return [await atold("c1"), await on.ado("c2", inner)]

    async def one(q):
        return await atold(q)

    a = await on.ado("a", lambda: one("a"))
    b = await atold("b")
    c = await on.ado("c", several)
    return {"xs": [a, b, *c, interrupt("d?"), await atold("e"), await on.ado("f", lambda: one("f")), interrupt("g?")]}


SHAPES = {"interrupts": (interrupts, ainterrupts), "subgraphs": (subgraphs, asubgraphs), "tasks": (tasks, atasks)}


def compiled(saver, *nodes):
    graph, before = StateGraph(State), START
    for at, node in enumerate(nodes):
        graph.add_node(f"n{at}", node)
        graph.add_edge(before, f"n{at}")
        before = f"n{at}"
    return graph.compile(checkpointer=saver)


def shaped(shape, way, on, saver):
    sync, later = SHAPES[shape]

    async def anode(state):
        return await later(on, state)

    return compiled(saver, (lambda state: sync(on, state)) if way == "sync" else anode)


def invoke(app, way, inputs, config=HERE, **more):
    return app.invoke(inputs, config, **more) if way == "sync" else asyncio.run(app.ainvoke(inputs, config, **more))


def conversation(app, way, *, between=lambda: None, config=HERE, inputs=None, **more):
    """Answer every question; return the questions, and what it came to."""
    result = invoke(app, way, {"xs": []} if inputs is None else inputs, config, **more)
    questions = []
    while "__interrupt__" in result and len(questions) < 20:
        [sign] = result["__interrupt__"]
        questions.append(sign.value)
        between()
        result = invoke(app, way, Command(resume=f"<{sign.value}>"), config, **more)
    return questions, result


@pytest.mark.parametrize("life", ["one process", "opened again"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", SHAPES)
def test_leaves_that_are_answered_from_the_log_leave_the_numbers_to_the_others(shape, way, mode, life, tmp_path):
    if (shape, mode) == ("subgraphs", "exit"):
        pytest.skip(
            'LangGraph itself asks one question for ever there: with durability="exit" it keeps the wrong subgraph\'s answers'
        )
    saver = LetItLoopCheckpointSaver(store=MemoryStore() if mode == "async" else tmp_path / "store")
    app = shaped(shape, way, Leaves(durable=True), saver)
    found = conversation(app, way, between=lambda: restarted(saver) if life == "opened again" else None, durability=mode)
    assert found == conversation(shaped(shape, way, Leaves(durable=False), InMemorySaver()), way, durability=mode)
    saver.close()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_script_is_run_again_at_every_question(shape, way, tmp_path):
    saver = LetItLoopCheckpointSaver(store=tmp_path / "store")
    app, inputs = shaped(shape, way, Leaves(durable=True), saver), {"xs": ["in"]}
    config = durable_config("1", inputs)

    def again():
        restarted(saver)
        result = invoke(app, way, inputs, config)
        restarted(saver)
        assert result["__interrupt__"][0].value == asked.pop(0)  # the same question: no answer is waiting for it

    asked, want = conversation(shaped(shape, way, Leaves(durable=False), InMemorySaver()), way, inputs=inputs)
    asked = list(asked)
    assert conversation(app, way, between=again, config=config, inputs=inputs)[1] == want
    assert not asked
    restarted(saver)
    assert invoke(app, way, inputs, config) == want
    saver.close()


# --- tools -----------------------------------------------------------------------------------------------------------------------


@tool
def refund(order: str) -> str:
    """Refund."""
    return f"refund {order}: " + interrupt(f"refund {order}?")


@tool
def look_up(order: str) -> str:
    """Look up."""
    return f"look up {order}: " + interrupt(f"look up {order}?")


@tool
async def arefund(order: str) -> str:
    """Refund."""
    return f"refund {order}: " + interrupt(f"refund {order}?")


@tool
async def alook_up(order: str) -> str:
    """Look up."""
    return f"look up {order}: " + interrupt(f"look up {order}?")


arefund.name, alook_up.name = refund.name, look_up.name


def tool_graph(way, saver, policies):
    calls = [("refund", "1", "c1"), ("look_up", "2", "c2"), ("refund", "3", "c3"), ("look_up", "4", "c4")]
    asked = AIMessage("", tool_calls=[{"name": name, "args": {"order": order}, "id": ident} for name, order, ident in calls])
    wraps = (
        {} if policies is None else {"wrap_tool_call": durable_tool_call(policies), "awrap_tool_call": adurable_tool_call(policies)}
    )
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [asked]})
    graph.add_node("tools", ToolNode([refund, look_up] if way == "sync" else [arefund, alook_up], **wraps))
    graph.add_edge(START, "model")
    graph.add_edge("model", "tools")
    return graph.compile(checkpointer=saver)


@pytest.mark.parametrize("life", ["one process", "opened again"])
@pytest.mark.parametrize(
    ("way", "policies"), [("sync", {}), ("async", {}), ("sync", {"look_up": "rerun"})], ids=["sync", "async", "sync and rerun"]
)
def test_a_yes_to_one_tool_is_no_yes_to_another(way, policies, life):
    saver = LetItLoopCheckpointSaver(store=MemoryStore())
    config = {**HERE, "max_concurrency": 1}

    def talk(saver, policies, between):
        app = tool_graph(way, saver, policies)
        questions, result = conversation(app, way, between=between, config=config, inputs={"messages": [HumanMessage("go")]})
        return questions, [message.content for message in result["messages"]]

    questions, answers = talk(saver, policies, lambda: restarted(saver) if life == "opened again" else None)
    assert (questions, answers) == talk(InMemorySaver(), None, lambda: None)
    assert answers[2:] == [f"{question[:-1]}: <{question}>" for question in questions]


# --- failures, retries, forks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", ["none", "the same answer"])
@pytest.mark.parametrize("way", WAYS)
def test_an_answer_that_a_finished_leaf_got_is_not_waiting_for_the_next_question(way, again):
    """The node failed after the leaf; the human's answer is still beside the checkpoint."""
    saver, fails, on = LetItLoopCheckpointSaver(store=MemoryStore()), [True], Leaves(durable=True)

    def flaky():
        if fails:
            fails.pop()
            raise OSError("net")

    def node(state):
        a = on.do("a", lambda: interrupt("a?"))
        flaky()
        return {"xs": [a, interrupt("b?")]}

    async def anode(state):
        a = await on.ado("a", lambda: asking("a?"))
        flaky()
        return {"xs": [a, interrupt("b?")]}

    app = compiled(saver, node if way == "sync" else anode)
    assert invoke(app, way, {"xs": []})["__interrupt__"][0].value == "a?"
    with pytest.raises(OSError, match="net"):
        invoke(app, way, Command(resume="yes to a"))
    if again == "none":
        assert invoke(app, way, None)["__interrupt__"][0].value == "b?"
        assert invoke(app, way, None)["__interrupt__"][0].value == "b?"
    else:
        restarted(saver)
        assert invoke(app, way, None)["__interrupt__"][0].value == "b?"
    assert invoke(app, way, Command(resume="yes to a"))["xs"] == ["yes to a", "yes to a"]  # the same words, and meant for b


@pytest.mark.parametrize("way", WAYS)
def test_a_retried_node_gives_its_finished_leaves_numbers_to_nobody(way):
    saver, attempts, on = LetItLoopCheckpointSaver(store=MemoryStore()), [], Leaves(durable=True)

    def flaky():
        attempts.append(1)
        if len(attempts) == 2:
            raise OSError("net")

    def node(state):
        a = on.do("a", lambda: on.sub.invoke({"q": "a"})["answer"] + interrupt("a?"))
        flaky()
        return {"xs": [a, on.sub.invoke({"q": "b"})["answer"], interrupt("b?"), on.do("c", lambda: interrupt("c?"))]}

    async def anode(state):
        async def sub():
            return (await on.asub.ainvoke({"q": "a"}))["answer"] + interrupt("a?")

        a = await on.ado("a", sub)
        flaky()
        b = (await on.asub.ainvoke({"q": "b"}))["answer"]
        return {"xs": [a, b, interrupt("b?"), await on.ado("c", lambda: asking("c?"))]}

    graph = StateGraph(State)
    graph.add_node(
        "node", node if way == "sync" else anode, retry_policy=RetryPolicy(initial_interval=0.01, jitter=False, retry_on=OSError)
    )
    graph.add_edge(START, "node")
    attempts.append(1)  # the first question ends the first run before it
    found = conversation(graph.compile(checkpointer=saver), way)
    assert found == (["a?", "b?", "c?"], {"xs": ["looked at a<a?>", "looked at b", "<b?>", "<c?>"]})


def test_a_leaf_that_failed_and_is_tried_again_gets_its_own_answer():
    saver, fails, on = LetItLoopCheckpointSaver(store=MemoryStore()), [True], Leaves(durable=True)

    def careful():
        answer = interrupt("a?")
        if fails:
            fails.pop()
            raise OSError("net")
        return answer

    def node(state):
        first = on.do("first", lambda: interrupt("first?"))
        return {"xs": [first, on.do("a", careful), interrupt("b?")]}

    app = compiled(saver, node)
    assert invoke(app, "sync", {"xs": []})["__interrupt__"][0].value == "first?"
    assert invoke(app, "sync", Command(resume="1"))["__interrupt__"][0].value == "a?"
    with pytest.raises(OSError, match="net"):
        invoke(app, "sync", Command(resume="2"))
    restarted(saver)
    assert invoke(app, "sync", None)["__interrupt__"][0].value == "b?"
    assert invoke(app, "sync", Command(resume="3"))["xs"] == ["1", "2", "3"]


def test_concurrent_subgraphs_in_tasks_keep_what_is_theirs():
    """Steps that run side by side and call one subgraph each; the second ones are asked for in the other order."""
    saver, on, rounds = LetItLoopCheckpointSaver(store=MemoryStore()), Leaves(durable=True), []

    async def one(q):
        return (await on.asub.ainvoke({"q": q}))["answer"]

    async def anode(state):
        rounds.append(1)
        names = ["a", "ask b", "c"] if len(rounds) % 2 else ["c", "ask b", "a"]
        done = await asyncio.gather(*(on.ado(f"sub {q}", lambda q=q: one(q)) for q in names))
        return {"xs": sorted([*done, await one("d"), interrupt("last?")])}

    questions, result = conversation(compiled(saver, anode), "async")
    assert questions == ["ask b, sure?", "ask b, really?", "last?"]
    asked = "looked at ask b <ask b, sure?> <ask b, really?>"
    assert result["xs"] == ["<last?>", "looked at a", asked, "looked at c", "looked at d"]


def test_scopes_and_parallel_tasks_count_by_themselves():
    saver, on = LetItLoopCheckpointSaver(store=MemoryStore()), Leaves(durable=True)

    def node(n):
        def inside():
            with scope("inner"):
                return on.do("deep", lambda: on.sub.invoke({"q": f"deep {n}"})["answer"]) + on.sub.invoke({"q": "x"})["answer"]

        found = [on.do("a", inside), on.sub.invoke({"q": f"b {n}"})["answer"]]
        return {"xs": [*found, *([interrupt(f"{n}?")] if n == 1 else [])]}

    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_conditional_edges(START, lambda state: [Send("node", n) for n in range(3)], ["node"])
    questions, result = conversation(graph.compile(checkpointer=saver), "sync")
    assert questions == ["1?"]
    want = [[f"looked at deep {n}looked at x", f"looked at b {n}", *(["<1?>"] if n == 1 else [])] for n in range(3)]
    assert result["xs"] == [one for each in want for one in each]


def test_numbers_stay_with_their_steps_when_the_log_is_made_smaller(tmp_path):
    saver, on = LetItLoopCheckpointSaver(store=tmp_path / "store"), Leaves(durable=True)

    def node(state):
        a = on.do("a", lambda: interrupt("a?") + on.sub.invoke({"q": "a"})["answer"])
        return {"xs": [a, on.sub.invoke({"q": "b"})["answer"], interrupt("b?")]}

    def smaller():
        saver.prune(["1"])
        restarted(saver)

    app = compiled(saver, lambda state: {"xs": [step("before", lambda: on.sub.invoke({"q": "0"})["answer"])]}, node)
    found = conversation(app, "sync", between=smaller)
    assert found == (["a?", "b?"], {"xs": ["looked at 0", "<a?>looked at a", "looked at b", "<b?>"]})
    smaller()
    thread = saver.room.thread("1")
    thread.enter()
    thread.leave()
    assert not thread.index.numbers._of  # the tasks are over, and what they took is gone with their steps
    saver.close()


# --- effects ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["in its function", "in a subgraph that it calls"])
@pytest.mark.parametrize("way", WAYS)
def test_an_interrupt_inside_an_effect_is_refused_and_says_what_to_do(way, where):
    on, paid = Leaves(durable=False), []

    @effect(key="pay/{order}")
    def pay(order: str) -> str:
        said = interrupt("pay?") if where == "in its function" else on.sub.invoke({"q": "ask"})["answer"]
        paid.append(order)
        return said

    @effect(key="pay/{order}")
    async def apay(order: str) -> str:
        said = interrupt("pay?") if where == "in its function" else (await on.asub.ainvoke({"q": "ask"}))["answer"]
        paid.append(order)
        return said

    def node(state):
        return {"xs": [interrupt("before?"), pay(order="1")]}

    async def anode(state):
        return {"xs": [interrupt("before?"), await apay(order="1")]}

    app = compiled(LetItLoopCheckpointSaver(store=MemoryStore()), node if way == "sync" else anode)
    invoke(app, way, {"xs": []})
    for inputs in (Command(resume="yes"), None):
        with pytest.raises(UnknownOutcome, match=r"(?s)interrupt\(\) was called inside the effect.*obody was asked.*Ask before"):
            invoke(app, way, inputs)
    assert not paid


def test_what_an_effect_asked_of_langgraph_is_nobody_elses():
    on, saver = Leaves(durable=False), LetItLoopCheckpointSaver(store=MemoryStore())

    @effect(key="pay/{order}")
    def pay(order: str) -> str:
        return on.sub.invoke({"q": f"paid {order}"})["answer"]

    app = compiled(saver, lambda state: {"xs": [pay(order="1"), on.sub.invoke({"q": "b"})["answer"], interrupt("c?")]})
    assert conversation(app, "sync", between=lambda: restarted(saver))[1]["xs"] == ["looked at paid 1", "looked at b", "<c?>"]


# --- SIGKILL ---------------------------------------------------------------------------------------------------------------------


def _killed(shape, way, mode):
    from letitloop.testing import CallLog

    def program(evidence):
        saver = LetItLoopCheckpointSaver()
        app, inputs = shaped(shape, way, Leaves(durable=True, calls=CallLog(evidence)), saver), {"xs": ["in"]}
        _, result = conversation(app, way, config=durable_config("1", inputs), inputs=inputs, durability=mode)
        saver.close()
        return result["xs"]

    program.__name__ = program.__qualname__ = f"killed_{shape}_{way}_{mode}"
    return program


KILLED = {
    program.__name__: program
    for program in (
        _killed(*one)
        for one in [
            ("interrupts", "sync", "sync"),
            ("interrupts", "async", "async"),
            ("subgraphs", "sync", "async"),
            ("subgraphs", "async", "sync"),
            ("tasks", "sync", "sync"),
            ("tasks", "async", "async"),
        ]
    )
}
globals().update(KILLED)


@FORKS
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", KILLED)
def test_killed_anywhere_every_question_gets_its_own_answer(name):
    report = kill_sweep(KILLED[name], preload=["tests.langgraph.test_counters"], sample=8, instants=1, seed=3, in_flight=2, jobs=1)
    assert report.ok, report
