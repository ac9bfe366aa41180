"""What stands for ``langchain``'s middleware where langchain is not installed."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

S = TypeVar("S")
C = TypeVar("C")


class AgentMiddleware(Generic[S, C]):
    """Says what is missing."""

    def __init__(self, *_: Any) -> None:
        raise ModuleNotFoundError(
            "DurableMiddleware is for agents of langchain, which is not installed: pip install 'letitloop-langgraph[agents]'"
        )
