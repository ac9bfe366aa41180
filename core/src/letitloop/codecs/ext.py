"""The wire: msgpack with the extension codes below. This page is the normative description of a recorded value.

A value is one msgpack object. ``None``, ``bool``, ``float``, ``str``, ``bytes``, ``list``, ``dict`` and integers of up to 64 bit
are msgpack's own nil, bool, float 64, str, bin, array, map and int, each in its shortest form; a map keeps its order and may have
any key. A str holds UTF-8, in which a lone surrogate stands as its three bytes. Everything else is an extension: code, then body.

Codes 0x10 to 0x1f have a *raw* body, which is no msgpack; codes 0x20 to 0x2f have a *structured* body: exactly one msgpack object.
A code is allotted once and never used again for anything else. Codes 0 to 15 stay free for ever: serializers of other projects
use them, and a foreign payload must be refused, not taken for a value.

====  ============  ==========================================================================================================
code  type          body
====  ============  ==========================================================================================================
0x10  bytearray     the bytes
0x11  int           beyond 64 bit: two's complement, little-endian, shortest whole number of bytes
0x12  complex       16: real, imaginary as big-endian float 64
0x13  Decimal       ASCII: what ``str()`` gives, signalling NaN with payload included
0x14  datetime      12: year u16, month u8, day u8, hour u8, minute u8, second u8, microsecond u32, fold u8; then a zone
0x15  date          4: year u16, month u8, day u8
0x16  time          8: hour u8, minute u8, second u8, microsecond u32, fold u8; then a zone
0x17  timedelta     12: days i32, seconds u32, microseconds u32
0x18  UUID          16 bytes; a 17th, i8, where ``is_safe`` is known (0 safe, -1 unsafe)
0x19  path          one letter for the class (P PosixPath, W WindowsPath, p PurePosixPath, w PureWindowsPath), then its text
0x20  tuple         array
0x21  set           array, in no order
0x22  frozenset     array, in no order
0x23  OrderedDict   map
0x24  Counter       map
0x25  deque         array of 2: maxlen or nil; array of the items
0x26  object        array of 3 or 4: tag; kind; fields; meta (left out when empty), see below
0x27  enum          array of 2 or 3: tag; member's name as str, or the value of an unnamed combination of flags; version if not 1
0x28  ndarray       array of 3: dtype string; shape as array, with a last item nil if the order is Fortran's; bin of the items
0x29  numpy scalar  array of 2: dtype string; bin
====  ============  ==========================================================================================================

Zone: empty for none; ``U`` for ``timezone.utc``; ``Z`` and the key for a ``ZoneInfo``; ``O``, days i32, seconds u32, microseconds
u32 and, where it has one, ``=`` and its name for a ``timezone``; ``P`` and seconds i32 for pydantic's ``TzInfo``.

Object: *tag* is ``module:qualname`` or the registered name. *kind* is one letter: ``d`` dataclass, ``a`` attrs, ``t`` named tuple,
``p`` pydantic (all four: *fields* is a map from name to value), ``r`` registered with an ``encode`` function (*fields* is what that
function returned). *meta* is a map: ``v`` version if not 1, ``u`` array of fields that have no value, ``x`` map of attributes that
are no fields, and for pydantic ``s`` array of the fields that were set (left out when all were), ``e`` map of extra values, ``p``
map of private attributes.

Codes 0x70 and 0x71 stand in fingerprints only, never on disk: 0x70 a value that cannot be recorded, as array of its type's name
and, for a subclass of a plain type, the plain value; 0x71 a value that contains itself (empty body).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    def class_of(value: object, /) -> type[Any]:
        """Give the class of a value."""
        ...
else:
    class_of = type  # the same; type checkers call the class of an Any partially unknown
BYTEARRAY = 0x10
BIGINT = 0x11
COMPLEX = 0x12
DECIMAL = 0x13
DATETIME = 0x14
DATE = 0x15
TIME = 0x16
TIMEDELTA = 0x17
UUID = 0x18
PATH = 0x19

STRUCTURED = 0x20
"""Codes from here on have a structured body."""

TUPLE = 0x20
SET = 0x21
FROZENSET = 0x22
ORDERED_DICT = 0x23
COUNTER = 0x24
DEQUE = 0x25
OBJECT = 0x26
ENUM = 0x27
NDARRAY = 0x28
NUMPY_SCALAR = 0x29

OPAQUE = 0x70
CYCLE = 0x71

MAX_NESTED = 8
"""Nested extensions that the C libraries are trusted with; deeper ones take the iterative path.

Every level of a C library costs up to 600 bytes of the thread's stack and one extension may hold 1,024 levels: a hostile or
runaway value of more extensions than this would overflow a stack of 8 MiB, which kills the process.
"""

MAX_DEPTH = 512
"""Levels that the iterative encoder writes; a value nested deeper is refused."""

MAX_DECODE_DEPTH = 10_000
"""Levels that the iterative decoder reads: more than any encoder writes, few enough for the interpreter to hash and free."""


class Refused(Exception):
    """A value cannot be recorded; the reason completes the sentence ``cannot record <type> exactly: ...``."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
