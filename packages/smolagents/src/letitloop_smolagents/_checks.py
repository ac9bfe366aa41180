"""The seam of final answer checks: what a check said of an answer is recorded. The agent's list of them is its own."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from letitloop.errors import RecordedError
from letitloop.integration.leaves import leaf
from letitloop_smolagents._stop import NOT_SHOWN, Stop, as_it_was, raise_seen, seen
from letitloop_smolagents._tools import STOCK, stock_of
from letitloop_smolagents._values import identity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from letitloop_smolagents._binding import Binding

__all__ = ["recorded_checks"]


def recorded_checks(binding: Binding, stock: Callable[..., Any]) -> Callable[..., Any]:
    """Return what validates an agent's final answer by the checks that it has by then, each asked once of an answer.

    Args:
        binding: the agent's.
        stock: validates it.
    """

    @functools.wraps(stock)
    def validate(*args: Any, **kwargs: Any) -> Any:
        agent = binding.agent
        if binding.scope is None:
            return stock(*args, **kwargs)
        held = agent.final_answer_checks
        shown = agent.final_answer_checks = _Checks(binding, held)
        try:
            return stock(*args, **kwargs)
        finally:
            if agent.final_answer_checks is shown:  # else a check has given the agent others
                agent.final_answer_checks = held

    return validate


class _Checks:
    """The checks of an agent, as they are asked: in everything else it is the agent's list."""

    def __init__(self, binding: Binding, held: Any) -> None:
        self._binding = binding
        self._held = held

    def __iter__(self) -> Iterator[Callable[..., Any]]:
        return (_recorded(self._binding, stock_of(check)) for check in self._held)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_held"], name)

    def __len__(self) -> int:
        return len(self._held)


def _recorded(binding: Binding, check: Callable[..., Any]) -> Callable[..., Any]:
    name = f"check {getattr(check, '__name__', type(check).__name__)}"

    @functools.wraps(check)
    def checked(answer: Any, *args: Any, **kwargs: Any) -> Any:
        assert binding.scope is not None
        run = binding.scope.run
        raised: list[Exception] = []

        def work() -> Any:
            binding.goes_live(name)
            try:
                return bool(check(answer, *args, **kwargs))
            except Exception as exc:
                if isinstance(exc, NOT_SHOWN) or run.halted:
                    raise
                raised.append(exc)
                return seen(exc, binding.codecs)

        try:
            told = leaf(binding.scope, name, {"final_answer": identity(answer)}, work)
        except NOT_SHOWN as exc:
            raise Stop(exc) from exc
        except RecordedError as exc:
            raise as_it_was(exc) from None
        if raised:
            raise raised[0]
        raise_seen(told, binding.codecs, name)
        return told

    checked.__dict__.setdefault("__name__", name)
    setattr(checked, STOCK, check)
    return checked
