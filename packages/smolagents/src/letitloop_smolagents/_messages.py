"""Messages of models as data, and what tells one prompt from another."""

from __future__ import annotations

import hashlib
import re
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from letitloop.codecs import default_codecs
from letitloop.codecs.ext import class_of
from letitloop.errors import CodecError
from letitloop_smolagents._framework import models, monitoring
from letitloop_smolagents._values import identity, pixels, portable, restored

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Told = tuple[Any, "str | None", bytes, bool]

__all__ = ["asked", "freeze", "freeze_deltas", "thaw", "thaw_deltas"]

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_SECRET = re.compile(r"key|token|secret|password|authorization|credential", re.IGNORECASE)


# --- as data -----------------------------------------------------------------------------------------------------------------


def freeze(message: Any) -> dict[str, Any]:
    """Return a model's answer as data. What the provider sent besides is kept only if it can be recorded."""
    frozen: dict[str, Any] = {"role": str(getattr(message.role, "value", message.role)), "content": portable(message.content)}
    if message.tool_calls is not None:
        frozen["tool_calls"] = [
            [call.id, call.type, call.function.name, portable(call.function.arguments), call.function.description]
            for call in message.tool_calls
        ]
    if message.token_usage is not None:
        frozen["tokens"] = [message.token_usage.input_tokens, message.token_usage.output_tokens]
    if message.raw is not None:
        try:
            # apart, so that a provider's library of another version costs no more than this
            frozen["raw"] = default_codecs.encode(message.raw)
        except CodecError:
            pass
    return frozen


def thaw(frozen: dict[str, Any]) -> Any:
    """Return the answer of which :func:`freeze` gave this."""
    role: Any = frozen["role"]
    calls = frozen.get("tool_calls")
    try:
        raw = default_codecs.decode(frozen["raw"]) if "raw" in frozen else None
    except CodecError:
        raw = None
    return models.ChatMessage(
        role=models.MessageRole(role) if role in models.MessageRole.roles() else role,
        content=restored(frozen["content"]),
        tool_calls=None if calls is None else [_thaw_call(call) for call in calls],
        raw=raw,
        token_usage=_thaw_tokens(frozen.get("tokens")),
    )


def _thaw_call(call: Sequence[Any]) -> Any:
    identifier, kind, name, arguments, description = call
    function = models.ChatMessageToolCallFunction(arguments=restored(arguments), name=name, description=description)
    return models.ChatMessageToolCall(function=function, id=identifier, type=kind)


def _thaw_tokens(tokens: Sequence[int] | None) -> Any:
    return None if tokens is None else monitoring.TokenUsage(input_tokens=tokens[0], output_tokens=tokens[1])


def freeze_deltas(deltas: Iterable[Any]) -> list[Any]:
    """Return the pieces of a streamed answer as data: a bare text for most of them."""
    return [_freeze_delta(delta) for delta in deltas]


def _freeze_delta(delta: Any) -> Any:
    usage, calls = delta.token_usage, delta.tool_calls
    if usage is None and calls is None:
        return delta.content
    frozen = [
        [call.index, call.id, call.type, None if call.function is None else [call.function.name, call.function.arguments]]
        for call in calls or ()
    ]
    tokens = None if usage is None else [usage.input_tokens, usage.output_tokens]
    return [delta.content, None if calls is None else frozen, tokens]


def thaw_deltas(frozen: list[Any]) -> Iterable[Any]:
    """Yield the pieces of which :func:`freeze_deltas` gave this."""
    for piece in frozen:
        content, calls, tokens = piece if class_of(piece) is list else (piece, None, None)
        yield models.ChatMessageStreamDelta(
            content=content,
            tool_calls=None if calls is None else [_thaw_call_delta(call) for call in calls],
            token_usage=_thaw_tokens(tokens),
        )


def _thaw_call_delta(call: Sequence[Any]) -> Any:
    index, identifier, kind, function = call
    made = None if function is None else models.ChatMessageToolCallFunction(name=function[0], arguments=function[1])
    return models.ChatMessageToolCallStreamDelta(index=index, id=identifier, type=kind, function=made)


# --- identity ----------------------------------------------------------------------------------------------------------------


