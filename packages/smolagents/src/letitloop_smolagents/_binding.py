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
from operator import is_
from types import FunctionType
from typing import TYPE_CHECKING, Any

from letitloop.codecs import default_codecs
from letitloop.codecs.ext import class_of
from letitloop.errors import InvalidArgument, StepChanged
from letitloop.integration.open_leaves import OpenLeaf
from letitloop.integration.patching import MARK, Patches
from letitloop.integration.sessions import entered
from letitloop.runs.identity import base_of
from letitloop.runs.scope import restore
from letitloop_smolagents._answers import Answer, place_of_call, wait_for_like_calls
from letitloop_smolagents._checks import recorded_checks
from letitloop_smolagents._claims import Claim
from letitloop_smolagents._driving import Nested, Outermost, Start, asked, given_to
from letitloop_smolagents._ends import Ends
from letitloop_smolagents._executor import DurableExecutor, executor_for
from letitloop_smolagents._framework import agents, memory, utils
from letitloop_smolagents._framework import tools as framework_tools
from letitloop_smolagents._model import DurableModel, model_for
from letitloop_smolagents._shown import output_as_told, result_as_told, retell, with_task_as_told
from letitloop_smolagents._stop import Stop, executed_again, running
from letitloop_smolagents._tools import Member, same_policies, same_policy, stock_of, tool_for

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextlib import AbstractContextManager
    from contextvars import Context

    from letitloop.runs.scope import Scope
    from letitloop_smolagents._durability import Durability
    from letitloop_smolagents._messages import Told

__all__ = ["Binding", "binding_of"]

