"""How a run of an agent is driven, and what becomes of its end."""

from __future__ import annotations

import inspect
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from letitloop.codecs import default_codecs
from letitloop.errors import CodecError, Halt, InvalidArgument, RecordTooLarge
from letitloop.integration.open_leaves import OpenLeaf
from letitloop.integration.sessions import entered
from letitloop.runs.scope import restore
from letitloop_smolagents._framework import agents, memory, types
from letitloop_smolagents._shown import answer_as_told
from letitloop_smolagents._stop import Stop, running
from letitloop_smolagents._values import identity, portable, restored

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextlib import AbstractContextManager

    from letitloop.runs.scope import Scope
    from letitloop_smolagents._binding import Binding

__all__ = ["Nested", "Outermost", "Start", "asked", "given_to"]

_WORDS = inspect.signature(agents.MultiStepAgent.run).parameters
_NAMES = [name for name in _WORDS if name != "self"]
_DEFAULTS = {name: one.default for name, one in _WORDS.items() if one.default is not one.empty}
_UNNAMED = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
_NOT_ASKED = ("max_steps", "return_full_result")  # how far a run may go and how its result is handed over: each life says it anew


class Start:
    """How a run is driven, and what becomes of its end."""

    def __init__(self, binding: Binding) -> None:
        self.binding = binding

    def begin(self, words: dict[str, Any]) -> None:
        raise NotImplementedError

    def finish(self, words: dict[str, Any], value: Any) -> Any:
        return value

    def failed(self, error: BaseException) -> BaseException:
        try:
            self.binding.note_end(error)
        except BaseException as exc:  # that cannot be recorded: the caller is to know
            return exc
        return error

    def given_up(self) -> None:
        pass

    def driving(self) -> AbstractContextManager[None]:
        """Be around whatever is done in the run."""
        return nullcontext()

    def whole(self, words: dict[str, Any], work: Callable[[], Any]) -> Any:
        """Drive a run to its end and return its result."""
        with self.driving():
            return self._whole(words, work)

    def _whole(self, words: dict[str, Any], work: Callable[[], Any]) -> Any:
        binding = self.binding
        try:
            self.begin(words)
            assert binding.scope is not None
            with _inside(binding.scope):
                return self.finish(words, work())
        except BaseException as exc:
            error = self.failed(exc)
            if error is exc:
                raise
            raise error from exc.__cause__
        finally:
            binding.end()

    def stream(self, words: dict[str, Any], work: Callable[[], Any]) -> Any:
        """Begin a run, and return what yields its steps."""
        with self.driving():
            self.begin(words)
            scope = self.binding.scope
            assert scope is not None
            try:
                with _inside(scope):
                    steps = work()
            except BaseException:
                self.binding.end()
                raise
        return self._steps(words, steps, scope)

    def _steps(self, words: dict[str, Any], steps: Any, scope: Scope) -> Generator[Any]:
        binding = self.binding
        try:
            while True:
                if binding.scope is not scope:
                    raise InvalidArgument(
                        "these steps are of a run that was given up: its agent was run again. Nothing more was run."
                    )
                with binding.claimed(), self.driving(), _inside(scope):  # not around the yield: whoever reads is not in this run
                    step: Any = next(steps, None)
                    if isinstance(step, memory.FinalAnswerStep):
                        step.output = self.finish(words, step.output)
                if step is None:
                    return
                yield step
        except BaseException as exc:
            if binding.scope is not scope:
                raise
            if isinstance(exc, GeneratorExit):
                with suppress(RuntimeError):  # smolagents yields while it is being closed
                    steps.close()
            error = self.failed(exc)
            if error is exc:
                raise
            raise error from exc.__cause__
        finally:
            if binding.scope is scope:
                binding.end()


class Nested(Start):
    """A managed agent's run: a part of the run of the agent that called it."""

    def begin(self, words: dict[str, Any]) -> None:
        assert self.binding.parent is not None
        place, caller = self.binding.parent
        self.binding.begin(place, f"agent {self.binding.agent.name} {caller.told(words)}".rstrip(), words)

    def finish(self, words: dict[str, Any], value: Any) -> Any:
        """Let the report on the run say of its answer what it said when it was recorded."""
        assert self.binding.scope is not None
        if not isinstance(value, agents.RunResult):
            return answer_as_told(self.binding.agent, self.binding.scope, value)
        value.output = answer_as_told(self.binding.agent, self.binding.scope, value.output)
        return value


