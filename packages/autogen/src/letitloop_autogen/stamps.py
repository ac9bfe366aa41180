"""The ids and times of a finished run's messages: AutoGen makes new ones each time, a repeated run returns the recorded ones."""

from __future__ import annotations

from collections import deque
from datetime import datetime
from typing import Any

from autogen_agentchat.messages import ModelClientStreamingChunkEvent

__all__ = ["Stamps"]


class Stamps:
    """Gives the messages of a repeated run the ids and times of the recorded run's.

    Args:
        recorded: what was recorded at its end.
    """

    def __init__(self, recorded: Any) -> None:
        self._rows: list[list[str]] = recorded["messages"]
        self._left: dict[tuple[str, str], deque[list[str]]] = {}
        self._reset()

    def _reset(self) -> None:
        self._left.clear()
        self._whole: dict[str, str] = {}
        for kind, source, *rest in self._rows:  # by speaker: those who speak at the same time come in any order
            self._left.setdefault((kind, source), deque()).append(rest)

    @staticmethod
    def of(messages: Any) -> list[list[str]]:
        """Return what is recorded of messages, and of the first chunks of those that were streamed."""
        return [[type(one).__name__, one.source, _id_of(one), one.created_at.isoformat()] for one in messages]

    def put(self, message: Any) -> None:
        """Stamp the next message of its kind and speaker; one that the recorded run had not is left as it is."""
        if isinstance(message, ModelClientStreamingChunkEvent):
            self._put_on_chunk(message)
            return
        rows = self._left.get((type(message).__name__, message.source))
        if rows:
            message.id, at = rows.popleft()
            message.created_at = datetime.fromisoformat(at)

    def _put_on_chunk(self, chunk: ModelClientStreamingChunkEvent) -> None:
        """Let a chunk tell the recorded id of the message that it is a part of."""
        now = chunk.full_message_id
        rows = self._left.get((type(chunk).__name__, chunk.source))
        if now and now not in self._whole and rows:
            self._whole[now] = rows.popleft()[0]
        chunk.full_message_id = self._whole.get(now, now) if now else now

    def put_all(self, messages: Any) -> None:
        """Stamp a whole run's messages."""
        self._reset()
        for one in messages:
            self.put(one)


def _id_of(message: Any) -> str:
    return str(message.full_message_id if isinstance(message, ModelClientStreamingChunkEvent) else message.id)
