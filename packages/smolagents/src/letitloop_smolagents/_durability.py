"""What makes agents durable: the session they are recorded in, their policies, and the callback that binds them."""

from __future__ import annotations

import functools
import os
import sys
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from letitloop.effects.guard import Effect
from letitloop.errors import Halt, InvalidArgument
from letitloop.integration.policies import Policies
from letitloop.integration.sessions import Session
from letitloop_smolagents._binding import Binding, binding_of
from letitloop_smolagents._framework import agents

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal, TypeVar

    from letitloop.integration.policies import Policy
    from letitloop.runs.run import Run
    from letitloop.runs.scope import Scope
    from letitloop.store.protocol import Store

    Agent = TypeVar("Agent")

__all__ = ["Durability", "SmolagentsWALCallback", "durable_agent", "restore_agent_memory", "unwrap"]


@dataclass
class _Runs:
    """The runs of one session in this process: how many of each name have ended, and how the last one did.

    Attributes:
        run: the log they were counted in.
        ended: how many of a name have ended.
        failed: what the last one of a name was asked, if an exception ended it.
    """

    run: Run
    ended: dict[str, int] = field(default_factory=dict[str, int])
    failed: dict[str, bytes] = field(default_factory=dict[str, bytes])


_sessions: dict[tuple[str, str], _Runs] = {}


class Slot:
    """The place of one run of an outermost agent in its session."""

    def __init__(self, durability: Durability, root: Scope, name: str, asked: bytes) -> None:
        self.root = root
        self._durability = durability
        self._name = name
        self._asked = asked

    def done(self) -> None:
        """The run has come to its end: the next one is another."""
        self._durability.count(self._name)

    def failed(self, error: BaseException) -> None:
        """The run was ended by an exception: the same one called again goes on where it was."""
        if isinstance(error, GeneratorExit):  # whoever read its steps has seen enough
            self.done()
        else:
            self._durability.note_failure(self._name, self._asked, error)


