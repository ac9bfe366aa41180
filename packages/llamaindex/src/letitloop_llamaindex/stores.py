"""The state store of a run, which notes what each step in flight reads and writes; :mod:`letitloop_llamaindex.traces` says why."""

# workflows.runtime is typed; its folder has no __init__.py, which hides that
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from workflows.context.state_store import DictState, InMemoryStateStore, copy_state_for_edit
from workflows.runtime.types.results import StepWorkerStateContextVar

from letitloop.errors import InvalidArgument
from letitloop.runs.run import Call
from letitloop.runs.scope import current_scope
from letitloop_llamaindex.states import parts_of, whole_of
from letitloop_llamaindex.traces import ABSENT, Attempt, Seen, Trace, doing, seen_again, seen_of
from letitloop_llamaindex.writes import Fields, Watch, Write, watching

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from pydantic import BaseModel

    from letitloop_llamaindex.ticks import TickCodec

__all__ = ["CountingStore", "attempt_of", "current_attempt", "item_of"]

_EDIT = "edit_state"


def attempt_of(step: str, work_item: str | None, retry: int) -> str:
    """Return the name of a step's attempt at one work item: the same in every life of the program."""
    return f"{step} {work_item} retry {retry}" if retry else f"{step} {work_item}"


def item_of(attempt: str) -> str:
    """Return the step and the work item that an attempt is one at."""
    return attempt.partition(" retry ")[0]


def current_attempt() -> str | None:
    """Return the name of the attempt that the program is in, None outside steps."""
    step = StepWorkerStateContextVar.get(None)
    return None if step is None else attempt_of(step.state.step_name, step.state.work_item_id, step.retry.retry_number)


