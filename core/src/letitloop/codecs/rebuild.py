"""Recorded instances, put together again without running a constructor, validator, property or hook of their class."""

from __future__ import annotations

from letitloop.codecs import classes
from letitloop.codecs.ext import class_of
from letitloop.errors import DecodeError, SchemaChanged, UnknownType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from letitloop.codecs.classes import Spec

_TUPLE: Any = tuple
_FIELD_KINDS = frozenset((classes.DATACLASS, classes.ATTRS, classes.NAMED_TUPLE, classes.PYDANTIC))
_WORDS = {
    classes.DATACLASS: "a dataclass", classes.ATTRS: "an attrs class", classes.NAMED_TUPLE: "a named tuple",
    classes.PYDANTIC: "a pydantic model", classes.REGISTERED: "registered with decode=", classes.ENUM: "an enum",
}  # fmt: skip


def unknown(tag: str) -> UnknownType:
    """The error for a tag that no class answers to."""
    module = tag.partition(":")[0]
    return UnknownType(
        f"the record holds an instance of {tag!r}, and no class of that name is registered or among the imported modules. "
        f"The record is untouched. Import {module} before the value is read; if the class was moved or renamed, call "
        f"letitloop.register(TheClass, name={tag!r}).",
        tag=tag,
    )


def _changed(tag: str, text: str, missing: tuple[str, ...] = (), added: tuple[str, ...] = ()) -> SchemaChanged:
    return SchemaChanged(
        f"the record holds an instance of {tag!r}, and {text}. The record is untouched. Restore the class as it was, or call "
        "letitloop.register(TheClass, version=2, migrate=lambda fields, version: {...}) to bring old records up to date.",
        tag=tag,
        missing=missing,
        added=added,
    )


def _migrate(spec: Spec, fields: Any, version: int) -> Any:
    if spec.migrate is None:
        raise _changed(spec.tag, f"it was recorded in version {version}, while version {spec.version} is registered")
    try:
        migrated: Any = spec.migrate(fields, version)
    except Exception as error:
        raise _changed(spec.tag, f"its migrate function raised {error!r} for version {version}") from error
    if spec.kind != classes.REGISTERED and class_of(migrated) is not dict:
        raise _changed(spec.tag, f"its migrate function returned {type(migrated).__qualname__}, not a dict of fields")
    return migrated


# --- enums -------------------------------------------------------------------------------------------------------------------


def build_enum(body: Any, spec_of: Callable[[str], Spec]) -> Any:
    """Find the recorded member of an enum, or compose the recorded combination of flags."""
    if class_of(body) is not list or len(body) not in (2, 3) or class_of(body[0]) is not str:
        raise DecodeError("an enum's record is malformed")
    tag, name = body[:2]
    spec, version = spec_of(tag), body[2] if len(body) == 3 else 1
    if spec.kind != classes.ENUM:
        raise _changed(tag, f"was recorded as an enum, while the class is {_WORDS[spec.kind]} now")
    found = None if version != spec.version else _member(spec.cls, name)
    if found is None and (spec.migrate is not None or version != spec.version):
        name = _migrate(spec, {"name": name}, version).get("name")
        found = _member(spec.cls, name)
    if found is None:
        raise _changed(tag, f"the enum has no member {name!r} any more", (str(name),))
    return found


def _member(cls: Any, name: Any) -> Any:
    if type(name) is str:
        return cls._member_map_.get(name)
    import enum

    if type(name) is not int or not issubclass(cls, enum.Flag):
        return None
    found = cls._value2member_map_.get(name)
    if found is None:
        # the standard library's own way to a combination, passing by a `_missing_` or `__new__` of the user's class
        base = enum.IntFlag if issubclass(cls, enum.IntFlag) and "_missing_" in vars(enum.IntFlag) else enum.Flag
        try:
            found = vars(base)["_missing_"].__func__(cls, name)
        except ValueError:  # bits that the class does not know
            return None
    return found if type(found) is cls else None


# --- objects -----------------------------------------------------------------------------------------------------------------


