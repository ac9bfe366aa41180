"""The seam of code: what an agent's code did is recorded, with the variables it changed, and done again only where it has to be."""

from __future__ import annotations

import logging
import random
import re
import threading
from contextvars import copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from letitloop.codecs.ext import class_of
from letitloop.errors import StepChanged, UnknownOutcome
from letitloop.integration.open_leaves import OpenLeaf
from letitloop.runs.failures import decode_failure, encode_failure
from letitloop.runs.run import UNRECORDABLE
from letitloop_smolagents._framework import interpreter
from letitloop_smolagents._graph import Freezer, Thawer, World
from letitloop_smolagents._reach import Reach, look
from letitloop_smolagents._stop import NOT_SHOWN, Stop, as_it_was
from letitloop_smolagents._values import portable, restored

if TYPE_CHECKING:
    from letitloop_smolagents._binding import Binding

__all__ = ["DurableExecutor", "Shown", "executor_for"]

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_OUTPUT = "o:"


class Shown:
    """A value with the text that it had when it was recorded: sets, for one, are printed in another order by each process."""

    def __init__(self, value: Any, text: str) -> None:
        self.value = value
        self.text = text

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


@dataclass
class _Mark:
    """What is known of a variable after a step: its digest, whom it shares objects with, and whether it reaches outside."""

    digest: bytes
    group: frozenset[str]
    opaque: bool
    wide: bool


def executor_for(binding: Binding, inner: Any) -> DurableExecutor:
    """Return a durable executor that passes for the one inside it."""
    made: Any = type(type(inner).__name__, (DurableExecutor,), {})(binding, inner)
    return made  # type: ignore[no-any-return]  # of a class made for it


