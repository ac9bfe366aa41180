"""What a user's class is made of: dataclass, attrs, named tuple, pydantic, enum.

An instance is taken apart by its raw state (its ``__dict__`` and its slots), so that no property, ``__getattr__``, serializer or
``__reduce__`` of its class runs, and every attribute is recorded, field or not.
"""

from __future__ import annotations

import sys

from letitloop.codecs import ext
from letitloop.codecs.ext import Refused, class_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Final

DATACLASS: Final = "d"
ATTRS: Final = "a"
NAMED_TUPLE: Final = "t"
PYDANTIC: Final = "p"
REGISTERED: Final = "r"
ENUM: Final = "e"

_TUPLE: Any = tuple
_HEAP_TYPE = 1 << 9
_ATTRS_HASH = "_attrs_cached_hash"  # attrs keeps a hash here, which means nothing in another process


class Spec:
    """How the instances of one class are recorded.

    Attributes:
        cls: the class.
        kind: one of the letters above.
        tag: the name that stands in the record.
        names: its fields, in the order of the class.
        private: pydantic's private attributes.
        slots: the descriptors of its slots by attribute name.
        has_dict: whether its instances have a ``__dict__``.
        version: the version that was registered, or 1.
        encode: the registered function, which gives a plain value for an instance.
        decode: the registered function, which gives an instance for a plain value.
        migrate: the registered function, which brings old fields up to date.
    """

    __slots__ = (
        "cls", "decode", "encode", "has_dict", "kind", "migrate", "names", "nameset", "private", "slots", "tag", "version"
    )  # fmt: skip

    def __init__(self, cls: type, kind: str, names: tuple[str, ...] = (), private: tuple[str, ...] = ()) -> None:
        self.cls: Any = cls
        self.kind = kind
        self.tag = f"{cls.__module__}:{cls.__qualname__}"
        self.names = names
        self.nameset = frozenset(names)
        self.private = private
        self.slots = _slots(cls)
        self.has_dict = bool(cls.__dictoffset__)
        self.version = 1
        self.encode: Callable[[Any], Any] | None = None
        self.decode: Callable[[Any], Any] | None = None
        self.migrate: Callable[[dict[str, Any], int], dict[str, Any]] | None = None


_MEMBER = class_of(vars(Spec)["tag"])


def _slots(cls: type) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for base in cls.__mro__:
        for name, member in vars(base).items():
            if type(member) is _MEMBER and not name.startswith("__pydantic_"):
                found.setdefault(name, member)
    return found


def describe(cls: type) -> Spec | None:
    """Describe a class that is made of fields, or an enum; ``None`` for every other class.

    Raises:
        Refused: its instances hold state of a built-in type beside their fields.
    """
    enum = sys.modules.get("enum")
    if enum is not None and issubclass(cls, enum.Enum):
        return Spec(cls, ENUM)
    spec = _describe_fields(cls)
    if spec is not None:
        plain = tuple if spec.kind == NAMED_TUPLE else object
        for base in cls.__mro__:
            if base is not object and base is not plain and not base.__flags__ & _HEAP_TYPE:
                raise Refused(f"it has fields, and is a {base.__qualname__} as well; register it with encode= and decode=")
    return spec


def _describe_fields(cls: Any) -> Spec | None:
    if tuple in cls.__mro__:
        fields: Any = getattr(cls, "_fields", None)
        return Spec(cls, NAMED_TUPLE, tuple(fields)) if class_of(fields) is tuple else None
    pydantic = sys.modules.get("pydantic.main")
    if pydantic is not None and issubclass(cls, pydantic.BaseModel) and hasattr(cls, "__pydantic_fields_set__"):
        fields = getattr(cls, "__pydantic_fields__", None)
        return Spec(cls, PYDANTIC, tuple(cls.model_fields if fields is None else fields), tuple(cls.__private_attributes__))
    if hasattr(cls, "__attrs_attrs__"):
        return Spec(cls, ATTRS, tuple(attribute.name for attribute in cls.__attrs_attrs__))
    if hasattr(cls, "__dataclass_fields__") and "dataclasses" in sys.modules:
        return Spec(cls, DATACLASS, tuple(field.name for field in sys.modules["dataclasses"].fields(cls)))
    return None


# --- taking an instance apart ------------------------------------------------------------------------------------------------


def explode(spec: Spec, value: Any) -> tuple[int, list[Any]]:
    """Take an instance apart: the code and the structured body of its record.

    Raises:
        Refused: its state is not what its class makes.
    """
    kind = spec.kind
    if kind == DATACLASS and spec.has_dict and not spec.slots:
        fields = value.__dict__
        if fields.keys() == spec.nameset and spec.version == 1:
            return ext.OBJECT, [spec.tag, DATACLASS, fields]
    if kind == ENUM:
        return ext.ENUM, _enum(spec, value)
    meta: dict[str, Any] = {}
    if spec.version != 1:
        meta["v"] = spec.version
    if kind == REGISTERED:
        body: Any = spec.encode(value) if spec.encode is not None else None
    elif kind == NAMED_TUPLE:
        body = _named_tuple(spec, value)
    else:
        body = _fields(spec, value, meta)
    return ext.OBJECT, [spec.tag, kind, body, meta] if meta else [spec.tag, kind, body]


