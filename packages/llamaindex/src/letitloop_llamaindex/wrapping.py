"""``durable_workflow``: a workflow that exists already, given a runtime that makes it durable."""

# workflows.runtime is typed; its folder has no __init__.py, which hides that
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar

from workflows import Workflow
from workflows.runtime.verbose import VerboseDecorator

from letitloop.errors import InvalidArgument
from letitloop_llamaindex.runtime import LetItLoopRuntime

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from letitloop.integration.policies import Policy
    from letitloop.store.protocol import Store

__all__ = ["durable_workflow"]

W = TypeVar("W")


def durable_workflow(
    workflow: W,
    *,
    tools: Mapping[str, Policy] | None = None,
    default: Policy = "record",
    store: Store | str | os.PathLike[str] | None = None,
    on_change: Literal["raise", "rerun", "reuse"] = "raise",
    sync: Literal["power", "process"] = "power",
    runtime: LetItLoopRuntime | None = None,
) -> W:
    """Make a workflow or an agent durable, with the workflows that are its attributes; the arguments are those of the runtime.

    Args:
        workflow: the workflow; it has not been run yet.
        tools: as :class:`LetItLoopRuntime`.
        default: as :class:`LetItLoopRuntime`.
        store: as :class:`LetItLoopRuntime`.
        on_change: as :class:`LetItLoopRuntime`.
        sync: as :class:`LetItLoopRuntime`.
        runtime: a runtime to share, instead of the other arguments.

    Returns:
        The same workflow.

    Raises:
        InvalidArgument: it is no workflow, or has been run by another runtime.

    Example:
        >>> import asyncio
        >>> from workflows import Workflow, step
        >>> from workflows.events import StartEvent, StopEvent
        >>> class Doubling(Workflow):
        ...     @step
        ...     async def double(self, ev: StartEvent) -> StopEvent:
        ...         return StopEvent(result=2 * ev.number)
        >>> async def main() -> int:
        ...     return await durable_workflow(Doubling(), store="memory:doubling").run(run_id="double-21", number=21)
        >>> asyncio.run(main())
        42
    """
    if not isinstance(workflow, Workflow):
        raise InvalidArgument(f"durable_workflow was given {type(workflow).__name__}, which is no workflow.")
    given = runtime or LetItLoopRuntime(tools=tools, default=default, store=store, on_change=on_change, sync=sync)
    _switch(workflow, given, set())
    return workflow


def _switch(workflow: Workflow, runtime: LetItLoopRuntime, seen: set[int]) -> None:
    if id(workflow) in seen:
        return
    seen.add(id(workflow))
    verbose = isinstance(workflow.runtime, VerboseDecorator)
    try:
        workflow._switch_runtime(VerboseDecorator(runtime) if verbose else runtime)
    except RuntimeError as exc:
        if workflow.runtime is not runtime:
            raise InvalidArgument(
                f"durable_workflow: {type(workflow).__name__} has been run already, so it keeps its runtime. Wrap it before its "
                "first run."
            ) from exc
    values: list[Any] = list(vars(workflow).values())
    for value in values:
        if isinstance(value, Workflow):
            _switch(value, runtime, seen)
