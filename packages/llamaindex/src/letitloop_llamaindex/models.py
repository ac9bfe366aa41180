"""A model whose answered calls never repeat."""

from __future__ import annotations

import copy
from functools import partial
from typing import TYPE_CHECKING, Any

from llama_index.core.base.llms.types import ChatResponse
from llama_index.core.llms import LLM

from letitloop.errors import InvalidArgument, UnencodableError
from letitloop.integration.leaves import aleaf, leaf
from letitloop.integration.open_leaves import OpenLeaf
from letitloop.runs.drive_async import in_thread
from letitloop.runs.scope import find_scope

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator

    from letitloop.runs.scope import Scope

__all__ = ["inner_llm", "is_durable", "model_of", "schema_of", "wrap_llm"]

_SYNC = ("chat", "complete", "chat_with_tools")
_ASYNC = ("achat", "acomplete", "achat_with_tools")
_STREAMS = ("stream_chat", "stream_complete", "stream_chat_with_tools")
_ASYNC_STREAMS = ("astream_chat", "astream_complete", "astream_chat_with_tools")
_NAMES = {"prompt": "messages", "chat_history": "messages"}
_INNER = "_letitloop_inner"

_classes: dict[type, type] = {}


def wrap_llm(llm: Any) -> Any:
    """See :func:`letitloop_llamaindex.durable_llm`."""
    if not isinstance(llm, LLM):
        raise InvalidArgument(f"durable_llm was given {type(llm).__name__}, which is no LLM of llama-index-core.")
    if is_durable(llm):
        return llm
    cls: Any = type(llm)
    made = _classes.get(cls)
    if made is None:
        made = _classes[cls] = type(cls.__name__, (cls,), {"__module__": cls.__module__, **_methods(cls)})
    durable: Any = copy.copy(llm)
    object.__setattr__(durable, "__class__", made)
    durable.__dict__[_INNER] = llm
    return durable


def is_durable(llm: object) -> bool:
    """Tell whether a model answers from the log."""
    return _INNER in getattr(llm, "__dict__", {})


def inner_llm(llm: Any) -> Any:
    """Return the model that a durable one asks; any other one itself."""
    return llm.__dict__[_INNER] if is_durable(llm) else llm


def _methods(cls: Any) -> dict[str, Any]:
    kinds: list[tuple[tuple[str, ...], Callable[[str], Any]]] = [
        (_SYNC, _sync),
        (_ASYNC, _async),
        (_STREAMS, _stream),
        (_ASYNC_STREAMS, _async_stream),
    ]
    methods = {name: make(name) for names, make in kinds for name in names if hasattr(cls, name)}

    def class_name(_: object) -> str:
        return str(cls.class_name())  # what it says of its own class, for this one as well

    return {**methods, "class_name": classmethod(class_name)}


def _asked(llm: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, object]:
    """State what is asked of a model: its answer must not answer anything else."""
    names = ("tools", "user_msg", "messages") if name.endswith("with_tools") else ("messages",)
    given = {**dict(zip(names, args, strict=False)), **{_NAMES.get(key, key): value for key, value in kwargs.items()}}
    if "tools" in given:
        given["tools"] = [schema_of(tool) for tool in given["tools"]]
    return {"model": model_of(llm), "method": name.removeprefix("a"), **given}


def model_of(llm: Any) -> dict[str, Any]:
    """Return what tells a model from another one."""
    settings = {name: getattr(llm, name, None) for name in ("system_prompt", "temperature", "max_tokens")}
    return {"class": llm.class_name(), **llm.metadata.model_dump(), **settings}


def schema_of(tool: Any) -> list[Any]:
    """Return what a model is told of a tool."""
    return [tool.metadata.name, tool.metadata.description, tool.metadata.get_parameters_dict()]


def _place(self: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Scope, str, dict[str, object]]:
    return find_scope("durable_llm", name), "model", _asked(self.__dict__[_INNER], name, args, kwargs)


def _recordable(response: Any) -> Any:
    """Return what is recorded of an answer: without what its provider's library made of it, where that cannot be."""
    from letitloop.codecs import default_codecs

    try:
        default_codecs.encode(response.raw)
    except UnencodableError:
        return response.model_copy(update={"raw": None})
    return response


def _sync(name: str) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        ask = partial(getattr(self.__dict__[_INNER], name), *args, **kwargs)
        return leaf(*_place(self, name, args, kwargs), lambda: _recordable(ask()))

    return call


def _async(name: str) -> Callable[..., Any]:
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        async def ask() -> Any:
            return _recordable(await getattr(self.__dict__[_INNER], name)(*args, **kwargs))

        return await aleaf(*_place(self, name, args, kwargs), ask)

    return call


def _whole(response: Any) -> Any:
    """Return a streamed answer as the one chunk that it is from the log."""
    text = response.message.content if isinstance(response, ChatResponse) else response.text
    return response.model_copy(update={"delta": text or ""})


def _stream(name: str) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = OpenLeaf(*_place(self, name, args, kwargs))

        def stream() -> Generator[Any]:
            if found.known:
                yield _whole(found.answer())
                return
            found.begin()
            last: Any = None
            try:
                for last in getattr(self.__dict__[_INNER], name)(*args, **kwargs):
                    yield last
            except Exception as exc:
                found.fail(exc)
                raise
            except BaseException:
                found.abandon()
                raise
            if last is not None:
                found.record(_recordable(last))

        return stream()

    return call


def _async_stream(name: str) -> Callable[..., Any]:
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = OpenLeaf(*_place(self, name, args, kwargs))
        if found.known:
            return _one(_whole(found.answer()))
        found.begin()
        try:
            chunks = await getattr(self.__dict__[_INNER], name)(*args, **kwargs)
        except Exception as exc:
            await in_thread(partial(found.fail, exc))
            raise
        except BaseException:
            found.abandon()
            raise
        return _recorded(chunks, found)

    return call


async def _one(chunk: Any) -> AsyncGenerator[Any, None]:
    yield chunk


async def _recorded(chunks: Any, found: OpenLeaf) -> AsyncGenerator[Any, None]:
    """Hand a stream on, and record its last chunk, which holds the whole answer, before the reader is told that it has ended."""
    last: Any = None
    try:
        async for last in chunks:
            yield last
    except Exception as exc:
        await in_thread(partial(found.fail, exc))
        raise
    except BaseException:
        found.abandon()
        raise
    if last is None:
        found.abandon()
    else:
        await in_thread(partial(found.record, _recordable(last)))
