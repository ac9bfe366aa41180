"""What code of an agent can reach: everything that lies behind the names in it.

The walk starts at the names of a piece of code and follows what they stand for: what containers and instances hold, the bodies of
functions that code defined and what those were made with, classes with all their bases, the object of a bound method, what an
iterator goes over. What is not proven harmless on the way reaches outside.
"""

from __future__ import annotations

import ast
import difflib
import gc
import types
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from letitloop.codecs import default_codecs
from letitloop.codecs.ext import class_of
from letitloop.errors import CodecError
from letitloop_smolagents import _tables
from letitloop_smolagents._framework import Image, interpreter
from letitloop_smolagents._framework import types as agent_types
from letitloop_smolagents._world import (
    BASE,
    CODE_MODULE,
    PLAIN,
    cells_of,
    code_class,
    generated,
    held_by,
    is_record_class,
    source_of,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from letitloop_smolagents._world import World

__all__ = ["Reach", "Walk"]

_PURE = BASE | frozenset(
    "abc builtins collections_abc contextlib copy dataclasses decimal enum fractions functools heapq ipaddress numbers operator "
    "string thread threading types typing uuid weakref zoneinfo".split()
)
"""Modules whose functions and objects reach nothing outside by themselves, without the underscore of those written in C."""
_HARMLESS = frozenset(map(id, (*interpreter.BASE_PYTHON_TOOLS.values(), hash, id, repr, format, delattr, hex, bin, oct, ascii)))
_ITEMS = frozenset((list, tuple, set, frozenset, deque))
_PAIRS = frozenset((dict, OrderedDict, Counter, defaultdict))
_ACTING = frozenset(("__call__", "__enter__", "__exit__", "__getattr__", "__getattribute__"))
_KINDS_OF_DATA = ("pydantic", "pydantic_core", "attr", "attrs", "dataclasses", "enum", "smolagents")
_PARTS_OF_A_TOOL = frozenset(("name", "description", "inputs", "output_type", "output_schema", "forward", "setup"))
_NOT_FOLLOWED = (types.FrameType, types.TracebackType, types.CodeType, ast.AST)
_BUILTIN = (types.BuiltinFunctionType, types.MethodWrapperType)
_DESCRIPTORS = (types.WrapperDescriptorType, types.MethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType)


@dataclass
class Reach:
    """What a piece of code can reach.

    Attributes:
        names: every name in it, and in the functions and classes that it can reach.
        touched: the identities of the objects that it can reach.
        outside: what reaches outside other than by tools, for messages.
        imports: by name, what it imports from which module, under which name there.
        random: whether it can reach the module ``random``.
        tools: whether it can reach a tool or a managed agent.
    """

    names: set[str] = field(default_factory=set[str])
    touched: set[int] = field(default_factory=set[int])
    outside: set[str] = field(default_factory=set[str])
    imports: dict[str, tuple[str, str]] = field(default_factory=dict[str, "tuple[str, str]"])
    random: bool = False
    tools: bool = False


class Walk:
    """Finds what code can reach.

    Args:
        world: the variables it will be executed with.
        added: names of functions that were added to the executor.
        tools: the names of tools and managed agents.

    Attributes:
        reach: what was found.
    """

    def __init__(self, world: World, *, added: Collection[str], tools: Collection[str]) -> None:
        self.reach = Reach()
        self._world = world
        self._added = added
        self._tools = tools
        self._static = {id(one): name for name, one in world.static_tools.items()}
        self._held: dict[int, Any] = {}
        self._resolved: set[tuple[str, int]] = set()
        self._attributes: set[str] = set()
        self._any_attribute = False
        self._methods: dict[str, str] = {}
        self._pending: list[Any] = []

    def code(self, code: str) -> Reach:
        """Follow every name in a piece of code."""
        try:
            tree = ast.parse(code)
        except (SyntaxError, ValueError):
            return self.reach  # it will not be executed
        self._syntax(tree, self._world.state)
        return self._finish()

    def value(self, value: Any) -> Reach:
        """Follow a value that code is handed while it is executed."""
        self._pending.append(value)
        return self._finish()

    def _finish(self) -> Reach:
        while self._pending:
            value = self._pending.pop()
            if class_of(value) in PLAIN or id(value) in self._held or isinstance(value, _NOT_FOLLOWED):
                continue
            self._held[id(value)] = value
            self.reach.touched.add(id(value))
            self._follow(value, class_of(value))
        used = self._methods if self._any_attribute else self._attributes & self._methods.keys()
        self.reach.outside.update(self._methods[name] for name in used)
        return self.reach

    def _add(self, values: Iterable[Any]) -> None:
        self._pending.extend(one for one in values if class_of(one) not in PLAIN)

    # --- syntax --------------------------------------------------------------------------------------------------------------

    def _syntax(self, tree: ast.AST, state: dict[str, Any]) -> None:
        nodes = list(ast.walk(tree))
        bound = _bound(nodes)
        attributes, known = _attributes(nodes)
        self._attributes |= attributes
        self._any_attribute |= not known
        for node in nodes:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self._imports(node)
            elif isinstance(node, ast.Name) and (node.id, id(state)) not in self._resolved:
                self._resolved.add((node.id, id(state)))
                self.reach.names.add(node.id)
                self._name(node.id, state, bound)

    def _name(self, name: str, state: dict[str, Any], bound: set[str]) -> None:
        world = self._world
        places = (state, world.state, world.custom_tools, world.static_tools)
        found = [place[name] for place in places if name in place]
        if not found and name not in bound:  # the interpreter takes a variable of a similar name for it
            found = [state[other] for other in difflib.get_close_matches(name, list(state))]
        self._add(found)
        self.reach.random |= world.imports.get(name, ("", ""))[0] == "random"

    def _imports(self, node: ast.Import | ast.ImportFrom) -> None:
        reach = self.reach
        if isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
            reach.imports.update({alias.asname or alias.name: (modules[0], alias.name) for alias in node.names})
        else:
            modules = [alias.name for alias in node.names]
        for module in modules:
            self._module(module)

    def _module(self, name: str) -> None:
        self.reach.random |= _top(name) == "random"
        if name.partition(".")[0] not in BASE:
            self.reach.outside.add(name)

    # --- values --------------------------------------------------------------------------------------------------------------

    def _follow(self, value: Any, cls: Any) -> None:
        if cls in _ITEMS:
            self._add(value)
        elif cls is dict and "_print_outputs" in value:
            pass  # a generator's copy of the variables
        elif cls in _PAIRS:
            self._add(value.keys())
            self._add(value.values())
            self._add([value.default_factory] if cls is defaultdict else ())
        elif id(value) in self._static:
            self._given(value, self._static[id(value)])
        elif isinstance(value, types.ModuleType):
            self._module(value.__name__)
        elif isinstance(value, type):
            self._class(value)
        elif not self._callable(value, cls):
            self._object(value, cls)

    def _given(self, value: Any, name: str) -> None:
        """Judge a tool, a managed agent or a function that the executor offers."""
        if name in self._added:
            self.reach.outside.add(name)
        elif name in self._tools:
            self.reach.tools = True
            self._offer(name, _offered(value))

    def _offer(self, owner: str, methods: Iterable[str]) -> None:
        for name in methods:
            if name in _ACTING:
                self.reach.outside.add(f"{owner}.{name}")
            elif name not in _PARTS_OF_A_TOOL:
                self._methods[name] = f"{owner}.{name}"

    def _class(self, cls: Any) -> None:
        for base in cls.__mro__:
            if is_record_class(base):
                continue
            if code_class(base):
                self._add(one for name, one in base.__dict__.items() if name not in ("__dict__", "__weakref__"))
            elif not _pure(base):
                self.reach.outside.add(_label(base))
        if not _pure(class_of(cls)):
            self._pending.append(class_of(cls))

    def _callable(self, value: Any, cls: Any) -> bool:
        """Follow a function, a method or what makes one of a class's members; return whether it was one."""
        if source_of(value) is not None:
            self._syntax(_tree(value), cells_of(value)["state"])
            self._add(one for name, one in value.__dict__.items() if name != "__ast__")
        elif cls is types.FunctionType:
            self._function(value)
        elif cls is types.MethodType:
            self._add((value.__func__, value.__self__))
        elif isinstance(value, _BUILTIN):
            self._builtin(value)
        elif cls in (staticmethod, classmethod):
            self._add((value.__func__,))
        elif cls is property:
            self._add((value.fget, value.fset, value.fdel))
        elif isinstance(value, _DESCRIPTORS):
            self._add((value.__objclass__,))
        else:
            return False
        return True

    def _function(self, value: Any) -> None:
        inner = getattr(value, "__wrapped__", None)
        home = value.__globals__.get("__name__", "")
        if home == CODE_MODULE and value.__code__.co_name == "_check_return":
            self._pending.append(inner)  # as code names a tool
        elif id(value) not in _HARMLESS and home != CODE_MODULE and _top(home) not in _PURE:
            self.reach.outside.add(_label(value))

    def _builtin(self, value: Any) -> None:
        owner = value.__self__
        if owner is not None and not isinstance(owner, types.ModuleType):
            self._pending.append(owner)
        elif id(value) not in _HARMLESS and (_top(value.__module__) == "builtins" or _top(value.__module__) not in _PURE):
            self.reach.outside.add(_label(value))

    def _object(self, value: Any, cls: Any) -> None:
        if isinstance(value, BaseException):  # not its traceback: code cannot get at that
            self._add((cls, value.args, value.__dict__, value.__cause__, value.__context__))
        elif cls is types.GeneratorType:
            self._generator(value)
        elif code_class(cls):
            self._add((cls, *gc.get_referents(value)))
        elif _pure(cls):
            self._add(one for one in gc.get_referents(value) if one is not cls)
        elif cls is not agent_types.AgentText:
            self._foreign(value, cls)

    def _generator(self, value: Any) -> None:
        frame = value.gi_frame
        if frame is None:
            return
        expression, state = generated(value)
        if expression is None and _top(frame.f_globals.get("__name__")) not in _PURE:
            self.reach.outside.add(f"{frame.f_globals.get('__name__')}.{value.__qualname__}")
        elif expression is not None:
            self._syntax(expression, state)
        self._add(held_by(value))

    def _foreign(self, value: Any, cls: Any) -> None:
        """Judge an object of a class that is not the code's: data is harmless until the code uses a method of that class."""
        if not _is_data(value, cls):
            self.reach.outside.add(_label(cls))
            return
        self._offer(cls.__qualname__, _methods_of(cls))
        if not isinstance(value, Image.Image):
            self._add(one for one in gc.get_referents(value) if one is not cls)


def _tree(function: Any) -> ast.AST:
    tree = source_of(function)
    assert tree is not None
    return tree


def _bound(nodes: list[ast.AST]) -> set[str]:
    """Return the names that a piece of code makes itself."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.ExceptHandler)) and node.name:
            found.add(node.name)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name)
    return found


def _attributes(nodes: list[ast.AST]) -> tuple[set[str], bool]:
    """Return the attributes that a piece of code names, and whether these are all that it uses."""
    found: set[str] = set()
    spelled = 0
    named = 0
    for node in nodes:
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Name) and node.id in ("getattr", "setattr"):
            named += 1
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "setattr"):
            name = node.args[1] if len(node.args) > 1 else None
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                found.add(name.value)
                spelled += 1
    return found, spelled == named


def _offered(value: Any) -> list[str]:
    """Return what a tool or a managed agent has besides being called."""
    agent: Any = getattr(value, "__dict__", {}).get("_agent")
    if agent is not None:  # a managed agent, as code calls it
        its: dict[str, Any] = agent.__dict__
        return ["run", "save", *(name for name in its if not name.startswith("_") and name not in _PARTS_OF_A_TOOL)]
    own: dict[str, Any] = getattr(value, "__dict__", {})
    odd = [name for name, part in own.items() if class_of(part) not in PLAIN and not name.startswith("_")]
    return [*odd, *(name for name in _methods_of(class_of(value)) if name != "__call__")]


def _top(module: Any) -> str:
    return str(module or "").partition(".")[0].lstrip("_")


def _pure(cls: Any) -> bool:
    return _top(cls.__module__) in _PURE


def _label(value: Any) -> str:
    return f"{value.__module__}.{getattr(value, '__qualname__', value)}"


def _is_data(value: Any, cls: Any) -> bool:
    if isinstance(value, Image.Image):
        return True
    if _tables.is_table(value) or _top(cls.__module__) == "numpy":
        return False
    try:
        default_codecs.encode(value)
    except (CodecError, RecursionError):
        return False
    return True


def _methods_of(cls: Any) -> list[str]:
    """Return the names of what a class and its bases do, other than what every class of its kind does."""
    found: list[str] = []
    for base in cls.__mro__:
        if _pure(base) or base.__module__.partition(".")[0] in _KINDS_OF_DATA:
            continue
        for name, one in base.__dict__.items():
            plain = name in _ACTING or not (name.startswith("__") and name.endswith("__"))
            if plain and hasattr(one, "__get__") and not isinstance(one, (types.MemberDescriptorType, type)):
                found.append(name)
    return found
