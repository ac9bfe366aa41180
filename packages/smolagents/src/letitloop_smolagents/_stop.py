"""Errors on their way through the framework: those that no model may react to, and those that a model has seen."""

from __future__ import annotations

from letitloop.errors import CodecError, LogError, RecordedError, StoreError

__all__ = ["NOT_SHOWN", "Stop", "as_it_was"]

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