def build_object(body: Any, spec_of: Callable[[str], Spec]) -> Any:
    """Put an instance together from the structured body of its record."""
    if class_of(body) is not list or len(body) not in (3, 4) or class_of(body[0]) is not str:
        raise DecodeError("an object's record is malformed")
    tag, kind, fields = body[:3]
    meta: dict[str, Any] = body[3] if len(body) == 4 else {}
    if class_of(meta) is not dict:
        raise DecodeError("an object's record is malformed")
    spec = spec_of(tag)
    version = meta.get("v", 1)
    if kind == classes.REGISTERED and spec.kind == classes.REGISTERED:
        return _decode_registered(spec, fields, version)
    if kind not in _FIELD_KINDS or spec.kind not in _FIELD_KINDS or class_of(fields) is not dict:
        was = _WORDS.get(kind) if class_of(kind) is str else None
        if was is None or spec.kind == kind:
            raise DecodeError(f"the record of an instance of {tag!r} is malformed")
        raise _changed(tag, f"the class was {was} when it was recorded, and is {_WORDS[spec.kind]} now")
    if kind == spec.kind and not meta and spec.version == 1 and fields.keys() == spec.nameset and not spec.private:
        return _assemble(spec, fields, {}, meta)
    return _build_checked(spec, kind, fields, meta, version)


def _decode_registered(spec: Spec, payload: Any, version: int) -> Any:
    if version != spec.version:
        payload = _migrate(spec, payload, version)
    if spec.decode is None:
        raise DecodeError(f"{spec.tag!r} is registered without decode=")
    try:
        return spec.decode(payload)
    except Exception as error:
        raise DecodeError(f"the decode function registered for {spec.tag!r} raised {error!r}") from error


def _names(meta: dict[str, Any], key: str) -> list[str]:
    names: list[str] = meta.get(key, [])
    if class_of(names) is not list or not all(class_of(name) is str for name in names):
        raise DecodeError("an object's record is malformed")
    return names


def _named(meta: dict[str, Any], key: str) -> dict[str, Any]:
    named: dict[str, Any] = meta.get(key, {})
    if class_of(named) is not dict or not all(class_of(name) is str for name in named):
        raise DecodeError("an object's record is malformed")
    return named


def _build_checked(spec: Spec, kind: str, fields: dict[str, Any], meta: dict[str, Any], version: int) -> Any:
    private, unset, extras = _named(meta, "p"), _names(meta, "u"), _named(meta, "x")
    recorded = {*fields, *unset, *private}
    current = spec.nameset.union(spec.private)
    if version != spec.version or (recorded != current and spec.migrate is not None):
        fields = _migrate(spec, fields, version)
        private = {name: private[name] for name in spec.private if name in private}
        extras = {name: extras[name] for name in extras if name not in spec.nameset}
        recorded, current = {*fields, *(name for name in unset if name in spec.nameset)}, spec.nameset
        meta = {**meta, "p": private} if "p" in meta else meta
    elif kind != spec.kind:
        raise _changed(spec.tag, f"the class was {_WORDS[kind]} when it was recorded, and is {_WORDS[spec.kind]} now")
    if recorded != current:
        missing, added = tuple(sorted(map(str, recorded - current))), tuple(sorted(current - recorded))
        words = [f"the class {text} {', '.join(names)}" for text, names in (("lacks", missing), ("has the new", added)) if names]
        raise _changed(spec.tag, " and ".join(words), missing, added)
    if not spec.nameset.isdisjoint(extras):
        raise DecodeError("an object's record is malformed")
    return _assemble(spec, fields, extras, meta)


def _assemble(spec: Spec, fields: dict[str, Any], extras: dict[str, Any], meta: dict[str, Any]) -> Any:
    cls = spec.cls
    if spec.kind == classes.NAMED_TUPLE:
        return _TUPLE.__new__(cls, [fields[name] for name in spec.names])
    instance = object.__new__(cls)
    if extras:
        fields = {**fields, **extras}
    if not spec.slots and spec.has_dict:
        instance.__dict__.update(fields)
    else:
        for name, value in fields.items():
            slot = spec.slots.get(name)
            if slot is not None:
                slot.__set__(instance, value)
            elif spec.has_dict:
                instance.__dict__[name] = value
            else:
                raise _changed(spec.tag, f"its instances have no room for the recorded attribute {name}", (name,))
    if spec.kind == classes.PYDANTIC:
        _pydantic(spec, instance, meta)
    return instance


def _pydantic(spec: Spec, instance: Any, meta: dict[str, Any]) -> None:
    fields_set = set(_names(meta, "s")) if "s" in meta else set(spec.names)
    object.__setattr__(instance, "__pydantic_fields_set__", fields_set)
    for key, name in (("e", "__pydantic_extra__"), ("p", "__pydantic_private__")):
        value = _named(meta, key) if key in meta else None
        if value is not None or getattr(spec.cls, name, None) is not None:  # a root model has None at the class instead
            object.__setattr__(instance, name, value)
