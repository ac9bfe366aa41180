"""``DurableMiddleware``: an agent whose finished model and tool calls are answered from the log."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

try:
    from langchain.agents.middleware import AgentMiddleware
except ModuleNotFoundError:  # an application with graphs of its own needs no langchain
    from letitloop_langgraph._absent import AgentMiddleware  # type: ignore[assignment]  # says so when it is used

from letitloop.errors import InvalidArgument, LetItLoopError
from letitloop.integration.leaves import aleaf, leaf
from letitloop.integration.policies import Policies
from letitloop.runs.scope import find_scope
from letitloop_langgraph.calls import ToolCalls, passing
from letitloop_langgraph.config import without_ids
from letitloop_langgraph.resolver import current_place

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

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

    Raises:
        InvalidArgument: a policy is none of these; at the first model call: a policy's name is that of no tool, and nearly that of
            one without a policy.

    Example:
        >>> middleware = DurableMiddleware(tools={"search": "record"})
    """

    def __init__(self, *, tools: Mapping[str, Policy] | None = None, default: Policy = "record") -> None:
        super().__init__()
        self._policies = Policies(tools or {}, default)
        self._calls = ToolCalls(self._policies)
        self._known: set[str] = set()
        self._told: set[str] = set()

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Answer a model call from the log, or make and record it."""
        try:
            request = self._shown(request)
            scope = current_place() or find_scope("the model call")
            return leaf(scope, "model", _asked(request), lambda: handler(request))
        except LetItLoopError as exc:
            raise passing(exc) from exc.__cause__

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        """Do as :meth:`wrap_model_call`, in async code."""
        try:
            request = self._shown(request)
            scope = current_place() or find_scope("the model call")
            return await aleaf(scope, "model", _asked(request), lambda: handler(request))
        except LetItLoopError as exc:
            raise passing(exc) from exc.__cause__

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Answer]) -> Answer:
        """Carry out a tool call as its policy says."""
        return self._calls.call(request, handler)

    async def awrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Answer]]) -> Answer:
        """Do as :meth:`wrap_tool_call`, in async code."""
        return await self._calls.acall(request, handler)

    def _check(self, request: ModelRequest[Any]) -> None:
        """Refuse a misspelt name before anything is asked: the tool that is meant would be called unguarded."""
        self._known |= {_name(tool) for tool in request.tools}
        for name, near in self._policies.misnamed(self._known).items():
            what = f"tools={{{name!r}: …}}: the agent has no tool of that name"
            if near:
                raise InvalidArgument(
                    f"{what}, and {near!r} has no policy: is that the one meant? No model was asked. Give the tool's name as the "
                    "model sees it."
                )
            if name not in self._told:
                self._told.add(name)
                logging.getLogger("letitloop").warning("letitloop: %s so far, so that policy guards nothing.", what)

    def _shown(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        self._check(request)
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
        "response_format": None if request.response_format is None else type(request.response_format).__name__,
        "settings": dict(request.model_settings),
    }


def _tool(tool: Any) -> Any:
    if isinstance(tool, dict):
        return tool
    try:
        return [tool.name, tool.description, tool.args]
    except Exception:  # a schema that cannot be shown as JSON: the name tells the tool
        return [tool.name, tool.description]
