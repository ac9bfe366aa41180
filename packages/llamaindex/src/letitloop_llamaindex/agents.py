"""The agents of llama-index-core: their models and tools, made durable where a run needs them."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from llama_index.core.agent.workflow import AgentWorkflow, BaseWorkflowAgent
from llama_index.core.prompts import BasePromptTemplate
from pydantic import BaseModel

from letitloop.codecs import default_codecs
from letitloop.errors import UnencodableError
from letitloop.integration.patching import Patches
from letitloop_llamaindex.models import inner_llm, model_of, schema_of, wrap_llm
from letitloop_llamaindex.tools import durable_tools, has_effect

if TYPE_CHECKING:
    from collections.abc import Callable

    from letitloop_llamaindex.names import Names

__all__ = ["configuration_of", "make_durable", "tools_of"]

_durable: WeakValueDictionary[int, Any] = WeakValueDictionary()


def make_durable(workflow: Any, names: Names) -> None:
    """Make an agent's models and tools durable, once; any other workflow is left as it is."""
    if not isinstance(workflow, (AgentWorkflow, BaseWorkflowAgent)) or _durable.get(id(workflow)) is workflow:
        return
    _durable[id(workflow)] = workflow
    patches = Patches()
    patches.replace(workflow, "get_tools", lambda stock: _with_policies(stock, names))
    for agent in _agents_of(workflow):
        patches.replace(agent, "llm", wrap_llm)


def _agents_of(workflow: Any) -> list[Any]:
    if isinstance(workflow, AgentWorkflow):
        return list(workflow.agents.values())
    return [workflow] if isinstance(workflow, BaseWorkflowAgent) else []


def _with_policies(stock: Callable[..., Any], names: Names) -> Callable[..., Any]:
    @wraps(stock)
    async def get_tools(*args: Any, **kwargs: Any) -> Any:
        tools = await stock(*args, **kwargs)
        names.met(tool.metadata.name for tool in tools)
        return durable_tools(tools, names.policies)

    return get_tools


# --- their tools' names ------------------------------------------------------------------------------------------------------


def tools_of(workflow: Any) -> dict[str, bool] | None:
    """Return the names of an agent's tools, and whether each has an effect of its own; None if only a run tells them.

    There are none of another workflow; its steps may make agents, and call tools by hand.
    """
    agents = _agents_of(workflow)
    if not agents:
        return {}
    own = type(workflow).get_tools not in (AgentWorkflow.get_tools, BaseWorkflowAgent.get_tools)
    if own or any(agent.tool_retriever is not None for agent in agents):
        return None
    found = {str(tool.metadata.name): has_effect(tool) for agent in agents for tool in agent.tools or ()}
    return {**found, "handoff": True} if len(agents) > 1 else found


# --- what they are made of ---------------------------------------------------------------------------------------------------

_COMPARED_ELSEWHERE = ("name", "llm", "tools")
_OF_A_WORKFLOW = ("root_agent", "handoff_prompt", "handoff_output_prompt", "state_prompt", "output_cls", "early_stopping_method")


def configuration_of(workflow: Any) -> dict[str, dict[str, object]]:
    """Return what an agent is made of, by what it is a part of; nothing of any other workflow."""
    found: dict[str, dict[str, object]] = {}
    if isinstance(workflow, AgentWorkflow):
        parts = {name: _said(getattr(workflow, name, None)) for name in _OF_A_WORKFLOW}
        found["agents"] = {"agents": sorted(workflow.agents), **parts, "initial_state": _said(workflow.initial_state)}
    for agent in _agents_of(workflow):
        fields = [name for name in type(agent).model_fields if name not in _COMPARED_ELSEWHERE]
        found[f"agent {agent.name}"] = {
            **{name: _said(getattr(agent, name, None)) for name in fields},
            "llm": _model(agent.llm),
            "tools": sorted(repr(schema_of(tool)) for tool in agent.tools or ()),
        }
    return found


def _model(llm: Any) -> object:
    try:
        return model_of(inner_llm(llm))
    except Exception:  # a model that does not know itself says so when it is asked
        return type(llm).__qualname__


def _said(value: Any) -> object:
    """Return what tells a setting from another one: data as it is, a prompt's text, a class or a function by its name."""
    if isinstance(value, BasePromptTemplate):
        return value.get_template()
    if isinstance(value, type) and issubclass(value, BaseModel):
        return [value.__qualname__, repr(value.model_json_schema())]
    try:
        default_codecs.encode(value)
    except UnencodableError:
        fields = vars(value) if isinstance(value, BaseModel) else {}
        name = getattr(value, "__qualname__", type(value).__qualname__)
        return [name, {key: _said(one) for key, one in fields.items()}]
    return value
