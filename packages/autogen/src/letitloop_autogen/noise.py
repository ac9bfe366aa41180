"""What nobody needs to read: what AutoGen's runtime logs of a run that has to stop, and our own frames in what a team tells."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING

import letitloop
from letitloop.errors import RunHalted

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["be_quiet", "without_our_frames"]

_UNHEARD = "Unhandled message in agent container: <class 'autogen_agentchat.teams._group_chat._events.GroupChatError'>"
"""How the agents of a team answer the news of an error, which is none of theirs."""


class _OfStoppedRuns(logging.Filter):
    """Drops what follows from the way in which the adapter stops a run."""

    def __init__(self, is_stopped: Callable[[], bool]) -> None:
        super().__init__()
        self._is_stopped = is_stopped

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, RunHalted) or str(error).startswith("RunHalted: "):  # as a team hands on what ended one in it
            return False
        follows = isinstance(error, asyncio.CancelledError) or str(error) == _UNHEARD
        return not (follows and self._is_stopped())


def be_quiet(is_stopped: Callable[[], bool]) -> None:
    """Keep what follows from a stopped run out of the log of AutoGen's runtime; once.

    Args:
        is_stopped: tells of the run that the caller is in whether it has to stop.
    """
    logger = logging.getLogger("autogen_core")
    if not any(isinstance(one, _OfStoppedRuns) for one in logger.filters):
        logger.addFilter(_OfStoppedRuns(is_stopped))


_HOMES = "|".join(re.escape(str(Path(one).parent)) for one in (__file__, str(letitloop.__file__)))
_OUR_FRAMES = re.compile(rf'^  File "(?:{_HOMES})[/\\][^"\n]*", line \d+, in .*\n(?:    .*\n|\n)*', re.MULTILINE)


def without_our_frames(text: str) -> str:
    """Return a text with tracebacks in it as it would be without this adapter: a model may read it."""
    return _OUR_FRAMES.sub("", text)
