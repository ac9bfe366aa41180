"""A wrapped crew: its kickoffs, one scope of the log each, and what is told and refused when the program was edited."""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, wraps
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, Any

from crewai.core.providers.human_input import get_provider

from letitloop.errors import Halt, InvalidArgument, RunHalted, StepChanged
from letitloop.integration.leaves import leaf
from letitloop.runs.scope import Scope, current, restore
from letitloop_crewai.asking import digest
from letitloop_crewai.driving import Drive, Frame, current_frame, framed, place
from letitloop_crewai.edits import check_gone
from letitloop_crewai.streams import raise_what_stopped
from letitloop_crewai.tasks import durable_callback, marked_callback, slots_of
from letitloop_crewai.telling import tell
from letitloop_crewai.wrapping import Wrapping

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from letitloop.integration.patching import Patches
    from letitloop_crewai.driving import Shared

__all__ = ["Kickoffs", "WrappedCrew", "refuse_checkpoint"]

_REMEMBERED = 64  # kickoffs that failed inside others, of one crew


class Kickoffs:
    """Where the kickoffs of one crew or flow lie in the log.

    The n-th kickoff that a program makes is the n-th of its log. One that failed is not over: the next goes on with it.

    Args:
        shared: what the handler's objects share.
        name: the crew's or flow's name in the log.
        parent: the scope that it lies in; that of the session, or of the step that it is called in, if left out.
    """

    def __init__(self, shared: Shared, name: str, parent: Callable[[], Scope] | None = None) -> None:
        self.shared = shared
        self.name = name
        self._home = current.get()  # of what a part of the program wraps: its name is one of its own there, and nowhere else
        self._taken: set[int] = set()  # those that are over, or under way
        self._guard = Lock()
        self._parent = parent
        self._failed: deque[tuple[Scope, str, Scope]] = deque(maxlen=_REMEMBERED)

    @contextmanager
    def next(self, inputs: Any) -> Generator[Scope]:
        """Yield the scope of the kickoff that begins now; kickoffs that are under way together have each its own."""
        with self._guard:
            number = next(one for one in count(1) if one not in self._taken)
            self._taken.add(number)
        scope: Scope | None = None
        try:
            scope = self._scope(number, inputs)
            yield scope
        except BaseException:
            with self._guard:
                self._taken.discard(number)
            if scope is not None:
                self._failed_in(inputs, scope)
            raise

    def _scope(self, number: int, inputs: Any) -> Scope:
        """Return the scope of a kickoff.

        Inside a wrapped kickoff it is a part of that one, whichever session wraps the crew: it happens once for each time that
        the method, or the tool, happens.
        """
        around, frame = current.get() or self._home, current_frame()
        if self._parent is not None:
            return place(self._parent(), self.name, number)
        if around is not None and frame is not None:
            other = self.shared.session.id
            name = self.name if frame.drive.shared.session.id == other else f"{self.name} of {other}"
            return self._inside(around, name, inputs)
        root = self.shared.root()
        if around is not None and around.run is root.run and around.prefix != root.prefix:
            return self._inside(around, self.name, inputs)
        return place(root, self.name, number)

    def _inside(self, around: Scope, name: str, inputs: Any) -> Scope:
        """Return the scope of the next kickoff in another part of the program; one that failed there and asked the same goes on."""
        asked = digest(inputs)
        for one in tuple(self._failed):
            if one[0] is around and one[1] == asked:
                self._failed.remove(one)
                return Scope(around.run, one[2].prefix, nested=True)
        return around.inner(name)

    def _failed_in(self, inputs: Any, scope: Scope) -> None:
        """Let the next kickoff go on with one that has not come to its end."""
        around = current.get()
        if around is not None:
            self._failed.append((around, digest(inputs), scope))

    @contextmanager
    def driving(self, owner: object, inputs: Any) -> Generator[Drive]:
        """Drive a kickoff from its beginning to its end.

        Raises:
            StepChanged: it was begun with other inputs.
            BaseException: what stopped it, as the class it has.
        """
        with self.next(inputs) as scope:
            drive = Drive(self.shared, owner, scope)
            with drive.raising():
                _same_inputs(drive.scope, self.name, dict(inputs or {}))
                if leaf_is_recorded(drive.scope, "over"):
                    tell(f"{self.name} of run {drive.scope.run.id} had come to its end: it is answered from the log")
                yield drive
                drive.check()
                leaf(drive.scope, "over", {}, lambda: None)


def leaf_is_recorded(scope: Scope, name: str) -> bool:
    """Tell whether a leaf call of this name is on record."""
    return scope.prefix + name.encode() in scope.run.journal.index


