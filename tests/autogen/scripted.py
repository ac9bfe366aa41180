"""A model that says what its conversation calls for, and counts what it is asked: outside the run, so that no kill hides a call."""

from __future__ import annotations

import asyncio
import json

from autogen_core import FunctionCall
from autogen_core.models import ChatCompletionClient, CreateResult, RequestUsage

from letitloop import failpoints
from letitloop.runs.run import Call
from letitloop.runs.scope import current_scope

INFO = {
    "vision": False,
    "function_calling": True,
    "json_output": True,
    "family": "unknown",
    "structured_output": True,
    "multiple_system_messages": True,
}


def hit(name):
    if failpoints.active:
        failpoints.hit(name)


class Scripted(ChatCompletionClient):
    """Answers with ``script(messages, settings)``: a text, a list of FunctionCalls, or an exception to raise.

    Args:
        script: says what is answered; it must depend on what it is asked alone, as a model does.
        calls: a CallLog, for the number of calls; each is named by its step in the log.
    """

    component_type = "model"

    def __init__(self, script, calls=None, model="scripted-1"):
        self.script = script
        self.calls = calls
        self.model = model
        self.asked = []
        self.usage = RequestUsage(0, 0)

    def _answer(self, messages, settings):
        answer = self.script(list(messages), settings)
        if isinstance(answer, BaseException):
            raise answer
        usage = RequestUsage(10 * len(messages), 5)
        self.usage = RequestUsage(self.usage.prompt_tokens + usage.prompt_tokens, self.usage.completion_tokens + 5)
        kind = "stop" if isinstance(answer, str) else "function_calls"
        return CreateResult(finish_reason=kind, content=answer, usage=usage, cached=False)

    async def create(self, messages, *, cancellation_token=None, **settings):
        self.asked.append((list(messages), settings))
        hit("model.asked")
        if self.calls is not None:
            self.calls.started(here())
        result = self._answer(messages, settings)
        await asyncio.sleep(0)
        hit("model.answered")
        return result

    async def create_stream(self, messages, *, cancellation_token=None, **settings):
        result = await self.create(messages, **settings)
        if isinstance(result.content, str):
            for word in result.content.split(" "):
                hit("model.chunk")
                yield word + " "
        yield result

    async def close(self):
        pass

    def actual_usage(self):
        return self.usage

    def total_usage(self):
        return self.usage

    def count_tokens(self, messages, *, tools=()):
        return 10 * len(messages)

    def remaining_tokens(self, messages, *, tools=()):
        return 1000

    @property
    def capabilities(self):
        return INFO

    @property
    def model_info(self):
        return INFO


def here():
    """The step that is being carried out here."""
    scope = current_scope()
    return scope.key.decode() if isinstance(scope, Call) else "no step"


def call(name, call_id="", **arguments):
    return FunctionCall(id=call_id, name=name, arguments=json.dumps(arguments))


def results(messages):
    """How many tool results the messages hold."""
    return sum(len(one.content) for one in messages if one.type == "FunctionExecutionResultMessage")


def said(result):
    """What a TaskResult says, without ids and times."""
    return [(type(one).__name__, one.source, str(one.to_text())) for one in result.messages]
