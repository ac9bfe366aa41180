"""numpy arrays and scalars, of whatever numpy the program has imported; decoding never imports it."""

from __future__ import annotations

import sys

from letitloop.codecs import ext
from letitloop.codecs.ext import Refused, class_of
from letitloop.errors import UnknownType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_KINDS = frozenset("biufcSUmM")


def exploder(cls: type) -> Callable[[Any], tuple[int, Any]] | None:
    """Find the encoder of a numpy type; ``None`` for everything else."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or not hasattr(numpy, "ndarray"):
        return None
    if cls is numpy.ndarray:
        return _array
    if cls.__module__ == "numpy" and issubclass(cls, numpy.generic):
        return _scalar
    return None


def _dtype(dtype: Any) -> str:
    if dtype.kind not in _KINDS or dtype.metadata or dtype.names or dtype.subdtype:
        raise Refused(f"its dtype is {dtype}; numbers, bool, str, bytes and dates can be recorded")
    return str(dtype.str)


def _array(value: Any) -> tuple[int, Any]:
    name = _dtype(value.dtype)
    if not value.dtype.itemsize:
        raise Refused("its items have no size")
    fortran = value.flags.f_contiguous and not value.flags.c_contiguous
    shape = [*value.shape, None] if fortran else list(value.shape)
    return ext.NDARRAY, [name, shape, value.tobytes("F" if fortran else "C")]


def _scalar(value: Any) -> tuple[int, Any]:
    name = _dtype(value.dtype)
    if sys.modules["numpy"].dtype(name).type is not type(value):
        raise Refused(f"its type has the same layout as another one; convert it, e.g. to int64: {name}")
    return ext.NUMPY_SCALAR, [name, value.tobytes()]


def _numpy(body: Any, name: Any) -> tuple[Any, Any]:
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or not hasattr(numpy, "ndarray"):
        raise UnknownType(
            "the record holds a numpy value, and numpy is not imported. The record is untouched; "
            "import numpy before the value is read.",
            tag="numpy",
        )
    if type(body) is not bytes or type(name) is not str or len(name) > 32 or name[1:2] not in _KINDS or name[:1] not in "<>|=":
        raise ValueError("not an array of plain items")
    dtype = numpy.dtype(name)
    if dtype.names or dtype.subdtype:
        raise ValueError("not an array of plain items")
    return numpy, dtype


def read_array(body: Any) -> Any:
    """Rebuild an ``ndarray``; writable, and with the recorded memory order."""
    name, shape, raw = body
    numpy, dtype = _numpy(raw, name)
    order = "C"
    if not dtype.itemsize or class_of(shape) is not list:
        raise ValueError("not an array of items")
    if shape and shape[-1] is None:
        order, shape = "F", shape[:-1]
    count = 1
    for size in shape:
        if type(size) is not int or size < 0:
            raise ValueError("a shape of sizes is expected")
        count *= size
    if count * dtype.itemsize != len(raw):
        raise ValueError("shape and bytes differ")
    if not raw:
        return numpy.empty(shape, dtype, order)
    return numpy.frombuffer(bytearray(raw), dtype).reshape(shape, order=order)


def read_scalar(body: Any) -> Any:
    """Rebuild a numpy scalar."""
    name, raw = body
    numpy, dtype = _numpy(raw, name)
    if dtype.itemsize != len(raw):
        raise ValueError("type and bytes differ")
    return numpy.frombuffer(raw, dtype)[0] if raw else dtype.type()
