"""``DurableMiddleware``: an agent whose finished model and tool calls are answered from the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    from langchain.agents.middleware import AgentMiddleware
except ModuleNotFoundError:  # an application with graphs of its own needs no langchain
    from letitloop_langgraph._absent import AgentMiddleware  # type: ignore[assignment]  # says so when it is used

from letitloop.errors import LetItLoopError
from letitloop.integration.leaves import aleaf, leaf
from letitloop.integration.policies import Policies
from letitloop.runs.scope import find_scope
from letitloop_langgraph.calls import ToolCalls, passing
from letitloop_langgraph.config import without_ids
from letitloop_langgraph.resolver import current_place

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from typing import Literal

    from langchain.agents.middleware import ModelRequest
    from langchain.agents.middleware.types import ModelResponse
    from langgraph.prebuilt.tool_node import ToolCallRequest

    from letitloop.integration.policies import Policy
    from letitloop_langgraph.calls import Answer

__all__ = ["DurableMiddleware"]


class DurableMiddleware(AgentMiddleware[Any, Any]):
    """Makes the model and tool calls of an agent durable; give it to ``create_agent`` with a :class:`LetItLoopCheckpointSaver`.

    A model call that finished is not made again: the same messages, ids and tool calls come back. A tool call follows its policy.
    Put it last: middleware that retries or falls back then lies around it, and each of its attempts is recorded.

    Args:
        tools: a policy by tool name: ``"record"`` (done at least once, its result recorded), ``"rerun"`` (done again on replay), or
            an :func:`letitloop.effect`.
        default: the policy of every other tool.
        on_change: what a model or tool call that asks something else than the recorded one does: ``"raise"``
            :class:`letitloop.StepChanged`, ``"rerun"`` (the call, and what its task did after it, is done again; refused if effects
            would be taken back, or a human was asked, or a subgraph or ``@task`` called, in it or after it), or ``"reuse"`` (the
            recorded answer is handed on all the same). With ``durability="exit"`` it is done again where ``"rerun"`` may.

    Raises:
        InvalidArgument: a policy or ``on_change`` is none of these; at each model call: a policy's name is that of no tool, and
            nearly that of one without a policy, or an effect does not fit its tool.

    Example:
        >>> middleware = DurableMiddleware(tools={"search": "record"})
    """

    def __init__(
        self,
        *,
        tools: Mapping[str, Policy] | None = None,
        default: Policy = "record",
        on_change: Literal["raise", "rerun", "reuse"] = "raise",
    ) -> None:
        super().__init__()
        self._calls = ToolCalls(Policies(tools or {}, default), on_change)

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Answer a model call from the log, or make and record it."""
        try:
            request = self._shown(request)
            scope = current_place() or find_scope("the model call")
            return leaf(scope, "model", _asked(request), lambda: handler(request), on_change=self._calls.on_change)
        except LetItLoopError as exc:
            raise passing(exc) from exc.__cause__

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        """Do as :meth:`wrap_model_call`, in async code."""
        try:
            request = self._shown(request)
            scope = current_place() or find_scope("the model call")
            return await aleaf(scope, "model", _asked(request), lambda: handler(request), on_change=self._calls.on_change)
        except LetItLoopError as exc:
            raise passing(exc) from exc.__cause__

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Answer]) -> Answer:
        """Carry out a tool call as its policy says."""
        return self._calls.call(request, handler)

    async def awrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Answer]]) -> Answer:
        """Do as :meth:`wrap_tool_call`, in async code."""
        return await self._calls.acall(request, handler)

    def _shown(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        self._calls.check(map(_name, request.tools), "No model was asked.")
        tools = [self._calls.shown(tool) for tool in request.tools]
        if all(shown is tool for shown, tool in zip(tools, request.tools, strict=True)):
            return request
        return request.override(tools=tools)


def _name(tool: Any) -> str:
    return str(tool.get("name", "")) if isinstance(tool, dict) else str(tool.name)


def _asked(request: ModelRequest[Any]) -> dict[str, Any]:
    """Return what a model call asks, in words: what identifies it, and what an error names if it differs."""
    model: Any = request.model
    return {
        "model": getattr(model, "model_name", None) or getattr(model, "model", None) or type(model).__name__,
        "system": without_ids(request.system_message),
        "messages": without_ids(list(request.messages)),
        "tools": [_tool(tool) for tool in request.tools],
        "tool_choice": request.tool_choice,
        "response_format": None if request.response_format is None else _format(request.response_format),
        "settings": dict(request.model_settings),
    }


def _tool(tool: Any) -> Any:
    if isinstance(tool, dict):
        return tool
    try:
        return [tool.name, tool.description, tool.args]
    except Exception:  # a schema that cannot be shown as JSON: the name tells the tool
        return [tool.name, tool.description]


def _format(wanted: Any) -> Any:
    """Return in which form an answer is asked for: the strategy, and what the model is shown of each schema."""
    from langchain.agents.structured_output import AutoStrategy, ProviderStrategy, ToolStrategy

    if not isinstance(wanted, (AutoStrategy, ProviderStrategy, ToolStrategy)):
        wanted = AutoStrategy(wanted)  # as LangChain takes it
    kind = type(wanted).__name__
    try:
        if isinstance(wanted, ProviderStrategy):
            specs: list[Any] = [wanted.schema_spec]
        else:
            specs = (ToolStrategy(wanted.schema) if isinstance(wanted, AutoStrategy) else wanted).schema_specs
        return [kind, *([_title(one), one.description, one.json_schema, one.strict] for one in specs)]
    except Exception:  # what LangChain refuses, it refuses when the model is asked
        return kind


def _title(spec: Any) -> str | None:
    """Return a schema's name, if it was not drawn for this process."""
    return None if isinstance(spec.schema, dict) and "title" not in spec.schema else spec.name
