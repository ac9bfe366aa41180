"""Data frames as data, if pandas is in use: exactly, or not at all."""

from __future__ import annotations

import hashlib
import sys
from typing import Any

from letitloop.codecs import default_codecs
from letitloop.codecs.ext import class_of
from letitloop.errors import CodecError

__all__ = ["digest", "freeze", "is_table", "thaw"]


def _pandas() -> Any:
    return sys.modules.get("pandas")


def is_table(value: Any) -> bool:
    """Tell whether a value is a data frame or a series."""
    pandas = _pandas()
    return pandas is not None and class_of(value) in (pandas.DataFrame, pandas.Series)


def freeze(value: Any) -> dict[str, Any] | None:
    """Return a data frame or series as data that can be recorded; None for anything else, and where that would not be exact."""
    if not is_table(value):
        return None
    try:
        body = _body(value)
        if body is None:
            return None
        default_codecs.encode(body)
        again = thaw(body)
    except (CodecError, ValueError, TypeError, AttributeError):
        return None
    return body if _same(value, again) else None


def thaw(body: dict[str, Any]) -> Any:
    """Return the data frame or series of which :func:`freeze` gave this."""
    import pandas as pd  # type: ignore[import-untyped, unused-ignore]  # pyright: ignore[reportMissingTypeStubs, reportMissingImports, reportUnknownVariableType, reportMissingModuleSource]  # no stubs, and not everywhere installed

    pandas: Any = pd
    index = _thaw_column(pandas, body["index"], as_index=True)
    columns = [_thaw_column(pandas, column) for column in body["columns"]]
    if body["kind"] == "series":
        series = pandas.Series(columns[0].array, index=index, name=body["name"])
        series.attrs.update(body["attrs"])
        return series
    frame = pandas.DataFrame({n: pandas.Series(column.array, index=index) for n, column in enumerate(columns)}, index=index)
    frame.columns = _thaw_column(pandas, body["names"], as_index=True)
    frame.attrs.update(body["attrs"])
    return frame


def digest(value: Any) -> bytes | None:
    """Return 16 bytes that tell a data frame or series from another one; None for anything else."""
    if not is_table(value):
        return None
    body = freeze(value)
    if body is not None:
        return hashlib.blake2b(default_codecs.encode(body), digest_size=16).digest()
    pandas = _pandas()
    seen = hashlib.blake2b(repr((value.shape, getattr(value, "dtypes", None))).encode(), digest_size=16)
    try:
        seen.update(pandas.util.hash_pandas_object(value).to_numpy().tobytes())
    except Exception:  # a column of what cannot be hashed: its text has to do
        seen.update(value.to_csv().encode())
    return seen.digest()


def _body(value: Any) -> dict[str, Any] | None:
    pandas = _pandas()
    index = _column(pandas, value.index)
    series = class_of(value) is pandas.Series
    columns = [_column(pandas, value)] if series else [_column(pandas, value.iloc[:, n]) for n in range(value.shape[1])]
    if index is None or None in columns:
        return None
    attrs = dict(value.attrs)
    if series:
        return {"kind": "series", "index": index, "columns": columns, "name": value.name, "attrs": attrs}
    names = _column(pandas, value.columns)
    return None if names is None else {"kind": "frame", "index": index, "columns": columns, "names": names, "attrs": attrs}


def _column(pandas: Any, values: Any) -> dict[str, Any] | None:
    """Return a column or an index as data; None if its type is not one of those that come back exactly."""
    name = values.name
    if type(values) is pandas.RangeIndex:
        return {"range": [values.start, values.stop, values.step], "name": name}
    dtype = values.dtype
    if isinstance(values, pandas.MultiIndex):
        return None
    if type(dtype).__module__.partition(".")[0] == "numpy":
        if dtype.kind == "O":
            return {"dtype": "object", "values": list(values), "name": name}
        return {"dtype": dtype.str, "array": values.to_numpy(copy=True), "name": name}
    if str(dtype) in ("str", "string"):
        return {"dtype": str(dtype), "values": [one if isinstance(one, str) else None for one in values], "name": name}
    if isinstance(dtype, pandas.CategoricalDtype):
        categories = _column(pandas, dtype.categories)
        codes = (values if isinstance(values, pandas.CategoricalIndex) else values.cat).codes
        if categories is None:
            return None
        codes = [int(code) for code in codes]
        return {"dtype": "category", "codes": codes, "categories": categories, "ordered": bool(dtype.ordered), "name": name}
    return None


def _thaw_column(pandas: Any, column: dict[str, Any], *, as_index: bool = False) -> Any:
    make = pandas.Index if as_index else pandas.Series
    name = column["name"]
    if "range" in column:
        start, stop, step = column["range"]
        return pandas.RangeIndex(start, stop, step, name=name)
    if column["dtype"] == "category":
        categories = _thaw_column(pandas, column["categories"], as_index=True)
        values = pandas.Categorical.from_codes(column["codes"], categories=categories, ordered=column["ordered"])
        return make(values, name=name)
    if "array" in column:
        return make(column["array"], name=name)
    return make(pandas.array(column["values"], dtype=column["dtype"]) if column["dtype"] != "object" else column["values"],
                dtype=column["dtype"], name=name)  # fmt: skip


def _same(value: Any, again: Any) -> bool:
    pandas = _pandas()
    testing = pandas.testing
    compare = testing.assert_series_equal if class_of(value) is pandas.Series else testing.assert_frame_equal
    try:
        compare(value, again, check_exact=True, check_freq=False)
    except AssertionError:
        return False
    return bool(value.index.equals(again.index))