class CountingStore(InMemoryStateStore[Any]):
    """The framework's store, with the accesses of steps in flight noted.

    Args:
        stock: the store that it takes the place of.
        codec: the run's.
    """

    def __init__(self, stock: InMemoryStateStore[Any], codec: TickCodec) -> None:
        self.__dict__.update(vars(stock))
        self._codec = codec
        self._traces: dict[str, Trace] = {}

    # --- what is recorded ----------------------------------------------------------------------------------------------------

    def begin(self, name: str) -> Attempt:
        """Return a new execution of an attempt."""
        return Attempt(self, self._traces.setdefault(name, Trace([])))

    def end(self, name: str, *, waits: bool) -> bool:
        """An attempt has ended, and its result is about to be recorded; tell whether a record holds accesses of it.

        Args:
            name: the attempt's.
            waits: it waits for an event, and is executed again: the calls in it that are recorded are not made again.
        """
        trace = self._traces.pop(name, None)
        if trace is None:
            return False
        if waits:
            self._traces[name] = trace.of_calls()
        return trace.recorded > 0

    def take_new(self) -> dict[str, list[Any]]:
        """Return the accesses of attempts in flight that the next record has to hold with the state as it is."""
        new = {name: trace.take_new(self._codec) for name, trace in self._traces.items()}
        return {name: accesses for name, accesses in new.items() if accesses}

    def take_in(self, record: dict[str, Any]) -> None:
        """Take in what a record of an earlier life says of attempts."""
        for word in ("ended", "waits"):
            if word in record:
                self.end(record[word], waits=word == "waits")
        for name, accesses in record.get("held", {}).items():
            self._traces.setdefault(name, Trace([])).take_in(accesses, self._codec)

    # --- reads ---------------------------------------------------------------------------------------------------------------

    async def get(self, path: str, default: Any = ...) -> Any:
        attempt = self._attempt()
        if attempt is None:
            return await super().get(path, default)
        place = _place()
        known = attempt.take(place, "get", path)
        if known is None:
            value = await super().get(path, ABSENT)
            attempt.note(place, "get", path, seen=seen_of(value, self._codec))
            if (watch := _watch()) is not None:
                watch.read(path, value)
        elif known.seen is None:
            value = copy_state_for_edit(DictState(_data={"value": await super().get(path, ABSENT)}))["value"]
        else:
            value = seen_again(known.seen, self._codec)
        if value is not ABSENT:
            return value
        if default is ...:
            raise ValueError(f"Path '{path}' not found in state")  # as the framework says it
        return default

    async def get_state(self) -> Any:
        attempt = self._attempt()
        state = await super().get_state()
        if attempt is None:
            return state
        place = _place()
        known = attempt.take(place, "get_state")
        if known is not None:
            return self._state_again(known.seen, state)
        attempt.note(place, "get_state", seen=self._seen(state))
        if (watch := _watch()) is not None:
            watch.read_state(state)
        return state

    # --- writes --------------------------------------------------------------------------------------------------------------

    async def set(self, path: str, value: Any) -> None:
        attempt = self._writer()
        if attempt is not None and attempt.take(_place(), "set", path):
            return
        await super().set(path, value)
        if attempt is not None:
            self._wrote(attempt, Write("set", path, {"": value}))

    async def set_state(self, state: BaseModel) -> None:
        attempt = self._writer()
        if attempt is not None and attempt.take(_place(), "set_state"):
            return
        watch = _watch()
        write = Write("set_state") if watch is None else watch.replaces(await super().get_state(), state)
        await super().set_state(state)
        if attempt is not None:
            self._wrote(attempt, write)

    async def clear(self) -> None:
        attempt = self._writer()
        if attempt is not None and attempt.take(_place(), "clear"):
            return
        await super().clear()
        if attempt is not None:
            self._wrote(attempt, Write("clear"))

    @asynccontextmanager
    async def edit_state(self) -> AsyncGenerator[Any, None]:
        attempt, place = self._writer(), _place()
        known = None if attempt is None else attempt.take(place, _EDIT)
        if known is not None:
            state = self._state_again(known.seen, await super().get_state())
            before = Fields(state)
            yield state
            if attempt is not None and not known.written:  # it raised then
                await self._make(attempt, before.write(_EDIT, state), place, known.seen)
            return
        async with super().edit_state() as state:
            seen = None if attempt is None else self._seen(state)
            fields = None if _watch() is None else Fields(state)
            try:
                yield state
            except BaseException:
                if attempt is not None:
                    attempt.note(place, _EDIT, seen=seen)
                raise
            write = Write(_EDIT) if fields is None else fields.write(_EDIT, state)
        if attempt is not None:
            self._wrote(attempt, write, seen)

    async def write_again(self, write: Write, place: str) -> None:
        """Make a write of a recorded call, unless the state holds it.

        Args:
            write: what it changed.
            place: the call's key.
        """
        attempt = self._attempt()
        if attempt is not None and attempt.take(place, write.kind, write.path, written=True) is None:
            await self._make(attempt, write, place)
        if (watch := _watch()) is not None:
            watch.wrote(write, place)

    async def _make(self, attempt: Attempt, write: Write, place: str, seen: Seen = None) -> None:
        if write.kind == "clear":
            await super().clear()
        elif write.path:
            await super().set(write.path, write.changed[""])
        else:
            async with super().edit_state() as state:
                write.apply(state)
        attempt.note(place, write.kind, write.path, written=True, seen=seen)

    def changed_in_place(self, write: Write) -> None:
        """Note what a recorded call has changed without writing it."""
        attempt = self._attempt()
        if attempt is not None:
            self._wrote(attempt, write)

    # --- the program's place -------------------------------------------------------------------------------------------------

    def _attempt(self) -> Attempt | None:
        attempt = doing.get()
        return attempt if attempt is not None and attempt.store is self else None

    def _writer(self) -> Attempt | None:
        attempt, scope = self._attempt(), current_scope()
        if attempt is not None and isinstance(scope, Call) and _watch() is None:
            raise InvalidArgument(
                f"{scope.key.decode()!r} of run {scope.run.id} writes to the workflow's state, and is a recorded call: it is not "
                "made again when its step is, so the write would be lost. Nothing was written. Return the value and write it in "
                "the workflow's step, or make the call a durable_tool, whose writes are recorded with it."
            )
        return attempt

    def _wrote(self, attempt: Attempt, write: Write, seen: Seen = None) -> None:
        attempt.note(_place(), write.kind, write.path, written=True, seen=seen)
        if (watch := _watch()) is not None:
            watch.wrote(write, _place())

    def _seen(self, state: BaseModel) -> Seen:
        return {key: seen_of(value, self._codec) for key, value in parts_of(state).items()}

    def _state_again(self, seen: Seen, now: BaseModel) -> Any:
        """Return a state as it was; of what cannot be given again, a copy of what it is now."""
        assert isinstance(seen, dict), "a state"
        others = parts_of(copy_state_for_edit(now)) if None in seen.values() else {}
        values = {key: others.get(key, ABSENT) if one is None else seen_again(one, self._codec) for key, one in seen.items()}
        return whole_of({key: one for key, one in values.items() if one is not ABSENT})


def _place() -> str:
    scope = current_scope()
    return scope.key.decode() if isinstance(scope, Call) else ""


def _watch() -> Watch | None:
    """Return what notes the writes of the recorded call that the program is in, None if nothing does."""
    watch = watching.get()
    return watch if watch is not None and watch.call is current_scope() else None