def _same_inputs(scope: Scope, name: str, inputs: dict[str, Any]) -> None:
    """Hold a kickoff's inputs against the recorded ones, by their digests."""
    now = {str(key): digest(value)[:16] for key, value in inputs.items()}
    then = leaf(scope, "inputs", {}, lambda: now)
    differing = sorted(key for key in {*now, *then} if now.get(key) != then.get(key))
    if differing:
        run = scope.run.id
        raise StepChanged(
            f"{name} of run {run} was begun with other inputs: {', '.join(map(repr, differing))} differ"
            f"{'s' * (len(differing) == 1)}. Nothing was run, and every record is kept. Use another session_id for a new run, or "
            f"'lil forget {run}' to begin this one anew.",
            run_id=run,
            step=f"{name}/inputs",
            arguments=tuple(differing),
        )


class WrappedCrew:
    """One crew, made durable.

    Attributes:
        crew: the crew.
    """

    def __init__(self, shared: Shared, crew: Any, name: str, parent: Callable[[], Scope] | None = None) -> None:
        self.crew = crew
        self._shared = shared
        self._name = name
        self._kickoffs = Kickoffs(shared, name, parent)
        self._wrapping = Wrapping(shared.policies, shared.names)
        self._batches = Kickoffs(shared, f"{name} for each", parent)
        self._copies: list[WrappedCrew] = []
        self._made = count(1)
        self._streams = 0
        self._planned: list[tuple[Any, str, str]] = []
        self.stopped: BaseException | None = None
        self._wrapping.program()
        self._wrapping.hold(crew, self._wrap)
        self._wrapping.crew(crew)

    def _wrap(self, patches: Patches) -> None:
        crew = self.crew
        for name, durable in (
            ("kickoff", self._kickoff),
            ("akickoff", self._akickoff),
            ("kickoff_async", self._kickoff_async),
            ("kickoff_for_each", self._for_each),
            ("kickoff_for_each_async", self._afor_each),
            ("akickoff_for_each", self._afor_each),
            ("copy", self._copy),
        ):
            patches.replace(crew, name, durable)
        for name, label in (("task_callback", "crew callback"), ("step_callback", "step callback")):
            if getattr(crew, name) is not None and not hasattr(getattr(crew, name), "letitloop_marked"):
                patches.replace(crew, name, partial(marked_callback, name=label))
        for name in ("before_kickoff_callbacks", "after_kickoff_callbacks"):
            if getattr(crew, name):
                patches.replace(crew, name, partial(_each_durable, name.removesuffix("_callbacks")))
        patches.replace(crew, "_handle_crew_planning", self._planning)

    def undo(self) -> None:
        """Give the stock crew back."""
        for copy in self._copies:
            copy.undo()
        self._copies.clear()
        self._wrapping.undo()

    # --- what the parts of a kickoff ask -------------------------------------------------------------------------------------

    def adopt(self, agent: Any, tools: Any) -> None:
        """Wrap what CrewAI made for a task: a manager, tools of servers, of memories, of delegation."""
        self._wrapping.agent(agent)
        self._wrapping.tools(tools)
        self._shared.names.listed(agent)
        self._shared.names.check(self._shared.policies)

    def adopt_human(self) -> None:
        """Wrap who asks a human."""
        self._wrapping.human(get_provider())

    def replay_spent(self, spent: dict[str, dict[str, int]]) -> None:
        """Count what a skipped task's models used."""
        meters = self._wrapping.meters
        for label, used in spent.items():
            meter = meters.get(label) or next(iter(meters.values()), None)
            if meter is not None:
                meter.replay(used)

    # --- kickoffs ------------------------------------------------------------------------------------------------------------

    @contextmanager
    def _driving(self, inputs: Any) -> Generator[None]:
        self._wrapping.crew(self.crew)  # what was added since
        self._shared.names.check(self._shared.policies)
        drive: Drive | None = None
        streams, self._streams = self._streams, 0
        try:
            with _ending_a_stream(streams), _unplanned(self._planned), self._kickoffs.driving(self, inputs) as drive:
                drive.slots = slots_of(self.crew, drive.scope)
                check_gone(drive, self._name)
                with framed(Frame(drive, drive.scope)):
                    yield
            self._shared.names.check(self._shared.policies, ended=True)
        finally:
            self.stopped = drive.stopped if drive is not None else None

    def _is_inside(self) -> bool:
        frame = current_frame()
        return frame is not None and frame.drive.owner is self

    def _stream(self, output: Any) -> Any:
        """Return a stream, whose kickoff begins in a thread or a task of its own when it is read."""
        self._streams += 1
        return raise_what_stopped(output, self)

    def _kickoff(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(stock)
        def kickoff(inputs: Any = None, input_files: Any = None, from_checkpoint: Any = None) -> Any:
            refuse_checkpoint(from_checkpoint)
            if self._is_inside():
                return stock(inputs, input_files)
            if self.crew.stream:
                return self._stream(stock(inputs, input_files))
            with self._driving(inputs):
                return stock(inputs, input_files)

        return kickoff

    def _akickoff(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(stock)
        async def akickoff(inputs: Any = None, input_files: Any = None, from_checkpoint: Any = None) -> Any:
            refuse_checkpoint(from_checkpoint)
            if self._is_inside():
                return await stock(inputs, input_files)
            if self.crew.stream:
                return self._stream(await stock(inputs, input_files))
            with self._driving(inputs):
                return await stock(inputs, input_files)

        return akickoff

    def _kickoff_async(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(stock)
        async def kickoff_async(inputs: Any = None, input_files: Any = None, from_checkpoint: Any = None) -> Any:
            refuse_checkpoint(from_checkpoint)
            if self.crew.stream:
                return self._stream(await stock(inputs, input_files))
            return await stock(inputs, input_files)  # which calls kickoff in a thread

        return kickoff_async

    def _planning(self, stock: Callable[[], None]) -> Callable[[], None]:
        @wraps(stock)
        def handle_crew_planning() -> None:
            frame = current_frame()
            if frame is None:
                stock()
                return
            inner = frame.inner("planning")
            # the planner's prompt has addresses of objects in it; this is what it is about
            inner.plan = digest(
                [[task.description, task.expected_output, task.agent and task.agent.role] for task in self.crew.tasks]
            )
            before = [(task, task.description) for task in self.crew.tasks]
            with framed(inner):
                stock()
            self._planned.extend((task, words, task.description) for task, words in before)

        return handle_crew_planning

    # --- one kickoff for each of several inputs ------------------------------------------------------------------------------

    @contextmanager
    def _each(self, inputs: Any) -> Generator[None]:
        with self._batches.next(inputs) as scope:
            batch = _Batch(self, scope)
            token = _batch.set(batch)
            try:
                yield
            finally:
                restore(_batch, token)
        # if an item failed, others may be at work still: they stay wrapped until the crew is unwrapped
        if not self.crew.stream:
            for copy in batch.copies:
                copy.undo()
                self._copies.remove(copy)

    def _for_each(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(stock)
        def kickoff_for_each(inputs: Any, *args: Any, **kwargs: Any) -> Any:
            with self._each(inputs):
                return stock(inputs, *args, **kwargs)

        return kickoff_for_each

    def _afor_each(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(stock)
        async def kickoff_for_each_async(inputs: Any, *args: Any, **kwargs: Any) -> Any:
            with self._each(inputs):
                return await stock(inputs, *args, **kwargs)

        return kickoff_for_each_async

    def _copy(self, stock: Callable[[], Any]) -> Callable[[], Any]:
        """Return the crew's copying: copies are wrapped too, each a crew of its own in the log."""

        @wraps(stock)
        def copy() -> Any:
            other = stock()
            batch = _batch.get()
            if batch is not None and batch.owner is self:
                scope = batch.scope
                made = WrappedCrew(self._shared, other, f"item {len(batch.copies) + 1}", lambda: scope)
                batch.copies.append(made)
            else:
                made = WrappedCrew(self._shared, other, f"{self._name} copy {next(self._made)}")
            self._copies.append(made)
            return other

        return copy


class _Batch:
    """One call of a ``for_each`` form.

    Attributes:
        owner: the crew that it was called on.
        scope: where its items lie in the log.
        copies: the crew's copies, one for each item, in their order.
    """

    def __init__(self, owner: WrappedCrew, scope: Scope) -> None:
        self.owner = owner
        self.scope = scope
        self.copies: list[WrappedCrew] = []


_batch: ContextVar[_Batch | None] = ContextVar("letitloop_crewai_batch", default=None)
"""The call that is under way here: several may be at one time, of one crew too."""


@contextmanager
def _unplanned(planned: list[tuple[Any, str, str]]) -> Generator[None]:
    """Take the plans out of the tasks again if the kickoff fails, for the next one to find the tasks as it did.

    CrewAI adds them in place: the next one would ask the planner about its own plan, and take the tasks for others.
    """
    planned.clear()
    try:
        yield
    except BaseException:
        for task, before, after in planned:
            if task.description == after:
                task.description = before
        raise


@contextmanager
def _ending_a_stream(streams: int) -> Generator[None]:
    """Let a stream's own thread end as CrewAI expects; its reader gets what stopped the kickoff."""
    try:
        yield
    except Halt as halt:
        if not streams:
            raise
        raise RunHalted(str(halt)) from halt


def _each_durable(name: str, callbacks: list[Any]) -> list[Any]:
    return [durable_callback(one, name) for one in callbacks]


def refuse_checkpoint(from_checkpoint: Any) -> None:
    """Refuse CrewAI's own way to resume: it would go on with objects that are not wrapped."""
    if from_checkpoint is not None:
        raise InvalidArgument(
            "kickoff(from_checkpoint=…) of a wrapped crew or flow: CrewAI would build another one from the checkpoint, of which "
            "nothing is recorded. Nothing was run. The log goes on by itself: call kickoff() without it, or unwrap()."
        )
