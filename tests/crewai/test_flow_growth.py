"""Logs of flows grow with what their methods change, and a state comes back exactly; crews made in methods find their records."""

from __future__ import annotations

import asyncio
import random
import re

import pytest

from tests.crewai.flows import Died, Quiet
from tests.crewai.lives import results
from tests.crewai.scripted import Scripted, action, final  # sets the environment first

# isort: split
from crewai import Agent, Crew, Task
from crewai.flow import listen, or_, persist, router, start
from crewai.tools import tool
from pydantic import BaseModel, PrivateAttr

from letitloop.adapters.crewai import CrewAIDurabilityHandler, LetItLoopFlowPersistence
from letitloop_crewai import growth
from letitloop_crewai.growth import difference, patched

pytestmark = pytest.mark.filterwarnings("default")


class Talk(BaseModel):
    said: list[str] = []
    turn: int = 0


class Kept(BaseModel):
    id: str = ""
    log: list[str] = []
    text: str = ""
    count: int = 0
    by_kind: dict[str, list[str]] = {}
    talk: Talk = Talk()
    parts: list[Talk] = []
    _seen: list[str] = PrivateAttr(default_factory=list)


def grow(state, n, new):
    """Let every part of a state grow by something; return the parts."""
    if isinstance(state, dict):
        for name, value in Kept().model_dump(exclude={"id"}).items():
            state.setdefault(name, value)
        state["count"] = n
        talk, parts = state["talk"], state["parts"]
        talk["turn"] = n
        talk["said"].append(new)
        parts.append({"said": [new], "turn": n})
        parts[-1]["turn"] += 1
        state["log"].append(new)
        state["by_kind"].setdefault(f"kind {n % 3}", []).append(new)
        state["text"] += new
        return dict(state)
    state.log.append(new)
    state.text += new
    state.count = n
    state.by_kind.setdefault(f"kind {n % 3}", []).append(new)
    state.talk.turn = n
    state.talk.said.append(new)
    state.parts.append(Talk(said=[new], turn=n))
    state.parts[-1].turn += 1
    state._seen.append(new)
    return {**state.model_dump(), "seen": list(state._seen)}


def sized(place):
    return sum(one.stat().st_size for one in place.rglob("*") if one.is_file())


def growing(kind, steps, down=()):
    class Grows(Quiet if kind == "dict" else Quiet[Kept]):
        @start()
        def begin(self):
            return 0

        @router(or_(begin, "again"))
        def more(self):
            count = self.state.get("count", 0) if kind == "dict" else self.state.count
            grow(self.state, count + 1, random.Random(count).randbytes(100).hex())
            if count + 1 in down:
                raise Died
            return "again" if count + 1 < steps else "end"

        @listen("end")
        def last(self):
            return grow(self.state, steps + 1, "end")

    return Grows


@pytest.mark.parametrize("kind", ["dict", "typed"])
@pytest.mark.parametrize("persisted", [False, True])
def test_a_log_grows_with_what_methods_change(tmp_path, kind, persisted):
    sizes = []
    for steps in (20, 60):
        place = tmp_path / f"log {steps}"
        flow_class = growing(kind, steps)
        if persisted:
            persistence = LetItLoopFlowPersistence(store=str(place))
            persist(persistence)(flow_class)(max_method_calls=10_000).kickoff()
            persistence.close()
        else:
            with CrewAIDurabilityHandler(session_id="grows", store=str(place)) as handler:
                handler.wrap_flow(flow_class(max_method_calls=10_000)).kickoff()
                handler.unwrap()
        sizes.append(sized(place))
    assert sizes[1] < 4.5 * sizes[0]  # of a state that is recorded as a whole each time, nine times as much


@pytest.mark.parametrize("kind", ["dict", "typed"])
def test_a_state_that_grew_comes_back_exactly(handlers, kind):
    expected = growing(kind, 12)().kickoff()
    for down in ((5,), (6,), (7,), ()):  # a process that dies again and again
        flow = handlers().wrap_flow(growing(kind, 12, down)())
        if down:
            with pytest.raises(Died):
                flow.kickoff()
            with pytest.raises(Died):  # and one that tries again itself
                flow.kickoff()
        else:
            found = flow.kickoff()
    for one in (expected, found):
        one.pop("id")
    assert found == expected
    assert handlers().wrap_flow(growing(kind, 12)()).kickoff()["log"] == expected["log"]


