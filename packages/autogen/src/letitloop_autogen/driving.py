"""A run of a wrapped agent or team while it is driven: its place in the log, and what stops it.

AutoGen hangs if something else than a value leaves a tool call, and takes an exception's class away when it leaves a team. So what
must reach the caller is kept in the :class:`Drive`, and raised where the outermost call returns.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from letitloop.errors import Halt, LetItLoopError, RecordedError, RunHalted, StepChanged
from letitloop.integration.leaves import acomplete, aleaf, look_up, reserve
from letitloop.runs.identity import escape
from letitloop.runs.journal import Failure
from letitloop.runs.run import Call
from letitloop.runs.scope import Scope, current, restore
from letitloop_autogen.beside import Calls, Runs, number_of
from letitloop_autogen.cancelling import Cut
from letitloop_autogen.kept import Abandoned, Inside, is_inside, stopping
from letitloop_autogen.left import Left
from letitloop_autogen.names import Names
from letitloop_autogen.order import Order
from letitloop_autogen.stamps import Stamps
from letitloop_autogen.turn import Turn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence

    from letitloop.integration.policies import Policies
    from letitloop.integration.sessions import Session
    from letitloop_autogen.states import States

__all__ = ["Drive", "Member", "Place", "Shared", "in_stopped_run", "open_drive"]

T = TypeVar("T")


@dataclass
class Shared:
    """What all wrapped objects of one serializer share.

    Attributes:
        session: where everything is recorded.
        policies: what is done about tool calls.
        strict: whether changed inputs are an error.
        names: the names of tools, to be compared with those of the policies.
        cut_off: runs that were cancelled; the next run tells that the program survived it.
        entrance: lets the runs of an event loop take their places in the order in which they were begun.
        members: the agents and teams by their keys; those made inside a recorded call have none.
        kept: how many records hold what became of the agents that a call ran.
        inside: the recorded calls that are being carried out.
        loaded: into which the program has loaded a state outside of runs, the first of them.
        runs: the outermost runs that are under way.
    """

    session: Session
    policies: Policies
    strict: bool
    names: Names = field(default_factory=Names)
    cut_off: list[Drive] = field(default_factory=list["Drive"])
    entrance: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = field(
        default_factory=WeakKeyDictionary["asyncio.AbstractEventLoop", "asyncio.Lock"]
    )
    members: dict[str, Member] = field(default_factory=dict[str, "Member"])
    kept: int = 0
    inside: dict[Inside, None] = field(default_factory=dict[Inside, None])
    loaded: str | None = None
    runs: Runs = field(default_factory=Runs)


class Drive:
    """One run of an outermost agent or team, with everything that happens inside it.

    Attributes:
        shared: whose it is.
        scope: its scope in the log.
        stopped: what ends it, None while it may go on.
        finished: whether its caller has its result.
        stamps: the ids and times of its recorded messages, None if it has not come to its end.
        cut: where it is cut off.
        left: what it leaves without an answer.
    """

    def __init__(self, shared: Shared, scope: Scope, task: asyncio.Task[Any] | None) -> None:
        self.shared = shared
        self.scope = scope
        self._task = task
        self.stopped: BaseException | None = None
        self.finished = False
        self._result, known = reserve(scope, "result", {})
        self._cancelled, cut = reserve(scope, "cancelled", {})
        self.stamps = Stamps(known.value) if known is not None else None
        recorded = cut.value if cut is not None and shared.strict else None
        self.cut = Cut(recorded, lambda: self.stop(asyncio.CancelledError("the run was cancelled")))
        before: Any = known.value if known is not None else {}
        self.left = Left(before.get("left", {}), self.cut.ending)
        self._order: Order | None = None
        self._calls: dict[str, Inside] = {}
        self._beside = Calls()

    @property
    def ended(self) -> bool:
        """Whether it has come to its end, in this life or an earlier one."""
        return self._result.recorded or self.stamps is not None

    @property
    def order(self) -> Order:
        """The order in which turns that run side by side end."""
        if self._order is None:
            prefix = self.scope.prefix
            recorded = [key for key in self.scope.run.journal.results(1 << 20) if key.startswith(prefix) and key.endswith(b"/end")]
            self._order = Order(len(recorded))
        return self._order

    def stop(self, why: BaseException) -> RunHalted:
        """Let nothing more begin in this run, and its caller get ``why``; return what may be raised until then."""
        if self.stopped is None:
            self.stopped = why
            if isinstance(why, StepChanged) and self.shared.loaded is not None:
                text = (
                    f"{why} The program has loaded a state into {self.shared.loaded!r}: was it saved by these runs themselves? On "
                    "record they begin without it, and they leave their agents with that conversation in each life. Leave out "
                    "load_state(), or use another session_id with each state."
                )
                why.args = (text,)
            if self._order is not None:
                self._order.give_up()
        if not isinstance(why, asyncio.CancelledError):
            stopping(self.shared)
        halted = RunHalted(f"run {self.scope.run.id} has to stop: {self.stopped}")
        halted.__cause__ = self.stopped
        return halted

    def check(self) -> None:
        """Raise RunHalted if this run has to stop."""
        if self.stopped is not None:
            stopping(self.shared)
            raise self.stop(self.stopped)

    async def leaf(
        self, scope: Scope, name: str, asked: Mapping[str, object], fn: Callable[[], Awaitable[T]], *, by_manager: bool = False
    ) -> T:
        """Do a leaf call once.

        Args:
            scope: where it belongs.
            name: what it is called there.
            asked: what is asked, by name.
            fn: does it.
            by_manager: a team's manager asks, for whose answer the team waits for ever if a CancelledError leaves it.

        Raises:
            RunHalted: the run has to stop; what the caller gets is kept.
            Exception: what ``fn`` raised, now or on record.
        """
        self.check()
        what, inside = f"{scope.prefix.decode()}{name}", Inside(self.shared, scope, name)
        beside = self._beside.are_beside(scope.prefix)

        async def go() -> Any:
            await self.go_on(what, inside)
            return await inside.do(lambda: self.cut.unless(fn()))

        try:
            with self.under_way(scope, name, asked, inside) as key:
                await self.be_cancelled_at(key)
                answer: T = await inside.answer(await aleaf(scope, name, asked, go, unordered=beside))
                self.cut.check(key)
                return answer
        except Halt as halt:
            raise self.stop(halt) from halt
        except RecordedError:
            raise  # what the call failed with before, for whoever handled that
        except LetItLoopError as error:
            self.stop(error)
            raise
        except Abandoned:
            self.check()
            raise
        except asyncio.CancelledError as exc:
            if by_manager and self.is_out_of_nowhere():
                raise self.stop(exc) from exc
            raise

    def is_out_of_nowhere(self) -> bool:
        """Tell whether nobody has cancelled this run, nor the task that a CancelledError is about to leave: it is an error."""
        if self.stopped is not None or self.cut.by is not None or self.cut.recorded is not None:
            return False
        cancelling: Callable[[], int] = getattr(asyncio.current_task(), "cancelling", lambda: 1)  # Python 3.10 cannot tell
        return not cancelling()

    @contextmanager
    def under_way(self, scope: Scope, name: str, asked: Mapping[str, object], inside: Inside) -> Generator[str]:
        """Note that a call is under way, under the key that the block gets."""
        key = self.cut.begin(f"{scope.prefix.decode()}{name}", inside=is_inside())
        self._calls[key] = inside
        self._beside.begin(scope.prefix)
        self.left.begin(inside, scope, name, asked)
        left = False
        try:
            yield key
        except asyncio.CancelledError:
            left = self.cut.by is None and self.stopped is None
            raise
        finally:
            self.left.end(inside, left=left)
            self._beside.end(scope.prefix)
            self.cut.end(key)
            if self.cut.by is None:
                del self._calls[key]

    async def be_cancelled_at(self, key: str) -> None:
        """End where the recorded run was cancelled, if this call was under way then."""
        if self.cut.was_under_way(key):
            await self._calls[key].again(self.cut.recorded.get("kept", {}).get(key, {}))
            await self._be_cancelled(key)

    async def go_on(self, what: str, inside: Inside) -> None:
        """Something that is not on record is about to happen.

        Raises:
            StepChanged: the run had come to its end without it, or was cancelled before it.
            asyncio.CancelledError: it was cancelled before it, and this one is as well; or it was left, and is again.
        """
        if self.cut.by is not None:
            raise asyncio.CancelledError("the run was cancelled")
        if self.cut.recorded is not None:
            await self._be_cancelled(what)
        await self.left.again(inside)
        self.going_on(what)

    async def _be_cancelled(self, what: str) -> None:
        if not await self.cut.again():
            run, which = self.scope.run.id, self.scope.prefix.decode().rstrip("/")
            changed = StepChanged(
                f"{which!r} of run {run} was cancelled at {what!r} before, and the program went on without it; nothing cancels "
                "it now: a timeout is longer, or gone, or it was somebody's hand. Nothing was done. Cancel it as before, or use "
                f"another session_id for a new run, or {self.scope.run.rewinding()}.",
                run_id=run,
                step=what,
            )
            raise self.stop(changed) from changed

    def going_on(self, what: str) -> None:
        """Something that is not on record is about to happen.

        Raises:
            StepChanged: the run had come to its end without it.
        """
        if self.stamps is not None and self.shared.strict:
            run = self.scope.run.id
            raise StepChanged(
                f"{what!r} of run {run} is not on record, and the recorded run had come to its end without it: its agents, tools "
                f"or conditions have changed since. Nothing was done. Use another session_id for a new run, or "
                f"{self.scope.run.rewinding()}.",
                run_id=run,
                step=what,
            )

    async def finish(self, messages: Sequence[Any], **rest: object) -> None:
        """Record that this run has come to its end, with what tells its messages from later copies of them."""
        if self.stamps is None:
            await self.survive()  # it was cancelled, and has a result all the same

            async def made() -> dict[str, object]:
                left = self.left.record()
                return {"messages": Stamps.of(messages), **rest, **({"left": left} if left else {})}

            try:
                await acomplete(self._result, made)
            except Halt as halt:
                raise self.stop(halt) from halt

    async def failure(self, scope: Scope, told: Exception, began: int) -> Exception:
        """Return what was told first of a failure at a place: a traceback has other frames in each life, and other words.

        Like any failure it is history if the program went on after it, and else it is of no account in the next life.

        Args:
            scope: the place.
            told: what is told of it now.
            began: the place in the log at which what has failed had begun: to tell of a failure is not to go on after it.
        """
        call, known = look_up(scope, "failure", {})
        if isinstance(known, Failure):
            return known.error
        cut = self.cut.by is not None or self.cut.recorded is not None
        if cut or self.stopped is not None or self.stamps is not None:
            return told

        async def fail() -> None:
            call.began = began
            raise told

        try:
            await acomplete(call, fail)
        except Halt as halt:
            raise self.stop(halt) from halt
        except Exception as error:
            return error
        return told

    async def survive(self) -> None:
        """Record where this run was cancelled, if it was: the program goes on.

        What a tool raised to leave the program, it will raise again: its call is not on record, and is made again.
        """
        if self.cut.by not in (None, "exit") and not self._cancelled.recorded and self.cut.recorded is None:

            async def made() -> dict[str, object]:
                calls = [(key, one) for key, one in self._calls.items() if self.cut.took(key)]
                kept = {key: changes for key, one in calls if (changes := await one.changes())}
                return {**self.cut.record(), **({"kept": kept} if kept else {})}

            await acomplete(self._cancelled, made)

    @contextmanager
    def raising(self) -> Generator[None]:
        """Give the caller of the outermost call what stopped the run, as the class it has."""
        try:
            yield
        except GeneratorExit:
            raise
        except BaseException as exc:
            if isinstance(exc, Halt):
                self.stop(exc)
            if self.stopped is not None and self.stopped is not exc:
                raise self.stopped from self.stopped.__cause__
            raise
        finally:
            self.finished = True
            self.shared.runs.end(self._task)
            if self.cut.by is not None and not self.ended:
                self.shared.cut_off.append(self)
        if self.stopped is not None:
            raise self.stopped


class Place(NamedTuple):
    """Where something happens: in which run, and in which scope of its log."""

    drive: Drive
    scope: Scope


@dataclass
class Member:
    """A wrapped agent or team.

    Attributes:
        shared: whose it is.
        name: its name in the log.
        states: what it keeps from run to run.
        home: the agent or team it was found in.
        side_by_side: a team whose agents may run at the same time.
        ordered: an agent that others may run beside: the order in which they end is recorded.
        active: where it is running, the innermost last.
        turn: an agent's turn, while it has one.
        guest: found somewhere inside an agent, and durable as a part of its runs alone.
        team: it is a team.
        begin_anew: of a team: puts right what a run leaves in its manager that comes to no end of its own.
        look: looks again for parts of it that nothing stands in for: they may be new since.
        changed: the same, among attributes that were set since; made for each turn.
        key: names it in records; empty if it was made inside a recorded call.
        made_in: the key of that call.
        inside: the recorded calls that run it now.
        kept: the number of the record from which it has what it keeps.
        step: what ran it whose record says nothing of it.
    """

    shared: Shared
    name: str
    states: States
    home: Member | None = None
    side_by_side: bool = False
    ordered: bool = False
    active: list[Place] = field(default_factory=list[Place])
    turn: Turn | None = None
    guest: bool = False
    team: bool = False
    begin_anew: Callable[[], Awaitable[None]] | None = None
    look: Callable[[], None] = lambda: None
    changed: Callable[[], None] = lambda: None
    key: str = ""
    made_in: bytes = b""
    inside: list[Inside] = field(default_factory=list[Inside])
    kept: int = 0
    step: str | None = None
    _told: set[str] = field(default_factory=set[str])

    def acting(self, *, shared_part: bool = False) -> Member | None:
        """Return whose call a call of one of its parts is, None if it is no part of a run.

        Args:
            shared_part: others may use the part as well, so it is theirs in whose turn it is used.
        """
        acting = _acting.get()
        if acting is not None and acting.active:
            return acting
        return self if self.active and not shared_part else None

    def tell(self, kind: str, what: str) -> None:
        """Warn of something; once of its kind."""
        if kind not in self._told:
            self._told.add(kind)
            logging.getLogger("letitloop").warning("letitloop: %r %s.", self.name, what)

    def place(self) -> Place:
        """Return where a call of one of its parts happens: it is active."""
        place = self.active[-1]
        scope = current.get()
        if _acting.get() is self and scope is not None and scope.run is place.scope.run:
            return Place(_driving.get() or place.drive, scope)  # inside a step, its calls belong to the step
        return place

    def passes(self) -> bool:
        """Tell whether a call of this one begins nothing: it comes from its own run, or it is a guest outside any run."""
        return self.is_inside_own() or (self.guest and self.around() is None)

    def around(self) -> Place | None:
        """Return where a call of this one happens: inside which run and scope; None outside any of this serializer."""
        drive = _driving.get()
        if drive is not None and drive.shared is self.shared and not drive.finished:
            scope = current.get()
            return Place(drive, scope if scope is not None and scope.run is drive.scope.run else drive.scope)
        if self.home is not None and self.home.active:  # on a runtime of the user's, whose tasks know no context of ours
            return self.home.active[-1]
        return None

    def is_inside_own(self) -> bool:
        """Tell whether the current call comes from this one's own ``run`` or turn."""
        return bool(self.active) and current.get() is self.active[-1].scope

    @contextmanager
    def at(self, place: Place) -> Generator[None]:
        """Be at a place, with the context variables that say so."""
        scope_token, drive_token, acting_token = current.set(place.scope), _driving.set(place.drive), _acting.set(self)
        self.active.append(place)
        try:
            yield
        finally:
            self.active.remove(place)
            restore(current, scope_token)
            restore(_driving, drive_token)
            restore(_acting, acting_token)


