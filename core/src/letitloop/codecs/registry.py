"""Which classes were registered, under which names."""

from __future__ import annotations

from letitloop.codecs import arrays, classes, values
from letitloop.codecs.ext import Refused
from letitloop.errors import InvalidArgument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from letitloop.codecs.classes import Spec

_NATIVE = frozenset((str, int, float, bool, bytes, list, dict, type(None), bytearray))


class Registry:
    """Registered classes, by class and by every name that a record may hold.

    Args:
        parent: where to look for what is not registered here.
    """

    __slots__ = ("_by_class", "_by_tag", "_parent")

    def __init__(self, parent: Registry | None = None) -> None:
        self._by_class: dict[type, Spec] = {}
        self._by_tag: dict[str, Spec] = {}
        self._parent = parent

    def by_class(self, cls: type) -> Spec | None:
        """Find what was registered for a class."""
        found = self._by_class.get(cls)
        return self._parent.by_class(cls) if found is None and self._parent is not None else found

    def by_tag(self, tag: str) -> Spec | None:
        """Find what was registered under a name."""
        found = self._by_tag.get(tag)
        return self._parent.by_tag(tag) if found is None and self._parent is not None else found

    def register(
        self,
        cls: type,
        encode: Callable[[Any], Any] | None,
        decode: Callable[[Any], Any] | None,
        name: str | None,
        version: int,
        migrate: Callable[[Any, int], Any] | None,
    ) -> None:
        """Register a class; a later call for the same class decides what is written, earlier names are still read.

        Raises:
            InvalidArgument: the arguments cannot work, or the name belongs to another class.
        """
        spec = _make(cls, encode, decode)
        if type(version) is not int or version < 1:
            raise InvalidArgument(f"register({cls.__qualname__}): version is {version!r}; give a whole number from 1 on")
        if name is not None:
            if type(name) is not str or not name:
                raise InvalidArgument(f"register({cls.__qualname__}): name is {name!r}; give a non-empty str")
            spec.tag = name
        other = self._by_tag.get(spec.tag)
        if other is not None and (other.cls.__module__, other.cls.__qualname__) != (cls.__module__, cls.__qualname__):
            raise InvalidArgument(
                f"register({cls.__qualname__}): the name {spec.tag!r} belongs to "
                f"{other.cls.__module__}.{other.cls.__qualname__}; records could not tell the two apart. Give another name."
            )
        spec.version, spec.migrate = version, migrate
        self._by_tag[spec.tag] = self._by_class[cls] = spec


def _make(cls: Any, encode: Callable[[Any], Any] | None, decode: Callable[[Any], Any] | None) -> Spec:
    if not isinstance(cls, type):
        raise InvalidArgument(f"register({cls!r}): give a class")
    if cls in _NATIVE or values.exploder(cls) or arrays.exploder(cls):
        raise InvalidArgument(f"register({cls.__qualname__}): its values are recorded exactly as they are; register a subclass")
    if (encode is None) is not (decode is None):
        raise InvalidArgument(f"register({cls.__qualname__}): encode= and decode= belong together; give both or neither")
    if encode is not None:
        spec = classes.Spec(cls, classes.REGISTERED)
        spec.encode, spec.decode = encode, decode
        return spec
    try:
        described = classes.describe(cls)
    except Refused as error:
        raise InvalidArgument(f"register({cls.__qualname__}): {error.reason}") from error
    if described is None:
        raise InvalidArgument(
            f"register({cls.__qualname__}): it is no dataclass, attrs class, pydantic model, named tuple or enum, so what it "
            "is made of is not known; give encode= (an instance to a plain value) and decode= (the way back)"
        )
    return described
