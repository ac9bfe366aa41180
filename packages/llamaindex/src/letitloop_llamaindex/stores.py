"""The state store of a run, which counts what each step in flight has written.

Steps that run side by side share a state. When one of them ends, its record holds the state, with what the others have written so
far. Those run again after a crash, and what the record holds already must not be written twice: a counter would count twice. So
the record says how many writes of each step in flight it holds, and that many are passed over when the step runs again.
"""

# workflows.runtime is typed; its folder has no __init__.py, which hides that
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from workflows.context.state_store import DictState, InMemoryStateStore, copy_state_for_edit
from workflows.runtime.types.results import StepWorkerStateContextVar

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from pydantic import BaseModel

__all__ = ["CountingStore", "attempt_of", "current_attempt"]


def attempt_of(step: str, work_item: str | None, retry: int) -> str:
    """Return the name of a step's attempt at one work item: the same in every life of the program."""
    return f"{step} {work_item} retry {retry}" if retry else f"{step} {work_item}"


def current_attempt() -> str | None:
    """Return the name of the attempt that the program is in, None outside steps."""
    step = StepWorkerStateContextVar.get(None)
    return None if step is None else attempt_of(step.state.step_name, step.state.work_item_id, step.retry.retry_number)


class CountingStore(InMemoryStateStore[Any]):
    """The framework's store, with the writes of steps in flight counted.

    Args:
        stock: the store that it takes the place of.

    Attributes:
        written: how many writes of each attempt in flight the state holds.
        held: how many the recorded state holds that this life began with; they are passed over.
    """

    def __init__(self, stock: InMemoryStateStore[Any]) -> None:
        self.__dict__.update(vars(stock))
        self.written: dict[str, int] = {}
        self.held: dict[str, int] = {}

    def forget(self, attempt: str) -> None:
        """An attempt has ended, and its result is about to be recorded."""
        self.written.pop(attempt, None)
        self.held.pop(attempt, None)

    def in_flight(self) -> dict[str, int]:
        """Return how many writes of each attempt in flight the state holds."""
        return {name: max(self.written.get(name, 0), self.held.get(name, 0)) for name in {**self.written, **self.held}}

    def _is_held(self) -> bool:
        """Tell whether the state holds the write that is about to be made; then it is counted."""
        held = self._replaying()
        if held:
            self._count()
        return held

    def _count(self) -> None:
        # right after the write, with no other task in between: a record that is made meanwhile must not be wrong about it
        attempt = current_attempt()
        if attempt is not None:
            self.written[attempt] = self.written.get(attempt, 0) + 1

    def _replaying(self) -> bool:
        attempt = current_attempt()
        return attempt is not None and self.written.get(attempt, 0) < self.held.get(attempt, 0)

    async def get(self, path: str, default: Any = ...) -> Any:
        value = await super().get(path, default)
        if not self._replaying():
            return value
        return copy_state_for_edit(DictState(_data={"value": value}))["value"]  # what is done to it in place is done already

    async def get_state(self) -> Any:
        state = await super().get_state()
        return copy_state_for_edit(state) if self._replaying() else state

    async def set(self, path: str, value: Any) -> None:
        if not self._is_held():
            await super().set(path, value)
            self._count()

    async def set_state(self, state: BaseModel) -> None:
        if not self._is_held():
            await super().set_state(state)
            self._count()

    async def clear(self) -> None:
        if not self._is_held():
            await super().clear()
            self._count()

    @asynccontextmanager
    async def edit_state(self) -> AsyncGenerator[Any, None]:
        if self._is_held():
            yield copy_state_for_edit(await super().get_state())
            return
        async with super().edit_state() as state:
            yield state
        self._count()
