"""The two C libraries, kept exact: what they cannot do is noticed, and done by the reference encoder and decoder instead.

ormsgpack swallows every exception of the functions that it calls, ``KeyboardInterrupt`` too, and raises a message of its own.
Therefore the functions given to it leave their exception in ``_lost`` before they raise it.
"""

from __future__ import annotations

import sys
from _thread import get_ident

from letitloop.codecs import ext, reader, reference
from letitloop.codecs.ext import FROZENSET, SET, STRUCTURED, TUPLE, Refused, class_of
from letitloop.errors import CodecError, DecodeError, UnencodableError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Exploder = Callable[[Any], tuple[int, Any]]

_HOOK_FAILED = ("Type is not msgpack serializable", "ext_hook failed")
_BUFFERS = frozenset((bytearray, memoryview))
_PLAIN = frozenset((int, float, bool, type(None)))
_TIMESTAMPS = (b"\xd6\xff", b"\xd7\xff", b"\xc7\x0c\xff")  # msgpack would build a class of its own for this extension

_lost: dict[int, BaseException] = {}

# Importing the fast library costs 25 ms, half of what a program takes to its first new step after a restart. The reference encoder
# and decoder write and read the same bytes, at some 10 MB a second: they do the first values, while they are small.
_SLOWLY = 1 << 16  # bytes in all
_SMALL = 1 << 12  # bytes a value
_A_VALUE = 64  # what a value counts beside its bytes
_passed = 0


def _ormsgpack() -> Any:
    """Import the fast library."""
    import ormsgpack

    return ormsgpack


def _worth_importing(size: int) -> bool:
    """Tell whether a value of ``size`` bytes, after all those before it, is to be done by the fast library."""
    global _passed  # one budget for the process, as the import is one
    _passed += size + _A_VALUE
    return size > _SMALL or _passed > _SLOWLY or "ormsgpack" in sys.modules


def _weight(value: Any) -> int:
    """Estimate the bytes of a value of msgpack's own types and tuples, walking no further than ``_SMALL``; more for any other."""
    stack, weight = [value], 0
    while stack and weight <= _SMALL:
        item = stack.pop()
        cls = class_of(item)
        if cls is str or cls is bytes:
            weight += len(item)
        elif cls is dict:
            weight += _A_VALUE * len(item)
            stack += (*item, *item.values()) if len(item) <= _SMALL else ()
        elif cls is list or cls is tuple:
            weight += _A_VALUE * len(item)
            stack += item if len(item) <= _SMALL else ()
        elif cls not in _PLAIN:
            return _SMALL + 1
    return weight


def _msgpack() -> Any:
    """Import the library that takes any key and lone surrogates, when the first value needs it."""
    import msgpack  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]

    return msgpack


class _Unexplained(Refused):
    """A hook failed before its first line: at the end of the stack, or by an interrupt."""


def _room_on_stack(levels: int = 8) -> bool:
    try:
        return levels == 0 or _room_on_stack(levels - 1)
    except RecursionError:
        return False


def _raise_interrupt() -> None:
    """Raise the exception of a signal handler that was lost in a hook's first instant; it was Ctrl-C in all likelihood."""
    if _room_on_stack():
        raise KeyboardInterrupt


def _check_hook(error: Exception) -> None:
    """Raise what a hook raised, if that is why the library failed."""
    if str(error).startswith(_HOOK_FAILED):
        cause = _lost.pop(get_ident(), None)
        if cause is None:
            raise _Unexplained from error
        if isinstance(cause, Exception) and not isinstance(cause, (Refused, CodecError)):
            raise Refused from cause
        raise cause


def _holds_buffer(value: Any) -> bool:
    """Tell whether a bytearray or memoryview lies in plain lists and dicts; the libraries would write it as bytes."""
    stack = [value]
    while stack:
        item = stack.pop()
        cls = class_of(item)
        if cls is dict:
            kinds = {*map(type, item), *map(type, item.values())}
            children = item.values()
        elif cls is list:
            kinds, children = set(map(type, item)), item
        elif cls in _BUFFERS:
            return True
        else:
            continue
        if not kinds.isdisjoint(_BUFFERS):
            return True
        if dict in kinds or list in kinds:
            stack.extend([child for child in children if type(child) is dict or type(child) is list])
    return False


# --- encoding ----------------------------------------------------------------------------------------------------------------


