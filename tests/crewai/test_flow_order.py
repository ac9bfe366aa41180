"""The order in which a flow's methods finish: what is on record goes the recorded way, and comes before what is not."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from tests.crewai.flows import Died, Quiet  # sets the environment first

# isort: split
from crewai.flow import and_, listen, or_, router, start

from letitloop import StepChanged

pytestmark = pytest.mark.filterwarnings("default")


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
