"""The other calls that leave AutoGen: a human's answer, a code executor, a memory, a selector, a condition that asks the clock."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

from autogen_agentchat.base import TerminatedException, TerminationCondition
from autogen_agentchat.messages import StopMessage
from autogen_core.code_executor import CodeExecutor
from autogen_core.memory import Memory, MemoryContent, MemoryQueryResult, UpdateContextResult
from autogen_core.model_context import ChatCompletionContext
from autogen_core.models import LLMMessage
from pydantic import TypeAdapter

from letitloop_autogen.asking import Digests, text_of
from letitloop_autogen.keeping import Keeping
from letitloop_autogen.standing import StandIn
from letitloop_autogen.values import packed_memories, plain, unpacked_memories

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage
    from autogen_core import CancellationToken
    from autogen_core.code_executor import CodeBlock, CodeResult

    from letitloop_autogen.driving import Member

__all__ = [
    "DurableExecutor",
    "DurableMemory",
    "DurableTermination",
    "durable_approval",
    "durable_input",
    "durable_selector",
]

_MESSAGE: TypeAdapter[LLMMessage] = TypeAdapter(LLMMessage)


async def _call(fn: Callable[..., Any], *args: Any) -> Any:
    """Call a function that may be sync: a human at a console must not hold up the event loop."""
    if asyncio.iscoroutinefunction(fn):
        return await fn(*args)
    answer = await asyncio.to_thread(fn, *args)
    return await answer if inspect.isawaitable(answer) else answer


def durable_input(stock: Callable[..., Any], member: Member) -> Callable[..., Awaitable[str]]:
    """Return a user proxy's input function; an answer that was given is not asked for again."""

    async def ask(prompt: str, cancellation_token: CancellationToken | None = None) -> str:
        args = (prompt, cancellation_token) if asyncio.iscoroutinefunction(stock) else (prompt,)
        asking = member.acting()
        if asking is None:
            return str(await _call(stock, *args))
        drive, scope = asking.place()
        return await drive.leaf(scope, "input", {"prompt": prompt}, lambda: _call(stock, *args))

    return ask


def durable_approval(stock: Callable[..., Any], member: Member) -> Callable[..., Awaitable[Any]]:
    """Return a code executor agent's approval function; what was decided stays decided."""
    from autogen_agentchat.agents import ApprovalResponse

    async def approve(request: Any) -> Any:
        asking = member.acting()
        if asking is None:
            return await _call(stock, request)

        async def decide() -> dict[str, Any]:
            response: ApprovalResponse = await _call(stock, request)
            return plain(response)

        drive, scope = asking.place()
        return ApprovalResponse.model_validate(await drive.leaf(scope, "approval", {"code": request.code}, decide))

    return approve


def durable_selector(stock: Callable[..., Any], member: Member, name: str) -> Callable[..., Awaitable[Any]]:
    """Return a group chat's selector or candidate function, whose choices are recorded."""
    digests, keeping = Digests(), Keeping(stock, member.tell)

    async def choose(thread: Sequence[BaseAgentEvent | BaseChatMessage]) -> Any:
        async def ask() -> Any:
            answer = stock(thread)  # on the event loop, as AutoGen calls it
            return await answer if inspect.isawaitable(answer) else answer

        if not member.active:
            return await ask()
        drive, scope = member.active[-1]
        return await keeping.leaf(drive, scope, name, {"messages": digests.of(thread)[0]}, ask)

    return choose


class DurableExecutor(StandIn, CodeExecutor):
    """A code executor whose finished executions never repeat.

    Its policy is that of the tool ``execute_code``: ``"record"``, or ``"rerun"`` where later code needs what earlier code left in
    the executor.
    """

    _inner: CodeExecutor

    def __init__(self, inner: CodeExecutor, member: Member) -> None:
        self._inner = inner
        self._member = member
        self._shared_part = False

    async def execute_code_blocks(self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken) -> CodeResult:
        member = self._member.acting(shared_part=self._shared_part)
        if member is None or member.shared.policies.of("execute_code") == "rerun":
            return await self._inner.execute_code_blocks(code_blocks, cancellation_token=cancellation_token)
        drive, scope = member.place()
        asked = {"code": [[block.language, block.code] for block in code_blocks]}
        return await drive.leaf(
            scope,
            "execute_code",
            asked,
            lambda: self._inner.execute_code_blocks(code_blocks, cancellation_token=cancellation_token),
        )

    async def start(self) -> None:
        await self._inner.start()

    async def stop(self) -> None:
        await self._inner.stop()

    async def restart(self) -> None:
        await self._inner.restart()


