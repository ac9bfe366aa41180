"""Models and tools of llama-index-core that a step calls by hand; workflows alone do without that distribution."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from llama_index.core.tools import AsyncBaseTool, BaseTool

    from letitloop.integration.policies import Policy

__all__ = ["durable_llm", "durable_tool"]

L = TypeVar("L")


def durable_llm(llm: L) -> L:
    """Return a model that asks the given one once, and answers from the log ever after; for a model that a step calls by hand.

    The models of agents in a durable workflow need no wrapping. The given model is left as it is.

    Args:
        llm: a model of llama-index-core.

    Returns:
        A model of the same class. Outside a run its calls raise :class:`~letitloop.StepOutsideRun`.

    Raises:
        InvalidArgument: it is no model.

    Example:
        >>> from letitloop import durable
        >>> from llama_index.core.llms import MockLLM
        >>> @durable(store="memory:")
        ... def greet() -> str:
        ...     return str(durable_llm(MockLLM(max_tokens=2)).complete("Hello from a model"))
        >>> greet()
        'text text'
    """
    from letitloop_llamaindex.models import wrap_llm

    durable: L = wrap_llm(llm)
    return durable


def durable_tool(tool: BaseTool | Callable[..., Any], policy: Policy = "record") -> AsyncBaseTool:
    """Return a tool whose calls happen as a policy says; for a tool that a step calls by hand.

    The tools of agents in a durable workflow need no wrapping: their policies are those of the runtime. The given tool is left as
    it is.

    Args:
        tool: a tool of llama-index-core, or a function.
        policy: ``"record"``, ``"rerun"``, or an :func:`letitloop.effect`.

    Returns:
        A tool of the same class. Outside a run its calls raise :class:`~letitloop.StepOutsideRun`.

    Raises:
        InvalidArgument: it is no tool, or the policy is none of these.

    Example:
        >>> from letitloop import durable
        >>> def add(left: int, right: int) -> int:
        ...     return left + right
        >>> @durable(store="memory:")
        ... def total() -> str:
        ...     return durable_tool(add).call(left=40, right=2).content
        >>> total()
        '42'
    """
    from letitloop_llamaindex.tools import wrap_tool

    return wrap_tool(tool, policy)
