"""A workbench whose finished tool calls never repeat, and which never raises: AutoGen waits for ever if one does."""

from __future__ import annotations

import asyncio
import copy
from typing import TYPE_CHECKING, Any

from autogen_agentchat.tools._task_runner_tool import TaskRunnerTool
from autogen_core.tools import StaticStreamWorkbench, StaticWorkbench, TextResultContent, ToolResult, Workbench

from letitloop.effects.guard import Effect
from letitloop.errors import InvalidArgument, RunHalted
from letitloop.integration.policies import atool_call
from letitloop.integration.sessions import entered
from letitloop.runs.run import Call
from letitloop_autogen.kept import Abandoned, Inside, unrecorded
from letitloop_autogen.standing import StandIn
from letitloop_autogen.streams import GRACE, Cancelled, let_go
from letitloop_autogen.tools import Stopped, as_called, bind_to_schema, carry_out, guarded_by
from letitloop_autogen.values import is_message, message_from, plain, plain_message

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from autogen_core import CancellationToken
    from autogen_core.tools import BaseTool, ToolSchema

    from letitloop.runs.scope import Scope
    from letitloop_autogen.driving import Drive, Member
    from letitloop_autogen.turn import Turn

__all__ = ["DurableStaticWorkbench", "DurableWorkbench", "durable_workbench"]

_END = object()
_CANCELLED = object()


def durable_workbench(inner: Workbench, member: Member) -> Workbench:
    """Return the proxy for a workbench; AutoGen streams from static ones, and asks their class."""
    return DurableStaticWorkbench(inner, member) if isinstance(inner, StaticWorkbench) else DurableWorkbench(inner, member)