class Packer:
    """Encodes values whose parts ``table`` and ``resolve`` take apart.

    Args:
        table: encoders by type.
        resolve: finds the encoder of a type that ``table`` lacks, or raises ``Refused``.
        canonical: the form of a fingerprint, see :class:`letitloop.codecs.reference.Encoder`.

    Attributes:
        pack: encodes a value; raises ``Refused`` or ``UnencodableError`` where the reference encoder has to be asked.
    """

    __slots__ = ("_canonical", "_made", "_resolve", "_table", "pack")

    def __init__(self, table: dict[type, Exploder], resolve: Callable[[type], Exploder], *, canonical: bool = False) -> None:
        self._table, self._resolve, self._canonical = table, resolve, canonical
        self._made: dict[int, Callable[[Any], bytes]] = {0: self._deep}
        self.pack: Callable[[Any], bytes] = self._first

    def _first(self, value: Any) -> bytes:
        """Encode one of the first values: a small one without the library."""
        if not _worth_importing(_weight(value)):
            return self.reference(value, "result")
        self.pack = self.make(ext.MAX_NESTED)
        return self.pack(value)

    def explode(self, value: Any) -> tuple[int, Any]:
        """Take a value apart that msgpack does not have: its code and body."""
        cls = class_of(value)
        return (self._table.get(cls) or self._resolve(cls))(value)

    def reference(self, value: Any, path: str) -> bytes:
        """Encode by the reference encoder, which names the culprit."""
        try:
            return reference.Encoder(self.explode, canonical=self._canonical).encode(value, path)
        except RecursionError as error:
            raise UnencodableError(f"{path}: cannot record it from so deep in the call stack", path=path) from error

    def recover(self, value: Any, path: str, error: Exception) -> bytes:
        """Encode a value that ``pack`` failed on."""
        data = self.reference(value, path)
        if isinstance(error, _Unexplained):
            _raise_interrupt()
        return data

    def _deep(self, value: Any) -> bytes:
        if self._canonical:
            raise Refused  # a cycle must be met from its beginning
        return self.reference(value, "result")

    def make(self, levels: int) -> Callable[[Any], bytes]:
        """Make the function that encodes with at most ``levels`` nested extensions in the C libraries."""
        made = self._made.get(levels)
        if made is not None:
            return made
        ormsgpack = _ormsgpack()
        packb, canonical = ormsgpack.packb, self._canonical
        hook, other = self._hook(levels), self._other(levels)
        options = (
            ormsgpack.OPT_PASSTHROUGH_BIG_INT
            | ormsgpack.OPT_PASSTHROUGH_DATACLASS
            | ormsgpack.OPT_PASSTHROUGH_DATETIME
            | ormsgpack.OPT_PASSTHROUGH_ENUM
            | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
            | ormsgpack.OPT_PASSTHROUGH_TUPLE
            | ormsgpack.OPT_PASSTHROUGH_UUID
            | (ormsgpack.OPT_SORT_KEYS if canonical else 0)
        )

        def pack(value: Any) -> bytes:
            try:
                data: bytes = packb(value, hook, options)
            except (TypeError, ValueError) as error:
                return other(value, error)
            # no bin in the bytes, no buffer in the value; three searches for a byte cost next to nothing
            if not canonical and (0xC4 in data or 0xC5 in data or 0xC6 in data) and _holds_buffer(value):
                return self.reference(value, "result")
            return data

        self._made[levels] = pack
        return pack

    def _hook(self, levels: int) -> Callable[[Any], Any]:
        nested, make_ext = self.make(levels - 1), _ormsgpack().Ext
        table, resolve, canonical, lost = self._table, self._resolve, self._canonical, _lost

        def hook(value: Any) -> Any:
            try:
                cls = class_of(value)
                if cls is tuple:
                    return make_ext(TUPLE, nested(list(value)))
                code, body = (table.get(cls) or resolve(cls))(value)
                if code >= STRUCTURED:
                    if canonical and code in (SET, FROZENSET):
                        body = reference.array_head(len(body)) + b"".join(sorted([nested(item) for item in body]))
                    else:
                        body = nested(body)
                return make_ext(code, body)
            except BaseException as error:
                lost[get_ident()] = error
                raise

        return hook

    def _other(self, levels: int) -> Callable[[Any, Exception], bytes]:
        """What to do where ormsgpack failed: msgpack takes any key and lone surrogates."""

        def other(value: Any, error: Exception) -> bytes:
            _check_hook(error)
            if self._canonical:
                raise Refused from error
            return self.pack_msgpack(value, levels)

        return other

    def pack_msgpack(self, value: Any, levels: int = ext.MAX_NESTED) -> bytes:
        """Encode by msgpack; parts that it hands back go the usual way.

        Raises:
            Refused: the reference encoder has to be asked.
        """
        msgpack = _msgpack()
        nested, make_ext = self.make(levels - 1), msgpack.ExtType

        def hook(part: Any) -> Any:
            code, body = self.explode(part)
            return make_ext(code, body if code < STRUCTURED else nested(body))

        try:
            data: bytes = msgpack.packb(value, default=hook, strict_types=True, unicode_errors="surrogatepass")
        except Exception as error:
            raise Refused from error
        return self.reference(value, "result") if _holds_buffer(value) else data


# --- decoding ----------------------------------------------------------------------------------------------------------------


