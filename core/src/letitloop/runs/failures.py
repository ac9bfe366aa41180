"""Failures as data: an exception to bytes and back, without running its class's code.

A recorded failure is its class's name, its message, its arguments and attributes as far as the codecs can encode them, and its
traceback as text. It comes back as the same class if that class is already imported, so that the same ``except`` catches it; what
it carried and could not be recorded (a response, a session) is missing, and a note says so. Where the class is gone, or would not
say what it said, it comes back as :class:`~letitloop.errors.RecordedError`, which names what it was.
"""

from __future__ import annotations

from letitloop.codecs.classes import find
from letitloop.codecs.fingerprint import type_name
from letitloop.errors import CodecError, RecordedError
from letitloop.runs.records import as_fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from letitloop.codecs import Codecs

__all__ = ["chain", "decode_failure", "describe", "encode_failure", "text_of"]

_MAX_TRACEBACK = 20_000
_LINKS: tuple[Any, Any] = (vars(BaseException)["__cause__"], vars(BaseException)["__context__"])


def encode_failure(exc: BaseException, codecs: Codecs) -> bytes:
    """Turn an exception into the bytes of a failure; whatever its class does, this raises nothing."""
    args = [_encoded(value, codecs) for value in _arguments(exc)]
    attributes = {name: _encoded(value, codecs) for name, value in _attributes(exc).items()}
    return codecs.encode(
        {
            "type": type_name(type(exc)),
            "text": text_of(exc),
            "args": args,
            "state": {name: data for name, data in attributes.items() if data is not None},
            "lacking": [name for name, data in attributes.items() if data is None],
            "traceback": _traceback(exc),
        }
    )


def decode_failure(data: bytes, codecs: Codecs, where: str) -> Exception:
    """Rebuild a recorded failure.

    Args:
        data: what :func:`encode_failure` returned.
        codecs: the run's codecs.
        where: the step and run, for the message of a failure that cannot be rebuilt.
    """
    recorded = as_fields(codecs.decode(data))
    rebuilt = _rebuild(recorded, codecs)
    if rebuilt is not None:
        return rebuilt
    name, text = str(recorded.get("type", "")), str(recorded.get("text", ""))
    return RecordedError(
        f"{where} failed with {name.replace(':', '.')}: {text} (recorded earlier; the exception's class is not imported, or it "
        "cannot be rebuilt from data, so this stands for it)",
        type_name=name,
        text=text,
        recorded_traceback=str(recorded.get("traceback", "")),
    )


def describe(data: bytes, codecs: Codecs) -> tuple[str, str, str]:
    """Return a recorded failure's class name, message and traceback, for people."""
    recorded = as_fields(codecs.decode(data))
    return str(recorded.get("type", "?")).replace(":", "."), str(recorded.get("text", "")), str(recorded.get("traceback", ""))


def chain(exc: BaseException) -> Iterator[BaseException]:
    """Yield an exception and all that it was raised from, while handling, or groups."""
    pending, seen = [exc], set[int]()
    while pending:
        one = pending.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        for link in _LINKS:  # not by attribute: a class may answer those as it likes
            other = link.__get__(one)
            if isinstance(other, BaseException):
                pending.append(other)
        try:
            pending += [other for other in getattr(one, "exceptions", ()) if isinstance(other, BaseException)]
        except Exception:  # noqa: S112 - an attribute of that name that is something else
            continue


def _builtin_base(cls: type[BaseException]) -> Any:
    return next(base for base in cls.__mro__ if base.__module__ == "builtins")


def _arguments(exc: BaseException) -> tuple[object, ...]:
    """Return what the exception's builtin base was made from; ``args`` alone lacks an OSError's file name."""
    try:
        return tuple(_builtin_base(type(exc)).__reduce__(exc)[1])
    except Exception:  # a class that is broken in this way is recorded by its text
        return (exc,)


def _attributes(exc: BaseException) -> dict[str, object]:
    """Return an exception's attributes, those in slots too."""
    found: dict[str, object] = {}
    try:
        found.update(BaseException.__getattribute__(exc, "__dict__"))
        for name, slot in _slots(type(exc)).items():
            try:
                found[name] = slot.__get__(exc)
            except AttributeError:  # never set
                continue
    except Exception:  # as above
        return found
    found.pop("__notes__", None)
    return {name: value for name, value in found.items() if type(name) is str}


def _slots(cls: type[BaseException]) -> dict[str, Any]:
    """Return the slots of a class by name."""
    return {
        name: member
        for base in cls.__mro__
        if base.__module__ != "builtins"
        for name, member in vars(base).items()
        if type(member).__name__ == "member_descriptor"
    }


def text_of(exc: BaseException) -> str:
    """Return an exception's message; one whose class cannot say it is told so."""
    try:
        return "".join((str(exc),))  # a plain string, if __str__ returned a subclass
    except Exception as broken:
        return f"<str() of the exception raised {type_name(type(broken))}>"


def _traceback(exc: BaseException) -> str:
    import traceback  # 10 ms of import, paid by a program that fails

    try:
        return "".join(traceback.format_exception(type(exc), exc, exc.__traceback__))[-_MAX_TRACEBACK:]
    except Exception:
        return ""


def _encoded(value: object, codecs: Codecs) -> bytes | None:
    try:
        return codecs.encode(value)
    except Exception:  # a class that cannot even be asked its name
        return None


def _rebuild(recorded: dict[str, Any], codecs: Codecs) -> Exception | None:
    cls = _find(str(recorded.get("type", "")))
    try:
        fields = as_fields(recorded, text=str, args=list, state=dict, lacking=list)
        values: Any = [None if data is None else codecs.decode(data) for data in fields["args"]]
        attributes: Any = {name: codecs.decode(data) for name, data in fields["state"].items()}
    except (CodecError, TypeError):
        return None
    if cls is None:
        return None
    text, lacking = fields["text"], list(fields["lacking"])
    whole = None not in fields["args"]
    for arguments in [values] * whole + [[text]]:
        exc = _made(cls, arguments, attributes)
        if exc is not None and text_of(exc) == text:
            if not whole or arguments is not values:
                lacking.insert(0, "args")
            add_note: Any = getattr(BaseException, "add_note", None)  # 3.11 and later
            if lacking and add_note is not None:
                missing = ", ".join(map(str, lacking))
                add_note(exc, f"rebuilt from the log of an earlier run, which does not have: {missing}")
            return exc
    return None  # it says something that is in none of what was recorded


def _made(cls: type[Exception], arguments: list[Any], attributes: dict[str, Any]) -> Exception | None:
    """Make an exception without running its class's ``__new__`` or ``__init__``."""
    builtin = _builtin_base(cls)
    try:
        exc: Exception = builtin.__new__(cls, *arguments)
        if type(exc) is not cls:
            return None
        builtin.__init__(exc, *arguments)  # sets what OSError and others keep outside args
        slots = _slots(cls)
        for name, value in attributes.items():
            if name in slots:
                slots[name].__set__(exc, value)
            else:
                BaseException.__getattribute__(exc, "__dict__")[name] = value
    except Exception:  # a builtin's constructor that refuses these arguments
        return None
    return exc


def _find(tag: str) -> type[Exception] | None:
    """Find an exception class among the modules that are imported already."""
    found = find(tag)
    return found if found is not None and issubclass(found, Exception) and found is not RecordedError else None
