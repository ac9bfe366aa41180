"""Which objects of a crew are replaced in which attributes; agents, models and tools may be shared by crews and handlers."""

from __future__ import annotations

from functools import partial, wraps
from threading import RLock
from typing import TYPE_CHECKING, Any

from crewai import Agent, Crew
from crewai.lite_agent import LiteAgent
from crewai.llms.base_llm import BaseLLM
from crewai.tools import BaseTool
from crewai.utilities.llm_utils import create_llm

from letitloop.errors import InvalidArgument
from letitloop.integration.patching import MARK, Patches
from letitloop_crewai.agents import wrap_agent, wrap_human, wrap_knowledge, wrap_memory
from letitloop_crewai.alone import Alone, unguarded
from letitloop_crewai.driving import current_frame, frame_around
from letitloop_crewai.models import Meter, meter_of, wrap_model
from letitloop_crewai.names import Names
from letitloop_crewai.tasks import wrap_task
from letitloop_crewai.telling import tell
from letitloop_crewai.tools import hide_trusted, wrap_tool

if TYPE_CHECKING:
    from collections.abc import Callable

    from letitloop.integration.policies import Policies

__all__ = ["Wrapping"]

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

    def program(self) -> None:
        """Have an eye on what a program kicks off inside this one's kickoffs."""
        for cls in (Agent, LiteAgent):
            self.hold(cls, partial(_alone.wrap, cls=cls))
        self.hold(Crew, _refuse_unguarded)

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
        self.model(getattr(getattr(agent, "guardrail", None), "llm", None), f"guardrail of agent {agent.role}")
        if hasattr(agent, "execute_task"):
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

    def listed(self, agent: Any, tools: Any) -> None:
        """Wrap the tools that an agent's server has told of."""
        self.tools(tools)
        self._names.listed(agent)
        self.check_names()

    def check_names(self) -> None:
        """Hold the tools' names against the policies, while there may be more to come."""
        self._names.check(self._policies, silent=True)

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


def _in_use() -> list[Policies]:
    """Return the policies of those who have an eye on the program."""
    with _guard:
        held = _held.get(id(Agent))
        return [] if held is None else [one._policies for one in held.users]


_alone = Alone(lambda drive: Wrapping(drive.shared.policies, drive.shared.names), _in_use)


def _refuse_unguarded(patches: Patches) -> None:
    """Let no crew that is not wrapped make calls inside a wrapped kickoff whose policy is an effect."""
    for name in ("_execute_tasks", "_aexecute_tasks"):  # of all kickoffs; a crew's own attributes are what is replaced in it
        patches.replace(Crew, name, _guarded)


def _guarded(stock: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(stock)
    def execute_tasks(crew: Any, *args: Any, **kwargs: Any) -> Any:
        frame = current_frame() or frame_around()
        if frame is not None and id(crew) not in _held:
            tools = [tool for one in (*crew.agents, *crew.tasks) for tool in one.tools or ()]
            with frame.drive.watched():
                _check_guarded(crew, unguarded(tools, frame.drive.shared.policies))
            if current_frame() is not None:  # what a recorded call kicks off is a part of that
                _tell_unrecorded(crew, frame.drive.shared.unwrapped)
        return stock(crew, *args, **kwargs)  # a coroutine of the async one

    return execute_tasks


def _check_guarded(crew: Any, names: list[str]) -> None:
    if names:
        raise InvalidArgument(
            f"crew {crew.name!r} is kicked off inside the kickoff of a wrapped crew or flow and is not wrapped itself: nothing of "
            f"it would be recorded, and the effect that tools= has for {', '.join(map(repr, names))} would not hold for it. "
            "No task of it was executed. Wrap it first: handler.wrap_crew(crew)."
        )


def _tell_unrecorded(crew: Any, told: set[str]) -> None:
    if crew.name in told:
        return
    told.add(crew.name)
    tell(
        f"crew {crew.name!r} is kicked off inside the kickoff of a wrapped crew or flow and is not wrapped itself: if the program "
        "dies before that part of it is finished, the crew's model and tool calls are made again. Wrap it first: "
        "handler.wrap_crew(crew)",
        loud=True,
    )


def _make_stock(one: Any) -> None:
    """Take replacements off a shallow copy of a wrapped object: they act for the original."""
    own: dict[str, Any] = getattr(one, "__dict__", {})
    for name in _REPLACED:
        if hasattr(own.get(name), MARK):
            object.__delattr__(one, name)
