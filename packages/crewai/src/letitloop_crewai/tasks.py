"""A task of a wrapped crew: skipped with its recorded output, or executed with everything in it durable."""

from __future__ import annotations

import asyncio
import inspect
import os
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

from crewai.tasks.conditional_task import ConditionalTask
from crewai.tasks.llm_guardrail import LLMGuardrail

from letitloop.errors import StepChanged, UnencodableError
from letitloop.integration.leaves import leaf
from letitloop.integration.open_leaves import OpenLeaf
from letitloop.integration.sessions import entered
from letitloop_crewai.asking import digest, parts_of, task_of
from letitloop_crewai.driving import Frame, current_frame, framed, outside, place, title
from letitloop_crewai.edits import changes, check_ahead, name_of, refusal, words_of
from letitloop_crewai.models import counted_once, new_bill
from letitloop_crewai.outputs import content_of, freeze, thaw
from letitloop_crewai.steady import plain, steady
from letitloop_crewai.telling import tell

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from crewai.tasks.task_output import TaskOutput

    from letitloop.integration.patching import Patches
    from letitloop.runs.scope import Scope
    from letitloop_crewai.crews import WrappedCrew

__all__ = ["durable_callback", "durable_guardrail", "marked_callback", "slots_of", "wrap_task"]


def slots_of(crew: Any, scope: Scope) -> dict[int, Scope]:
    """Return the scope of each of a crew's tasks: by its own name, or by its words; never by its position or its random id."""
    named = [task.name for task in crew.tasks]
    slots: dict[int, Scope] = {}
    seen: dict[str, int] = {}
    for task in crew.tasks:
        slot = title(f"task {task.name}" if task.name and named.count(task.name) == 1 else f"task {task.key[:12]}")
        seen[slot] = seen.get(slot, 0) + 1
        slots[id(task)] = place(scope, slot, seen[slot])
    return slots


def wrap_task(patches: Patches, task: Any) -> None:
    """Make a task durable wherever a wrapped crew executes it; anywhere else it is as it was."""
    patches.replace(task, "_execute_core", lambda stock: _durable_core(stock, task))
    patches.replace(task, "_aexecute_core", lambda stock: _durable_core_async(stock, task))
    patches.replace(task, "_save_file", _durable_file)
    if isinstance(task, ConditionalTask):
        patches.replace(task, "should_execute", lambda stock: _durable_condition(stock, task))
    if task._guardrails:
        patches.replace(
            task, "_guardrails", lambda stock: [durable_guardrail(one, f"guardrail {i}", task) for i, one in enumerate(stock)]
        )
    if task._guardrail is not None:
        patches.replace(task, "_guardrail", lambda stock: durable_guardrail(stock, "guardrail", task))


