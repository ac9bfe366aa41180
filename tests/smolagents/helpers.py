"""Durable agents of a script's answers, and a tool that ends their process."""

from __future__ import annotations

import pytest
from smolagents import CodeAgent, ToolCallingAgent

from letitloop.adapters.smolagents import SmolagentsWALCallback
from tests.smolagents.conftest import Died
from tests.smolagents.scripted import Probe, Script, code

QUIET = {"verbosity_level": -1}


class DyingOnce(Probe):
    """Ends the process, when ``switch`` is on."""

    def __init__(self, switch, name="die"):
        super().__init__(name=name)
        self.switch = switch

    def forward(self, what):
        if self.switch["on"]:
            raise Died
        return super().forward(what)


def code_agent(steps, tools=(), *, session="agent", callbacks=(), policies=None, model=Script, options=None, **kwargs):
    script = model([code(one) for one in steps])
    callback = SmolagentsWALCallback(session_id=session, tools=policies, **(options or {}))
    agent = CodeAgent(tools=list(tools), model=script, step_callbacks=[*callbacks, callback], **{**QUIET, **kwargs})
    return agent, script


def calling_agent(answers, tools=(), *, session="agent", policies=None, model=Script, **kwargs):
    script = model(answers)
    callback = SmolagentsWALCallback(session_id=session, tools=policies)
    return ToolCallingAgent(tools=list(tools), model=script, step_callbacks=[callback], **{**QUIET, **kwargs}), script


def agent_of(steps, tools=(), *, dies=False, policies=None, answer=None, **kwargs):
    probe = Probe(answer=answer)
    model = Script([code(step) for step in steps])
    agent = CodeAgent(
        tools=[probe, DyingOnce({"on": dies}), *tools],
        model=model,
        step_callbacks=[SmolagentsWALCallback(session_id="variables", tools=policies)],
        verbosity_level=-1,
        **kwargs,
    )
    return agent, model, probe


def resumed(next_life, *steps, answer=None, **kwargs):
    """Run steps, die after the last of them but one, and return what the last one finds."""
    steps = [*steps[:-1], f"die(what=1)\n{steps[-1]}"]
    agent, *_ = agent_of(steps, dies=True, answer=answer, **kwargs)
    with pytest.raises(Died):
        agent.run("go")
    before = dict(agent.python_executor.state)
    next_life()
    agent, model, probe = agent_of(steps, answer=answer, **kwargs)
    result = agent.run("go")
    assert model.asked == []
    assert probe.seen == []
    return result, before, agent
