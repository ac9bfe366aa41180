"""Which checkpoints belong to a run: those that bear its name, and what a human made of them with the thread's plain config."""

from __future__ import annotations

import warnings
from typing import TypedDict

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from letitloop import MemoryStore
from letitloop_langgraph import InputsChanged, LetItLoopCheckpointSaver, durable_config
from tests.langgraph.helpers import restarted

PLAIN = {"configurable": {"thread_id": "t"}}
INPUTS = {"amount": 1}


class State(TypedDict, total=False):
    amount: int
    done: str


class Payments:
    """A graph that waits for a human before it pays, and tells what was done."""

    def __init__(self, *, asks=False):
        self.calls = []
        self.saver = LetItLoopCheckpointSaver(store=MemoryStore())
        graph = StateGraph(State)
        graph.add_node("ask", lambda state: {"amount": state["amount"] + 99})
        graph.add_node("pay", self.pay)
        graph.add_node("after", lambda state: self.calls.append("after") or {})
        for edge in ((START, "ask"), ("ask", "pay"), ("pay", "after")):
            graph.add_edge(*edge)
        self.asks = asks
        self.app = graph.compile(checkpointer=self.saver, interrupt_before=[] if asks else ["pay"])

    def pay(self, state):
        said = interrupt("pay?") if self.asks else "paid"
        self.calls.append(state["amount"])
        return {"done": f"{said} {state['amount']}"}

    def run(self, inputs=INPUTS, name="", **how):
        return self.app.invoke(inputs, durable_config("t", how.get("named", inputs), run=name))

    def approve(self, inputs=INPUTS, name=""):
        return self.run(None, name, named=inputs)

    def restarted(self):
        restarted(self.saver)


@pytest.fixture(autouse=True)
def _no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield


@pytest.mark.parametrize("resume", ["none", "plain"])
@pytest.mark.parametrize("edit", ["plain", "durable", "two", "as the node"])
def test_what_a_human_edits_counts_and_is_in_the_result_that_is_told_again(edit, resume):
    payments = Payments()
    payments.run()
    app = payments.app
    if edit == "two":
        app.update_state(PLAIN, {"amount": 7})
    app.update_state(
        durable_config("t", INPUTS) if edit == "durable" else PLAIN, {"amount": 5}, "ask" if edit == "as the node" else None
    )
    payments.restarted()
    assert payments.run() == {"amount": 5}  # given again, the inputs approve nothing
    done = {"none": lambda: payments.run(None, named=INPUTS), "plain": lambda: app.invoke(None, PLAIN)}[resume]()
    assert done == {"amount": 5, "done": "paid 5"}
    for _ in range(2):
        payments.restarted()
        assert payments.run() == done
    assert payments.calls == [5, "after"]
    app.update_state(PLAIN, {"done": "corrected"})  # after its end
    assert payments.run() == {"amount": 5, "done": "corrected"}
    assert payments.calls == [5, "after"]
    with pytest.raises(InputsChanged):
        payments.run({"amount": 2})


def test_an_interrupt_that_was_answered_with_the_plain_config_belongs_to_the_run():
    payments = Payments(asks=True)
    payments.run()
    done = payments.app.invoke(Command(resume="yes"), PLAIN)
    payments.restarted()
    assert payments.run() == done == {"amount": 100, "done": "yes 100"}
    assert payments.calls == [100, "after"]


def test_a_fork_of_an_earlier_checkpoint_is_the_run_from_then_on():
    payments = Payments()
    payments.run()
    payments.run(None)
    asked = next(state for state in payments.app.get_state_history(PLAIN) if state.next == ("pay",))
    payments.app.update_state(asked.config, {"amount": 3})
    payments.restarted()
    assert payments.run() == {"amount": 3}
    assert payments.run(None) == payments.run() == {"amount": 3, "done": "paid 3"}
    assert payments.calls == [100, "after", 3, "after"]


@pytest.mark.parametrize("order", ["edit, then the other run", "the other run, then the edit"])
def test_an_edit_belongs_to_the_run_that_it_was_made_in(order):
    payments = Payments()
    payments.run(name="a")
    if order == "edit, then the other run":
        payments.app.update_state(PLAIN, {"amount": 5})
    other = {"amount": 10}
    payments.run(other, name="b")
    if order == "the other run, then the edit":
        payments.app.update_state(PLAIN, {"amount": 6})
        assert payments.approve(other, "b") == {"amount": 6, "done": "paid 6"}
        want = {"amount": 100, "done": "paid 100"}
    else:
        assert payments.approve(other, "b") == {"amount": 109, "done": "paid 109"}
        want = {"amount": 5, "done": "paid 5"}
    with pytest.warns(RuntimeWarning, match="run 'a' of thread 't' was not finished, and goes on now from its own checkpoint"):
        assert payments.approve(name="a") == want


def test_a_plain_turn_after_a_run_is_not_part_of_it():
    payments = Payments()
    payments.run()
    done = payments.run(None)
    payments.app.invoke({"amount": 1000}, PLAIN)
    assert payments.run() == done
    assert payments.calls == [100, "after"]


@pytest.mark.parametrize("where", ["root", "subgraph"])
@pytest.mark.parametrize("kind", ["interrupt_before", "interrupt_after"])
def test_a_breakpoint_stays_until_somebody_approves(kind, where):
    calls = []

    def graph_of(**how):
        graph = StateGraph(State)
        for name in ("ask", "pay", "after"):
            graph.add_node(name, lambda state, name=name: calls.append(name) or {})
        for edge in ((START, "ask"), ("ask", "pay"), ("pay", "after")):
            graph.add_edge(*edge)
        return graph.compile(**how)

    saver = LetItLoopCheckpointSaver(store=MemoryStore())
    stops = {kind: ["pay" if kind == "interrupt_before" else "ask"]}
    if where == "root":
        app = graph_of(checkpointer=saver, **stops)
    else:
        outer = StateGraph(State)
        outer.add_node("sub", graph_of(**stops))
        outer.add_edge(START, "sub")
        app = outer.compile(checkpointer=saver)
    for _ in range(3):
        app.invoke(INPUTS, durable_config("t", INPUTS))
        restarted(saver)
        assert calls == ["ask"]
    app.invoke(None, durable_config("t", INPUTS))
    assert calls == ["ask", "pay", "after"]
    app.invoke(INPUTS, durable_config("t", INPUTS))
    assert calls == ["ask", "pay", "after"]


class Killed(BaseException):
    pass


def test_a_subgraph_with_a_memory_that_had_not_begun_begins_with_the_new_input():
    killed = []

    def graph_of(node, **how):
        graph = StateGraph(State)
        graph.add_node("node", node)
        graph.add_edge(START, "node")
        return graph.compile(**how)

    memory = graph_of(lambda state: {"done": f"{state.get('done', '')} {state['amount']}"}, checkpointer=True)

    def node(state):
        if state["amount"] == 2 and not killed:
            killed.append(1)
            raise Killed
        return {"done": memory.invoke({"amount": state["amount"]})["done"]}

    saver = LetItLoopCheckpointSaver(store=MemoryStore())
    app = graph_of(node, checkpointer=saver)
    one, two = {"amount": 1}, {"amount": 2}
    assert app.invoke(one, durable_config("t", one, run="1"))["done"] == " 1"
    with pytest.raises(Killed):
        app.invoke(two, durable_config("t", two, run="2"))
    for _ in range(2):
        restarted(saver)
        assert app.invoke(two, durable_config("t", two, run="2"))["done"] == " 1 2"