class _Execution:
    """One execution of a task in a kickoff."""

    def __init__(self, crewed: WrappedCrew, frame: Frame, task: Any, agent: Any, context: str | None, tools: Any) -> None:
        self.task = task
        self.drive = frame.drive
        self.frame = Frame(self.drive, place_again(frame.drive.slots[id(task)]))
        self.agent = agent
        self._context = context or ""
        self._output: OpenLeaf | None = None
        with self.drive.let_through(), self.drive.watched():
            crewed.adopt(agent, tools)
        self._crew = crewed.crew
        self._had = set(self._cache())
        self._asked = task_of(task, agent, context, tools, str(crewed.crew.process.value))
        task.used_tools = 0  # CrewAI goes on counting in the next kickoff, and words its prompts by it; a resumed process cannot
        self._name = words_of(task)
        self._manager = agent if str(crewed.crew.process.value) == "hierarchical" else None

    def begin(self) -> TaskOutput | None:
        """Tell what becomes of the task, and return its recorded output, None if it has to be executed."""
        scope = self.frame.scope
        self.drive.check()
        with self.drive.watched():
            check_ahead(self.drive, self._crew, self._manager)
            changed = changes(scope, self._asked)
            try:
                leaf(scope, "asked", self._asked, lambda: parts_of(self._asked))
            except StepChanged as error:
                effects = self.drive.recorded.get(name_of(scope, self.drive.scope), [])
                raise refusal(self.drive, self.task, changed or (), effects, (), self.drive.again) from error
            self._output = OpenLeaf(scope, "output", {})
            known = self._output.answer() if self._output.known else None
            run = scope.run.id
            if known is None:
                if changed is None or changed:
                    why = f"{', '.join(changed)} changed" if changed else "not on record"
                    self.drive.again.append(f"{self._name!r} ({why})")
                if changed:
                    tell(f"task {self._name!r} of run {run} is executed again: {', '.join(changed)} changed", loud=True)
                elif changed is not None:
                    tell(f"task {self._name!r} of run {run} goes on where it stopped")
                return None
            kept = f", although {', '.join(changed)} changed" if changed else ""
            tell(f"task {self._name!r} of run {run} is answered from the log{kept}", loud=bool(changed))
            return self._restore(known)

    def _restore(self, known: dict[str, Any]) -> TaskOutput:
        task = self.task
        output = thaw(known["output"], task, self._context)
        task.agent = self.agent
        task.output = output
        task.description = known["description"]
        task.start_time, task.end_time = known["started"], known["ended"]
        task.processed_by_agents.update(known["agents"])
        if not counted_once(known["bill"]):
            crewed: Any = self.drive.owner
            crewed.replay_spent(known["spent"])
        self._cache().update({key: steady(value) for key, value in known["cached"].items()})
        return output

    def record(self, output: TaskOutput) -> None:
        """Record that the task has come to its output; what follows it are steps of their own."""
        assert self._output is not None, "begin() comes first"
        task = self.task
        with self.drive.watched():
            self._output.record(
                {
                    "output": freeze(output, task, self._context),
                    "description": str(task.description),
                    "started": task.start_time,
                    "ended": task.end_time,
                    "agents": sorted(task.processed_by_agents),
                    "spent": self.frame.spent,
                    "bill": new_bill(),
                    "cached": {
                        key: plain(value)
                        for key, value in self._cache().items()
                        if key not in self._had and self._fits(plain(value))
                    },
                }
            )

    def _cache(self) -> dict[str, Any]:
        """Return what CrewAI keeps of tools' results for later tasks, if the crew is to do so."""
        found: dict[str, Any] = self._crew._cache_handler._cache if self._crew.cache else {}
        return found

    def _fits(self, value: Any) -> bool:
        try:
            self.frame.scope.run.codecs.encode(value)
        except UnencodableError:
            return False
        return True

    def callbacks(self) -> list[Callable[[Any], Any]]:
        """Return what CrewAI calls with the task's output, in its order."""
        own = self.task.callback
        crew = getattr(self.agent, "crew", None)
        of_crew = getattr(crew, "task_callback", None)
        found = [own] if own else []
        return [*found, of_crew] if of_crew and of_crew != own else found

    @contextmanager
    def committing(self, callback: Any) -> Generator[None]:
        """Have CrewAI call ``callback`` with the output first of all."""
        task = self.task
        stock = task.callback
        object.__setattr__(task, "callback", callback)
        try:
            yield
        finally:
            object.__setattr__(task, "callback", stock)

    def file(self, output: TaskOutput) -> None:
        """See that a skipped task's file is there."""
        task = self.task
        if not task.output_file:
            return
        task._save_file(content_of(output))  # a step: nothing happens if it is recorded
        if not os.path.exists(task.output_file):
            with outside():
                task._save_file(content_of(output))


def place_again(scope: Scope) -> Scope:
    """Return a scope as it is when it is entered for the first time."""
    return type(scope)(scope.run, scope.prefix, nested=True)


class _First:
    """A task's callback while it is executed: it commits the output, then calls the user's.

    It equals the user's, since CrewAI compares that with the crew's to call neither twice.
    """

    def __init__(self, own: Any, commit: Callable[[Any], Any]) -> None:
        self._own = own
        self._commit = commit

    def __call__(self, output: Any) -> Any:
        return self._commit(output)

    def __eq__(self, other: object) -> bool:
        return self is other or (self._own is not None and self._own == other)

    def __hash__(self) -> int:
        return hash(self._own)


def _begun(task: Any, args: tuple[Any, ...]) -> _Execution | None:
    from letitloop_crewai.crews import WrappedCrew

    frame = current_frame()
    crewed = frame.drive.owner if frame is not None else None
    if frame is None or not isinstance(crewed, WrappedCrew) or id(task) not in frame.drive.slots:
        return None
    agent, context, tools = args
    agent = agent or task.agent
    return None if agent is None else _Execution(crewed, frame, task, agent, context, tools)


def _durable_core(stock: Callable[..., TaskOutput], task: Any) -> Callable[..., TaskOutput]:
    @wraps(stock)
    def execute_core(agent: Any, context: str | None, tools: Any) -> TaskOutput:
        one = _begun(task, (agent, context, tools))
        if one is None:
            return stock(agent, context, tools)
        with one.drive.let_through(), framed(one.frame):
            output = one.begin()
            if output is not None:
                for callback in one.callbacks():
                    _awaited(_marked(callback)(output))
                one.file(output)
                return output
            own = task.callback

            def commit(output: TaskOutput) -> Any:
                one.record(output)
                return _marked(own)(output) if own else None

            with one.committing(_First(own, commit)):
                return stock(agent, context, tools)

    return execute_core


def _durable_core_async(stock: Callable[..., Any], task: Any) -> Callable[..., Any]:
    @wraps(stock)
    async def aexecute_core(agent: Any, context: str | None, tools: Any) -> TaskOutput:
        one = _begun(task, (agent, context, tools))
        if one is None:
            return await stock(agent, context, tools)  # type: ignore[no-any-return]  # what CrewAI returns
        with one.drive.let_through(), framed(one.frame):
            output = await asyncio.to_thread(one.begin)
            if output is not None:
                for callback in one.callbacks():
                    if inspect.isawaitable(done := _marked(callback)(output)):
                        await done
                one.file(output)
                return output
            own = task.callback

            async def commit(output: TaskOutput) -> None:
                await asyncio.to_thread(one.record, output)
                if own and inspect.isawaitable(done := _marked(own)(output)):
                    await done

            with one.committing(_First(own, commit)):
                return await stock(agent, context, tools)  # type: ignore[no-any-return]  # what CrewAI returns

    return aexecute_core


