"""Model calls: answered once, and from the log ever after, with what they used."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from threading import Lock
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from crewai.llms.base_llm import BaseLLM, llm_call_context
from crewai.types.usage_metrics import UsageMetrics
from crewai.utilities.agent_utils import extract_tool_call_info
from pydantic import BaseModel

from letitloop.runs.scope import restore
from letitloop_crewai.asking import question
from letitloop_crewai.driving import current_frame, outside
from letitloop_crewai.typed import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from letitloop.integration.patching import Patches
    from letitloop_crewai.driving import Frame

__all__ = ["Meter", "counted_once", "meter_of", "new_bill", "wrap_model"]

_used: ContextVar[list[UsageMetrics] | None] = ContextVar("letitloop_crewai_used", default=None)


_counted: set[str] = set()


def counted_once(bill: str) -> bool:
    """Tell whether the usage on a bill is counted in this process already, and take it as counted from now on."""
    known = bill in _counted
    _counted.add(bill)
    return known


def new_bill() -> str:
    """Return a name for what something used, which is counted by whoever makes it."""
    bill = uuid4().hex[:16]
    _counted.add(bill)
    return bill


class Meter:
    """What one model used: in this process, as CrewAI counts it, and in earlier ones, as the log tells.

    Attributes:
        label: its name in the log, by which a later process finds it.
        replayed: what answers from the log had used, for a model class with a counter of its own.
    """

    def __init__(self, llm: Any, label: str) -> None:
        self.llm: Any = llm
        self.label = label
        self.replayed = UsageMetrics()
        self._lock = Lock()
        self.summary: Callable[[], UsageMetrics] = llm.get_token_usage_summary

    def replay(self, used: dict[str, int]) -> None:
        """Count what a recorded answer had used, where CrewAI would have: copies of a model share its counter."""
        with self._lock:
            cls: Any = type(self.llm)  # pyright: ignore[reportUnknownVariableType]
            if cls.get_token_usage_summary is not BaseLLM.get_token_usage_summary:
                self.replayed.add_usage_metrics(UsageMetrics(**used))
                return
            counter: dict[str, int] = self.llm._token_usage
            for name, count in used.items():
                counter[name] = counter.get(name, 0) + count

    def counted(self, stock: Callable[[], UsageMetrics]) -> Callable[[], UsageMetrics]:
        """Return a model's usage summary that counts answers from the log as well, as an uninterrupted run would have."""
        self.summary = stock

        def get_token_usage_summary() -> UsageMetrics:
            total = stock().model_copy()
            total.add_usage_metrics(self.replayed)
            return total

        return get_token_usage_summary

    def tracked(self, stock: Callable[..., None]) -> Callable[..., None]:
        """Return a model's own counter, which tells the call that is under way what it added."""

        def track(*args: Any, **kwargs: Any) -> None:
            with self._lock:
                before = self.summary()
                stock(*args, **kwargs)
                delta = _since(before, self.summary())
            if (used := _used.get()) is not None:
                used.append(delta)

        return track

    @contextmanager
    def measuring(self) -> Generator[UsageMetrics]:
        """Yield what the call inside the block uses; it is complete at its end."""
        total, before = UsageMetrics(), self.summary()
        told: list[UsageMetrics] = []
        token = _used.set(told)
        try:
            yield total
        finally:
            restore(_used, token)
        if not told:  # a model class with a counter of its own
            told.append(_since(before, self.summary()))
        for one in told:
            total.add_usage_metrics(one)


def _since(before: UsageMetrics, now: UsageMetrics) -> UsageMetrics:
    """Return what was used between two readings of a counter, which may have been set back in between."""
    then = before.model_dump()
    return UsageMetrics(**{name: max(count - then[name], 0) for name, count in now.model_dump().items()})


def wrap_model(patches: Patches, llm: Any, label: str) -> None:
    """Make a model durable wherever a wrapped kickoff calls it; anywhere else it is as it was."""
    meter = Meter(llm, label)
    patches.replace(llm, "get_token_usage_summary", meter.counted)
    if hasattr(llm, "_track_token_usage_internal"):
        patches.replace(llm, "_track_token_usage_internal", meter.tracked)
    patches.replace(llm, "call", lambda stock: _durable(stock, meter))
    patches.replace(llm, "acall", lambda stock: _durable_async(stock, meter))


