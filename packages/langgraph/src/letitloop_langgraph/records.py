"""The saver's records in a thread's log: their kinds, and what keys and payloads hold. Pure.

The log of a thread is a run's log (:mod:`letitloop.runs.records`), so steps and effects of its nodes lie in it; a run's journal
skips kinds from 128 on, which are the saver's. Keys and payloads are arrays in the codecs' wire format. Ids that are canonical
UUIDs are written as 16 bytes, others as text::

    128 CHECKPOINT  key [ns, id, parent | nil, run, [[channel, version], …]]
                    payload [fields, metadata, [form, …], extras, more]
                      run       8 bytes: digest of the metadata's run_id, empty without one
                      fields    the checkpoint without its id and channel values
                      metadata  [tag, bytes]
                      more      nil, or [tag, bytes]: fields of the checkpoint that this version does not know
                      form      one for each [channel, version] of the key, see below
                      extras    {channel: [tag, bytes]}: values of channels that have no version
    129 BLOB        key [ns, channel, version]   payload: a form
    130 WRITES      key [ns, checkpoint, task, path]
                    payload [[index, channel, tag, bytes], …]
    131 DROP        key []      payload [[ns, id], …]: checkpoints that are deleted, with their writes
    132 PLACE       key [ns, checkpoint]   payload: the path of the steps of one task that hangs on that checkpoint
    133 NUMBER      key = step  payload [task, counter, number, [step, …], answer | nil]
                    a number that the step took, before its own record; the steps are those of the task that it lies in
                      counter   which of LangGraph's counters of the task: 0 interrupts, 1 subgraphs, 2 calls of ``@task``
                      answer    what an interrupt was answered, as the codecs encode it

A form says what a channel's value is at a version; the newest record of a (namespace, channel, version) counts::

    []                     no value
    [0, tag, bytes]        this one
    [1, source]            the value of a write; source is [checkpoint, task, index]
    [2, base, [piece, …]]  a list: the one at version ``base`` (nil: none), and these pieces one after the other
                           piece: [count, bytes] items in the codecs' wire format; [source] a write's value, a list's items or one
                           item; [tag, bytes, nil] a list by a serialiser that is not ours
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import Any

import ormsgpack

from letitloop.codecs import default_codecs

__all__ = ["BLOB", "CHECKPOINT", "DROP", "NUMBER", "OURS", "PLACE", "WRITES", "pack", "run_digest", "short", "unpack", "whole"]

CHECKPOINT = 128
BLOB = 129
WRITES = 130
DROP = 131
PLACE = 132
NUMBER = 133
OURS = frozenset((CHECKPOINT, BLOB, WRITES, DROP, PLACE, NUMBER))

_PLAIN_ONLY = (
    ormsgpack.OPT_PASSTHROUGH_BIG_INT
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)


def pack(value: Any) -> bytes:
    """Return a record's key or payload as bytes in the codecs' wire format.

    What the saver makes of records is lists, texts, bytes and numbers, which ormsgpack writes exactly as the codecs would, in a
    fraction of the time; it refuses all that the codecs write otherwise.

    >>> unpack(pack(["", b"id", 1.5, None])), unpack(pack([(1, 2)]))
    (['', b'id', 1.5, None], [(1, 2)])
    """
    try:
        return ormsgpack.packb(value, None, _PLAIN_ONLY)
    except (TypeError, ValueError):
        return default_codecs.encode(value)


def unpack(data: bytes) -> Any:
    """Return what :func:`pack` was given.

    Raises:
        DecodeError: the bytes are no record.
    """
    return default_codecs.decode(data)


@lru_cache(maxsize=1024)
def short(identity: str) -> str | bytes:
    """Return an id as it is written: 16 bytes for a canonical UUID.

    >>> len(short("1f0c5c1e-6b1d-6c1e-8000-e4b9c1f5a7d2")), short("first")
    (16, 'first')
    """
    if len(identity) == 36 and identity[8] == identity[13] == identity[18] == identity[23] == "-":
        digits = identity.replace("-", "")
        try:
            found = bytes.fromhex(digits)
        except ValueError:
            return identity
        if found.hex() == digits and len(found) == 16:  # in lower case, and nothing skipped
            return found
    return identity


@lru_cache(maxsize=1024)
def whole(identity: str | bytes) -> str:
    """Return the id that :func:`short` wrote."""
    if isinstance(identity, str):
        return identity
    digits = identity.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def run_digest(run_id: object) -> bytes:
    """Return what the index holds of a run's id: metadata may be encrypted, and ids may tell something."""
    return b"" if run_id is None else blake2b(str(run_id).encode("utf-8", "surrogatepass"), digest_size=8).digest()
