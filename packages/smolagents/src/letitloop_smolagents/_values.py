"""Results and arguments of tools: what is recorded of images and of smolagents' own types, and what tells arguments apart."""

from __future__ import annotations

import functools
import hashlib
import io
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from letitloop.codecs.ext import class_of
from letitloop_smolagents import _tables
from letitloop_smolagents._framework import Image, types

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PLAIN", "identity", "pixels", "portable", "restored"]

_PICTURE = "letitloop:picture"
_TABLE = "letitloop:table"
_TEXT = "letitloop:text"
_QUOTED = "letitloop:quoted"
_GIVEN = "letitloop:given"
PLAIN = frozenset((type(None), bool, int, float, str, bytes))
_NOTHING: Mapping[Any, Any] = MappingProxyType({})


def portable(value: Any, given: Mapping[int, list[Any]] = _NOTHING) -> Any:
    """Return what can be recorded in place of a value: images as PNG, data frames as columns; anything else as it is.

    Args:
        value: a tool's result. Lists, tuples and dicts are looked through.
        given: where in the call's arguments the objects are whose identity code may ask for, by their identities.
    """
    cls = class_of(value)
    if cls in PLAIN:
        return value
    if id(value) in given:
        return {_GIVEN: given[id(value)]}
    if cls is types.AgentText:
        return {_TEXT: str.__str__(value)}
    if isinstance(value, Image.Image):
        return {_PICTURE: freeze_image(value)}
    table = _tables.freeze(value)
    if table is not None:
        return {_TABLE: table}
    mapped = _mapped(lambda one: portable(one, given), value)
    if cls is dict and len(mapped) == 1 and str(next(iter(mapped))).startswith("letitloop:"):
        return {_QUOTED: mapped}  # a tool that happens to speak so
    return mapped


def restored(value: Any, arguments: Mapping[str, Any] = _NOTHING) -> Any:
    """Return the value of which :func:`portable` gave this, for a call with these arguments."""
    if class_of(value) is dict and len(value) == 1:
        (key, body) = next(iter(value.items()))
        if key == _PICTURE:
            return thaw_image(body)
        if key == _TABLE:
            return _tables.thaw(body)
        if key == _TEXT:
            return types.AgentText(body)
        if key == _GIVEN:
            return functools.reduce(lambda inside, step: inside[step], body, arguments)
        if key == _QUOTED:
            return _mapped(lambda one: restored(one, arguments), body)
    return value if class_of(value) in PLAIN else _mapped(lambda one: restored(one, arguments), value)


def identity(value: Any) -> Any:
    """Return what a fingerprint is to be taken of instead of a value: pixels and columns count, not addresses."""
    if class_of(value) in PLAIN:
        return value
    if isinstance(value, Image.Image):
        return {_PICTURE: pixels(value)}
    digest = _tables.digest(value)
    return _mapped(identity, value) if digest is None else {_TABLE: digest}


def pixels(image: Any) -> bytes:
    """Return 16 bytes that tell an image from another one, however it is stored."""
    raw = image.to_raw() if isinstance(image, types.AgentImage) else image
    return hashlib.blake2b(repr((raw.mode, raw.size)).encode() + raw.tobytes(), digest_size=16).digest()


def freeze_image(image: Any) -> dict[str, Any]:
    """Return an image as data: PNG and mode, or the raw pixels where PNG does not hold the mode."""
    agents_own = isinstance(image, types.AgentImage)
    raw = image.to_raw() if agents_own else image
    data = io.BytesIO()
    if raw.mode in ("1", "L", "LA", "RGB", "RGBA"):
        raw.save(data, format="PNG")
        return {"mode": raw.mode, "size": list(raw.size), "png": data.getvalue(), "agent": agents_own}
    palette = raw.getpalette("RGBA") if raw.mode in ("P", "PA") else None
    return {"mode": raw.mode, "size": list(raw.size), "raw": raw.tobytes(), "palette": palette, "agent": agents_own}


def thaw_image(body: dict[str, Any]) -> Any:
    """Return the image of which :func:`freeze_image` gave this."""
    if "png" in body:
        image = Image.open(io.BytesIO(body["png"]), formats=["PNG"])
        image.load()
        made = Image.frombytes(body["mode"], tuple(body["size"]), image.convert(body["mode"]).tobytes())
    else:
        made = Image.frombytes(body["mode"], tuple(body["size"]), body["raw"])
        if body["palette"] is not None:
            made.putpalette(body["palette"], "RGBA")
    return types.AgentImage(made) if body["agent"] else made


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Change what lies in a list, tuple or dict; the same object if nothing had to be changed."""
    cls = class_of(value)
    if cls is dict:
        pairs: dict[Any, Any] = {key: change(one) for key, one in value.items()}
        return value if all(pairs[key] is one for key, one in value.items()) else pairs
    if cls is list or cls is tuple:
        items: list[Any] = [change(one) for one in value]
        if all(new is one for new, one in zip(items, value, strict=True)):
            return value
        return items if cls is list else tuple(items)
    return value
