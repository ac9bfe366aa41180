"""``durable_config``: run the script again, and the thread goes on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from langchain_core.messages import BaseMessage, RemoveMessage
from langgraph.types import Command

from letitloop.codecs import classes, default_codecs
from letitloop.codecs.ext import Refused
from letitloop.errors import InvalidArgument
from letitloop_langgraph.errors import InputsChanged

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from langchain_core.runnables import RunnableConfig

    from letitloop_langgraph.contents import Contents
    from letitloop_langgraph.index import Stored

__all__ = ["INPUTS", "check_inputs", "durable_config", "without_ids"]

INPUTS = "letitloop_inputs"
_DRAWN = re.compile(r"((lc_)?run-+)?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(-\d+)?")


def durable_config(thread_id: str | int, inputs: Any = None, *, run: str = "", **more: Any) -> RunnableConfig:
    """Return a config with which a script may be run again and again: the graph goes on where it was, and ends once.

    ``app.invoke(inputs, durable_config("thread-1", inputs))`` starts the thread; run again after a crash it resumes in the middle
    of the graph; run again after the end it returns the result and calls nothing. A thread may have several runs, one after the
    other, as a conversation has turns; each has a name of its own.

    Args:
        thread_id: the thread.
        inputs: what the graph is invoked with; other inputs under the same name raise :class:`InputsChanged`. Ids that LangGraph
            or LangChain drew for messages do not count.
        run: the name of the run in the thread; left out, the thread has one.
        more: further keys of the config, e.g. ``recursion_limit``; ``configurable`` and ``metadata`` are merged.

    Returns:
        A config for ``invoke``, ``stream`` and their async twins.

    Raises:
        InvalidArgument: the name of the run is no text that a checkpoint's metadata can hold.

    Example:
        >>> config = durable_config("thread-1", {"question": "2 + 2"})
        >>> config["configurable"]["thread_id"], config["metadata"]["run_id"]
        ('thread-1', 'letitloop')
    """
    if not isinstance(run, str):
        raise InvalidArgument(f"durable_config(run={run!r}): it is a text. Nothing was run.")
    if "\0" in run or any("\ud800" <= char <= "\udfff" for char in run):
        raise InvalidArgument(
            f"durable_config(run={run!r}): a checkpoint's metadata cannot hold NUL characters or lone surrogates, so the run would "
            "not be recognised when the script is run again. Nothing was run."
        )
    metadata: dict[str, Any] = {**more.pop("metadata", {}), "run_id": f"letitloop:{run}" if run else "letitloop"}
    if inputs is not None and not isinstance(inputs, Command):
        metadata[INPUTS] = default_codecs.fingerprint((without_ids(inputs, _is_given),), {})[:16].hex()
    configurable = {**more.pop("configurable", {}), "thread_id": str(thread_id)}
    return {**more, "configurable": configurable, "metadata": metadata}  # type: ignore[typeddict-item]


def without_ids(value: Any, counts: Callable[[BaseMessage], bool] = lambda _: False) -> Any:
    """Return a value with its messages as plain data, without their ids: LangGraph gives each a random one.

    Args:
        value: the value.
        counts: tells of which messages the id stays.

    >>> from langchain_core.messages import HumanMessage
    >>> without_ids([HumanMessage("hi", id="1")]) == without_ids([HumanMessage("hi", id="2")])
    True
    """
    if isinstance(value, BaseMessage):
        fields = {name: without_ids(part, counts) for name, part in value.__dict__.items() if name != "id"}
        return {**fields, "type": value.type, **({"id": value.id} if counts(value) else {})}
    if type(value) in (list, tuple):
        return [without_ids(item, counts) for item in value]
    if type(value) is dict:
        return {name: without_ids(item, counts) for name, item in value.items()}
    parts = _parts(value)
    return without_ids(parts, counts) if _holds_messages(parts) else value


def _is_given(message: BaseMessage) -> bool:
    """Tell whether the caller gave a message its id: one that LangGraph or LangChain drew is set on the caller's own message."""
    if isinstance(message, RemoveMessage):
        return True
    return message.id is not None and _DRAWN.fullmatch(message.id) is None


def _parts(value: Any) -> list[Any]:
    """Return what a state that is an instance is made of: of a dataclass, a pydantic model, an attrs class, a named tuple."""
    cls: type = type(value)
    try:
        spec = classes.describe(cls)
        return [] if spec is None or spec.kind == classes.ENUM else classes.stable_body(spec, classes.explode(spec, value)[1])
    except Refused:
        return []


def _holds_messages(value: Any) -> bool:
    if isinstance(value, BaseMessage):
        return True
    if type(value) is dict:
        value = list(value.values())
    return any(map(_holds_messages, value if type(value) in (list, tuple) else _parts(value)))


def check_inputs(contents: Contents, stored: Stored, wanted: Mapping[str, Any]) -> None:
    """Refuse to answer a run with what another one, of the same name and with other inputs, came to.

    Raises:
        InputsChanged: that is asked.
    """
    asked = wanted.get(INPUTS)
    if asked is None:
        return
    recorded = contents.metadata(stored)
    if recorded.get("run_id") == wanted.get("run_id") and recorded.get(INPUTS, asked) != asked:
        name = str(wanted["run_id"]).partition(":")[2]
        raise InputsChanged(
            f"thread {contents.thread_id!r} has {f'a run {name!r}' if name else 'its run'} on record with other inputs. "
            "Nothing was run. "
            'For a new run in this thread: durable_config(thread_id, inputs, run="…"); or take another thread_id, or '
            "delete_thread().",
            thread_id=contents.thread_id,
            run_id=str(wanted["run_id"]),
        )
