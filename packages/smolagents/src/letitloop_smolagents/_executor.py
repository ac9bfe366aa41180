"""The seam of code: what an agent's code did is recorded, with the variables it changed, and done again only where it has to be."""

from __future__ import annotations

import logging
import threading
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from letitloop.codecs.ext import class_of
from letitloop.errors import StepChanged, UnknownOutcome
from letitloop.integration.open_leaves import OpenLeaf
from letitloop.integration.sessions import entered
from letitloop.runs.failures import decode_failure, encode_failure
from letitloop.runs.run import UNRECORDABLE
from letitloop.runs.scope import restore
from letitloop_smolagents._deciding import decide
from letitloop_smolagents._framework import interpreter
from letitloop_smolagents._reach import Reach, Walk
from letitloop_smolagents._stop import NOT_SHOWN, Stop, as_it_was, executed_again
from letitloop_smolagents._values import portable, restored
from letitloop_smolagents._variables import Variables, freeze_random, names, random_since, thaw_random

if TYPE_CHECKING:
    from typing import TypedDict

    from typing_extensions import NotRequired

    from letitloop.runs.scope import Scope
    from letitloop_smolagents._binding import Binding
    from letitloop_smolagents._variables import Changes

    class Record(TypedDict):
        """What is recorded of a code step.

        Attributes:
            changes: the variables that it changed.
            wide: whether it could reach outside other than by tools.
            composite: whether it called a managed agent, whose memory and variables are no part of the record.
            logs: what it printed.
            final: whether it called ``final_answer``.
            error: what it raised.
            random: the state of the random numbers before it.
            drawn: their state after it, as far as it differs.
            output: its value, where the executor's state lives elsewhere.
        """

        changes: Changes
        wide: bool
        composite: bool
        logs: str
        final: bool
        error: NotRequired[Any]
        random: NotRequired[list[Any]]
        drawn: NotRequired[list[Any]]
        output: NotRequired[Any]


__all__ = ["DurableExecutor", "executor_for"]


def executor_for(binding: Binding, inner: Any) -> DurableExecutor:
    """Return a durable executor that passes for the one inside it."""
    made: Any = type(type(inner).__name__, (DurableExecutor,), {})(binding, inner)
    return made  # type: ignore[no-any-return]  # of a class made for it


