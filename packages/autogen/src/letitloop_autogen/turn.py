"""One turn of an agent, and which of the tool calls that its model asks for a call is."""

from __future__ import annotations

import json
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autogen_core import FunctionCall
    from autogen_core.models import CreateResult

    from letitloop.runs.scope import Scope
    from letitloop_autogen.driving import Drive

__all__ = ["Turn"]


@dataclass
class _Answer:
    """What a model answered.

    Attributes:
        turn: the turn that it was asked in.
        scope: the scope that it was asked in.
        number: its number there, the same in each life.
        calls: the tool calls that it asks for and that have not been made, by their position in it.
    """

    turn: Turn
    scope: Scope
    number: str
    calls: list[tuple[int, FunctionCall]]

    def age(self) -> tuple[int, ...]:
        """Return what puts answers in the order of their numbers."""
        life, _, ordinal = self.number.rpartition("-")
        return int(life or 0), int(ordinal)

    def place(self, scope: Scope, which: str) -> str:
        """Return the place of a call in a scope."""
        number = self.number
        if self.scope.prefix != scope.prefix:  # asked in a branch, and called outside it
            number = self.scope.prefix.removeprefix(scope.prefix).decode() + number
        return number + which


@dataclass
class Turn:
    """One turn of an agent.

    Attributes:
        drive: the run it belongs to.
        scope: its scope.
        models: how many model calls it has made.
    """

    drive: Drive
    scope: Scope
    models: int = 0
    _answers: list[_Answer] = field(default_factory=list[_Answer])  # those with calls that have not been made
    _strangers: dict[tuple[bytes, str, str], int] = field(default_factory=dict[tuple[bytes, str, str], int])

    def answered(self, result: CreateResult, scope: Scope, number: str | None) -> None:
        """Note the tool calls that the model asks for, by their position in its answer.

        Args:
            result: the answer.
            scope: where it was asked.
            number: its number, which is on record with it; None in a log of an older letitloop.
        """
        self.models += 1
        calls = [] if isinstance(result.content, str) else list(enumerate(result.content))
        answer = _Answer(self, scope, number or str(self.models), calls)
        _latest.set(answer)
        if calls:
            self._answers.append(answer)

    def place_of(self, scope: Scope, name: str, arguments: Mapping[str, Any], call_id: str | None) -> str:
        """Return which of the calls asked for this one is; the id may be empty, or the same for two of them.

        An agent of the user's may have branches, each of which asks the model and calls what that asks for: the answer that this
        very branch got comes first.
        """
        latest = _latest.get()
        mine = latest if latest is not None and latest.turn is self else None
        others = sorted((one for one in self._answers if one is not mine), key=_Answer.age, reverse=True)
        for answer in ([mine] if mine is not None else []) + others:
            for index, (position, call) in enumerate(answer.calls):
                if call.name == name and call.id == (call_id or "") and _parsed(call.arguments) == arguments:
                    del answer.calls[index]
                    if not answer.calls:
                        self._answers.remove(answer)
                    return answer.place(scope, f".{position}")
        after = "0" if mine is None else mine.place(scope, "")
        place = scope.prefix, name, after
        self._strangers[place] = number = self._strangers.get(place, 0) + 1  # a custom agent's own call
        return f"{after}+{number}"


_latest: ContextVar[_Answer | None] = ContextVar("letitloop_autogen_answer", default=None)
"""The answer that the current branch of a turn got last."""


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text  # AutoGen answers such a call itself
