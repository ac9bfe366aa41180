"""The seam of models: a call that was answered is answered from the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from letitloop.codecs.ext import class_of
from letitloop.errors import RecordedError
from letitloop.integration.leaves import leaf
from letitloop.integration.open_leaves import stream_leaf
from letitloop_smolagents import _messages
from letitloop_smolagents._stop import NOT_SHOWN, Stop, as_it_was

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from letitloop_smolagents._binding import Binding

__all__ = ["DurableModel", "model_for"]

_OWN = frozenset(("inner", "_binding"))


def model_for(binding: Binding, inner: Any) -> DurableModel:
    """Return a durable model that passes for the one inside it, and streams only if that does."""
    cls = _Streaming if hasattr(inner, "generate_stream") else DurableModel
    made: Any = type(type(inner).__name__, (cls,), {})(binding, inner)
    return made  # type: ignore[no-any-return]  # of a class made for it


class DurableModel:
    """Stands in for an agent's model; the model itself stays as it is, and may serve other agents.

    Attributes:
        inner: the model itself.
    """

    def __init__(self, binding: Binding, inner: Any) -> None:
        object.__setattr__(self, "inner", inner)
        object.__setattr__(self, "_binding", binding)

    @property  # type: ignore[misc]  # isinstance tells what the agent was given
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  # it is never set
        return class_of(self.inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.inner, name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.generate(*args, **kwargs)

    def generate(self, messages: Any, *args: Any, **options: Any) -> Any:
        """Return the model's answer: a new one, or the one on record."""
        binding = self._binding
        if binding.scope is None:
            return self.inner.generate(messages, *args, **options)
        binding.next_turn()
        asked = _messages.asked(self.inner, messages, _named(args, options), binding.prompt)

        def act() -> Any:
            return self.inner.generate(messages, *args, **options)

        return self._answer(binding, "model", asked, act)

    def parse_tool_calls(self, message: Any) -> Any:
        """Return the message with the calls that its text asks for: their ids are random, so they are kept."""
        binding = self._binding
        if binding.scope is None:
            return self.inner.parse_tool_calls(message)
        asked: dict[str, object] = {"content": message.content if isinstance(message.content, str) else str(message.content)}
        parsed = self._answer(binding, "parse", asked, lambda: self.inner.parse_tool_calls(message))
        message.role, message.content, message.tool_calls = parsed.role, parsed.content, parsed.tool_calls
        return message

    def _answer(self, binding: Binding, name: str, asked: dict[str, object], act: Callable[[], Any]) -> Any:
        fresh: list[Any] = []

        def answer() -> Any:
            binding.goes_live(f"the {name} of {binding.who}")
            fresh.append(act())
            return _messages.freeze(fresh[0])

        assert binding.scope is not None
        try:
            frozen = leaf(binding.scope if name == "model" else binding.place(), name, asked, answer)
        except NOT_SHOWN as exc:
            raise Stop(exc) from exc
        except RecordedError as exc:
            raise as_it_was(exc) from None
        return fresh[0] if fresh else _messages.thaw(frozen)


class _Streaming(DurableModel):
    def generate_stream(self, messages: Any, *args: Any, **options: Any) -> Iterator[Any]:
        """Yield the pieces of the model's answer: new ones, or those on record."""
        binding = self._binding
        if binding.scope is None:
            yield from self.inner.generate_stream(messages, *args, **options)
            return
        binding.next_turn()
        try:
            yield from stream_leaf(
                binding.scope,
                "model",
                {**_messages.asked(self.inner, messages, _named(args, options), binding.prompt), "stream": True},
                lambda: self.inner.generate_stream(messages, *args, **options),
                freeze=_messages.freeze_deltas,
                thaw=_messages.thaw_deltas,
                live=lambda: binding.goes_live(f"the model of {binding.who}"),
            )
        except NOT_SHOWN as exc:
            raise Stop(exc) from exc


def _named(args: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    return {**dict(zip(("stop_sequences", "response_format", "tools_to_call_from"), args, strict=False)), **options}
