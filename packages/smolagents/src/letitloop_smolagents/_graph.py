"""Variables of the local Python executor as data, and back: one graph for all that share objects, so that aliases stay aliases.

A value is itself if it is plain (``None``, numbers, texts), else ``[n]``: the n-th node of its graph. A node is a list whose first
item says what it is. Functions, lambdas and classes that the agent's code defined are kept as the interpreter's own source and made
again by the interpreter, in the same surroundings; modules and what was imported from them are named, and imported again only if
the agent is authorised to import them. What is none of this is *opaque*: code that made it has to be executed again.
"""

from __future__ import annotations

import ast
import builtins
import cmath
import hashlib
import sys
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from importlib import import_module
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from letitloop.codecs import default_codecs
from letitloop.codecs.ext import class_of
from letitloop.errors import CodecError
from letitloop_smolagents import _tables
from letitloop_smolagents._framework import Image, interpreter, types
from letitloop_smolagents._values import freeze_image, thaw_image
from letitloop_smolagents._world import (
    CODE_MODULE,
    NOT_KEPT,
    PLAIN,
    World,
    cells_of,
    code_class,
    is_record_class,
    reachable,
    source_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["Freezer", "Thawer"]

_NUMBERS = frozenset((float, complex))
_WITH_NAN = ("math", "cmath", "numpy")
_CLASS_OWN = frozenset(("__dict__", "__weakref__", "__module__"))
_FUNCTION_OWN = frozenset(("__ast__", "__source__"))
_BUILTINS: dict[str, Any] = {
    **{name: one for name, one in vars(builtins).items() if isinstance(one, type)},
    **{f"tool {name}": one for name, one in interpreter.BASE_PYTHON_TOOLS.items() if name != "print"},
}
_BUILTIN_NAMES: dict[int, str] = {id(one): name for name, one in reversed(list(_BUILTINS.items()))}


class Freezer:
    """Makes one graph.

    Attributes:
        nodes: the graph.
        shared: the identities of the objects in it that can be changed, or that are told apart by identity.
        opaque: whether something in it could not be recorded.
        opaques: the identities of what could not.
        boundless: something in it may share objects with any variable.
    """

    def __init__(self, world: World) -> None:
        self.nodes: list[Any] = []
        self.shared: set[int] = set()
        self.opaques: set[int] = set()
        self.opaque = self.boundless = False
        self._world = world
        self._seen: dict[int, int] = {}
        self._open: set[int] = set()
        self._roots: dict[int, int] = {}
        self._held: list[Any] = []

    def digest(self, ref: Any) -> bytes:
        """Return 12 bytes that tell this graph from another one."""
        return hashlib.sha256(default_codecs.encode([self.nodes, ref])).digest()[:12]  # processors have it built in

    def ref(self, value: Any) -> Any:
        """Add a value to the graph, and return what stands for it."""
        cls = class_of(value)
        if cls in PLAIN and not (cls in _NUMBERS and cmath.isnan(value)):  # code may ask whether two are one NaN
            return value
        known = self._seen.get(id(value))
        if known is not None:
            if known in self._open:
                self._opaque(value)  # a tuple that contains itself
            return [known]
        index = len(self.nodes)
        self._seen[id(value)] = index
        self._held.append(value)
        self.nodes.append(None)
        self._open.add(index) if class_of(value) in (tuple, frozenset, MethodType) or is_record_class(class_of(value)) else None
        self.nodes[index] = self._node(value)
        self._open.discard(index)
        return [index]

    def _node(self, value: Any) -> list[Any]:
        cls: Any = class_of(value)
        make: Callable[[Freezer, Any], list[Any]] | None = _CONTAINERS.get(cls)
        if make is not None:
            return make(self, value)
        named = self._named(value)
        if named is not None:
            return named
        if cls is FunctionType and source_of(value) is not None:
            return self._function(value)
        if cls is MethodType and source_of(value.__func__) is not None:
            return self._method("method", value, value.__func__, value.__self__)
        if cls is BuiltinFunctionType and class_of(value.__self__) in _CONTAINERS:
            return self._method("bound", value, value.__name__, value.__self__)
        if code_class(value):
            return self._class(value)
        if code_class(cls):
            return self._instance(value)
        return self._leaf(value)

    # --- containers ---

    def _mutable(self, value: Any) -> None:
        self.shared.add(id(value))

    def freeze_list(self, value: Any) -> list[Any]:
        """Return the node of a list."""
        self._mutable(value)
        return ["list", [self.ref(one) for one in value]]

    def freeze_tuple(self, value: Any) -> list[Any]:
        """Return the node of a tuple."""
        if value:  # code may ask whether two names are one tuple; the empty one always is
            self._mutable(value)
        return ["tuple", [self.ref(one) for one in value]]

    def freeze_dict(self, value: Any) -> list[Any]:
        """Return the node of a dict."""
        self._mutable(value)
        return ["dict", self._items(value.items())]

    def freeze_set(self, value: Any) -> list[Any]:
        """Return the node of a set or frozenset; its order is of no account."""
        if class_of(value) is set or value:
            self._mutable(value)
        in_order = sorted(value, key=lambda one: default_codecs.fingerprint((one,), {}))
        return [type(value).__name__, [self.ref(one) for one in in_order]]

    def freeze_special(self, value: Any) -> list[Any]:
        """Return the node of one of the standard library's containers."""
        self._mutable(value)
        kind = class_of(value).__name__
        if class_of(value) is deque:
            return [kind, value.maxlen, [self.ref(one) for one in value]]
        if class_of(value) is defaultdict:
            return [kind, self.ref(value.default_factory), self._items(value.items())]
        return [kind, self._items(value.items())]

    def _items(self, items: Iterable[tuple[Any, Any]]) -> list[Any]:
        return [[self.ref(key), self.ref(one)] for key, one in items]

    # --- what code defined ---

    def _function(self, value: Any) -> list[Any]:
        self._mutable(value)
        cells = cells_of(value)
        kind = "def" if hasattr(value, "__ast__") else "lambda"
        tree: Any = source_of(value)
        where: Any = None
        if cells["state"] is not self._world.state:  # it was made inside another function: it keeps what was there
            kept = {name: one for name, one in cells["state"].items() if name not in NOT_KEPT}
            self._held.append(kept)
            where = self._items(kept.items())
        own = self._items((name, one) for name, one in value.__dict__.items() if name not in _FUNCTION_OWN)
        return [kind, ast.unparse(tree), where, own]

    def _method(self, kind: str, value: Any, function: Any, owner: Any) -> list[Any]:
        self._mutable(value)
        return [kind, self.ref(function), self.ref(owner)]

    def _class(self, cls: Any) -> list[Any]:
        self._mutable(cls)
        if is_record_class(cls):
            return ["record class", cls.__name__, list(cls._fields), [self.ref(one) for one in cls._field_defaults.values()]]
        if class_of(cls) is not type:
            return self._opaque(cls)
        body = {name: one for name, one in cls.__dict__.items() if name not in _CLASS_OWN}
        return ["class", cls.__name__, [self.ref(base) for base in cls.__bases__], self._items(body.items())]

    def _instance(self, value: Any) -> list[Any]:
        cls = class_of(value)
        if is_record_class(cls):
            self._mutable(value)
            return ["record", self.ref(cls), [self.ref(one) for one in value]]
        if not all(code_class(base) or base is object for base in cls.__mro__) or not hasattr(value, "__dict__"):
            return self._opaque(value)
        self._mutable(value)
        return ["object", self.ref(cls), self._items(value.__dict__.items())]

    # --- what has a name ---

    def _named(self, value: Any) -> list[Any] | None:
        name = _BUILTIN_NAMES.get(id(value))
        if name is not None:
            return ["builtin", name]
        if isinstance(value, ModuleType):
            return ["module", value.__name__] if self._world.may_import(value.__name__) else self._opaque(value)
        if not callable(value):
            return None
        plain = getattr(value, "__wrapped__", value)
        for tool, one in self._world.static_tools.items():
            if one is value or one is plain:
                return ["tool", tool, one is not value]
        return self._imported(value)

    def _imported(self, value: Any) -> list[Any] | None:
        places = [*self._world.imports.values()]
        if isinstance(getattr(value, "__module__", None), str) and isinstance(getattr(value, "__qualname__", None), str):
            places.append((value.__module__, value.__qualname__))
        for module, name in places:
            if getattr(sys.modules.get(module), name, None) is value and self._world.may_import(module):
                return ["attr", module, name]
        return None

    # --- the rest ---

    def _leaf(self, value: Any) -> list[Any]:
        if class_of(value) in _NUMBERS:
            return self._nan(value)
        if class_of(value) is types.AgentText:
            return ["text", str.__str__(value)]
        if isinstance(value, Image.Image):
            self._mutable(value)
            return ["picture", freeze_image(value)]
        if class_of(value) is range:
            return ["range", value.start, value.stop, value.step]
        if class_of(value) is bytearray:
            self._mutable(value)
            return ["bytearray", bytes(value)]
        if _tables.is_table(value):
            self._mutable(value)
            table = _tables.freeze(value)
            return self._opaque(value) if table is None else ["table", table]
        return self._data(value)

    def _nan(self, value: Any) -> list[Any]:
        for module in _WITH_NAN:
            if getattr(sys.modules.get(module), "nan", None) is value:
                return ["nan of", module]
        self._mutable(value)
        return ["nan", value]

    def _data(self, value: Any) -> list[Any]:
        array = getattr(sys.modules.get("numpy"), "ndarray", None)
        if array is not None and class_of(value) is array and not self._whole(value, array):
            return self._opaque(value)
        try:
            encoded = default_codecs.encode(value)
        except (CodecError, RecursionError):
            return self._opaque(value)
        self._mutable(value)
        return ["value", encoded]

    def _whole(self, value: Any, array: Any) -> bool:
        """Tell whether no other array of this graph shares this one's memory."""
        root = value
        while class_of(root.base) is array:
            root = root.base
        self._held.append(root)
        self.shared.add(id(root))
        return self._roots.setdefault(id(root), id(value)) == id(value)

    def _opaque(self, value: Any) -> list[Any]:
        self._mutable(value)
        self.opaque = True
        self.give_up(value)
        return ["opaque", f"{class_of(value).__module__}:{class_of(value).__qualname__}", id(value)]

    def give_up(self, value: Any) -> None:
        """Note that a value cannot be recorded: whatever it shares objects with cannot be recorded without it."""
        self.opaque = True
        self.opaques.add(id(value))
        inside = reachable(value, self._world)
        self.boundless |= inside is None
        self.shared |= inside or set()


_CONTAINERS: dict[Any, Any] = {
    list: Freezer.freeze_list,
    tuple: Freezer.freeze_tuple,
    dict: Freezer.freeze_dict,
    set: Freezer.freeze_set,
    frozenset: Freezer.freeze_set,
    deque: Freezer.freeze_special,
    defaultdict: Freezer.freeze_special,
    OrderedDict: Freezer.freeze_special,
    Counter: Freezer.freeze_special,
}


class Thawer:
    """Makes the values of one graph again."""

    def __init__(self, world: World, nodes: list[Any]) -> None:
        self._world = world
        self._nodes = nodes
        self._made: dict[int, Any] = {}

    def value(self, ref: Any) -> Any:
        """Return the value that something in the graph stands for."""
        if class_of(ref) is not list:
            return ref
        index: int = ref[0]
        if index not in self._made:
            self._made[index] = self._make(index, self._nodes[index])
        return self._made[index]

    def _make(self, index: int, node: list[Any]) -> Any:
        kind, body = node[0], node[1:]
        if kind in ("list", "set", "dict", "OrderedDict", "Counter", "defaultdict", "deque"):
            return self._fill(index, kind, body)
        if kind in ("tuple", "frozenset"):
            return (tuple if kind == "tuple" else frozenset)(self.value(one) for one in body[0])
        if kind in ("def", "lambda"):
            return self._function(index, kind, *body)
        if kind == "class":
            return self._class(index, *body)
        if kind == "record":
            return self.value(body[0])._make(self.value(one) for one in body[1])
        if kind == "method":
            return MethodType(self.value(body[0]), self.value(body[1]))
        if kind == "object":
            made = object.__new__(self.value(body[0]))
            self._made[index] = made
            made.__dict__.update(self._pairs(body[1]))
            return made
        return self._named(kind, body)

    def _named(self, kind: str, body: list[Any]) -> Any:
        if kind == "builtin":
            return _BUILTINS[body[0]]
        if kind == "tool":
            tool = self._world.static_tools[body[0]]
            return interpreter.safer_func(tool, self._world.static_tools, self._world.authorized) if body[1] else tool
        if kind == "bound":
            owner = self.value(body[1])
            if class_of(owner) not in _CONTAINERS or body[0].startswith("_"):
                raise interpreter.InterpreterError(f"{body[0]} is no method of a container.")
            return getattr(owner, body[0])
        if kind == "record class":
            return namedtuple(body[0], body[1], rename=True, defaults=[self.value(one) for one in body[2]], module=CODE_MODULE)  # noqa: PYI024  # pyright: ignore[reportUntypedNamedTuple, reportUnknownVariableType]  # of names on record
        if kind in ("module", "attr"):
            if not self._world.may_import(body[0]):
                raise interpreter.InterpreterError(f"Import of {body[0]} is not allowed, and was when this was recorded.")
            module = import_module(body[0])
            return interpreter.get_safe_module(module, self._world.authorized) if kind == "module" else getattr(module, body[1])
        return _LEAVES[kind](*body)

    def _fill(self, index: int, kind: str, body: list[Any]) -> Any:
        """Make a container and fill it, in this order: it may contain itself."""
        made: Any
        if kind == "list":
            made = self._made[index] = []
            made.extend(self.value(one) for one in body[0])
        elif kind == "set":
            made = self._made[index] = set[Any]()
            made.update(self.value(one) for one in body[0])
        elif kind == "deque":
            made = self._made[index] = deque[Any](maxlen=body[0])
            made.extend(self.value(one) for one in body[1])
        else:
            factory = self.value(body[0]) if kind == "defaultdict" else None
            kinds: dict[str, Any] = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}
            made = self._made[index] = defaultdict[Any, Any](factory) if kind == "defaultdict" else kinds[kind]()
            for key, one in body[-1]:
                made[self.value(key)] = self.value(one)
        return made

    def _pairs(self, items: Iterable[Any]) -> dict[Any, Any]:
        return {self.value(key): self.value(one) for key, one in items}

    def _function(self, index: int, kind: str, source: str, where: list[Any] | None, own: list[Any]) -> Any:
        world = self._world
        state = world.state
        if where is not None:
            state = {name: world.state[name] for name in NOT_KEPT if name in world.state}
        surroundings = (state, world.static_tools, world.custom_tools, world.authorized)
        tree: Any = ast.parse(source)
        if kind == "def":
            made = interpreter.create_function(tree.body[0], *surroundings)
        else:
            made = interpreter.evaluate_lambda(tree.body[0].value, *surroundings)
        self._made[index] = made  # what it keeps may refer to it
        if where is not None:
            state.update(self._pairs(where))
        made.__dict__.update(self._pairs(own))
        return made

    def _class(self, index: int, name: str, bases: list[Any], body: list[Any]) -> Any:
        made: Any = type(name, tuple(self.value(base) for base in bases), {"__module__": CODE_MODULE})
        self._made[index] = made  # methods and attributes may refer to it
        for key, one in body:
            setattr(made, self.value(key), self.value(one))
        return made


_LEAVES: Mapping[str, Any] = {
    "nan": lambda value: value,
    "nan of": lambda module: import_module(_WITH_NAN[_WITH_NAN.index(module)]).nan,
    "text": types.AgentText,
    "picture": thaw_image,
    "range": range,
    "bytearray": bytearray,
    "table": _tables.thaw,
    "value": default_codecs.decode,
}
