"""What no model may read and nothing in CrewAI may swallow reaches the caller: unknown outcomes, approvals, refusals."""

from __future__ import annotations

import asyncio

import pytest

from tests.crewai.lives import paying, results, tasks, works
from tests.crewai.scripted import Scripted, action, final, prompt_of, text_of  # sets the environment first

# isort: split
from crewai import Crew, Process, Task
from crewai.tools import tool

from letitloop import Ledger, UnknownOutcome, effect
from letitloop.errors import ApprovalRequired, InvalidArgument, UnencodableError
from tests.effects.bank import Bank

pytestmark = pytest.mark.filterwarnings("default")


def unknown_crew(lives, tmp_path, **options):
    pay = paying()

    def script(messages, asked):
        if "delegate" in text_of(messages) and "Current Task: boss" in prompt_of(messages):
            return action("delegate_work_to_coworker", coworker="worker", task="pay", context="now")
        return action("pay", number=1)

    agent = lives.agent(script, tools=[pay], **options.pop("agent", {}))
    bank = Bank(tmp_path / "bank", "opaque", "lost")
    task = Task(description="boss", expected_output="x", agent=None if "process" in options else agent, **options.pop("task", {}))
    if "process" in options:
        options["manager_llm"] = Scripted(script)
    crew = Crew(agents=[agent], tasks=[task], **options)
    lives.begin(tools={"pay": effect(key="n/{number}", provider=bank)}).wrap_crew(crew)
    return crew, bank


async def streamed(crew):
    async for _ in await crew.akickoff():
        pass


WAYS = {
    "kickoff": ({}, lambda crew: crew.kickoff()),
    "kickoff_async": ({}, lambda crew: asyncio.run(crew.kickoff_async())),
    "akickoff": ({}, lambda crew: asyncio.run(crew.akickoff())),
    "for_each": ({}, lambda crew: crew.kickoff_for_each([{}])),
    "akickoff_for_each": ({}, lambda crew: asyncio.run(crew.akickoff_for_each([{}]))),
    "async task": ({"task": {"async_execution": True}}, lambda crew: crew.kickoff()),
    "async task in a loop": ({"task": {"async_execution": True}}, lambda crew: asyncio.run(crew.akickoff())),
    "delegated": ({"process": Process.hierarchical}, lambda crew: crew.kickoff()),
    "limited in time": ({"agent": {"max_execution_time": 60}}, lambda crew: crew.kickoff()),
    "stream": ({"stream": True}, lambda crew: list(crew.kickoff())),
    "stream in a loop": ({"stream": True}, lambda crew: asyncio.run(streamed(crew))),
}


@pytest.mark.parametrize("way", WAYS)
def test_an_unknown_outcome_reaches_the_caller_as_such(lives, tmp_path, way):
    options, kick = WAYS[way]
    crew, bank = unknown_crew(
        lives, tmp_path, **{name: value.copy() if isinstance(value, dict) else value for name, value in options.items()}
    )
    with pytest.raises(UnknownOutcome, match="n/1"):
        try:
            kick(crew)
        except Exception as swallowed:  # nothing that handles Exceptions may get it
            pytest.fail(f"an ordinary exception: {swallowed!r}")
    assert len(bank.requests()) == 1
    if way != "delegated":  # a manager of CrewAI's own making serves once in the oldest 1.15
        with pytest.raises(UnknownOutcome):
            kick(crew)
    assert len(bank.requests()) == 1
    outcome = {"outcome": "succeeded", "evidence": "the books", "by": "Ada", "result": {"moved": 1}}
    Ledger(store=str(lives.place)).resolve("default", "n/1", **outcome)
    for agent in crew.agents:
        agent.llm._script = lambda m, a: final("paid") if results(m) else action("pay", number=1)
    if way == "kickoff":
        assert crew.kickoff().raw == "paid"


def test_what_no_model_may_read_reaches_the_caller(lives, tmp_path):
    from letitloop import Approval

    @tool
    def pay(number: int) -> str:
        """Pay."""
        return "paid"

    agent = lives.agent(lambda m, a: action("pay", number=1), tools=[pay])
    policy = effect(key="n/{number}", approval=Approval())
    crew = lives.begin(tools={"pay": policy}).wrap_crew(Crew(agents=[agent], tasks=tasks(agent, "one")))
    with pytest.raises(ApprovalRequired):
        crew.kickoff()
    assert len(agent.llm.asked) == 1


def test_a_result_that_cannot_be_recorded_is_told(lives):
    @tool
    def fetch(what: str) -> object:
        """Fetch."""
        return lambda: what

    agent = lives.agent(lambda m, a: action("fetch", what="a"), tools=[fetch])
    crew = lives.begin().wrap_crew(Crew(agents=[agent], tasks=tasks(agent, "one")))
    with pytest.raises(UnencodableError):
        crew.kickoff()


def test_crewais_own_checkpoints_are_refused(lives):
    agent = lives.agent(works())
    crew = lives.begin().wrap_crew(Crew(agents=[agent], tasks=tasks(agent, "one")))
    with pytest.raises(InvalidArgument, match="from_checkpoint"):
        crew.kickoff(from_checkpoint=object())
