"""What agents of llama-index-core keep, recorded exactly: chat messages, tool outputs, chat memory. Imported when it is.

pydantic 2.14 breaks the framework's own serialisation of chat memory, which then drops it; this one takes the objects' raw state.
A memory's tokenizer, its database and its models are no data: a program that is run again has made them anew, and the recorded
messages are put into those.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.memory import ChatMemoryBuffer, Memory
from llama_index.core.storage.chat_store import SimpleChatStore
from llama_index.core.storage.chat_store.base_db import MessageStatus
from llama_index.core.tools import ToolOutput
from llama_index.core.utils import get_tokenizer  # pyright: ignore[reportUnknownVariableType]  # typed in part

from letitloop.codecs import Codecs
from letitloop.codecs.ext import class_of
from letitloop.errors import DecodeError, UnencodableError
from letitloop.runs.failures import decode_failure, encode_failure

if TYPE_CHECKING:
    from letitloop_llamaindex.ticks import TickCodec

__all__ = ["fetch", "put_back", "register_with"]

_STATUSES = (MessageStatus.ARCHIVED, MessageStatus.ACTIVE)


def register_with(codec: TickCodec) -> None:
    """Let a codec record messages and tool outputs by number, and chat memory."""
    plain = Codecs()

    def message(value: Any) -> int:
        return codec.remembered(value, partial(plain.encode, path="message"))

    def message_of(number: Any) -> Any:
        return plain.decode(codec.body(number))

    def output(value: Any) -> int:
        return codec.remembered(value, encode_output)

    def encode_output(value: Any) -> bytes:
        failure = None if value.exception is None else encode_failure(value.exception, plain)
        fields = {**_fields(value), "exception": failure}
        return plain.encode(fields, path="tool_output")

    def output_of(number: Any) -> Any:
        fields: Any = plain.decode(codec.body(number))
        exception = fields.pop("exception")
        made = ToolOutput.model_construct(**fields)
        made._exception = None if exception is None else decode_failure(exception, plain, "a tool")
        return made

    codec.codecs.register(ChatMessage, encode=message, decode=message_of, name="m")
    codec.codecs.register(ToolOutput, encode=output, decode=output_of, name="o")
    codec.codecs.register(
        ChatMemoryBuffer, encode=lambda memory: _buffer(_live(codec, memory)), decode=lambda data: _buffer_of(codec, data)
    )
    codec.codecs.register(
        Memory, encode=lambda memory: _memory(codec, _live(codec, memory)), decode=lambda data: _memory_of(codec, data)
    )


def _live(codec: TickCodec, memory: Any) -> Any:
    if codec.capturing:
        raise UnencodableError("a chat memory is what it is now: it is not given to a step as it was.", path="", type_name="memory")
    return memory


# --- ChatMemoryBuffer --------------------------------------------------------------------------------------------------------


def _buffer(memory: Any) -> dict[str, Any]:
    store = memory.chat_store
    return {
        "token_limit": memory.token_limit,
        "key": memory.chat_store_key,
        "messages": dict(store.store) if type(store) is SimpleChatStore else store.get_messages(memory.chat_store_key),
        "own": type(store) is not SimpleChatStore or memory.tokenizer_fn is not get_tokenizer(),
    }


def _buffer_of(codec: TickCodec, data: Any) -> ChatMemoryBuffer:
    memory: Any = codec.live.get("memory")
    if not isinstance(memory, ChatMemoryBuffer):
        _refuse_own(data)
        memory = ChatMemoryBuffer(token_limit=data["token_limit"], chat_store_key=data["key"], chat_store=SimpleChatStore())
    memory.token_limit = data["token_limit"]
    store: Any = memory.chat_store
    messages: Any = data["messages"]
    if type(store) is SimpleChatStore and class_of(messages) is dict:
        store.store = messages
    else:
        store.set_messages(data["key"], messages.get(data["key"], []) if class_of(messages) is dict else messages)
    return memory  # type: ignore[no-any-return]  # one of that class


def _refuse_own(data: Any) -> None:
    if data["own"]:
        raise DecodeError(
            "the recorded chat memory had a tokenizer, a chat store or memory blocks of its own, which are no data: give the run "
            "the same memory= again."
        )


# --- Memory ------------------------------------------------------------------------------------------------------------------


async def fetch(codec: TickCodec, value: object) -> None:
    """Read a memory's messages out of its database, for the record that is made next."""
    if isinstance(value, Memory):
        codec.fetched[id(value)] = [await value.sql_store.get_messages(value.session_id, status=status) for status in _STATUSES]


async def put_back(codec: TickCodec) -> None:
    """Put the recorded messages into the databases of the memories that were decoded."""
    while codec.unpacked:
        memory, messages = codec.unpacked.popitem()[1]
        archived, active = messages
        await memory.sql_store.set_messages(memory.session_id, archived, status=MessageStatus.ARCHIVED)
        if active:
            await memory.sql_store.add_messages(memory.session_id, active, status=MessageStatus.ACTIVE)


_NO_DATA = ("tokenizer_fn", "sql_store", "memory_blocks", "memory_blocks_template")


def _memory(codec: TickCodec, memory: Any) -> dict[str, Any]:
    return {
        "fields": {name: value for name, value in _fields(memory).items() if name not in _NO_DATA},
        "messages": codec.fetched.pop(id(memory), None),
        "blocks": {block.name: _recordable(codec, block) for block in memory.memory_blocks},
        "own": bool(memory.memory_blocks) or memory.tokenizer_fn is not get_tokenizer(),
    }


def _fields(value: object) -> dict[str, Any]:
    return dict(vars(value))


def _recordable(codec: TickCodec, block: object) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in _fields(block).items():
        try:
            codec.codecs.encode(value)
        except UnencodableError:
            continue  # a model, an index: the program makes it again
        found[name] = value
    return found


def _memory_of(codec: TickCodec, data: Any) -> Memory:
    memory: Memory | None = codec.live.get("memory")
    if not isinstance(memory, Memory):
        _refuse_own(data)
        memory = Memory(**data["fields"])
    for name, value in data["fields"].items():
        setattr(memory, name, value)
    for block in memory.memory_blocks:  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # typed in part
        for name, value in data["blocks"].get(block.name, {}).items():
            setattr(block, name, value)  # pyright: ignore[reportUnknownArgumentType]
    if data["messages"] is not None:
        codec.unpacked[id(memory)] = memory, data["messages"]
    return memory
