"""Replacing a method of one object, so that it can be taken back and happens once."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["Patches"]

_ABSENT = object()
_MARK = "__letitloop_wraps__"


class Patches:
    """The attributes of objects that an adapter has replaced, in order; :meth:`undo` gives the stock objects back.

    Example:
        >>> class Agent:
        ...     def run(self): return "stock"
        >>> agent, patches = Agent(), Patches()
        >>> patches.replace(agent, "run", lambda stock: lambda: f"durable {stock()}")
        True
        >>> agent.run()
        'durable stock'
        >>> patches.undo()
        >>> agent.run()
        'stock'
    """

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, object, object]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> bool:
        """Put a replacement in an object's attribute, unless one of letitloop's is there.

        Args:
            owner: the object, not its class: others of the class are untouched.
            name: the attribute.
            make: given the stock value, returns the replacement.

        Returns:
            Whether it was replaced; false if it already is.

        Raises:
            AttributeError: there is no such attribute, or it cannot be set.
        """
        stock = getattr(owner, name)
        if hasattr(stock, _MARK):
            return False
        replacement = make(stock)
        try:
            setattr(replacement, _MARK, stock)
        except (AttributeError, ValueError):
            pass  # an object with slots or a pydantic model: its own class tells what it is
        own: dict[str, Any] = getattr(owner, "__dict__", {name: stock})
        held = own.get(name, _ABSENT)
        _set(owner, name, replacement)
        self._replaced.append((owner, name, held, stock))
        return True

    def undo(self) -> None:
        """Take every replacement back, the newest first."""
        while self._replaced:
            owner, name, held, stock = self._replaced.pop()
            if held is _ABSENT:
                try:
                    object.__delattr__(owner, name)
                except AttributeError:  # it lies elsewhere, as a pydantic model's private attributes do
                    _set(owner, name, stock)
            else:
                _set(owner, name, held)


def _set(owner: Any, name: str, value: Any) -> None:
    """Set an attribute past a pydantic model's validation, which knows fields alone."""
    try:
        setattr(owner, name, value)
    except (AttributeError, ValueError):
        object.__setattr__(owner, name, value)
