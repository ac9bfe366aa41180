"""Agents that are kicked off by themselves, without a crew: in a flow's method, or in what a wrapped kickoff calls.

Such an agent is mostly made where it is used, so its class is what is replaced: while anything is wrapped, and for as long as the
kickoff of a wrapped crew or flow is around it.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, Any

from crewai.utilities.agent_utils import parse_tools

from letitloop.effects.guard import Effect
from letitloop.errors import InvalidArgument
from letitloop.integration.leaves import leaf
from letitloop.integration.looking import differing
from letitloop.runs.scope import current, restore, running_loop
from letitloop_crewai.agents import watch
from letitloop_crewai.asking import digest
from letitloop_crewai.driving import Drive, Frame, current_frame, frame_around, framed, place
from letitloop_crewai.names import effect_of, names_of
from letitloop_crewai.telling import tell

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from letitloop.integration.patching import Patches
    from letitloop.integration.policies import Policies
    from letitloop.runs.scope import Scope
    from letitloop_crewai.wrapping import Wrapping

__all__ = ["Alone", "unguarded"]

_numbering = Lock()
_here: ContextVar[Wrapping | None] = ContextVar("letitloop_crewai_alone", default=None)
"""Holds what the agent that is kicked off here works with."""


def unguarded(tools: Iterable[Any], policies: Policies) -> list[str]:
    """Return the names of the tools that an effect is the policy of, and that are no effects by themselves."""
    found = [tool for tool in tools or () if any(isinstance(policies.tools.get(name), Effect) for name in names_of(tool))]
    return [str(tool.name) for tool in found if effect_of(getattr(tool, "func", None) or getattr(tool, "_run", None)) is None]


class Alone:
    """Makes kickoffs of agents parts of whatever wrapped kickoff they happen in; anywhere else they are as they were.

    Args:
        begin: returns a wrapping for what one agent works with, under a handler's policies.
        guarding: returns the policies of all handlers that have wrapped something.
    """

    def __init__(self, begin: Callable[[Drive], Wrapping], guarding: Callable[[], list[Policies]]) -> None:
        self._begin = begin
        self._guarding = guarding
        self._told: set[tuple[str, ...]] = set()

    def wrap(self, patches: Patches, cls: Any) -> None:
        """Replace a class's kickoffs."""
        patches.replace(cls, "kickoff", self._kickoff)
        if hasattr(cls, "_prepare_kickoff"):  # of LiteAgent, kickoff_async calls kickoff in a thread
            patches.replace(cls, "kickoff_async", self._kickoff_async)
            patches.replace(cls, "_prepare_kickoff", _watched)
        for name in ("get_mcp_tools", "get_platform_tools"):
            if hasattr(cls, name):
                patches.replace(cls, name, _adopting)

    def _kickoff(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(stock)
        def kickoff(agent: Any, *args: Any, **kwargs: Any) -> Any:
            if hasattr(agent, "_prepare_kickoff") and running_loop() is not None:
                return stock(agent, *args, **kwargs)  # a coroutine of kickoff_async
            with self._part(agent, args, kwargs):
                return stock(agent, *args, **kwargs)

        return kickoff

    def _kickoff_async(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(stock)
        async def kickoff_async(agent: Any, *args: Any, **kwargs: Any) -> Any:
            with self._part(agent, args, kwargs):
                return await stock(agent, *args, **kwargs)

        return kickoff_async

    @contextmanager
    def _part(self, agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Generator[None]:
        """Be in a kickoff of an agent."""
        frame = current_frame()
        around = frame or frame_around()
        if around is None:
            self._tell_unguarded(agent)
            yield
            return
        around.drive.check()
        with around.drive.watched():
            _refuse_checkpoint(args, kwargs)
            held = self._begin(around.drive)
        token = _here.set(held)
        try:
            with around.drive.watched():
                _adopt(held, agent)
            if frame is None:  # inside a leaf call: a part of that, but for effects
                yield
            else:
                with _placed(frame, agent, args[0] if args else kwargs.get("messages")):
                    yield
        finally:
            restore(_here, token)
            held.undo()

    def _tell_unguarded(self, agent: Any) -> None:
        """Tell that an effect's policy does not hold for a kickoff that no wrapped one is around."""
        names = tuple(dict.fromkeys(name for one in self._guarding() for name in unguarded(agent.tools, one)))
        if names and names not in self._told:
            self._told.add(names)
            tell(
                f"agent {agent.role!r} is kicked off outside any kickoff of a wrapped crew or flow: nothing of it is recorded, and "
                f"the effect that tools= has for {', '.join(map(repr, names))} does not hold for it. Kick it off in a method of a "
                "wrapped flow; in a thread or an executor of a method's own, wrap what that runs: letitloop.carry(fn)",
                loud=True,
            )


def _refuse_checkpoint(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if kwargs.get("from_checkpoint", args[3] if len(args) > 3 else None) is not None:
        raise InvalidArgument(
            "kickoff(from_checkpoint=…) of an agent in a wrapped kickoff: CrewAI would build another agent from the checkpoint, of "
            "which nothing is recorded. It was not kicked off. Call kickoff() without it: the log goes on by itself."
        )


def _adopt(held: Wrapping, agent: Any) -> None:
    """Wrap what an agent works with."""
    held.agent(agent)
    if hasattr(agent, "_parsed_tools"):  # LiteAgent has made them of its tools when it was made, and its memory
        agent._parsed_tools = parse_tools(agent.tools)
        held.memory(agent._memory)
    held.check_names()


# --- where it lies -----------------------------------------------------------------------------------------------------------


@contextmanager
def _placed(frame: Frame, agent: Any, messages: Any) -> Generator[None]:
    """Be in the part of the log that a kickoff of an agent is; one that failed and asked the same is not over, and goes on."""
    around = current.get() or frame.scope
    name = f"kickoff of {agent.role}"
    asked = {"messages": digest(messages)}
    counter = around.step(name)  # another one for each attempt at the step around this
    mine = counter, asked["messages"]
    with _numbering:
        taken = frame.taken.setdefault(counter, set())
        number = frame.failed.pop(mine, 0) or _number(around, name, asked, taken)
        taken.add(number)
    scope = place(around, name, number)
    drive = Drive(frame.drive.shared, frame.drive.owner, scope)
    try:
        with drive.raising(), framed(Frame(drive, scope, agent, spent=frame.spent)):
            leaf(scope, "asked", asked, lambda: None)
            yield
    except BaseException:
        with _numbering:
            frame.failed[mine] = number
        raise


def _number(around: Scope, name: str, asked: dict[str, str], taken: set[int]) -> int:
    """Return which kickoff of an agent this one is: the first that is not taken, or else the one that asked the same.

    Kickoffs side by side may come in another order in each life.
    """
    first = 0
    for number in (one for one in count(1) if one not in taken):
        found = differing(place(around, name, number), "asked", asked)
        if found == ():
            return number
        first = first or number
        if found is None:
            break
    return first


# --- what CrewAI makes for it ------------------------------------------------------------------------------------------------


def _watched(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Return CrewAI's preparing of a kickoff, which makes the executor."""

    @wraps(stock)
    def prepare_kickoff(*args: Any, **kwargs: Any) -> Any:
        prepared = stock(*args, **kwargs)
        if current_frame() is not None:
            watch(prepared[0])
        return prepared

    return prepare_kickoff


def _adopting(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Return CrewAI's asking of a server for its tools."""

    @wraps(stock)
    def get_tools(agent: Any, *args: Any, **kwargs: Any) -> Any:
        tools = stock(agent, *args, **kwargs)
        held, around = _here.get(), current_frame() or frame_around()
        if held is not None and around is not None:
            with around.drive.watched():
                held.listed(agent, tools)
        return tools

    return get_tools