class DurableExecutor:
    """Stands in for an agent's Python executor.

    Attributes:
        inner: the agent's own.
        called_agent: whether the code under way has called a managed agent.
        text: the text that the value of the last code had when it was recorded, if that is another one in each process.
    """

    def __init__(self, binding: Binding, inner: Any) -> None:
        self.inner = inner
        self.called_agent = False
        self.text: str | None = None
        self._binding = binding
        self._variables = Variables(inner) if isinstance(inner, interpreter.LocalPythonExecutor) else None
        self._walk: Walk | None = None
        self._code = ""

    @property  # type: ignore[misc]  # isinstance tells what the agent was given
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  # it is never set
        return class_of(self.inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)

    # --- what the agent hands over -------------------------------------------------------------------------------------------

    def begin_run(self) -> None:
        """A run begins; variables are those that the last one left."""
        if self._variables is not None:
            self._variables.begin_run()

    def carry_over(self, scope: Scope) -> None:
        """Record the variables that an earlier run left, for a run that may be made again without it; or set those on record."""
        variables = self._variables
        if variables is None or not (scope.prefix + b"variables" in scope.run.journal.index or variables.world().variables()):
            return
        leaf = OpenLeaf(scope, "variables", {})
        if not leaf.known:
            variables.unpack(leaf.record(variables.all_of_them(), wait=False))
            return
        changes: Changes = leaf.answer()
        variables.apply(changes, variables.unpack(changes), executed=False)
        if changes["opaque"]:
            logging.getLogger("letitloop").warning(
                "letitloop: a run of agent %r is made again, and what an earlier run left in %s cannot be recorded.",
                self._binding.agent.name,
                names(changes["opaque"]),
            )

    def send_variables(self, variables: dict[str, Any]) -> None:
        """Hand variables over; what the agent was given is no work of its code."""
        self.inner.send_variables(variables)
        if self._variables is not None and variables and self._binding.scope is not None:
            self._variables.given(variables)

    def send_tools(self, tools: dict[str, Any]) -> None:
        """Hand tools over; the managed agents among them are told who calls them."""
        if self._variables is not None:
            self.inner.send_tools(self._binding.callables(tools))
        else:  # their source is sent: what a remote executor calls is not seen here
            self.inner.send_tools({name: getattr(tool, "__letitloop_stock__", tool) for name, tool in tools.items()})

    # --- a step --------------------------------------------------------------------------------------------------------------

    def __call__(self, code: str) -> Any:
        """Execute code once; executed before, return what it returned and set the variables that it changed."""
        binding = self._binding
        self.text = None
        if binding.scope is None:
            return self.inner(code)
        try:
            leaf = OpenLeaf(binding.scope, "code", {"code": code})
            reach = self._reach(code)
            if not leaf.known:
                return self._live(code, leaf, reach)
            record: Record = leaf.answer()
            output = self._replay(code, record, reach)
        except NOT_SHOWN as exc:
            raise Stop(exc) from exc
        finally:
            self._walk = None  # it holds what the code could reach
        if "error" in record:
            raise as_it_was(decode_failure(record["error"], binding.codecs, "code"))
        return output

    def _reach(self, code: str) -> Reach:
        if self._variables is None:
            return Reach(outside={f"the {class_of(self.inner).__name__}"})
        tools = self._binding.tool_names()
        self._walk = Walk(self._variables.world(), added=self.inner.additional_functions, tools=tools)
        reach = self._walk.code(code)
        self._variables.imports.update(reach.imports)
        return reach

    def obtained(self, value: Any) -> None:
        """Code is handed what a tool returned: with that it may reach outside, though its names do not.

        Raises:
            UnknownOutcome: it was handed this before the process died, and what it did with it nobody knows.
        """
        walk = self._walk
        if walk is None or walk.reach.outside:
            return
        if walk.value(value).outside:
            self._intend(self._code, walk.reach)

    def _live(self, code: str, leaf: OpenLeaf, reach: Reach) -> Any:
        binding = self._binding
        binding.goes_live(f"code of {binding.who}")
        kept = self._before(code, reach)
        output, error = self._execute(code)
        binding.check_all_asked(_first_line(code))
        value = None if output is None else output.output
        final = output is not None and output.is_final_answer
        changes = Variables.none(value) if self._variables is None else self._variables.changes(value, reach, final=final)
        record: Record = {
            "changes": changes,
            "wide": bool(reach.outside),
            "composite": self.called_agent,
            "logs": self._logs() if output is None else output.logs,
            "final": final,
        }
        if error is not None:
            record["error"] = encode_failure(error, binding.codecs)
        if kept is not None:
            record["random"], record["drawn"] = kept, random_since(kept)
        if self._variables is None:
            record["output"] = portable(value)
        self._record(code, leaf, record, reach)
        if error is not None:
            raise error
        return output

    def _record(self, code: str, leaf: OpenLeaf, record: Record, reach: Reach) -> None:
        try:
            leaf.record(record, wait=bool(reach.outside))
        except UNRECORDABLE as exc:
            leaf.fail(exc)
            raise
        if self._variables is not None:
            self._variables.unpack(record["changes"])
            self._warn(code, record, reach)

    def _before(self, code: str, reach: Reach) -> list[Any] | None:
        """Record what has to be on disk before code is executed; return the state of the random numbers, if it matters."""
        self._code = code
        if reach.outside:
            self._intend(code, reach)
        if not reach.random:
            return None
        state = freeze_random()
        if reach.tools:  # executed again after a crash, it has to ask its tools the same
            started = OpenLeaf(self._binding.place(), "random", {})
            if started.known:
                state = started.answer()
                thaw_random(state)
            else:
                started.record(state, wait=False)
        return state

    def _intend(self, code: str, reach: Reach) -> None:
        """Record that code is about to be able to reach outside, or judge that it was when the process died."""
        policy = self._binding.code_policy
        if policy == "rerun":
            return
        intent = OpenLeaf(self._binding.place(), "code begun", {"code": code})
        decision = decide("under way" if intent.known else "new", outside=True, opaque=False, policy=policy)
        if decision == "unknown":
            raise self._unknown(code, reach, "it was under way when the process died")
        if not intent.known:
            intent.record(None, wait=policy is None)
        else:
            logging.getLogger("letitloop").warning("letitloop: code that was under way is executed again: %s", _first_line(code))

    def _execute(self, code: str) -> tuple[Any, Exception | None]:
        """Execute code; tools that it calls on another thread find the context of this one."""
        binding = self._binding
        self.called_agent = False
        with entered(binding.place()):  # what is done in code that is not executed again lies with it
            binding.context, binding.home = copy_context(), threading.get_ident()
            try:
                return self.inner(code), None
            except Exception as exc:
                return None, exc
            finally:
                binding.context = None

    def _logs(self) -> str:
        return str(getattr(self.inner, "state", {}).get("_print_outputs", ""))

    # --- replay --------------------------------------------------------------------------------------------------------------

    def _replay(self, code: str, record: Record, reach: Reach) -> Any:
        variables = self._variables
        groups = [] if variables is None else variables.unpack(record["changes"])
        opaque = variables is not None and bool(record["changes"]["opaque"] or record["composite"])
        policy = None if variables is None else self._binding.code_policy
        decision = decide("finished", outside=record["wide"], opaque=opaque, policy=policy)
        if decision == "unknown":
            raise self._unknown(code, reach, "it is finished, and has to be executed again to make its variables")
        again = self._execute_again(code, record) if decision == "execute" else None
        if "drawn" in record:  # numbers that were handed out are not handed out again
            thaw_random(record["drawn"], record["random"])
        try:
            if variables is None:
                value = restored(record.get("output"))
            else:
                variables.apply(record["changes"], groups, executed=decision == "execute")
                value = variables.output(record["changes"], groups, again)
        except Exception as exc:  # a module or a class that is gone: with wrong variables nobody must go on
            raise Stop(exc) from exc
        if hasattr(self.inner, "state"):
            printed = self.inner.state["_print_outputs"] = interpreter.PrintContainer()
            printed.value = record["logs"]
        self.text = record["changes"].get("text")
        return interpreter.CodeOutput(output=value, logs=record["logs"], is_final_answer=record["final"])

    def _execute_again(self, code: str, record: Record) -> Any:
        """Execute finished code again, its tools answered from the log; return its output, or None where it raised."""
        binding = self._binding
        if "random" in record:
            thaw_random(record["random"])
        self._walk = None  # what it is handed, it was handed before
        token = executed_again.set(binding)
        try:
            output, error = self._execute(code)
            binding.check_all_asked(_first_line(code))
        finally:
            restore(executed_again, token)
        if (error is not None) != ("error" in record):
            self._ended_otherwise(code, record, error)
        return None if output is None else output.output

    def _ended_otherwise(self, code: str, record: Record, error: Exception | None) -> None:
        binding = self._binding
        what = f"raised {type(error).__name__}: {error}" if error is not None else "did not raise, as it did when it was recorded"
        opaque = record["changes"]["opaque"]
        if not opaque and not record["composite"]:
            logging.getLogger("letitloop").warning("letitloop: code executed again %s: %s", what, _first_line(code))
            return
        raise binding.halted(
            StepChanged(
                f"code step {_first_line(code)!r} of run {binding.run_id} had to be executed again to make "
                f"{names(opaque) or 'the state of a managed agent'}, and {what}. Every record is kept, and no finished tool was "
                "called. Give it the surroundings it had, or start a new session.",
                run_id=binding.run_id,
                step="code",
                arguments=("code",),
            )
        )

    # --- what cannot be told -------------------------------------------------------------------------------------------------

    def _unknown(self, code: str, reach: Reach, why: str) -> UnknownOutcome:
        binding = self._binding
        what = ", ".join(sorted(reach.outside)) or "what it imported, or was handed by a tool"
        unknown: UnknownOutcome = binding.halted(
            UnknownOutcome(
                f"code step {_first_line(code)!r} of run {binding.run_id} reaches outside other than by tools ({what}), and {why}: "
                "what it did there may have happened, and would happen again. It was not executed. If that does no harm, because "
                'it computes or writes files over, declare tools={"python_interpreter": "rerun"}; if it may be repeated, "record".',
                namespace=binding.run_id,
                key=f"{binding.place().prefix.decode('utf-8', 'replace')}code",
                reason=why,
            )
        )
        return unknown

    def _warn(self, code: str, record: Record, reach: Reach) -> None:
        if record["wide"] and self._binding.code_policy is None and (record["changes"]["opaque"] or record["composite"]):
            logging.getLogger("letitloop").warning(
                "letitloop: code step %r reaches outside (%s), and %s cannot be recorded: a run that is resumed after it will stop "
                'there. If executing it again does no harm, declare tools={"python_interpreter": "rerun"}.',
                _first_line(code),
                ", ".join(sorted(reach.outside)),
                names(record["changes"]["opaque"]) or "the state of a managed agent",
            )


def _first_line(code: str) -> str:
    lines = code.strip().splitlines() or [""]
    return lines[0][:80]
