"""An agent's attempts at a task, and what it asks besides models and tools: memory, knowledge, a human."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from letitloop.integration.patching import Patches
from letitloop_crewai.asking import digest
from letitloop_crewai.driving import current_frame, framed, outside
from letitloop_crewai.tasks import durable_guardrail, marked_callback

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from letitloop_crewai.driving import Frame

__all__ = ["watch", "wrap_agent", "wrap_human", "wrap_knowledge", "wrap_memory"]


def wrap_agent(patches: Patches, agent: Any) -> None:
    """Make an agent's attempts parts of the kickoff; outside a wrapped one it is as it was."""
    patches.replace(agent, "execute_task", lambda stock: _attempt(stock, agent))
    patches.replace(agent, "aexecute_task", lambda stock: _attempt_async(stock, agent))
    if hasattr(agent, "create_agent_executor"):
        patches.replace(agent, "create_agent_executor", lambda stock: _watching(stock, agent))
    if hasattr(agent, "_retrieve_memory_context"):
        patches.replace(agent, "_retrieve_memory_context", _remembering)
    if callable(getattr(agent, "guardrail", None)):  # of its kickoffs by itself
        patches.replace(agent, "guardrail", lambda stock: durable_guardrail(stock, "guardrail", agent))
    if getattr(agent, "step_callback", None) is not None and not hasattr(agent.step_callback, "letitloop_marked"):
        patches.replace(agent, "step_callback", lambda stock: marked_callback(stock, "step callback"))


def _entered(agent: Any, task: Any, tools: Any) -> Frame | None:
    """Return the part of the kickoff that an attempt is.

    CrewAI tries again after an error by calling itself: that is the same attempt, and its finished calls answer. After a
    guardrail's objection it is called by the task: that is another one.
    """
    frame = current_frame()
    if frame is None:
        return None
    frame.drive.check()
    owner: Any = frame.drive.owner
    with frame.drive.watched():
        owner.adopt(agent, tools)
    if task.human_input:
        owner.adopt_human()
    if frame.agent is agent and frame.task is task:
        task.used_tools, task.description = frame.used_tools, frame.description
        return frame.again()
    inner = frame.inner(str(agent.role), agent=agent, task=task)
    inner.used_tools, inner.description = task.used_tools, task.description
    return inner


@contextmanager
def _unplanned(frame: Frame, task: Any) -> Generator[None]:
    """Take an agent's plan out of the task again if the attempt fails: CrewAI adds it in place, and once more the next time."""
    try:
        yield
    except BaseException:
        task.description = frame.description
        raise


def _attempt(stock: Callable[..., Any], agent: Any) -> Callable[..., Any]:
    @wraps(stock)
    def execute_task(task: Any, context: str | None = None, tools: Any = None) -> Any:
        frame = _entered(agent, task, tools)
        if frame is None:
            return stock(task, context, tools)
        with framed(frame), _unplanned(frame, task):
            return stock(task, context, tools)

    return execute_task


def _attempt_async(stock: Callable[..., Any], agent: Any) -> Callable[..., Any]:
    @wraps(stock)
    async def aexecute_task(task: Any, context: str | None = None, tools: Any = None) -> Any:
        frame = _entered(agent, task, tools)
        if frame is None:
            return await stock(task, context, tools)
        with framed(frame), _unplanned(frame, task):
            return await stock(task, context, tools)

    return aexecute_task


# --- what carries an attempt out ----------------------------------------------------------------------------------------------


def _watching(stock: Callable[..., None], agent: Any) -> Callable[..., None]:
    """Return an agent's making of its executor, whose calls know their position in the model's answer."""

    @wraps(stock)
    def create_agent_executor(*args: Any, **kwargs: Any) -> None:
        stock(*args, **kwargs)
        watch(agent.agent_executor)

    return create_agent_executor


def watch(executor: Any) -> None:
    """Have an executor's calls know their position in the model's answer."""
    patches = Patches()  # it is CrewAI's own, and goes with the agent: nobody gets it back
    if hasattr(executor, "_execute_single_native_tool_call"):
        patches.replace(executor, "_execute_single_native_tool_call", _positioned)
    if hasattr(executor, "_ensure_step_executor"):
        patches.replace(executor, "_ensure_step_executor", _apart)
    cache = getattr(getattr(executor, "tools_handler", None), "cache", None)
    if cache is not None:
        patches.replace(cache, "read", _reading)


