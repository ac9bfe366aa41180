"""The calls that AutoGen's users and teams make of an agent or a team, as runs and turns of a log."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from autogen_agentchat.base import Response, TaskResult
from autogen_agentchat.messages import ModelClientStreamingChunkEvent

from letitloop.errors import Halt, LetItLoopError
from letitloop_autogen.asking import task_of
from letitloop_autogen.driving import Drive, Place, open_drive
from letitloop_autogen.kept import enter, stopping
from letitloop_autogen.noise import without_our_frames
from letitloop_autogen.streams import GRACE, LONG_GRACE, Cancelled, Pump, let_go, until
from letitloop_autogen.turn import Turn

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

    from autogen_core import CancellationToken

    from letitloop_autogen.driving import Member

__all__ = ["durable_reply", "durable_run", "durable_run_stream", "durable_turn"]

T = TypeVar("T")


class _Given:
    """The arguments of a run: AutoGen's own are named, and an agent of the user's may take them by position."""

    def __init__(self, stock: Callable[..., Any], args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        self.unnamed, self.named = args, named
        if args:
            signature = inspect.signature(stock)
            signature.bind(*args, **named)  # a TypeError before anything is recorded
            parameters = list(signature.parameters.values())[: len(args)]
            if len(parameters) == len(args) and all(one.kind is one.POSITIONAL_OR_KEYWORD for one in parameters):
                names = [one.name for one in parameters]
                self.unnamed, self.named = (), {**dict(zip(names, args, strict=True)), **named}

    def asked(self) -> dict[str, object]:
        """Return what tells one run from another."""
        return {"task": task_of(self.named.get("task", self.unnamed[0] if self.unnamed else None))}


class _Entry:
    """A call that has been entered: where it happens, and whether it is an outermost one."""

    def __init__(self, place: Place, *, outermost: bool) -> None:
        self.place = place
        self.outermost = outermost
        self._streamed: dict[str, ModelClientStreamingChunkEvent] = {}

    @property
    def drive(self) -> Drive:
        return self.place.drive

    def token(self, given: CancellationToken | None) -> Any:
        """Return the cancellation token for what happens inside: an outermost call has its own."""
        return self.drive.cut.linked(given) if self.outermost else given

    def call(self, stock: Callable[..., Any], given: _Given) -> Any:
        """Call the stock function with the arguments that it gets."""
        named = given.named
        if self.outermost and not given.unnamed and _takes_token(stock):
            named = {**named, "cancellation_token": self.token(named.get("cancellation_token"))}
        return stock(*given.unnamed, **named)

    def stamp(self, messages: Any) -> None:
        if self.outermost and self.drive.stamps is not None:
            self.drive.stamps.put_all(messages)

    def stamp_next(self, message: Any) -> None:
        if self.outermost and self.drive.stamps is not None:
            self.drive.stamps.put(message)
        elif isinstance(message, ModelClientStreamingChunkEvent) and message.full_message_id:
            self._streamed.setdefault(message.full_message_id, message)

    async def through(self, work: Awaitable[T]) -> T:
        """Await a call; an outermost one that is cancelled ends all that is under way in it, and takes less than a second.

        Raises:
            asyncio.CancelledError: it was cancelled.
        """
        if not self.outermost:
            return await work
        cut = self.drive.cut
        task: asyncio.Future[T] = asyncio.ensure_future(work)
        either: set[asyncio.Future[Any]] = {task, cut.ending}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():  # the parts give what is inside them some time as well
                await asyncio.wait({task}, timeout=2 * GRACE)
        except asyncio.CancelledError:
            cut.off("task")
            await asyncio.wait({task}, timeout=2 * GRACE)
            raise
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=GRACE / 2)
            let_go(task)
        if not task.done():
            raise asyncio.CancelledError("the run was cancelled")
        return task.result()

    async def finish(self, messages: Any, **rest: object) -> None:
        self.drive.check()
        if self.outermost:
            await self.drive.finish([*self._streamed.values(), *messages], **rest)


@asynccontextmanager
async def _whole(member: Member, place: Place) -> AsyncGenerator[None]:
    """Run a team to its end, or put right what AutoGen leaves in its manager if it does not come there.

    A team that fails raises an error whose text is a traceback; the program and its models are told the same in each life.
    """
    began = place.scope.run.log.next_seq
    try:
        yield
    except BaseException as error:
        if member.begin_anew is not None:
            await member.begin_anew()
        if member.team and type(error) is RuntimeError:
            told = RuntimeError(without_our_frames(str(error)))
            error.args = (str(await place.drive.failure(place.scope, told, began)),)
        raise


def _takes_token(stock: Callable[..., Any]) -> bool:
    parameters = inspect.signature(stock).parameters
    return "cancellation_token" in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())


@asynccontextmanager
async def _entered(member: Member, asked: Mapping[str, object]) -> AsyncGenerator[_Entry]:
    """Enter a run of an agent or a team: one of its own, or a part of the one around it."""
    await enter(member)
    around = member.around()
    if around is not None:
        try:
            member.changed()
        except LetItLoopError as error:
            raise around.drive.stop(error) from error
        place = Place(around.drive, around.scope.inner(member.name))
        try:
            with member.at(place):
                yield _Entry(place, outermost=False)
        finally:
            if place.drive.stopped is not None:
                stopping(member.shared)
        return
    member.look()
    drive = await open_drive(member, asked)
    with drive.raising(), member.at(place := Place(drive, drive.scope)):
        yield _Entry(place, outermost=True)


def durable_run(stock: Callable[..., Any], member: Member) -> Callable[..., Any]:
    """Return the ``run`` of an agent or a team."""

    async def run(*args: Any, **named: Any) -> TaskResult:
        if member.passes():
            return await stock(*args, **named)  # type: ignore[no-any-return]  # what AutoGen returns
        given = _Given(stock, args, named)
        async with _entered(member, given.asked()) as entry, _whole(member, entry.place):
            result: TaskResult = await entry.through(entry.call(stock, given))
            entry.stamp(result.messages)
            await entry.finish(result.messages, stop_reason=result.stop_reason)
        return result

    return run


def durable_run_stream(stock: Callable[..., Any], member: Member) -> Callable[..., Any]:
    """Return the ``run_stream`` of an agent or a team."""

    async def run_stream(*args: Any, **named: Any) -> AsyncGenerator[Any, None]:
        if member.passes():
            async for item in stock(*args, **named):
                yield item
            return
        async with aclosing(_apart(_run_stream(member, stock, _Given(stock, args, named)))) as items:
            async for item in items:
                yield item

    return run_stream


async def _apart(generator: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    """Drive a generator in a context of its own: what it sets must not show in its consumer's."""
    pump, never = Pump.inside(generator), Cancelled(None)
    try:
        while True:
            try:
                item = await pump.next(never, grace=LONG_GRACE)
            except StopAsyncIteration:
                return
            yield item
    finally:
        await pump.close(LONG_GRACE)


