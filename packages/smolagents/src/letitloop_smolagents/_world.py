"""What the interpreter's objects are made of: the variables, functions and classes of code, and what opaque objects refer to."""

from __future__ import annotations

import ast
import gc
import sys
from collections import namedtuple
from dataclasses import dataclass, field
from types import CellType, CodeType, FrameType, FunctionType, GeneratorType, ModuleType, TracebackType
from typing import Any

from letitloop.codecs.ext import class_of
from letitloop_smolagents._framework import interpreter

__all__ = [
    "BASE",
    "CODE_MODULE",
    "NOT_KEPT",
    "PLAIN",
    "World",
    "cells_of",
    "code_class",
    "generated",
    "held_by",
    "is_record_class",
    "reachable",
    "source_of",
]

PLAIN = frozenset((type(None), bool, int, float, str, bytes, complex))
CODE_MODULE = "smolagents.local_python_executor"
"""The module that functions and classes made by code say they are of."""
NOT_KEPT = frozenset(("_print_outputs", "_operations_count", "__name__"))
"""What lies among the variables, and is the interpreter's own."""
BASE: frozenset[str] = frozenset(interpreter.BASE_BUILTIN_MODULES)
"""Modules that every agent may import, and that reach nothing outside."""


@dataclass
class World:
    """What the interpreter's functions refer to.

    Attributes:
        state: the variables.
        custom_tools: the functions that code defined.
        static_tools: tools, and the functions that code may call.
        authorized: the modules that code may import.
        imports: by name, what code imported from which module, under which name there.
    """

    state: dict[str, Any]
    custom_tools: dict[str, Any]
    static_tools: dict[str, Any]
    authorized: list[str]
    imports: dict[str, tuple[str, str]] = field(default_factory=dict[str, "tuple[str, str]"])

    def may_import(self, module: str) -> bool:
        """Tell whether code may import a module."""
        return bool(interpreter.check_import_authorized(module, self.authorized))

    def variables(self) -> dict[str, Any]:
        """Return all variables, by ``s:`` and ``t:`` names: those of the state, and functions that code defined."""
        found = {f"s:{name}": value for name, value in self.state.items() if name not in NOT_KEPT}
        found.update((f"t:{name}", value) for name, value in self.custom_tools.items())
        return found

    def put(self, key: str, value: Any) -> None:
        """Set a variable."""
        (self.state if key.startswith("s:") else self.custom_tools)[key[2:]] = value

    def drop(self, key: str) -> None:
        """Remove a variable."""
        (self.state if key.startswith("s:") else self.custom_tools).pop(key[2:], None)


def source_of(value: Any) -> ast.AST | None:
    """Return the syntax tree of a function or lambda that the interpreter made; None of anything else."""
    if class_of(value) is not FunctionType or value.__module__ != CODE_MODULE:
        return None
    if hasattr(value, "__ast__"):
        return value.__ast__  # type: ignore[no-any-return]  # the interpreter's own attribute
    return cells_of(value).get("lambda_expression") if value.__code__.co_name == "lambda_func" else None


def code_class(cls: Any) -> bool:
    """Tell whether a class was defined by the agent's code."""
    return isinstance(cls, type) and cls.__module__ == CODE_MODULE and getattr(interpreter, cls.__name__, None) is not cls


def cells_of(function: Any) -> dict[str, Any]:
    """Return what a function was made with, by name."""
    return dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in function.__closure__ or ()), strict=True))


def is_record_class(cls: Any) -> bool:
    """Tell whether a class is what the code's ``namedtuple(…)`` returned, and nothing was added to it."""
    if not code_class(cls) or cls.__bases__ != (tuple,):
        return False
    new: Any = cls.__new__
    made = class_of(new) is FunctionType and new.__globals__.get("__name__") == f"namedtuple_{cls.__name__}"
    return made and len(cls.__dict__) == len(_A_RECORD_CLASS.__dict__) - 1 + len(cls._fields)


_A_RECORD_CLASS: Any = namedtuple("_A_RECORD_CLASS", "field")  # noqa: PYI024  # pyright: ignore[reportUntypedNamedTuple]  # to count what each has
_NOT_FOLLOWED = (ModuleType, FrameType, TracebackType, CodeType, CellType, ast.AST)
_BOUND = 20_000


def reachable(value: Any, world: World) -> set[int] | None:
    """Return the identities of the objects that something opaque refers to; None if there are too many to tell.

    Variables that code looks up by name when it runs are no part of it.
    """
    found: set[int] = set()
    given = {id(one) for one in world.static_tools.values()}
    pending = [value]
    while pending:
        one: Any = pending.pop()
        cls: Any = class_of(one)
        if cls in PLAIN or id(one) in found or id(one) in given or isinstance(one, _NOT_FOLLOWED):
            continue
        if cls is dict and "_print_outputs" in one:
            continue  # a copy of the variables
        if isinstance(one, type) and not code_class(one):
            continue
        found.add(id(one))
        if len(found) > _BOUND:
            return None
        pending += _inside(one, cls, world)
    return found


def _inside(value: Any, cls: Any, world: World) -> list[Any]:
    if source_of(value) is not None:
        state = cells_of(value)["state"]
        return [*value.__dict__.values(), *(() if state is world.state else state.values())]
    if cls is FunctionType:
        return [] if value.__module__ == CODE_MODULE else [*_kept_by(value), *(value.__defaults__ or ())]
    if isinstance(value, BaseException):
        return [value.args, value.__dict__, value.__cause__, value.__context__]
    array = getattr(sys.modules.get("numpy"), "ndarray", None)
    if array is not None and isinstance(value, array):  # the garbage collector knows nothing of what is in it
        return [value.base, *(value.ravel().tolist() if value.dtype.hasobject and value.dtype.names is None else ())]
    if cls is not GeneratorType:
        return list(gc.get_referents(value))
    expression, state = generated(value)
    return [*held_by(value), *(() if expression is None or state is world.state else state.values())]


def _kept_by(function: Any) -> list[Any]:
    found: list[Any] = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # nothing is in it yet
            continue
    return found


def generated(generator: Any) -> tuple[Any, dict[str, Any]]:
    """Return the expression and the variables of a generator that the interpreter made; None and nothing of another one."""
    kept: dict[str, Any] = {} if generator.gi_frame is None else generator.gi_frame.f_locals
    return (kept["genexp"], kept["state"]) if "genexp" in kept and "state" in kept else (None, {})


def held_by(generator: Any) -> list[Any]:
    """Return what a generator goes over at this moment; not the variables that its code may name."""
    if generator.gi_frame is None:
        return []
    kept = generator.gi_frame.f_locals
    around = {id(kept), *(id(kept[name]) for name in ("static_tools", "custom_tools", "authorized_imports") if name in kept)}
    return [one for one in gc.get_referents(generator) if id(one) not in around and not isinstance(one, CellType)]
