"""Classes that the codec tests record: at module level, where a reader finds them again."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
from datetime import datetime
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

import attrs
import pydantic

T = TypeVar("T")


class Color(enum.Enum):
    RED = 1
    GREEN = 2
    CRIMSON = 1  # noqa: PIE796 - an alias


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Word(str, enum.Enum):
    X = "x"


if hasattr(enum, "StrEnum"):

    class Text(enum.StrEnum):
        X = "x"

else:
    Text = Word


class Access(enum.Flag):
    READ = 1
    WRITE = 2
    EXEC = 4


class Bits(enum.IntFlag):
    A = 1
    B = 2


class Loud(enum.Enum):
    """An enum whose hooks must never run on decode."""

    ONE = 1

    @classmethod
    def _missing_(cls, value):
        raise AssertionError("a hook ran")


PointN = collections.namedtuple("PointN", "a b")  # noqa: PYI024 - this form too


class PointT(NamedTuple):
    a: int
    b: list[int]


class Loose(PointN):
    """A named tuple with a __dict__."""


@dataclasses.dataclass
class DC:
    a: int
    b: Any


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: int
    b: Any


@dataclasses.dataclass(slots=True)
class Slots:
    a: int
    b: Any


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlots:
    a: int
    b: Any


@dataclasses.dataclass(slots=True)
class NoFields:
    pass


@dataclasses.dataclass
class Empty:
    pass


@dataclasses.dataclass
class Computed:
    a: int
    c: int = dataclasses.field(init=False)

    def __post_init__(self):
        self.c = 9


@dataclasses.dataclass
class Unset:
    a: int
    c: int = dataclasses.field(init=False)


@dataclasses.dataclass
class Child(DC):
    z: float = 0.0


@dataclasses.dataclass
class SlotParent:
    __slots__ = ("a",)
    a: int


@dataclasses.dataclass
class MixedChild(SlotParent):
    z: int


@dataclasses.dataclass
class Box(Generic[T]):
    v: T


@dataclasses.dataclass
class Cached:
    a: int

    @functools.cached_property
    def double(self):
        return self.a * 2


@dataclasses.dataclass
class Hostile:
    """Every hook fails: none of them may run, neither on encode nor on decode."""

    a: int

    def __post_init__(self):
        if self.a != -1:
            raise AssertionError("__post_init__ ran")

    def __reduce__(self):
        raise AssertionError("__reduce__ ran")

    def __getstate__(self):
        raise AssertionError("__getstate__ ran")

    def __setstate__(self, state):
        raise AssertionError("__setstate__ ran")

    def __setattr__(self, name, value):
        if value != -1:
            raise AssertionError("__setattr__ ran")
        object.__setattr__(self, name, value)


@dataclasses.dataclass
class ErrorLike(Exception):
    a: int


@dataclasses.dataclass
class Node:
    name: str
    next: Any = None


class Outer:
    @dataclasses.dataclass
    class Inner:
        a: int

    class Kind(enum.Enum):
        A = "a"


@attrs.define
class AT:
    a: int
    b: Any


@attrs.frozen
class ATFrozen:
    a: int
    _hidden: int = 3


@attrs.define(slots=False)
class ATDict:
    a: int


@attrs.frozen(cache_hash=True)
class ATHash:
    a: str


class PM(pydantic.BaseModel):
    a: int
    t: tuple[int, ...] = ()
    d: datetime | None = None
    _secret: str = pydantic.PrivateAttr(default="s")


class PX(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    a: int


class Dog(pydantic.BaseModel):
    k: Literal["dog"] = "dog"
    age: int


class Cat(pydantic.BaseModel):
    k: Literal["cat"] = "cat"


class PU(pydantic.BaseModel):
    pet: Annotated[Dog | Cat, pydantic.Field(discriminator="k")]


class PStrict(pydantic.BaseModel):
    a: int

    @pydantic.field_validator("a")
    @classmethod
    def refuse(cls, value: int) -> int:
        if value > 10:
            raise ValueError("too large")
        return value

    def model_post_init(self, context: Any, /) -> None:
        if self.a == 5:
            raise AssertionError("model_post_init ran")


class PG(pydantic.BaseModel, Generic[T]):
    v: T


PGInt = PG[int]


class PRoot(pydantic.RootModel[list[int]]):
    pass


class PRootPrivate(pydantic.RootModel[list[int]]):
    _note: str = pydantic.PrivateAttr(default="n")


class MyInt(int):
    pass


class MyStr(str):
    __slots__ = ()


class MyList(list):
    pass


class Plain:
    def __init__(self, x=0):
        self.x = x


def function():
    pass
