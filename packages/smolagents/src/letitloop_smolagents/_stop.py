"""Errors on their way through the framework: those that no model may react to, and those that a model has seen."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from letitloop.errors import CodecError, LogError, RecordedError, StoreError
from letitloop.runs.failures import decode_failure, encode_failure

if TYPE_CHECKING:
    from letitloop.codecs import Codecs
    from letitloop_smolagents._binding import Binding

__all__ = ["NOT_SHOWN", "Stop", "as_it_was", "executed_again", "raise_seen", "running", "seen"]

running: ContextVar[bool] = ContextVar("letitloop_smolagents_running", default=False)
"""Whether the program is inside a run of a durable agent: an error may meet a model before it meets a person."""

executed_again: ContextVar[Binding | None] = ContextVar("letitloop_smolagents_executed_again", default=None)
"""Whose finished code is being executed again around here: nothing new may come of it, whichever agent it runs."""

_RAISED = "letitloop:raised"

NOT_SHOWN = (CodecError, LogError, StoreError)
"""Errors of recording: the user's business, and nothing that a model could react to."""


class Stop(BaseException):
    """Carries an error of letitloop to the caller of the outermost ``run``, who gets the error itself.

    Attributes:
        error: the error.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def seen(error: Exception, codecs: Codecs) -> dict[str, bytes]:
    """Return what is recorded of a failure that the model is shown.

    It is a result like any other, and history at once: the agent goes on with it, and what failed may have acted all the same.
    """
    return {_RAISED: encode_failure(error, codecs)}


def raise_seen(value: Any, codecs: Codecs, what: str) -> None:
    """Raise the failure of which :func:`seen` gave this; do nothing with any other value."""
    if isinstance(value, dict) and value.keys() == {_RAISED}:
        raise as_it_was(decode_failure(value[_RAISED], codecs, what))


def as_it_was(error: Exception) -> Exception:
    """Return a failure on record with the name and the text that it had: the model was shown them.

    A class that is not imported yet, or that was made inside a function, comes back as :class:`RecordedError`, which says more.
    """
    if type(error) is not RecordedError:
        return error
    name = error.type_name.rpartition(":")[2].rpartition(".")[2] or "Exception"
    made: RecordedError = type(name, (RecordedError,), {})(
        error.text, type_name=error.type_name, text=error.text, recorded_traceback=error.recorded_traceback
    )
    return made.with_traceback(error.__traceback__)
