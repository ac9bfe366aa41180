"""Wrapped flows: finished methods return what they returned, with the state they left; and a persistence of states alone."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter

import pytest

from tests.crewai.scripted import Scripted, final, text_of  # sets the environment first

# isort: split
from crewai import Agent, Crew, Task
from crewai.flow import Flow, and_, human_feedback, listen, or_, persist, router, start
from crewai.flow.persistence import SQLiteFlowPersistence
from pydantic import BaseModel, PrivateAttr

from letitloop import StepChanged, step
from letitloop.adapters.crewai import CrewAIDurabilityHandler, LetItLoopFlowPersistence, wrap_crew, wrap_flow
from letitloop.errors import InvalidArgument, UnencodableError

pytestmark = pytest.mark.filterwarnings("default")


class Died(Exception):
    pass


class LiteDied(Exception):
    """What CrewAI does not try again by itself."""

    __module__ = "litellm.exceptions"


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


# --- the order in which methods finish ---------------------------------------------------------------------------------------


class Gate:
    """Lets methods that run side by side return in a given order, each when the one before it has been reacted to."""

    def __init__(self, order):
        self.order = list(order)
        self.changed = asyncio.Event()

    async def __call__(self, name):
        while name in self.order and self.order[0] != name:
            await self.changed.wait()
        if name in self.order:
            self.order.pop(0)
            changed, self.changed = self.changed, asyncio.Event()
            changed.set()


def woven(ran, gate, dies, threads):
    """A flow whose way depends on the order in which three methods return; the method of the name ``dies`` raises."""
    loops = []

    def note(name, *said):
        ran.append((name, *said))
        if name == dies:
            raise Died

    def begun(name):
        if threads:
            asyncio.run_coroutine_threadsafe(gate(name), loops[0]).result()

    class Woven(Quiet):
        @start()
        async def here(self):
            loops.append(asyncio.get_running_loop())
            return 0

        @listen(here)
        def p(self):
            begun("p")
            note("p")
            return "p"

        @listen(here)
        async def q(self):
            await gate("q")
            note("q")
            return "q"

        @listen(here)
        async def r(self):
            await gate("r")
            note("r")
            return "r"

        @listen(or_(p, q, r))
        async def first(self, winner):
            note("first", winner)
            return f"first {winner}"

        @listen(and_(or_(p, q), r))
        async def both(self, last):
            note("both", last)
            return f"both {last}"

        @router(and_(p, q, r))
        async def choose(self, last):
            note("choose", last)
            return f"after {last}"

        @listen("after p")
        def after_p(self):
            note("after_p")
            return "after p"

        @listen(or_("after q", "after r"))
        async def after_other(self, last):
            note("after_other", last)
            return f"after other {last}"

        @listen(or_(after_p, after_other))
        async def end(self, way):
            note("end", way)
            return way

    return Woven()


@pytest.mark.parametrize("threads", [False, True], ids=["async", "threads"])
@pytest.mark.parametrize("order", ["pqr", "rqp", "qrp", "rpq"])
def test_what_is_on_record_goes_the_recorded_way(handlers, order, threads):
    def life(order, dies=None):
        ran = []
        flow = handlers().wrap_flow(woven(ran, Gate(order if threads else order.replace("p", "")), dies, threads))
        try:
            return flow.kickoff(), ran, flow
        except Died:
            return None, ran, flow

    _, ran, _ = life(order, "end")
    assert len(ran) == len({name for name, *_ in ran}) == 8
    said = {name: rest for name, *rest in ran}
    winner, way = said["first"], said["end"]
    for _ in range(2):  # it stops in the same place again
        assert life(order[::-1], "end")[1] == [("end", *way)]
    result, again, flow = life(order[::-1])
    assert again == [("end", *way)]
    assert result == way[0]
    outputs = flow.method_outputs
    assert f"first {winner[0]}" in outputs
    finished, nothing, flow = life(order[::-1])
    assert (finished, nothing) == (result, [])
    assert flow.method_outputs == outputs


@pytest.mark.parametrize("order", ["qr", "rq"])
def test_what_is_not_on_record_comes_after_what_is(handlers, order):
    """The first to return is on record; the other was under way, and does not overtake it in the next life."""

    def life(order, dies=None):
        ran = []
        flow = handlers().wrap_flow(woven(ran, Gate(order), dies, False))
        try:
            return flow.kickoff(), ran
        except Died:
            return None, ran

    _, ran = life(order, order[1])
    assert (order[1],) in ran
    before = {name for name, *_ in ran} - {order[1]}
    _, after = life(order[::-1])
    assert not before & {name for name, *_ in after}
    assert (order[1],) in after


def drawn(seed, pace, begun, done, dies):
    """A flow of ten methods with conditions drawn by a seed; the n-th method that begins raises if that is ``dies``."""
    draw = random.Random(seed)
    body, made = {}, []

    def condition():
        if len(made) == 1 or draw.random() < 0.3:
            return draw.choice(made)
        some = draw.sample(made, min(len(made), draw.randint(2, 3)))
        if len(some) == 3 and draw.random() < 0.5:
            inner, outer = draw.sample([or_, and_], 2)
            return outer(inner(*some[:2]), some[2])
        return draw.choice([or_, and_])(*some)

    def method(name):
        async def run(self, *said):
            begun.append((name, *said))
            number = len(begun)
            for _ in range(pace.randrange(30)):
                await asyncio.sleep(0)
            if number == dies:
                raise Died
            self.state.setdefault("log", []).append(name)
            done.append((name, *said))
            return f"{name}({''.join(said)})"

        return run

    def given(name):
        inner = method(name)

        async def run(self, said):
            return await inner(self, said)

        return run

    for number in range(10):
        name = f"m{number}"
        if number < 3:
            one = start()(_named(method(name), name))
        else:
            one = listen(condition())(_named(given(name), name))
        body[name] = one
        made.append(one)
    return type("Drawn", (Quiet,), body)()


def _named(function, name):
    function.__name__ = function.__qualname__ = name
    return function


@pytest.mark.parametrize("seed", [*range(8), 86])
def test_any_flow_goes_the_recorded_way(handlers, seed, caplog):
    recorded, log = Counter(), []
    for life in range(4):
        begun, done = [], []
        pace = random.Random(f"{seed} {life}")
        flow = handlers().wrap_flow(drawn(seed, pace, begun, done, pace.randint(2, 6) if life < 3 else None))
        try:
            flow.kickoff()
            ended = True
        except Died:
            ended = False
        assert not Counter(begun) & recorded  # each with its arguments: another way would give others
        recorded += Counter(done)
        log = flow.state["log"]
        if ended:
            break
    assert Counter(name for name, *_ in recorded.elements()) == Counter(log)
    flow = handlers().wrap_flow(drawn(seed, random.Random(0), begun := [], [], None))
    flow.kickoff()
    assert (begun, flow.state["log"]) == ([], log)
    assert "arguments changed" not in caplog.text


def test_a_loop_by_a_router_goes_the_recorded_way(handlers):
    ran, down = [], [True]

    class Loop(Quiet):
        @start()
        async def begin(self):
            return 0

        @router(or_(begin, "again"))
        async def turn(self):
            self.state["n"] = self.state.get("n", 0) + 1
            ran.append(self.state["n"])
            if self.state["n"] == 4 and down:
                raise Died
            return "again" if self.state["n"] < 5 else "over"

        @listen("again")
        def beside(self):
            self.state.setdefault("seen", []).append(self.state["n"])

        @listen("over")
        async def end(self):
            return self.state["n"], len(self.state["seen"])

    for life in range(3):
        flow = handlers().wrap_flow(Loop())
        if life == 0:
            with pytest.raises(Died):
                flow.kickoff()
            down.clear()
        else:
            assert flow.kickoff() == (5, 4)
    assert ran == [1, 2, 3, 4, 4, 5]


def test_a_failure_that_the_race_went_over_is_not_tried_again(handlers):
    ran, down = [], [True]

    class Race(Quiet):
        @start()
        async def go(self):
            return 1

        @listen(go)
        async def bad(self):
            ran.append("bad")
            raise ValueError("bad")

        @listen(go)
        async def good(self):
            while "bad" not in ran:
                await asyncio.sleep(0)
            ran.append("good")
            return "good"

        @listen(or_(bad, good))
        async def won(self, who):
            ran.append("won")
            return who

        @start()
        async def other(self):
            while "won" not in ran:
                await asyncio.sleep(0)
            if down:
                raise Died
            return "other"

    for life in range(2):
        flow = handlers().wrap_flow(Race())
        if life == 0:
            with pytest.raises(Died):
                flow.kickoff()
            down.clear()
        else:
            assert flow.kickoff() == "other"
    assert ran == ["bad", "good", "won"]


def test_changed_arguments_and_what_they_void_are_told_in_one_line(handlers, caplog):
    class Changing(Quiet):
        @start()
        def first(self):
            return "one"

        @listen(first)
        def second(self, said):
            return said

        @listen(second)
        def third(self, said):
            raise Died

    with pytest.raises(Died):
        handlers().wrap_flow(Changing()).kickoff()
    for on_change in ("raise", "reuse", "rerun"):
        flow = handlers(on_change=on_change).wrap_flow(Changing())
        stock = flow._execute_method

        async def execute_method(name, method, *args, _stock=stock):
            return await _stock(name, method, *(f"{one} edited" for one in args))

        object.__setattr__(flow, "_execute_method", execute_method)
        caplog.clear()
        if on_change == "raise":
            with pytest.raises(StepChanged, match="'arguments' differs") as raised:
                flow.kickoff()
            assert raised.value.__cause__ is None
            assert raised.value.__suppress_context__
        else:
            with pytest.raises(Died):
                flow.kickoff()
            told = [one.getMessage() for one in caplog.records if "changed" in one.getMessage() and one.levelname == "WARNING"]
            wanted = "is executed again: its arguments changed" if on_change == "rerun" else "although its arguments changed"
            assert len(told) == 1
            assert wanted in told[0]
            assert "'second'" in told[0]


def test_a_kickoff_that_failed_leaves_nothing_running(handlers):
    ran = []

    class Two(Quiet):
        @start()
        async def bad(self):
            while not ran:
                await asyncio.sleep(0)
            raise Died

        @start()
        async def slow(self):
            ran.append("begun")
            await asyncio.Event().wait()

    async def main():
        flow = handlers().wrap_flow(Two())
        with pytest.raises(Died):
            await flow.kickoff_async()
        return len(asyncio.all_tasks())

    assert asyncio.run(main()) == 1


# --- states ------------------------------------------------------------------------------------------------------------------


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


# --- crews in methods --------------------------------------------------------------------------------------------------------


def crew_of(script, *words):
    llm = Scripted(script)
    agent = Agent(role="speaker", goal="speak", backstory="long", llm=llm)
    return Crew(agents=[agent], tasks=[Task(description=one, expected_output="x", agent=agent) for one in words]), llm


def test_a_crew_that_failed_in_a_method_goes_on_when_it_is_kicked_off_again(handlers):
    asked, down = [], [True, True]

    def script(messages, call):
        word = "second" if "second" in text_of(messages) else "first"
        asked.append(word)
        if word == "second" and len(down) == 2:
            down.pop()
            return LiteDied()
        return final(word)

    class Again(Quiet):
        crew: object = None

        @start()
        def run(self):
            for _ in range(2):
                try:
                    said = self.crew.kickoff({"topic": "x"}).raw
                    break
                except LiteDied:
                    continue
            other = self.crew.kickoff({"topic": "other"}).raw
            if down:
                raise Died
            return said, other

    for life in range(2):
        handler = handlers()
        crew, _ = crew_of(script, "say first {topic}", "say second {topic}")
        flow = handler.wrap_flow(Again(crew=handler.wrap_crew(crew)))
        if life == 0:
            with pytest.raises(Died):
                flow.kickoff()
            down.clear()
        else:
            assert flow.kickoff() == ("second", "second")
    assert asked == ["first", "second", "second", "first", "second"]


def test_a_crew_of_another_session_in_a_method_is_a_part_of_the_flow(handlers, tmp_path):
    asked = []

    class Outer(Quiet):
        @start()
        def run(self):
            crew, _ = crew_of(lambda messages, call: asked.append(1) or final(self.state["x"]), "speak of {x}")
            wrap_crew(crew, session_id="inner", store=str(tmp_path / "store"))
            return crew.kickoff({"x": self.state["x"]}).raw

    for _ in range(2):
        flow = handlers().wrap_flow(Outer())
        assert [flow.kickoff({"x": "one"}), flow.kickoff({"x": "two"})] == ["one", "two"]
    assert len(asked) == 2


def test_people_asked_side_by_side_keep_their_answers(handlers):
    asked, down = [], [True]

    class Drafts(Quiet):
        @start()
        @human_feedback(message="is it good?")
        async def one(self):
            return "draft one"

        @start()
        @human_feedback(message="is it good?")
        async def two(self):
            return "draft two"

        @listen(and_(one, two))
        def end(self):
            if down:
                raise Died
            return sorted((str(had.output), had.feedback) for had in self.human_feedback_history)

    for life in range(2):
        flow = Drafts()

        def request(message, output, metadata=None, emit=None, method_name=None):
            asked.append(output)
            return f"about {output}"

        object.__setattr__(flow, "_request_human_feedback", request)
        handlers().wrap_flow(flow)
        if life == 0:
            with pytest.raises(Died):
                flow.kickoff()
            down.clear()
        else:
            assert flow.kickoff() == [("draft one", "about draft one"), ("draft two", "about draft two")]
    assert sorted(asked) == ["draft one", "draft two"]


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
