"""The two error trees of letitloop.

:class:`LetItLoopError` derives from :class:`Exception`: what a program may catch and handle.
:class:`Halt` derives from :class:`BaseException`: what must reach the caller of a run, so that no ``except Exception``, no
framework's error handler and no retry policy turns it into something to react to.

Every message says what happened, to which run and step, what is safe now, and what to do next.
"""

from __future__ import annotations

__all__ = [
    "ActionConflict",
    "ApprovalRequired",
    "AsyncMisuse",
    "CodecError",
    "DecodeError",
    "Fenced",
    "ForeignFile",
    "GeneratorFunction",
    "Halt",
    "InFlight",
    "IntentFailed",
    "IntentNotFound",
    "IntentPruned",
    "InvalidArgument",
    "LetItLoopError",
    "LogCorrupt",
    "LogError",
    "LogLocked",
    "LogPoisoned",
    "LogSuspect",
    "LogVersionError",
    "LogWriteFailed",
    "NotAuthorized",
    "ProcessDied",
    "RecordTooLarge",
    "RecordedError",
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
]


class LetItLoopError(Exception):
    """Root of the errors that a program may catch and handle."""


class Halt(BaseException):
    """Root of the conditions that must reach the caller of a run unhandled.

    A ``Halt`` is no ``Exception``: tool executors and retry loops that catch ``Exception`` let it pass.
    """


def command(*words: str) -> str:
    r"""Return a command of ``lil`` as a message names it, in quotes, with its words as a shell takes them.

    Example:
        >>> command("rewind", "report", "fetch the mail")
        '"lil rewind report \'fetch the mail\'"'
    """
    import shlex

    typed = shlex.join(("lil", *words))
    return f'"{typed}"' if "'" in typed else f"'{typed}'"


# --- arguments and misuse ----------------------------------------------------------------------------------------------------


class InvalidArgument(LetItLoopError, ValueError):
    """An argument of the public API has a value that means nothing; nothing was run or written."""


class StepOutsideRun(LetItLoopError):
    """A step, scope or marker was used where no run is current; it was not executed."""


class AsyncMisuse(LetItLoopError, TypeError):
    """An async function was given to sync code or the reverse; it was not executed."""


class GeneratorFunction(LetItLoopError, TypeError):
    """A generator function cannot be a run or a step: what it yields cannot be recorded as one value."""


# --- values and bytes --------------------------------------------------------------------------------------------------------


class CodecError(LetItLoopError):
    """Root of the errors between values and bytes."""


class UnencodableError(CodecError, TypeError):
    """A value cannot be recorded exactly.

    Attributes:
        path: where in the value the culprit lies, e.g. ``result['user'].session``.
        type_name: the qualified name of the culprit's type.
    """

    def __init__(self, message: str, *, path: str = "", type_name: str = "") -> None:
        super().__init__(message)
        self.path = path
        self.type_name = type_name


class DecodeError(CodecError, ValueError):
    """Bytes are no value that this version of letitloop writes."""


class UnknownType(DecodeError):
    """A recorded class is not known here: neither registered nor among the imported modules.

    Attributes:
        tag: the recorded name, ``module:qualname`` or the registered one.
    """

    def __init__(self, message: str, *, tag: str = "") -> None:
        super().__init__(message)
        self.tag = tag


