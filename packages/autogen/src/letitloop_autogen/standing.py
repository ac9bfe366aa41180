"""What all objects have in common that stand in the place of a user's."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autogen_core import ComponentModel

__all__ = ["StandIn"]


class StandIn:
    """Is in all other respects what the object inside it is; first among the bases, AutoGen's class after it."""

    _inner: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_inner"], name)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return deepcopy(self._inner, memo)  # whoever holds the copy is not wrapped

    def dump_component(self) -> ComponentModel:
        return self._inner.dump_component()  # type: ignore[no-any-return]  # what the inner one returns

    def _to_config(self) -> Any:
        return self._inner._to_config()