async def _run_stream(member: Member, stock: Callable[..., Any], given: _Given) -> AsyncGenerator[Any, None]:
    async with _entered(member, given.asked()) as entry, _whole(member, entry.place):  # noqa: SIM117 - as entered
        async with aclosing(_driven(entry, entry.call(stock, given))) as items:
            async for item in items:
                if isinstance(item, TaskResult):
                    await entry.finish(item.messages, stop_reason=item.stop_reason)
                else:
                    entry.stamp_next(item)
                yield item


async def _driven(entry: _Entry, generator: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    """Yield what a stock run yields; an outermost one that is cancelled or left ends all that is under way in it."""
    if not entry.outermost:
        async for item in generator:
            yield item
        return
    cut, pump = entry.drive.cut, Pump.inside(generator)
    try:
        while True:
            try:
                item = await pump.next(Cancelled(None, cut.ending), on_cancel=lambda: cut.off("task"))
            except StopAsyncIteration:
                return
            yield item
    except GeneratorExit:
        if not entry.drive.ended:
            await cut.settle()
            cut.off("reader")
        raise
    finally:
        await pump.close(2 * GRACE)


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
        if member.passes() and (member.turn is not None or not member.is_inside_own()):
            return await stock(messages, cancellation_token)  # type: ignore[no-any-return]  # what AutoGen returns
        async with _turn(member, messages) as entry:
            token = entry.token(cancellation_token)
            work = asyncio.ensure_future(stock(messages, token))
            response: Response = await entry.through(until(work, Cancelled(token)))
            _check(entry.drive, token)
            said = [*(response.inner_messages or ()), response.chat_message]
            entry.stamp(said)
            await entry.finish(said)
        return response

    return on_messages


def durable_turn(stock: Callable[..., Any], member: Member) -> Callable[..., Any]:
    """Return an agent's ``on_messages_stream``: the guard through which every way of asking it leads."""

    async def on_messages_stream(messages: Any, cancellation_token: CancellationToken) -> AsyncGenerator[Any, None]:
        if member.passes() and (member.turn is not None or not member.is_inside_own()):
            async for item in stock(messages, cancellation_token):
                yield item
            return
        async with aclosing(_apart(_guarded(member, stock, messages, cancellation_token))) as items:
            async for item in items:
                yield item

    return on_messages_stream


async def _guarded(
    member: Member, stock: Callable[..., Any], messages: Any, cancellation_token: CancellationToken
) -> AsyncGenerator[Any, None]:
    async with _turn(member, messages) as entry:
        token = entry.token(cancellation_token)
        pump, cancelled = Pump.inside(stock(messages, token)), Cancelled(token)
        on_cancel = (lambda: entry.drive.cut.off("task")) if entry.outermost else None
        said: list[Any] = []
        drive, number = entry.drive, 0
        if member.ordered:
            drive.order.begin()
        try:
            while True:
                try:
                    item = await pump.next(cancelled, on_cancel=on_cancel)
                except StopAsyncIteration:
                    break
                _check(drive, token)
                if isinstance(item, Response):
                    if member.ordered:
                        number = await drive.order.end(lambda new: drive.leaf(entry.place.scope, "end", {}, new))
                        _check(drive, token)
                    entry.stamp_next(item.chat_message)
                    said.append(item.chat_message)
                    await entry.finish(said)
                else:
                    entry.stamp_next(item)
                    if not isinstance(item, ModelClientStreamingChunkEvent):
                        said.append(item)
                yield item
        except GeneratorExit:
            if entry.outermost and not drive.ended:
                await drive.cut.settle()
                drive.cut.off("reader")
            raise
        except asyncio.CancelledError as exc:
            if not entry.outermost and not cancelled and drive.is_out_of_nowhere():
                raise drive.stop(exc) from exc  # a team waits for ever for an agent that a CancelledError leaves
            raise
        finally:
            if member.ordered:
                drive.order.ended(number)
            await pump.close()


def _check(drive: Drive, token: CancellationToken | None) -> None:
    """Leave a turn whose run has to stop."""
    if isinstance(drive.stopped, asyncio.CancelledError) and token is not None and token.is_cancelled():
        raise drive.stopped  # as AutoGen leaves a turn that its token ends
    drive.check()
