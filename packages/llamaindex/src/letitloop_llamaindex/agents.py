"""The agents of llama-index-core: their models and tools, made durable where a run needs them."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from llama_index.core.agent.workflow import AgentWorkflow, BaseWorkflowAgent

from letitloop.integration.patching import Patches
from letitloop_llamaindex.models import wrap_llm
from letitloop_llamaindex.tools import durable_tools

if TYPE_CHECKING:
    from collections.abc import Callable

    from letitloop.integration.policies import Policies

__all__ = ["make_durable"]

_durable: WeakValueDictionary[int, Any] = WeakValueDictionary()


def make_durable(workflow: Any, policies: Policies) -> None:
    """Make an agent's models and tools durable, once; any other workflow is left as it is."""
    if not isinstance(workflow, (AgentWorkflow, BaseWorkflowAgent)) or _durable.get(id(workflow)) is workflow:
        return
    _durable[id(workflow)] = workflow
    patches = Patches()
    patches.replace(workflow, "get_tools", lambda stock: _with_policies(stock, policies))
    for agent in workflow.agents.values() if isinstance(workflow, AgentWorkflow) else [workflow]:
        patches.replace(agent, "llm", wrap_llm)


def _with_policies(stock: Callable[..., Any], policies: Policies) -> Callable[..., Any]:
    @wraps(stock)
    async def get_tools(*args: Any, **kwargs: Any) -> Any:
        return durable_tools(await stock(*args, **kwargs), policies)

    return get_tools