_ATTRIBUTE = "_letitloop_binding"
_STEPS = (memory.ActionStep, memory.PlanningStep, memory.TaskStep)
_called: ContextVar[tuple[Binding, Scope, Binding] | None] = ContextVar("letitloop_smolagents_called", default=None)


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
        at_class: the agent was bound by the class's wrapper, which drives its runs: a ``run`` of its own class stays around that.
        turns: how often the model was asked in the run under way.
        ends: how the run under way ended before, where no call of it tells; None between runs.
        prompt: what the model was told last in the run under way.
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
        self.at_class = False
        self.turns = 0
        self.ends: Ends | None = None
        self.prompt: list[Told] = []
        self._written: dict[int, tuple[list[Any], list[str], list[Any]]] = {}
        self._words: dict[str, Any] = {}
        self._turn: Scope | None = None
        self._answer: Answer | None = None
        self._live = self._step_live = False
        self._finalized = 0
        self._stepped = False
        self._claim = Claim()
        self._patches = Patches()
        self._start: Start | None = None

    # --- binding -------------------------------------------------------------------------------------------------------------

    def bind(self) -> None:
        """Put the seams in, where they are not; called again before each run, for what was given to the agent since."""
        agent = self.agent
        agent.__dict__[_ATTRIBUTE] = self
        if not self.at_class:
            self._patches.replace(agent, "run", self._make_run)
        self._patches.replace(agent, "_run_stream", self._make_run_stream)
        self._patches.replace(agent, "_step_stream", self._make_step)
        self._patches.replace(agent, "_generate_planning_step", self._make_planning_step)
        self._patches.replace(agent, "_handle_max_steps_reached", self._make_out_of_steps)
        self._patches.replace(agent, "_validate_final_answer", functools.partial(recorded_checks, self))
        self._patches.replace(agent, "_finalize_step", self._make_finalize)
        if class_of(agent).write_memory_to_messages is agents.MultiStepAgent.write_memory_to_messages:
            self._patches.replace(agent, "write_memory_to_messages", self._make_write)
        if "__getstate__" not in agent.__dict__:
            self._patches.add(agent, "__getstate__", self._stock_state)
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
        for name in [*agent.tools, *agent.managed_agents]:
            self._bind_callable(name)

    def _bind_callable(self, name: str) -> None:
        """Make a tool or a managed agent durable, if there is one of that name and it is not."""
        agent = self.agent
        tool = agent.tools.get(name)
        if tool is not None and self._twins.get(name) is not tool:
            self.durability.check_new_names(agent)
            agent.tools[name] = self._twin(name, tool)
        member = agent.managed_agents.get(name)
        if isinstance(member, agents.MultiStepAgent):
            self._bind_member(member)

    def _twin(self, name: str, tool: Any) -> Any:
        """Return the durable stand-in of a tool."""
        if self._twins.get(name) is not tool:
            self._twins[name] = tool_for(self, stock_of(tool), self.policies.tools.get(name))
        return self._twins[name]

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
        agent.__dict__.pop(_ATTRIBUTE, None)
        for member in agent.managed_agents.values():
            inner = binding_of(member)
            if inner is not None and inner.durability is self.durability:
                inner.unbind()

    def _stock_state(self) -> Any:
        """Return what a copy of the agent is made of, or is pickled of it: a stock agent, for the seams are those of this one."""
        agent, cls = self.agent, class_of(self.agent)
        state: Any = cls.__getstate__(agent) if hasattr(cls, "__getstate__") else agent.__dict__  # every class has it from 3.11 on
        if not isinstance(state, dict):
            return state
        made: dict[str, Any] = {name: one for name, one in state.items() if name not in (_ATTRIBUTE, "__getstate__")}
        for name, one in list(made.items()):
            if class_of(one) is FunctionType and hasattr(one, MARK):
                made[name] = getattr(one, MARK)
                if hasattr(cls, name) and made[name] == getattr(cls, name).__get__(agent):
                    del made[name]
        for name in {"model", "python_executor"} & made.keys():
            made[name] = _inner(made[name])
        if "tools" in made:
            made["tools"] = {name: stock_of(tool) for name, tool in made["tools"].items()}
        return made

    # --- what the seams ask --------------------------------------------------------------------------------------------------

    @property
    def run_id(self) -> str:
        """The name of the run in its store."""
        return "" if self.scope is None else self.scope.run.id

    @property
    def who(self) -> str:
        """The agent, as an error calls it."""
        return f"agent {self.agent.name or class_of(self.agent).__name__!r}"

    def next_turn(self) -> None:
        """The model is asked again: what its answer calls lies in a scope of its own."""
        assert self.scope is not None
        self._turn = self.scope.inner("turn")
        self.turns += 1

    def place(self) -> Scope:
        """Return where the tool call under way lies."""
        found = place_of_call()
        if found is not None and self._turn is not None and found.prefix.startswith(self._turn.prefix):
            return found
        assert self.scope is not None
        return self._turn or self.scope

    def in_context(self, work: Callable[[], Any]) -> Any:
        """Do work that an agent's code asks for in the context of the thread that drives the agent."""
        if self.context is None or threading.get_ident() == self.home:
            return work()
        return self.context.copy().run(work)

    def goes_live(self, what: str) -> None:
        """Something is about to be done that the log does not know; errors are those of :meth:`check_closed`."""
        self.check_closed(what)
        self.went_live()

    def went_live(self) -> None:
        """Something is done that the log does not know."""
        self._live = True
        self.durability.went_live()
        if self.parent is not None:
            self.parent[1].went_live()

    def check_closed(self, what: str) -> None:
        """Refuse what finished code did not ask for: the code itself, an agent that it called, or one that a tool of it runs.

        Raises:
            StepChanged: it is being executed again.
        """
        code = executed_again.get()
        if code is None:
            return
        assert code.scope is not None
        if code is not self and code.scope.run._on_change == "rerun":
            return  # what an agent that it called is asked otherwise now is done anew, and what follows in that agent
        raise code.halted(
            StepChanged(
                f"finished code of run {code.run_id} had to be executed again to make its variables, and calls {what} "
                "otherwise than it did: it depends on the time, or on what is not recorded. Nothing of that was done, and every "
                "record is kept. Let code take the time from a tool, whose answers are recorded; to begin anew, start a new "
                "session.",
                run_id=code.run_id,
                step=f"{code.place().prefix.decode('utf-8', 'replace')}{what}",
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
        return {name: self._callable(name, one) for name, one in tools.items()}

    def _callable(self, name: str, one: Any) -> Any:
        if self.agent.managed_agents.get(name) is one:
            return Member(self, one)
        return self._twin(name, one) if isinstance(one, framework_tools.BaseTool) else one

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
        token = _called.set((self, place, caller))
        try:
            yield
        finally:
            restore(_called, token)

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

        Raises:
            InvalidArgument: the agent is being run already. Inside another agent's run it reaches the caller of that.
        """
        try:
            called = _called.get()
            if called is None or called[0] is not self:
                wait_for_like_calls()
            with self.claimed():
                self.parent = called[1:] if called is not None and called[0] is self else None
                return self._drive(stock, args, kwargs)
        except InvalidArgument as exc:
            if running.get():
                raise Stop(exc) from exc  # a program is at fault: no model can do anything about it
            raise

    def claimed(self) -> AbstractContextManager[None]:
        """Be the only one who drives the agent; raises InvalidArgument if another one does."""
        return self._claim.held(self.who, self.durability.session_id)

    def _drive(self, stock: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.scope is not None and self._start is not None:  # steps that nobody read to their end
            self._start.given_up()
            self.end()
        self._bind_parts()
        given = given_to(stock, args, kwargs)
        words = asked(given)
        start = self._start = Nested(self) if self.parent is not None else Outermost(self)
        if given.get("stream") or inspect.isgeneratorfunction(stock):
            return start.stream(words, lambda: stock(*args, **kwargs))
        return start.whole(words, lambda: stock(*args, **kwargs))

    def begin(self, root: Scope, name: str, words: dict[str, Any], *, alone: bool = False) -> bool:
        """Take a place for a run and record what it is asked; return whether the log knows it.

        Args:
            root: what the run lies in.
            name: what it is called there.
            words: what it is asked.
            alone: it may be made again without the runs before it, whose variables it finds.
        """
        start = OpenLeaf(root, name, words)
        if start.known:
            start.answer()
        else:
            (self.parent[1] if self.parent is not None else self).check_closed(self.who)
            task = words.get("task")
            start.record(task if isinstance(task, str) else None, wait=False)
        self.scope, self._words = root.inner(name), words
        self.ends = Ends(self.scope)
        self._turn, self.turns, self._finalized = None, 0, 0
        self._live = self._step_live = False
        executor: Any = self.agent.__dict__.get("python_executor")
        if _is(executor, DurableExecutor, self):
            executor.begin_run()
            if alone:
                executor.carry_over(self.scope)
        return start.known

    def end(self) -> None:
        """Leave the run's place."""
        self.scope = self._turn = self.ends = self._answer = None
        self._forget_messages()
        self.prompt.clear()

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
        if class_of(one) not in _STEPS:
            return one.to_messages(summary_mode=False)  # type: ignore[no-any-return]  # a list
        objects, texts = _said_by(one)
        known = self._written.get(id(one))
        if known is None or texts != known[1] or len(objects) + 1 != len(known[0]) or not all(map(is_, objects, known[0])):
            messages: list[Any] = one.to_messages(summary_mode=False)
            known = self._written[id(one)] = [*objects, one], texts, messages  # kept alive, so that its id stays its own
        return known[2]

    def _forget_messages(self) -> None:
        if self._written:
            self._written = {}

    # --- steps ---------------------------------------------------------------------------------------------------------------

    def _make_run_stream(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(stock)
        def run_stream(*args: Any, **kwargs: Any) -> Generator[Any]:
            self._interrupt_as_recorded(1)
            yield from stock(*args, **with_task_as_told(self, self._words, kwargs))

        return run_stream

    def _make_step(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(stock)
        def make_step(memory_step: Any) -> Generator[Any]:
            if self.scope is None:
                self._warn_of_step()
            self._has_a_step_left()
            for event in stock(memory_step):
                if isinstance(event, agents.ActionOutput) and (text := self._text_of_code()) is not None:
                    output_as_told(memory_step, event.output, text)
                yield event

        return make_step

    def _make_planning_step(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(stock)
        def make_planning_step(*args: Any, **kwargs: Any) -> Any:
            self._has_a_step_left()
            return stock(*args, **kwargs)

        return make_planning_step

    def _has_a_step_left(self) -> None:
        self._bind_again()
        if self.ends is not None and self.parent is None and executed_again.get() is None:
            self.ends.goes_on(self.turns, self.agent.step_number)

    def _text_of_code(self) -> str | None:
        executor: Any = self.agent.__dict__.get("python_executor")
        return executor.text if self.scope is not None and _is(executor, DurableExecutor, self) else None

    def _warn_of_step(self) -> None:
        """Say once that a step which the program has the agent make by itself is not recorded."""
        if self._stepped:
            return
        self._stepped = True
        logging.getLogger("letitloop").warning(
            "letitloop: %s of session %r makes a step outside run(): nothing of it is recorded, and after a crash it is made "
            "again. run() is what is durable.",
            self.who,
            self.durability.session_id,
        )

    def _make_out_of_steps(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(stock)
        def out_of_steps(*args: Any, **kwargs: Any) -> Any:
            self._bind_again()
            if self.ends is not None and self.parent is None:
                self.ends.ran_out(self.turns)
            return stock(*args, **kwargs)

        return out_of_steps

    def _bind_again(self) -> None:
        """In the middle of a run: what a callback, a tool or the reader of the steps has given the agent since is durable, too."""
        if self.scope is not None:
            self._bind_parts()

    def _interrupt_as_recorded(self, number: int) -> None:
        """Before a step, interrupt the run if that is what happened there."""
        if self.ends is not None and self.ends.known(f"interrupted before step {number}") is not None:
            self.agent.interrupt()

    def note_end(self, error: BaseException) -> None:
        """An error leaves the run: record it, if it is an interruption. Calls that failed tell of themselves."""
        if (
            self.ends is not None
            and isinstance(error, Exception)
            and type(error) is utils.AgentError
            and self.agent.interrupt_switch
        ):
            self.ends.note(f"interrupted before step {self.agent.step_number}", error)

    def _make_finalize(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(stock)
        def finalize(step: Any) -> Any:
            if self.scope is not None:
                if not isinstance(step, memory.FinalAnswerStep):
                    self._step_live, self._live = self._live, False
                step._lil_replayed = not self._step_live
                self.durability.step_replayed = not self._step_live
            if self.ends is None:
                return stock(step)
            self._call_back(self.ends, stock, step)
            self._bind_again()
            if isinstance(step, memory.ActionStep):
                self._interrupt_as_recorded(step.step_number + 1)
            return None

        return finalize

    def _call_back(self, ends: Ends, stock: Callable[..., Any], step: Any) -> None:
        """Call the step callbacks; what they raised and the program survived is raised again, though they would not now."""
        self._finalized += 1
        point = f"callbacks {self._finalized}"
        raised = ends.known(point)
        try:
            stock(step)
        except Exception as exc:
            ends.note(point, exc)
            raise
        if raised is not None:
            raise raised

    # --- several calls in one answer -----------------------------------------------------------------------------------------

    def _make_process(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(stock)
        def process(chat_message: Any, memory_step: Any) -> Any:
            if self.scope is None:
                return stock(chat_message, memory_step)
            self._answer = Answer(chat_message, self._turn, self.turns, self.agent.managed_agents)
            outputs = map(functools.partial(result_as_told, self), stock(chat_message, memory_step))
            return self._answer.in_order(outputs)

        return process

    def _make_execute(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(stock)
        def execute(tool_name: str, arguments: Any) -> Any:
            if self.scope is None:
                return stock(tool_name, arguments)
            if self._answer is None:
                return self._call(stock, tool_name, arguments)
            with self._answer.carrying_out(tool_name, arguments) as said:
                return self._call(stock, tool_name, said)

        return execute

    def _call(self, stock: Callable[..., Any], name: str, arguments: Any) -> Any:
        self._bind_callable(name)  # an earlier call of the answer may have given it to the agent
        member = binding_of(self.agent.managed_agents[name]) if name in self.agent.managed_agents else None
        with entered(self.place()):  # what a tool does that is not recorded itself lies there, too
            try:
                if member is None:
                    return stock(name, arguments)
                with member.called_from(self.place(), self):
                    return stock(name, arguments)
            except utils.AgentError as exc:
                retell(self, name, arguments, exc)
                raise


def _said_by(step: Any) -> tuple[list[Any], list[str]]:
    """Return what the messages of a step are made of: objects that are looked at by their identity, and texts."""
    fields = step.__dict__
    objects: list[Any] = [*fields.values()]
    texts: list[str] = []
    for call in fields.get("tool_calls") or ():
        arguments = call.arguments
        objects += (call, call.name, arguments, call.id)
        if type(arguments) is not str:
            texts.append(repr(arguments))
    images = fields.get("observations_images") or fields.get("task_images")
    if images:
        objects += images
    error = fields.get("error")
    if error is not None:
        objects += (error.args, getattr(error, "message", None))
    return objects, texts


def _is(value: Any, cls: type, binding: Binding) -> bool:
    return issubclass(type(value), cls) and object.__getattribute__(value, "_binding") is binding


def _inner(value: Any) -> Any:
    """Return what a stand-in of an agent stands for, or the value itself."""
    return value.inner if issubclass(type(value), (DurableModel, DurableExecutor)) else value
