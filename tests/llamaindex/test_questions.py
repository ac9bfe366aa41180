"""Which questions are open: however they are asked, and whatever comes from outside meanwhile."""

from __future__ import annotations

import asyncio
import gc

import pytest
from workflows import Context, Workflow, step
from workflows.events import Event, HumanResponseEvent, InputRequiredEvent, StartEvent, StopEvent

from letitloop.adapters.llamaindex import LetItLoopRuntime


class Question(InputRequiredEvent):
    what: str = ""


class Answer(HumanResponseEvent):
    what: str = ""


class Go(Event):
    pass


class Next(Event):
    what: str = ""


class Heard(Event):
    pass


class Written(Workflow):
    """Two steps, each of which writes its question to the stream and waits for what comes."""

    @step
    async def one(self, ctx: Context, ev: StartEvent) -> Next:
        ctx.write_event_to_stream(Question(what="first"))
        found = await ctx.wait_for_event(HumanResponseEvent, waiter_id="1", timeout=None)
        return Next(what=found.response)

    @step
    async def two(self, ctx: Context, ev: Next) -> StopEvent:
        ctx.write_event_to_stream(Question(what="second"))
        found = await ctx.wait_for_event(HumanResponseEvent, waiter_id="2", timeout=None)
        return StopEvent(result=[ev.what, found.response])


class InARow(Workflow):
    """One step that asks twice; it runs again from the top for each answer."""

    @step
    async def both(self, ctx: Context, ev: StartEvent) -> StopEvent:
        said = []
        for what in ("first", "second"):
            ctx.write_event_to_stream(Question(what=what))
            found = await ctx.wait_for_event(Answer, waiter_id=what, requirements={"what": what}, timeout=None)
            said.append(found.response)
        return StopEvent(result=said)


class LeftOpen(Workflow):
    """Steps that write a question, and leave its answer to another step."""

    @step
    async def one(self, ctx: Context, ev: StartEvent) -> None:
        ctx.write_event_to_stream(Question(what="first"))

    @step
    async def two(self, ctx: Context, ev: Answer) -> StopEvent | None:
        said = [*await ctx.store.get("said", default=[]), ev.response]
        await ctx.store.set("said", said)
        if len(said) == 2:
            return StopEvent(result=said)
        ctx.write_event_to_stream(Question(what="second"))
        return None


class Returned(Workflow):
    """The same by events that are returned."""

    @step
    async def one(self, ev: StartEvent) -> Question:
        return Question(what="first")

    @step
    async def two(self, ctx: Context, ev: Answer) -> StopEvent | Question:
        said = [*await ctx.store.get("said", default=[]), ev.response]
        await ctx.store.set("said", said)
        return StopEvent(result=said) if len(said) == 2 else Question(what="second")


class Inside(Workflow):
    """A run whose step shows what another run asks, and hands the answers on."""

    @step
    async def outer(self, ctx: Context, ev: StartEvent) -> Next:
        inner = Written(runtime=self.runtime).run(run_id="inner")
        async for event in inner.stream_events():
            if isinstance(event, Question):
                ctx.write_event_to_stream(event)
                inner.ctx.send_event(HumanResponseEvent(response=f"to {event.what}"))
        return Next(what="; ".join(await inner))

    @step
    async def last(self, ctx: Context, ev: Next) -> StopEvent:
        ctx.write_event_to_stream(Question(what="third"))
        found = await ctx.wait_for_event(HumanResponseEvent, waiter_id="3", timeout=None)
        return StopEvent(result=[ev.what, found.response])


async def life(workflow, answers):
    """Answer so many questions, in the order in which they come; return what was asked, and the result if that was all of it."""
    handler = workflow(runtime=LetItLoopRuntime(), timeout=5).run(run_id="a")
    asked = []
    async for event in handler.stream_events():
        if not isinstance(event, Question) or event.what in asked:
            continue  # a step that waits writes it again when it goes on
        asked.append(event.what)
        if len(asked) > answers:
            break
        if workflow is not Inside or event.what == "third":
            cls = HumanResponseEvent if workflow in (Written, Inside) else Answer
            handler.ctx.send_event(cls(response=f"to {event.what}", what=event.what))
    else:
        return asked, await handler
    task = handler._external_adapter._queues.complete
    task.cancel()
    await asyncio.wait([task])
    gc.collect()
    return asked, None


