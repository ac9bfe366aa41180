"""A task's output as data, and back: with the class that its task names now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from crewai.tasks.task_output import TaskOutput
from pydantic import BaseModel

from letitloop_crewai.typed import codecs_of, pack, unpack

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["content_of", "freeze", "thaw"]


_CONTEXT = "\0context of the task\0"


def freeze(output: TaskOutput, task: Any, context: str) -> dict[str, Any]:
    """Return what is recorded of an output.

    CrewAI's own dump of it loses the typed part, whose field is declared too widely. And its messages repeat the outputs of all
    tasks before it, which are on record: a log of many tasks would grow with the square of their number.
    """
    data = output.model_dump(mode="json", exclude={"pydantic", "json_dict"}, fallback=str)
    _replace(data["messages"], context, _CONTEXT)
    recorded: dict[str, Any] = {"data": data, "json_dict": output.json_dict, "json": None, "typed": None}
    if output.json_dict and task.output_json is not None:
        recorded["json_dict"] = codecs_of(task.output_json).encode(output.json_dict)
    typed = output.pydantic
    if isinstance(typed, BaseModel) and type(typed) is _class_of(task):
        recorded["json"] = pack(typed)
    else:
        recorded["typed"] = typed
    return recorded


def thaw(recorded: Mapping[str, Any], task: Any, context: str) -> TaskOutput:
    """Return the output that :func:`freeze` took apart; its task is only answered from the log if the context is the same."""
    _replace(recorded["data"]["messages"], _CONTEXT, context)
    output = TaskOutput.model_validate(recorded["data"])
    found = recorded["json_dict"]
    output.json_dict = codecs_of(task.output_json).decode(found) if isinstance(found, bytes) else found  # type: ignore[assignment]
    cls = _class_of(task)
    if recorded["json"] is not None and cls is not None:
        output.pydantic = unpack(recorded["json"], cls)
    else:
        output.pydantic = recorded["typed"]
    return output


def _replace(messages: list[dict[str, Any]], old: str, new: str) -> None:
    for message in messages:
        if old and isinstance(content := message.get("content"), str):
            message["content"] = content.replace(old, new)


def _class_of(task: Any) -> type[BaseModel] | None:
    found: type[BaseModel] | None = task.output_pydantic or task.response_model
    return found


def content_of(output: TaskOutput) -> Any:
    """Return what CrewAI writes into a task's file."""
    if output.json_dict:
        return output.json_dict
    return output.pydantic.model_dump_json() if output.pydantic else output.raw
