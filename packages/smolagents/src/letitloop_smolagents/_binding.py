"""One agent, bound: its seams, and the place in the log where its calls lie.

Keys of an agent's calls::

    run                     a run of the outermost agent began: its task and arguments
    run/model#3             the third call of its model
    run/code#3              what the code of an answer did
    run/turn#3/tool search  a tool that the third answer called
    run/turn#3/call 2/tool search        the second of several calls in one answer
    run/turn#3/tool search 5f1c…         a tool that code called, with arguments of that digest: code may call in another order
    run/turn#3/agent helper 9a02…/model  the model of a managed agent that code called
"""

from __future__ import annotations

import functools
import inspect
import logging
import threading
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from letitloop.codecs import default_codecs
from letitloop.codecs.ext import class_of
from letitloop.errors import InvalidArgument, StepChanged
from letitloop.integration.leaves import leaf
from letitloop.integration.open_leaves import OpenLeaf
from letitloop.integration.patching import Patches
from letitloop.runs.identity import base_of
from letitloop_smolagents._driving import Nested, Outermost, Start, asked
from letitloop_smolagents._executor import DurableExecutor, Shown, executor_for
from letitloop_smolagents._framework import agents, memory
from letitloop_smolagents._model import DurableModel, model_for
from letitloop_smolagents._tools import STOCK, Member, same_policies, same_policy, stock_of, tool_for
from letitloop_smolagents._values import identity

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextvars import Context

    from letitloop.runs.scope import Scope
    from letitloop_smolagents._durability import Durability

__all__ = ["Binding", "binding_of"]

_ATTRIBUTE = "_letitloop_binding"
_call_place: ContextVar[Scope | None] = ContextVar("letitloop_smolagents_call", default=None)


def binding_of(agent: Any) -> Binding | None:
    """Return the binding of an agent, if it has one."""
    found: Binding | None = agent.__dict__.get(_ATTRIBUTE)
    return found


