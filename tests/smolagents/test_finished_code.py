"""Finished code that has to be executed again asks nothing new: not of its tools, nor of agents, whoever calls them."""

from __future__ import annotations

import pytest
from smolagents import CodeAgent, ToolCallingAgent

from letitloop import StepChanged, effect
from letitloop.adapters.smolagents import durable_agent
from letitloop.effects.provider import NotExecuted
from tests.smolagents.conftest import Died
from tests.smolagents.helpers import QUIET, DyingOnce, code_agent
from tests.smolagents.scripted import Probe, Script, calls, code

GO = {
    "a member": "r = mailer(task=f'write at {clock(what=1)}')",
    "in a lambda": "say = lambda now: mailer(task=f'write at {now}')\nr = say(clock(what=1))",
    "in a map": "r = list(map(lambda now: mailer(task=f'write at {now}'), [clock(what=1)]))",
    "in a function of the code": "def say(now):\n    return mailer(task=now)\nr = say(str(clock(what=1)))",
    "more often": "for n in range(clock(what=1)):\n    r = mailer(task='write')",
    "a member that has members": "r = team(task=f'write at {clock(what=1)}')",
    "a member of a member": "r = coder(task='write')",
    "an agent that a tool runs": "g = (n for n in [1])\nfor n in range(clock(what=1)):\n    r = ask(what='write')",
}


class World:
    """A boss whose code calls agents; the mailer at their end mails."""

    def __init__(self, now, switch, what, policies=None, **options):
        self.mail = Probe(name="mail")
        clock = Probe(answer=lambda _: now, name="clock")
        mails = [calls(("1", "mail", {"what": "ada"})), calls(("2", "final_answer", {"answer": "sent"}))]
        self.models = [Script(mails) for _ in range(2)]
        mailer, alone = (
            ToolCallingAgent(tools=[self.mail], model=one, name=name, description="mails", **QUIET)
            for name, one in zip(("mailer", "alone"), self.models, strict=True)
        )
        self.models += [
            Script([calls(("1", "mailer", {"task": "write"})), calls(("2", "final_answer", {"answer": "done"}))]),
            Script([code("r = mailer(task=f'write at {clock(what=1)}')"), code("final_answer(r)")]),
        ]
        team = ToolCallingAgent(tools=[], managed_agents=[mailer], model=self.models[2], name="team", description="t", **QUIET)
        coder = CodeAgent(tools=[clock], managed_agents=[mailer], model=self.models[3], name="coder", description="codes", **QUIET)
        policies = {"clock": "rerun", "ask": "rerun", **(policies or {})}
        durable_agent(alone, session_id="agent", tools=policies)
        self.boss, model = code_agent(
            [what, "die(what=1)\nfinal_answer(r)"],
            [clock, Probe(answer=alone.run, name="ask"), DyingOnce(switch)],
            managed_agents=[mailer, team, coder],
            policies=policies,
            options=options,
        )
        self.models.append(model)

    @property
    def asked(self):
        return [one for model in self.models for one in model.asked]


@pytest.mark.parametrize(
    ("way", "on_change"),
    # the last one by "rerun" is let through: tool and session both say that it may be done anew
    [(way, on_change) for way in GO for on_change in ("raise", "rerun") if (way, on_change) != (list(GO)[-1], "rerun")],
)
def test_an_agent_that_finished_code_did_not_call_is_not_run(next_life, way, on_change):
    switch = {"on": True}
    with pytest.raises(Died):
        World(1, switch, GO[way]).boss.run("go")
    switch["on"] = False
    for _ in range(2):
        next_life()
        world = World(2, switch, GO[way], on_change=on_change)
        with pytest.raises(StepChanged, match=r"had to be executed again.*(mailer|team|alone)"):
            world.boss.run("go")
        assert (world.asked, world.mail.seen) == ([], [])
    next_life()
    world = World(1, switch, GO[way])
    assert world.boss.run("go")
    assert (world.asked, world.mail.seen) == ([], [])


def test_an_agent_that_finished_code_called_does_nothing_new(next_life):
    """It would go on after an answer that a check refuses, and the check is new."""
    switch, refused = {"on": True}, []
    with pytest.raises(Died):
        World(1, switch, "r = mailer(task='write')").boss.run("go")
    switch["on"] = False
    next_life()
    world = World(1, switch, "r = mailer(task='write')")
    world.boss.managed_agents["mailer"].final_answer_checks = [lambda answer, memory, agent: refused.append(answer)]
    with pytest.raises(StepChanged, match="check <lambda>"):
        world.boss.run("go")
    assert (world.asked, world.mail.seen, refused) == ([], [], [])


@pytest.mark.parametrize("way", ["own", "a member's"])
def test_an_effect_that_failed_was_asked_for(next_life, way):
    switch, told = {"on": True}, []
    what = "r = mailer(task='write')"
    if way == "own":
        what = "g = (n for n in [1])\ntry:\n    mail(what='ada')\nexcept Exception as e:\n    r = str(e)"
    for died in (True, False):
        world = World(1, switch, what, policies={"mail": effect(key="mail/{what}")})
        world.mail.answer = lambda what: NotExecuted("rejected", "no such mailbox")
        world.boss.tools["mail"] = world.mail
        if died:
            with pytest.raises(Died):
                world.boss.run("go")
        else:
            assert world.boss.run("go")
            assert world.asked == world.boss.model.asked
        told.append(str(world.boss.python_executor.state["r"]))
        switch["on"] = False
        next_life()
    assert world.mail.seen == []
    assert told[0] == told[1]
