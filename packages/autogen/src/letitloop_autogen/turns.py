"""The calls that AutoGen's users and teams make of an agent or a team, as runs and turns of a log."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from autogen_agentchat.base import Response, TaskResult
from autogen_agentchat.messages import ModelClientStreamingChunkEvent

from letitloop.errors import Halt
from letitloop_autogen.asking import task_of
from letitloop_autogen.driving import Drive, Place, Turn, open_drive
from letitloop_autogen.streams import Cancelled, Pump, until

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from autogen_core import CancellationToken

    from letitloop_autogen.driving import Member

__all__ = ["durable_reply", "durable_run", "durable_run_stream", "durable_turn"]


class _Entry:
    """A call that has been entered: where it happens, and whether it is an outermost one."""

    def __init__(self, place: Place, *, outermost: bool) -> None:
        self.place = place
        self.outermost = outermost

    @property
    def drive(self) -> Drive:
        return self.place.drive

    def stamp(self, messages: Any) -> None:
        if self.outermost and self.drive.stamps is not None:
            self.drive.stamps.put_all(messages)

    def stamp_next(self, message: Any) -> None:
        if self.outermost and self.drive.stamps is not None and not isinstance(message, ModelClientStreamingChunkEvent):
            self.drive.stamps.put(message)

    async def finish(self, messages: Any, **rest: object) -> None:
        self.drive.check()
        if self.outermost:
            await self.drive.finish(messages, **rest)


@asynccontextmanager
async def _entered(member: Member, asked: Mapping[str, object]) -> AsyncGenerator[_Entry]:
    """Enter a run of an agent or a team: one of its own, or a part of the one around it."""
    around = member.around()
    if around is not None:
        place = Place(around.drive, around.scope.inner(member.name))
        with member.at(place):
            yield _Entry(place, outermost=False)
        return
    drive = await open_drive(member, asked)
    with drive.raising(), member.at(place := Place(drive, drive.scope)):
        yield _Entry(place, outermost=True)


def durable_run(stock: Callable[..., Any], member: Member) -> Callable[..., Any]:
    """Return the ``run`` of an agent or a team."""

    async def run(**options: Any) -> TaskResult:
        if member.is_inside_own():
            return await stock(**options)  # type: ignore[no-any-return]  # what AutoGen returns
        async with _entered(member, {"task": task_of(options.get("task"))}) as entry:
            result: TaskResult = await stock(**options)
            entry.stamp(result.messages)
            await entry.finish(result.messages, stop_reason=result.stop_reason)
        return result

    return run


def durable_run_stream(stock: Callable[..., Any], member: Member) -> Callable[..., Any]:
    """Return the ``run_stream`` of an agent or a team."""

    async def run_stream(**options: Any) -> AsyncGenerator[Any, None]:
        if member.is_inside_own():
            async for item in stock(**options):
                yield item
            return
        async for item in _apart(_run_stream(member, stock, options)):
            yield item

    return run_stream


async def _apart(generator: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    """Drive a generator in a context of its own: what it sets must not show in its consumer's."""
    pump, never = Pump.inside(generator), Cancelled(None)
    try:
        while True:
            try:
                item = await pump.next(never)
            except StopAsyncIteration:
                return
            yield item
    finally:
        await pump.close()


async def _run_stream(member: Member, stock: Callable[..., Any], options: Mapping[str, Any]) -> AsyncGenerator[Any, None]:
    async with _entered(member, {"task": task_of(options.get("task"))}) as entry:
        async for item in stock(**options):
            if isinstance(item, TaskResult):
                await entry.finish(item.messages, stop_reason=item.stop_reason)
            else:
                entry.stamp_next(item)
            yield item


# --- turns of an agent -------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _turn(member: Member, messages: Any) -> AsyncGenerator[_Entry]:
    """Enter a turn of an agent: of its own run, of the team around it, or one that is called by itself."""
    if member.is_inside_own():
        entry = _Entry(member.active[-1], outermost=False)
        with _Taking(member, entry.place):
            yield entry
        return
    async with _entered(member, {"messages": task_of(list(messages))}) as entry:
        with _Taking(member, entry.place):
            yield entry


class _Taking:
    """An agent's turn at a place; what AutoGen would not let through is told to the run."""

    def __init__(self, member: Member, place: Place) -> None:
        self._member = member
        self._place = place
        self._before: Turn | None = None

    def __enter__(self) -> None:
        self._before, self._member.turn = self._member.turn, Turn(self._place.drive, self._place.scope)

    def __exit__(self, kind: object, exc: BaseException | None, traceback: object) -> None:
        self._member.turn = self._before
        if isinstance(exc, Halt):  # of a step in a custom agent: a team lets Exceptions through, and nothing else
            raise self._place.drive.stop(exc) from exc


def durable_reply(stock: Callable[..., Any], member: Member) -> Callable[..., Any]:
    """Return an agent's ``on_messages``."""

    async def on_messages(messages: Any, cancellation_token: CancellationToken) -> Response:
        if member.turn is not None and member.is_inside_own():
            return await stock(messages, cancellation_token)  # type: ignore[no-any-return]  # what AutoGen returns
        async with _turn(member, messages) as entry:
            work = asyncio.ensure_future(stock(messages, cancellation_token))
            response: Response = await until(work, Cancelled(cancellation_token))
            _check(entry.drive, cancellation_token)
            said = [*(response.inner_messages or ()), response.chat_message]
            entry.stamp(said)
            await entry.finish(said)
        return response

    return on_messages


def durable_turn(stock: Callable[..., Any], member: Member) -> Callable[..., Any]:
    """Return an agent's ``on_messages_stream``: the guard through which every way of asking it leads."""

    async def on_messages_stream(messages: Any, cancellation_token: CancellationToken) -> AsyncGenerator[Any, None]:
        if member.turn is not None and member.is_inside_own():
            async for item in stock(messages, cancellation_token):
                yield item
            return
        async for item in _apart(_guarded(member, stock, messages, cancellation_token)):
            yield item

    return on_messages_stream


async def _guarded(
    member: Member, stock: Callable[..., Any], messages: Any, cancellation_token: CancellationToken
) -> AsyncGenerator[Any, None]:
    async with _turn(member, messages) as entry:
        pump, cancelled = Pump.inside(stock(messages, cancellation_token)), Cancelled(cancellation_token)
        said: list[Any] = []
        drive, number = entry.drive, 0
        if member.ordered:
            drive.order.begin()
        try:
            while True:
                try:
                    item = await pump.next(cancelled)
                except StopAsyncIteration:
                    break
                _check(drive, cancellation_token)
                if isinstance(item, Response):
                    if member.ordered:
                        number = await drive.order.end(lambda new: drive.leaf(entry.place.scope, "end", {}, new))
                        _check(drive, cancellation_token)
                    entry.stamp_next(item.chat_message)
                    said.append(item.chat_message)
                    await entry.finish(said)
                else:
                    entry.stamp_next(item)
                    if not isinstance(item, ModelClientStreamingChunkEvent):
                        said.append(item)
                yield item
        finally:
            if member.ordered:
                drive.order.ended(number)
            await pump.close()


def _check(drive: Drive, token: CancellationToken | None) -> None:
    """Leave a turn whose run has to stop."""
    if isinstance(drive.stopped, asyncio.CancelledError) and token is not None and token.is_cancelled():
        raise drive.stopped  # as AutoGen leaves a turn that its token ends
    drive.check()
