"""Replacing attributes of one object and items of one container, so that it can be taken back and happens once."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["MARK", "Patches"]

_ABSENT = object()
MARK = "__letitloop_wraps__"
"""The attribute in which a replacement holds what it replaced."""


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
        self._undo: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return len(self._undo)

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
        if hasattr(stock, MARK):
            return False
        replacement = make(stock)
        try:
            setattr(replacement, MARK, stock)
        except (AttributeError, ValueError):
            pass  # an object with slots or a pydantic model: its own class tells what it is
        own: dict[str, Any] = getattr(owner, "__dict__", {name: stock})
        held = own.get(name, _ABSENT)
        _set(owner, name, replacement)

        def undo() -> None:
            if getattr(owner, name, _ABSENT) is not replacement:
                return  # somebody has put something else there since
            if held is not _ABSENT:
                _set(owner, name, held)
                return
            try:
                object.__delattr__(owner, name)
            except AttributeError:  # it lies elsewhere, as a pydantic model's private attributes do
                _set(owner, name, stock)

        self._undo.append(undo)
        return True

    def add(self, owner: Any, name: str, value: object) -> None:
        """Give one object an attribute, over one of its class if it has it; it has none of its own."""
        _set(owner, name, value)

        def undo() -> None:
            if getattr(owner, name, _ABSENT) is value:
                object.__delattr__(owner, name)

        self._undo.append(undo)

    def replace_item(self, container: Any, key: Any, replacement: object) -> None:
        """Put a replacement in a dictionary or a list.

        Args:
            container: the container itself: whoever holds it gets the replacement.
            key: the key, or the index.
            replacement: what stands there from now on.

        Raises:
            LookupError: there is no such item.

        Example:
            >>> models, patches = {"fast": "stock"}, Patches()
            >>> patches.replace_item(models, "fast", "durable")
            >>> models
            {'fast': 'durable'}
            >>> patches.undo()
            >>> models
            {'fast': 'stock'}
        """
        held = container[key]
        container[key] = replacement

        def undo() -> None:
            try:
                if container[key] is replacement:
                    container[key] = held
            except LookupError:
                pass  # it has been taken away since

        self._undo.append(undo)

    def replace_member(self, container: set[Any], held: object, replacement: object) -> None:
        """Put a replacement in a set, in the place of a member of it."""
        container.discard(held)
        container.add(replacement)

        def undo() -> None:
            if replacement in container:
                container.discard(replacement)
                container.add(held)

        self._undo.append(undo)

    def undo(self, since: int = 0) -> None:
        """Take replacements back, the newest first; what was replaced once more by somebody else stays.

        Args:
            since: how many of the oldest stay.
        """
        while len(self._undo) > since:
            self._undo.pop()()


def _set(owner: Any, name: str, value: Any) -> None:
    """Set an attribute past a pydantic model's validation, which knows fields alone."""
    try:
        setattr(owner, name, value)
    except (AttributeError, ValueError):
        object.__setattr__(owner, name, value)