class Durability:
    """A session and the policies that agents are bound with."""

    def __init__(
        self,
        *,
        session_id: str | None = None,
        store: Store | str | os.PathLike[str] | None = None,
        tools: Mapping[str, Policy] | None = None,
        default: Policy = "record",
        on_change: Literal["raise", "rerun", "reuse"] = "raise",
        wal_dir: str | os.PathLike[str] | None = None,
        auto_resume: bool = True,
        agent_name: str = "",
    ) -> None:
        if store is not None and wal_dir is not None:
            raise InvalidArgument("wal_dir is another word for store: give one of them. Nothing was opened.")
        self.policies = Policies(dict(tools or {}), default)
        if isinstance(self.policies.tools.get("python_interpreter"), Effect):
            raise InvalidArgument(
                'tools={"python_interpreter": effect(…)}: code has no business key. Give it "record" or "rerun", and the effect to '
                "a tool that the code calls. Nothing was wrapped."
            )
        self.session = Session(
            session_id if session_id is not None else _script(),
            store=store if wal_dir is None else wal_dir,
            on_change=on_change,
            kind="smolagents",
        )
        self.replaying = False
        self.step_replayed = False
        self.agent_name = agent_name
        self._auto_resume = auto_resume

    # --- binding -------------------------------------------------------------------------------------------------------------

    def bind(self, agent: Agent) -> Agent:
        """Make an agent durable, with its managed agents; binding it again changes nothing.

        Args:
            agent: the agent; the very same object is returned.

        Raises:
            InvalidArgument: it is no agent of smolagents, or is bound to another session.
        """
        if not isinstance(agent, agents.MultiStepAgent):
            raise InvalidArgument(f"{type(agent).__name__} is no agent of smolagents. Nothing was wrapped.")
        bound = binding_of(agent)
        if bound is not None and bound.durability is not self:
            raise InvalidArgument(
                f"this agent is bound to session {bound.durability.session.id!r} already: unwrap() it first. Nothing was changed."
            )
        (bound or Binding(agent, self)).bind()
        return agent

    def unbind(self, agent: Agent) -> Agent:
        """Give the stock agent back: the next run of it is not recorded."""
        bound = binding_of(agent)
        if bound is not None:
            bound.unbind()
        registry: Any = getattr(agent, "step_callbacks", None)
        for callbacks in getattr(registry, "_callbacks", {}).values():
            callbacks[:] = [one for one in callbacks if not isinstance(one, SmolagentsWALCallback)]
        return agent

    def restore_agent_memory(self, agent: Any) -> int:
        """Bind an agent and allow its next run to go on; with ``auto_resume``, which is the default, nobody needs it.

        An agent's memory is not loaded: ``run``, called with the same task as before the crash, makes it again, variables and step
        numbers included.

        Returns:
            How many records there are to go on with.
        """
        self.bind(agent)
        self._auto_resume = True
        return self.session.root().run.journal.steps_on_record()

    def close(self) -> None:
        """Let another process have the session; what is recorded stays."""
        self.session.close()

    # --- runs ----------------------------------------------------------------------------------------------------------------

    def next_run(self, name: str, words: dict[str, Any]) -> Slot:
        """Take the place of the next run of an agent.

        Raises:
            LogLocked: another live process works in this session.
            InvalidArgument: there is something to go on with, and ``auto_resume`` is off.
        """
        root = self.session.root()
        if root.prefix:  # in a durable function, which is driven again as a whole
            return Slot(self, root, name, b"")
        asked = root.run.codecs.fingerprint((), words)
        key = self.session._key()
        runs = _sessions.get(key)
        failed = None if runs is None else runs.failed.pop(name, None)
        if runs is not None and failed is not None:
            if failed != asked or not words["reset"]:
                runs.ended[name] = runs.ended.get(name, 0) + 1
            elif runs.run is root.run:
                self.session.close()  # the records of what is called again have to answer again
                root = self.session.root()
        if runs is None or runs.run is not root.run:
            runs = _sessions[key] = _Runs(root.run, {} if runs is None else runs.ended)
            for known, count in runs.ended.items():
                for _ in range(count):
                    next(root.step(known).numbers)
                    root.inner(known)
            self._check_resume(root)
        return Slot(self, root, name, asked)

    def _check_resume(self, root: Scope) -> None:
        if not self._auto_resume and not _sessions[self.session._key()].ended and root.run.journal.steps_on_record():
            self.session.close()
            _sessions.pop(self.session._key(), None)
            raise InvalidArgument(
                f"session {self.session.id!r} has records of an earlier process, and auto_resume is off. Nothing was run. Call "
                "restore_agent_memory(agent) to go on with them, or take another session_id."
            )

    def count(self, name: str) -> None:
        """A run has come to its end."""
        runs = _sessions.get(self.session._key())
        if runs is not None:
            runs.ended[name] = runs.ended.get(name, 0) + 1

    def note_failure(self, name: str, asked: bytes, error: BaseException) -> None:
        """A run was ended by an exception."""
        runs = _sessions.get(self.session._key())
        if runs is None or not asked:
            return
        runs.failed[name] = asked
        if isinstance(error, Halt) or not isinstance(error, Exception):
            self.session.close()  # a drive that must stop is over; what was interrupted starts with a fresh look at the log

    def went_live(self) -> None:
        """Something is done that the log does not know."""
        self.replaying = False