def _enum(spec: Spec, value: Any) -> list[Any]:
    name = value._name_
    if spec.cls._member_map_.get(name) is not value:
        if type(value._value_) is not int:
            raise Refused("it is no member of its enum")
        name = value._value_
    return [spec.tag, name] if spec.version == 1 else [spec.tag, name, spec.version]


def _named_tuple(spec: Spec, value: Any) -> dict[str, Any]:
    if len(value) != len(spec.names) or (spec.has_dict and value.__dict__):
        raise Refused("it holds more or less than its fields")
    return dict(zip(spec.names, _TUPLE.__iter__(value), strict=True))


def _raw_state(spec: Spec, value: Any) -> dict[str, Any]:
    state: dict[str, Any] = dict(value.__dict__) if spec.has_dict else {}
    for name, slot in spec.slots.items():
        try:
            state[name] = slot.__get__(value)
        except AttributeError:  # never assigned
            continue
    state.pop("__orig_class__", None)  # what typing notes on an instance of a generic class; no part of its value
    if _ATTRS_HASH in state:
        state[_ATTRS_HASH] = None
    return state


def _fields(spec: Spec, value: Any, meta: dict[str, Any]) -> dict[str, Any]:
    state = _raw_state(spec, value)
    fields = {name: state.pop(name) for name in spec.names if name in state}
    unset = [name for name in spec.names if name not in fields]
    if spec.kind == PYDANTIC:
        unset += _pydantic(spec, value, meta)
        state = {name: part for name, part in state.items() if not name.startswith("__pydantic_")}
    if unset:
        meta["u"] = unset
    if state:
        meta["x"] = state
    return fields


def _pydantic(spec: Spec, value: Any, meta: dict[str, Any]) -> list[str]:
    try:
        fields_set = value.__pydantic_fields_set__
        extra = value.__pydantic_extra__
        private = getattr(value, "__pydantic_private__", None)  # before pydantic 2.13, model_construct() may leave it out
    except AttributeError as error:
        raise Refused("it was never initialised") from error
    if fields_set != spec.nameset:
        meta["s"] = sorted(fields_set)
    if extra is not None:
        meta["e"] = dict(extra)
    if private is not None:
        meta["p"] = dict(private)
    return [name for name in spec.private if private is None or name not in private]


def stable_body(spec: Spec, body: list[Any]) -> list[Any]:
    """The part of a body that tells two inputs apart: without what a cache or the way of construction leaves behind."""
    if spec.kind == ENUM or len(body) == 3:
        return body
    meta = {name: part for name, part in body[3].items() if name not in "sv"}
    extras = {name: part for name, part in meta.pop("x", {}).items() if not _is_cache(spec.cls, name)}
    if extras:
        meta["x"] = extras
    return [*body[:3], meta] if meta else body[:3]


def _is_cache(cls: type, name: str) -> bool:
    if name == _ATTRS_HASH:
        return True
    return any(type(vars(base).get(name)).__name__ == "cached_property" for base in cls.__mro__)


# --- finding it again --------------------------------------------------------------------------------------------------------

_Module = class_of(sys)


def find(tag: str) -> type | None:
    """Find a class by its tag among the modules that are imported already; nothing is imported and no code is run."""
    module_name, _, qualname = tag.partition(":")
    module = sys.modules.get(module_name)
    if module is None or not issubclass(type(module), _Module):
        return None
    # `object.__getattribute__` passes by a module's own `__getattr__` and by lazy loaders: both would import
    scope: Any = object.__getattribute__(module, "__dict__")
    found: Any = None
    for part in qualname.split("."):
        found = scope.get(part)
        if not isinstance(found, type):
            return None
        scope = type.__getattribute__(found, "__dict__")
    return found if found.__module__ == module_name and found.__qualname__ == qualname else None


def check_findable(cls: type) -> None:
    """Refuse a class that a reader could not find again by its name.

    Raises:
        Refused: with the way out.
    """
    name = cls.__qualname__
    if "<locals>" in name:
        raise Refused(
            "its class is defined inside a function, where a reader cannot find it; move the class to module level, "
            f"or register it: letitloop.register({cls.__name__})"
        )
    if find(f"{cls.__module__}:{name}") is not cls:
        raise Refused(
            f"{cls.__module__} has no such class under the name {name}, so a reader cannot find it; "
            f"register it under a name of its own: letitloop.register({cls.__name__}, name=...)"
        )
