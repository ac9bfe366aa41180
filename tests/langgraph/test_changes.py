"""A model or tool call that asks something else than its record: what is told, and every way on that is told works."""

from __future__ import annotations

from typing import TypedDict

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import dynamic_prompt
from langchain.agents.structured_output import AutoStrategy, ProviderStrategy, ToolStrategy
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.func import task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command, interrupt
from pydantic import BaseModel

from letitloop import Ledger, durable, effect, step
from letitloop.errors import InvalidArgument, StepChanged
from letitloop_langgraph import DurableMiddleware, adurable_tool_call, durable_config, durable_tool_call
from tests.langgraph.helpers import restarted
from tests.langgraph.programs import Scripted, asked, summary
from tests.langgraph.test_tools import Calls, run

WAYS = ["sync", "async"]


class Program:
    """An agent whose prompt tells the time, and which dies after its model answered, once or more often."""

    def __init__(self, saver, *, on_change="raise", nested=False, prompt=None, deaths=1):
        self.calls, self.saver, self.inputs = Calls(), saver, {"messages": [HumanMessage("go")]}
        self.clock, self.deaths = iter(range(1000)), deaths
        program = self

        class Dies(DurableMiddleware):
            def wrap_model_call(self, request, handler):
                return program.die(super().wrap_model_call(request, handler))

            async def awrap_model_call(self, request, handler):
                return program.die(await super().awrap_model_call(request, handler))

        @tool
        def search(q: str) -> str:
            """Search."""
            self.calls.call(f"search {q}")
            return f"found {q}"

        before = dynamic_prompt(prompt or (lambda request: f"It is {next(self.clock)} o'clock."))
        agent = create_agent(
            Scripted(calls=self.calls, answers=[asked(("search", {"q": "a"}, "c1")), summary]),
            [search],
            middleware=[before, Dies(on_change=on_change)],
            checkpointer=None if nested else saver,
        )
        if nested:
            graph = StateGraph(MessagesState)
            graph.add_node("agent", agent)
            graph.add_edge(START, "agent")
            agent = graph.compile(checkpointer=saver)
        self.app = agent

    def die(self, answer):
        if self.deaths:
            self.deaths -= 1
            raise OSError("the process died")
        return answer

    def invoke(self, way, thread="1"):
        restarted(self.saver)
        return run(self.app, way, self.inputs, durable_config(thread, self.inputs))["messages"][-1].content

    def asks(self, thread="1"):
        return sum(name == "model-0" for name in self.calls.made)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("nested", [False, True], ids=["agent", "as a subgraph"])
def test_each_way_on_that_a_changed_call_tells_of_works(saver, way, nested):
    program = Program(saver, nested=nested)
    with pytest.raises(OSError, match="died"):
        program.invoke(way)
    for _ in range(2):
        with pytest.raises(StepChanged, match="'system' differs") as told:
            program.invoke(way)
    assert program.asks() == 1
    assert "app.update_state(config, None)" in str(told.value)
    assert "on_change='reuse' of DurableMiddleware" in str(told.value)
    assert "rewind" not in str(told.value)
    assert program.invoke(way, "another") == "told: found a"
    program.app.update_state({"configurable": {"thread_id": "1"}}, None)
    assert program.invoke(way) == program.invoke(way) == "told: found a"
    assert program.asks() == 3
    saver.delete_thread("1")
    assert program.invoke(way) == "told: found a"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("on_change", "asks"), [("rerun", 2), ("reuse", 1)])
@pytest.mark.parametrize("nested", [False, True], ids=["agent", "as a subgraph"])
def test_a_changed_call_is_made_anew_or_answered_as_it_was(saver, way, on_change, asks, nested):
    program = Program(saver, on_change=on_change, nested=nested)
    with pytest.raises(OSError, match="died"):
        program.invoke(way)
    assert program.invoke(way) == program.invoke(way) == "told: found a"
    assert program.asks() == asks
    assert program.calls.of("search") == ["search a"]


