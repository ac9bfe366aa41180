"""What the application knows and the model does not: a context variable that effects take trusted values from."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar

from letitloop.errors import NotAuthorized
from letitloop.runs.scope import restore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from typing import Any

__all__ = ["EffectContext", "current_context", "effect_context", "from_context"]


class EffectContext:
    """What resolvers are given: the application's values, as attributes."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise NotAuthorized(
                f"{name!r} is needed from the application's context and is not there; nothing was recorded. Call this inside "
                f"`with effect_context({name}=…):`."
            ) from None

    def __contains__(self, name: str) -> bool:
        return name in self._values


def current_context() -> EffectContext:
    """Return the context that the program is in; an empty one outside any."""
    return _current.get()


_current: ContextVar[EffectContext] = ContextVar("letitloop_effect_context", default=EffectContext({}))  # noqa: B039 - never written to


@contextmanager
def effect_context(**values: Any) -> Generator[EffectContext]:
    """Give effects inside the block values that no model can choose.

    Args:
        values: the application's own: who the tenant is, which request this is. Inner blocks add to outer ones.

    Example:
        >>> from letitloop import effect_context
        >>> with effect_context(tenant="acme") as context:
        ...     context.tenant
        'acme'
    """
    context = EffectContext({**_current.get()._values, **values})
    token = _current.set(context)
    try:
        yield context
    finally:
        restore(_current, token)


def from_context(value: object, context: EffectContext) -> Any:
    """Take a trusted parameter from the context, under its own name; what the model said does not count.

    Args:
        value: what the caller passed, if anything.
        context: the application's values.

    Raises:
        NotImplementedError: it was called: it is a mark in ``trusted=``, and :func:`effect` does what it says.
    """
    raise NotImplementedError("from_context is a mark for effect(trusted={…}), and is not called")
