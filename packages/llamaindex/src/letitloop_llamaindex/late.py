"""What waits for llama-index-core: workflows do without it, and nobody is to pay for its import who does not use it."""

from __future__ import annotations

import importlib.util
import sys
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from workflows.workflow import Workflow

    from letitloop_llamaindex.names import Names

__all__ = ["configuration_of", "is_memory", "let_agents_take_a_runtime", "make_durable", "tools_of"]

_AGENTS = "llama_index.core.agent.workflow.base_agent"


def let_agents_take_a_runtime() -> None:
    """Let ``FunctionAgent(runtime=…)`` mean it, now or when agents are imported: the framework ignores the argument."""
    if _AGENTS in sys.modules:
        _extend(sys.modules[_AGENTS])
    elif not any(isinstance(finder, _WhenImported) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WhenImported())


def make_durable(workflow: Workflow, names: Names) -> None:
    """Make an agent's models and tools durable; any other workflow is left as it is."""
    if _AGENTS in sys.modules:
        from letitloop_llamaindex import agents

        agents.make_durable(workflow, names)


def tools_of(workflow: Workflow) -> dict[str, bool] | None:
    """Return the names of an agent's tools, and whether each has an effect of its own; None if only a run tells them.

    There are none of another workflow; its steps may make agents, and call tools by hand.
    """
    if _AGENTS not in sys.modules:
        return {}
    from letitloop_llamaindex import agents

    return agents.tools_of(workflow)


def configuration_of(workflow: Workflow) -> dict[str, dict[str, object]]:
    """Return what an agent is made of, by what it is a part of; nothing of any other workflow."""
    if _AGENTS not in sys.modules:
        return {}
    from letitloop_llamaindex import agents

    return agents.configuration_of(workflow)


def is_memory(value: object) -> bool:
    """Tell whether a value is a chat memory, which the program passes again and which is never compared."""
    types: Any = sys.modules.get("llama_index.core.memory.types")
    return types is not None and isinstance(value, types.BaseMemory)


def _extend(module: Any) -> None:
    if "runtime" not in module.WORKFLOW_KWARGS:
        module.WORKFLOW_KWARGS = (*module.WORKFLOW_KWARGS, "runtime")


class _WhenImported(MetaPathFinder):
    """Extends the agents' module once it is imported."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != _AGENTS:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            stock = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                stock(module)
                _extend(module)

            loader.exec_module = exec_module
        return spec
