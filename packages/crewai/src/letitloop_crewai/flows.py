"""A wrapped flow: methods that finished return their recorded result, and leave the state as they left it then."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar, copy_context
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from crewai.core.providers.human_input import get_provider

from letitloop.errors import Halt, LetItLoopError
from letitloop.integration.leaves import acomplete, look_up
from letitloop.integration.open_leaves import OpenLeaf
from letitloop.runs.journal import Failure
from letitloop.runs.records import OK
from letitloop.runs.run import UNRECORDABLE
from letitloop.runs.scope import restore
from letitloop_crewai import states
from letitloop_crewai.asking import digest
from letitloop_crewai.crews import Kickoffs, refuse_checkpoint
from letitloop_crewai.driving import Frame, current_frame, framed, outside
from letitloop_crewai.feedback import recording_feedback
from letitloop_crewai.growth import Growing
from letitloop_crewai.order import Turns, recorded_bodies, recorded_order
from letitloop_crewai.streams import raise_what_stopped
from letitloop_crewai.telling import tell
from letitloop_crewai.wrapping import Wrapping

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator

    from letitloop.integration.patching import Patches
    from letitloop.runs.journal import Value
    from letitloop.runs.run import Call, Run
    from letitloop.runs.scope import Scope
    from letitloop_crewai.driving import Drive, Shared

__all__ = ["WrappedFlow"]


class WrappedFlow:
    """One flow, made durable.

    CrewAI's own engine decides what runs, each time anew; routers are methods as others are. Crews that methods kick off, if they
    are wrapped, are parts of the flow's kickoff.
    """

    def __init__(self, shared: Shared, flow: Any, name: str) -> None:
        self.flow = flow
        self.stopped: BaseException | None = None
        self._kickoffs = Kickoffs(shared, name)
        self._wrapping = Wrapping(shared.policies, shared.names)
        self._started = False
        self._run: Run | None = None
        self._finished: dict[bytes, int] = {}
        self._at = 0
        self._live: dict[bytes, str] = {}
        self._beside: dict[str, str] = {}
        self._applied = 0
        self._late: tuple[int, Any] | None = None
        self._wrapping.program()
        self._wrapping.hold(flow, self._wrap)

    def _wrap(self, patches: Patches) -> None:
        patches.replace(self.flow, "kickoff", self._kickoff)
        patches.replace(self.flow, "kickoff_async", self._kickoff_async)
        patches.replace(self.flow, "_execute_method", self._execute_method)
        for name in ("_execute_start_method", "_execute_single_listener"):
            patches.replace(self.flow, name, self._stirring)
        patches.replace(self.flow, "_run_human_feedback_step", self._feedback)
        if hasattr(self.flow, "_resolve_feedback_provider"):
            patches.replace(self.flow, "_resolve_feedback_provider", recording_feedback)
        for name in ("ask", "_request_human_feedback", "_collapse_to_outcome"):
            patches.replace(self.flow, name, partial(_answered, name=name.strip("_")))

    def undo(self) -> None:
        """Give the stock flow back."""
        self._wrapping.undo()

    # --- what agents ask that a method calls by itself -----------------------------------------------------------------------

    def adopt(self, agent: Any, tools: Any) -> None:
        """Wrap what a method brought along."""
        self._wrapping.agent(agent)
        self._wrapping.tools(tools)

    def adopt_human(self) -> None:
        """Wrap who asks a human."""
        self._wrapping.human(get_provider())

    # --- kickoffs ------------------------------------------------------------------------------------------------------------

    @contextmanager
    def _driving(self, inputs: Any) -> Generator[Drive]:
        drive: Drive | None = None
        self._started, self._beside, self._applied, self._late = False, {}, 0, None
        try:
            with self._kickoffs.driving(self, inputs) as drive, framed(Frame(drive, drive.scope)):
                yield drive
        finally:
            self.stopped = drive.stopped if drive is not None else None

    def _kickoff(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(stock)
        def kickoff(*args: Any, **kwargs: Any) -> Any:
            refuse_checkpoint(kwargs.get("from_checkpoint"))
            try:
                output = stock(*args, **kwargs)  # which calls kickoff_async
            except (LetItLoopError, Halt) as error:
                raise error from error.__cause__  # not from its looking for an event loop, which CrewAI does by an error
            return raise_what_stopped(output, self) if self.flow.stream else output

        return kickoff

    def _kickoff_async(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(stock)
        async def kickoff_async(inputs: Any = None, *args: Any, **kwargs: Any) -> Any:
            refuse_checkpoint(kwargs.get("from_checkpoint"))
            frame = current_frame()
            if self.flow.stream:
                return raise_what_stopped(await stock(inputs, *args, **kwargs), self)
            if frame is not None and frame.drive.owner is self:  # a method kicks its own flow off
                async with self._turning(frame.scope):
                    return await stock(inputs, *args, **kwargs)
            with self._driving(inputs) as drive:
                return await self._once(drive, lambda: stock(inputs, *args, **kwargs), outermost=frame is None)

        return kickoff_async

    async def _once(self, drive: Drive, run: Callable[[], Awaitable[Any]], *, outermost: bool) -> Any:
        """Return what the kickoff came to; if it is not on record, by running the flow."""
        flow, scope = self.flow, drive.scope
        with drive.watched():
            ended = OpenLeaf(scope, "result", {})
            if ended.known:
                recorded = ended.answer()
                states.restore(flow, recorded["state"], scope.run.codecs)
                flow._method_outputs[:] = recorded["outputs"]
                _restore_told(flow, recorded.get("told", {}))
                return recorded["result"]
        try:
            async with self._turning(scope):
                result = await run()
                self._catch_up(scope.run)
        except Exception as error:
            if outermost and drive.stopped is None and not self._kickoffs.shared.root().prefix:
                scope.run.fail(error)  # what methods beside it did later does not make it history: it is tried again
                scope.run.log.write()
            raise
        self._finished = {key: at for key, at in self._finished.items() if not key.startswith(scope.prefix)}
        if isinstance(result, BaseException):
            return result  # it waits for a human, and is kicked off or resumed again
        names = self._kickoffs.shared.names
        names.check(self._kickoffs.shared.policies, ended=True)
        with drive.watched():
            try:
                state = states.snapshot(flow, scope.run.codecs)
                outputs = list(flow._method_outputs)
                ended.record({"result": result, "outputs": outputs, "state": state, "told": _told(flow)}, wait=False)
            except UNRECORDABLE:  # of what CrewAI or a hook makes of the methods' results
                ended.abandon()
                tell(f"the result of {self.flow.name or type(flow).__name__} of run {scope.run.id} cannot be recorded as a whole")
        return result

    @asynccontextmanager
    async def _turning(self, scope: Scope) -> AsyncGenerator[None]:
        """Have the methods of a kickoff finish in an order that can be had again."""
        if self._run is not scope.run:
            self._run, self._finished = scope.run, {}
        recorded = recorded_order(scope, "method ", "feedback of ")
        recorded.update({key: at for key, at in self._finished.items() if key.startswith(scope.prefix)})
        turns = Turns(recorded, Growing(lambda: [body["state"] for body in recorded_bodies(scope, "method ")]))
        token = _turns.set(turns)
        try:
            yield
        finally:
            restore(_turns, token)
            await turns.close()

    # --- methods -------------------------------------------------------------------------------------------------------------

    def _stirring(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        """Return a part of CrewAI's engine that is noticed when it begins and ends."""

        @wraps(stock)
        async def noticed(*args: Any, **kwargs: Any) -> Any:
            turns = _turns.get()
            if turns is None:
                return await stock(*args, **kwargs)
            turns.stir()
            try:
                return await stock(*args, **kwargs)
            finally:
                turns.stir()

        return noticed

    def _execute_method(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(stock)
        async def execute_method(method_name: Any, method: Any, *args: Any, **kwargs: Any) -> Any:
            frame, turns = current_frame(), _turns.get()
            if frame is None or turns is None or frame.drive.owner is not self:
                return await stock(method_name, method, *args, **kwargs)
            self._begin(frame)
            with turns.inside():
                return await stock(method_name, self._durable(frame, turns, str(method_name), method), *args, **kwargs)

        return execute_method

    def _begin(self, frame: Frame) -> None:
        """Let the first method find the state that it found in the kickoff's first life: its id is random, and so may more be."""
        if self._started:
            return
        self._started = True
        codecs = frame.scope.run.codecs
        for name, error in states.unrecordable(self.flow, codecs).items():
            tell(
                f"the state's private attribute {name!r} in run {frame.scope.run.id} cannot be recorded, and a resumed flow finds "
                f"it as its class makes it: {error}",
                loud=True,
            )
        states.restore(self.flow, frame.drive.leaf(frame.scope, "start", {}, lambda: states.snapshot(self.flow, codecs)), codecs)

    def _durable(self, frame: Frame, turns: Turns, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method that is done once."""
        drive, shared = frame.drive, self._kickoffs.shared

        @wraps(method)
        async def durable(*args: Any, **kwargs: Any) -> Any:
            drive.check()
            asked = digest([args, kwargs])
            with drive.watched():
                call, known = self._look_up(frame.scope, turns, name, asked)
            if known is not None:
                return await self._answer(drive, turns, call, known, name, asked)
            turns.forget(call.key)
            await turns.begin()
            drive.check()
            self._catch_up(call.run)
            self._tell_what_is_left(call, name)
            fresh: list[Any] = []
            left: list[Any] = []

            async def work() -> dict[str, Any]:
                with framed(Frame(drive, call)):
                    result = await _called(method, args, kwargs)
                fresh.append(result)
                state = states.snapshot(self.flow, call.run.codecs)
                form = turns.states.form(state)
                left.extend((form, state))
                beside = {key.decode(): seen for key, seen in self._live.items() if key != call.key}
                named = shared.names.found(shared.policies)
                return {
                    "result": result,
                    "state": form,
                    "key": call.key.decode(),
                    "asked": asked,
                    "beside": beside,
                    **({"named": named} if named else {}),
                }

            self._live[call.key] = states.fingerprint(states.snapshot(self.flow, call.run.codecs))
            try:
                with drive.watched():
                    await acomplete(call, work)
            finally:
                self._live.pop(call.key, None)
            turns.states.keep(*left)
            self._note(call)
            await turns.end()
            return fresh[0]

        return durable

    def _look_up(self, scope: Scope, turns: Turns, name: str, asked: str) -> tuple[Call, Value | Failure | None]:
        """Take a method's place and return what is on record for it; tell what is void if it was asked something else then."""
        index, run = scope.run.journal.index, scope.run
        before = {key: index[key] for key in turns.ahead() if key in index}
        call, known = look_up(scope, f"method {name}", {"arguments": asked})
        if known is None:
            void = [key for key in before if key not in index and key != call.key]
            turns.forget(*void)
            if void or call.key in self._finished or (call.key in before and before[call.key].kind == OK):
                what = f", and what was recorded after it is void: {', '.join(map(_title, void))}" if void else ""
                tell(f"method {name!r} of run {run.id} is executed again: its arguments changed{what}", loud=True)
        return call, known

    async def _answer(self, drive: Drive, turns: Turns, call: Call, known: Value | Failure, name: str, asked: str) -> Any:
        """Return what a method on record returned, in its turn, and set the state as it left it."""
        run = call.run
        if isinstance(known, Failure):
            await turns.answer(call.key)
            raise known.error
        recorded: Any = known.value
        self._kickoffs.shared.names.note(recorded.get("named", ()))
        key = recorded["key"].encode()
        with drive.watched():
            state = turns.states.whole(recorded["state"])
        try:
            await turns.answer(key)
        except asyncio.CancelledError:  # it lost a race, as it did when it was recorded; what it had changed in the state stayed
            self._late = max(self._late or (0, b""), (turns.order(key), state), key=lambda late: late[0])
            raise
        self._applied = turns.order(key)
        kept = "" if recorded["asked"] == asked else ", although its arguments changed"
        tell(f"method {name!r} of run {run.id} is answered from the log{kept}", loud=bool(kept))
        states.restore(self.flow, state, run.codecs)
        self._beside.pop(recorded["key"], None)
        then = states.fingerprint(state)
        self._beside.update({key: name for key, seen in recorded["beside"].items() if seen != then})
        return recorded["result"]

    def _catch_up(self, run: Run) -> None:
        """Set the state as the last method on record left it, if that one lost a race, and its answer was not waited for."""
        if self._late is not None and self._late[0] > self._applied:
            states.restore(self.flow, self._late[1], run.codecs)
        self._late = None

    def _tell_what_is_left(self, call: Call, name: str) -> None:
        """Tell that a method which was killed may find in the state what it had changed itself."""
        other = self._beside.pop(call.key.decode(), None)
        if other is not None:
            tell(
                f"method {name!r} of run {call.run.id} is carried out again on the state that {other!r} left, which finished "
                "beside it: if it had changed something there before it was stopped, that is in it",
                loud=True,
            )

    def _note(self, call: Call) -> None:
        """Remember the place of a record that was made now, for the next kickoff of this process."""
        self._at = max(self._at + 1, call.run.log.next_seq)
        self._finished[call.key] = self._at

    def _feedback(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        """Return CrewAI's asking of a human about a method's result: the method finishes when he has answered."""

        @wraps(stock)
        async def run_human_feedback_step(method_name: Any, *args: Any, **kwargs: Any) -> Any:
            frame, turns = current_frame(), _turns.get()
            if frame is None or turns is None or frame.drive.owner is not self:
                return await stock(method_name, *args, **kwargs)
            turns.step_aside()
            with frame.drive.watched():
                call, known = look_up(frame.scope, f"feedback of {method_name}", {})
            result = await stock(method_name, *args, **kwargs)
            if known is not None:
                await turns.answer(call.key)
                return result

            async def work() -> None:
                """Record that it was here."""

            with frame.drive.watched():
                await acomplete(call, work)
            self._note(call)
            await turns.end()
            return result

        return run_human_feedback_step


_turns: ContextVar[Turns | None] = ContextVar("letitloop_crewai_turns", default=None)
"""Of the flow's kickoff that the program is in."""


def _title(key: bytes) -> str:
    """Return how a method is called in what is told."""
    return repr(key.rpartition(b"/")[2].decode("utf-8", "replace").removeprefix("method "))


_TOLD = ("human_feedback_history", "last_human_feedback", "_input_history")
"""What a flow tells its caller besides its result and state: what humans said. Early versions of 1.15 lack some of it."""


def _told(flow: Any) -> dict[str, Any]:
    """Return what a flow that has ended tells."""
    found = {name: getattr(flow, name) for name in _TOLD if hasattr(flow, name)}
    usage = getattr(flow, "usage_metrics", None)
    return found if usage is None else {**found, "usage": usage.model_dump()}


def _restore_told(flow: Any, told: dict[str, Any]) -> None:
    """Let a flow tell what it told when it ended."""
    for name in _TOLD:
        if name in told:
            setattr(flow, name, told[name])
    if "usage" in told:
        flow._aggregated_usage_metrics = type(flow._aggregated_usage_metrics)(**told["usage"])


async def _called(method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a flow's method, as its engine does: a sync one in a thread."""
    if inspect.iscoroutinefunction(method):
        return await method(*args, **kwargs)
    result = await asyncio.to_thread(copy_context().run, method, *args, **kwargs)
    return await result if inspect.iscoroutine(result) else result


def _answered(stock: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return what asks a human, or a model about a human's words, as a step."""

    @wraps(stock)
    def ask(*args: Any, **kwargs: Any) -> Any:
        frame = current_frame()
        if frame is None:
            return stock(*args, **kwargs)
        frame.drive.check()

        def once() -> Any:
            with outside():
                return stock(*args, **kwargs)

        asked = {key: kwargs.get(key) for key in ("message", "output", "feedback", "outcomes")}
        of = f"{name} of {method}" if (method := kwargs.get("method_name")) else name  # several may be asked about side by side
        return frame.drive.leaf(frame.scope, of, {"asked": digest([[str(one) for one in args], asked])}, once)

    return ask