def asked(model: Any, messages: Sequence[Any], options: dict[str, Any], before: list[Told]) -> dict[str, object]:
    """Return what a call of a model asks, by name: a recorded answer is never handed to a call that asks something else.

    Args:
        model: the model itself.
        messages: the prompt.
        options: what else it is called with.
        before: the messages of the prompt before, which this one replaces there: most of them are said again.
    """
    prompt: list[Told] = []
    for message, was in zip(messages, chain(before, repeat(None)), strict=False):
        prompt.append(was if was is not None and _again(message, was) else _told(message))
    before[:] = prompt
    options = dict(options)
    tools = options.pop("tools_to_call_from", None)
    words: dict[str, object] = {
        "system_prompt": b"".join([digest for _, _, digest, system in prompt if system]),
        "messages": hashlib.blake2b(b"".join([digest for _, _, digest, system in prompt if not system]), digest_size=16).digest(),
        "model": [f"{class_of(model).__module__}:{class_of(model).__qualname__}", str(getattr(model, "model_id", "") or "")],
        "model_settings": identity(_settings(model)),
        "stop_sequences": options.pop("stop_sequences", None),
        "response_format": options.pop("response_format", None),
        "tools": None if tools is None else [_schema(tool) for tool in tools],
    }
    words.update({name: identity(value) for name, value in options.items()})
    return words


def _told(message: Any) -> Told:
    """Return a message's role, its text if it says nothing but one text, its digest, and whether it is the system's."""
    role, content, calls = _parts(message)
    text = None
    if class_of(message) is models.ChatMessage and class_of(content) is list and len(content) == 1 and not calls:
        part = content[0]
        if class_of(part) is dict and len(part) == 2 and part.get("type") == "text" and class_of(part.get("text")) is str:
            text = part["text"]
    return getattr(message, "role", None), text, _digest(str(role), content, calls), role == "system"


def _again(message: Any, was: Told) -> bool:
    """Tell whether a message says what one of the prompt before said. Most do, so this looks at no more than it has to."""
    role, text, _, _ = was
    if text is None or class_of(message) is not models.ChatMessage or message.role is not role or message.tool_calls:
        return False
    content = message.content
    if class_of(content) is not list or len(content) != 1 or class_of(part := content[0]) is not dict or len(part) != 2:
        return False
    said: Any = part.get("text")
    return class_of(said) is str and bool(said == text) and part.get("type") == "text"


def _parts(message: Any) -> tuple[Any, Any, Any]:
    if class_of(message) is dict:
        return str(message.get("role")), message.get("content"), message.get("tool_calls")
    role = message.role
    return getattr(role, "_value_", role), message.content, message.tool_calls


def _digest(role: str, content: Any, calls: Any) -> bytes:
    """Return 16 bytes that tell a message from another one."""
    parts: list[Any] = [content] if isinstance(content, str) or content is None else content
    said = [role.encode(), *map(_said, parts)]
    if calls:
        told = [[call.id, call.function.name, identity(call.function.arguments)] for call in calls if hasattr(call, "function")]
        said.append(b"\4" + default_codecs.fingerprint((told,), {}))
    return hashlib.blake2b(b"\0".join(said), digest_size=16).digest()


def _said(part: Any) -> bytes:
    if class_of(part) is dict:
        if len(part) == 2 and part.get("type") == "text":
            return _text(part["text"])
        if part.get("type") == "image" and hasattr(part.get("image"), "tobytes"):
            return b"\1" + pixels(part["image"])
    elif isinstance(part, str):
        return _text(part)
    return b"\2" + default_codecs.fingerprint((identity(part),), {})


def _text(text: object) -> bytes:
    plain = text if isinstance(text, str) else str(text)
    if " at 0x" in plain:  # the address of an object that was printed: another one in each process
        plain = _ADDRESS.sub(" at 0x", plain)
    return b"\5" + plain.encode("utf-8", "surrogatepass")


def _schema(tool: Any) -> list[object]:
    return [tool.name, tool.description, identity(tool.inputs), str(getattr(tool, "output_type", ""))]


def _settings(model: Any) -> dict[str, Any]:
    settings: Any = getattr(model, "kwargs", None)
    if class_of(settings) is not dict:
        return {}
    plain: dict[str, Any] = settings
    return {name: value for name, value in plain.items() if not _SECRET.search(str(name)) or "max_tokens" in str(name)}