class _Calls(StandIn):
    """What both proxies do about a call."""

    _member: Member
    _inner: Workbench
    _shared_part = False
    _listed: list[ToolSchema]

    def _acting(self) -> Member | None:
        """Return in whose turn the call happens, None if in nobody's."""
        member = self._member.acting(shared_part=self._shared_part)
        return None if member is None or member.turn is None else member

    async def _list(self, workbench: Workbench) -> list[ToolSchema]:
        member = self._acting()
        turn = None if member is None else member.turn
        if turn is None:
            return await workbench.list_tools()
        work = asyncio.ensure_future(workbench.list_tools())  # whoever cancels it, cancels this task as well, or it cancels itself
        try:
            await asyncio.wait({work})
        except BaseException:
            work.cancel()
            raise
        error = asyncio.CancelledError("the list of tools was cancelled") if work.cancelled() else work.exception()
        if error is None:
            self._listed = work.result()
            shared = turn.drive.shared
            try:
                shared.names.listed(self._inner, (one["name"] for one in self._listed), shared.policies)
            except InvalidArgument as misspelt:
                error = misspelt
        if error is not None:
            turn.drive.stop(error)  # not raised: AutoGen asks in the middle of a tool call, too
        return self._listed

    async def _events(
        self, member: Member, name: str, arguments: Mapping[str, Any] | None, token: CancellationToken | None, call_id: str | None
    ) -> AsyncGenerator[Any, None]:
        """Yield what the tool streams, and its result at last; whatever goes wrong stops the run instead of being raised."""
        turn = member.turn
        assert turn is not None, "asked by the proxies"
        if token is not None and token.is_cancelled():
            turn.drive.stop(asyncio.CancelledError("the run was cancelled by its token"))
        if turn.drive.stopped is not None:
            yield _aborted(name)
            return
        given: Any = {} if arguments is None else arguments
        items: asyncio.Queue[Any] = asyncio.Queue()
        scope = member.place().scope  # the turn's, or a branch's of it
        place = "" if isinstance(scope, Call) else turn.place_of(scope, name, given, call_id)  # inside a step, it has one there
        work = asyncio.ensure_future(self._work(turn.drive, scope, place, name, given, token, call_id, items.put_nowait))
        work.add_done_callback(lambda _: items.put_nowait(_END))
        cancelled, ending = Cancelled(token), turn.drive.cut.ending

        def tell(_: object) -> None:
            items.put_nowait(_CANCELLED)

        cancelled.told.add_done_callback(tell)
        ending.add_done_callback(tell)
        try:
            while (item := await items.get()) is not _END:
                if item is not _CANCELLED:
                    yield item
                    continue
                await asyncio.wait({work}, timeout=GRACE / 2)
                if not work.done():
                    turn.drive.stop(asyncio.CancelledError("the run was cancelled"))
                    if not cancelled:  # it was given no token, or not this one
                        work.cancel()
                    let_go(work)  # a thread, which nothing stops: it goes on, and its result is recorded
                    yield _aborted(name)
                    return
        except BaseException:
            work.cancel()
            raise
        finally:
            ending.remove_done_callback(tell)
        yield _outcome(turn, name, work, cancelled=bool(cancelled) or ending.done())

    async def _work(
        self,
        drive: Drive,
        scope: Scope,
        place: str,
        name: str,
        arguments: dict[str, Any],
        token: CancellationToken | None,
        call_id: str | None,
        emit: Callable[[Any], None],
    ) -> ToolResult:
        policy, called = drive.shared.policies.of(name), f"tool {name} {place}"
        if policy == "rerun" or self._is_composite(name):
            part, began = scope.inner(called), scope.run.log.next_seq
            with entered(part):
                result = await self._call(name, arguments, token, call_id, emit)
            if result.is_error and self._is_composite(name):
                told = str(await drive.failure(part, RuntimeError(result.to_text()), began))
                return result.model_copy(update={"result": [TextResultContent(content=told)]})
            return result
        inside = Inside(drive.shared, scope, called)
        with drive.under_way(scope, called, _asked(arguments), inside) as key:
            await drive.be_cancelled_at(key)
            if isinstance(policy, Effect) or self._is_guarded(name):
                with unrecorded(f"{scope.prefix.decode()}{called}"), entered(scope.inner(called)):
                    result = await self._call(name, arguments, token, call_id, emit)
            else:
                result = await self._record(drive, inside, scope, place, name, arguments, token, call_id, emit)
            drive.cut.check(key)
            return result

    async def _record(
        self,
        drive: Drive,
        inside: Inside,
        scope: Scope,
        place: str,
        name: str,
        arguments: dict[str, Any],
        token: CancellationToken | None,
        call_id: str | None,
        emit: Callable[[Any], None],
    ) -> ToolResult:
        fresh: list[ToolResult] = []

        async def call() -> dict[str, Any]:
            await drive.go_on(inside.name, inside)
            shown: list[Any] = []

            def both(item: Any) -> None:
                if is_message(item):
                    shown.append(plain_message(item, scope.run.codecs))
                emit(item)

            fresh.append(await self._call(name, arguments, token, call_id, both))
            return {"result": plain(fresh[0]), **({"streamed": shown} if shown else {})}

        asked = _asked(arguments)
        try:
            recorded = await inside.answer(await atool_call(scope, name, "record", asked, lambda: inside.do(call), place=place))
        except Abandoned:
            drive.check()
            raise
        if fresh:
            return fresh[0]
        for one in recorded.get("streamed", ()):
            emit(message_from(one))
        return ToolResult.model_validate(recorded["result"])

    def _is_composite(self, name: str) -> bool:
        """Tell whether a tool is an agent or a team, which is recorded by what it does."""
        return False

    def _is_guarded(self, name: str) -> bool:
        """Tell whether a tool is a function with an effect of its own."""
        return False

    async def _call(
        self,
        name: str,
        arguments: dict[str, Any],
        token: CancellationToken | None,
        call_id: str | None,
        emit: Callable[[Any], None],
    ) -> ToolResult:
        raise NotImplementedError

    # --- the rest is the inner workbench's -----------------------------------------------------------------------------------

    async def start(self) -> None:
        await self._inner.start()

    async def stop(self) -> None:
        await self._inner.stop()

    async def reset(self) -> None:
        await self._inner.reset()

    async def save_state(self) -> Mapping[str, Any]:
        return await self._inner.save_state()

    async def load_state(self, state: Mapping[str, Any]) -> None:
        await self._inner.load_state(state)


