"""What a condition or a function of the user's keeps from call to call: a call on record is not made again in later lives.

Its attributes, those of the conditions inside it, and the variables of its functions are looked at before and after each call. What
has changed is recorded with the answer, and whoever is answered from the log changes it again.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from autogen_agentchat.base import ChatAgent, Team, TerminationCondition
from autogen_core.code_executor import CodeExecutor
from autogen_core.memory import Memory
from autogen_core.models import ChatCompletionClient
from autogen_core.tools import Workbench

from letitloop_autogen.parts import attributes, is_users_own

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

    from letitloop.codecs import Codecs
    from letitloop.runs.scope import Scope
    from letitloop_autogen.driving import Drive

__all__ = ["Keeping", "Said"]

_MOST = 200
"""How many objects are looked at."""
_LARGE = 10_000
"""How many items a variable of a function may have that is what the function keeps: more are data that it looks at."""
_CODE = (type, ModuleType, FunctionType, MethodType, BuiltinFunctionType)
_OF_OTHERS = (*_CODE, ChatAgent, Team, ChatCompletionClient, Workbench, CodeExecutor, Memory)
"""In which nothing is kept that belongs to whoever holds it."""
_PLAIN = (str, int, float, bool, bytes, type(None))


@dataclass(frozen=True)
class Said:
    """What is recorded of a call that has changed what is kept.

    Attributes:
        answer: what it returned.
        kept: by place and name, how that changed.
    """

    answer: Any
    kept: dict[str, dict[str, Any]]


class _Mark(NamedTuple):
    """How a value was: its bytes, or as much as can be seen of what cannot be recorded."""

    data: bytes | None
    seen: Any
    length: int


class _Place(NamedTuple):
    values: Callable[[], dict[str, Any]]
    put: Callable[[str, Any], None]
    own: bool  # made anew in each life, with what has it


class Keeping:
    """What one condition or function keeps.

    Args:
        root: the condition or the function.
        tell: warns of something: its kind, and what it is.
    """

    def __init__(self, root: Any, tell: Callable[[str, str], None]) -> None:
        self._root = root
        self._tell = tell

    async def leaf(
        self, drive: Drive, scope: Scope, name: str, asked: Mapping[str, object], fn: Callable[[], Awaitable[Any]]
    ) -> Any:
        """Do a call of a team's manager once, as :meth:`Drive.leaf` does; what is kept is the same in each life after it."""
        codecs, done = scope.run.codecs, False

        async def do() -> Any:
            nonlocal done
            done, before = True, self._look(codecs)
            answer = await fn()
            kept = self._changes(before, codecs)
            return Said(answer, kept) if kept else answer

        answer = await drive.leaf(scope, name, asked, do, by_manager=True)
        if not isinstance(answer, Said):
            return answer
        if not done:
            self._again(answer.kept)
        return answer.answer

    def _look(self, codecs: Codecs) -> dict[str, dict[str, _Mark]]:
        """Return what it keeps now."""
        return {
            path: {name: _mark(value, codecs, place) for name, value in place.values().items()}
            for path, place in _places(self._root).items()
        }

    def _changes(self, before: dict[str, dict[str, _Mark]], codecs: Codecs) -> dict[str, dict[str, Any]]:
        """Return what has changed since; what cannot be recorded of it is told."""
        found: dict[str, dict[str, Any]] = {}
        for path, place in _places(self._root).items():
            if path not in before:
                continue  # what holds it is new as well
            values, was = place.values(), before[path]
            for name in [*values, *(was.keys() - values.keys())]:
                old = was.get(name)
                new = _mark(values[name], codecs, place) if name in values else None
                if old is not None and new is not None and old[:2] == new[:2]:
                    continue
                if new is None or new.data is None:
                    self._tell(
                        f"keeps {path} {name}",
                        f"keeps something in {name!r} ({path}) that cannot be recorded: after a crash it does not know that. Keep "
                        "it in an attribute, as plain data or in a dataclass that stands at the top of its module",
                    )
                    continue
                found.setdefault(path, {})[name] = _change(old, codecs.decode(new.data), codecs)
        return found

    def _again(self, kept: dict[str, dict[str, Any]]) -> None:
        """Change it as a recorded call had."""
        places = _places(self._root)
        for path, changes in kept.items():
            place = places.get(path)
            if place is None:
                continue  # the program has changed since
            for name, change in changes.items():
                if not _put(place, name, change) and place.own:
                    self._tell(
                        f"kept {path} {name}",
                        f"has something in {name!r} ({path}) that was not there before a call on record, so what that call added "
                        "was left out: it has to begin as in the recorded run",
                    )


def _mark(value: Any, codecs: Codecs, place: _Place) -> _Mark:
    length = len(value) if type(value) is list else 0  # pyright: ignore[reportUnknownArgumentType]
    if not place.own and isinstance(value, (list, tuple, set, frozenset, deque, dict)) and len(value) > _LARGE:  # pyright: ignore[reportUnknownArgumentType]
        return _Mark(None, _shape(value), length)
    try:
        return _Mark(codecs.encode(value), None, length)
    except Exception:  # no plain data, or a class that cannot be asked what it is
        return _Mark(None, _shape(value), length)


