"""Models that answer from a script, and tools that tell what they really did."""

from __future__ import annotations

import json
import os
import zlib

import PIL.Image
from smolagents import Tool
from smolagents.models import (
    ChatMessage,
    ChatMessageStreamDelta,
    ChatMessageToolCall,
    ChatMessageToolCallFunction,
    ChatMessageToolCallStreamDelta,
    MessageRole,
    Model,
)
from smolagents.monitoring import TokenUsage

from letitloop import failpoints


def hit(name):
    if failpoints.active:
        failpoints.hit(name)


def code(text):
    return f"Thought: on.\n<code>\n{text.strip()}\n</code>"


def calls(*wanted):
    """Return an answer that calls tools: (id, name, arguments) each."""
    return ChatMessage(
        role=MessageRole.ASSISTANT,
        content="I call.",
        tool_calls=[
            ChatMessageToolCall(id=one, type="function", function=ChatMessageToolCallFunction(name=name, arguments=arguments))
            for one, name, arguments in wanted
        ],
    )


class Script(Model):
    """Answers by how many answers stand in the prompt; ``log`` (a CallLog or None) is told what it is really asked."""

    def __init__(self, answers, log=None, *, name="model", plans=(), model_id="scripted", **kwargs):
        super().__init__(model_id=model_id, **kwargs)
        self.answers = list(answers)
        self.plans = list(plans)
        self.log = log
        self.name = name
        self.asked = []
        self.planned = 0

    def _answer(self, messages, stop_sequences):
        said = [message for message in messages if str(getattr(message.role, "value", message.role)) == "assistant"]
        n = sum("the facts I know" not in str(message.content) for message in said)
        if stop_sequences and "<end_plan>" in stop_sequences:
            n = sum(str(message.content).count("Calling tools") for message in messages)
            return f"plan {n}", f"1. plan {n}"
        tasks = [text for message in messages if "task:\n" in (text := str(message.content[0].get("text", "")))]
        return f"{n} of {zlib.crc32(tasks[-1].encode()) if tasks else 0:08x}", self.answers[n]  # a name for each prompt

    def generate(self, messages, stop_sequences=None, response_format=None, tools_to_call_from=None, **kwargs):
        what, answer = self._answer(messages, stop_sequences)
        self.asked.append(what)
        if self.log is not None:
            self.log.started(f"{self.name} {what}")
        hit("model.asked")
        if isinstance(answer, Exception):
            raise answer
        if self.log is not None:
            self.log.finished(f"{self.name} {what}")
        hit("model.answered")
        if isinstance(answer, ChatMessage):
            tool_calls = [
                ChatMessageToolCall(
                    id=one.id, type=one.type, function=ChatMessageToolCallFunction(one.function.arguments, one.function.name)
                )
                for one in answer.tool_calls
            ]
            return ChatMessage(
                role=answer.role, content=answer.content, tool_calls=tool_calls, token_usage=TokenUsage(10, 5), raw=answer.raw
            )
        return ChatMessage(role=MessageRole.ASSISTANT, content=answer, token_usage=TokenUsage(10, 5))


class Streaming(Script):
    """The same, and the answer comes in pieces."""

    def generate_stream(self, messages, stop_sequences=None, response_format=None, tools_to_call_from=None, **kwargs):
        message = self.generate(messages, stop_sequences, response_format, tools_to_call_from, **kwargs)
        half = len(message.content) // 2
        for piece in (message.content[:half], message.content[half:]):
            hit("model.piece")
            yield ChatMessageStreamDelta(content=piece)
        for index, call in enumerate(message.tool_calls or ()):
            call.function.arguments = json.dumps(call.function.arguments)
            yield ChatMessageStreamDelta(
                tool_calls=[ChatMessageToolCallStreamDelta(index=index, id=call.id, type="function", function=call.function)]
            )
        hit("model.last")
        yield ChatMessageStreamDelta(content="", token_usage=message.token_usage)


class Probe(Tool):
    """Returns what ``answer`` makes of its argument, and tells the log."""

    name = "probe"
    description = "Looks at something."
    inputs = {"what": {"type": "any", "description": "what to look at"}}  # noqa: RUF012 - as smolagents wants it
    output_type = "any"

    def __init__(self, log=None, answer=None, name="probe"):
        super().__init__()
        self.log = log
        self.answer = answer or (lambda what: f"<{what}>")
        self.name = name
        self.seen = []

    def forward(self, what):
        self.seen.append(what)
        if self.log is not None:
            self.log.started(f"{self.name} {what}")
        hit("tool.started")
        answer = self.answer(what)
        if self.log is not None:
            self.log.finished(f"{self.name} {what}")
        hit("tool.acted")
        return answer


class Pay(Tool):
    """An action: its effect policy's provider carries it out, and this code never runs."""

    name = "pay"
    description = "Pays an invoice."
    inputs = {  # noqa: RUF012 - as smolagents wants it
        "number": {"type": "string", "description": "the invoice"},
        "amount": {"type": "integer", "description": "how much"},
    }
    output_type = "any"

    def forward(self, number: str, amount: int):
        raise AssertionError("the provider pays")


def image(color):
    return PIL.Image.new("RGB", (2, 2), color)


def store(tmp_path):
    return os.path.join(tmp_path, "store")