def test_what_stands_before_may_be_made_of_steps(saver):
    program = Program(saver, prompt=lambda request: f"It is {step('clock', lambda: next(program.clock))} o'clock.")
    with pytest.raises(OSError, match="died"):
        program.invoke("sync")
    assert program.invoke("sync") == "told: found a"
    assert program.asks() == 1


@pytest.mark.parametrize("on_change", ["raise", "rerun", "reuse"])
def test_a_step_beside_the_calls_is_not_changed_with_them(saver, on_change):
    """What is said of model and tool calls is said of no step that the node, or the tool, calls itself."""
    runs = iter(range(10))

    def prompt(request):
        step("look", lambda n: n, next(runs))
        return "the same"

    program = Program(saver, on_change=on_change, prompt=prompt)
    with pytest.raises(OSError, match="died"):
        program.invoke("sync")
    with pytest.raises(StepChanged, match="look"):
        program.invoke("sync")


@pytest.mark.parametrize("way", WAYS)
def test_what_was_made_anew_is_what_counts_from_then_on(saver, way):
    program = Program(saver, on_change="rerun", deaths=2)
    for _ in range(2):
        with pytest.raises(OSError, match="died"):
            program.invoke(way)
    program.clock = iter([1, 2])  # asks first what the second life asked
    assert program.invoke(way) == "told: found a"
    assert program.asks() == 2


def tool_node(saver, tools, arguments, *, on_change, dies=(), then=None):
    """A graph of one tool node, whose calls ask what comes next, and which dies after as many calls as ``dies`` says."""
    call, acall, dies = durable_tool_call(on_change=on_change), adurable_tool_call(on_change=on_change), list(dies)

    def altered(request):
        return request.override(tool_call={**request.tool_call, "args": {"q": next(arguments)}})

    def ended(answer):
        if then is not None:
            then()
        if dies and dies.pop():
            raise OSError("the process died")
        return answer

    def sync(request, execute):
        return ended(call(altered(request), execute))

    async def later(request, execute):
        return ended(await acall(altered(request), execute))

    graph = StateGraph(MessagesState)
    graph.add_node("tools", ToolNode(tools, wrap_tool_call=sync, awrap_tool_call=later, handle_tool_errors=False))
    graph.add_edge(START, "tools")
    return graph.compile(checkpointer=saver)


HERE = {"configurable": {"thread_id": "1"}}
ASKED = {"messages": [asked(("search", {"q": "?"}, "c1"))]}


@tool("search")
def searching(q: str) -> str:
    """Search."""
    return f"found {q}"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("on_change", "found"), [("raise", None), ("rerun", "found b"), ("reuse", "found a")])
def test_a_changed_call_of_a_tool_node(saver, way, on_change, found):
    app = tool_node(saver, [searching], iter("ab"), on_change=on_change, dies=[True])
    with pytest.raises(OSError, match="died"):
        run(app, way, ASKED, HERE)
    restarted(saver)
    if found is None:
        with pytest.raises(StepChanged, match="'q' differs"):
            run(app, way, None, HERE)
    else:
        assert run(app, way, None, HERE)["messages"][-1].content == found


@pytest.mark.parametrize("way", WAYS)
def test_a_call_is_not_made_anew_if_that_took_an_effect_back(saver, way):
    pay = effect(key="invoice/{number}", ledger=Ledger(store=saver.store))(lambda number: "paid")
    app = tool_node(saver, [searching], iter("ab"), on_change="rerun", dies=[True], then=lambda: pay(number="7"))
    with pytest.raises(OSError, match="died"):
        app.invoke(ASKED, HERE)
    restarted(saver)
    with pytest.raises(StepChanged, match=r"invoice%2F7.*on_change='rerun' is refused"):
        app.invoke(None, HERE)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("where", ["in it", "after it"])
