"""What a call asks, as data that is the same in every life of a program: no ids, no addresses, no secrets."""

from __future__ import annotations

import inspect
import json
import re
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["digest", "model_of", "question", "schema_of", "source_of", "task_of", "tools_of"]

_NEW_EACH_TIME = re.compile(
    " at 0x[0-9a-f]{6,}"  # the address of an object in its repr
    "|tool-result-[A-Za-z0-9_-]{22}"  # a deferred tool result's temporary file
)
_NOT_ASKED = frozenset(("raw_tool_call_parts", "cache_breakpoint"))
"""What CrewAI keeps beside a message's words."""


def digest(value: Any) -> str:
    """Return a digest of data; what is no data counts as its text."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=_plain)
    return sha256(_NEW_EACH_TIME.sub("", text).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", fallback=str)
    if isinstance(value, type):
        return value.__qualname__
    return str(value)


# --- a model call ------------------------------------------------------------------------------------------------------------

_POSITIONS = ("messages", "tools", "callbacks", "available_functions", "from_task", "from_agent", "response_model")


def question(llm: Any, args: tuple[Any, ...], kwargs: dict[str, Any], plan: str | None) -> dict[str, object]:
    """Return what a call of a model asks.

    Args:
        llm: the model.
        args: the call's arguments by position.
        kwargs: those by name.
        plan: what stands for the messages, if anything does.
    """
    given = {**dict(zip(_POSITIONS, args, strict=False)), **kwargs}
    return {
        "messages": plan or _messages(given.get("messages"), given.get("from_agent")),
        "tools": digest(given.get("tools") or []),
        "response_model": schema_of(given.get("response_model")),
        "model": model_of(llm),
    }


def _messages(messages: Any, agent: Any) -> str:
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    said = [{name: part for name, part in dict(one).items() if name not in _NOT_ASKED} for one in messages or ()]
    if getattr(agent, "inject_date", False):  # the day of a resume is no other question
        today = datetime.now().astimezone().strftime(str(agent.date_format))
        said = [{**one, "content": _without(one.get("content"), today)} for one in said]
    return digest(said)


def _without(content: Any, today: str) -> Any:
    return content.replace(today, "") if isinstance(content, str) else content


def model_of(llm: Any) -> list[object]:
    """Return what tells one model from another; no keys, no addresses."""
    names = ("model", "temperature", "top_p", "max_tokens", "seed", "frequency_penalty", "presence_penalty")
    return [type(llm).__qualname__, *(_setting(getattr(llm, name, None)) for name in names)]


def _setting(value: Any) -> object:
    return value if value is None or isinstance(value, (str, int, float)) else str(value)


# --- a task ------------------------------------------------------------------------------------------------------------------


def task_of(task: Any, agent: Any, context: str | None, tools: Any, process: str) -> dict[str, object]:
    """Return what a task asks: if none of it differs, its recorded output is what it would come to."""
    return {
        "description": str(task.description),
        "expected_output": str(task.expected_output),
        "agent": [str(agent.role), str(agent.goal), str(agent.backstory)],
        "model": model_of(agent.llm),
        "tools": tools_of(tools or task.tools or agent.tools or ()),
        "output": [schema_of(one) for one in (task.output_pydantic, task.output_json, task.response_model)],
        "output_file": task.output_file,
        "guardrails": [source_of(one) for one in (*(task._guardrails or ()), task._guardrail) if one is not None],
        "human_input": bool(task.human_input),
        "process": process,
        "context": digest(context or ""),
    }


def tools_of(tools: Any) -> list[str]:
    """Return the tools' names and the schemas of their arguments."""
    return sorted(f"{tool.name} {schema_of(getattr(tool, 'args_schema', None))}" for tool in tools)


def schema_of(model: Any) -> str | None:
    """Return the digest of a model class's schema."""
    if model is None:
        return None
    return digest(model.model_json_schema() if isinstance(model, type) and issubclass(model, BaseModel) else model)


def source_of(function: Callable[..., Any] | Any) -> str:
    """Return what tells one guardrail from another: its words, or its name and code."""
    if isinstance(words := getattr(function, "description", None), str):
        return words
    plain = inspect.unwrap(function) if callable(function) else function
    name = str(getattr(plain, "__qualname__", type(plain).__qualname__))
    try:
        return f"{name} {digest(inspect.getsource(plain))}"
    except (OSError, TypeError):  # it has no file
        return name
