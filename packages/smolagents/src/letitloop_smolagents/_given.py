"""The objects that a tool is given: an answer from the log returns those very objects, and changes in them what the tool did."""

from __future__ import annotations

import functools
from itertools import chain
from typing import TYPE_CHECKING, Any

from letitloop.codecs.ext import class_of
from letitloop_smolagents._values import PLAIN, portable, restored

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Given", "answer"]

_CHANGED = "letitloop:changed"


class Given:
    """The objects in a call's arguments as they are before the call. Lists, tuples and dicts are looked through.

    Args:
        arguments: the arguments, by name.
    """

    def __init__(self, arguments: dict[str, Any]) -> None:
        self._paths: dict[int, list[Any]] = {}
        self._before: list[tuple[list[Any], Any, list[Any]]] = []
        pending: list[tuple[list[Any], Any]] = [([name], value) for name, value in arguments.items()]
        while pending:
            path, value = pending.pop()
            cls = class_of(value)
            if cls in PLAIN or id(value) in self._paths:
                continue
            self._paths[id(value)] = path
            if cls in _CONTENT:
                self._before.append((path, value, _CONTENT[cls](value)))
            items: Any = value.items() if cls is dict else enumerate(value) if cls is list or cls is tuple else ()
            pending += [([*path, key], one) for key, one in items if class_of(key) in (str, int)]

    def record(self, result: Any) -> Any:
        """Return what is recorded of the call's result, and of what the call changed."""
        value = portable(result, self._paths)
        changes: list[list[Any]] = []
        for path, one, before in self._before:
            now = _CONTENT[class_of(one)](one)
            if list(map(id, now)) != list(map(id, before)):
                changes.append([path, portable(now, self._paths)])
        return {_CHANGED: [value, changes]} if changes else value


def answer(recorded: Any, arguments: dict[str, Any]) -> Any:
    """Return the result of which :meth:`Given.record` gave this, for a call with these arguments; change them as it did."""
    if class_of(recorded) is not dict or recorded.keys() != {_CHANGED}:
        return restored(recorded, arguments)
    value, changes = recorded[_CHANGED]
    result = restored(value, arguments)
    # paths say where objects were before the call: all are followed before anything is changed
    made = [(functools.reduce(lambda one, step: one[step], path, arguments), restored(now, arguments)) for path, now in changes]
    for target, now in made:
        target.clear()
        _refill(target, now)
    return result


def _refill(target: Any, now: list[Any]) -> None:
    if class_of(target) is list:
        target.extend(now)
    else:
        target.update(now if class_of(target) is set else zip(now[::2], now[1::2], strict=True))


_CONTENT: dict[type, Callable[[Any], list[Any]]] = {
    list: list,
    set: list,
    dict: lambda value: list(chain.from_iterable(value.items())),
}
"""What is in an object that a tool may change."""