def test_a_call_is_not_made_anew_if_another_question_got_a_humans_answer(saver, way, where):
    seen = []

    @tool("search")
    def asking(q: str) -> str:
        """Ask."""
        if where == "in it":
            seen.append((q, interrupt(f"search {q}?")))
        return f"found {q}"

    def then():
        if where == "after it":
            step("ask", lambda: seen.append(("after", interrupt("go on?"))))

    # asked, answered and killed, and begun with another question
    app = tool_node(saver, [asking], iter("aab"), on_change="rerun", dies=[True], then=then)
    run(app, "sync", ASKED, HERE)
    restarted(saver)
    with pytest.raises(OSError, match="died"):
        run(app, way, Command(resume="yes"), HERE)
    assert [answer for _, answer in seen] == ["yes"]
    restarted(saver)
    with pytest.raises(StepChanged, match="unless a human was asked, or a subgraph or @task called"):
        run(app, way, None, HERE)
    assert [answer for _, answer in seen] == ["yes"]


class Asked(TypedDict, total=False):
    q: str
    r: str


def subgraph(answer):
    graph = StateGraph(Asked)
    graph.add_node("answer", lambda state: {"r": answer(state["q"])})
    graph.add_edge(START, "answer")
    return graph.compile()


INNER = {
    "subgraph": lambda q: subgraph(lambda q: f"found {q}").invoke({"q": q})["r"],
    "subgraph that asks": lambda q: subgraph(lambda q: f"found {q}, {interrupt(q)}").invoke({"q": q})["r"],
    "task": lambda q: task(lambda q: f"found {q}", name="look")(q).result(),
}


@pytest.mark.parametrize("mode", ["sync", "exit"])
@pytest.mark.parametrize("where", ["in it", "after it", "in one under way"])
@pytest.mark.parametrize("kind", INNER)
def test_a_call_is_not_made_anew_if_another_question_got_what_a_subgraph_or_task_came_to(saver, mode, where, kind):
    made = []

    @tool("search")
    def looking(q: str) -> str:
        """Look."""
        made.append(q)
        return INNER[kind](q) if where == "in it" else f"found {q}"

    def inside():
        found = INNER[kind]("c")
        if where == "in one under way" and deaths:
            deaths.pop()
            raise KeyboardInterrupt
        return found

    def then():
        if where != "in it":
            step("after", inside)

    arguments, deaths = iter("aab" if "asks" in kind else "ab"), [1]
    app = tool_node(saver, [looking], arguments, on_change="rerun", dies=[where != "in one under way"], then=then)
    inputs = ASKED
    if "asks" in kind:
        app.invoke(ASKED, HERE, durability=mode)
        restarted(saver)
        inputs = Command(resume="yes")
        if where == "in it":
            made.clear()
    with pytest.raises((OSError, KeyboardInterrupt)):
        app.invoke(inputs, HERE, durability=mode)
    restarted(saver)
    with pytest.raises(StepChanged, match="unless a human was asked, or a subgraph or @task called"):
        app.invoke(None, HERE, durability=mode)
    assert made == ["a"]


@pytest.mark.parametrize("way", WAYS)
def test_a_call_is_made_anew_after_a_human_answered_one_before_it(saver, way):
    seen = []

    def node(state):
        step("ask", lambda: seen.append(interrupt("go on?")))
        answer = durable_tool_call(on_change="rerun")(request(next(arguments)), lambda asked: found(asked))
        if len(seen) == 1 and deaths:
            deaths.pop()
            raise OSError("the process died")
        return {"messages": [answer]}

    def request(q):
        call = asked(("search", {"q": q}, "c1")).tool_calls[0]
        return ToolCallRequest(tool_call=call, tool=searching, state={}, runtime=None)

    def found(asked):
        return ToolMessage(f"found {asked.tool_call['args']['q']}", tool_call_id="c1")

    arguments, deaths = iter("ab"), [1]
    graph = StateGraph(MessagesState)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    app = graph.compile(checkpointer=saver)
    app.invoke({"messages": []}, HERE)
    restarted(saver)
    with pytest.raises(OSError, match="died"):
        run(app, way, Command(resume="yes"), HERE)
    restarted(saver)
    assert run(app, way, None, HERE)["messages"][-1].content == "found b"
    assert seen == ["yes"]