class DurableExecutor:
    """Stands in for an agent's Python executor.

    Attributes:
        inner: the agent's own.
        called_agent: whether the code under way has called a managed agent.
    """

    def __init__(self, binding: Binding, inner: Any) -> None:
        self.inner = inner
        self.called_agent = False
        self._binding = binding
        self._local = isinstance(inner, interpreter.LocalPythonExecutor)
        self._imports: dict[str, tuple[str, str]] = {}
        self._marks: dict[str, _Mark] = {}

    @property  # type: ignore[misc]  # isinstance tells what the agent was given
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  # it is never set
        return class_of(self.inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)

    # --- what the agent hands over -------------------------------------------------------------------------------------------

    def send_variables(self, variables: dict[str, Any]) -> None:
        """Hand variables over; what the agent was given is no work of its code."""
        self.inner.send_variables(variables)
        if self._local and variables and self._binding.scope is not None:
            self._marks.update(self._look_at(self._world(), variables.keys()))

    def send_tools(self, tools: dict[str, Any]) -> None:
        """Hand tools over; the managed agents among them are told who calls them."""
        if self._local:
            self.inner.send_tools(self._binding.callables(tools))
        else:  # their source is sent: what a remote executor calls is not seen here
            self.inner.send_tools({name: getattr(tool, "__letitloop_stock__", tool) for name, tool in tools.items()})

    # --- a step --------------------------------------------------------------------------------------------------------------

    def __call__(self, code: str) -> Any:
        """Execute code once; executed before, return what it returned and set the variables that it changed."""
        binding = self._binding
        if binding.scope is None:
            return self.inner(code)
        try:
            leaf = OpenLeaf(binding.scope, "code", {"code": code})
            reach = self._reach(code)
            if not leaf.known:
                return self._live(code, leaf, reach)
            record: dict[str, Any] = leaf.answer()
            output = self._replay(code, record, reach)
        except NOT_SHOWN as exc:
            raise Stop(exc) from exc
        if "error" in record:
            raise as_it_was(decode_failure(record["error"], binding.codecs, "code"))
        return output

    def _world(self) -> World:
        inner = self.inner
        tools = dict(inner.static_tools or {})
        if "final_answer" in tools:
            tools["final_answer"] = _ending(tools["final_answer"])
        return World(inner.state, inner.custom_tools, tools, inner.authorized_imports, self._imports)

    def _reach(self, code: str) -> Reach:
        if not self._local:
            return Reach(outside={f"the {class_of(self.inner).__name__}"})
        outside = {*self.inner.additional_functions, *(key[2:] for key, mark in self._marks.items() if mark.wide)}
        reach = look(code, self._world(), outside=outside, tools=self._binding.tool_names())
        self._imports.update(reach.imports)
        return reach

    def _live(self, code: str, leaf: OpenLeaf, reach: Reach) -> Any:
        binding = self._binding
        kept = self._before(code, reach)
        binding.went_live()
        output, error = self._execute(code)
        record: dict[str, Any] = {
            "wide": bool(reach.outside),
            "composite": self.called_agent,
            "logs": self._logs() if output is None else output.logs,
            "final": output is not None and output.is_final_answer,
        }
        if error is not None:
            record["error"] = encode_failure(error, binding.codecs)
        if kept is not None:
            record["random"] = kept
        value = None if output is None else output.output
        record.update(self._changes(value, reach, final=record["final"]) if self._local else {"output": portable(value)})
        try:
            leaf.record(record, wait=bool(reach.outside))
        except UNRECORDABLE as exc:
            leaf.fail(exc)
            raise
        self._warn(code, record, reach)
        if error is not None:
            raise error
        return output

    def _before(self, code: str, reach: Reach) -> list[Any] | None:
        """Record what has to be on disk before code is executed; return the state of the random numbers, if it matters."""
        binding = self._binding
        turn = binding.place()
        if reach.outside and binding.code_policy is None:
            intent = OpenLeaf(turn, "code begun", {"code": code})
            if intent.known:
                raise self._unknown(code, reach, "it was under way when the process died")
            intent.record(None)
        elif reach.outside and binding.code_policy == "record" and OpenLeaf(turn, "code begun", {"code": code}).known:
            logging.getLogger("letitloop").warning("letitloop: code that was under way is executed again: %s", _first_line(code))
        if not reach.random:
            return None
        state = _freeze_random()
        if reach.tools:  # executed again after a crash, it has to ask its tools the same
            started = OpenLeaf(turn, "random", {})
            if started.known:
                state = started.answer()
                random.setstate(_thaw_random(state))
            else:
                started.record(state, wait=False)
        return state

    def _execute(self, code: str) -> tuple[Any, Exception | None]:
        """Execute code; tools that it calls on another thread find the context of this one."""
        binding = self._binding
        binding.context, binding.home = copy_context(), threading.get_ident()
        self.called_agent = False
        try:
            return self.inner(code), None
        except Exception as exc:
            return None, exc
        finally:
            binding.context = None

    def _logs(self) -> str:
        return str(getattr(self.inner, "state", {}).get("_print_outputs", ""))

    # --- replay --------------------------------------------------------------------------------------------------------------

    def _replay(self, code: str, record: dict[str, Any], reach: Reach) -> Any:
        again = None
        executed = self._must_execute(record)
        if executed:
            if record["wide"] and self._binding.code_policy is None:
                raise self._unknown(code, reach, "it is finished, and has to be executed again to make its variables")
            again = self._execute_again(code, record)
        try:
            if self._local:
                self._apply(record, executed=executed)
            value = self._output(record, again) if self._local else restored(record["output"])
        except Exception as exc:  # a module or a class that is gone: with wrong variables nobody must go on
            raise Stop(exc) from exc
        if hasattr(self.inner, "state"):
            printed = self.inner.state["_print_outputs"] = interpreter.PrintContainer()
            printed.value = record["logs"]
        return interpreter.CodeOutput(output=value, logs=record["logs"], is_final_answer=record["final"])

    def _must_execute(self, record: dict[str, Any]) -> bool:
        return bool(self._local and (record["opaque"] or record["composite"] or self._binding.code_policy == "rerun"))

    def _execute_again(self, code: str, record: dict[str, Any]) -> Any:
        """Execute finished code again, its tools answered from the log; return its output, or None where it raised."""
        binding = self._binding
        if "random" in record:
            random.setstate(_thaw_random(record["random"]))
        binding.closed = True
        try:
            output, error = self._execute(code)
        finally:
            binding.closed = False
        if (error is not None) != ("error" in record):
            what = (
                f"raised {type(error).__name__}: {error}" if error is not None else "did not raise, as it did when it was recorded"
            )
            if record["opaque"] or record["composite"]:
                raise binding.halted(
                    StepChanged(
                        f"code step {_first_line(code)!r} of run {binding.run_id} had to be executed again to make "
                        f"{_names(record['opaque']) or 'the state of a managed agent'}, and {what}. Every record is kept, and no "
                        "finished tool was called. Give it the surroundings it had, or start a new session.",
                        run_id=binding.run_id,
                        step="code",
                        arguments=("code",),
                    )
                )
            logging.getLogger("letitloop").warning("letitloop: code executed again %s: %s", what, _first_line(code))
        return None if output is None else output.output

    def _apply(self, record: dict[str, Any], *, executed: bool) -> None:
        """Set the variables that a finished step changed, where executing it again did not make the same ones."""
        world = self._world()
        now = self._look_at(world) if executed else {}
        for key in record["deleted"]:
            world.drop(key)
        for nodes, refs in record["groups"]:
            thawer = Thawer(world, nodes)
            keys = [key for key in refs if key != _OUTPUT]
            same = executed and all(key in now and now[key].digest == record["digests"][key] for key in keys)
            for key in keys if not same else ():
                world.put(key, thawer.value(refs[key]))
        if executed:
            self._marks = self._look_at(world)
            return
        for key in record["deleted"]:
            self._marks.pop(key, None)
        for _, refs in record["groups"]:
            group = frozenset(refs) - {_OUTPUT}
            for key in group:
                self._marks[key] = _Mark(record["digests"][key], group, opaque=False, wide=key in record["outside"])

    def _output(self, record: dict[str, Any], again: Any) -> Any:
        """Return the value of a finished step; if it is shown to the model, with the text that the model was shown."""
        value = again
        for nodes, refs in record["groups"]:
            if _OUTPUT in refs:
                ref = refs[_OUTPUT]
                value = self._variable(refs, ref) if isinstance(ref, list) else ref
                if value is None and ref is not None:
                    value = Thawer(self._world(), nodes).value(ref)
        text = record.get("text")
        if text is None or record["final"] or _without_addresses(str(value)) == _without_addresses(text):
            return value
        return Shown(value, text)

    def _variable(self, refs: dict[str, Any], ref: Any) -> Any:
        """Return the variable that is the same object as the output, if there is one."""
        variables = self._world().variables()
        return next((variables.get(key) for key, one in refs.items() if one == ref and key != _OUTPUT), None)

    # --- what changed --------------------------------------------------------------------------------------------------------

    def _look_at(self, world: World, names: Any = None) -> dict[str, _Mark]:
        """Return the marks of all variables, or of those of the state that are named."""
        values = world.variables()
        if names is not None:
            values = {f"s:{name}": world.state[name] for name in names if name in world.state}
        return _marks({key: _single(world, value) for key, value in values.items()})

    def _changes(self, output: Any, reach: Reach, *, final: bool) -> dict[str, Any]:
        """Return what a step that was just executed changed, as it is recorded."""
        world = self._world()
        values = world.variables()
        if output is not None:
            values[_OUTPUT] = output
        singles = {key: _single(world, value) for key, value in values.items()}
        marks = _marks(singles)
        before, self._marks = self._marks, {key: mark for key, mark in marks.items() if key != _OUTPUT}
        for mark in self._marks.values():
            mark.group = mark.group - {_OUTPUT}
        changed = {key for key, mark in marks.items() if _differs(before.get(key), mark, key, reach)}
        together = _groups(singles)
        groups: list[Any] = []
        opaque: set[str] = set()
        for group in sorted({tuple(sorted(together[key])) for key in changed}):
            freezer, refs = _graph(world, values, list(group), singles)
            if freezer.opaque:
                opaque.update(group)
            else:
                groups.append([freezer.nodes, refs])
        found: dict[str, Any] = {
            "groups": groups,
            "digests": {key: marks[key].digest for _, refs in groups for key in refs if key != _OUTPUT},
            "deleted": sorted(before.keys() - marks.keys()),
            "opaque": sorted(opaque - {_OUTPUT}),
            "outside": sorted(key for key in changed if marks[key].wide),
        }
        if output is not None and not singles[_OUTPUT][0].dull:
            found["text"] = str(output)
        if _OUTPUT in opaque and final:
            found["opaque"].append(_OUTPUT)  # the run's result: nothing can stand in for it
        return found

    # --- what cannot be told -------------------------------------------------------------------------------------------------

    def _unknown(self, code: str, reach: Reach, why: str) -> UnknownOutcome:
        binding = self._binding
        what = ", ".join(sorted(reach.outside)) or "what it imported"
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

    def _warn(self, code: str, record: dict[str, Any], reach: Reach) -> None:
        if record["wide"] and self._binding.code_policy is None and self._local and (record["opaque"] or record["composite"]):
            logging.getLogger("letitloop").warning(
                "letitloop: code step %r reaches outside (%s), and %s cannot be recorded: a run that is resumed after it will stop "
                'there. If executing it again does no harm, declare tools={"python_interpreter": "rerun"}.',
                _first_line(code),
                ", ".join(sorted(reach.outside)),
                _names(record["opaque"]) or "the state of a managed agent",
            )


