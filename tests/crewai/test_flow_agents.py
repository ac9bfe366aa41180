"""Agents that are kicked off by themselves: in flows' methods and in tools their calls are durable, and effects hold."""

from __future__ import annotations

import asyncio

import pytest

from tests.crewai.flows import Died, Quiet
from tests.crewai.lives import Died as LiteDied
from tests.crewai.lives import Pay, paying, results
from tests.crewai.scripted import Scripted, action, call, final, prompt_of  # sets the environment first

# isort: split
from crewai import Agent, Crew, Task
from crewai.flow import listen, start
from crewai.lite_agent import LiteAgent
from crewai.memory.types import MemoryMatch, MemoryRecord
from crewai.tools import tool

from letitloop import StepChanged, UnknownOutcome, effect, effect_context, step
from letitloop.errors import InvalidArgument
from letitloop_crewai.wrapping import _held
from tests.effects.bank import Bank

pytestmark = pytest.mark.filterwarnings("default")


def agent(script, *tools, kind=Agent, native=False, role="payer", **options):
    return kind(role=role, goal="pay", backstory="long", llm=Scripted(script, native=native), tools=list(tools), **options)


def pays(said, *, native=False):
    """A script that pays once and then concludes; it notes what it is asked."""

    def script(messages, asked):
        said.append(prompt_of(messages))
        if results(messages):
            return "paid" if native else final("paid")
        return [call("pay", number=1)] if native else action("pay", number=1)

    return script


def lives_of(handlers, flow_class, down, **options):
    """Two lives of a flow, the first of which dies; return what the second came to."""
    with pytest.raises(Died):
        handlers(**options).wrap_flow(flow_class()).kickoff()
    down.clear()
    return handlers(**options).wrap_flow(flow_class()).kickoff()


@pytest.mark.parametrize(
    "way", ["method", "async method", "kickoff_async", "akickoff", "to_thread", "lite", "lite async", "step", "native"]
)
def test_an_effect_holds_for_an_agent_in_a_method(handlers, tmp_path, way):
    bank, said, down = Bank(tmp_path / "bank", "window"), [], [True]

    def one():
        kind = LiteAgent if way.startswith("lite") else Agent
        return agent(pays(said, native=way == "native"), paying(), kind=kind, native=way == "native")

    class Sync(Quiet):
        @start()
        def run(self):
            raw = step("pay", lambda: one().kickoff("pay it").raw) if way == "step" else one().kickoff("pay it").raw
            if down:
                raise Died
            return raw

    class Async(Quiet):
        @start()
        async def run(self):
            if way == "to_thread":
                raw = (await asyncio.to_thread(one().kickoff, "pay it")).raw
                if down:
                    raise Died
                return raw
            name = {"kickoff_async": "kickoff_async", "akickoff": "akickoff", "lite async": "kickoff_async"}.get(way, "kickoff")
            raw = (await getattr(one(), name)("pay it")).raw
            if down:
                raise Died
            return raw

    flow_class = Async if "async" in way or way in ("akickoff", "to_thread") else Sync
    policy = {"pay": effect(key="pay/{number}", provider=bank)}
    assert lives_of(handlers, flow_class, down, tools=policy) == "paid"
    assert len(bank.done()) == 1
    assert len(said) == 2


def test_classes_are_given_back(handlers):
    class Plain(Quiet):
        @start()
        def run(self):
            return 1

    before = [set(_held[id(cls)].users) if id(cls) in _held else set() for cls in (Agent, LiteAgent, Crew)]
    handler = handlers()
    handler.wrap_flow(Plain())
    assert hasattr(Agent.kickoff, "__letitloop_wraps__")
    handler.unwrap()
    assert [_held[id(cls)].users if id(cls) in _held else set() for cls in (Agent, LiteAgent, Crew)] == before
    assert hasattr(Agent.kickoff, "__letitloop_wraps__") == bool(before[0])  # tests before this one may hold it


def test_agents_side_by_side_keep_each_its_own(handlers):
    said, down = [], [True]

    def script(messages, asked):
        said.append(prompt_of(messages))
        return final("about a" if "tell of a" in said[-1] else "about b")

    class Both(Quiet):
        @start()
        async def run(self):
            async def ask(what, turns):
                for _ in range(turns):
                    await asyncio.sleep(0)
                return (await agent(script).kickoff_async(f"tell of {what}")).raw

            many = (50, 0) if down else (0, 50)  # another order in the next life
            found = await asyncio.gather(*map(ask, "ab", many))
            if down:
                raise Died
            return found

    assert lives_of(handlers, Both, down) == ["about a", "about b"]
    assert len(said) == 2