def meter_of(llm: Any) -> Meter | None:
    """Return the meter of a wrapped model."""
    return getattr(getattr(llm, "call", None), "letitloop_meter", None)


def _durable(stock: Callable[..., Any], meter: Meter) -> Callable[..., Any]:
    @wraps(stock)
    def call(*args: Any, **kwargs: Any) -> Any:
        frame = current_frame()
        if frame is None:
            return stock(*args, **kwargs)
        one = _ModelCall(frame, meter, args, kwargs)

        def ask() -> dict[str, Any]:
            with outside(), meter.measuring() as used:
                answer = stock(*args, **kwargs)
            return one.answered(answer, used)

        return one.finish(frame.drive.leaf(frame.scope, "model", one.asked, ask))

    call.letitloop_meter = meter  # type: ignore[attr-defined]  # found again by meter_of
    return call


def _durable_async(stock: Callable[..., Any], meter: Meter) -> Callable[..., Any]:
    @wraps(stock)
    async def acall(*args: Any, **kwargs: Any) -> Any:
        frame = current_frame()
        if frame is None:
            return await stock(*args, **kwargs)
        one = _ModelCall(frame, meter, args, kwargs)

        async def ask() -> dict[str, Any]:
            with outside(), meter.measuring() as used:
                answer = await stock(*args, **kwargs)
            return one.answered(answer, used)

        return one.finish(await frame.drive.aleaf(frame.scope, "model", one.asked, ask))

    return acall


class _ModelCall:
    """One call of a model in a part of a kickoff."""

    def __init__(self, frame: Frame, meter: Meter, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._frame = frame
        self._meter = meter
        self._response_model: Any = kwargs.get("response_model") or (args[6] if len(args) > 6 else None)
        self._of = {name: kwargs.get(name) for name in ("from_task", "from_agent")}
        self._fresh: list[Any] = []
        self.asked = question(meter.llm, args, kwargs, frame.plan)

    def answered(self, answer: Any, used: UsageMetrics) -> dict[str, Any]:
        """Return what is recorded of an answer."""
        answer = _as_data(answer)
        self._fresh.append(answer)
        spent = {name: count for name, count in used.model_dump().items() if count}
        kind = "model" if isinstance(answer, BaseModel) and type(answer) is self._response_model else "value"
        return {
            "kind": kind,
            "answer": pack(answer) if kind == "model" else answer,
            "used": spent,
            "bill": new_bill(),
        }

    def finish(self, recorded: dict[str, Any]) -> Any:
        """Return the answer, fresh or recorded, with everything that depends on it in place."""
        used = recorded["used"]
        if self._fresh:
            answer = self._fresh[0]
        else:
            answer = recorded["answer"]
            if recorded["kind"] == "model":
                answer = unpack(answer, self._response_model)
            if not counted_once(recorded["bill"]):
                self._meter.replay(used)
            self._show(answer)
        spent = self._frame.spent.setdefault(self._meter.label, {})
        for name, count in used.items():
            spent[name] = spent.get(name, 0) + count
        self._frame.tried = {} if isinstance(answer, str) else None
        self._frame.answers.note(answer)
        return answer

    def _show(self, answer: Any) -> None:
        """Let whoever watches the stream see an answer from the log, in one piece."""
        llm = self._meter.llm
        if isinstance(answer, str) and getattr(llm, "stream", False):
            with llm_call_context():
                llm._emit_stream_chunk_event(answer, **self._of)


def _as_data(answer: Any) -> Any:
    """Return tool calls as plain data, which every version of a provider's package can read; the rest as it is.

    Parts of a Gemini answer stay what they are: they carry signatures that the next request must repeat.
    """
    if not isinstance(answer, list) or not answer or any(type(one).__qualname__ == "Part" for one in answer):  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
        return answer  # pyright: ignore[reportUnknownVariableType]
    calls: list[Any] = []
    for one in answer:  # pyright: ignore[reportUnknownVariableType]
        info = None if isinstance(one, dict) else extract_tool_call_info(one)
        if info is None:
            calls.append(one)
            continue
        call_id, name, arguments = info
        calls.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}})
    return calls
