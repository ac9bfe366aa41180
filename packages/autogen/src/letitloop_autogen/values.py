"""AutoGen's objects as plain data for the log, and back: its own JSON refuses some texts, and loses numbers and classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage, MessageFactory, StructuredMessage
from autogen_core import Image
from autogen_core.memory import MemoryContent, MemoryMimeType, MemoryQueryResult

from letitloop.errors import UnencodableError
from letitloop_autogen.tools import Stopped

if TYPE_CHECKING:
    from pydantic import BaseModel

    from letitloop.codecs import Codecs

__all__ = ["is_message", "message_from", "packed_memories", "plain", "plain_message", "unpacked_memories"]

_factory = MessageFactory()
_STRUCTURED = ("content", "type")


def plain(model: BaseModel) -> dict[str, Any]:
    """Return a model as data: file names with lone surrogates and infinite numbers as they are, which JSON text cannot hold."""
    return model.model_dump(mode="json")


# --- what a tool streams -----------------------------------------------------------------------------------------------------


def is_message(item: object) -> bool:
    """Tell whether AutoGen shows what a tool streams."""
    return isinstance(item, (BaseAgentEvent, BaseChatMessage))


def plain_message(message: Any, codecs: Codecs) -> Any:
    """Return what is recorded of a message; its class must be one that a reader of the log finds.

    Raises:
        Stopped: it cannot be recorded; the tool must not go on as if it could.
    """
    kind = type(message)
    if _factory._message_types.get(kind.__name__) is kind:
        return dict(message.dump())
    try:
        if getattr(kind, "__pydantic_generic_metadata__", {}).get("origin") is StructuredMessage:
            codecs.encode(message.content)
            return [message.content, {name: one for name, one in message.dump().items() if name not in _STRUCTURED}]
        codecs.encode(message)
    except UnencodableError as error:
        raise Stopped(error) from error
    return message


def message_from(recorded: Any) -> Any:
    """Return the message that something was recorded of."""
    if isinstance(recorded, dict):
        return _factory.create(recorded)
    if isinstance(recorded, list):
        content, rest = recorded
        return StructuredMessage[type(content)].model_validate({**rest, "content": content})  # type: ignore[misc]
    return recorded


# --- memories ----------------------------------------------------------------------------------------------------------------


def packed_memories(found: MemoryQueryResult) -> list[Any]:
    """Return what a memory found as data; AutoGen's own JSON of it cannot be read back."""
    return [
        [
            isinstance(one.content, Image),
            one.content.to_base64() if isinstance(one.content, Image) else one.content,
            isinstance(one.mime_type, MemoryMimeType),
            one.mime_type.value if isinstance(one.mime_type, MemoryMimeType) else one.mime_type,
            one.metadata,
        ]
        for one in found.results
    ]


def unpacked_memories(found: list[Any]) -> MemoryQueryResult:
    """Return what was recorded of what a memory found."""
    contents = [
        MemoryContent(
            content=Image.from_base64(content) if image else content,
            mime_type=MemoryMimeType(mime) if known else mime,
            metadata=metadata,
        )
        for image, content, known, mime, metadata in found
    ]
    return MemoryQueryResult(results=contents)
