"""What a call asks, as data that is the same in every life of a program: no ids, no addresses, no secrets."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections import deque
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from letitloop.codecs import default_codecs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["changed_parts", "digest", "model_of", "parts_of", "question", "schema_of", "source_of", "task_of", "tools_of"]

_DEFERRED = re.compile("was stored as temporary artifact `(tool-result-[A-Za-z0-9_-]{22})` at relative file path `\\1/result.md`")
_ARTIFACT = re.compile("tool-result-[A-Za-z0-9_-]{22}")
"""How CrewAI tells a model of a long tool result that it has put aside, under a name that is new each time."""
_ADDRESS = re.compile("0x[0-9a-fA-F]{6,}")
_NOT_ASKED = frozenset(("raw_tool_call_parts", "cache_breakpoint"))
"""What CrewAI keeps beside a message's words."""


def digest(value: Any) -> str:
    """Return a digest of data, the same in every process: what has no order is ordered, and what is no data counts as its text."""
    return sha256(_text(_plain(value)).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _text(plain: Any) -> str:
    return json.dumps(plain, sort_keys=True, ensure_ascii=False)


def _plain(value: Any, around: tuple[int, ...] = ()) -> Any:
    """Return a value as what JSON has of its own, with the parts that it has not marked as what they are."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if id(value) in around:
        return {"\0inside": len(around) - around.index(id(value))}
    around = (*around, id(value))
    if isinstance(value, dict):
        return _map(value, around)  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(value, (list, tuple, deque)):
        return [_plain(part, around) for part in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, (set, frozenset)):
        return {"\0set": sorted((_plain(part, around) for part in value), key=_text)}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, type):
        return value.__qualname__
    if isinstance(value, BaseModel):
        fields = {**value.__dict__, **(value.__pydantic_extra__ or {})}
        return {"\0model": type(value).__qualname__, "fields": _map(fields, around)}
    if dataclasses.is_dataclass(value):
        fields = {one.name: getattr(value, one.name, None) for one in dataclasses.fields(value)}
        return {"\0model": type(value).__qualname__, "fields": _map(fields, around)}
    return _leaf(value)


def _map(value: dict[Any, Any], around: tuple[int, ...]) -> Any:
    if all(isinstance(key, str) for key in value):
        return {key: _plain(part, around) for key, part in value.items()}
    return {"\0pairs": sorted(([_plain(key, around), _plain(part, around)] for key, part in value.items()), key=_text)}


def _leaf(value: Any) -> str:
    """Return what tells a value without parts from others; never its address."""
    name = type(value).__qualname__
    if default_codecs.tells(value):
        return f"\0{name} {default_codecs.fingerprint((value,), {}).hex()}"
    if callable(value):
        return str(getattr(value, "__qualname__", name))
    text = str(value)
    return name if _ADDRESS.search(text) else text


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
    return digest(_renamed(said))


def _renamed(said: Any) -> Any:
    """Return messages without the names of deferred results, if there are any: each life has its own.

    An answer from the log has the name of an earlier life. What users wrote stays as it is.
    """
    names = {name for one in said for name in _DEFERRED.findall(str(one.get("content")))}
    if not names:
        return said
    these = re.compile("|".join(map(re.escape, sorted(names))))
    return [_replaced(one, these if one.get("role") in ("user", "system") else _ARTIFACT) for one in said]


def _replaced(value: Any, names: re.Pattern[str]) -> Any:
    if isinstance(value, str):
        return names.sub("tool-result", value)
    if isinstance(value, dict):
        return {name: _replaced(part, names) for name, part in value.items()}  # pyright: ignore[reportUnknownVariableType]
    return [_replaced(part, names) for part in value] if isinstance(value, (list, tuple)) else value  # pyright: ignore[reportUnknownVariableType]


def _without(content: Any, today: str) -> Any:
    return content.replace(today, "") if isinstance(content, str) else content


_SETTINGS = ("model", "temperature", "top_p", "max_tokens", "seed", "frequency_penalty", "presence_penalty")


def model_of(llm: Any) -> list[object]:
    """Return what tells one model from another; no keys, no addresses."""
    return [type(llm).__qualname__, *(_setting(getattr(llm, name, None)) for name in _SETTINGS)]


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
        **_told(task, agent),
        **_coworkers(agent, process),
    }


_TOLD_BY_AGENT = (
    "system_template",
    "prompt_template",
    "response_template",
    "use_system_prompt",
    "inject_date",
    "date_format",
    "allow_delegation",
    "multimodal",
    "knowledge_config",
    "knowledge_sources",
    "skills",
)
_TOLD_BY_PLANNING = ("reasoning_effort", "max_attempts", "max_steps", "system_prompt", "plan_prompt", "refine_prompt")


def _told(task: Any, agent: Any) -> dict[str, object]:
    """Return what else a model is told, by name; what is as it is by default is left out."""
    found: dict[str, object] = {}
    if getattr(task, "markdown", False):
        found["markdown"] = True
    fields, own = type(agent).model_fields, vars(agent)  # asked for by name, a deprecated one would warn the user
    for name in _TOLD_BY_AGENT:
        if name in fields and (value := own.get(name)) != fields[name].get_default(call_default_factory=True):
            found[f"agent {name}"] = digest(value)
    if (planning := getattr(agent, "planning_config", None)) is not None:
        found["agent planning_config"] = digest([getattr(planning, name, None) for name in _TOLD_BY_PLANNING])
        if planning.llm is not None:
            found["agent planning model"] = digest(planning.llm if isinstance(planning.llm, str) else model_of(planning.llm))
    return found


def _coworkers(agent: Any, process: str) -> dict[str, object]:
    """Return who the agent may ask, by name."""
    if process != "hierarchical" and not getattr(agent, "allow_delegation", False):
        return {}
    others = [one for one in getattr(getattr(agent, "crew", None), "agents", ()) if one is not agent]
    return {
        f"coworker {str(one.role).strip()}": digest(
            [one.goal, one.backstory, model_of(one.llm), tools_of(one.tools or ()), _told(None, one)]
        )
        for one in others
    }


_PARTS = {"agent": ("role", "goal", "backstory"), "model": ("class", "name", *_SETTINGS[1:])}
"""What of a task's question is made of parts."""


def parts_of(asked: Mapping[str, object]) -> dict[str, str]:
    """Return digests of the parts of what a task asks, in a row, for it to be told what of its agent changed."""
    rows: dict[str, Any] = {name: asked[name] for name in _PARTS}
    return {name: "".join(digest(part)[:8] for part in row) for name, row in rows.items()}


def changed_parts(name: str, now: Mapping[str, str], then: Mapping[str, str]) -> list[str]:
    """Return which parts differ of what a task asks under a name; that name if it has none."""
    rows = [found.get(name, "") for found in (now, then)]
    one, other = ([row[at : at + 8] for at in range(0, len(row), 8)] for row in rows)
    differing = [f"{name} {part}" for part, a, b in zip(_PARTS.get(name, ()), one, other, strict=False) if a != b]
    return differing or [name]


def tools_of(tools: Any) -> list[str]:
    """Return the tools' names, what models are told of them, and the schemas of their arguments."""
    return sorted(
        f"{tool.name} {schema_of(getattr(tool, 'args_schema', None))} {digest(getattr(tool, 'description', None))}"
        for tool in tools
    )


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