@pytest.mark.parametrize(("on_change", "asks"), [("rerun", 2), ("reuse", 1)])
def test_a_changed_call_in_a_durable_function(tmp_path, on_change, asks):
    """Where no saver of ours is, its record is that of the function around it."""
    program = Program(None, on_change=on_change)
    work = durable(store=tmp_path, goal_id="one")(lambda: program.app.invoke(program.inputs)["messages"][-1].content)
    with pytest.raises(OSError, match="died"):
        work()
    assert work() == "told: found a"
    assert program.asks() == asks


def test_a_word_that_means_nothing_is_refused():
    with pytest.raises(InvalidArgument, match="on_change='ignore'"):
        DurableMiddleware(on_change="ignore")
    with pytest.raises(InvalidArgument, match="on_change=None"):
        durable_tool_call(on_change=None)


@pytest.mark.parametrize("way", WAYS)
def test_the_policy_of_one_task_is_that_of_none_beside_it(saver, way):
    programs = [Program(None, on_change=on_change) for on_change in ("raise", "rerun", "reuse") * 2]
    graph = StateGraph(MessagesState)
    for at, program in enumerate(programs):
        graph.add_node(str(at), program.app)
        graph.add_edge(START, str(at))
    app, inputs = graph.compile(checkpointer=saver), {"messages": [HumanMessage("go")]}
    with pytest.raises(OSError, match="died"):
        run(app, way, inputs, durable_config("1", inputs))
    for _ in range(2):
        restarted(saver)
        with pytest.raises((StepChanged, OSError)):  # the first life ended with the first that died
            run(app, way, None, {"configurable": {"thread_id": "1"}})
    with pytest.raises(StepChanged):
        run(app, way, None, {"configurable": {"thread_id": "1"}})
    assert [program.asks() for program in programs] == [1, 2, 1] * 2


class Amount(BaseModel):
    """An amount, in cents."""

    value: int


class Money(BaseModel):
    """An amount, in euros."""

    value: int
    currency: str = "EUR"


def schemas(title):
    """One JSON schema without a title has another name in each process."""
    return {**({"title": title} if title else {}), "type": "object", "properties": {"value": {"type": "integer"}}}


FORMATS = {
    "tools": (lambda: ToolStrategy(Amount), lambda: ToolStrategy(Money)),
    "another of a union": (lambda: ToolStrategy(Amount), lambda: ToolStrategy(Amount | Money)),
    "provider": (lambda: ProviderStrategy(Amount), lambda: ProviderStrategy(Money)),
    "strict": (lambda: ProviderStrategy(Amount), lambda: ProviderStrategy(Amount, strict=True)),
    "whichever": (lambda: AutoStrategy(Amount), lambda: AutoStrategy(Money)),
    "a class": (lambda: Amount, lambda: Money),
    "no title": (lambda: schemas(None), lambda: {**schemas(None), "description": "in euros"}),
    "a title": (lambda: schemas("Amount"), lambda: schemas("Money")),
    "none": (lambda: None, lambda: Amount),
}


@pytest.mark.parametrize("kind", FORMATS)
def test_an_answer_in_another_form_is_another_question(saver, kind):
    calls, deaths = Calls(), [1]

    class Dies(DurableMiddleware):
        def wrap_model_call(self, request, handler):
            answer = super().wrap_model_call(request, handler)
            if deaths:
                deaths.pop()
                raise OSError("the process died")
            return answer

    def invoke(wanted):
        restarted(saver)
        model = Scripted(calls=calls, answers=[AIMessage('{"value": 5}')])
        create_agent(model, [], middleware=[Dies()], response_format=wanted, checkpointer=saver).invoke(inputs, config)

    inputs, (before, after) = {"messages": [HumanMessage("go")]}, FORMATS[kind]
    config = durable_config("1", inputs)
    with pytest.raises(OSError, match="died"):
        invoke(before())
    with pytest.raises(StepChanged, match="'response_format' differs"):
        invoke(after())
    invoke(before())
    assert calls.made == ["model-0"]