def _positioned(stock: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(stock)
    def execute(*args: Any, **kwargs: Any) -> Any:
        frame = current_frame()
        if frame is None:
            return stock(*args, **kwargs)
        with frame.answers.carrying_out(*args, **kwargs):
            return stock(*args, **kwargs)

    return execute


def _reading(stock: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(stock)
    def read(*args: Any, **kwargs: Any) -> Any:
        frame = current_frame()
        return stock(*args, **kwargs) if frame is None else frame.answers.reading(lambda: stock(*args, **kwargs))

    return read


def _apart(stock: Callable[[], Any]) -> Callable[[], Any]:
    """Return what makes the executor of a plan's steps: they may run side by side, so each is a part of its own."""

    @wraps(stock)
    def ensure_step_executor() -> Any:
        found = stock()
        Patches().replace(found, "execute", _in_its_part)
        return found

    return ensure_step_executor


def _in_its_part(stock: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(stock)
    def execute(todo: Any, *args: Any, **kwargs: Any) -> Any:
        frame = current_frame()
        if frame is None:
            return stock(todo, *args, **kwargs)
        with framed(frame.inner(f"step {todo.step_number} {digest(todo.description)[:8]}")):
            return stock(todo, *args, **kwargs)

    return execute


# --- memory and knowledge ----------------------------------------------------------------------------------------------------


def _remembering(stock: Callable[..., str]) -> Callable[..., str]:
    """Return an agent's retrieval from memory: what it adds to a prompt stays what it was."""

    @wraps(stock)
    def retrieve_memory_context(task: Any, task_prompt: str) -> str:
        frame = current_frame()
        if frame is None:
            return stock(task, task_prompt)

        def ask() -> str:
            with outside():
                return stock(task, task_prompt)[len(task_prompt) :]

        return task_prompt + frame.drive.leaf(frame.scope, "memory", {"prompt": digest(task_prompt)}, ask)

    return retrieve_memory_context


def wrap_memory(patches: Patches, memory: Any) -> None:
    """Make what CrewAI keeps of a task a step: what to remember is extracted once, and saved once; what is recalled stays so."""
    for name in ("recall", "remember"):  # by an agent that is kicked off by itself; elsewhere they are parts of other steps
        if hasattr(memory, name):
            patches.replace(memory, name, partial(_step, name=f"memory {name}"))
    if hasattr(memory, "extract_memories"):
        patches.replace(memory, "extract_memories", lambda stock: _step(stock, "memory extract"))
    if hasattr(memory, "remember_many"):
        patches.replace(memory, "remember_many", lambda stock: _step(_drained(stock, memory), "memory save", lost=[]))


def wrap_knowledge(patches: Patches, knowledge: Any) -> None:
    """Make a knowledge base's answers steps."""
    patches.replace(knowledge, "query", lambda stock: _step(stock, "knowledge"))
    if hasattr(knowledge, "aquery"):
        patches.replace(knowledge, "aquery", lambda stock: _astep(stock, "knowledge"))


def _drained(stock: Callable[..., Any], memory: Any) -> Callable[..., Any]:
    """Return a memory's saving that returns when it is done: CrewAI leaves it to a thread, which a crash would take along."""

    @wraps(stock)
    def remember_many(*args: Any, **kwargs: Any) -> Any:
        saved = stock(*args, **kwargs)
        backing = getattr(memory, "_memory", None) or memory
        backing.drain_writes()
        return saved

    return remember_many


_AS_IT_IS = object()


def _step(stock: Callable[..., Any], name: str, *, lost: Any = _AS_IT_IS) -> Callable[..., Any]:
    """Return a function that is a step of whatever part of a kickoff calls it.

    Args:
        stock: the function.
        name: what the step is called.
        lost: what is recorded in place of what it returns, if that is of no use later.
    """

    @wraps(stock)
    def step(*args: Any, **kwargs: Any) -> Any:
        frame = current_frame()
        if frame is None:
            return stock(*args, **kwargs)

        def ask() -> Any:
            with outside():
                answer = stock(*args, **kwargs)
            return answer if lost is _AS_IT_IS else lost

        return frame.drive.leaf(frame.scope, name, {"arguments": digest([args, kwargs])}, ask)

    return step


def _astep(stock: Callable[..., Any], name: str) -> Callable[..., Any]:
    @wraps(stock)
    async def step(*args: Any, **kwargs: Any) -> Any:
        frame = current_frame()
        if frame is None:
            return await stock(*args, **kwargs)

        async def ask() -> Any:
            with outside():
                return await stock(*args, **kwargs)

        return await frame.drive.aleaf(frame.scope, name, {"arguments": digest([args, kwargs])}, ask)

    return step


# --- a human -----------------------------------------------------------------------------------------------------------------


def wrap_human(patches: Patches, provider: Any) -> None:
    """Make a human's answers steps: what was said is not asked again."""
    for name, durable in (("_prompt_input", _asked), ("_prompt_input_async", _aasked)):
        if hasattr(provider, name):
            patches.replace(provider, name, durable)


def _asked(stock: Callable[..., str]) -> Callable[..., str]:
    @wraps(stock)
    def prompt_input(crew: Any) -> str:
        frame = current_frame()
        return stock(crew) if frame is None else frame.drive.leaf(frame.scope, "human", {}, lambda: stock(crew))

    return prompt_input


def _aasked(stock: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(stock)
    async def prompt_input(crew: Any) -> Any:
        frame = current_frame()
        if frame is None:
            return await stock(crew)
        return await frame.drive.aleaf(frame.scope, "human", {}, lambda: stock(crew))

    return prompt_input
