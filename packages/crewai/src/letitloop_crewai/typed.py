"""Instances of a program's own pydantic classes as bytes, and back with the class that the program names now.

The classes may be defined inside functions, where no reader of a log could find them: they are told to the codecs by the class
that a task or a call names, and nothing is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from pydantic import AnyUrl, BaseModel, SecretBytes, SecretStr

from letitloop.codecs import Codecs
from letitloop.codecs.classes import find
from letitloop.errors import DecodeError, InvalidArgument, UnencodableError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["codecs_of", "pack", "unpack"]


def codecs_of(cls: type[BaseModel]) -> Codecs:
    """Return codecs that know a class, and those that its fields are declared with."""
    codecs = Codecs()
    codecs.register(SecretStr, encode=SecretStr.get_secret_value, decode=SecretStr)
    codecs.register(SecretBytes, encode=SecretBytes.get_secret_value, decode=SecretBytes)
    for one in _declared(cls):
        try:
            if issubclass(one, AnyUrl):
                codecs.register(one, encode=str, decode=one)
            elif find(f"{one.__module__}:{one.__qualname__}") is not one:
                codecs.register(one)
        except InvalidArgument:
            continue  # it is no class of fields: encoding says so if it has to be recorded
    return codecs


def _declared(cls: type[BaseModel]) -> Iterator[type]:
    """Yield the classes that a class's fields are declared with, and its own."""
    seen: set[int] = set()
    pending: list[Any] = [cls]
    while pending:
        one = pending.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        pending.extend(get_args(one))
        if isinstance(one, type):
            yield one
            fields: dict[str, Any] = getattr(one, "model_fields", None) or {}
            pending.extend(field.annotation for field in fields.values())


def pack(value: BaseModel) -> bytes | str:
    """Return an instance as bytes; as JSON where its fields hold what the codecs do not know.

    Raises:
        UnencodableError: neither gives an equal instance back.
    """
    cls = type(value)
    try:
        return codecs_of(cls).encode(value)
    except UnencodableError as refused:
        error = refused
    try:
        text = value.model_dump_json(by_alias=False, round_trip=True)
        if unpack(text, cls) == value:
            return text
    except ValueError:
        pass  # what pydantic raises, or does not know how to write
    raise error


def unpack(packed: bytes | str, cls: type[BaseModel]) -> BaseModel:
    """Return the instance of a class that :func:`pack` took apart.

    Raises:
        DecodeError: the class is another one now.
    """
    if isinstance(packed, str):
        return cls.model_validate_json(packed, by_alias=False, by_name=True)
    found = codecs_of(cls).decode(packed)
    if type(found) is not cls:
        raise DecodeError(f"the record holds an instance of {type(found).__qualname__}, and {cls.__qualname__} is asked for")
    return found
