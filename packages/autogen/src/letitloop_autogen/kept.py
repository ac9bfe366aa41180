"""What wrapped agents and teams keep of their runs inside a recorded call: it is answered without them in later lives.

AutoGen's agents keep their conversation from run to run. The call's record holds what its runs have added to it, and whoever is
answered from that record gives it to them again.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from letitloop.errors import StepChanged, UnencodableError
from letitloop.runs.run import Call
from letitloop.runs.scope import current, restore
from letitloop_autogen.states import difference

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    from letitloop.runs.scope import Scope
    from letitloop_autogen.driving import Member, Shared

__all__ = ["Abandoned", "Inside", "Kept", "durable_change", "enter", "is_inside", "stopping", "unrecorded"]


@dataclass(frozen=True)
class Kept:
    """What is recorded of a call that has run wrapped agents or teams.

    Attributes:
        answer: what it returned.
        changes: by the key of each: its number in the order of such records, and what changed in its state.
    """

    answer: Any
    changes: dict[str, Any]


class Abandoned(asyncio.CancelledError):
    """Leaves a call unrecorded: what it returned tells of the run's end."""


class Inside:
    """The wrapped agents and teams that one recorded call runs.

    Args:
        shared: what they share.
        scope: where the call belongs.
        name: what it is called there.
    """

    def __init__(self, shared: Shared, scope: Scope, name: str) -> None:
        self.shared = shared
        self.name = name
        self.call: Scope | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self._run = scope.run
        self._around = _inside.get()
        self._before: dict[str, tuple[Member, _Seen]] = {}
        self._at_once: set[str] = set()
        self._done = False
        self._stopped = False
        self._ended = False

    def chain(self) -> list[Inside]:
        """Return this call, and those that it is made in."""
        return [self, *(self._around.chain() if self._around is not None else ())]

    async def do(self, fn: Callable[[], Awaitable[Any]]) -> Any:
        """Carry the call out; return what is to be recorded of it.

        Raises:
            Abandoned: something in it has met that the run has to stop, whatever the call made of that.
        """
        self._done, self.call, self.loop = True, current.get(), asyncio.get_running_loop()
        token = _inside.set(self)
        self.shared.inside[self] = None
        try:
            answer = await fn()
            changes = await self.changes()
        except Exception as error:
            if self._stopped:
                raise Abandoned from error
            for member, _ in self._before.values():
                member.tell(
                    "failed", f"was run inside {self.name!r}, which failed: after a crash it does not know what it was told there"
                )
            raise
        finally:
            self._ended = True
            restore(_inside, token)
            del self.shared.inside[self]
            for member, _ in self._before.values():
                member.inside.remove(self)
        if self._stopped:
            raise Abandoned
        return Kept(answer, changes) if changes else answer

    async def answer(self, recorded: Any) -> Any:
        """Return a call's answer; if it was not carried out here, whom it had run is as after it.

        Raises:
            StepChanged: one of them had another conversation before.
        """
        if not isinstance(recorded, Kept):
            return recorded
        if not self._done:
            await self.again(recorded.changes)
        return recorded.answer

    async def again(self, changes: dict[str, Any]) -> None:
        """Change those that the call had run, as it had.

        Raises:
            StepChanged: one of them had another conversation before.
        """
        for key, (number, change) in changes.items():
            member = self.shared.members.get(key)
            if member is not None:  # else the program has changed since
                await self._again(member, number, change)

    async def touch(self, member: Member) -> None:
        """Note that the call is about to change the state of an agent or a team."""
        if self._around is not None:
            await self._around.touch(member)
        if self._ended:
            self._tell_outlived(member)
            return
        if member.key not in self._before:
            self._before[member.key] = member, await _seen(member)
            member.inside.append(self)
        mine = self.chain()
        others = [one for one in member.inside if one not in mine]
        for one in [*others, *mine] if others else ():
            one._at_once.add(member.key)
            member.tell(
                "at once",
                f"is run or changed by {others[0].name!r} and {self.name!r} at the same time, and AutoGen's agents are made for "
                "one run at a time: after a crash in the middle it may have been told things twice. Let the model call one tool at "
                "a time (parallel_tool_calls=False), or give each an agent of its own",
            )

    async def changes(self) -> dict[str, Any]:
        """Return what has changed since the call began in those that it has run."""
        found: dict[str, Any] = {}
        for key, (member, before) in self._before.items():
            after = await _seen(member)
            if before.unsaved != after.unsaved:
                member.tell(
                    "unsaved",
                    f"is run inside {self.name!r}, and keeps something in its attributes that its save_state() does not tell: it "
                    "does not know that after a crash. Give its class save_state and load_state, or the tool the policy 'rerun'",
                )
            if after.active and not before.active:
                self._tell_outlived(member)
            if before.state is None or after.state is None:
                continue
            change = difference({} if key in self._at_once else before.state, after.state)
            if change is None:
                continue
            try:
                self._run.codecs.encode(change)
            except UnencodableError as error:
                member.tell(
                    "unrecordable",
                    f"is run inside {self.name!r}: after a crash it does not know what it was told there, since {error}",
                )
                continue
            self.shared.kept += 1
            found[key] = [self.shared.kept, change]
        return found

    def _tell_outlived(self, member: Member) -> None:
        member.tell(
            "outlived",
            f"is run by something that {self.name!r} leaves behind when it ends: after a crash that is not done again. Await it in "
            "the call",
        )

    async def _again(self, member: Member, number: int, change: Any) -> None:
        if self._around is not None:
            await self._around.touch(member)
        self.shared.kept = max(number, self.shared.kept)
        if number < member.kept:
            return  # of two calls at once, the other one had ended later
        member.kept = number
        if not await member.states.change(change) and self.shared.strict:
            run = self._run.id
            raise StepChanged(
                f"{self.name!r} of run {run} ran {member.name!r}, whose conversation was another one before it: the program has "
                f"changed. Nothing was done. Use another session_id for a new run, or {self._run.rewinding()}.",
                run_id=run,
                step=self.name,
            )


