"""What a flow's method brings along: an agent that is kicked off by itself, and crews that are made and wrapped there."""

from __future__ import annotations

import asyncio

import tests.crewai.scripted  # noqa: F401  # sets the environment first

# isort: split
import pytest
from crewai import Agent, Crew, Task
from crewai.flow import listen, start
from crewai.tools import tool

from letitloop import InvalidArgument, effect
from tests.crewai.flows import Died, Quiet
from tests.crewai.lives import paying, results
from tests.crewai.scripted import Scripted, action, final
from tests.effects.bank import Bank

pytestmark = pytest.mark.filterwarnings("default")


def agent_of(script, asked, tools=()):
    def told(messages, *_):
        asked.append(results(messages))
        return script(messages)

    return Agent(role="worker", goal="work", backstory="works", llm=Scripted(told), tools=list(tools))


@pytest.mark.parametrize("way", ["sync", "async"])
def test_an_agent_that_a_method_kicks_off_is_a_part_of_it(tmp_path, handlers, way):
    bank, asked, looked = Bank(tmp_path / "bank"), [], []

    @tool
    def look(word: str) -> str:
        """Look."""
        looked.append(word)
        return f"saw {word}"

    def script(messages):
        done = results(messages)
        return [action("look", word="a"), action("pay", number=1), final("paid")][min(done, 2)]

    def life(*, dies):
        handler = handlers(tools={"pay": effect(key="pay/{number}", provider=bank)})

        class Paying(Quiet):
            @start()
            async def one(self):
                worker = agent_of(script, asked, [look, paying()])
                result = await worker.kickoff_async("pay") if way == "async" else await asyncio.to_thread(worker.kickoff, "pay")
                if dies:
                    raise Died
                return result.raw

        return handler.wrap_flow(Paying()).kickoff()

    with pytest.raises(Died):
        life(dies=True)
    assert (len(asked), looked, len(bank.requests())) == (3, ["a"], 1)
    assert life(dies=False) == "paid"
    assert (len(asked), looked, len(bank.requests())) == (3, ["a"], 1)


def test_a_misspelt_policy_is_refused_there_too(handlers, tmp_path):
    asked = []

    class Paying(Quiet):
        @start()
        def one(self):
            return agent_of(lambda _: final("done"), asked, [paying()]).kickoff("pay").raw

    handler = handlers(tools={"pya": effect(key="pay/{number}", provider=Bank(tmp_path / "bank"))})
    with pytest.raises(InvalidArgument, match="'pay' has no policy"):
        handler.wrap_flow(Paying()).kickoff()
    assert asked == []


def test_an_agent_is_as_it_was_outside():
    asked = []
    assert agent_of(lambda _: final("done"), asked).kickoff("go").raw == "done"
    assert len(asked) == 1


@pytest.mark.parametrize("at", ["b", "c"])
def test_crews_that_methods_make_keep_their_records(handlers, at):
    asked = []

    def crew(handler, word):
        worker = agent_of(lambda _: final(f"did {word}"), asked)
        task = Task(description=f"do {word}", expected_output="text", agent=worker)
        return handler.wrap_crew(Crew(agents=[worker], tasks=[task]))

    def life(*, dies):
        handler = handlers()

        def done(method, *words):
            said = [crew(handler, word).kickoff().raw for word in words]
            if dies and method == at:
                raise Died
            return said

        class Crews(Quiet):
            @start()
            def a(self):
                return done("a", "one")

            @listen(a)
            def b(self, before):
                return [*before, *done("b", "two", "three")]

            @listen(b)
            def c(self, before):
                return [*before, *done("c", "four")]

        return handler.wrap_flow(Crews()).kickoff()

    with pytest.raises(Died):
        life(dies=True)
    before = len(asked)
    assert life(dies=False) == ["did one", "did two", "did three", "did four"]
    assert len(asked) == 4
    assert before == (3 if at == "b" else 4)
