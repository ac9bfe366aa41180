"""Streaming output whose reader gets what stopped the kickoff, as the class it has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

__all__ = ["raise_what_stopped"]


def raise_what_stopped(output: Any, crewed: Any) -> Any:
    """Have a stream end with what stopped its kickoff; CrewAI would end it with nothing.

    Args:
        output: what CrewAI returns of a kickoff that streams.
        crewed: the wrapped crew, which knows what stopped it.
    """
    if getattr(output, "_sync_iterator", None) is not None:
        output._sync_iterator = _checked(output._sync_iterator, crewed)
    if getattr(output, "_async_iterator", None) is not None:
        output._async_iterator = _achecked(output._async_iterator, crewed)
    return output


def _checked(chunks: Iterator[Any], crewed: Any) -> Iterator[Any]:
    try:
        yield from chunks
    finally:
        _raise(crewed)


async def _achecked(chunks: AsyncIterator[Any], crewed: Any) -> AsyncIterator[Any]:
    try:
        async for chunk in chunks:
            yield chunk
    finally:
        _raise(crewed)


def _raise(crewed: Any) -> None:
    stopped, crewed.stopped = crewed.stopped, None
    if stopped is not None:
        raise stopped