class DurableStaticWorkbench(_Calls, StaticStreamWorkbench):
    """The proxy for a static workbench.

    Args:
        inner: the workbench.
        member: the agent it belongs to.
    """

    _inner: StaticWorkbench

    def __init__(self, inner: StaticWorkbench, member: Member) -> None:
        self._inner = inner
        self._member = member
        self._listed = []
        self._driven: tuple[list[int], StaticWorkbench] | None = None

    def _workbench(self) -> StaticWorkbench:
        """Return a copy of the inner workbench, with its tools as a run calls them."""
        tools = self._inner._tools
        now = [id(tool) for tool in tools]
        if self._driven is None or self._driven[0] != now:
            policies = self._member.shared.policies
            driven = copy.copy(self._inner)
            names = {original: shown for shown, original in self._inner._override_name_to_original.items()}
            driven._tools = [as_called(tool, policies.of(names.get(tool.name, tool.name))) for tool in tools]
            self._driven = now, driven
            self._listed = []
        return self._driven[1]

    def _is_composite(self, name: str) -> bool:
        return isinstance(self._tool(name), TaskRunnerTool)

    def _is_guarded(self, name: str) -> bool:
        tool = self._tool(name)
        return tool is not None and guarded_by(tool) is not None

    def _tool(self, name: str) -> BaseTool[Any, Any] | None:
        original = self._inner._override_name_to_original.get(name, name)
        return next((one for one in self._inner._tools if one.name == original), None)

    def prepare(self) -> None:
        """Make the tools as a run calls them.

        Raises:
            InvalidArgument: an effect does not fit the tool whose policy it is.
        """
        self._workbench()

    async def list_tools(self) -> list[ToolSchema]:
        workbench = self._workbench()
        if not self._listed or not _is_stock(workbench):
            return await self._list(workbench)
        return list(self._listed)  # AutoGen asks twice for each tool call, and makes the schemas anew each time

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        cancellation_token: CancellationToken | None = None,
        call_id: str | None = None,
    ) -> ToolResult:
        member = self._acting()
        if member is None:
            return await self._inner.call_tool(name, arguments, cancellation_token, call_id)
        result = _aborted(name)
        async for item in self._events(member, name, arguments, cancellation_token, call_id):
            result = item
        return result

    async def call_tool_stream(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        cancellation_token: CancellationToken | None = None,
        call_id: str | None = None,
    ) -> AsyncGenerator[Any | ToolResult, None]:
        member = self._acting()
        if member is not None:
            async for item in self._events(member, name, arguments, cancellation_token, call_id):
                yield item
        elif isinstance(self._inner, StaticStreamWorkbench):
            async for item in self._inner.call_tool_stream(name, arguments, cancellation_token, call_id):
                yield item
        else:
            yield await self._inner.call_tool(name, arguments, cancellation_token, call_id)

    async def _call(
        self,
        name: str,
        arguments: dict[str, Any],
        token: CancellationToken | None,
        call_id: str | None,
        emit: Callable[[Any], None],
    ) -> ToolResult:
        workbench = self._workbench()
        if not isinstance(workbench, StaticStreamWorkbench):
            return await workbench.call_tool(name, arguments, token, call_id)
        items: list[Any] = []
        async for item in workbench.call_tool_stream(name, arguments, token, call_id):
            items.append(item)
            if not isinstance(item, ToolResult):
                emit(item)
        return items[-1]  # type: ignore[no-any-return]  # a stream of tool events ends with the result


class DurableWorkbench(_Calls, Workbench):
    """The proxy for any other workbench.

    Args:
        inner: the workbench.
        member: the agent it belongs to.
    """

    _inner: Workbench

    def __init__(self, inner: Workbench, member: Member) -> None:
        self._inner = inner
        self._member = member
        self._listed = []

    async def list_tools(self) -> list[ToolSchema]:
        return await self._list(self._inner)

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        cancellation_token: CancellationToken | None = None,
        call_id: str | None = None,
    ) -> ToolResult:
        member = self._acting()
        if member is None:
            return await self._inner.call_tool(name, arguments, cancellation_token, call_id)
        result = _aborted(name)
        async for item in self._events(member, name, arguments, cancellation_token, call_id):
            result = item
        return result

    async def _call(
        self,
        name: str,
        arguments: dict[str, Any],
        token: CancellationToken | None,
        call_id: str | None,
        emit: Callable[[Any], None],
    ) -> ToolResult:
        policy = self._member.shared.policies.of(name)
        if not isinstance(policy, Effect):
            return await self._inner.call_tool(name, arguments, token, call_id)
        schema = next((one for one in self._listed if one["name"] == name), {"name": name})

        async def inside(given: dict[str, Any]) -> str:
            result = await self._inner.call_tool(name, given, token, call_id)
            if result.is_error:
                raise RuntimeError(result.to_text())
            return result.to_text()

        try:
            text = str(await carry_out(bind_to_schema(policy, schema, inside), arguments))
        except Exception as error:
            return ToolResult(name=name, result=[TextResultContent(content=str(error))], is_error=True)
        return ToolResult(name=name, result=[TextResultContent(content=text)])


def _asked(arguments: Any) -> dict[str, Any]:
    """Return a tool call's arguments by name; a model may write any JSON."""
    return arguments if type(arguments) is dict else {"arguments": arguments}


def _is_stock(workbench: StaticWorkbench) -> bool:
    return type(workbench).list_tools is StaticWorkbench.list_tools


def _aborted(name: str) -> ToolResult:
    """Return what AutoGen gets for a call whose run has to stop; the run's caller gets why, and the model is not asked again."""
    return ToolResult(name=name, result=[TextResultContent(content="The run has to stop; nothing was done.")], is_error=True)


def _outcome(turn: Turn, name: str, work: asyncio.Future[ToolResult], *, cancelled: bool) -> ToolResult:
    drive = turn.drive
    if cancelled or work.cancelled():
        drive.stop(asyncio.CancelledError(f"tool {name} was cancelled"))
    if work.cancelled():
        return _aborted(name)
    error = work.exception()
    if error is None:
        return work.result()
    if isinstance(error, Stopped):
        error = error.error
    if not isinstance(error, RunHalted):
        drive.stop(error)
    return _aborted(name)  # also of what is no Exception; Ctrl+C and exits end the event loop by themselves