_driving: ContextVar[Drive | None] = ContextVar("letitloop_autogen_drive", default=None)
_acting: ContextVar[Member | None] = ContextVar("letitloop_autogen_member", default=None)


def in_stopped_run() -> bool:
    """Tell whether the caller is inside a run that has to stop."""
    drive = _driving.get()
    return drive is not None and drive.stopped is not None


async def open_drive(member: Member, asked: Mapping[str, object]) -> Drive:
    """Begin an outermost run, or the recorded one that this one repeats.

    Args:
        member: whose run it is.
        asked: its task.

    Raises:
        StepChanged: the recorded run had another task.
        LogLocked, StoreError: the log cannot be used.
    """
    from letitloop.runs.drive_async import in_thread

    shared = member.shared
    shared.names.check(shared.policies)
    async with shared.entrance.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        root = await in_thread(shared.session.root)
        while shared.cut_off:
            await shared.cut_off.pop().survive()
    name = f"run {member.name}"
    scope = root.inner(member.name)  # here and in aleaf: the places of this run, before the next one comes in
    task, beside = shared.runs.begin()

    async def begun() -> str:
        call = current.get()
        assert isinstance(call, Call), "a leaf's function"
        return number_of(call)

    try:
        number = await aleaf(root, name, asked, begun, unordered=beside)
        if number is not None:  # the scope of the run whose record this is: it may have come in another place then
            where = escape(member.name, "scope") if number == "1" else f"{escape(member.name, 'scope')}#{number}"
            scope = Scope(root.run, root.prefix + where.encode() + b"/", nested=root.nested)
        return Drive(shared, scope, task)
    except BaseException:
        shared.runs.end(task)
        raise
