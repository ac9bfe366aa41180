"""Which objects of a crew are replaced in which attributes; agents, models and tools may be shared by crews and handlers."""

from __future__ import annotations

from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any

from crewai.llms.base_llm import BaseLLM
from crewai.tools import BaseTool
from crewai.utilities.llm_utils import create_llm

from letitloop.integration.patching import Patches
from letitloop_crewai.agents import wrap_agent, wrap_human, wrap_knowledge, wrap_memory
from letitloop_crewai.models import Meter, meter_of, wrap_model
from letitloop_crewai.names import Names
from letitloop_crewai.tasks import wrap_task
from letitloop_crewai.tools import hide_trusted, wrap_tool

if TYPE_CHECKING:
    from collections.abc import Callable

    from letitloop.integration.policies import Policies

__all__ = ["Wrapping"]

_MARK = "__letitloop_wraps__"
_REPLACED = (
    "call",
    "acall",
    "get_token_usage_summary",
    "_track_token_usage_internal",
    "execute_task",
    "aexecute_task",
    "create_agent_executor",
    "_run",
    "_arun",
)
"""What a shallow copy of a wrapped object carries along, bound to the original."""


class _Held:
    """An object with replaced attributes, and the wrappings that want it so."""

    def __init__(self, one: Any) -> None:
        self.one = one
        self.patches = Patches()
        self.users: set[Wrapping] = set()


_held: dict[int, _Held] = {}
_guard = RLock()


class Wrapping:
    """The objects that one crew or flow needs wrapped.

    What replaces their methods asks where the program is: outside a wrapped kickoff it calls the stock ones. So several crews,
    and several handlers, can share an object; it is given back when the last of them is unwrapped.

    Args:
        policies: the handler's tool policies.
        names: where the tools' names are noted, for them to be held against the policies.
    """

    def __init__(self, policies: Policies, names: Names | None = None) -> None:
        self._policies = policies
        self._names = names or Names()
        self._mine: dict[int, _Held] = {}
        self.meters: dict[str, Meter] = {}

    def hold(self, one: Any, wrap: Callable[[Patches], None], also: Callable[[Patches], None] | None = None) -> None:
        """Have an object's attributes replaced, once.

        Args:
            one: the object.
            wrap: replaces them, unless another user of the object has had that done.
            also: what this user needs besides.
        """
        with _guard:
            if id(one) in self._mine:
                return
            held = _held.get(id(one))
            if held is None:
                _make_stock(one)
                held = _Held(one)
                wrap(held.patches)
                _held[id(one)] = held
            held.users.add(self)
            self._mine[id(one)] = held
            if also is not None:
                also(held.patches)

    def undo(self) -> None:
        """Give back what nobody else needs wrapped."""
        with _guard:
            for key, held in self._mine.items():
                held.users.discard(self)
                if not held.users:
                    held.patches.undo()
                    del _held[key]
            self._mine.clear()
            self.meters.clear()

    # --- what is found in a crew ---------------------------------------------------------------------------------------------

    def crew(self, crew: Any) -> None:
        """Wrap everything that is found in a crew now."""
        manager = str(crew.process.value) == "hierarchical"
        for name in ("planning_llm", "manager_llm", "function_calling_llm"):  # what is a name is made a model as late as it is used
            needed = getattr(crew, name) or (name == "planning_llm" and crew.planning and "gpt-4o-mini")
            if needed and not isinstance(needed, BaseLLM) and (name != "manager_llm" or manager):
                setattr(crew, name, create_llm(needed))
            self.model(getattr(crew, name), name)
        for memory in (crew.memory, crew._memory):
            self.memory(memory)
        self.knowledge(crew.knowledge)
        agents = [*crew.agents, *(task.agent for task in crew.tasks), crew.manager_agent]
        for agent in agents:
            self.agent(agent)
        for task in crew.tasks:
            for guardrail in (*(task._guardrails or ()), task._guardrail):  # before they are replaced
                self.model(getattr(guardrail, "llm", None), f"guardrail of task {task.name or task.description}")
            self.hold(task, partial(wrap_task, task=task))
            self.tools(task.tools)

    def agent(self, agent: Any) -> None:
        """Wrap an agent with its model, memory, knowledge and tools."""
        if agent is None:
            return
        self.hold(agent, lambda patches: wrap_agent(patches, agent))
        self._names.agent(agent)
        self.model(agent.llm, f"agent {agent.role}")
        self.model(getattr(agent, "function_calling_llm", None), f"parser of agent {agent.role}")
        if (planning := getattr(agent, "planning_config", None)) is not None and planning.llm is not None:
            if not isinstance(planning.llm, BaseLLM):  # CrewAI would make a new model of the name for each use
                planning.llm = create_llm(planning.llm)
            self.model(planning.llm, f"planner of agent {agent.role}")
        self.memory(getattr(agent, "memory", None))
        self.knowledge(getattr(agent, "knowledge", None))
        self.tools(agent.tools)

    def model(self, llm: Any, label: str) -> None:
        """Wrap a model."""
        if isinstance(llm, BaseLLM):
            self.hold(llm, lambda patches: wrap_model(patches, llm, label))
            if (meter := meter_of(llm)) is not None:
                self.meters.setdefault(label, meter)
                self.meters.setdefault(meter.label, meter)

    def tools(self, tools: Any) -> None:
        """Wrap tools."""
        self._names.tools(tools or ())
        for tool in tools or ():
            if isinstance(tool, BaseTool):
                self.hold(tool, partial(wrap_tool, tool=tool), partial(hide_trusted, tool=tool, policies=self._policies))

    def memory(self, memory: Any) -> None:
        """Wrap a memory."""
        if memory is not None and not isinstance(memory, (bool, str)):
            self.hold(memory, lambda patches: wrap_memory(patches, memory))

    def knowledge(self, knowledge: Any) -> None:
        """Wrap a knowledge base."""
        if knowledge is not None:
            self.hold(knowledge, lambda patches: wrap_knowledge(patches, knowledge))

    def human(self, provider: Any) -> None:
        """Wrap who asks a human."""
        self.hold(provider, lambda patches: wrap_human(patches, provider))


def _make_stock(one: Any) -> None:
    """Take replacements off a shallow copy of a wrapped object: they act for the original."""
    own: dict[str, Any] = getattr(one, "__dict__", {})
    for name in _REPLACED:
        if hasattr(own.get(name), _MARK):
            object.__delattr__(one, name)
