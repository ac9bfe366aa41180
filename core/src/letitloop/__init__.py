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
    from letitloop.effects.authority import Approval as Approval
    from letitloop.effects.authority import Limit as Limit
    from letitloop.effects.guard import Trusted as Trusted
    from letitloop.effects.guard import effect as effect
    from letitloop.effects.guard import effect_context as effect_context
    from letitloop.effects.guard import from_context as from_context
    from letitloop.effects.guard import register_provider as register_provider
    from letitloop.effects.intent import Intent as Intent
    from letitloop.effects.intent import IntentEvent as IntentEvent
    from letitloop.effects.intent import Redacted as Redacted
    from letitloop.effects.intent import Ticket as Ticket
    from letitloop.effects.ledger import Ledger as Ledger
    from letitloop.effects.marker import atomic_marker as atomic_marker
    from letitloop.errors import ActionConflict as ActionConflict
    from letitloop.errors import ApprovalRequired as ApprovalRequired
    from letitloop.errors import AsyncMisuse as AsyncMisuse
    from letitloop.errors import CodecError as CodecError
    from letitloop.errors import DecodeError as DecodeError
    from letitloop.errors import Fenced as Fenced
    from letitloop.errors import ForeignFile as ForeignFile
    from letitloop.errors import GeneratorFunction as GeneratorFunction
    from letitloop.errors import Halt as Halt
    from letitloop.errors import InFlight as InFlight
    from letitloop.errors import IntentFailed as IntentFailed
    from letitloop.errors import IntentNotFound as IntentNotFound
    from letitloop.errors import IntentPruned as IntentPruned
    from letitloop.errors import InvalidArgument as InvalidArgument
    from letitloop.errors import LetItLoopError as LetItLoopError
    from letitloop.errors import LogCorrupt as LogCorrupt
    from letitloop.errors import LogError as LogError
    from letitloop.errors import LogLocked as LogLocked
    from letitloop.errors import LogPoisoned as LogPoisoned
    from letitloop.errors import LogSuspect as LogSuspect
    from letitloop.errors import LogVersionError as LogVersionError
    from letitloop.errors import LogWriteFailed as LogWriteFailed
    from letitloop.errors import NotAuthorized as NotAuthorized
    from letitloop.errors import ProcessDied as ProcessDied
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
    from letitloop.supervision.reports import SupervisionEvent as SupervisionEvent
    from letitloop.supervision.supervise import supervise as supervise

_HOME = {  # of all names but the errors'
    "Approval": "letitloop.effects.authority",
    "Codecs": "letitloop.codecs",
    "DirectoryStore": "letitloop.store.directory",
    "Intent": "letitloop.effects.intent",
    "IntentEvent": "letitloop.effects.intent",
    "Ledger": "letitloop.effects.ledger",
    "Limit": "letitloop.effects.authority",
    "MemoryStore": "letitloop.store.directory",
    "Redacted": "letitloop.effects.intent",
    "Retry": "letitloop.runs.retry",
    "Ticket": "letitloop.effects.intent",
    "Trusted": "letitloop.effects.guard",
    "async_step": "letitloop.runs.api",
    "atomic_marker": "letitloop.effects.marker",
    "carry": "letitloop.runs.scope",
    "current_run": "letitloop.runs.api",
    "durable": "letitloop.runs.api",
    "durable_async": "letitloop.runs.api",
    "effect": "letitloop.effects.guard",
    "effect_context": "letitloop.effects.guard",
    "from_context": "letitloop.effects.guard",
    "register": "letitloop.codecs",
    "register_provider": "letitloop.effects.guard",
    "scope": "letitloop.runs.api",
    "SupervisionEvent": "letitloop.supervision.reports",
    "supervise": "letitloop.supervision.supervise",
    "step": "letitloop.runs.api",
}
__all__ = [
    "ActionConflict",
    "Approval",
    "ApprovalRequired",
    "AsyncMisuse",
    "CodecError",
    "Codecs",
    "DecodeError",
    "DirectoryStore",
    "Fenced",
    "ForeignFile",
    "GeneratorFunction",
    "Halt",
    "InFlight",
    "Intent",
    "IntentEvent",
    "IntentFailed",
    "IntentNotFound",
    "IntentPruned",
    "InvalidArgument",
    "Ledger",
    "LetItLoopError",
    "Limit",
    "LogCorrupt",
    "LogError",
    "LogLocked",
    "LogPoisoned",
    "LogSuspect",
    "LogVersionError",
    "LogWriteFailed",
    "MemoryStore",
    "NotAuthorized",
    "ProcessDied",
    "RecordTooLarge",
    "RecordedError",
    "Redacted",
    "Retry",
    "RunFinished",
    "RunHalted",
    "RunNotFound",
    "SchemaChanged",
    "SealError",
    "StepChanged",
    "StepOutsideRun",
    "StoreError",
    "SupervisionEvent",
    "Ticket",
    "Trusted",
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
    "effect",
    "effect_context",
    "from_context",
    "register",
    "register_provider",
    "scope",
    "step",
    "supervise",
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