class DurableMemory(StandIn, Memory):
    """A memory whose answers are recorded, with what they do to the agent's context."""

    _inner: Memory

    def __init__(self, inner: Memory, member: Member, number: int) -> None:
        self._inner = inner
        self._member = member
        self._shared_part = False
        self._name = f"memory {number}"
        self._digests = Digests()

    async def update_context(self, model_context: ChatCompletionContext) -> UpdateContextResult:
        member = self._member.acting(shared_part=self._shared_part)
        if member is None:
            return await self._inner.update_context(model_context)
        drive, scope = member.place()
        asked = {"messages": self._digests.of(await model_context.get_messages())[0]}
        fresh: list[UpdateContextResult] = []

        async def update() -> list[Any]:
            watched = _WatchedContext(model_context)
            fresh.append(await self._inner.update_context(watched))
            return [watched.done, packed_memories(fresh[0].memories)]

        done, result = await drive.leaf(scope, self._name, asked, update)
        if fresh:
            return fresh[0]
        for message in done:
            if message is None:
                await model_context.clear()
            else:
                await model_context.add_message(_MESSAGE.validate_python(message))
        return UpdateContextResult(memories=unpacked_memories(result))

    async def query(
        self, query: str | MemoryContent, cancellation_token: CancellationToken | None = None, **kwargs: Any
    ) -> MemoryQueryResult:
        member = self._member.acting(shared_part=self._shared_part)
        if member is None:
            return await self._inner.query(query, cancellation_token, **kwargs)
        drive, scope = member.place()
        asked = {"query": query if isinstance(query, str) else text_of(query), **{name: repr(one) for name, one in kwargs.items()}}

        async def ask() -> list[Any]:
            return packed_memories(await self._inner.query(query, cancellation_token, **kwargs))

        return unpacked_memories(await drive.leaf(scope, f"{self._name} query", asked, ask))

    async def add(self, content: MemoryContent, cancellation_token: CancellationToken | None = None) -> None:
        await self._inner.add(content, cancellation_token)

    async def clear(self) -> None:
        await self._inner.clear()

    async def close(self) -> None:
        await self._inner.close()


class _WatchedContext(StandIn, ChatCompletionContext):
    """An agent's context that notes what a memory does to it; None stands for its being cleared."""

    _inner: ChatCompletionContext

    def __init__(self, inner: ChatCompletionContext) -> None:
        self._inner = inner
        self.done: list[dict[str, Any] | None] = []

    async def add_message(self, message: LLMMessage) -> None:
        self.done.append(plain(message))
        await self._inner.add_message(message)

    async def get_messages(self) -> list[LLMMessage]:
        return await self._inner.get_messages()

    async def clear(self) -> None:
        self.done.append(None)
        await self._inner.clear()

    async def save_state(self) -> Mapping[str, Any]:
        return await self._inner.save_state()

    async def load_state(self, state: Mapping[str, Any]) -> None:
        await self._inner.load_state(state)


class DurableTermination(StandIn, TerminationCondition):
    """A condition that asks the clock, the user or a function of theirs: what it said is recorded, and it is not asked again.

    What it keeps is recorded as well (:class:`Keeping`), so that it knows at its next check what it knew.
    """

    _inner: TerminationCondition

    def __init__(self, inner: TerminationCondition, member: Member, number: int) -> None:
        self._inner = inner
        self._member = member
        self._name = f"termination {number}"
        self._keeping = Keeping(inner, member.tell)
        self._said = False

    @property
    def terminated(self) -> bool:
        return self._said or (not self._member.active and self._inner.terminated)

    async def __call__(self, messages: Sequence[BaseAgentEvent | BaseChatMessage]) -> StopMessage | None:
        if not self._member.active:
            return await self._inner(messages)

        async def ask() -> dict[str, Any] | None:
            answer = await self._inner(messages)
            return None if answer is None else plain(answer)

        drive, scope = self._member.active[-1]
        asked = {"messages": len(messages)}
        try:
            said = await self._keeping.leaf(drive, scope, self._name, asked, ask)
        except TerminatedException as error:  # a team waits for ever for a condition that this leaves
            raise drive.stop(error) from error
        self._said = said is not None
        return None if said is None else StopMessage.model_validate(said)

    async def reset(self) -> None:
        self._said = False
        await self._inner.reset()