_inside: ContextVar[Inside | None] = ContextVar("letitloop_autogen_inside", default=None)
_unrecorded: ContextVar[str | None] = ContextVar("letitloop_autogen_unrecorded", default=None)


@dataclass
class _Seen:
    state: dict[str, Any] | None
    unsaved: dict[str, Any]
    active: bool


async def _seen(member: Member) -> _Seen:
    active = bool(member.active)
    try:
        return _Seen(await member.states.now(), member.states.unsaved(), active)
    except Exception as error:
        member.tell(
            "unsavable",
            f"has a state that cannot be saved ({error!r}): after a crash it does not know what it was told inside a tool",
        )
        return _Seen(None, {}, active)


def is_inside() -> bool:
    """Tell whether a recorded call is being carried out here."""
    return _inside.get() is not None


def stopping(shared: Shared) -> None:
    """A call is told that the run has to stop: what is made of that in the recorded calls around it is no answer of theirs."""
    inside = _inside.get()
    for one in inside.chain() if inside is not None else ():
        if one.shared is shared:
            one._stopped = True


@contextmanager
def unrecorded(what: str) -> Generator[None]:
    """Do something whose record says nothing of the agents that it runs."""
    token = _unrecorded.set(what)
    try:
        yield
    finally:
        restore(_unrecorded, token)


async def enter(member: Member) -> None:
    """An agent or a team is about to be run, or changed otherwise: the recorded call around it has to know."""
    inside, where = _inside.get(), current.get()
    if inside is None and where is None and member.home is not None and member.home.inside:
        inside = member.home.inside[-1]  # on a runtime of the user's, whose tasks know no context of ours
    calls = [] if inside is None else inside.chain()
    _tell_of_steps(member, where, calls)
    if inside is None:
        if where is None:
            _tell_of_threads(member)
        return
    if inside.shared is not member.shared:
        member.tell(
            "session",
            f"is run inside {inside.name!r} of another session, and is not run for it again: after a crash its later runs are not "
            "found. Wrap both by one serializer",
        )
    elif member.key:
        await inside.touch(member)
    elif member.made_in not in [one.call.key for one in calls if isinstance(one.call, Call)]:
        member.tell(
            "late",
            f"was made inside a recorded call, and is run by {inside.name!r} as well: after a crash it does not know what it was "
            "told. Make it and wrap it before the run",
        )


def _tell_of_threads(member: Member) -> None:
    """Tell of a run that begins where nothing is known of the call that may have begun it."""
    loop = asyncio.get_running_loop()
    for one in [one for one in list(member.shared.inside) if one.loop is not loop]:
        member.tell(
            "thread",
            f"is run in a thread while {one.name!r} is carried out in another. If it is that which runs it, the run is recorded as "
            "one of its own, and after a crash later ones are taken for it: let the thread run letitloop.carry(fn)",
        )


def _tell_of_steps(member: Member, where: Scope | None, calls: list[Inside]) -> None:
    """Tell of an agent that keeps a conversation from a step or an effect, which is answered without it."""
    step = where.key.decode() if isinstance(where, Call) and all(one.call is not where for one in calls) else _unrecorded.get()
    if member.step is not None and member.step != step:
        member.tell(
            "step",
            f"was run inside {member.step!r}, whose record says nothing of it, and is run again: after a crash it does not know "
            "what it was told there. Run it outside of steps and effects, its calls are recorded by themselves; or make a new one",
        )
    member.step = member.step or step


def durable_change(stock: Callable[..., Any], member: Member) -> Callable[..., Awaitable[Any]]:
    """Return what changes an agent's or a team's state outside its runs: a reset, or a state that is loaded."""
    loads = getattr(stock, "__name__", "") == "load_state"

    async def change(*args: Any, **options: Any) -> Any:
        if not member.active:
            await enter(member)
            if loads and not is_inside():
                member.shared.loaded = member.shared.loaded or member.name  # a team's loads those of its agents, too
        return await stock(*args, **options)

    return change
