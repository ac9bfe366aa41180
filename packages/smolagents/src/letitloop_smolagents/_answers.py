"""Several calls in one answer: each has a place of its own, and those that would meet in one agent wait for each other."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias

from letitloop.runs.scope import restore
from letitloop_smolagents._framework import agents, memory

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    from letitloop.runs.scope import Scope

__all__ = ["Answer", "Calls", "calls_around", "place_of_call", "wait_for_like_calls"]

Calls: TypeAlias = "tuple[tuple[Answer, int], ...]"

_place: ContextVar[Scope | None] = ContextVar("letitloop_smolagents_call", default=None)
_around: ContextVar[Calls] = ContextVar("letitloop_smolagents_calls", default=())


class _Asked(dict[str, Any]):
    """The arguments of one call of several: the object tells which."""

    position: int

    def __bool__(self) -> bool:
        return True  # smolagents makes a new dict of arguments that are none


class _AskedText(str):
    """The same, of arguments that are text."""

    __slots__ = ("position",)
    position: int


class Answer:
    """The calls of one answer of a model.

    A call waits for earlier ones of the answer only: the framework starts them in their order, so none waits for ever.

    Args:
        message: the answer. Each call is given an id of its own: of two with one id, smolagents carries out the last alone.
        turn: the scope of what the answer calls.
        number: the how-manieth answer of the run it is.
        managed: the managed agents that it may call.
    """

    def __init__(self, message: Any, turn: Scope | None, number: int, managed: Mapping[str, Any]) -> None:
        self._calls: list[Any] = list(message.tool_calls or ())
        self._turn = turn
        self._managed = managed
        self._guard = threading.Lock()
        self._open: list[Any] = list(self._calls)
        self._ended = [threading.Event() for _ in self._calls]
        self._errors: dict[int, BaseException] = {}
        seen: set[Any] = set()
        for position, call in enumerate(self._calls):
            if not call.id or call.id in seen:
                call.id = f"call_{number}_{position:03d}"
            seen.add(call.id)

    @contextmanager
    def carrying_out(self, name: str, arguments: Any) -> Generator[Any]:
        """Be around one of the calls, in its place: by its position in the answer, never by its order of arrival.

        Yields:
            the arguments to carry it out with.
        """
        if len(self._calls) < 2 or self._turn is None:
            with _in(None, _around.get()):
                yield arguments
            return
        position = self._take(name, arguments)
        if position is None:
            with _in(self._turn.inner(f"call of {name}"), _around.get()):
                yield arguments
            return
        try:
            with _in(self._turn.inner(f"call {position + 1}"), (*_around.get(), (self, position))):
                self._wait_for(position, self._of_one_team(position))
                yield _plain(arguments)
        except BaseException as exc:
            self._errors[position] = exc
            raise
        finally:
            self._ended[position].set()

    def in_order(self, outputs: Iterator[Any]) -> Generator[Any]:
        """Pass on what comes of the calls in their order; of several that failed the first, whichever did so first."""
        if len(self._calls) < 2:
            yield from outputs
            return
        found: dict[Any, Any] = {}
        marked: list[tuple[Any, Any]] = []
        try:
            for one in outputs:
                if isinstance(one, agents.ToolOutput):
                    found[one.id] = one
                    continue
                yield one
                if isinstance(one, memory.ToolCall):
                    marked.append((one, one.arguments))
                    one.arguments = _marked(one.arguments, len(marked) - 1)
        except Exception as exc:
            first = self._first_error(exc)
            if first is exc:
                raise
            raise first from first.__cause__
        finally:
            for call, arguments in marked:
                call.arguments = arguments
        yield from (found[call.id] for call in self._calls if call.id in found)

    def wait_for_like(self, position: int) -> None:
        """Wait for the earlier calls of the same name."""
        name = self._calls[position].function.name
        self._wait_for(position, [earlier for earlier in range(position) if self._calls[earlier].function.name == name])

    def _take(self, name: str, arguments: Any) -> int | None:
        with self._guard:
            for position, call in enumerate(self._open):
                if call is not None and call.function.name == name and _is_of(arguments, position, call.function.arguments):
                    self._open[position] = None
                    return position
        return None

    def _of_one_team(self, position: int) -> list[int]:
        """Return the earlier calls of a managed agent that would run an agent which this one may run."""
        teams = [_team(self._managed.get(call.function.name)) for call in self._calls[: position + 1]]
        return [earlier for earlier in range(position) if not teams[earlier].isdisjoint(teams[position])]

    def _wait_for(self, position: int, earlier: list[int]) -> None:
        for one in earlier:
            assert one < position
            self._ended[one].wait()

    def _first_error(self, error: Exception) -> BaseException:
        """Return what is told of several failures: what no model may react to, else that of the first call."""
        in_order = [self._errors[position] for position in sorted(self._errors)]
        return next((one for one in in_order if not isinstance(one, Exception)), in_order[0] if in_order else error)


def _marked(arguments: Any, position: int) -> Any:
    """Return arguments that tell which call they are of, however they are shared; those of odd types as they are."""
    marked: Any = arguments
    if not arguments or type(arguments) is dict:
        marked = _Asked(arguments or {})
    elif type(arguments) is str:
        marked = _AskedText(arguments)
    if marked is not arguments:
        marked.position = position
    return marked


def _plain(arguments: Any) -> Any:
    """Return arguments as they were before they were marked."""
    if isinstance(arguments, _Asked):
        return dict(arguments)
    return str(arguments) if isinstance(arguments, _AskedText) else arguments


def _is_of(arguments: Any, position: int, said: Any) -> bool:
    """Tell whether arguments are those of the call at a position, which were said so."""
    if isinstance(arguments, (_Asked, _AskedText)):
        return arguments.position == position
    return said is arguments or (not said and not arguments)


@contextmanager
def _in(place: Scope | None, around: Calls) -> Generator[None]:
    tokens = _place.set(place), _around.set(around)
    try:
        yield
    finally:
        restore(_place, tokens[0])
        restore(_around, tokens[1])


def calls_around() -> Calls:
    """Return in which calls of which answers the program is, from the outermost."""
    return _around.get()


def place_of_call() -> Scope | None:
    """Return where the call under way lies, if it is one of several in an answer."""
    return _place.get()


def wait_for_like_calls() -> None:
    """A tool runs an agent: wait for the earlier calls of that tool in the answer, which may run the same one."""
    for answer, position in _around.get():
        answer.wait_for_like(position)


def _team(agent: Any) -> set[int]:
    """Return the identities of an agent and of all that it manages."""
    found: set[int] = set()
    pending = [agent] if isinstance(agent, agents.MultiStepAgent) else []
    while pending:
        one: Any = pending.pop()
        if id(one) not in found:
            found.add(id(one))
            pending += [member for member in one.managed_agents.values() if isinstance(member, agents.MultiStepAgent)]
    return found