def _explain(code: int, error: Exception) -> Exception:
    """Make the error of a builder one that may leave ``decode``."""
    if isinstance(error, (CodecError, MemoryError, RecursionError)):
        return error
    if isinstance(error, KeyError) and error.args == (code,):
        return DecodeError(f"the record holds an extension of code {code}, which this version of letitloop does not write")
    return DecodeError(f"the record's extension of code 0x{code:02x} holds no value of its type: {error!r}")


def _as_bytes(data: Any) -> bytes:
    cls = class_of(data)
    if issubclass(cls, (bytes, bytearray, memoryview)):
        return bytes(data)
    raise DecodeError(f"bytes are expected, not {cls.__qualname__}")


def _declares_too_much(data: bytes) -> bool:
    """Tell whether what may be the head of a long array or map declares more items than bytes follow."""
    for code, width in ((0xDC, 2), (0xDD, 4), (0xDE, 2), (0xDF, 4)):
        at = data.find(code) if code in data else -1
        while at >= 0:
            if int.from_bytes(data[at + 1 : at + 1 + width], "big") > len(data) - at:
                return True
            at = data.find(code, at + 1)
    return False


class Unpacker:
    """Decodes values whose extensions ``builders`` put together, by code.

    Attributes:
        unpack: decodes a value; raises ``DecodeError`` and its subclasses only.
    """

    __slots__ = ("_builders", "_made", "unpack")

    def __init__(self, builders: dict[int, Callable[[Any], Any]]) -> None:
        self._builders = builders
        self._made: dict[int, Callable[[Any], Any]] = {0: self.reference}
        self.unpack: Callable[[Any], Any] = self._first

    def _first(self, data: Any) -> Any:
        """Decode one of the first values: a small one without the library."""
        if class_of(data) is bytes and not _worth_importing(len(data)):
            return self.reference(data)
        self.unpack = self.make(ext.MAX_NESTED)
        return self.unpack(data)

    def reference(self, data: Any) -> Any:
        """Decode by the reference decoder, which says what is wrong."""
        try:
            return reader.decode(_as_bytes(data), self._build)
        except RecursionError as error:
            raise DecodeError(
                "the record was not decoded, since the program is too deep in its call stack here; the record is untouched"
            ) from error

    def _build(self, code: int, body: Any) -> Any:
        try:
            return self._builders[code](body)
        except Exception as error:
            raise _explain(code, error) from error

    def make(self, levels: int) -> Callable[[Any], Any]:
        """Make the function that decodes with at most ``levels`` nested extensions in the C libraries."""
        made = self._made.get(levels)
        if made is not None:
            return made
        ormsgpack = _ormsgpack()
        unpackb, options, hook = ormsgpack.unpackb, ormsgpack.OPT_NON_STR_KEYS, self._hook(levels)

        def unpack(data: Any) -> Any:
            try:
                return unpackb(data, ext_hook=hook)
            except (TypeError, ValueError) as error:
                if str(error).startswith(_HOOK_FAILED):
                    return self._other(data, error, levels)
            try:  # a key that is no string, most likely; asked for at once, it would cost all others a tenth
                return unpackb(data, ext_hook=hook, option=options)
            except (TypeError, ValueError) as error:
                return self._other(data, error, levels)

        def unpack_guarded(data: Any) -> Any:
            data = _as_bytes(data)
            return self.unpack_msgpack(data, levels) if _declares_too_much(data) else unpack(data)

        # before 1.13, which needs Python 3.11, ormsgpack makes room for every item that is declared, and crashes if there is none
        guarded = tuple(map(int, ormsgpack.__version__.split(".")[:2])) < (1, 13)
        self._made[levels] = unpack_guarded if guarded else unpack
        return self._made[levels]

    def _hook(self, levels: int) -> Callable[[int, Any], Any]:
        nested, builders, lost = self.make(levels - 1), self._builders, _lost
        end = STRUCTURED + 16

        def hook(code: int, data: Any) -> Any:
            try:
                return builders[code](nested(data) if STRUCTURED <= code < end else data)
            except Exception as error:
                lost[get_ident()] = cause = _explain(code, error)
                raise cause from error
            except BaseException as error:
                lost[get_ident()] = error
                raise

        return hook

    def _other(self, data: Any, error: Exception, levels: int) -> Any:
        try:
            _check_hook(error)
        except _Unexplained:
            value = self.reference(data)
            _raise_interrupt()
            return value
        except Refused:
            return self.reference(data)
        return self.unpack_msgpack(data, levels)

    def unpack_msgpack(self, data: Any, levels: int = ext.MAX_NESTED) -> Any:
        """Decode by msgpack, which takes any key and lone surrogates; else by the reference decoder."""
        data = _as_bytes(data)
        if not any(mark in data for mark in _TIMESTAMPS):
            hook = self._hook(levels)
            try:
                return _msgpack().unpackb(data, ext_hook=hook, strict_map_key=False, unicode_errors="surrogatepass")
            except DecodeError:
                _lost.pop(get_ident(), None)
                raise
            except Exception:
                _lost.pop(get_ident(), None)
        return self.reference(data)
