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

    def restarted(self):
        restarted(self.saver)


@pytest.fixture(autouse=True)
def _no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield


@pytest.mark.parametrize("resume", ["inputs", "none", "plain"])
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
    done = {"inputs": payments.run, "none": lambda: payments.run(None, named=INPUTS), "plain": lambda: app.invoke(None, PLAIN)}[
        resume
    ]()
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
    assert payments.run() == {"amount": 3, "done": "paid 3"}
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
        assert payments.run(other, name="b") == {"amount": 6, "done": "paid 6"}
        want = {"amount": 100, "done": "paid 100"}
    else:
        assert payments.run(other, name="b") == {"amount": 109, "done": "paid 109"}
        want = {"amount": 5, "done": "paid 5"}
    with pytest.warns(RuntimeWarning, match="run 'a' of thread 't' was not finished, and goes on now from its own checkpoint"):
        assert payments.run(name="a") == want


def test_a_plain_turn_after_a_run_is_not_part_of_it():
    payments = Payments()
    payments.run()
    done = payments.run(None)
    payments.app.invoke({"amount": 1000}, PLAIN)
    assert payments.run() == done
    assert payments.calls == [100, "after"]
