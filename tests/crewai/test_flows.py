"""Wrapped flows: finished methods return what they returned, with the state they left; and a persistence of states alone."""

from __future__ import annotations

import asyncio

import pytest

from tests.crewai.scripted import Scripted, final  # sets the environment first

# isort: split
from crewai import Agent, Crew, Task
from crewai.flow import Flow, and_, listen, persist, router, start
from crewai.flow.persistence import SQLiteFlowPersistence
from pydantic import BaseModel

from letitloop import StepChanged, step
from letitloop.adapters.crewai import CrewAIDurabilityHandler, LetItLoopFlowPersistence, wrap_flow
from letitloop.errors import InvalidArgument, UnencodableError

pytestmark = pytest.mark.filterwarnings("default")


class Died(Exception):
    pass


@pytest.fixture
def handlers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = []

    def begin(**options):
        for one in made:
            one.unwrap()
            one.close()
        made.append(CrewAIDurabilityHandler(session_id="flows", store=str(tmp_path / "store"), **options))
        return made[-1]

    yield begin
    for one in made:
        one.unwrap()
        one.close()


class Quiet(Flow):
    """A flow without what CrewAI prints and imports."""

    _skip_auto_memory = True

    def __init__(self, **options):
        super().__init__(suppress_flow_events=True, **options)


class Counts(BaseModel):
    id: str = ""
    a: int = 0
    b: int = 0
    seen: tuple[str, ...] = ()


def counting(ran, base, down):
    """A flow of three methods that add to a persisted state; it dies in the third while ``down``."""

    class Counting(base):
        @start()
        def one(self):
            ran.append("one")
            self.state.a += 1
            return "one"

        @listen(one)
        def two(self, said):
            ran.append("two")
            self.state.b += 1
            self.state.seen = (*self.state.seen, said)
            return "two"

        @listen(two)
        def three(self, said):
            ran.append("three")
            if down:
                raise Died
            return said, self.state.a, self.state.b, self.state.seen

    return Counting


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


def test_a_flow_that_was_completed_answers_from_the_log(handlers):
    ran = []
    ids = []
    for _ in range(2):
        flow = handlers().wrap_flow(counting(ran, Quiet[Counts], [])())
        assert flow.kickoff() == ("two", 1, 1, ("one",))
        ids.append(flow.state.id)
    assert ran == ["one", "two", "three"]
    assert ids[0] == ids[1]  # the state's random id too


def test_each_kickoff_of_a_script_is_one_of_its_own(handlers):
    ran = []
    for life in range(2):
        flow = handlers().wrap_flow(counting(ran, Quiet[Counts], [])())
        assert [flow.kickoff()[1] for _ in range(2)] == [1, 2]
        assert len(ran) == 6
        assert asyncio.run(flow.akickoff())[1] == 3 if life else True


def test_routers_and_joins_go_the_recorded_way(handlers):
    ran, down = [], [True]

    class Routed(Quiet):
        @start()
        def left(self):
            ran.append("left")
            self.state["left"] = 1

        @start()
        async def right(self):
            ran.append("right")
            self.state["right"] = 1

        @router(and_(left, right))
        def choose(self):
            ran.append("choose")
            return "up" if len(ran) == 3 else "down"

        @listen("up")
        def end(self):
            if down:
                raise Died
            return sorted(key for key in self.state if key != "id")

        @listen("down")
        def wrong(self):
            raise AssertionError("another way than at first")

    for life in range(2):
        flow = handlers().wrap_flow(Routed())
        if life:
            down.clear()
            assert flow.kickoff() == ["left", "right"]
        else:
            with pytest.raises(Died):
                flow.kickoff()
    assert sorted(ran) == ["choose", "left", "right"]


def test_crews_and_steps_inside_a_method_are_parts_of_it(handlers):
    llms, stepped = [], []

    class Outer(Quiet):
        crew: object = None

        @start()
        def run(self):
            step("note", stepped.append, 1)
            raw = self.crew.kickoff().raw
            if len(llms) == 1:
                raise Died
            return raw

    for life in range(2):
        llm = Scripted(lambda messages, asked: final("said"))
        llms.append(llm)
        agent = Agent(role="speaker", goal="speak", backstory="long", llm=llm)
        crew = Crew(agents=[agent], tasks=[Task(description="speak", expected_output="x", agent=agent)])
        handler = handlers()
        flow = handler.wrap_flow(Outer(crew=handler.wrap_crew(crew)))
        if life:
            assert flow.kickoff() == "said"
        else:
            with pytest.raises(Died):
                flow.kickoff()
    assert [len(llm.asked) for llm in llms] == [1, 0]
    assert stepped == [1]


def test_other_inputs_and_what_cannot_be_recorded_are_errors(handlers):
    class Odd(Quiet):
        @start()
        def odd(self):
            return (lambda: 1) if self.state.get("odd") else self.state["number"]

    assert handlers().wrap_flow(Odd()).kickoff({"number": 1}) == 1
    with pytest.raises(StepChanged, match="'number' differs"):
        handlers().wrap_flow(Odd()).kickoff({"number": 2})
    with pytest.raises(UnencodableError):
        handlers(auto_resume=False).wrap_flow(Odd()).kickoff({"odd": True})


def test_a_humans_answers_are_not_asked_again(handlers):
    asked, down = [], [True]

    class Person:
        def request_input(self, message, flow, metadata=None):
            asked.append(message)
            return "yes"

    class Asking(Quiet):
        @start()
        def ask_first(self):
            answer = self.ask("really?")
            if down:
                raise Died
            return answer

    for life in range(2):
        flow = handlers().wrap_flow(Asking(input_provider=Person()))
        if life:
            down.clear()
            assert flow.kickoff() == "yes"
        else:
            with pytest.raises(Died):
                flow.kickoff()
    assert asked == ["really?"]


def test_wrapping_is_taken_back(handlers, tmp_path):
    ran = []
    flow = counting(ran, Quiet[Counts], [])()
    handler = handlers()
    assert handler.wrap_flow(flow) is handler.wrap_flow(flow) is flow
    with pytest.raises(InvalidArgument, match="'flows' already"):
        wrap_flow(flow, session_id="other", store=str(tmp_path))
    with pytest.raises(InvalidArgument, match="no flow"):
        handler.wrap_flow(object())
    handler.unwrap()
    flow.kickoff()
    flow.kickoff()
    assert len(ran) == 6


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