@pytest.mark.parametrize("workflow", [Written, InARow, LeftOpen, Returned])
async def test_an_answered_question_is_never_shown_again_and_an_open_one_always(workflow):
    assert await life(workflow, 0) == (["first"], None)
    assert await life(workflow, 0) == (["first"], None)
    assert await life(workflow, 1) == (["first", "second"], None)
    assert await life(workflow, 0) == (["second"], None)
    assert await life(workflow, 9) == (["second"], ["to first", "to second"])
    assert await life(workflow, 9) == ([], ["to first", "to second"])


async def test_a_question_that_was_passed_on_is_the_inner_runs():
    assert await life(Inside, 2) == (["first", "second", "third"], None)
    assert await life(Inside, 0) == (["third"], None)
    assert await life(Inside, 1) == (["third"], ["to first; to second", "to third"])


class Many(Workflow):
    """Asks three people at once."""

    @step
    async def begin(self, ctx: Context, ev: StartEvent) -> Next | None:
        for what in "abc":
            ctx.send_event(Next(what=what))
        return None

    @step(num_workers=3)
    async def ask(self, ctx: Context, ev: Next) -> Question | None:
        if not self.written:
            return Question(what=ev.what)
        ctx.write_event_to_stream(Question(what=ev.what))
        return None

    @step
    async def ignore(self, ev: Go) -> None:
        return None

    @step
    async def hear(self, ctx: Context, ev: Answer) -> StopEvent | None:
        ctx.write_event_to_stream(Heard())
        said = [*await ctx.store.get("said", default=[]), ev.response]
        await ctx.store.set("said", said)
        return StopEvent(result=sorted(said)) if len(said) == 3 else None

    def __init__(self, *, written, **options):
        self.written = written
        super().__init__(**options)


async def asks_many(told, *, written, names, until):
    """Answer what ``told`` names when all that is expected was asked; return what was asked and the result."""
    handler = Many(written=written, runtime=LetItLoopRuntime(), timeout=5, disable_validation=True).run(run_id="a")
    asked, heard, sent = [], 0, False
    async for event in handler.stream_events():
        asked += [event.what] if isinstance(event, Question) else []
        heard += sent and isinstance(event, Heard)
        if len(asked) == until and not sent:
            sent = True
            handler.ctx.send_event(Go())
            for what in told:
                handler.ctx.send_event(Answer(response=what, what=what if names else ""))
        if sent and heard == len(told) < until:
            break
    else:
        return sorted(asked), await handler
    task = handler._external_adapter._queues.complete
    task.cancel()
    await asyncio.wait([task])
    gc.collect()
    return sorted(asked), None


@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize(("names", "left"), [(True, ["a", "c"]), (False, None)])
async def test_the_other_questions_stay_open(written, names, left):
    """An answer that repeats something of its question answers that one; any other answers the oldest."""
    assert await asks_many([], written=written, names=names, until=3) == (["a", "b", "c"], None)
    assert await asks_many(["b"], written=written, names=names, until=3) == (["a", "b", "c"], None)
    asked, result = await asks_many(["a", "c"], written=written, names=names, until=2)
    assert result == ["a", "b", "c"]
    assert asked == (left or ["b", "c"])


@pytest.mark.parametrize("workflow", [LeftOpen, Returned])
async def test_the_second_wait_does_not_count_as_running_either(monkeypatch, workflow):
    now = [1_000_000.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    handler = workflow(runtime=LetItLoopRuntime(), timeout=0.2).run(run_id="a")
    asked = False
    async for event in handler.stream_events(expose_internal=True):
        asked = asked or isinstance(event, Question)
        if asked and type(event).__name__ == "WorkflowIdleEvent":
            asked = False
            now[0] += 86_400
            handler.ctx.send_event(Answer(response="yes"))
    assert await handler == ["yes", "yes"]
