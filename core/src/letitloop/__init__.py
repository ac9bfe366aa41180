"""Crash-proof Python functions and AI agents, without a daemon.

``@durable`` makes a function a run whose completed steps lie in a write-ahead log; run the program again after a crash, and it
goes on from the exact step where it died.

Names resolve on first use, so that ``import letitloop`` costs next to nothing.
"""

from __future__ import annotations

from letitloop.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from letitloop.codecs import Codecs as Codecs
    from letitloop.codecs import register as register
    from letitloop.effects.marker import atomic_marker as atomic_marker
    from letitloop.errors import AsyncMisuse as AsyncMisuse
    from letitloop.errors import CodecError as CodecError
    from letitloop.errors import DecodeError as DecodeError
    from letitloop.errors import ForeignFile as ForeignFile
    from letitloop.errors import GeneratorFunction as GeneratorFunction
    from letitloop.errors import Halt as Halt
    from letitloop.errors import InvalidArgument as InvalidArgument
    from letitloop.errors import LetItLoopError as LetItLoopError
    from letitloop.errors import LogCorrupt as LogCorrupt
    from letitloop.errors import LogError as LogError
    from letitloop.errors import LogLocked as LogLocked
    from letitloop.errors import LogPoisoned as LogPoisoned
    from letitloop.errors import LogSuspect as LogSuspect
    from letitloop.errors import LogVersionError as LogVersionError
    from letitloop.errors import LogWriteFailed as LogWriteFailed
    from letitloop.errors import RecordedError as RecordedError
    from letitloop.errors import RecordTooLarge as RecordTooLarge
    from letitloop.errors import RunFinished as RunFinished
    from letitloop.errors import RunHalted as RunHalted
    from letitloop.errors import RunNotFound as RunNotFound
    from letitloop.errors import SchemaChanged as SchemaChanged
    from letitloop.errors import SealError as SealError
    from letitloop.errors import StepChanged as StepChanged
    from letitloop.errors import StepOutsideRun as StepOutsideRun
    from letitloop.errors import StoreError as StoreError
    from letitloop.errors import UnencodableError as UnencodableError
    from letitloop.errors import UnknownOutcome as UnknownOutcome
    from letitloop.errors import UnknownType as UnknownType
    from letitloop.runs.api import async_step as async_step
    from letitloop.runs.api import current_run as current_run
    from letitloop.runs.api import durable as durable
    from letitloop.runs.api import durable_async as durable_async
    from letitloop.runs.api import scope as scope
    from letitloop.runs.api import step as step
    from letitloop.runs.retry import Retry as Retry
    from letitloop.runs.scope import carry as carry
    from letitloop.store.directory import DirectoryStore as DirectoryStore
    from letitloop.store.directory import MemoryStore as MemoryStore

_HOME = {  # of all names but the errors'
    "Codecs": "letitloop.codecs",
    "DirectoryStore": "letitloop.store.directory",
    "MemoryStore": "letitloop.store.directory",
    "Retry": "letitloop.runs.retry",
    "async_step": "letitloop.runs.api",
    "atomic_marker": "letitloop.effects.marker",
    "carry": "letitloop.runs.scope",
    "current_run": "letitloop.runs.api",
    "durable": "letitloop.runs.api",
    "durable_async": "letitloop.runs.api",
    "register": "letitloop.codecs",
    "scope": "letitloop.runs.api",
    "step": "letitloop.runs.api",
}
__all__ = [
    "AsyncMisuse",
    "CodecError",
    "Codecs",
    "DecodeError",
    "DirectoryStore",
    "ForeignFile",
    "GeneratorFunction",
    "Halt",
    "InvalidArgument",
    "LetItLoopError",
    "LogCorrupt",
    "LogError",
    "LogLocked",
    "LogPoisoned",
    "LogSuspect",
    "LogVersionError",
    "LogWriteFailed",
    "MemoryStore",
    "RecordTooLarge",
    "RecordedError",
    "Retry",
    "RunFinished",
    "RunHalted",
    "RunNotFound",
    "SchemaChanged",
    "SealError",
    "StepChanged",
    "StepOutsideRun",
    "StoreError",
    "UnencodableError",
    "UnknownOutcome",
    "UnknownType",
    "__version__",
    "async_step",
    "atomic_marker",
    "carry",
    "current_run",
    "durable",
    "durable_async",
    "register",
    "scope",
    "step",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'letitloop' has no attribute {name!r}")
    import sys

    home = _HOME.get(name, "letitloop.errors")
    __import__(home)
    value = getattr(sys.modules[home], name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