def _awaited(value: Any) -> Any:
    return asyncio.run(value) if inspect.iscoroutine(value) else value


# --- callbacks, files, conditions, guardrails --------------------------------------------------------------------------------


def _marked(callback: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a task's callback as a step of the task; the crew's marks itself."""
    return callback if hasattr(callback, "letitloop_marked") else marked_callback(callback, "callback")


def marked_callback(callback: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a callback that is a step of whatever part of a kickoff calls it: done once."""

    @wraps(callback)
    def marked(*args: Any, **kwargs: Any) -> Any:
        frame = current_frame()
        if frame is None:
            return callback(*args, **kwargs)
        if inspect.iscoroutinefunction(callback):
            return _amarked(frame, *args, **kwargs)

        def once() -> None:
            with outside():
                _awaited(callback(*args, **kwargs))

        return frame.drive.leaf(frame.scope, name, {}, once)

    async def _amarked(frame: Frame, *args: Any, **kwargs: Any) -> None:
        async def once() -> None:
            with outside():
                await callback(*args, **kwargs)

        await frame.drive.aleaf(frame.scope, name, {}, once)

    marked.letitloop_marked = True  # type: ignore[attr-defined]  # looked for by _marked
    return marked


def durable_callback(callback: Callable[[Any], Any], name: str) -> Callable[[Any], Any]:
    """Return a callback that is a step of the kickoff, and whose answer CrewAI goes on with."""

    @wraps(callback)
    def durable(value: Any) -> Any:
        frame = current_frame()
        if frame is None:
            return callback(value)
        return _recorded(frame, name, {}, lambda: callback(value))

    return durable


def _recorded(
    frame: Frame, name: str, asked: dict[str, object], fn: Callable[[], Any], keep: Callable[[Any], bool] = lambda _: True
) -> Any:
    """Do user code once, if what it returns can be recorded and is to be kept; else each time."""
    frame.drive.check()
    inner = frame.scope.inner(name)  # for steps in it
    with frame.drive.watched():
        one = OpenLeaf(frame.scope, name, asked)
        if one.known:
            return one.answer()
        one.begin()
        value, ended = None, False
        try:
            with outside(), entered(inner):
                value = fn()
            if keep(value):
                one.record(value)
                ended = True
        except UnencodableError:
            tell(f"{name} of run {frame.scope.run.id} returned what cannot be recorded: it is called again on a resume")
        finally:
            if not ended:
                one.abandon()
    return value


def _durable_file(stock: Callable[[Any], None]) -> Callable[[Any], None]:
    @wraps(stock)
    def save_file(result: Any) -> None:
        frame = current_frame()
        if frame is None:
            stock(result)
        else:
            frame.drive.leaf(frame.scope, "file", {}, lambda: stock(result))

    return save_file


def _durable_condition(stock: Callable[[Any], bool], task: Any) -> Callable[[Any], bool]:
    @wraps(stock)
    def should_execute(context: Any) -> bool:
        from letitloop_crewai.crews import WrappedCrew

        frame = current_frame()
        crewed = frame.drive.owner if frame is not None else None
        if frame is None or not isinstance(crewed, WrappedCrew) or id(task) not in frame.drive.slots:
            return stock(context)
        here = Frame(frame.drive, place_again(frame.drive.slots[id(task)]))
        return bool(_recorded(here, "condition", {"output": digest(context.raw)}, lambda: stock(context)))

    return should_execute


def durable_guardrail(stock: Callable[[Any], Any], name: str, owner: Any) -> Callable[[Any], Any]:
    """Return a guardrail whose verdicts are recorded, but for the objection that ends the kickoff: that is asked for again.

    One that asks a model has its calls recorded instead.

    Args:
        stock: the guardrail.
        name: what its verdicts are called on record.
        owner: the task or agent that it belongs to.
    """
    if isinstance(stock, LLMGuardrail):
        return stock

    @wraps(stock)
    def guardrail(output: Any) -> Any:
        frame = current_frame()
        if frame is None:
            return stock(output)
        last = frame.objections[name] >= owner.guardrail_max_retries
        asked: dict[str, object] = {"output": digest(output.raw)}
        verdict = _recorded(frame, name, asked, lambda: stock(output), lambda said: not (last and _objects(said)))
        frame.objections[name] += _objects(verdict)
        return verdict

    return guardrail


def _objects(verdict: Any) -> bool:
    return isinstance(verdict, (tuple, list)) and len(verdict) > 0 and not verdict[0]  # anything else CrewAI refuses
