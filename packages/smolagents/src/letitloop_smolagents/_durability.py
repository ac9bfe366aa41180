"""What makes agents durable: the session they are recorded in, their policies, and the callback that binds them."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from letitloop.effects.guard import Effect
from letitloop.errors import Halt, InvalidArgument
from letitloop.integration.policies import Policies
from letitloop.integration.sessions import session_from
from letitloop.runs.identity import escape
from letitloop.runs.scope import Scope, current_scope
from letitloop_smolagents._binding import Binding, binding_of
from letitloop_smolagents._framework import agents
from letitloop_smolagents._stop import running
from letitloop_smolagents._tools import same_policies, same_policy

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping
    from typing import Literal, TypeVar

    from letitloop.integration.policies import Policy
    from letitloop.runs.run import Run
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
_driven: dict[tuple[str, str], tuple[int, int]] = {}
_patching = threading.Lock()


class Slot:
    """The place of one run of an outermost agent in its session.

    Attributes:
        root: what it lies in.
        alone: the run may be made again without those before it.
    """

    alone = False

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


class InnerSlot(Slot):
    """The place of a run inside a call of another one, which is made again as a whole or not at all.

    Args:
        root: what it lies in.
        alone: as of :class:`Slot`.
        close: ends the drive of its log, if that is another one than the call's.
    """

    def __init__(self, root: Scope, *, alone: bool, close: Callable[[], None] | None = None) -> None:
        self.root = root
        self.alone = alone
        self._close = close

    def done(self) -> None:
        pass

    def failed(self, error: BaseException) -> None:
        if self._close is not None and (isinstance(error, Halt) or not isinstance(error, Exception)):
            self._close()  # as note_failure() does


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
        self.session_id = session_id if session_id is not None else _script()
        self.policies = Policies(dict(tools or {}), default)
        if isinstance(self.policies.tools.get("python_interpreter"), Effect):
            raise InvalidArgument(
                'tools={"python_interpreter": effect(…)}: code has no business key. Give it "record" or "rerun", and the effect to '
                "a tool that the code calls. Nothing was wrapped."
            )
        self._session = functools.partial(
            session_from, self.session_id, kind="smolagents", store=store, wal_dir=wal_dir, on_change=on_change
        )
        self.session = self._session(auto_resume=auto_resume)
        self.replaying = False
        self.step_replayed = False
        self.agent_name = agent_name
        self._on_change = on_change
        self._auto_resume = auto_resume
        self._known = {"python_interpreter"}
        self._told: set[str] = set()

    # --- binding -------------------------------------------------------------------------------------------------------------

    def bind(self, agent: Agent) -> Agent:
        """Make an agent durable, with its managed agents; binding it again changes nothing.

        Args:
            agent: the agent; the very same object is returned.

        Raises:
            InvalidArgument: it is no agent of smolagents, or is bound to another session.
        """
        self._bind(agent)
        return agent

    def _bind(self, agent: Any, *, at_class: bool = False) -> Binding:
        if not isinstance(agent, agents.MultiStepAgent):
            raise InvalidArgument(f"{type(agent).__name__} is no agent of smolagents. Nothing was wrapped.")
        for other in _durabilities_of(agent):
            if other is not self:
                raise InvalidArgument(
                    f"this agent is of session {other.session_id!r} already, by another callback or wrapping: unwrap() it first. "
                    "Nothing was changed."
                )
        self._check_names(agent)
        bound = binding_of(agent)
        if bound is None:
            bound = Binding(agent, self)
            bound.at_class = at_class
        bound.bind()
        return bound

    def check_new_names(self, agent: Any) -> None:
        """Look for policies of tools that there are none of, if an agent has been given tools since.

        Raises:
            InvalidArgument: a tool has nearly that name, and no policy.
        """
        if not agent.tools.keys() <= self._known:
            self._check_names(agent)

    def _check_names(self, agent: Any) -> None:
        known = self._known | _tool_names(agent)
        for name, near in self.policies.misnamed(known).items():
            what = f"tools={{{name!r}: …}}: no agent that was bound has a tool of that name"
            if near:
                raise InvalidArgument(f"{what}, and {near!r} has no policy: is that the one meant? It was not called.")
            if name not in self._told:
                self._told.add(name)
                logging.getLogger("letitloop").warning("letitloop: %s so far, so that policy guards nothing.", what)
        self._known = known  # not before: what was refused is refused the next time, too

    def differing(self, said: Durability) -> list[str]:
        """Return the options that another wrapping of the same agent says otherwise; one left at its default says nothing."""
        found = [] if said._auto_resume == self._auto_resume or said._auto_resume else ["auto_resume"]
        if said.policies.tools and not same_policies(said.policies.tools, self.policies.tools):
            found.append("tools")
        if said.policies.default != "record" and not same_policy(said.policies.default, self.policies.default):
            found.append("default")
        if said._on_change not in ("raise", self._on_change):
            found.append("on_change")
        if said.agent_name not in ("", self.agent_name):
            found.append("agent_name")
        if said._session.keywords["store"] is not None and said.session._key()[0] != self.session._key()[0]:
            found.append("store")
        return found

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
        """Bind an agent and let its next run go on, also where ``auto_resume`` is off; else nobody needs it.

        An agent's memory is not loaded: ``run``, called with the same task as before the crash, makes it again, variables and step
        numbers included.

        Returns:
            How many records there are to go on with.
        """
        self.bind(agent)
        if not self._auto_resume:
            self._auto_resume = True
            self.session = self._session(auto_resume=True)
        return self.session.root().run.journal.steps_on_record()

    def close(self) -> None:
        """Let another process have the session; what is recorded stays."""
        self.session.close()

    # --- runs ----------------------------------------------------------------------------------------------------------------

    def next_run(self, name: str, words: dict[str, Any]) -> Slot:
        """Take the place of the next run of an agent.

        Raises:
            LogLocked: another live process works in this session.
        """
        root = self.session.root()
        around = _call_around()
        if around is not None:
            return self._inside(around, root)
        if root.prefix:  # in a durable function, which is driven again as a whole
            return InnerSlot(root, alone=False)
        asked = root.run.codecs.fingerprint((), words)
        key = self.session._key()
        runs = _sessions.get(key)
        failed = None if runs is None else runs.failed.pop(name, None)
        if runs is not None and failed is not None:
            if failed != asked or not words.get("reset", True):
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
        return Slot(self, root, name, asked)

    def _inside(self, around: Scope, root: Scope) -> InnerSlot:
        """Return the place of a run that a call makes: once recorded it is not made again, and its runs would take no number."""
        if around.run is root.run:
            return InnerSlot(around, alone=True)
        # the call is recorded in another log: told apart in this one by the call's place in that
        place = around.inner(f"session {self.session_id}").prefix
        name = f"in {around.run.id} {hashlib.blake2b(place, digest_size=8).hexdigest()}"
        inner = Scope(root.run, root.prefix + escape(name, "scope").encode() + b"/", nested=True)
        return InnerSlot(inner, alone=True, close=self.session.close)

    @contextmanager
    def driving(self) -> Generator[None]:
        """Be the only thread that runs agents in this session, save for those that a call of another run makes.

        Raises:
            InvalidArgument: another one does.
        """
        root = self.session.root()
        if root.prefix or _call_around() is not None:  # a part of something that has places of its own
            yield
            return
        key, me = self.session._key(), threading.get_ident()
        with _patching:
            thread, depth = _driven.get(key, (me, 0))
            if thread != me:
                raise InvalidArgument(
                    f"another thread runs an agent in session {self.session_id!r} at this moment: the runs of a session are told "
                    "apart by their order, and threads have none. Nothing was run. Give each thread's agents a session_id of their "
                    "own."
                )
            _driven[key] = thread, depth + 1
        try:
            yield
        finally:
            with _patching:
                thread, depth = _driven.pop(key)
                if depth > 1:
                    _driven[key] = thread, depth - 1

    def count(self, name: str) -> None:
        """A run has come to its end."""
        runs = _sessions.get(self.session._key())
        if runs is not None:
            runs.ended[name] = runs.ended.get(name, 0) + 1

    def note_failure(self, name: str, asked: bytes, error: BaseException) -> None:
        """A run was ended by an exception."""
        runs = _sessions.get(self.session._key())
        if runs is None:
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
        auto_resume: false: this process begins a new log, and leaves the earlier ones of this name as they are, unless
            :meth:`restore_agent_memory` is called first.
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
    wal_dir: str | os.PathLike[str] | None = None,
    auto_resume: bool = True,
    agent_name: str = "",
) -> Agent:
    """Make one agent durable, with its managed agents; nothing but this agent is touched.

    Args:
        agent: the agent; the very same object is returned.
        session_id: as :class:`SmolagentsWALCallback`.
        store: the same.
        tools: the same.
        default: the same.
        on_change: the same.
        wal_dir: the same.
        auto_resume: the same.
        agent_name: the same.

    Raises:
        InvalidArgument: it is no agent of smolagents, it is durable already and otherwise, or an option means nothing.
    """
    made = Durability(
        session_id=session_id,
        store=store,
        tools=tools,
        default=default,
        on_change=on_change,
        wal_dir=wal_dir,
        auto_resume=auto_resume,
        agent_name=agent_name,
    )
    known = _durabilities_of(agent)
    if not known or session_id not in (None, known[0].session_id):
        return made.bind(agent)
    differing = known[0].differing(made)
    if differing:
        raise InvalidArgument(
            f"this agent is durable already, in session {known[0].session_id!r} and with other options: {', '.join(differing)}. "
            "unwrap() it first, or say them where it was made durable. Nothing was changed."
        )
    return known[0].bind(agent)


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


def _durabilities_of(agent: Any) -> list[Durability]:
    """Return what has made an agent durable, or is to at its next run."""
    bound = binding_of(agent) if isinstance(agent, agents.MultiStepAgent) else None
    found: list[Durability] = [] if bound is None else [bound.durability]
    registry: Any = getattr(agent, "step_callbacks", None)
    for callbacks in getattr(registry, "_callbacks", {}).values():
        found += [one for one in callbacks if isinstance(one, SmolagentsWALCallback) and one not in found]
    return found


def _tool_names(agent: Any) -> set[str]:
    inner = [one for one in agent.managed_agents.values() if isinstance(one, agents.MultiStepAgent)]
    return {*agent.tools, *(name for one in inner for name in _tool_names(one))}


def _call_around() -> Scope | None:
    """Return the scope of the recorded call, or of the agent's run, that the program is in."""
    around = current_scope()
    return around if around is not None and (around.nested or running.get()) else None


def _script() -> str:
    main = sys.modules.get("__main__")
    name = os.path.basename(str(getattr(main, "__file__", None) or "interactive"))
    return name.rpartition(".")[0] or name


# --- the one class that is patched -------------------------------------------------------------------------------------------

_MARK = "__letitloop_stock_run__"


def _watch_runs() -> None:
    """Let agents that have a callback be bound when they are run."""
    with _patching:
        stock = agents.MultiStepAgent.run
        if hasattr(stock, _MARK):
            return

        @functools.wraps(stock)
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            bound = binding_of(self)
            if bound is None:
                callback = _callback_of(self)
                bound = None if callback is None else callback._bind(self, at_class=True)
            if bound is None or not bound.at_class:
                return stock(self, *args, **kwargs)
            return bound.drive(functools.partial(stock, self), args, kwargs)

        setattr(run, _MARK, stock)
        agents.MultiStepAgent.run = run


def _callback_of(agent: Any) -> SmolagentsWALCallback | None:
    return next((one for one in _durabilities_of(agent) if isinstance(one, SmolagentsWALCallback)), None)
