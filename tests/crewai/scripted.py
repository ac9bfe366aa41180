"""A model that says what its conversation calls for, and counts what it is asked: outside the run, so that no kill hides a call."""

from __future__ import annotations

import json
import os
import warnings

for _name in ("CREWAI_DISABLE_TELEMETRY", "OTEL_SDK_DISABLED", "CREWAI_DISABLE_VERSION_CHECK"):
    os.environ[_name] = "true"  # nothing of a test speaks to the outside
os.environ["CREWAI_TRACING_ENABLED"] = "false"

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # CrewAI's own modules warn while they are imported
    import crewai  # noqa: F401

from crewai import BaseLLM
from pydantic import PrivateAttr

from letitloop import failpoints
from letitloop.runs.run import Call
from letitloop.runs.scope import current_scope


def hit(name):
    if failpoints.active:
        failpoints.hit(name)


def here():
    """The step that is being carried out here."""
    scope = current_scope()
    return scope.key.decode() if isinstance(scope, Call) else "no step"


class Scripted(BaseLLM):
    """Answers with ``script(messages, asked)``: a text, a list of calls, or an exception to raise.

    Args:
        script: says what is answered; it must depend on what it is asked alone, as a model does.
        calls: a CallLog, for the number of calls; each is named by its step in the log.
        native: whether it calls tools natively; else in words.
    """

    llm_type: str = "scripted"
    native: bool = False
    _script: object = PrivateAttr()
    _calls: object = PrivateAttr(default=None)
    _asked: list = PrivateAttr(default_factory=list)

    def __init__(self, script, calls=None, *, native=False, model="scripted-1", **settings):
        super().__init__(model=model, native=native, **settings)
        self._script = script
        self._calls = calls

    def call(
        self,
        messages,
        tools=None,
        callbacks=None,
        available_functions=None,
        from_task=None,
        from_agent=None,
        response_model=None,
    ):
        messages = [{"role": "user", "content": messages}] if isinstance(messages, str) else [dict(one) for one in messages]
        asked = {"tools": tools, "response_model": response_model, "task": from_task, "agent": from_agent}
        self._asked.append(messages)
        hit("model.asked")
        if self._calls is not None:
            self._calls.started(here())
        answer = self._script(messages, asked)
        if isinstance(answer, BaseException):
            raise answer
        self._track_token_usage_internal(
            {"prompt_tokens": 10 * len(messages), "completion_tokens": 5, "total_tokens": 10 * len(messages) + 5}
        )
        hit("model.answered")
        return answer

    async def acall(self, messages, *args, **kwargs):
        return self.call(messages, *args, **kwargs)

    @property
    def asked(self):
        return self._asked

    def supports_function_calling(self):
        return self.native

    def supports_stop_words(self):
        return False

    def get_context_window_size(self):
        return 100_000

    def get_input_tokens_count(self, messages, tools=None, response_model=None):
        return 10


def action(name, **arguments):
    """A textual answer that calls a tool."""
    return f"Thought: I need it.\nAction: {name}\nAction Input: {json.dumps(arguments)}"


def final(text):
    """A textual answer that ends a task."""
    return f"Thought: I know.\nFinal Answer: {text}"


def call(name, call_id="call-1", **arguments):
    """A native tool call."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def text_of(messages):
    return "\n".join(str(one.get("content")) for one in messages)


def prompt_of(messages):
    """What the task says: the last message of the user before anything was answered."""
    return str(next(one["content"] for one in messages if one["role"] == "user"))
