"""Where in a wrapped kickoff something happens, and what stops it.

CrewAI turns what a tool or a model raises into text for the model, and loses what is no ``Exception`` in the threads of its async
tasks. So what must reach the caller of ``kickoff`` is kept in the :class:`Drive`, and raised where ``kickoff`` returns.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeVar

from letitloop.errors import Halt, LetItLoopError, RecordedError, RunHalted
from letitloop.integration.leaves import aleaf, leaf
from letitloop.runs.identity import escape, step_key
from letitloop.runs.scope import Scope, current, restore
from letitloop_crewai.answers import Answers
from letitloop_crewai.names import Names

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Mapping

    from letitloop.integration.policies import Policies
    from letitloop.integration.sessions import Session

__all__ = [
    "Drive",
    "Frame",
    "Shared",
    "Stopped",
    "as_it_was",
    "current_frame",
    "failing_as_then",
    "frame_around",
    "framed",
    "outside",
    "place",
    "title",
]

T = TypeVar("T")

_LONGEST = 80
"""How many characters of a name stand in a key; what is longer, or has other spaces than single ones, ends with a digest of it."""


class Stopped(Halt):
    """Carries what stops a kickoff past everything in CrewAI that would handle it.

    Attributes:
        why: what the caller of ``kickoff`` gets.
    """

    def __init__(self, why: BaseException) -> None:
        super().__init__(str(why))
        self.why = why


@dataclass
class Shared:
    """What all wrapped objects of one handler share.

    Attributes:
        session: where everything is recorded.
        policies: what is done about tool calls.
        on_change: what is done about changed tasks.
        driving: how many kickoffs are under way.
        names: the names of the policies, held against those of the tools.
        unwrapped: the crews that were found to be kicked off without being wrapped.
    """

    session: Session
    policies: Policies
    on_change: str
    driving: int = 0
    names: Names = field(default_factory=Names)
    unwrapped: set[str] = field(default_factory=set[str])

    def root(self) -> Scope:
        """Return the session's scope; a log in which something had to stop is opened anew, as that may be settled by now."""
        root = self.session.root()
        if not self.driving and root.run.halted and root.prefix == b"":
            self.session.close()
            root = self.session.root()
        return root


class Drive:
    """One kickoff, of a crew or a flow.

    Attributes:
        shared: whose it is.
        owner: the wrapped crew or flow.
        scope: its scope in the log.
        stopped: what ends it, None while it may go on.
        slots: the scopes of a crew's tasks, by their ids in this process.
        again: the tasks that were executed again so far although they, or later ones, are on record, each with why.
        recorded: the names of the scopes of the tasks on record, each with the keys of the effects that began in it.
        ahead: whether it has still to be looked at what the tasks will do.
    """

    def __init__(self, shared: Shared, owner: object, scope: Scope) -> None:
        self.shared = shared
        self.owner = owner
        self.scope = scope
        self.stopped: BaseException | None = None
        self.slots: dict[int, Scope] = {}
        self.again: list[str] = []
        self.recorded: dict[str, list[str]] = {}
        self.ahead = True

    def stop(self, why: BaseException) -> Stopped:
        """Let nothing more begin, and the caller get ``why``; return what is to be raised until then."""
        if self.stopped is None:
            self.stopped = why.why if isinstance(why, Stopped) else why
        return Stopped(self.stopped)

    def check(self) -> None:
        """Leave if this kickoff has to stop."""
        if self.stopped is not None:
            raise self.stop(self.stopped)

    @contextmanager
    def watched(self, *, passing: tuple[type[Exception], ...] = ()) -> Generator[None]:
        """Stop the kickoff if something inside must reach its caller.

        Args:
            passing: what need not.
        """
        try:
            yield
        except Halt as halt:
            raise self.stop(halt) from halt
        except passing:
            raise
        except LetItLoopError as error:
            raise self.stop(error) from error

    @contextmanager
    def let_through(self) -> Generator[None]:
        """Give CrewAI an ``Exception`` where it would lose a Halt: in an async task's thread it would wait for ever."""
        try:
            yield
        except Halt as halt:
            self.stop(halt)
            halted = RunHalted(f"run {self.scope.run.id} has to stop: {self.stopped}")
            raise halted from halt

    @contextmanager
    def raising(self) -> Generator[None]:
        """Give the caller of the outermost call what stopped it, as the class it has."""
        self.shared.driving += 1
        try:
            yield
        except BaseException as exc:
            if isinstance(exc, Halt):
                self.stop(exc)
            if self.stopped is not None and self.stopped is not exc:
                raise self.stopped from self.stopped.__cause__
            raise
        finally:
            self.shared.driving -= 1
        if self.stopped is not None:
            raise self.stopped

    def leaf(self, scope: Scope, name: str, asked: Mapping[str, object], fn: Callable[[], T]) -> T:
        """Do a leaf call once.

        Raises:
            Stopped: the kickoff has to stop.
            Exception: what ``fn`` raised, now or on record.
        """
        self.check()
        with self.watched(), failing_as_then():
            return leaf(scope, name, asked, fn)

    async def aleaf(self, scope: Scope, name: str, asked: Mapping[str, object], fn: Callable[[], Awaitable[T]]) -> T:
        """Do an async leaf call once; errors are those of :meth:`leaf`."""
        self.check()
        with self.watched(), failing_as_then():
            return await aleaf(scope, name, asked, fn)