class Binding:
    """What makes one agent durable.

    Attributes:
        agent: the agent.
        durability: the session and the policies it was bound with.
        scope: where the calls of its run under way lie; None between runs.
        parent: the place of the managed agent's call in the run of the agent that called it, and that agent's binding.
        context: the context of the thread that drives the agent, for tools that its code calls on another one.
        home: that thread.
        closed: finished code is being executed again: no tool may be called that it did not call.
        at_class: the agent was bound by the class's wrapper, which drives its runs: a ``run`` of its own class stays around that.
        turns: how often the model was asked in the run under way.
        busy: a run is being driven at this moment.
        texts: the digests of the run's messages, by role and text.
        codecs: how values become bytes.
    """

    def __init__(self, agent: Any, durability: Durability) -> None:
        self.agent = agent
        self.durability = durability
        self.policies = durability.policies
        self.code_policy = durability.policies.tools.get("python_interpreter")
        self.codecs = default_codecs
        self.scope: Scope | None = None
        self.parent: tuple[Scope, Binding] | None = None
        self.context: Context | None = None
        self.home = 0
        self.closed = False
        self.at_class = False
        self.turns = 0
        self.busy = False
        self.texts: dict[tuple[Any, Any], bytes] = {}
        self._written: dict[int, tuple[Any, tuple[int, ...], list[Any]]] = {}
        self._turn: Scope | None = None
        self._calls: list[Any] = []
        self._live = self._step_live = False
        self._guard = threading.Lock()
        self._patches = Patches()
        self._start: Start | None = None
        self._checks: Any = None

    # --- binding -------------------------------------------------------------------------------------------------------------

    def bind(self) -> None:
        """Put the seams in, where they are not; called again before each run, for what was given to the agent since."""
        agent = self.agent
        agent.__dict__[_ATTRIBUTE] = self
        if not self.at_class:
            self._patches.replace(agent, "run", self._make_run)
        self._patches.replace(agent, "_finalize_step", self._make_finalize)
        if class_of(agent).write_memory_to_messages is agents.MultiStepAgent.write_memory_to_messages:
            self._patches.replace(agent, "write_memory_to_messages", self._make_write)
        if isinstance(agent, agents.ToolCallingAgent):
            self._patches.replace(agent, "process_tool_calls", self._make_process)
            self._patches.replace(agent, "execute_tool_call", self._make_execute)
        self._bind_parts()

    def _bind_parts(self) -> None:
        agent = self.agent
        if not _is(agent.model, DurableModel, self):
            agent.model = model_for(self, _inner(agent.model))
        executor = getattr(agent, "python_executor", None)
        if executor is not None and not _is(executor, DurableExecutor, self):
            agent.python_executor = executor_for(self, _inner(executor))
        for name, tool in list(agent.tools.items()):
            if self._twins.get(name) is not tool:
                agent.tools[name] = self._twins[name] = tool_for(self, stock_of(tool), self.policies.tools.get(name))
        if agent.final_answer_checks is not self._checks or agent.final_answer_checks is None:
            agent.final_answer_checks = self._checks = [self._make_check(check) for check in agent.final_answer_checks or ()]
        for member in agent.managed_agents.values():
            if isinstance(member, agents.MultiStepAgent):
                self._bind_member(member)

    def _bind_member(self, member: Any) -> None:
        bound = binding_of(member)
        if bound is None:
            Binding(member, self.durability).bind()
        elif not (
            same_policies(bound.policies.tools, self.policies.tools) and same_policy(bound.policies.default, self.policies.default)
        ):
            raise InvalidArgument(
                f"the managed agent {member.name!r} is bound already, in session {bound.durability.session.id!r} and with other "
                "policies: its calls would be done by those. unwrap() it, or bind both with the same tools= and default=."
            )

    @functools.cached_property
    def _twins(self) -> dict[str, Any]:
        return {}

    def unbind(self) -> None:
        """Give the stock agent back, and the managed agents that were bound with it."""
        agent = self.agent
        self._patches.undo()
        agent.model = _inner(agent.model)
        if getattr(agent, "python_executor", None) is not None:
            agent.python_executor = _inner(agent.python_executor)
        for name, tool in list(agent.tools.items()):
            agent.tools[name] = stock_of(tool)
        agent.final_answer_checks = [getattr(check, STOCK, check) for check in agent.final_answer_checks]
        agent.__dict__.pop(_ATTRIBUTE, None)
        for member in agent.managed_agents.values():
            inner = binding_of(member)
            if inner is not None and inner.durability is self.durability:
                inner.unbind()

    # --- what the seams ask --------------------------------------------------------------------------------------------------

    @property
    def run_id(self) -> str:
        """The name of the run in its store."""
        return "" if self.scope is None else self.scope.run.id

    def next_turn(self) -> None:
        """The model is asked again: what its answer calls lies in a scope of its own."""
        assert self.scope is not None
        self._turn = self.scope.inner("turn")
        self.turns += 1

    def place(self) -> Scope:
        """Return where the tool call under way lies."""
        found = _call_place.get()
        if found is not None and self._turn is not None and found.prefix.startswith(self._turn.prefix):
            return found
        assert self.scope is not None
        return self._turn or self.scope

    def in_context(self, work: Callable[[], Any]) -> Any:
        """Do work that an agent's code asks for in the context of the thread that drives the agent."""
        if self.context is None or threading.get_ident() == self.home:
            return work()
        return self.context.copy().run(work)

    def went_live(self) -> None:
        """Something is done that the log does not know."""
        self._live = True
        self.durability.went_live()
        if self.parent is not None:
            self.parent[1].went_live()

    def check_closed(self, what: str) -> None:
        """Refuse a call that finished code did not make.

        Raises:
            StepChanged: it is being executed again.
        """
        if self.closed:
            raise self.halted(
                StepChanged(
                    f"finished code of run {self.run_id} had to be executed again to make its variables, and calls {what} "
                    "otherwise than it did: it depends on the time, or on what is not recorded. The tool was not called, and every "
                    "record is kept.",
                    run_id=self.run_id,
                    step=f"{self.place().prefix.decode('utf-8', 'replace')}{what}",
                )
            )

    def halted(self, halt: Any) -> Any:
        """Remember a condition that must reach the caller, and return it."""
        if self.scope is not None:
            self.scope.run.halt(halt)
        return halt

    def tool_names(self) -> set[str]:
        """Return what the agent's code may call by name."""
        return {*self.agent.tools, *self.agent.managed_agents} - {"final_answer"}

    def told(self, asked: dict[str, Any]) -> str:
        """Return what tells apart the calls that code makes: what they ask, for code may make them in another order next time."""
        if self.context is None:
            return ""
        return self.codecs.fingerprint((), asked)[:8].hex()

    def obtained(self, value: Any) -> None:
        """Code that is being executed is handed a value from outside it."""
        executor: Any = self.agent.__dict__.get("python_executor")
        if self.context is not None and _is(executor, DurableExecutor, self):
            executor.obtained(value)

    def check_all_asked(self, code: str) -> None:
        """Refuse to go on from code that was executed again and left out a call that it had made.

        Args:
            code: its first line.

        Raises:
            StepChanged: there is such a call, and changes are to be told.
        """
        place = self.place()
        run = place.run
        left = {name for key in [*run.journal.index] if key.startswith(place.prefix) and (name := self._call_name(place, key))}
        if not left:
            return
        what = (
            f"code step {code!r} of run {run.id} was executed again, and did not ask for what it had asked for: "
            f"{', '.join(sorted(left))}. It depends on the time, or on what is not recorded."
        )
        if run._on_change != "raise":
            logging.getLogger("letitloop").warning("letitloop: %s", what)
            return
        raise self.halted(
            StepChanged(
                f"{what} What it asked instead is on record, and so is everything before. on_change='rerun' goes on with what it "
                "asked now.",
                run_id=run.id,
                step=f"{place.prefix.decode('utf-8', 'replace')}code",
                arguments=("code",),
            )
        )

    def _call_name(self, place: Scope, key: bytes) -> str:
        """Return what a call of the code at a place is called; nothing for what lies deeper, or is no call."""
        name = base_of(key)[len(place.prefix) :].decode("utf-8", "replace")
        kind, _, rest = name.partition(" ")
        tool = rest.rpartition(" ")[0] or rest
        if set("/>") & set(name) or name in ("code begun", "random", "parse") or self.policies.of(tool) == "rerun":
            return ""
        return f"{kind} {tool}" if kind in ("tool", "agent") else name

    def callables(self, tools: dict[str, Any]) -> dict[str, Any]:
        """Return tools and managed agents as the agent's code is to call them."""
        managed = self.agent.managed_agents
        return {name: Member(self, tool) if managed.get(name) is tool else tool for name, tool in tools.items()}

    def call_member(self, agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a managed agent; its calls lie inside this one's."""
        executor: Any = self.agent.__dict__.get("python_executor")
        if _is(executor, DurableExecutor, self):
            executor.called_agent = True
        inner = binding_of(agent)
        if inner is None:
            return agent(*args, **kwargs)
        with inner.called_from(self.place(), self):
            return agent(*args, **kwargs)

    @contextmanager
    def called_from(self, place: Scope, caller: Binding) -> Generator[None]:
        """Let the runs in the block lie at a place of another agent's run."""
        before, self.parent = self.parent, (place, caller)
        try:
            yield
        finally:
            self.parent = before

    # --- a run ---------------------------------------------------------------------------------------------------------------

    def _make_run(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(stock)
        def run(*args: Any, **kwargs: Any) -> Any:
            return self.drive(stock, args, kwargs)

        return run

    def drive(self, stock: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the agent durably.

        Args:
            stock: runs it.
            args: what it is given.
            kwargs: the same.
        """
        if self.busy:
            raise InvalidArgument(
                f"this agent is being run already, in run {self.run_id}: a run inside a run, or on another thread, would mix "
                "up its memory. Nothing was run. Let it end, or use another agent."
            )
        if self.scope is not None and self._start is not None:  # steps that nobody read to their end
            self._start.given_up()
            self.end()
        self._bind_parts()
        given = inspect.signature(stock).bind(*args, **kwargs)
        given.apply_defaults()
        words = asked(given.arguments)
        start = self._start = Nested(self) if self.parent is not None else Outermost(self)
        if given.arguments.get("stream"):
            return start.stream(words, lambda: stock(*args, **kwargs))
        return start.whole(words, lambda: stock(*args, **kwargs))

    def begin(self, root: Scope, name: str, words: dict[str, Any]) -> bool:
        """Take a place for a run and record what it is asked; return whether the log knows it."""
        start = OpenLeaf(root, name, words)
        if start.known:
            start.answer()
        else:
            start.record(words["task"] if isinstance(words["task"], str) else None, wait=False)
        self.scope = root.inner(name)
        self._turn, self.turns = None, 0
        self._live = self._step_live = False
        executor: Any = self.agent.__dict__.get("python_executor")
        if _is(executor, DurableExecutor, self):
            executor.begin_run()
        return start.known

    def end(self) -> None:
        """Leave the run's place."""
        self.scope = self._turn = None
        self._calls = []
        self._forget_messages()
        self.texts.clear()

    # --- prompts -------------------------------------------------------------------------------------------------------------

    def _make_write(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(stock)
        def write(summary_mode: bool = False) -> Any:  # noqa: FBT001, FBT002 - as smolagents has it
            if self.scope is None or summary_mode or not self.durability.replaying:
                self._forget_messages()
                return stock(summary_mode=summary_mode)
            # the answers to all of these prompts but the last one are on record: what a step says is worked out once
            messages = list(self.agent.memory.system_prompt.to_messages(summary_mode=False))
            for one in self.agent.memory.steps:
                messages += self._messages_of(one)
            return messages

        return write

    def _messages_of(self, one: Any) -> list[Any]:
        state = (*map(id, one.__dict__.values()), len(getattr(one, "observations_images", None) or ()))
        known = self._written.get(id(one))
        if known is None or known[1] != state:
            messages: list[Any] = one.to_messages(summary_mode=False)
            known = self._written[id(one)] = one, state, messages
        return known[2]

    def _forget_messages(self) -> None:
        if self._written:
            self._written = {}

    # --- steps ---------------------------------------------------------------------------------------------------------------

    def _make_finalize(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(stock)
        def finalize(step: Any) -> Any:
            if self.scope is not None:
                if not isinstance(step, memory.FinalAnswerStep):
                    self._step_live, self._live = self._live, False
                step._lil_replayed = not self._step_live
                self.durability.step_replayed = not self._step_live
            if isinstance(getattr(step, "action_output", None), Shown):
                step.action_output = step.action_output.value
            return stock(step)

        return finalize

    def _make_check(self, check: Callable[..., Any]) -> Callable[..., Any]:
        name = f"check {getattr(check, '__name__', type(check).__name__)}"

        @functools.wraps(check)
        def checked(answer: Any, *args: Any, **kwargs: Any) -> Any:
            if self.scope is None:
                return check(answer, *args, **kwargs)

            def work() -> bool:
                self.went_live()
                return bool(check(answer, *args, **kwargs))

            return leaf(self.scope, name, {"final_answer": identity(answer)}, work)

        checked.__dict__.setdefault("__name__", name)
        setattr(checked, STOCK, check)
        return checked

    # --- several calls in one answer -----------------------------------------------------------------------------------------

    def _make_process(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(stock)
        def process(chat_message: Any, memory_step: Any) -> Any:
            if self.scope is not None:
                _distinct_ids(chat_message, self.turns)
                self._calls = list(chat_message.tool_calls)
            return stock(chat_message, memory_step)

        return process

    def _make_execute(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(stock)
        def execute(tool_name: str, arguments: Any) -> Any:
            if self.scope is None:
                return stock(tool_name, arguments)
            token = _call_place.set(self._place_of(tool_name, arguments))
            try:
                member = binding_of(self.agent.managed_agents[tool_name]) if tool_name in self.agent.managed_agents else None
                if member is None:
                    return self._shown(tool_name, stock(tool_name, arguments))
                with member.called_from(self.place(), self):
                    return stock(tool_name, arguments)
            finally:
                _call_place.reset(token)

        return execute

    def _place_of(self, name: str, arguments: Any) -> Scope | None:
        """Return where one of several calls of an answer lies: by its position in the answer, never by its order of arrival."""
        if len(self._calls) < 2 or self._turn is None:
            return None
        with self._guard:
            for number, call in enumerate(self._calls):
                said = None if call is None else call.function.arguments
                if call is not None and call.function.name == name and (said is arguments or (not said and not arguments)):
                    self._calls[number] = None
                    return self._turn.inner(f"call {number + 1}")
        return self._turn.inner(f"call of {name}")

    def _shown(self, name: str, value: Any) -> Any:
        """Keep the text of a result that each process would print in another order."""
        if not _has_set(value) or name == "final_answer":
            return value
        return Shown(value, leaf(self.place(), f"text of {name}", {}, lambda: str(value)))


def _distinct_ids(message: Any, turn: int) -> None:
    """Give each call of an answer an id of its own: of two with one id, smolagents carries out the last alone."""
    seen: set[Any] = set()
    for number, call in enumerate(message.tool_calls or ()):
        if not call.id or call.id in seen:
            call.id = f"call_{turn}_{number:03d}"
        seen.add(call.id)


def _has_set(value: Any) -> bool:
    if isinstance(value, (set, frozenset)):
        return True
    inner: Any = value.values() if class_of(value) is dict else value if class_of(value) in (list, tuple) else ()
    return any(_has_set(one) for one in inner)


def _is(value: Any, cls: type, binding: Binding) -> bool:
    return issubclass(type(value), cls) and object.__getattribute__(value, "_binding") is binding


def _inner(value: Any) -> Any:
    """Return what a stand-in of an agent stands for, or the value itself."""
    return value.inner if issubclass(type(value), (DurableModel, DurableExecutor)) else value