class Outermost(Start):
    """A run that the user's program called."""

    def driving(self) -> AbstractContextManager[None]:
        return self.binding.durability.driving()

    def begin(self, words: dict[str, Any]) -> None:
        agent = self.binding.durability.agent_name or self.binding.agent.name
        name = f"run {agent}" if agent else "run"
        words = {word: value for word, value in words.items() if word not in _NOT_ASKED}
        self._slot = self.binding.durability.next_run(name, words)
        try:
            known = self.binding.begin(self._slot.root, name, words, alone=self._slot.alone)
        except BaseException as exc:
            self._slot.failed(exc)
            raise
        self.binding.durability.replaying = known

    def finish(self, words: dict[str, Any], value: Any) -> Any:
        scope = self.binding.scope
        assert scope is not None
        scope.run.about_to_act("result")  # a Halt that something swallowed
        result = OpenLeaf(scope, "result", {})
        if result.known:
            kept: dict[str, Any] = result.answer()
            value = _handed_over(_given_back(kept["result"]), value) if "result" in kept else value
        else:
            try:
                kept = {"result": _kept(value)}
                default_codecs.encode(kept)
            except (CodecError, RecordTooLarge):
                kept = {}  # its steps are on record, and make it again
            result.record(kept, wait=False)
        self._slot.done()
        return value

    def given_up(self) -> None:
        self._slot.done()

    def failed(self, error: BaseException) -> BaseException:
        error = super().failed(error)
        scope = self.binding.scope
        stopped: Any = error.error if isinstance(error, Stop) else error
        if scope is not None and not isinstance(stopped, (Halt, KeyboardInterrupt, GeneratorExit)):
            try:
                scope.run.about_to_act("result")
            except BaseException as halted:  # it was raised before, and something made this error of it
                stopped = halted
        if hasattr(self, "_slot"):
            self._slot.failed(stopped)
        if isinstance(error, Stop) and stopped is error.error and running.get():
            return error  # a tool of another agent runs this one: the error is for the caller of that
        return stopped  # type: ignore[no-any-return]  # an exception


@contextmanager
def _inside(scope: Scope) -> Generator[None]:
    token = running.set(True)
    try:
        with entered(scope):
            yield
    finally:
        restore(running, token)


def given_to(run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return what a run is given, by name. A ``run`` of the agent's own class may name it otherwise, or hand it on unnamed.

    Args:
        run: it, bound.
        args: what it is given.
        kwargs: the same.
    """
    signature = inspect.signature(run)
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    words: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            names = [] if words else _NAMES
            words.update({names[n] if n < len(names) else f"argument {n + 1}": one for n, one in enumerate(value)})
        elif kind is inspect.Parameter.VAR_KEYWORD:
            words.update(value)
        else:
            words[name] = value
    unnamed = _UNNAMED & {one.kind for one in signature.parameters.values()}
    return {**_DEFAULTS, **words} if unnamed else words


def asked(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return what a run is asked, by name. Whether its steps are streamed is no part of it."""
    words = {name: identity(value) for name, value in arguments.items() if name not in ("self", "stream", "images")}
    words["images"] = [identity(image) for image in arguments.get("images") or ()]
    return words


def _kept(value: Any) -> Any:
    """Return what is recorded of a run's result."""
    if isinstance(value, agents.RunResult):
        return {"full": {name: _kept(one) if name == "output" else portable(one) for name, one in value.__dict__.items()}}
    return {"plain": portable(value.to_raw() if isinstance(value, types.AgentType) else value)}


def _handed_over(recorded: Any, made: Any) -> Any:
    """Return a recorded result in the way in which this life wants it: as it has just made it again."""
    if isinstance(recorded, agents.RunResult) == isinstance(made, agents.RunResult):
        return recorded
    if isinstance(recorded, agents.RunResult):
        return recorded.output
    made.output = recorded
    return made


def _given_back(kept: Any) -> Any:
    """Return the result of which :func:`_kept` gave this."""
    if "full" in kept:
        fields = kept["full"].items()
        return agents.RunResult(**{name: _given_back(one) if name == "output" else restored(one) for name, one in fields})
    return types.handle_agent_output_types(restored(kept["plain"]))
