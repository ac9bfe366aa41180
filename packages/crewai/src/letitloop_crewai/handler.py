"""What a user makes once for a program: it wraps crews and flows, and holds the log they are recorded in."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from crewai import Crew
from crewai.flow import Flow

from letitloop.errors import InvalidArgument
from letitloop.integration.policies import Policies
from letitloop.integration.sessions import session_from
from letitloop.runs.scope import current_scope
from letitloop_crewai.crews import WrappedCrew
from letitloop_crewai.driving import Shared
from letitloop_crewai.flows import WrappedFlow
from letitloop_crewai.telling import tell

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from typing import Literal

    from typing_extensions import Self

    from letitloop.integration.policies import Policy
    from letitloop.store.protocol import Store

__all__ = ["CrewAIDurabilityHandler", "wrap_crew", "wrap_flow"]

AnyCrew = TypeVar("AnyCrew", bound=Crew)
AnyFlow = TypeVar("AnyFlow", bound="Flow[Any]")


class CrewAIDurabilityHandler:
    """Makes CrewAI's crews and flows durable: run again after a crash, they go on where they died.

    Nothing is restored. The stock ``kickoff()`` starts from its first task, on the program's own objects; tasks that were finished
    return their recorded output, and in the one that was not, model calls, tool calls, memory queries and a human's answers that
    were finished answer from the log. The same program with the same ``session_id`` goes on; its first ``kickoff()`` is the first
    of the log, its second the second. One that had come to its end returns its recorded result.

    Args:
        session_id: the name of this program's log.
        store: a store or a directory; ``LETITLOOP_STORE`` or ``./.letitloop`` by default.
        tools: a policy by tool name: ``"record"`` (at least once, its result recorded), ``"rerun"`` (pure or local: done again on
            replay), or an :func:`letitloop.effect`, carried out by the ledger, whose trusted parameters the model does not see.
        default: the policy of the other tools.
        on_change: what a task or call that asks something else than the recorded one does: it is done again (``"rerun"``), which
            is refused where effects have happened in it; ``"raise"`` raises :class:`letitloop.StepChanged` always; ``"reuse"``
            hands the recorded output on.
        wal_dir: the same as ``store``, by an older name.
        auto_resume: false: this process begins a new log, and leaves the earlier ones of this name as they are.

    Raises:
        InvalidArgument: a policy or an option means nothing.

    Example:
        >>> from crewai import Agent, BaseLLM, Crew, Task
        >>> from letitloop.adapters.crewai import CrewAIDurabilityHandler
        >>> class Model(BaseLLM):
        ...     def call(self, messages, *args, **kwargs):
        ...         return "Final Answer: Hello!"
        >>> greeter = Agent(role="greeter", goal="greet", backstory="friendly", llm=Model(model="example"))
        >>> crew = Crew(agents=[greeter], tasks=[Task(description="Say hello.", expected_output="a greeting", agent=greeter)])
        >>> handler = CrewAIDurabilityHandler(session_id="greeting", store="memory:crewai-example")
        >>> handler.wrap_crew(crew).kickoff().raw
        'Hello!'
    """

    def __init__(
        self,
        session_id: str,
        *,
        store: Store | str | os.PathLike[str] | None = None,
        tools: Mapping[str, Policy] | None = None,
        default: Policy = "record",
        on_change: Literal["raise", "rerun", "reuse"] = "rerun",
        wal_dir: str | os.PathLike[str] | None = None,
        auto_resume: bool = True,
    ) -> None:
        session = session_from(
            session_id, kind="crewai", store=store, wal_dir=wal_dir, on_change=on_change, auto_resume=auto_resume
        )
        self._shared = Shared(session, Policies(dict(tools or {}), default), on_change)
        self._wrapped: list[Any] = []
        self._names: set[tuple[str, int]] = set()

    def __repr__(self) -> str:
        return f"<CrewAIDurabilityHandler {self.session_id!r}>"

    @property
    def session_id(self) -> str:
        """The name of the log."""
        return self._shared.session.id

    def wrap_crew(self, crew: AnyCrew) -> AnyCrew:
        """Make a crew durable, before its first kickoff; once is enough, twice does no harm.

        Args:
            crew: the crew, with its tasks, agents, models, tools, memory and knowledge. Other crews that share some of them and
                are not wrapped are untouched.

        Returns:
            The same crew.

        Raises:
            InvalidArgument: it is no crew, or another handler wraps it.
        """
        if not isinstance(crew, Crew):
            raise InvalidArgument(f"wrap_crew() was given {type(crew).__name__}, which is no crew. Nothing was changed.")
        if self._is_free(crew, "crew"):
            self._wrapped.append(WrappedCrew(self._shared, crew, self._named(f"crew {crew.name or 'crew'}")))
            _owners[id(crew)] = self
        return crew

    def wrap_flow(self, flow: AnyFlow) -> AnyFlow:
        """Make a flow durable, before its first kickoff: methods that finished return their recorded result, routers too.

        What a method returns has to be recordable, and so has the state. Wrapped crews that its methods kick off are parts of its
        kickoff, whichever session wraps them.

        Args:
            flow: the flow.

        Returns:
            The same flow.

        Raises:
            InvalidArgument: it is no flow, or another handler wraps it.
        """
        if not isinstance(flow, Flow):
            raise InvalidArgument(f"wrap_flow() was given {type(flow).__name__}, which is no flow. Nothing was changed.")
        if self._is_free(flow, "flow"):
            self._wrapped.append(WrappedFlow(self._shared, flow, self._named(f"flow {flow.name or type(flow).__name__}")))
            _owners[id(flow)] = self
        return flow

    def _is_free(self, one: Any, what: str) -> bool:
        owner = _owners.get(id(one))
        if owner is not None and owner is not self:
            raise InvalidArgument(
                f"this {what} is wrapped by the session {owner.session_id!r} already. Nothing was changed. Use that one, or its "
                "unwrap()."
            )
        return owner is None

    def _named(self, name: str) -> str:
        """Return a name of its own for each crew and flow of the session.

        Handlers that are neither unwrapped nor closed are parts of one program. What a method, a step or a durable function wraps
        is numbered there, whatever else this process has wrapped: a resumed one does not come by what is on record.
        """
        around = current_scope()
        if around is not None:
            number = next(around.step(f"{name} of {self.session_id}").numbers)
            return name if number == 1 else f"{name} {number}"
        key = self._shared.session._key()
        others = {one for other in _living if other is not self and other._shared.session._key() == key for one in other._names}
        _living.add(self)
        number = next(one for one in count(1) if (name, one) not in others | self._names)
        self._names.add((name, number))
        found = name if number == 1 else f"{name} {number}"
        if any(one == name for one, _ in others):
            tell(
                f"another handler of session {self.session_id!r} wraps a {name!r} in this process: this one is {found!r} in its "
                "log. If it is the same program again, unwrap() or close() the other one first; if not, use one handler for both",
                loud=True,
            )
        return found

    def unwrap(self) -> None:
        """Give the stock crews and flows back: everything that was replaced in them is as it was."""
        while self._wrapped:
            self._wrapped.pop().undo()
        self._names.clear()
        _living.discard(self)
        for key in [key for key, owner in _owners.items() if owner is self]:
            del _owners[key]

    def close(self) -> None:
        """Let another process have the session; the process's end does it too. A new handler of this name is a new life."""
        _living.discard(self)
        self._shared.session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


