"""The codecs: values to bytes and back, exactly; and fingerprints of arguments."""

from __future__ import annotations

import sys
from _weakref import ref

from letitloop.codecs import arrays, classes, ext, rebuild, values
from letitloop.codecs.engine import Packer, Unpacker
from letitloop.codecs.ext import Refused
from letitloop.codecs.fingerprint import Fingerprinter, stable
from letitloop.codecs.registry import Registry
from letitloop.errors import CodecError, DecodeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar, overload

    from letitloop.codecs.classes import Spec

    T = TypeVar("T")
    Exploder = Callable[[Any], tuple[int, Any]]


class Codecs:
    """Turns values into bytes and back, exactly, or refuses with the path of the culprit.

    What is exact: ``None``, ``bool``, ``int`` of any size, ``float``, ``complex``, ``str``, ``bytes``, ``bytearray``, ``list``,
    ``tuple``, ``dict``, ``set``, ``frozenset``, ``OrderedDict``, ``Counter``, ``deque``, ``datetime`` and its siblings with their
    zones, ``Decimal``, ``UUID``, paths, numpy arrays and scalars; dataclasses, attrs classes, pydantic models, named tuples and
    enums that stand at module level; and every registered class. A value may be nested 400 levels deep. Two references to one
    object come back as two objects.

    A ``Codecs()`` of one's own has its own registrations, and falls back to those of :data:`default_codecs`. All methods may be
    called from several threads.

    Example:
        >>> codecs = Codecs()
        >>> codecs.decode(codecs.encode({"when": (2024, 2, 29), "seen": {1, 2}}))
        {'when': (2024, 2, 29), 'seen': {1, 2}}
    """

    __slots__ = (
        "__weakref__", "_builders", "_children", "_fingerprinter", "_found", "_packer", "_registry", "_specs", "_table", "_unpacker"
    )  # fmt: skip

    def __init__(self) -> None:
        parent: Codecs | None = globals().get("default_codecs")
        self._registry: Registry = Registry(None if parent is None else parent._registry)
        self._children: list[ref[Codecs]] = []
        self._specs: dict[type, Spec] = {}
        self._found: dict[str, tuple[Spec, str, Any, dict[str, Any]]] = {}  # by tag, with where it was found
        self._table: dict[type, Exploder] = dict(values.BUILTIN)

        def build_object(body: Any) -> Any:
            return rebuild.build_object(body, self._spec_of)

        def build_enum(body: Any) -> Any:
            return rebuild.build_enum(body, self._spec_of)

        self._builders: dict[int, Callable[[Any], Any]] = {
            **values.BUILDERS,
            ext.OBJECT: build_object,
            ext.ENUM: build_enum,
            ext.NDARRAY: arrays.read_array,
            ext.NUMPY_SCALAR: arrays.read_scalar,
        }
        self._packer = Packer(self._table, self._resolve)
        self._unpacker = Unpacker(self._builders)
        self._fingerprinter = Fingerprinter(self._resolve_stable)
        if parent is not None:
            parent._children = [child for child in parent._children if child() is not None]
            parent._children.append(ref(self))

    # --- public ---

    def encode(self, value: object, *, path: str = "result") -> bytes:
        """Encode a value.

        Args:
            value: what to record.
            path: what an error calls the value.

        Returns:
            The bytes that :meth:`decode` turns into an equal value of the same types.

        Raises:
            UnencodableError: a part of the value cannot be recorded exactly; its path is named.

        Example:
            >>> Codecs().encode({"user": {"session": object()}})
            Traceback (most recent call last):
            letitloop.errors.UnencodableError: result['user']['session']: cannot record object exactly...
        """
        try:
            return self._packer.pack(value)
        except (Refused, CodecError, RecursionError) as error:
            return self._packer.recover(value, path, error)

    def decode(self, data: bytes | bytearray | memoryview) -> object:
        r"""Decode what :meth:`encode` gave, to a new value at every call.

        Nothing is imported and no code of a class is run, except the ``decode`` and ``migrate`` functions that were registered.

        Raises:
            DecodeError: the bytes are no recorded value.
            UnknownType: a recorded class is neither registered nor among the imported modules.
            SchemaChanged: a recorded class has other fields now.

        Example:
            >>> Codecs().decode(b"\x93\x01\x02\x03")
            [1, 2, 3]
        """
        return self._unpacker.unpack(data)

    def fingerprint(self, args: tuple[object, ...], kwargs: dict[str, object]) -> bytes:
        """Fingerprint the arguments of a call: the same in every process for the same values; it never raises.

        Args:
            args: the positional arguments.
            kwargs: the keyword arguments; a keyword's name is part of its fingerprint.

        Returns:
            16 bytes over all arguments, then 4 bytes an argument, the positional ones first, then the keywords sorted by name;
            ``b""`` if there are none.

        Example:
            >>> len(Codecs().fingerprint((1, "two"), {"three": 3.0}))
            28
        """
        return self._fingerprinter.fingerprint(args, kwargs)

    def tells(self, value: object) -> bool:
        """Say whether a fingerprint tells a value from another one of its type; clients, sessions and such count by type alone.

        Example:
            >>> Codecs().tells(3), Codecs().tells(object())
            (True, False)
        """
        try:
            self._resolve_stable(value.__class__)
        except Refused:
            return isinstance(value, _TOLD)
        return True

    if TYPE_CHECKING:

        @overload
        def register(
            self,
            cls: type[T],
            *,
            encode: Callable[[T], object] | None = None,
            decode: Callable[[Any], T] | None = None,
            name: str | None = None,
            version: int = 1,
            migrate: Callable[[dict[str, Any], int], dict[str, Any]] | None = None,
        ) -> type[T]: ...
        @overload
        def register(
            self,
            cls: None = None,
            *,
            encode: Callable[[Any], object] | None = None,
            decode: Callable[[Any], Any] | None = None,
            name: str | None = None,
            version: int = 1,
            migrate: Callable[[dict[str, Any], int], dict[str, Any]] | None = None,
        ) -> Callable[[type[T]], type[T]]: ...

    def register(
        self,
        cls: Any = None,
        *,
        encode: Callable[[Any], object] | None = None,
        decode: Callable[[Any], Any] | None = None,
        name: str | None = None,
        version: int = 1,
        migrate: Callable[[dict[str, Any], int], dict[str, Any]] | None = None,
    ) -> Any:
        """Register a class: how it is recorded, or under which name, or how its old records are brought up to date.

        Subclasses are not covered. Without ``cls`` it is a decorator.

        Args:
            cls: the class.
            encode: gives a value that can be recorded for an instance; for classes that are not made of fields.
            decode: gives an instance for that value. Without the two, the class must be a dataclass, attrs class, pydantic model,
                named tuple or enum.
            name: the name in the record, by default ``module:qualname``. After a move, register the class under its old name.
            version: raise it with every change of the fields.
            migrate: called as ``migrate(fields, version)`` with the recorded fields and version, where they differ from the
                class; returns the fields of now. For a class with ``decode``, ``fields`` is the recorded value; for an enum it
                is ``{"name": ...}``.

        Returns:
            The class.

        Raises:
            InvalidArgument: the arguments cannot work together.

        Example:
            >>> from fractions import Fraction
            >>> codecs = Codecs()
            >>> _ = codecs.register(Fraction, encode=str, decode=Fraction)
            >>> codecs.decode(codecs.encode([Fraction(1, 3)]))
            [Fraction(1, 3)]
            >>> from collections import namedtuple
            >>> Order = codecs.register(
            ...     namedtuple("Order", "key total"), name="shop.order", version=2, migrate=lambda old, version: {"total": 0, **old}
            ... )
        """
        if cls is None:

            def decorate(cls: type[T]) -> type[T]:
                return self.register(cls, encode=encode, decode=decode, name=name, version=version, migrate=migrate)

            return decorate
        self._registry.register(cls, encode, decode, name, version, migrate)
        self._forget()
        return cls

    # --- what the engine asks ---

    def _forget(self) -> None:
        """Forget what was found out about types before a registration changed it."""
        self._specs.clear()
        self._found.clear()
        for cls in [cls for cls in self._table if cls not in values.BUILTIN]:
            self._table.pop(cls, None)
        self._fingerprinter.table.clear()
        for child in self._children:
            codecs = child()
            if codecs is not None:
                codecs._forget()

    def _describe(self, cls: type) -> Spec | None:
        spec = self._registry.by_class(cls) or self._specs.get(cls)
        if spec is None:
            spec = classes.describe(cls)
            if spec is not None and "<locals>" not in cls.__qualname__:
                self._specs[cls] = spec
        return spec

    def _resolve(self, cls: type) -> Exploder:
        """Find the encoder of a type."""
        found = values.exploder(cls) or arrays.exploder(cls)
        if found is None:
            spec = self._describe(cls)
            if spec is None:
                raise Refused(_hint(cls))
            if self._registry.by_class(cls) is None:
                classes.check_findable(cls)
            found = _instance_exploder(spec)
        self._table[cls] = found
        return found

    def _resolve_stable(self, cls: type) -> Exploder:
        """Find the encoder of a type for fingerprints, where a class need not be found again."""
        found = values.exploder(cls) or arrays.exploder(cls)
        if found is None:
            spec = self._describe(cls)
            if spec is None:
                raise Refused
            found = stable(spec)
        return found

    def _spec_of(self, tag: str) -> Spec:
        """Find the class that a record names."""
        spec = self._registry.by_tag(tag)
        if spec is not None:
            return spec
        known = self._found.get(tag)
        if known is not None:
            spec, name, module, scope = known
            if scope.get(name) is spec.cls and sys.modules.get(spec.cls.__module__) is module:
                return spec
        cls = classes.find(tag)
        try:
            spec = None if cls is None else self._describe(cls)
        except Refused as error:
            raise DecodeError(f"the record holds an instance of {tag!r}, which cannot be rebuilt: {error.reason}") from error
        if cls is None or spec is None:
            raise rebuild.unknown(tag)
        module = sys.modules[cls.__module__]
        self._found[tag] = spec, cls.__qualname__, module, vars(module)
        return spec


def _instance_exploder(spec: Spec) -> Exploder:
    return lambda value: classes.explode(spec, value)


_TOLD: tuple[type, ...] = (type(None), bool, int, float, str, bytes, list, dict)  # what msgpack has of its own


def _hint(cls: Any) -> str:
    """Say what can be done about a type that cannot be recorded."""
    for plain in (str, int, float, bytes, dict, list, tuple, set, frozenset):
        if issubclass(cls, plain):
            return f"it is a subclass of {plain.__name__}; return a plain {plain.__name__}, or register it with encode= and decode="
    if issubclass(cls, BaseException):
        return "return its type's name and its text instead"
    if "__await__" in dir(cls):
        return "await it"
    if cls.__name__ in ("function", "builtin_function_or_method", "method"):
        return "call it, or return its name"
    if cls in (memoryview, range) or issubclass(cls, type):
        return ""
    return f"return plain data instead, or letitloop.register({cls.__name__}, encode=..., decode=...)"


default_codecs = Codecs()
"""The codecs that runs use where none are given."""

register = default_codecs.register
"""Register a class with the default codecs, see :meth:`Codecs.register`."""