def as_it_was(error: Exception) -> Exception:
    """Return a failure on record as what CrewAI and its models were shown then: a class of that name, with that text.

    One that cannot be rebuilt comes back as :class:`RecordedError`, which says more, and is nothing that CrewAI goes on from.
    """
    if type(error) is not RecordedError:
        return error
    name = error.type_name.rpartition(":")[2].rpartition(".")[2] or "Exception"
    made: Exception = type(name, (Exception,), {})(error.text)
    made.__cause__ = error
    return made


@contextmanager
def failing_as_then() -> Generator[None]:
    """Raise a failure on record as CrewAI and its models were shown it."""
    try:
        yield
    except RecordedError as error:
        raise as_it_was(error) from error


@dataclass
class Frame:
    """A part of a kickoff: the crew's own, a task, one attempt of an agent at it, a delegation.

    It is one object for all threads that work in this part, as context variables hold copies of references alone.

    Attributes:
        drive: the kickoff.
        scope: the part's scope, made anew when CrewAI begins the part again, so that its finished calls answer again.
        agent: whose attempt it is.
        task: the task it is an attempt at.
        spent: what model calls used, by the model's label.
        plan: stands for the messages of model calls, where CrewAI writes addresses of objects into them.
        tried: what came of the tools of a textual answer: CrewAI calls them again if they raise.
        used_tools: how many tools the task had used before this attempt; CrewAI words its prompts by it.
        description: the task's description before this attempt; CrewAI adds an agent's plan to it.
        answers: the positions of the native calls in the model's answers so far.
        taken: which kickoffs of agents by themselves are over or under way here, for each place.
        failed: those that failed, by what they asked.
        objections: how many times each guardrail has objected.
    """

    drive: Drive
    scope: Scope
    agent: Any = None
    task: Any = None
    spent: dict[str, dict[str, int]] = field(default_factory=dict[str, "dict[str, int]"])
    plan: str | None = None
    tried: dict[str, Callable[[], Any]] | None = None
    used_tools: int = 0
    description: str = ""
    answers: Answers = field(default_factory=Answers)
    taken: dict[object, set[int]] = field(default_factory=dict[object, "set[int]"])
    failed: dict[object, int] = field(default_factory=dict[object, int])
    objections: Counter[str] = field(default_factory=Counter[str])

    def inner(self, name: str, *, agent: Any = None, task: Any = None) -> Frame:
        """Return the next part of a name inside this one."""
        return Frame(self.drive, self.scope.inner(title(name)), agent, task, self.spent)

    def again(self) -> Frame:
        """Return this part as it is begun again."""
        scope = Scope(self.scope.run, self.scope.prefix, nested=True)
        return Frame(self.drive, scope, self.agent, self.task, self.spent, used_tools=self.used_tools, description=self.description)


_frame: ContextVar[Frame | None] = ContextVar("letitloop_crewai_frame", default=None)
_around: ContextVar[Frame | None] = ContextVar("letitloop_crewai_around", default=None)
"""The part that a leaf call is made from, while it is carried out."""


def current_frame() -> Frame | None:
    """Return the part of a wrapped kickoff that the program is in; None outside any."""
    return _frame.get()


@contextmanager
def framed(frame: Frame) -> Generator[Frame]:
    """Be in a part of a kickoff."""
    token, scope = _frame.set(frame), current.set(frame.scope)
    try:
        yield frame
    finally:
        restore(current, scope)
        restore(_frame, token)


@contextmanager
def outside() -> Generator[None]:
    """Be inside one leaf call: what it calls in its turn is a part of it, but for effects (see :func:`frame_around`)."""
    around, token = _around.set(_frame.get() or _around.get()), _frame.set(None)
    try:
        yield
    finally:
        restore(_frame, token)
        restore(_around, around)


def frame_around() -> Frame | None:
    """Return the part of a wrapped kickoff that the leaf call is made from that is carried out here; None in no such call."""
    return _around.get() if _frame.get() is None else None


def place(scope: Scope, name: str, ordinal: int = 1) -> Scope:
    """Return the scope of a name inside another, as it is when it is entered for the first time."""
    base = scope.prefix + escape(title(name), "scope").encode()
    return Scope(scope.run, step_key(base, ordinal) + b"/", nested=True)


def title(name: str) -> str:
    """Return a name of CrewAI's as one of a scope: readable, and never the same for two names."""
    words = " ".join(name.encode("utf-8", "replace").decode().split())  # no lone surrogates, which a key cannot hold
    if words == name and 0 < len(name) <= _LONGEST:
        return name
    mark = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{words[: _LONGEST - 13].strip() or 'unnamed'} {mark}"