def test_a_state_that_a_change_takes_back_is_no_base_of_another(handlers):
    """A method on record that is reached late, and is asked something else, takes back what was recorded after it."""
    ran, down = [], [True]

    def life(edited):
        class Edited(Quiet):
            def add(self, name):
                ran.append(name)
                self.state.setdefault("log", []).append(f"{name} {random.Random(name).randbytes(200).hex()}")

            @start()
            def begin(self):
                self.add("begin")

            @listen("mid" if edited else begin)
            def left(self, given):
                self.add("left")

            @listen(begin if edited else left)
            def right(self, given):
                self.add("right")

            @listen(right if edited else "nobody")
            def mid(self, given):
                self.add("mid")
                return "else"

            @listen(left if edited else right)
            def end(self, given):
                if down:
                    raise Died
                return [one.split()[0] for one in self.state["log"]]

        return handlers().wrap_flow(Edited()).kickoff()

    for edited in (False, True):
        with pytest.raises(Died):
            life(edited)
    assert ran == ["begin", "left", "right", "mid", "left"]
    down.clear()
    assert life(True) == ["begin", "left", "right", "mid", "left"]


def test_bytes_are_put_together_again():
    rng = random.Random(7)
    for _ in range(300):
        old = b"".join(bytes([rng.randrange(4)]) * rng.randrange(90) for _ in range(rng.randrange(20)))
        new = bytearray(old)
        for _ in range(rng.randrange(5)):
            at = rng.randrange(len(new) + 1)
            new[at : at + rng.randrange(100)] = rng.randbytes(rng.randrange(100))
        pieces = difference(old, bytes(new))
        assert pieces is None or patched(old, pieces) == new
    old = rng.randbytes(5000)
    new = old[:1000] + b"x" + old[1002:3000] + b"more" * 5 + old[3000:] + b"end"
    assert sum(len(one) for one in difference(old, new) if isinstance(one, bytes)) < 60


def test_a_state_that_changed_everywhere_is_recorded_as_a_whole():
    """Finding each of its parts would take longer than writing them: what is looked at has a bound."""
    old = b"".join(
        b'{"id": %d, "seen": %d, "of": "%s"}, ' % (i, i, random.Random(i).randbytes(40).hex().encode()) for i in range(20_000)
    )
    new = re.sub(rb'"seen": (\d+)', lambda found: b'"seen": %d' % (int(found[1]) + 1), old)
    assert difference(old, old + new) is not None
    pieces = difference(old, new)
    assert pieces is None or len(pieces) < 2 * growth._PATIENCE / growth._FOUND


# --- crews that methods make -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("short", "fatal"), [(False, 1), (False, 4), (False, 6), (False, 8), (True, 4)])
def test_crews_and_flows_made_in_methods_find_their_records(handlers, tmp_path, short, fatal):
    """Whatever is skipped before them, and however many of one name a method makes, side by side too."""
    done = []

    def life(dies):
        handler = handlers()
        others = []

        def made(n):
            def script(messages, asked):
                return final(f"r{n}") if results(messages) else action("look", what=str(n))

            @tool
            def look(what: str) -> str:
                """Look."""
                done.append(what)
                return "seen"

            one = Agent(role="w", goal="g", backstory="b", llm=Scripted(script), tools=[look])
            crew = Crew(agents=[one], tasks=[Task(description=f"do {n}", expected_output="x", agent=one)])
            if short:
                others.append(CrewAIDurabilityHandler(session_id="in", store=str(tmp_path / "store")))
            return (others or [handler])[-1].wrap_crew(crew)

        def after(n):
            if dies == n:
                raise Died

        class Inner(Quiet):
            @start()
            def run(self):
                return made(self.state["n"]).kickoff().raw

        class Outer(Quiet):
            @start()
            def a(self):
                first, second = made(1), made(2)
                found = first.kickoff().raw
                after(1)
                found += second.kickoff().raw
                after(2)
                return found

            @listen(a)
            async def b(self, said):
                after(3)
                found = await asyncio.gather(*(made(n).kickoff_async() for n in (3, 4)))
                after(4)
                return said + "".join(one.raw for one in found)

            @listen(b)
            async def c(self, said):
                for n in (5, 6):
                    said += await handler.wrap_flow(Inner()).kickoff_async({"n": n})
                    after(n)
                return said

            @listen(c)
            def d(self, said):
                after(7)
                said += made(8).kickoff().raw
                after(8)
                return said

        try:
            return handler.wrap_flow(Outer()).kickoff()
        finally:
            for one in others:
                one.unwrap()

    with pytest.raises(Died):
        life(fatal)
    assert life(0) == "r1r2r3r4r5r6r8"
    assert sorted(done) == list("1234568")
