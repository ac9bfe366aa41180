"""What a supervised function's process tells its parent: a result, or the exception that left the function. Values to bytes."""

from __future__ import annotations

from letitloop import errors
from letitloop.errors import CodecError, Halt
from letitloop.runs.failures import decode_failure, encode_failure
from letitloop.runs.records import as_fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from letitloop.codecs import Codecs

__all__ = ["Outcome", "failed", "read", "returned"]


class Outcome:
    """What became of a call.

    Attributes:
        error: the exception that left the function, None if it returned.
        value: what it returned.
        type_name: the exception's class, with the module unless it is a builtin.
        text: its message.
        functions: the functions that it came through, outermost first.
        traceback: its traceback, as text.
        code: the exit code of ``sys.exit``, or of a Halt that has one; 1 for any other exception, 0 for a value.
    """

    __slots__ = ("code", "error", "fatal", "functions", "text", "traceback", "type_name", "value")

    def __init__(self) -> None:
        self.value: object = None
        self.error: BaseException | None = None
        self.type_name = ""
        self.text = ""
        self.fatal = False
        self.functions: tuple[str, ...] = ()
        self.traceback = ""
        self.code = 0


def returned(value: object, codecs: Codecs) -> bytes:
    """Write a result.

    Raises:
        UnencodableError: the codecs cannot give it back exactly.
    """
    return _framed(b"V" + codecs.encode(value))


def _framed(data: bytes) -> bytes:
    """Put a length before what is told: a process may be ended while it tells it."""
    return len(data).to_bytes(8, "little") + data


def failed(exc: BaseException, codecs: Codecs) -> bytes:
    """Write an exception; whatever its class does, this raises nothing."""
    import traceback

    cls = type(exc)
    frames = [frame.name for frame in traceback.extract_tb(exc.__traceback__)]
    said: dict[str, Any] = {
        "failure": encode_failure(exc, codecs),
        "type": cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}",
        "functions": frames[-200:],
        "fatal": not isinstance(exc, Exception),
    }
    if isinstance(exc, SystemExit):
        said["exit"] = exc.code if exc.code is None or isinstance(exc.code, int) else str(exc.code)
    return _framed(b"E" + codecs.encode(said))


def read(data: bytes, codecs: Codecs, what: str) -> Outcome | None:
    """Read what a process told; None if it told nothing, or was ended while it did.

    Args:
        data: what it wrote.
        codecs: how it wrote values.
        what: the function, for messages.

    Raises:
        CodecError: what it told cannot be read here: its class is not imported, or has other fields.
    """
    outcome = Outcome()
    length, data = int.from_bytes(data[:8], "little"), data[8:]
    if len(data) < length:
        return None
    if data[:1] == b"V":
        outcome.value = codecs.decode(data[1:])
        return outcome
    if data[:1] != b"E":
        return None
    said = as_fields(codecs.decode(data[1:]), failure=bytes, type=str, functions=list)
    failure = as_fields(codecs.decode(said["failure"]), type=str, text=str)
    outcome.type_name, outcome.text = said["type"], failure["text"]
    outcome.functions = tuple(map(str, said["functions"]))
    outcome.traceback = str(failure.get("traceback", ""))
    outcome.fatal = said.get("fatal") is True
    outcome.error = _exception(said, failure, codecs, what)
    outcome.code = _code(outcome.error)
    return outcome


def _exception(said: dict[str, Any], failure: dict[str, Any], codecs: Codecs, what: str) -> BaseException:
    name = said["type"]
    if "exit" in said:
        return SystemExit() if said["exit"] is None else SystemExit(said["exit"])
    if name == "KeyboardInterrupt":
        return KeyboardInterrupt(*([failure["text"]] if failure["text"] else []))
    if name in ("asyncio.exceptions.CancelledError", "concurrent.futures._base.CancelledError"):
        from asyncio import CancelledError

        return CancelledError(*([failure["text"]] if failure["text"] else []))
    module, _, short = name.rpartition(".")
    cls = getattr(errors, short, None) if module == "letitloop.errors" else None
    if isinstance(cls, type) and issubclass(cls, Halt):
        return _halt(cls, failure, codecs)
    return decode_failure(said["failure"], codecs, what)


def _halt(cls: type[Halt], failure: dict[str, Any], codecs: Codecs) -> Halt:
    """Rebuild a Halt, which no log ever holds: its class is ours, so is its constructor."""
    halt = cls(failure["text"])
    for name, data in as_fields(failure.get("state", {})).items():
        try:
            setattr(halt, name, codecs.decode(data))
        except CodecError:
            continue
    return halt


def _code(exc: BaseException) -> int:
    if isinstance(exc, SystemExit):
        return 0 if exc.code is None else exc.code & 0xFF if isinstance(exc.code, int) else 1
    from letitloop.runs.exits import exit_code

    return exit_code(exc) or (130 if isinstance(exc, KeyboardInterrupt) else 1)
