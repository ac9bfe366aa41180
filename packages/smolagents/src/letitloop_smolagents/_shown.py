"""Values whose text is another one in each process: what a model was told of them is on record, and told again.

A set, for one, is printed in another order by each process, and so is whatever has one in it. Such texts come into prompts from
additional arguments (the task tells of them), results of tools, errors of tools (which tell of their arguments), and what a managed
agent answers (its report tells of it). What code comes to is a part of its record, and so is its text.
"""

from __future__ import annotations

import datetime
import decimal
import re
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from typing import TYPE_CHECKING, Any

from letitloop.codecs.ext import class_of
from letitloop.integration.leaves import leaf
from letitloop_smolagents._framework import agents, memory, types, utils
from letitloop_smolagents._world import PLAIN

if TYPE_CHECKING:
    from letitloop.runs.scope import Scope
    from letitloop_smolagents._binding import Binding

__all__ = ["answer_as_told", "output_as_told", "result_as_told", "retell", "steady", "with_task_as_told"]

_STEADY = PLAIN | frozenset((datetime.date, datetime.datetime, datetime.timedelta, decimal.Decimal, uuid.UUID, range, bytearray))
_ITEMS = frozenset((list, tuple, deque))
_PAIRS = frozenset((dict, OrderedDict, Counter, defaultdict))
_STORED = (types.AgentImage, types.AgentAudio)  # the model is told that there is one
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_PRINTED = re.compile(r"\{\{-?\s*final_answer\s*-?\}\}")


def steady(value: Any) -> bool:
    """Tell whether the text of a value is the same in each process. Objects of unknown classes may have a set in their text."""
    pending: list[Any] = [value]
    seen: set[int] = set()
    while pending:
        one = pending.pop()
        cls: Any = class_of(one)
        if cls in _STEADY or id(one) in seen:
            continue
        seen.add(id(one))
        if cls in _ITEMS:
            pending.extend(one)
        elif cls in _PAIRS:
            pending += one.keys()
            pending += one.values()
        elif cls is types.AgentText:
            pending.append(one.to_raw())  # its text is that of what it was made of
        else:
            return False
    return True


# --- what a model is told ----------------------------------------------------------------------------------------------------


def with_task_as_told(binding: Binding, words: dict[str, Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Let a run's task say of additional arguments what it said when they were recorded.

    Args:
        binding: the agent's.
        words: what the run is asked.
        kwargs: what the agent's stream of steps is called with.
    """
    agent = binding.agent
    if binding.scope is None or steady(agent.state) or "task" not in kwargs:
        return kwargs
    said = agent.task
    agent.task = leaf(binding.scope, "task", words, lambda: said)
    for one in agent.memory.steps:
        if isinstance(one, memory.TaskStep) and one.task is said:
            one.task = agent.task
    return {**kwargs, "task": agent.task}


def result_as_told(binding: Binding, event: Any) -> Any:
    """Let what a tool or a managed agent returned be told of as it was, when it is about to become a part of a step."""
    if isinstance(event, agents.ToolOutput) and not steady(event.output) and class_of(event.output) not in _STORED:
        name = event.tool_call.name
        event.observation = _text(binding, f"text of {name} {event.id}", name, event.observation)
    return event


def output_as_told(step: Any, value: Any, text: str) -> None:
    """Let a step tell of the value that its code came to as it did."""
    now = utils.truncate_content(str(value))
    if now and now in str(step.observations):
        step.observations = utils.truncate_content(text).join(step.observations.rsplit(now, 1))


def retell(binding: Binding, name: str, arguments: Any, error: Any) -> None:
    """Let a tool's error say what it said: it tells of the arguments, which may be variables, and of what the tool raised."""
    if not steady([arguments, binding.agent.state, *getattr(error.__cause__, "args", ())]):
        error.message = _text(binding, f"error of {name}", name, error.message)
        error.args = (error.message, *error.args[1:])


def _text(binding: Binding, what: str, name: str, text: str) -> Any:
    """Return a text on record. Of what is done again each time, a text that is made of something else is a change."""
    again = name in binding.agent.managed_agents or binding.policies.of(name) == "rerun"
    return leaf(binding.place(), what, {"text": _letters(text)} if again else {}, lambda: text)


def _letters(text: str) -> str:
    """Return what a text is made of, whatever the order: what two processes print of one set is made of the same."""
    return "".join(sorted(_ADDRESS.sub("", text)))


def answer_as_told(agent: Any, scope: Scope, value: Any) -> Any:
    """Return what a managed agent answers, to be printed as it was in the report; as it is, if more may be done with it."""
    template = agent.prompt_templates["managed_agent"]["report"]
    printed = len(_PRINTED.findall(template)) == template.count("final_answer")
    if steady(value) or not printed or class_of(agent).__call__ is not agents.MultiStepAgent.__call__:
        return value
    return _Answer(value, leaf(scope, "text of the answer", {}, lambda: str(value)))


class _Answer:
    """What a managed agent answers, with the text that it had."""

    def __init__(self, value: Any, text: str) -> None:
        self.value = value
        self.text = text

    def __str__(self) -> str:
        return self.text
