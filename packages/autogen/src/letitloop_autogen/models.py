"""A model client whose answered calls never repeat: one for each agent, whoever shares the client inside it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from weakref import ref

from autogen_core.models import ChatCompletionClient, CreateResult, RequestUsage
from pydantic import BaseModel

from letitloop.runs.run import Call
from letitloop.runs.scope import current
from letitloop_autogen.asking import Digests, model_of, schema_of
from letitloop_autogen.beside import number_of
from letitloop_autogen.standing import StandIn
from letitloop_autogen.values import plain

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from autogen_core.models import LLMMessage, ModelInfo
    from autogen_core.tools import Tool, ToolSchema

    from letitloop_autogen.driving import Member, Place

__all__ = ["DurableModelClient", "count_replayed"]

_END = object()
_replayed: dict[int, tuple[Any, RequestUsage]] = {}
"""What was answered from the log, by the client's id: its own hash and equality may say anything."""


class DurableModelClient(StandIn, ChatCompletionClient):
    """Asks the client inside it once, and answers from the log ever after.

    Args:
        inner: the client.
        member: the agent or team it belongs to.
    """

    _inner: ChatCompletionClient

    def __init__(self, inner: ChatCompletionClient, member: Member) -> None:
        self._inner = inner
        self._member = member
        self._shared_part = False
        self._digests = Digests()
        self._model: object = None

    def _acting(self) -> Member | None:
        return self._member.acting(shared_part=self._shared_part)

    def _asked(self, messages: Sequence[LLMMessage], settings: Mapping[str, Any]) -> dict[str, object]:
        if self._model is None:
            self._model = model_of(self._inner)
        whole, system = self._digests.of(messages)
        choice: Any = settings.get("tool_choice", "auto")
        extra: dict[str, Any] = settings.get("extra_create_args") or {}
        return {
            "system_message": system,
            "messages": whole,
            "tools": schema_of(settings.get("tools", ())),
            "tool_choice": choice if isinstance(choice, str) else choice.name,
            "json_output": _schema(settings.get("json_output")),
            "extra_create_args": {name: repr(value) for name, value in extra.items()},
            "model": self._model,
        }

    async def create(self, messages: Sequence[LLMMessage], **settings: Any) -> CreateResult:
        member = self._acting()
        if member is None:
            return await self._inner.create(messages, **settings)
        place = member.place()
        fresh: list[CreateResult] = []

        async def ask() -> dict[str, Any]:
            result = await self._inner.create(messages, **settings)
            fresh.append(result)
            return _numbered(result)

        recorded = await place.drive.leaf(place.scope, "model", self._asked(messages, settings), ask, by_manager=member.team)
        return self._answered(member, place, fresh, recorded)

    async def create_stream(self, messages: Sequence[LLMMessage], **settings: Any) -> AsyncGenerator[str | CreateResult, None]:
        member = self._acting()
        if member is None:
            async for chunk in self._inner.create_stream(messages, **settings):
                yield chunk
            return
        place = member.place()
        chunks: asyncio.Queue[Any] = asyncio.Queue()
        fresh: list[CreateResult] = []

        async def ask() -> dict[str, Any]:
            async for chunk in self._inner.create_stream(messages, **settings):
                if isinstance(chunk, CreateResult):
                    fresh.append(chunk)  # handed on when it is on record
                else:
                    chunks.put_nowait(chunk)
            if not fresh:
                raise RuntimeError("the model's stream ended without a CreateResult")
            return _numbered(fresh[-1])

        asked = self._asked(messages, settings)
        work = asyncio.ensure_future(place.drive.leaf(place.scope, "model", asked, ask, by_manager=member.team))
        work.add_done_callback(lambda _: chunks.put_nowait(_END))
        try:
            while (chunk := await chunks.get()) is not _END:
                yield chunk
            result = self._answered(member, place, fresh, await work)
        finally:
            if not work.done():
                work.cancel()
        if not fresh and isinstance(result.content, str):
            yield result.content
        yield result

    def _answered(self, member: Member, place: Place, fresh: list[CreateResult], recorded: dict[str, Any]) -> CreateResult:
        if fresh:
            result = fresh[-1]
        else:
            result = CreateResult.model_validate(recorded)
            _add(self._inner, result.usage)
        if member.turn is not None and not isinstance(place.scope, Call):  # a step's own question is none of the turn's
            member.turn.answered(result, place.scope, recorded.get("number"))
        return result

    # --- the rest is the inner client's --------------------------------------------------------------------------------------

    async def close(self) -> None:
        await self._inner.close()

    def actual_usage(self) -> RequestUsage:
        return self._inner.actual_usage()

    def total_usage(self) -> RequestUsage:
        return self._inner.total_usage()

    def count_tokens(self, messages: Sequence[LLMMessage], *, tools: Sequence[Tool | ToolSchema] = []) -> int:
        return self._inner.count_tokens(messages, tools=tools)

    def remaining_tokens(self, messages: Sequence[LLMMessage], *, tools: Sequence[Tool | ToolSchema] = []) -> int:
        return self._inner.remaining_tokens(messages, tools=tools)

    @property
    def capabilities(self) -> Any:
        return self._inner.capabilities

    @property
    def model_info(self) -> ModelInfo:
        return self._inner.model_info


def _numbered(result: CreateResult) -> dict[str, Any]:
    """Return what is recorded of the answer to the current call, with what tells it from others of its turn in each life."""
    asking = current.get()
    return {**plain(result), **({"number": number_of(asking)} if isinstance(asking, Call) else {})}


def _schema(output: Any) -> object:
    if output is None or output is True or output is False:
        return output
    model: type[BaseModel] = output
    return model.model_json_schema()


def count_replayed(stock: Callable[[], RequestUsage], client: ChatCompletionClient) -> Callable[[], RequestUsage]:
    """Return a client's usage function that counts the answers from the log as well, as an uninterrupted run would have."""

    def usage() -> RequestUsage:
        mine, more = stock(), _replayed_by(client)
        return RequestUsage(mine.prompt_tokens + more.prompt_tokens, mine.completion_tokens + more.completion_tokens)

    return usage


def _replayed_by(client: ChatCompletionClient) -> RequestUsage:
    return _replayed[id(client)][1] if id(client) in _replayed else RequestUsage(0, 0)


def _add(client: ChatCompletionClient, usage: RequestUsage) -> None:
    key, have = id(client), _replayed_by(client)
    held: Any = _replayed[key][0] if key in _replayed else None
    if held is None:
        try:
            held = ref(client, lambda _: _replayed.pop(key, None))
        except TypeError:
            held = client  # of a class with slots
    _replayed[key] = (
        held,
        RequestUsage(have.prompt_tokens + usage.prompt_tokens, have.completion_tokens + usage.completion_tokens),
    )