def _single(world: World, value: Any) -> tuple[Freezer, Any]:
    freezer = Freezer(world)
    try:
        return freezer, freezer.ref(value)
    except RecursionError:
        freezer.opaque = True
        return freezer, None


def _graph(world: World, values: dict[str, Any], group: list[str], singles: dict[str, tuple[Freezer, Any]]) -> tuple[Freezer, Any]:
    if len(group) == 1:
        freezer, ref = singles[group[0]]
        return freezer, {group[0]: ref}
    freezer = Freezer(world)
    try:
        return freezer, {key: freezer.ref(values[key]) for key in group}
    except RecursionError:
        freezer.opaque = True
        return freezer, {}


def _groups(singles: dict[str, tuple[Freezer, Any]]) -> dict[str, frozenset[str]]:
    """Put variables that share objects into one group; return the group of each."""
    leader: dict[str, str] = {key: key for key in singles}

    def lead(key: str) -> str:
        while leader[key] != key:
            leader[key] = leader[leader[key]]
            key = leader[key]
        return key

    holder: dict[int, str] = {}
    for key, (freezer, _) in singles.items():
        for one in freezer.shared:
            leader[lead(key)] = lead(holder.setdefault(one, key))
    groups: dict[str, set[str]] = {}
    for key in singles:
        groups.setdefault(lead(key), set()).add(key)
    frozen = {key: frozenset(group) for key, group in groups.items()}
    return {key: frozen[lead(key)] for key in singles}


