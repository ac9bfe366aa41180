"""Failures as data: an exception to bytes and back, without running its class's code.

A recorded failure is its class's name, its message, its arguments and attributes where the codecs can encode them, and its
traceback as text. It comes back as the same class if that class is already imported and everything it carried could be recorded;
else as :class:`~letitloop.errors.RecordedError`, which names what it was.
"""

from __future__ import annotations

import sys

from letitloop.errors import CodecError, RecordedError
from letitloop.runs.records import as_fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from letitloop.codecs import Codecs

__all__ = ["chain", "decode_failure", "describe", "encode_failure"]

_MAX_TRACEBACK = 20_000


def encode_failure(exc: BaseException, codecs: Codecs) -> bytes:
    """Turn an exception into the bytes of a failure."""
    return codecs.encode(
        {
            "type": f"{type(exc).__module__}:{type(exc).__qualname__}",
            "text": _text(exc),
            "args": _encoded(_arguments(exc), codecs),
            "state": _encoded({name: value for name, value in vars(exc).items() if name != "__notes__"}, codecs),
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
        f"{where} failed with {name.replace(':', '.')}: {text} (recorded earlier; the exception's class or its contents cannot be "
        "rebuilt from data, so this stands for it)",
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
        pending += [other for other in (one.__cause__, one.__context__) if other is not None]
        pending += getattr(one, "exceptions", ())


def _builtin_base(cls: type[BaseException]) -> Any:
    return next(base for base in cls.__mro__ if base.__module__ == "builtins")


def _arguments(exc: BaseException) -> object:
    """Return what the exception's builtin base was made from; ``args`` alone lacks an OSError's file name."""
    try:
        return _builtin_base(type(exc)).__reduce__(exc)[1]
    except Exception:
        return exc.args


def _text(exc: BaseException) -> str:
    try:
        return str(exc)
    except Exception as broken:
        return f"<str() of the exception raised {type(broken).__name__}>"


def _traceback(exc: BaseException) -> str:
    import traceback  # 10 ms of import, paid by a program that fails

    try:
        return "".join(traceback.format_exception(type(exc), exc, exc.__traceback__))[-_MAX_TRACEBACK:]
    except Exception:
        return ""


def _encoded(value: object, codecs: Codecs) -> bytes | None:
    try:
        return codecs.encode(value)
    except CodecError:
        return None


def _rebuild(recorded: dict[str, Any], codecs: Codecs) -> Exception | None:
    cls = _find(str(recorded.get("type", "")))
    args, state = recorded.get("args"), recorded.get("state")
    if cls is None or not isinstance(args, bytes) or not isinstance(state, bytes):
        return None
    try:
        arguments: Any = codecs.decode(args)
        attributes = as_fields(codecs.decode(state))
    except CodecError:
        return None
    builtin = _builtin_base(cls)
    try:
        exc: Exception = builtin.__new__(cls, *arguments)  # never the class's own __new__ or __init__
        if type(exc) is not cls:
            return None
        builtin.__init__(exc, *arguments)  # sets what OSError and others keep outside args
        vars(exc).update(attributes)
    except Exception:
        return None
    if _text(exc) != recorded.get("text"):
        return None  # it keeps something where neither args nor __dict__ shows it
    return exc


def _find(tag: str) -> type[Exception] | None:
    """Find an exception class among the modules that are imported already."""
    module, _, qualname = tag.partition(":")
    found: object = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    if not isinstance(found, type) or not issubclass(found, Exception) or found is RecordedError:
        return None
    return found if (found.__module__, found.__qualname__) == (module, qualname) else None
