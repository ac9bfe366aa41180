"""Plays the model, so that the recipe runs offline: what it answers depends on what it is asked alone."""

from __future__ import annotations

import json
import os
import signal

from autogen_core import FunctionCall
from autogen_core.models import ChatCompletionClient, CreateResult, RequestUsage

INFO = {"vision": False, "function_calling": True, "json_output": False, "family": "unknown", "structured_output": False}


def call(name, **arguments):
    return [FunctionCall(id=f"call-{name}", name=name, arguments=json.dumps(arguments))]


def next_step(messages):
    """The six steps of the case, told apart by who is asked and what was said."""
    heard = "\n".join(str(message.content) for message in messages[1:])
    if "triage" in messages[0].content:
        if "kettle, paid" not in heard:
            return 1, call("look_up", order_id="42")
        return (6, "The refund is on its way, goodbye.") if "'refunded'" in heard else (2, call("transfer_to_refunds"))
    if "refund the" not in heard:
        return 3, call("transfer_to_customer")
    return (5, call("transfer_to_triage")) if "'refunded'" in heard else (4, call("refund", order_id="42", amount_minor=3990))


class Model(ChatCompletionClient):
    """A model client.

    Args:
        note: told of each call that is really made.
        kill_at: the step at which the process kills itself, 0: at none.
    """

    component_type = "model"

    def __init__(self, note, kill_at=0):
        self.note = note
        self.kill_at = kill_at

    async def create(self, messages, **settings):
        number, answer = next_step(messages)
        if number == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.note(f"model, step {number}")
        kind = "stop" if isinstance(answer, str) else "function_calls"
        return CreateResult(finish_reason=kind, content=answer, usage=RequestUsage(100, 10), cached=False)

    async def create_stream(self, messages, **settings):
        yield await self.create(messages, **settings)

    async def close(self):
        pass

    def actual_usage(self):
        return RequestUsage(0, 0)

    total_usage = actual_usage

    def count_tokens(self, messages, *, tools=()):
        return 0

    remaining_tokens = count_tokens

    @property
    def model_info(self):
        return INFO

    capabilities = model_info