def _shape(value: Any) -> Any:
    """Return a mark of what can be seen of a value that cannot be recorded."""
    if isinstance(value, _OF_OTHERS):
        return id(value)
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return [id(value), *map(id, value)]  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]
    if isinstance(value, dict):
        return [id(value), *((key, id(one)) for key, one in value.items())]  # pyright: ignore[reportUnknownVariableType]
    if not is_users_own(value):
        return id(value)
    return [id(value), *((name, one if isinstance(one, _PLAIN) else id(one)) for name, one in attributes(value))]


def _change(old: _Mark | None, new: Any, codecs: Codecs) -> list[Any]:
    """Return how a value changed: a list that has grown is not told again from its beginning."""
    had = old.length if old is not None and isinstance(new, list) else 0
    if old is not None and 0 < had < len(new) and codecs.encode(new[:had]) == old.data:
        return ["+", had, new[had:]]
    return ["=", new]


def _put(place: _Place, name: str, change: list[Any]) -> bool:
    """Change a value, in place if others may hold it as well; return whether it was what it had been before."""
    kind, *rest = change
    now: Any = place.values().get(name)
    if kind == "+":
        length, tail = rest
        if type(now) is not list or len(now) != length:  # pyright: ignore[reportUnknownArgumentType]
            return False
        now.extend(tail)
        return True
    new = rest[0]
    if type(now) is not type(new):
        place.put(name, new)
    elif isinstance(now, list):
        now[:] = new
    elif type(now) in (dict, OrderedDict, Counter, set):
        now.clear()
        now.update(new)
    elif type(now) is deque and now.maxlen == new.maxlen:
        now.clear()
        now.extend(new)
    else:
        place.put(name, new)
    return True


# --- where something may be kept ---------------------------------------------------------------------------------------------


def _places(root: Any) -> dict[str, _Place]:
    """Return the places in which something may be kept, by their paths."""
    found: dict[str, _Place] = {}
    seen: dict[int, Any] = {}

    def walk(value: Any, path: str) -> None:
        if id(value) in seen or len(found) >= _MOST:
            return
        seen[id(value)] = value
        if isinstance(value, FunctionType):
            if is_users_own(value):
                found[path] = _Place(partial(_variables, value), partial(_put_variable, value), own=False)
                walk_all(_functions(value), path)
        elif isinstance(value, MethodType):
            walk(value.__func__, f"{path}()")
            holder(value.__self__, path)
        elif isinstance(value, partial):
            walk(value.func, path)  # pyright: ignore[reportUnknownMemberType]
            found[f"{path} of partial()"] = _Place(partial(_arguments, value), _put_nothing, own=True)  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(value, TerminationCondition) or (callable(value) and is_users_own(value)):
            holder(value, path)
            walk(type(value).__call__, f"{path}()")
        elif isinstance(value, (list, tuple)):
            walk_all(enumerate(value), path)  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(value, dict):
            walk_all(value.items(), path)  # pyright: ignore[reportUnknownArgumentType]

    def holder(value: Any, path: str) -> None:
        if isinstance(value, TerminationCondition) or (not isinstance(value, _OF_OTHERS) and is_users_own(value)):
            found[path] = _Place(lambda: dict(attributes(value)), partial(object.__setattr__, value), own=True)
            walk_all(attributes(value), path)

    def walk_all(values: Iterable[tuple[Any, Any]], path: str) -> None:
        for name, one in values:
            walk(one, f"{path}.{name}")

    walk(root, type(root).__name__ if isinstance(root, TerminationCondition) else getattr(root, "__name__", "function"))
    return found


def _variables(function: FunctionType) -> dict[str, Any]:
    """Return what a function has got hold of outside itself, except for functions, classes and modules."""
    return {name: one for name, one in _names(function).items() if not isinstance(one, _CODE)}


def _functions(function: FunctionType) -> Iterator[tuple[str, FunctionType]]:
    for name, one in _names(function).items():
        if isinstance(one, FunctionType):
            yield name, one


def _names(function: FunctionType) -> dict[str, Any]:
    code, around = function.__code__, function.__globals__
    found = {name: around[name] for name in code.co_names if name in around}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue  # empty yet
    return found


def _put_variable(function: FunctionType, name: str, value: Any) -> None:
    code = function.__code__
    if name in code.co_freevars:
        (function.__closure__ or ())[code.co_freevars.index(name)].cell_contents = value
    else:
        function.__globals__[name] = value


def _arguments(function: partial[Any]) -> dict[str, Any]:
    return {**{f"argument {number}": one for number, one in enumerate(function.args)}, **function.keywords}


def _put_nothing(name: str, value: Any) -> None:
    """An argument stays the object that it is; what it holds was changed in place."""
