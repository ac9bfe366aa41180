"""A model that says what its conversation calls for, and counts what it is asked: outside the run, so that no kill hides a call."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    LLMMetadata,
    MessageRole,
)
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
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
    return f"{scope.run.goal_id} {scope.key.decode()}" if isinstance(scope, Call) else "no step"


def call(name, call_id="call", **arguments):
    """A tool call that a model asks for."""
    return {"name": name, "id": call_id, "arguments": arguments}


def results(messages):
    """How many tool results the messages hold."""
    return sum(one.role == MessageRole.TOOL for one in messages)


class Scripted(FunctionCallingLLM):
    """Answers with ``script(messages, tools)``: a text, a list of calls, or an exception to raise.

    Args:
        script: says what is answered; it must depend on what it is asked alone, as a model does.
        calls: a CallLog, for the number of calls.
    """

    calling: bool = True
    _script: Any = PrivateAttr()
    _calls: Any = PrivateAttr()
    _asked: list = PrivateAttr(default_factory=list)

    def __init__(self, script, calls=None, **fields):
        super().__init__(**fields)
        self._script = script
        self._calls = calls

    @property
    def metadata(self):
        return LLMMetadata(is_chat_model=True, is_function_calling_model=self.calling, model_name="scripted-1")

    @property
    def asked(self):
        return self._asked

    def _answer(self, messages, tools):
        self._asked.append(list(messages))
        hit("model.asked")
        if self._calls is not None:
            # by what is asked, not by its place: a context that a finished run hands on numbers its work items anew
            self._calls.started(f"model asked {len(messages)} messages, {str(messages[0].content)[:40]!r}")
        answer = self._script(list(messages), tools)
        if isinstance(answer, BaseException):
            raise answer
        text, wanted = (answer, []) if isinstance(answer, str) else ("", answer)
        message = ChatMessage(role="assistant", content=text, additional_kwargs={"wanted": json.dumps(wanted)} if wanted else {})
        return ChatResponse(message=message, raw={"id": len(messages)}, delta=text)

    def _prepare_chat_with_tools(self, tools, user_msg=None, chat_history=None, **kwargs):
        messages = [*(chat_history or [])]
        if user_msg is not None:
            messages.append(ChatMessage(role="user", content=str(user_msg)))
        return {"messages": messages, "tools": [tool.metadata.name for tool in tools]}

    def get_tool_calls_from_response(self, response, error_on_no_tool_call=True, **kwargs):
        wanted = json.loads(response.message.additional_kwargs.get("wanted", "[]"))
        return [ToolSelection(tool_id=one["id"], tool_name=one["name"], tool_kwargs=one["arguments"]) for one in wanted]

    def chat(self, messages, tools=(), **kwargs):
        response = self._answer(messages, tools)
        hit("model.answered")
        return response

    async def achat(self, messages, tools=(), **kwargs):
        response = self._answer(messages, tools)
        await asyncio.sleep(0)
        hit("model.answered")
        return response

    def stream_chat(self, messages, tools=(), **kwargs):
        return iter([self.chat(messages, tools)])

    async def astream_chat(self, messages, tools=(), **kwargs):
        response = self._answer(messages, tools)

        async def chunks():
            text = ""
            for word in response.message.content.split(" "):
                hit("model.chunk")
                text += f"{word} "
                partial = ChatMessage(role="assistant", content=text.strip())
                yield ChatResponse(message=partial, delta=f"{word} ")
                await asyncio.sleep(0)
            yield response

        return chunks()

    def complete(self, prompt, formatted=False, **kwargs):
        return CompletionResponse(text=self.chat([ChatMessage(role="user", content=prompt)]).message.content)

    async def acomplete(self, prompt, formatted=False, **kwargs):
        return CompletionResponse(text=(await self.achat([ChatMessage(role="user", content=prompt)])).message.content)

    def stream_complete(self, prompt, formatted=False, **kwargs):
        return iter([self.complete(prompt)])

    async def astream_complete(self, prompt, formatted=False, **kwargs):
        async def chunks():
            yield await self.acomplete(prompt)

        return chunks()
