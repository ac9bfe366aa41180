"""Which call of a model's answer a thread carries out: native calls of one answer run side by side, and may be equal.

Equal calls are told apart by their positions in the answer, which are the same in every life of the program, and never by which
of them comes first.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import TYPE_CHECKING, Any

from crewai.utilities.agent_utils import extract_tool_call_info

from letitloop.runs.scope import restore
from letitloop_crewai.asking import digest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

__all__ = ["Answers"]


class Turn:
    """Equal calls in one answer.

    Attributes:
        size: how many there are.
        cached: whether CrewAI's cache had the result before any of them was carried out; None until one has looked.
    """

    def __init__(self) -> None:
        self.size = 0
        self.cached: bool | None = None
        self.guard = Lock()


class Answers:
    """The native calls in the answers that one attempt has got, each with its position in its answer."""

    def __init__(self) -> None:
        self._calls: dict[object, tuple[Any, int, Turn]] = {}

    def note(self, answer: Any) -> None:
        """Note an answer's calls, if it is made of calls."""
        if not isinstance(answer, list):
            return
        turns: dict[str, Turn] = {}
        for number, call in enumerate(answer, 1):  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
            info = extract_tool_call_info(call)
            if info is None:
                continue
            call_id, name, arguments = info
            turn = turns.setdefault(digest([name, _parsed(arguments)]), Turn())
            turn.size += 1
            for key in (id(call), id(arguments), call_id):  # pyright: ignore[reportUnknownArgumentType]
                self._calls[key] = (call, arguments), number, turn  # held, so that the ids stay theirs

    @contextmanager
    def carrying_out(self, call: Any = None, **parts: Any) -> Generator[None]:
        """Carry out a call of an answer inside the block.

        Args:
            call: the call, as it stands in the answer.
            parts: what it is made of, by the names of the older executor.
        """
        keys = (id(call), id(parts.get("func_args")), parts.get("call_id"))
        found = next((self._calls[key] for key in keys if key in self._calls), None)
        token = _current.set(None if found is None else (self, *found[1:]))
        try:
            yield
        finally:
            restore(_current, token)

    def position(self) -> str:
        """Return what tells the call that is being carried out from the others of its answer; the first needs nothing."""
        here = _current.get()
        return "" if here is None or here[0] is not self or here[1] == 1 else f" {here[1]}"

    def reading(self, read: Callable[[], Any]) -> Any:
        """Read CrewAI's cache of results: of several equal calls all find what was there before them, or none does.

        Which of them would find the result of another depends on time alone, and would not be the same in the next life.
        """
        here = _current.get()
        if here is None or here[0] is not self or here[2].size == 1:
            return read()
        turn = here[2]
        with turn.guard:
            found = read()
            if turn.cached is None:
                turn.cached = found is not None
        return found if turn.cached else None


def _parsed(arguments: Any) -> Any:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


_current: ContextVar[tuple[Answers, int, Turn] | None] = ContextVar("letitloop_crewai_position", default=None)