def test_equal_kickoffs_are_two_and_one_that_failed_goes_on(handlers):
    said, down = [], [True]

    def script(messages, asked):
        said.append(1)
        if len(said) == 2:
            return LiteDied("the model is down")
        return final(f"{len(said)}") if results(messages) else action("look", what="x")

    @tool
    def look(what: str) -> str:
        """Look."""
        said.append("look")
        return "seen"

    class Again(Quiet):
        @start()
        def run(self):
            found = []
            while len(found) < 2:
                try:
                    found.append(agent(script, look).kickoff("go").raw)
                except LiteDied:
                    continue
            if down:
                raise Died
            return found

    first = lives_of(handlers, Again, down)
    assert len(set(first)) == 2
    assert said.count("look") == 2


@pytest.mark.parametrize("mode", ["rerun", "raise", "reuse"])
@pytest.mark.parametrize("acts", [False, True])
def test_a_changed_question_is_another_one(handlers, tmp_path, mode, acts):
    bank, said, down = Bank(tmp_path / "bank", "window"), [], [True]

    class Ask(Quiet):
        @start()
        def run(self):
            words = "old" if down else "new"
            script = pays(said) if acts else lambda messages, asked: said.append(1) or final(words)
            raw = agent(script, paying()).kickoff(f"{words} question").raw
            if down:
                raise Died
            return raw

    options = {"tools": {"pay": effect(key="pay/{number}", provider=bank)}, "on_change": mode}
    if mode == "raise" or (acts and mode == "rerun"):
        with pytest.raises(StepChanged):
            lives_of(handlers, Ask, down, **options)
    else:
        assert lives_of(handlers, Ask, down, **options) == ("paid" if acts else "new" if mode == "rerun" else "old")
    assert len(bank.done()) == int(acts)


def test_an_agents_guardrail_is_asked_once_and_its_memory_too(handlers):
    judged, then, down = [], [], [True]

    class Memory:
        read_only = False

        def recall(self, query, **options):
            judged.append("recall")
            return [MemoryMatch(record=MemoryRecord(content=f"known {len(judged)}"), score=0.5)]

        def remember(self, content, **options):
            judged.append("remember")
            return MemoryRecord(content=content)

        def extract_memories(self, content):
            return []

    def script(messages, asked):
        if not results(messages):
            return action("save_to_memory", contents=["it"])
        return final("better") if "first" in judged else final("first")

    def guardrail(output):
        judged.append(output.raw)
        return (False, "try again") if output.raw == "first" else (True, output.raw)

    class Judged(Quiet):
        @start()
        def run(self):
            one = agent(script, guardrail=guardrail)
            object.__setattr__(one, "memory", Memory())
            raw = one.kickoff("go").raw
            if down:
                then.extend(judged)
                raise Died
            return raw

    assert lives_of(handlers, Judged, down) == "better"
    assert judged == then
    assert {"recall", "remember", "first", "better"} == set(then)


def test_a_misspelt_policy_is_refused_and_one_of_no_tool_is_told(handlers, tmp_path, caplog):
    called = []

    @tool
    def refund(number: int) -> str:
        """Pay back."""
        called.append(number)
        return "paid back"

    def script(messages, asked):
        return final("x") if results(messages) else action("refund", number=1)

    class Refunds(Quiet):
        @start()
        def run(self):
            return agent(script, refund).kickoff("go").raw

    bank = Bank(tmp_path / "bank", "window")
    with pytest.raises(InvalidArgument, match="'refund' has no policy"):
        handlers(tools={"refnd": effect(key="r/{number}", provider=bank)}).wrap_flow(Refunds()).kickoff()
    assert not called
    handlers(tools={"transfer": effect(key="r/{number}", provider=bank)}).wrap_flow(Refunds()).kickoff()
    assert "tools={'transfer': …}: no tool" in caplog.text


def test_tools_of_methods_that_are_answered_are_known(handlers, tmp_path, caplog):
    down, bank = [True], Bank(tmp_path / "bank", "window")

    @tool
    def pay_out(number: int) -> str:
        """Pay, but locally."""
        return "noted"

    class Two(Quiet):
        @start()
        def one(self):
            return agent(pays([]), paying()).kickoff("pay").raw

        @listen(one)
        def two(self, said):
            if down:
                raise Died
            script = lambda messages, a: final("out") if results(messages) else action("pay_out", number=1)  # noqa: E731
            return agent(script, pay_out).kickoff("note").raw

    assert lives_of(handlers, Two, down, tools={"pay": effect(key="pay/{number}", provider=bank)}) == "out"
    assert "no tool" not in caplog.text


