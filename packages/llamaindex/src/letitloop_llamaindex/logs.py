"""Where a run of a workflow lies: in a log of its own, or, called inside a run, in a scope of that one."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from letitloop.codecs import default_codecs
from letitloop.errors import StepChanged
from letitloop.integration.open_leaves import OpenLeaf
from letitloop.integration.sessions import settled
from letitloop.runs.drive_async import in_thread
from letitloop.runs.history import describe_run
from letitloop.runs.journal import Value
from letitloop.runs.opening import Spec, open_run, prepare
from letitloop.runs.scope import Scope, current, current_scope, restore
from letitloop_llamaindex.side_by_side import StepScope

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

    from letitloop.runs.run import Run
    from letitloop.store.protocol import Store

__all__ = ["Options", "RunLog"]


@dataclass(frozen=True)
class Options:
    """How runs are recorded; see :class:`LetItLoopRuntime`."""

    store: Store | str | os.PathLike[str] | None = None
    sync: Literal["power", "process"] = "power"
    on_change: Literal["raise", "rerun", "reuse"] = "raise"

    def spec(self, run_id: str, *, on_complete: Literal["return", "restart"] = "return") -> Spec:
        """Return the specification of a run's log.

        Args:
            run_id: the run's name.
            on_complete: what is done if it is finished.

        Raises:
            InvalidArgument: an option has a value that means nothing.
        """
        return Spec(
            _workflow,
            goal_id=f"llamaindex:{run_id}",
            store=self.store,
            on_change=self.on_change,
            on_complete=on_complete,
            on_locked="raise",
            sync=self.sync,
            codecs=default_codecs,
            seal_key=None,
        )


def _workflow() -> None:
    """Stand for the program that a workflow's log belongs to."""


class RunLog:
    """The log of one run of a workflow; made when ``run()`` is called, opened when the run begins.

    Args:
        options: how it is recorded.
        run_id: its name.
        name: what it is called inside another run, where names that the framework draws mean nothing.

    Attributes:
        finished: what was recorded at its end, None if it has not come to it.
    """

    def __init__(self, options: Options, run_id: str, name: str) -> None:
        around = current_scope()
        self._inside = around.inner(name) if around is not None and around.run.active else None
        self._options = options
        self._run_id = run_id
        self._spec = options.spec(run_id)
        self._scope: Scope | None = self._inside
        self._run: Run | None = None
        self._next: OpenLeaf | None = None
        self._steps: dict[str, Scope] = {}
        self._result: OpenLeaf | None = None
        self._began = time.time()
        self.finished: Any = None

    async def open(self) -> None:
        """Open it.

        Raises:
            LogLocked: another process works in it.
            StoreError, LogError: it cannot be used.
        """
        if self._inside is not None:
            self._result = OpenLeaf(self._inside, "result", {})
            if self._result.known:
                self.finished = self._result.answer()
            return

        def work() -> Run | Value:
            token = current.set(None)  # not as a part of a run that happens to be current in a thread's context
            try:
                return open_run(prepare(self._spec, (), {}))
            finally:
                restore(current, token)

        opened = await in_thread(work)
        if isinstance(opened, Value):
            self.finished = opened.value
        else:
            self._run, self._scope = opened, opened.root

    async def answers(self, asked: Mapping[str, str]) -> bool:
        """Tell whether the finished run answers what is asked; if it is to be run anew, it is open from here on.

        Args:
            asked: fingerprints of what is asked, by name.

        Raises:
            StepChanged: something else was asked then.
        """
        recorded: Mapping[str, str] = self.finished["asked"]
        changed = tuple(name for name in {**recorded, **asked} if recorded.get(name) != asked.get(name))
        if not changed or self._options.on_change == "reuse":
            return True
        effects = self._effects() if self._options.on_change == "rerun" else []
        if self._options.on_change == "rerun" and self._inside is None and not effects:
            self.finished = None
            self._spec = self._options.spec(self._run_id, on_complete="restart")
            await self.open()
            return False
        taken_back = f"would take back effects that have happened ({', '.join(effects)}), so it is refused"
        raise StepChanged(
            f"run {self._run_id!r} is finished, and was asked something else: {', '.join(map(repr, changed))} differ. Nothing was "
            f'run here. Take another run_id; or on_change="rerun" {taken_back if effects else "runs it anew"}, and "reuse" returns '
            "the recorded result.",
            run_id=self._run_id,
            step="start",
            arguments=changed,
        )

    def _effects(self) -> list[str]:
        """Return the keys of the effects that the finished run has had."""
        if self._inside is not None:
            return []
        opening = prepare(self._spec, (), {})
        steps = describe_run(opening.store, opening.name, codecs=default_codecs).steps
        return [step.key for step in steps if step.status == "effect"]

    @property
    def scope(self) -> Scope:
        """The scope that its records lie in."""
        assert self._scope is not None, "the log is not open"
        return self._scope

    def once(self, name: str, asked: Mapping[str, object], value: object) -> Any:
        """Record something at the first time, and return what was recorded then.

        Raises:
            StepChanged: something else was asked then.
        """
        leaf = OpenLeaf(self.scope, name, asked)
        return leaf.answer() if leaf.known else leaf.record(value, wait=False)

    def ticks(self) -> Iterator[Any]:
        """Yield what :meth:`record` recorded in earlier lives."""
        while True:
            leaf = OpenLeaf(self.scope, "tick", {})
            if not leaf.known:
                self._next = leaf
                return
            yield leaf.answer()

    async def record(self, value: object, *, wait: bool) -> None:
        """Record what happens next, before it does.

        Args:
            value: what it is.
            wait: return when the record survives a power cut as well; what follows from earlier records alone need not wait.

        Raises:
            LogPoisoned: the disk refused the record.
            Halt: one was raised in this run and swallowed.
        """
        leaf, self._next = self._next or OpenLeaf(self.scope, "tick", {}), None
        leaf.record(value, wait=False)
        if wait and self.scope.run.log.syncs:
            await in_thread(self.scope.run.log.flush)

    def step(self, name: str, *, sync: bool) -> StepScope:
        """Return the scope of a step's attempt; what is finished in it answers again each time the framework runs it anew.

        Args:
            name: the attempt's.
            sync: whether the step's function is, which the framework calls in a thread.
        """
        scope = self._steps.get(name)
        if scope is None:
            scope = self._steps[name] = self.scope.inner(name)
        return StepScope(scope.run, scope.prefix, sync=sync)

    def settle(self, name: str) -> None:
        """A step's attempt has ended and is not run anew: what its calls answered need not be kept."""
        if name in self._steps:
            settled(self._steps[name])

    # --- its end -------------------------------------------------------------------------------------------------------------

    async def finish(self, value: object) -> None:
        """Record that the run has come to its end.

        Raises:
            UnencodableError: the result cannot be recorded.
            Halt: one was raised in this run and swallowed.
        """
        if self._result is not None:
            self._result.record(value, wait=False)
            if self.scope.run.log.syncs:
                await in_thread(self.scope.run.log.flush)
        elif self._run is not None:
            self._run.complete(value, self._began)
            await self.close()

    def fail(self, error: BaseException) -> None:
        """Record that an exception ended the run; it may be tried again.

        Raises:
            Halt: one was raised in this run and swallowed.
        """
        if self._run is not None and self._run.log.usable:
            self._run.fail(error)

    async def close(self) -> None:
        """Let another process have the run; what is recorded stays."""
        run, self._run = self._run, None
        if run is not None:
            run.active = False
            await in_thread(run.close)
