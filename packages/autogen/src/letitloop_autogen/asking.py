"""What a call asks, as data that is the same in every life of a program: no ids, no times, no secrets."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from operator import is_
from typing import TYPE_CHECKING, Any

from autogen_core.models import SystemMessage
from pydantic_core import PydanticSerializationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from autogen_core.models import ChatCompletionClient
    from pydantic import BaseModel

__all__ = ["Digests", "model_of", "schema_of", "task_of", "text_of"]

_OF_A_MESSAGE = {"id", "created_at"}
_LEFT_OUT = re.compile(
    # what signs or carries a request, and the answers of a stand-in for a model
    "key|token$|secret|password|credential|authorization|header|timeout|retries|base_url|host|organization|http_client|"
    "chat_completions",
    re.IGNORECASE,
)


class Digests:
    """Digests of a list of messages that grows: what is new in it is taken apart, and what was there before is not."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._seen: list[BaseModel] = []
        self._whole = sha256()
        self._system = sha256()

    def of(self, messages: Iterable[BaseModel]) -> tuple[str, str]:
        """Return the digest of all messages, and that of the system messages among them."""
        now = list(messages)
        if len(self._seen) > len(now) or not all(map(is_, self._seen, now)):
            self._begin()
        for message in now[len(self._seen) :]:
            one = sha256(text_of(message).encode("utf-8", "surrogatepass")).digest()
            self._whole.update(one)
            if isinstance(message, SystemMessage):
                self._system.update(one)
        self._seen = now
        return self._whole.hexdigest()[:32], self._system.hexdigest()[:32]


def text_of(message: BaseModel) -> str:
    """Return a message as JSON, without what AutoGen makes anew each time."""
    try:
        return message.model_dump_json(exclude=_OF_A_MESSAGE)
    except PydanticSerializationError:  # a text that is no UTF-8, as the name of a file may be
        return json.dumps(message.model_dump(mode="json", exclude=_OF_A_MESSAGE), default=repr)


def task_of(task: Any) -> object:
    """Return the task of a run as data."""
    if task is None or isinstance(task, str):
        return task
    if isinstance(task, (list, tuple)):
        return [task_of(one) for one in task]  # pyright: ignore[reportUnknownVariableType]
    return [type(task).__name__, text_of(task)]


def schema_of(tools: Sequence[Any]) -> list[str]:
    """Return the tools' schemas, in their order."""
    return [json.dumps(tool if isinstance(tool, dict) else tool.schema, sort_keys=True, default=str) for tool in tools]


def model_of(client: ChatCompletionClient) -> object:
    """Return what tells one model from another: the client's class and settings, without secrets and addresses."""
    kind = type(client)
    try:
        component = client.dump_component()
        return [component.provider, _settings(component.config)]
    except Exception:  # many a client cannot be dumped
        return [kind.__qualname__, str(getattr(client, "model", "")), _settings(dict(client.model_info))]


def _settings(value: Any) -> Any:
    if isinstance(value, dict):
        items: list[tuple[str, Any]] = sorted((str(name), one) for name, one in value.items())  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
        return {name: _settings(one) for name, one in items if not _LEFT_OUT.search(name)}
    if isinstance(value, (list, tuple)):
        return [_settings(one) for one in value]  # pyright: ignore[reportUnknownVariableType]
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)
