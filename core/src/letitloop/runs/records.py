"""The records of a run: their kinds and what their payloads hold. Pure.

Record kinds (:mod:`letitloop.wal.format` has the frames around them)::

    16 START    key ""         codec: what the run is
    17 RESUME   key ""         codec: when it was opened again, by whom, and what was in flight
    18 OK       key = step     a step's result
    19 FAILED   key = step     a step's last failure
    20 ATTEMPT  key = step     a failure after which the step is tried again
    21 VOID     key = scope    two u64: the step records of this scope from the first seq on, and below the second, no longer count
    22 EFFECT   key = marker   a marker or intent: its truth is in the ledger
    23 END      key ""         head, then codec: the run's result
    24 ENDED    key ""         codec: the exception that ended this drive of the run, and the steps it came from

An unknown kind below 128 refuses the log (it is a newer version's), one from 128 on is skipped.

Payload of OK, FAILED, ATTEMPT and END, little endian::

    offset size field
         0    1  flags        bit 0 OVERLAPPED: another call of this name in this scope was in flight meanwhile
         1    1  n            length of the fingerprint
         2    4  began        the seq that the log expected when the step was called
         6    8  started      seconds since 1970-01-01 UTC, a double
        14    4  took         seconds, a single
        18    n  fingerprint  16 bytes over all arguments, then 4 an argument; empty if there were none
      18+n    -  body         the value, or the failure, as the codecs encode it
"""

from __future__ import annotations

from struct import Struct

from letitloop.errors import DecodeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "ATTEMPT",
    "EFFECT",
    "END",
    "ENDED",
    "FAILED",
    "GUARDED",
    "HEAD_SIZE",
    "OK",
    "OVERLAPPED",
    "RESUME",
    "START",
    "STEP_KINDS",
    "VOID",
    "Head",
    "as_fields",
    "pack_head",
    "pack_void",
    "unpack_head",
    "unpack_void",
]

START = 16
RESUME = 17
OK = 18
FAILED = 19
ATTEMPT = 20
VOID = 21
EFFECT = 22
END = 23
ENDED = 24

STEP_KINDS = frozenset((OK, FAILED, ATTEMPT))
GUARDED = frozenset((EFFECT,))
KNOWN = frozenset(range(START, ENDED + 1))

OVERLAPPED = 1
_HEAD = Struct("<BBIdf")
HEAD_SIZE = _HEAD.size
_LATEST = 1e11  # seconds; some year after 5000
_SPAN = Struct("<QQ")


class Head:
    """The head of a step's record.

    Attributes:
        overlapped: whether another call of this name in this scope was in flight meanwhile.
        began: the seq that the log expected when the step was called.
        started: seconds since 1970-01-01 UTC.
        took: seconds.
        fingerprint: the arguments' fingerprint.
        body_at: where in the payload the body starts.
    """

    __slots__ = ("began", "body_at", "fingerprint", "overlapped", "started", "took")

    def __init__(self, overlapped: bool, began: int, started: float, took: float, fingerprint: bytes, body_at: int) -> None:  # noqa: FBT001 - a record's field, made in one place
        self.overlapped = overlapped
        self.began = began
        self.started = started
        self.took = took
        self.fingerprint = fingerprint
        self.body_at = body_at


def pack_head(flags: int, fingerprint: bytes, began: int, started: float, took: float) -> bytes:
    """Build the head of a step's record.

    Args:
        flags: ``OVERLAPPED`` or 0.
        fingerprint: at most 255 bytes.
        began: the seq that the log expected when the step was called.
        started: seconds since 1970-01-01 UTC.
        took: seconds.
    """
    return _HEAD.pack(flags, len(fingerprint), began, started, took) + fingerprint


def unpack_head(payload: bytes) -> Head:
    """Read the head of a step's record.

    Raises:
        DecodeError: the payload is shorter than its head.
    """
    if len(payload) < HEAD_SIZE or len(payload) < HEAD_SIZE + payload[1]:
        raise DecodeError(f"a step's record of {len(payload)} bytes is too short for its head")
    flags, length, began, started, took = _HEAD.unpack_from(payload)
    if not (abs(started) < _LATEST and 0 <= took < _LATEST):  # also false for NaN
        raise DecodeError(f"a step's record says that it started at {started} and took {took} seconds")
    body_at = HEAD_SIZE + length
    return Head(bool(flags & OVERLAPPED), began, started, took, payload[HEAD_SIZE:body_at], body_at)


def pack_void(first: int, upto: int) -> bytes:
    """Build the payload of a VOID record: it takes back the records with ``first <= seq < upto``."""
    return _SPAN.pack(first, upto)


def unpack_void(payload: bytes) -> tuple[int, int]:
    """Read the payload of a VOID record.

    Raises:
        DecodeError: it has not 16 bytes.
    """
    if len(payload) != _SPAN.size:
        raise DecodeError(f"a VOID record has {_SPAN.size} bytes, not {len(payload)}")
    first, upto = _SPAN.unpack(payload)
    return first, upto


def as_fields(value: Any, **kinds: type) -> dict[str, Any]:
    """Return a decoded body that has named fields.

    Args:
        value: the body.
        kinds: the fields that it must have, and their types.

    Raises:
        DecodeError: it has no fields, or not these.
    """
    if not isinstance(value, dict):
        raise DecodeError(f"a record that should have named fields holds {type(value).__name__}")
    fields: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]  # what the codecs return is of any type
    for name, kind in kinds.items():
        if not isinstance(fields.get(name), kind):
            raise DecodeError(f"a record's field {name!r} should be {kind.__name__}, and is {type(fields.get(name)).__name__}")
    return fields