def test_what_stops_an_agent_reaches_the_method_and_the_caller_as_its_class(handlers, tmp_path):
    caught, bank = [], Bank(tmp_path / "bank", "opaque", fault="lost")

    class Pays(Quiet):
        @start()
        def run(self):
            try:
                agent(pays([]), paying()).kickoff("pay")
            except UnknownOutcome as error:
                caught.append(error)
            return "went on"

    with pytest.raises(UnknownOutcome):
        handlers(tools={"pay": effect(key="pay/{number}", provider=bank)}).wrap_flow(Pays()).kickoff()
    assert len(caught) == 1


def test_a_crew_that_is_not_wrapped_makes_no_effect_raw(handlers, tmp_path):
    bank = Bank(tmp_path / "bank", "window")

    class Pays(Quiet):
        @start()
        def run(self):
            one = agent(pays([]), paying())
            return Crew(agents=[one], tasks=[Task(description="pay", expected_output="x", agent=one)]).kickoff().raw

    with pytest.raises(InvalidArgument, match="not wrapped itself"):
        handlers(tools={"pay": effect(key="pay/{number}", provider=bank)}).wrap_flow(Pays()).kickoff()


def test_a_crew_that_is_not_recorded_is_told_once(handlers, caplog):
    class Asks(Quiet):
        @start()
        def run(self):
            for _ in range(2):
                one = agent(lambda *_: final("x"))
                Crew(agents=[one], tasks=[Task(description="d", expected_output="x", agent=one)]).kickoff()

    handlers().wrap_flow(Asks()).kickoff()
    assert sum("calls are made again" in record.message for record in caplog.records) == 1


def test_an_agent_in_a_tool_of_a_crew_is_a_part_of_the_call_but_for_effects(lives, tmp_path):
    bank, said = Bank(tmp_path / "bank", "window"), []

    @tool
    def settle(number: int) -> str:
        """Settle."""
        return agent(pays(said), paying()).kickoff("pay it").raw

    down = [True]

    def script(messages, asked):
        if not results(messages):
            return action("settle", number=1)
        return LiteDied() if down else final("done")

    for life in range(2):
        outer = lives.agent(script, tools=[settle])
        crew = Crew(agents=[outer], tasks=[Task(description="settle", expected_output="x", agent=outer)])
        lives.begin(tools={"pay": effect(key="pay/{number}", provider=bank)}).wrap_crew(crew)
        if life:
            assert crew.kickoff().raw == "done"
        else:
            with pytest.raises(LiteDied):
                crew.kickoff()
            down.clear()
    assert len(bank.done()) == 1
    assert len(said) == 2


def test_a_kickoff_outside_every_wrapped_one_is_told(lives, tmp_path, caplog):
    paid = []

    @tool
    def pay(number: int) -> str:
        """Pay."""
        paid.append(number)
        return "paid"

    one = lives.agent(pays([]), tools=[pay])
    crew = Crew(agents=[one], tasks=[Task(description="pay", expected_output="x", agent=one)])
    lives.begin(tools={"pay": effect(key="p/{number}", provider=Bank(tmp_path / "bank", "window"))}).wrap_crew(crew)
    assert one.kickoff("pay").raw == "paid"
    assert "outside any kickoff" in caplog.text
    assert paid == [1]  # as it was


def test_tools_that_a_server_tells_of_are_under_the_policies(handlers, tmp_path, monkeypatch):
    from crewai.mcp.tool_resolver import MCPToolResolver

    monkeypatch.setattr(MCPToolResolver, "resolve", lambda resolver, servers: [Pay(banked=True)])
    bank, said, down = Bank(tmp_path / "bank", "window"), [], [True]

    class Pays(Quiet):
        @start()
        def run(self):
            raw = agent(pays(said), mcps=["https://shop.example/mcp"]).kickoff("pay").raw
            if down:
                raise Died
            return raw

    policy = {"pay": effect(key="pay/{number}", provider=bank)}
    with effect_context(account="a"):
        assert lives_of(handlers, Pays, down, tools=policy) == "paid"
    assert len(bank.done()) == 1
    assert len(said) == 2
