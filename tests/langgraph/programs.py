"""The graphs that are killed at every event. Each program is called with its evidence directory, and its result is compared."""

from __future__ import annotations

import asyncio
import operator
import warnings
from typing import Annotated, TypedDict

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

from letitloop import async_step, effect, step
from letitloop.testing import CallLog
from letitloop_langgraph import DurableMiddleware, LetItLoopCheckpointSaver, durable_config
from tests.effects.bank import Bank

warnings.simplefilter("ignore")


class State(TypedDict):
    xs: Annotated[list, operator.add]


class Work:
    """Steps that tell what really happened, and an effect."""

    def __init__(self, evidence):
        self.calls = CallLog(evidence)
        self.bank = Bank(str(evidence / "bank"), "window")
        self.pay = effect(key="invoice/{number}", provider=self.bank, recover="resend")(self._pay)
        self.apay = effect(key="invoice/{number}", provider=self.bank, recover="resend")(self._apay)

    def _pay(self, number: str, amount: int) -> dict:
        raise AssertionError("the bank does it")

    async def _apay(self, number: str, amount: int) -> dict:
        raise AssertionError("the bank does it")

    def _do(self, name):
        with self.calls.call(name):
            return f"{name} done"

    async def _ado(self, name):
        with self.calls.call(name):
            await asyncio.sleep(0)
            return f"{name} done"

    def step(self, name):
        done = step("work", self._do, name)
        self.calls.returned(name)
        return done

    async def astep(self, name):
        done = await async_step("work", self._ado, name)
        self.calls.returned(name)
        return done

    def paid(self):
        return sorted(str(one["arguments"]) for one in self.bank.done())


def node(work, way, name, *, pays=False, steps=2):
    def sync(state):
        done = [work.step(f"{name}-{at}") for at in range(steps)]
        if pays:
            done.append(str(work.pay(number=name, amount=5)))
        return {"xs": done}

    async def later(state):
        done = list(await asyncio.gather(*(work.astep(f"{name}-{at}") for at in range(steps))))
        if pays:
            done.append(str(await work.apay(number=name, amount=5)))
        return {"xs": done}

    return sync if way == "sync" else later


def invoke(app, way, mode, inputs):
    """Run a graph in a thread of this mode's own, or go on with it, or be told its result."""
    config = durable_config(f"thread-{mode}", inputs)
    if way == "sync":
        return app.invoke(inputs, config, durability=mode)
    return asyncio.run(app.ainvoke(inputs, config, durability=mode))


def drive(graph, way, mode):
    """Run a graph, and ask for its result once more."""
    app = graph.compile(checkpointer=LetItLoopCheckpointSaver())
    inputs = {"xs": ["in"]}
    result = invoke(app, way, mode, inputs)
    again = invoke(app, way, mode, inputs)
    app.checkpointer.close()
    assert again == result
    return sorted(result["xs"])


def chain(work, way, mode):
    graph = StateGraph(State)
    before = START
    for at, name in enumerate(("a", "b", "c")):
        graph.add_node(name, node(work, way, f"{mode}-{name}", pays=at == 1))
        graph.add_edge(before, name)
        before = name
    return drive(graph, way, mode)


def fan_out(work, way, mode):
    def paid(n):
        return [str(work.pay(number=f"{mode}-{n}", amount=n))] if n == 1 else []

    async def apaid(n):
        return [str(await work.apay(number=f"{mode}-{n}", amount=n))] if n == 1 else []

    def sync(n):
        return {"xs": [work.step(f"{mode}-w{n}"), *paid(n)]}

    async def later(n):
        return {"xs": [await work.astep(f"{mode}-w{n}"), *await apaid(n)]}

    graph = StateGraph(State)
    graph.add_node("worker", sync if way == "sync" else later)
    graph.add_node("join", node(work, way, f"{mode}-join", steps=1))
    graph.add_conditional_edges(START, lambda state: [Send("worker", n) for n in range(4)], ["worker"])
    graph.add_edge("worker", "join")
    return drive(graph, way, mode)


def subgraph(work, way, mode):
    inner = StateGraph(State)
    inner.add_node("one", node(work, way, f"{mode}-one", steps=1))
    inner.add_node("two", node(work, way, f"{mode}-two", pays=True, steps=1))
    inner.add_edge(START, "one")
    inner.add_edge("one", "two")
    graph = StateGraph(State)
    graph.add_node("before", node(work, way, f"{mode}-before", steps=1))
    graph.add_node("inner", inner.compile())
    graph.add_node("after", node(work, way, f"{mode}-after", steps=1))
    graph.add_edge(START, "before")
    graph.add_edge("before", "inner")
    graph.add_edge("inner", "after")
    graph.add_edge("after", END)
    return drive(graph, way, mode)


class Scripted(BaseChatModel):
    """Answers by how many answers came before, and tells each call."""

    calls: object
    answers: list
    called: str = "model"

    @property
    def _llm_type(self):
        return "scripted"

    def bind_tools(self, tools, **kwargs):
        return self

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        at = sum(isinstance(message, AIMessage) for message in messages)
        with self.calls.call(f"{self.called}-{at}"):
            answer = self.answers[at]
        if callable(answer):
            answer = answer(messages)
        return ChatResult(generations=[ChatGeneration(message=answer.model_copy(deep=True))])


def asked(*calls):
    return AIMessage("", tool_calls=[{"name": name, "args": args, "id": identity} for name, args, identity in calls])


def summary(messages):
    return AIMessage("told: " + "; ".join(str(one.content) for one in messages if isinstance(one, ToolMessage)))


def agent(work, way, mode):
    @tool
    def search(q: str) -> str:
        """Search."""
        with work.calls.call(f"search {mode} {q}"):
            return f"found {q}"

    @tool
    def pay(number: str, amount: int) -> str:
        """Pay."""
        raise AssertionError("the bank does it")

    answers = [
        asked(("search", {"q": "a"}, "c1"), ("pay", {"number": mode, "amount": 3}, "c2"), ("search", {"q": "b"}, "c3")),
        asked(("search", {"q": "c"}, "c4")),
        summary,
    ]
    policy = effect(key="invoice/{number}", provider=work.bank, recover="resend")
    app = create_agent(
        Scripted(calls=work.calls, answers=answers, called=f"model-{mode}"),
        [search, pay],
        middleware=[DurableMiddleware(tools={"pay": policy})],
        checkpointer=LetItLoopCheckpointSaver(),
    )
    result = invoke(app, way, mode, {"messages": [HumanMessage("go")]})
    app.checkpointer.close()
    return [(one.type, one.content, [call["id"] for call in getattr(one, "tool_calls", [])]) for one in result["messages"]]


# --- the programs: each drives one shape in each durability mode, in a thread of its own -----------------------------------------

MODES = ("sync", "async", "exit")
SHAPES = {shape.__name__: shape for shape in (chain, fan_out, subgraph, agent)}
NAMES = [f"{shape}_{way}" for shape in SHAPES for way in ("sync", "async")]


def program(name):
    """Return the program of that name."""
    shape, _, way = name.rpartition("_")

    def run(evidence):
        work = Work(evidence)
        return [SHAPES[shape](work, way, mode) for mode in MODES], work.paid()

    run.__name__ = run.__qualname__ = name
    return run


globals().update({name: program(name) for name in NAMES})