class SchemaChanged(DecodeError):
    """A recorded class has other fields than the class of that name has now.

    Attributes:
        tag: the recorded name of the class.
        missing: fields that were recorded and are gone.
        added: fields that the class has now and the record has not.
    """

    def __init__(self, message: str, *, tag: str = "", missing: tuple[str, ...] = (), added: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.tag = tag
        self.missing = missing
        self.added = added


# --- the log -----------------------------------------------------------------------------------------------------------------


class LogError(LetItLoopError):
    """Root of the errors of a write-ahead log.

    Attributes:
        path: the log's file.
    """

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class ForeignFile(LogError):
    """The file is no log of letitloop; it was left as it is."""


class LogVersionError(LogError):
    """The log was written by a newer letitloop; it was left as it is."""


class LogCorrupt(LogError):
    """A durable record is damaged (rot): the log is refused for writing and left as it is.

    Attributes:
        offset: where the damaged record starts, in bytes from the start of the file.
        seq: the sequence number that the damaged record should have.
        durable: the number of records that were synced before the damage was found to lie among them.
    """

    def __init__(self, message: str, *, path: str = "", offset: int = 0, seq: int = 0, durable: int = 0) -> None:
        super().__init__(message, path=path)
        self.offset = offset
        self.seq = seq
        self.durable = durable


class LogSuspect(LogError):
    """The last record is complete but damaged, and the log holds effects: whether it was acknowledged cannot be told.

    Attributes:
        offset: where the doubtful record starts, in bytes from the start of the file.
        seq: the sequence number that the doubtful record should have.
    """

    def __init__(self, message: str, *, path: str = "", offset: int = 0, seq: int = 0) -> None:
        super().__init__(message, path=path)
        self.offset = offset
        self.seq = seq


class LogLocked(LogError):
    """Another live process (or another opening in this process) holds the log.

    Attributes:
        pid: the holder's process id, 0 where it is not known.
    """

    def __init__(self, message: str, *, path: str = "", pid: int = 0) -> None:
        super().__init__(message, path=path)
        self.pid = pid


class RecordTooLarge(LogError):
    """A record is larger than 1 GiB; nothing was written."""


class LogWriteFailed(LogError):
    """The system refused a write (disk full, quota, I/O error) before anything was acknowledged."""


class SealError(LogError):
    """A sealed log's key is missing or wrong, or its chain of message authentication codes is broken."""


class LogPoisoned(Halt):
    """A write or sync of this log failed earlier in this process: nothing more is acknowledged by it.

    What was acknowledged before is safe. Start the program again: recovery decides what the disk really holds.

    Attributes:
        path: the log's file.
    """

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


# --- stores and runs ---------------------------------------------------------------------------------------------------------


class StoreError(LetItLoopError):
    """A store cannot be used: its root is a file, read-only, or of an unknown scheme."""


class RunNotFound(StoreError, LookupError):
    """No run of that name lies in the store."""


class RunFinished(LetItLoopError):
    """A finished run was called again under ``on_complete="raise"``."""


class RunHalted(LetItLoopError):
    """Work that :func:`~letitloop.carry` took to another thread met a :class:`Halt`; the caller of the run gets the Halt itself.

    On a thread of a pool the Halt would end the worker, and whoever waits for its result would wait for ever.
    """


class RecordedError(LetItLoopError):
    """A recorded failure whose class cannot be rebuilt from data.

    Attributes:
        type_name: the recorded exception's class, ``module:qualname``.
        text: its recorded message.
        recorded_traceback: its recorded traceback, as text.
    """

    def __init__(self, message: str, *, type_name: str = "", text: str = "", recorded_traceback: str = "") -> None:
        super().__init__(message)
        self.type_name = type_name
        self.text = text
        self.recorded_traceback = recorded_traceback


class StepChanged(Halt):
    """A step's arguments differ from the recorded ones, so its recorded result answers another question.

    Attributes:
        run_id: the run.
        step: the step's key, as ``lil show`` prints it and ``lil rewind`` takes it.
        arguments: the names of the arguments that differ.
    """

    def __init__(self, message: str, *, run_id: str = "", step: str = "", arguments: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.step = step
        self.arguments = arguments


# --- actions on the outside world --------------------------------------------------------------------------------------------


class ActionConflict(LetItLoopError):
    """Another action is on record under this key; that record stands, and nothing was done.

    Attributes:
        kind: what differs: ``"payload"``, ``"provider"``, or ``"operation"``.
        namespace: whose action it is.
        key: which action it is.
        fields: the names of the arguments that differ; their values are not told.
    """

    def __init__(
        self, message: str, *, kind: str = "payload", namespace: str = "", key: str = "", fields: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.namespace = namespace
        self.key = key
        self.fields = fields


class IntentFailed(LetItLoopError):
    """An action certainly did not happen.

    Attributes:
        kind: how that is certain: ``"not_sent"``, ``"rejected"``, ``"tombstoned"``, ``"human"``, or ``"cancelled"``.
        namespace: whose action it is.
        key: which action it is.
        certificate: the proof, in words.
        detail: the provider's own statement, if it made one.
    """

    def __init__(
        self, message: str, *, kind: str = "", namespace: str = "", key: str = "", certificate: str = "", detail: object = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.namespace = namespace
        self.key = key
        self.certificate = certificate
        self.detail = detail


class InFlight(LetItLoopError):
    """The action is being carried out right now, by a live owner; it was not started a second time.

    Attributes:
        namespace: whose action it is.
        key: which action it is.
        owner: who carries it out.
    """

    def __init__(self, message: str, *, namespace: str = "", key: str = "", owner: str = "") -> None:
        super().__init__(message)
        self.namespace = namespace
        self.key = key
        self.owner = owner


class ApprovalRequired(LetItLoopError):
    """The action is recorded and waits for somebody's approval; nothing was sent.

    Attributes:
        namespace: whose action it is.
        key: which action it is.
    """

    def __init__(self, message: str, *, namespace: str = "", key: str = "") -> None:
        super().__init__(message)
        self.namespace = namespace
        self.key = key


class NotAuthorized(LetItLoopError):
    """The application did not authorise this action: a limit, a ticket, or a trusted value refuses it; nothing was recorded."""


class IntentNotFound(LetItLoopError, LookupError):
    """The ledger has no intent of this namespace and key."""


class IntentPruned(LetItLoopError):
    """This key was used long ago, and its record was pruned; nothing was sent.

    Attributes:
        namespace: whose action it was.
        key: which action it was.
        state: the state it had in the end.
    """

    def __init__(self, message: str, *, namespace: str = "", key: str = "", state: str = "") -> None:
        super().__init__(message)
        self.namespace = namespace
        self.key = key
        self.state = state


class Fenced(Halt):
    """A stale owner came back with a result that contradicts what was settled meanwhile; it was kept as evidence.

    Attributes:
        namespace: whose action it is.
        key: which action it is.
    """

    def __init__(self, message: str, *, namespace: str = "", key: str = "") -> None:
        super().__init__(message)
        self.namespace = namespace
        self.key = key


class UnknownOutcome(Halt):
    """An action on the outside world may or may not have happened, and nothing here can tell.

    Attributes:
        namespace: whose action it is: an account, a tenant, or a run.
        key: which action it is.
        reason: what was seen, in words.
    """

    def __init__(self, message: str, *, namespace: str = "", key: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.namespace = namespace
        self.key = key
        self.reason = reason


# --- processes ---------------------------------------------------------------------------------------------------------------


class ProcessDied(LetItLoopError):
    """The process of a supervised function died, and was not started again.

    Attributes:
        reason: how it died, in words: ``SIGKILL``.
        exit_code: its exit code; 128+n for signal n.
        restarts: how often it was started again before.
        stderr: the last lines that it wrote to standard error.
    """

    def __init__(
        self, message: str, *, reason: str = "", exit_code: int = 0, restarts: int = 0, stderr: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.exit_code = exit_code
        self.restarts = restarts
        self.stderr = stderr