_living: set[CrewAIDurabilityHandler] = set()
"""The handlers that wrap something outside any run, and are neither unwrapped nor closed."""

_owners: dict[int, CrewAIDurabilityHandler] = {}
"""By which handler each wrapped crew and flow is held; the handler keeps it alive."""


def wrap_crew(crew: AnyCrew, session_id: str, **options: Any) -> AnyCrew:
    """Make a crew durable: the short form of :meth:`CrewAIDurabilityHandler.wrap_crew`.

    Args:
        crew: the crew.
        session_id: the name of its log.
        options: those of :class:`CrewAIDurabilityHandler`.

    Returns:
        The same crew.

    Raises:
        InvalidArgument: an option means nothing, or another session wraps the crew.
    """
    owner = _owners.get(id(crew))
    if owner is not None and owner.session_id == session_id and not options:
        return crew
    return CrewAIDurabilityHandler(session_id, **options).wrap_crew(crew)


def wrap_flow(flow: AnyFlow, session_id: str, **options: Any) -> AnyFlow:
    """Make a flow durable: the short form of :meth:`CrewAIDurabilityHandler.wrap_flow`, with its arguments and errors."""
    owner = _owners.get(id(flow))
    if owner is not None and owner.session_id == session_id and not options:
        return flow
    return CrewAIDurabilityHandler(session_id, **options).wrap_flow(flow)