def _marks(singles: dict[str, tuple[Freezer, Any]]) -> dict[str, _Mark]:
    groups = _groups(singles)
    return {key: _Mark(freezer.digest(ref), groups[key], freezer.opaque, freezer.wide) for key, (freezer, ref) in singles.items()}


def _differs(before: _Mark | None, mark: _Mark, key: str, reach: Reach) -> bool:
    if before is None or before.digest != mark.digest or before.group != mark.group:
        return True
    return mark.opaque and any(one[2:] in reach.names for one in mark.group)


def _ending(final_answer: Any) -> Any:
    """Return ``final_answer`` as code calls it: it ends the code."""

    def ending(*args: Any, **kwargs: Any) -> Any:
        raise interpreter.FinalAnswerException(final_answer(*args, **kwargs))

    return ending


def _freeze_random() -> list[Any]:
    version, numbers, gauss = random.getstate()
    return [version, b"".join(number.to_bytes(4, "big") for number in numbers), gauss]


def _thaw_random(state: list[Any]) -> tuple[Any, ...]:
    version, data, gauss = state
    return version, tuple(int.from_bytes(data[n : n + 4], "big") for n in range(0, len(data), 4)), gauss


def _without_addresses(text: str) -> str:
    return _ADDRESS.sub(" at 0x", text)


def _first_line(code: str) -> str:
    lines = code.strip().splitlines() or [""]
    return lines[0][:80]


def _names(keys: list[str]) -> str:
    return ", ".join(key[2:] for key in keys if key != _OUTPUT)
