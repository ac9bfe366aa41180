"""States of flows: no write is lost or applied twice, whatever kind of state it is; and a persistence of states alone."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.crewai.flows import Counts, Died, Quiet, counting  # sets the environment first

# isort: split
from crewai.flow import and_, listen, persist, start
from crewai.flow.persistence import SQLiteFlowPersistence
from pydantic import BaseModel, PrivateAttr

from letitloop.adapters.crewai import LetItLoopFlowPersistence

pytestmark = pytest.mark.filterwarnings("default")


@pytest.mark.parametrize("wrapped", [False, True], ids=["stock", "wrapped"])
@pytest.mark.parametrize("kind", ["sqlite", "log"])
def test_counters_that_are_persisted_are_not_applied_twice(handlers, tmp_path, wrapped, kind):
    ran, down = [], [True]

    def life():
        states = (
            SQLiteFlowPersistence(str(tmp_path / "states.db"))
            if kind == "sqlite"
            else LetItLoopFlowPersistence(store=str(tmp_path))
        )
        flow = persist(states)(counting(ran, Quiet[Counts], down))()
        if wrapped:
            handlers().wrap_flow(flow)
        try:
            return flow.kickoff(inputs={"id": "order-1"}), flow.state.a
        finally:
            if kind == "log":
                states.close()

    with pytest.raises(Died):
        life()
    down.clear()
    result = life()
    if wrapped:
        assert result == (("two", 1, 1, ("one",)), 1)
        assert ran == ["one", "two", "three", "three"]
    else:
        assert result == (("two", 2, 2, ("one", "one")), 2)
        assert ran == ["one", "two", "three", "one", "two", "three"]


class Logged(BaseModel):
    id: str = ""
    log: list[str] = []
    a: int = 0
    b: int = 0


@pytest.mark.parametrize("kind", ["dict", "typed"])
def test_no_write_of_methods_side_by_side_is_lost(handlers, kind, caplog):
    down, early = [True], []

    class Both(Quiet if kind == "dict" else Quiet[Logged]):
        def put(self, name, value):
            if kind == "dict":
                self.state[name] = value
                self.state.setdefault("log", []).append(name)
            else:
                setattr(self.state, name, value)
                self.state.log.append(name)

        @start()
        async def a(self):
            if not down:
                self.put("a", 1)
                await asyncio.sleep(0)
                return
            if early:
                self.put("a", 7)
            await self.recorded.wait()
            raise Died

        @start()
        async def b(self):
            await asyncio.sleep(0)
            self.put("b", 2)

        @listen(b)
        async def after_b(self):
            self.recorded.set()

        @listen(and_(a, b))
        def end(self):
            state = self.state if kind == "dict" else self.state.__dict__
            return state["a"], state["b"], state["log"]

    def life():
        flow = handlers(**options).wrap_flow(Both())
        object.__setattr__(flow, "recorded", asyncio.Event())
        return flow.kickoff()

    options = {}
    with pytest.raises(Died):
        life()
    down.clear()
    assert life() == (1, 2, ["b", "a"])
    assert life() == (1, 2, ["b", "a"])


def test_what_a_killed_method_had_changed_is_told(handlers, caplog):
    down = [True]

    class Both(Quiet):
        @start()
        async def a(self):
            self.state["n"] = self.state.get("n", 0) + 1
            if down:
                await self.recorded.wait()
                raise Died
            return self.state["n"]

        @start()
        async def b(self):
            return 1

        @listen(b)
        async def after_b(self):
            self.recorded.set()

    for life in range(2):
        flow = handlers().wrap_flow(Both())
        object.__setattr__(flow, "recorded", asyncio.Event())
        caplog.clear()
        if life == 0:
            with pytest.raises(Died):
                flow.kickoff()
            down.clear()
        else:
            flow.kickoff()
    assert any("'a'" in one.getMessage() and "finished beside it" in one.getMessage() for one in caplog.records)


class Hidden(BaseModel):
    id: str = ""
    n: int = 0
    _hidden: int = PrivateAttr(0)
    _lock: object = PrivateAttr(default_factory=threading.Lock)


def test_private_attributes_and_set_fields_of_a_typed_state_are_kept(handlers, caplog):
    down = [True]

    class Private(Quiet[Hidden]):
        @start()
        def a(self):
            held = self.state
            self.state.n += 1
            self.state._hidden += 5
            return held is self.state

        @listen(a)
        def b(self, same):
            if down:
                raise Died
            with self.state._lock:
                return same, self.state.n, self.state._hidden, sorted(self.state.model_fields_set)

    for life in range(3):
        flow = handlers().wrap_flow(Private())
        held = flow.state
        if life == 0:
            with pytest.raises(Died):
                flow.kickoff()
            down.clear()
        else:
            result = flow.kickoff()
            assert result[:3] == (True, 1, 5)
            assert "n" in result[3]
            assert "id" not in result[3]
            assert flow.state is held
            assert flow.state._hidden == 5
    assert "'_lock'" in caplog.text


def test_a_persistence_keeps_states_and_pending_questions(tmp_path):
    from crewai.flow.async_feedback.types import PendingFeedbackContext

    first = LetItLoopFlowPersistence(store=str(tmp_path))
    assert first.load_state("f") is None
    first.save_state("f", "one", {"id": "f", "n": (1, 2)})
    first.save_state("f", "two", Counts(id="f", a=3))
    context = PendingFeedbackContext("f", "m:Flow", "ask", "draft", "is it good?", ["yes"], None, {}, None)
    first.save_pending_feedback("f", context, {"id": "f", "n": 1})
    first.close()
    second = LetItLoopFlowPersistence(store=str(tmp_path))
    assert second.load_state("f") == {"id": "f", "n": 1}
    state, pending = second.load_pending_feedback("f")
    assert (state["n"], pending.message, pending.emit) == (1, "is it good?", ["yes"])
    second.clear_pending_feedback("f")
    assert second.load_pending_feedback("f") is None
    second.save_state("f", "three", {"id": "f", "n": (1, 2)})
    assert second.load_state("f")["n"] == (1, 2)
    second.close()