class SmolagentsWALCallback(Durability):
    """A step callback that makes its agent durable: run the script again after a crash, and finished work is not done again.

    Constructing the first one puts one wrapper around ``MultiStepAgent.run``, which binds agents that have such a callback, and
    leaves every other agent alone. :meth:`bind` and :func:`durable_agent` do the same to one agent.

    Args:
        session_id: what the work is called; the same name after a crash goes on. The script's name by default.
        store: a store or a directory; ``LETITLOOP_STORE`` or ``./.letitloop`` by default.
        tools: what is done about a call that an earlier life of the program made, by tool: ``"record"``, ``"rerun"`` or an
            :func:`letitloop.effect`. ``"python_interpreter"`` stands for the code of a CodeAgent.
        default: the same for every other tool.
        on_change: what a call with other inputs than the recorded ones does: ``"raise"`` :class:`letitloop.StepChanged`,
            ``"rerun"`` it and what follows, or ``"reuse"`` the recorded result.
        wal_dir: another word for ``store``.
        auto_resume: go on with what an earlier process recorded; if off, only after :meth:`restore_agent_memory`.
        agent_name: what runs are called in the log, for an agent that has no name of its own.

    Raises:
        InvalidArgument: a policy or an option has a value that means nothing.

    Example:
        >>> callback = SmolagentsWALCallback(session_id="research", store="memory:callback")
        >>> callback.is_replaying
        False
    """

    def __init__(
        self,
        session_id: str | None = None,
        *,
        store: Store | str | os.PathLike[str] | None = None,
        tools: Mapping[str, Policy] | None = None,
        default: Policy = "record",
        on_change: Literal["raise", "rerun", "reuse"] = "raise",
        wal_dir: str | os.PathLike[str] | None = None,
        auto_resume: bool = True,
        agent_name: str = "",
    ) -> None:
        super().__init__(
            session_id=session_id,
            store=store,
            tools=tools,
            default=default,
            on_change=on_change,
            wal_dir=wal_dir,
            auto_resume=auto_resume,
            agent_name=agent_name,
        )
        _watch_runs()

    def __call__(self, step: Any, agent: Any = None) -> None:
        """Be called at the end of a step: by then everything in it is on record."""

    @property
    def is_replaying(self) -> bool:
        """Whether what happens now is answered from the log. In a step callback: whether that step was."""
        return self.replaying or self.step_replayed


def durable_agent(
    agent: Agent,
    *,
    session_id: str | None = None,
    store: Store | str | os.PathLike[str] | None = None,
    tools: Mapping[str, Policy] | None = None,
    default: Policy = "record",
    on_change: Literal["raise", "rerun", "reuse"] = "raise",
) -> Agent:
    """Make one agent durable, with its managed agents; nothing but this agent is touched.

    Args:
        agent: the agent; the very same object is returned.
        session_id: as :class:`SmolagentsWALCallback`.
        store: the same.
        tools: the same.
        default: the same.
        on_change: the same.

    Raises:
        InvalidArgument: it is no agent of smolagents, it is bound to another session, or an option means nothing.
    """
    bound = binding_of(agent) if isinstance(agent, agents.MultiStepAgent) else None
    if bound is not None and session_id in (None, bound.durability.session.id):
        return bound.durability.bind(agent)
    made = Durability(session_id=session_id, store=store, tools=tools, default=default, on_change=on_change)
    return made.bind(agent)


def unwrap(agent: Agent) -> Agent:
    """Give the stock agent back, whichever way it was made durable; its managed agents too."""
    bound = binding_of(agent)
    if bound is not None:
        return bound.durability.unbind(agent)
    callback = _callback_of(agent)
    return agent if callback is None else callback.unbind(agent)


def restore_agent_memory(agent: Any) -> int:
    """Do as :meth:`SmolagentsWALCallback.restore_agent_memory` for an agent that has such a callback or is bound.

    Raises:
        InvalidArgument: it is neither.
    """
    bound = binding_of(agent)
    durability = _callback_of(agent) if bound is None else bound.durability
    if durability is None:
        raise InvalidArgument("this agent has no SmolagentsWALCallback and is not bound. Nothing was changed.")
    return durability.restore_agent_memory(agent)


def _script() -> str:
    main = sys.modules.get("__main__")
    name = os.path.basename(str(getattr(main, "__file__", None) or "interactive"))
    return name.rpartition(".")[0] or name


# --- the one class that is patched -------------------------------------------------------------------------------------------

_MARK = "__letitloop_stock_run__"
_patching = threading.Lock()


def _watch_runs() -> None:
    """Let agents that have a callback be bound when they are run."""
    with _patching:
        stock = agents.MultiStepAgent.run
        if hasattr(stock, _MARK):
            return

        @functools.wraps(stock)
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            if binding_of(self) is None:
                callback = _callback_of(self)
                if callback is not None:
                    return callback.bind(self).run(*args, **kwargs)
            return stock(self, *args, **kwargs)

        setattr(run, _MARK, stock)
        agents.MultiStepAgent.run = run


def _callback_of(agent: Any) -> SmolagentsWALCallback | None:
    registry: Any = getattr(agent, "step_callbacks", None)
    for callbacks in getattr(registry, "_callbacks", {}).values():
        for one in callbacks:
            if isinstance(one, SmolagentsWALCallback):
                return one
    return None
