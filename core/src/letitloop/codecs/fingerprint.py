"""Fingerprints of arguments: equal for equal values in every process and on every version of Python.

The canonical form is the recorded one with sorted maps and sets. A value that cannot be recorded counts by the name of its type
(a function by its own name, a subclass of a plain type by its plain value as well), at any depth, and never by its address.

A fingerprint is 16 bytes over all arguments, then a hint of 4 bytes an argument: the positional ones in order, then the keywords
sorted by name. An argument counts by its canonical form, which a keyword's name precedes. For one argument the two together are
the first 20 bytes of its SHA-256. For more, the 16 bytes are those of the SHA-256 over all in a row, where an argument beyond 1 KiB
is replaced by 0xc1 and its own SHA-256; the hint is the first 4 bytes of that, or the CRC-32 of a smaller one.
"""

from __future__ import annotations

import sys
from zlib import crc32

from letitloop.codecs import classes, engine, ext
from letitloop.codecs.digest import sha256
from letitloop.codecs.ext import Refused, class_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Exploder = Callable[[Any], tuple[int, Any]]

_SMALL = 1024


def _probe() -> None: ...


_CALLABLES: frozenset[Any] = frozenset(map(class_of, (_probe, len, "".join, str.join, str.__len__)))
"""The types of functions: of Python, built in, and methods of built-in types, bound and not."""

_METHOD = class_of(_probe.__get__(0))


_QUALNAME = vars(type)["__qualname__"]


def hints(fingerprint: bytes) -> list[bytes]:
    """Return a fingerprint's hints, one an argument: where they differ, the arguments do.

    Example:
        >>> from letitloop.codecs import default_codecs
        >>> one, other = (hints(default_codecs.fingerprint((1, last), {})) for last in (2, 3))
        >>> [a == b for a, b in zip(one, other)]
        [True, False]
    """
    return [fingerprint[at : at + 4] for at in range(16, len(fingerprint), 4)]


def type_name(cls: type) -> str:
    """Name a class as ``module:qualname``."""
    try:
        return f"{cls.__module__}:{cls.__qualname__}"
    except Exception:
        return f"?:{_QUALNAME.__get__(cls)}"


def _plain_part(value: Any) -> list[Any]:
    """The plain value in an instance of a subclass of a plain type, passing by the methods of the subclass."""
    base: Any
    for base in (str, int, float):
        if isinstance(value, base):
            return [getattr(base, f"__{base.__name__}__")(value)]
    for base in (bytes, bytearray):
        if isinstance(value, base):
            return [bytes(base.__getitem__(value, slice(None)))]
    for base in (tuple, list):
        if isinstance(value, base):
            return [list(base.__iter__(value))]
    for base in (set, frozenset):
        if isinstance(value, base):
            return [set(base.__iter__(value))]
    base = dict
    return [base.copy(value)] if isinstance(value, base) else []


def opaque(value: Any) -> tuple[int, list[Any]]:
    """Describe a value that cannot be recorded, by names alone where it is no kind of plain value."""
    cls = class_of(value)
    try:
        if cls is _METHOD:
            value = value.__func__
            cls = class_of(value)
        if cls in _CALLABLES or isinstance(value, type):
            return ext.OPAQUE, [type_name(cls) if cls in _CALLABLES else "type", f"{value.__module__}:{value.__qualname__}"]
        name = type_name(cls)
        if cls is range or cls is slice:
            return ext.OPAQUE, [name, [value.start, value.stop, value.step]]
        datetime: Any = sys.modules.get("datetime")
        if datetime is not None and issubclass(cls, (datetime.date, datetime.time)):
            return ext.OPAQUE, [name, value.isoformat()]
        return ext.OPAQUE, [name, *_plain_part(value)]
    except Exception:  # noqa: S110 - as above
        pass
    return ext.OPAQUE, [type_name(cls)]


class Fingerprinter:
    """Makes fingerprints; ``resolve`` finds a class's encoder and whether it has a spec."""

    __slots__ = ("_names", "_packer", "_resolve", "table")

    def __init__(self, resolve: Callable[[type], Exploder]) -> None:
        self._resolve = resolve
        self._names: dict[str, bytes] = {}  # keywords in their canonical form
        self.table: dict[type, Exploder] = {}
        self._packer = engine.Packer(self.table, self._find, canonical=True)

    def _find(self, cls: type) -> Exploder:
        try:
            explode = self._resolve(cls)
        except Exception:
            explode = opaque

        def guarded(value: Any) -> tuple[int, Any]:
            try:
                return explode(value)
            except Exception:
                return opaque(value)

        if "<locals>" not in type_name(cls):  # a local class may be one of thousands: do not keep it alive
            self.table[cls] = guarded
        return guarded

    def _name(self, name: str) -> bytes:
        head = self.canonical(name)
        if len(self._names) < 4096 and class_of(name) is str:
            self._names[name] = head
        return head

    def canonical(self, value: Any) -> bytes:
        """Encode a value in its canonical form."""
        try:
            return self._packer.pack(value)
        except Exception as error:
            try:
                return self._packer.recover(value, "argument", error)
            except Exception:
                cls = class_of(value)
                return self._packer.pack(type_name(cls))

    def fingerprint(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """See :meth:`letitloop.codecs.Codecs.fingerprint`."""
        pack = self._packer.pack
        if len(args) == 1 and not kwargs:
            try:
                return sha256(pack(args[0])).digest()[:20]
            except Exception:
                return sha256(self.canonical(args[0])).digest()[:20]
        parts: list[bytes] = []
        for value in args:
            try:
                parts.append(pack(value))
            except Exception:
                parts.append(self.canonical(value))
        for name in sorted(kwargs) if kwargs else ():
            head = self._names.get(name) or self._name(name)
            try:
                parts.append(head + pack(kwargs[name]))
            except Exception:
                parts.append(head + self.canonical(kwargs[name]))
        if len(parts) == 1:
            return sha256(parts[0]).digest()[:20]
        if not parts:
            return b""
        hints = b""
        for index, part in enumerate(parts):
            if len(part) > _SMALL:
                digest = sha256(part).digest()
                hints += digest[:4]
                parts[index] = b"\xc1" + digest  # no msgpack starts with 0xc1
            else:
                hints += crc32(part).to_bytes(4, "big")
        return sha256(b"".join(parts)).digest()[:16] + hints


def stable(spec: classes.Spec) -> Exploder:
    """The encoder of a class for fingerprints."""

    def explode(value: Any) -> tuple[int, Any]:
        code, body = classes.explode(spec, value)
        return code, classes.stable_body(spec, body)

    return explode


__all__ = ["Fingerprinter", "Refused", "opaque", "stable", "type_name"]
