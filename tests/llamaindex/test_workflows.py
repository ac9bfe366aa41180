"""What happens to workflows: crashes apart, every rule of the adapter that a program can see."""

from __future__ import annotations

import asyncio
import gc
import json
import warnings
from datetime import datetime, timezone

import pytest
import workflows.events
from workflows import Context, Workflow, catch_error, step
from workflows.errors import WorkflowCancelledByUser, WorkflowTimeoutError
from workflows.events import (
    Event,
    HumanResponseEvent,
    InputRequiredEvent,
    StartEvent,
    StepFailedEvent,
    StepState,
    StopEvent,
    WorkflowCancelledEvent,
    WorkflowFailedEvent,
)

import letitloop
from letitloop import (
    InvalidArgument,
    LogLocked,
    LogPoisoned,
    RunHalted,
    StepChanged,
    StepOutsideRun,
    UnencodableError,
    UnknownOutcome,
    durable,
)
from letitloop.adapters.llamaindex import LetItLoopRuntime, durable_workflow
from letitloop_llamaindex.ticks import TickCodec

made = []


@pytest.fixture(autouse=True)
def _place(tmp_path, monkeypatch):
    monkeypatch.setenv("LETITLOOP_STORE", str(tmp_path / "store"))
    made.clear()


def make(what):
    made.append(what)
    return what


def stream(handler):
    async def collect():
        return [event async for event in handler.stream_events()]

    return asyncio.create_task(collect())


class Ask(InputRequiredEvent):
    pass


class Reply(HumanResponseEvent):
    pass


class Middle(Event):
    number: int = 0


class Counted(Event):
    number: int


class Sent(Event):
    number: int


class Simple(Workflow):
    @step
    async def one(self, ctx: Context, ev: StartEvent) -> Middle:
        letitloop.step("leaf", make, "one")
        await ctx.store.set("value", ev.get("value"))
        return Middle()

    @step
    async def two(self, ctx: Context, ev: Middle) -> StopEvent:
        make("two")
        if error := ev.get("error", None) or trouble.get("error"):
            raise error
        return StopEvent(result=[await ctx.store.get("value")])


trouble = {}


@pytest.fixture(autouse=True)
def _no_trouble():
    trouble.clear()


def simple(**options):
    return Simple(runtime=LetItLoopRuntime(**options))


# --- identity ----------------------------------------------------------------------------------------------------------------


async def test_a_finished_run_returns_its_result_and_does_nothing():
    first = await simple().run(run_id="a", value={1, 2})
    handler = simple().run(run_id="a", value={1, 2})
    seen = stream(handler)
    assert await handler == first == [{1, 2}]
    assert [type(event) for event in await seen] == [StopEvent]
    assert await handler.ctx.store.get("value") == {1, 2}
    assert made == ["one", "two"]


async def test_another_run_id_is_another_run():
    assert await simple().run(run_id="a", value=1) == [1]
    assert await simple().run(run_id="b", value=2) == [2]
    assert made == ["one", "two"] * 2


async def test_a_run_without_an_id_can_be_resumed_by_whoever_kept_the_handlers():
    trouble["error"] = ValueError("once")
    handler = simple().run(value=1)
    with pytest.raises(ValueError, match="once"):
        await handler
    trouble.clear()
    assert await simple().run(run_id=handler.run_id, value=1) == [1]
    assert made == ["one", "two", "two"]


async def test_other_inputs_under_the_same_id_are_noticed():
    trouble["error"] = ValueError("once")
    with pytest.raises(ValueError, match="once"):
        await simple().run(run_id="a", value=1)
    handler = simple().run(run_id="a", value=2)
    seen = stream(handler)
    with pytest.raises(StepChanged) as caught:
        await handler
    assert caught.value.arguments == ("value",)
    assert isinstance((await seen)[-1], WorkflowFailedEvent)
    trouble.clear()
    assert await simple(on_change="rerun").run(run_id="a", value=2) == [2]
    assert made == ["one", "two", "one", "two"]


async def test_other_inputs_or_another_workflow_under_the_id_of_a_finished_run_are_noticed():
    assert await simple().run(run_id="a", value=1) == [1]
    with pytest.raises(StepChanged) as caught:
        await simple().run(run_id="a", value=2)
    assert caught.value.arguments == ("value",)
    with pytest.raises(StepChanged) as caught:
        await Slow(runtime=LetItLoopRuntime()).run(run_id="a")
    assert caught.value.arguments == ("workflow", "value")
    assert await simple().run(run_id="a", value=1) == [1]
    assert await simple(on_change="reuse").run(run_id="a", value=2) == [1]
    assert made == ["one", "two"]
    assert await simple(on_change="rerun").run(run_id="a", value=2) == [2]
    assert await simple().run(run_id="a", value=2) == [2]
    assert made == ["one", "two", "one", "two"]


async def test_two_live_drives_of_one_run_are_refused():
    trouble["wait"] = True
    workflow = Slow(runtime=LetItLoopRuntime())
    handler = workflow.run(run_id="a")
    while not made:
        await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="already exists"):
        workflow.run(run_id="a")
    with pytest.raises(LogLocked):
        await Slow(runtime=LetItLoopRuntime()).run(run_id="a")
    await handler.cancel_run()
    assert made == ["leaf"]


# --- failures ----------------------------------------------------------------------------------------------------------------


async def test_a_failure_that_ended_the_run_is_tried_again():
    """A failure tick in the log must not poison it: stock, the next resume has no work and hangs until its timeout."""
    trouble["error"] = ValueError("disk full")
    for _ in range(2):
        handler = simple().run(run_id="a", value=1)
        seen = stream(handler)
        with pytest.raises(ValueError, match="disk full"):
            await handler
        assert isinstance((await seen)[-1], WorkflowFailedEvent)
    trouble.clear()
    assert await simple().run(run_id="a", value=1) == [1]
    assert made == ["one", "two", "two", "two"]


class FailingLeaf(Workflow):
    @step
    async def one(self, ctx: Context, ev: StartEvent) -> StopEvent:
        letitloop.step("done", make, "done")
        await ctx.store.set("count", await ctx.store.get("count", default=0) + 1)

        def act():
            make("act")
            if trouble:
                raise OSError(28, "no space")
            return "acted"

        return StopEvent(result=(letitloop.step("act", act), await ctx.store.get("count")))


async def test_a_failed_leaf_is_tried_again_and_finished_ones_are_not():
    trouble["error"] = True
    for _ in range(2):
        with pytest.raises(OSError, match="no space"):
            await FailingLeaf(runtime=LetItLoopRuntime()).run(run_id="a")
    trouble.clear()
    assert await FailingLeaf(runtime=LetItLoopRuntime()).run(run_id="a") == ("acted", 1)
    assert made == ["done", "act", "act", "act"]


class Slow(Workflow):
    @step
    async def one(self, ev: StartEvent) -> StopEvent:
        letitloop.step("leaf", make, "leaf")
        if trouble:
            await asyncio.Event().wait()
        return StopEvent(result="done")


async def test_a_timeout_begins_anew():
    trouble["wait"] = True
    handler = Slow(timeout=0.05, runtime=LetItLoopRuntime()).run(run_id="a")
    with pytest.raises(WorkflowTimeoutError):
        await handler
    trouble.clear()
    assert await Slow(timeout=30, runtime=LetItLoopRuntime()).run(run_id="a") == "done"
    assert made == ["leaf"]


async def test_a_cancelled_run_goes_on():
    trouble["wait"] = True
    handler = Slow(runtime=LetItLoopRuntime()).run(run_id="a")
    seen = stream(handler)
    while not made:
        await asyncio.sleep(0)
    await handler.cancel_run()
    with pytest.raises(WorkflowCancelledByUser):
        await handler
    assert isinstance((await seen)[-1], WorkflowCancelledEvent)
    trouble.clear()
    assert await Slow(runtime=LetItLoopRuntime()).run(run_id="a") == "done"
    assert made == ["leaf"]


async def test_an_aborted_run_ends_its_stream_and_goes_on():
    trouble["wait"] = True
    handler = Slow(runtime=LetItLoopRuntime()).run(run_id="a")
    seen = stream(handler)
    while not made:
        await asyncio.sleep(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        handler.cancel()
    assert isinstance((await seen)[-1], WorkflowCancelledEvent)
    del handler
    gc.collect()
    trouble.clear()
    assert await Slow(runtime=LetItLoopRuntime()).run(run_id="a") == "done"
    assert made == ["leaf"]


class Crash(BaseException):
    """Ends a run as the end of its process would: nothing is recorded of it."""


class Handled(Workflow):
    """A step fails, and another one takes its failure."""

    @step
    async def one(self, ev: StartEvent) -> Middle:
        make("one")
        raise Own("no", code=5) if ev.get("own") else ValueError("no")

    @catch_error
    async def rescue(self, ev: StepFailedEvent) -> Counted:
        make((type(ev.exception).__name__, str(ev.exception), type(ev.input_event).__name__))
        return Counted(number=ev.attempts)

    @step
    async def never(self, ev: Middle) -> StopEvent:
        raise AssertionError("one() has failed")

    @step
    async def end(self, ev: Counted) -> StopEvent:
        if trouble:
            raise Crash
        return StopEvent(result=ev.number)


class Own(Exception):
    """One that cannot be made of its text, and holds what cannot be recorded."""

    def __init__(self, text, *, code):
        super().__init__(text)
        self.code, self.live = code, lambda: code


@pytest.mark.parametrize("own", [False, True])
async def test_a_run_whose_failed_step_was_handled_goes_on(own):
    """Its start event, which no log has, is what the step has failed with."""
    trouble["crash"] = True
    with pytest.raises(Crash):
        await Handled(runtime=LetItLoopRuntime()).run(run_id="a", own=own, live=lambda: None)
    trouble.clear()
    assert await Handled(runtime=LetItLoopRuntime()).run(run_id="a", own=own, live=lambda: None) == 1
    assert made == ["one", ("Own" if own else "ValueError", "no", "StartEvent")]


GIVEN = {
    "step_name": "one",
    "input_event": Middle(number=7),
    "exception": LookupError("gone"),
    "attempts": 2,
    "elapsed_seconds": 0.5,
    "failed_at": datetime.now(timezone.utc),
    "timeout": 1.0,
    "active_steps": ["one"],
    "event_type": "Middle",
    "qualified_name": "tests.Middle",
    "idle": True,
    "name": "one",
    "step_state": StepState.RUNNING,
    "worker_id": "1",
    "input_event_name": "Middle",
}
EVENTS = [one for one in vars(workflows.events).values() if isinstance(one, type) and issubclass(one, Event)]


@pytest.mark.parametrize("cls", EVENTS, ids=lambda cls: cls.__name__)
def test_every_event_of_the_framework_is_exact(cls):
    event = cls(**{name: GIVEN[name] for name in cls.model_fields if name in GIVEN}, more={1, 2})
    codec, other = TickCodec(), TickCodec()
    data = codec.encode_value([event], "event")
    other.take_in(codec.take_new())
    (again,) = other.decode_value(data)
    assert type(again) is cls
    assert again["more"] == {1, 2}
    assert again.model_fields_set == event.model_fields_set
    for name, value in vars(event).items():
        if isinstance(value, Exception):
            assert (type(vars(again)[name]), str(vars(again)[name])) == (type(value), str(value))
        else:
            assert vars(again)[name] == value
    again["later"] = 1
    assert again.later == 1
    with pytest.raises(UnencodableError, match="LookupError"):
        codec.encode_value(cls(**{name: GIVEN[name] for name in cls.model_fields if name in GIVEN}, more=LookupError()), "event")


# --- steps in flight ---------------------------------------------------------------------------------------------------------


class Counting(Workflow):
    """Two steps that run side by side count in the state, one of them in flight at the end of the first life."""

    @step
    async def begin(self, ctx: Context, ev: StartEvent) -> Middle | None:
        await ctx.store.set("count", 0)
        await ctx.store.set("names", [])
        ctx.send_event(Middle(number=0))
        ctx.send_event(Middle(number=1))
        return None

    @step(num_workers=2)
    async def count(self, ctx: Context, ev: Middle) -> Counted | Sent:
        await ctx.store.set("count", await ctx.store.get("count") + 1)
        names = await ctx.store.get("names")
        names.append(ev.number)  # in place, and then set: what is read is not changed twice either
        await ctx.store.set("names", names)
        async with ctx.store.edit_state() as state:
            state["edited"] = state.get("edited", 0) + 1
        ctx.send_event(Sent(number=ev.number))
        if ev.number == 1 and trouble:
            while "ended 0" not in made:
                await asyncio.sleep(0)
            raise Crash
        return Counted(number=ev.number)

    @step
    async def sent(self, ctx: Context, ev: Sent) -> Counted:
        make(f"sent {ev.number}")
        return Counted(number=10 + ev.number)

    @step
    async def end(self, ctx: Context, ev: Counted) -> StopEvent | None:
        make(f"ended {ev.number}")
        found = ctx.collect_events(ev, [Counted] * 4)
        if found is None:
            return None
        state = await ctx.store.get_state()
        return StopEvent(result=(sorted(one.number for one in found), state["count"], sorted(state["names"]), state["edited"]))


async def test_a_step_that_runs_again_writes_and_sends_nothing_twice():
    """Its writes are in the record of the step beside it, and its event has been delivered; stock, both come twice."""
    trouble["crash"] = True
    with pytest.raises(Crash):
        await Counting(runtime=LetItLoopRuntime()).run(run_id="a")
    trouble.clear()
    assert await Counting(runtime=LetItLoopRuntime()).run(run_id="a") == ([0, 1, 10, 11], 2, [0, 1], 2)
    assert sorted(what for what in made if what.startswith("sent")) == ["sent 0", "sent 1"]


class Again(Workflow):
    """The same event passes a step several times, changed in place."""

    @step
    async def one(self, ev: StartEvent) -> Middle:
        return Middle()

    @step
    async def two(self, ev: Middle) -> Middle | StopEvent:
        letitloop.step("turn", make, ev.number)
        if ev.number == 3:
            if trouble:
                raise Crash
            return StopEvent(result=ev.number)
        ev.number += 1
        return ev


async def test_an_event_that_is_changed_in_place_is_recorded_as_it_is():
    trouble["crash"] = True
    with pytest.raises(Crash):
        await Again(runtime=LetItLoopRuntime()).run(run_id="a")
    trouble.clear()
    assert await Again(runtime=LetItLoopRuntime()).run(run_id="a") == 3
    assert made == [0, 1, 2, 3]


# --- Halt --------------------------------------------------------------------------------------------------------------------


class Wide(Workflow):
    """A fan-out of four, of which one meets what must reach the caller."""

    @step
    async def one(self, ev: StartEvent) -> list[Middle]:
        return [Middle(number=number) for number in range(4)]

    @step(num_workers=4)
    async def two(self, ev: Middle) -> Middle | None:
        if ev.number == 2 and trouble:
            try:
                raise trouble["error"]
            finally:
                make("raised")
        if trouble:
            await asyncio.Event().wait()
        return None

    @step
    async def never(self, evs: list[Middle]) -> StopEvent:
        return StopEvent(result=len(evs))


async def test_unknown_reaches_the_caller_and_ends_the_stream():
    """Stock, whoever reads the events of a run that a BaseException ended waits for ever."""
    trouble["error"] = UnknownOutcome("it may have happened", namespace="shop", key="order/42", reason="no reply")
    handler = Wide(runtime=LetItLoopRuntime(), disable_validation=True).run(run_id="a")
    seen = stream(handler)
    with pytest.raises(UnknownOutcome) as caught:
        await handler
    assert caught.value.key == "order/42"
    last = (await seen)[-1]
    assert isinstance(last, WorkflowFailedEvent)
    assert isinstance(last.exception, RunHalted)
    assert last.exception.__cause__ is caught.value


async def test_a_failed_write_lets_nothing_more_happen(monkeypatch):
    """The framework's own server logs that a tick could not be stored, and goes on."""
    real = letitloop.wal.log.Log._put

    def fails(log, data):
        if made:
            raise OSError(28, "no space left")
        real(log, data)

    monkeypatch.setattr(letitloop.wal.log.Log, "_put", fails)
    handler = simple().run(run_id="a", value=1)
    seen = stream(handler)
    with pytest.raises(LogPoisoned):
        await handler
    assert isinstance((await seen)[-1], WorkflowFailedEvent)
    assert made == ["one"]
    monkeypatch.undo()
    made.clear()


# --- people ------------------------------------------------------------------------------------------------------------------


class Waits(Workflow):
    @step
    async def one(self, ctx: Context, ev: StartEvent) -> StopEvent:
        letitloop.step("before", make, "before")
        reply = await ctx.wait_for_event(Reply, waiter_event=Ask(), timeout=ev.get("patience"))
        return StopEvent(result=reply.text)


async def abandoned(handler, until=Ask):
    """Read the events of a run until one of a class, and let the process's end be the run's."""
    async for event in handler.stream_events():
        if isinstance(event, until):
            break
    task = handler._external_adapter._queues.complete
    task.cancel()
    await asyncio.wait([task])


async def test_an_answer_that_comes_in_another_process(monkeypatch):
    runtime = LetItLoopRuntime()
    await abandoned(Waits(timeout=5, runtime=runtime).run(run_id="a"))
    gc.collect()
    clock = asyncio.get_running_loop().time() + 1_000_000
    monkeypatch.setattr("time.time", lambda: clock)  # days later
    handler = Waits(timeout=5, runtime=LetItLoopRuntime()).run(run_id="a")
    asked = []
    async for event in handler.stream_events():
        if isinstance(event, Ask):
            asked.append(event)
            handler.ctx.send_event(Reply(text="yes"))
    assert await handler == "yes"
    assert len(asked) == 1
    assert made == ["before"]


async def test_an_answered_question_is_not_asked_again():
    trouble["wait"] = True

    async def life():
        handler = Answered(runtime=LetItLoopRuntime()).run(run_id="a")
        asked = 0
        async for event in handler.stream_events():
            if isinstance(event, Ask):
                asked += 1
                handler.ctx.send_event(Reply(text="yes"))
            elif isinstance(event, Middle) and trouble:
                task = handler._external_adapter._queues.complete
                task.cancel()
                await asyncio.wait([task])
                return asked, None
        return asked, await handler

    assert await life() == (1, None)
    gc.collect()
    trouble.clear()
    assert await life() == (0, "yes")


class Answered(Workflow):
    @step
    async def one(self, ev: StartEvent) -> Ask:
        return Ask()

    @step
    async def two(self, ctx: Context, ev: Reply) -> StopEvent:
        ctx.write_event_to_stream(Middle())
        while trouble:
            await asyncio.sleep(0)
        return StopEvent(result=ev.text)


async def test_waiting_for_a_person_does_not_count_as_running(monkeypatch):
    """Stock, a run of 0.2 s that waits for an answer for longer times out, and its question with it."""
    now = [1_000_000.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    for workflow in (Waits, Answered):
        handler = workflow(timeout=0.2, runtime=LetItLoopRuntime()).run(run_id=workflow.__name__)
        idle = handler._external_adapter._queues
        async for event in handler.stream_events(expose_internal=True):
            if type(event).__name__ == "WorkflowIdleEvent":
                break
        now[0] += 86_400
        handler.ctx.send_event(Reply(text="yes"))
        assert await handler == "yes"
        assert idle.complete.done()


async def test_a_wait_has_its_own_timeout():
    handler = Waits(timeout=30, runtime=LetItLoopRuntime()).run(run_id="a", patience=0.02)
    with pytest.raises(asyncio.TimeoutError, match="Reply"):
        await handler


async def test_a_wait_times_out_in_the_next_process_as_well():
    await abandoned(Waits(timeout=30, runtime=LetItLoopRuntime()).run(run_id="a", patience=0.05))
    gc.collect()
    with pytest.raises(asyncio.TimeoutError, match="Reply"):
        await Waits(timeout=30, runtime=LetItLoopRuntime()).run(run_id="a", patience=0.05)


# --- state and results -------------------------------------------------------------------------------------------------------


async def test_a_state_key_that_cannot_be_recorded_is_an_error():
    """The framework drops a key called memory with a warning, and the resume fails for want of it."""
    handler = Keeps(runtime=LetItLoopRuntime()).run(run_id="a")
    seen = stream(handler)
    with pytest.raises(UnencodableError, match=r"state\['memory'\]") as caught:
        await handler
    assert "cannot record" in str(caught.value)
    assert isinstance((await seen)[-1], WorkflowFailedEvent)


class Keeps(Workflow):
    @step
    async def one(self, ctx: Context, ev: StartEvent) -> Middle:
        await ctx.store.set("memory", object())
        return Middle()

    @step
    async def two(self, ctx: Context, ev: Middle) -> StopEvent:
        raise AssertionError("the state was not recorded")


async def test_a_context_continues_exactly():
    handler = simple().run(run_id="a", value=(1, 2))
    await handler
    second = Simple(runtime=LetItLoopRuntime())
    handler = second.run(run_id="b", value={3}, ctx=handler.ctx)
    assert await handler == [{3}]
    kept = json.loads(json.dumps(handler.ctx.to_dict()))
    third = Simple(runtime=LetItLoopRuntime())
    ctx = Context.from_dict(third, kept)
    assert await ctx.store.get("value") == {3}
    assert await third.run(run_id="c", value=b"4", ctx=ctx) == [b"4"]


async def test_inside_a_durable_function_a_run_is_a_part_of_it():
    @durable(goal_id="report")
    async def report():
        found = [await Simple(runtime=LetItLoopRuntime()).run(value=number) for number in (1, 1)]
        letitloop.step("end", make, "end")
        if trouble:
            raise trouble["late"]
        return found

    trouble["late"] = ValueError("late")
    with pytest.raises(ValueError, match="late"):
        await report()
    assert made == ["one", "two", "one", "two", "end"]
    trouble.clear()
    assert await report() == [[1], [1]]
    assert made == ["one", "two", "one", "two", "end"]


# --- wrapping ----------------------------------------------------------------------------------------------------------------


class Parent(Workflow):
    def __init__(self, child, **options):
        super().__init__(**options)
        self.child = child

    @step
    async def one(self, ev: StartEvent) -> StopEvent:
        return StopEvent(result=await self.child.run(value=5))


async def test_durable_workflow_wraps_what_a_workflow_has():
    parent = durable_workflow(Parent(Simple(verbose=True)), store="memory:wrapped")
    runtime = parent.runtime
    assert isinstance(runtime, LetItLoopRuntime)
    assert parent.child.runtime._decorated is runtime
    assert await parent.run(run_id="a") == [5]
    assert made == ["one", "two"]


async def test_a_workflow_that_has_run_is_refused():
    workflow = Answered()
    handler = workflow.run()
    with pytest.raises(InvalidArgument, match="has been run already"):
        durable_workflow(workflow)
    await handler.cancel_run()
    with pytest.raises(InvalidArgument, match="no workflow"):
        durable_workflow(print)
    with pytest.raises(InvalidArgument, match="policy of tool"):
        LetItLoopRuntime(tools={"pay": "once"})


async def test_registering_gives_workflows_this_runtime():
    """A decorator of the framework's own kind would give them the runtime inside it."""
    runtime = LetItLoopRuntime()
    with runtime.registering():
        workflow = Simple()
    assert workflow.runtime is runtime


async def test_a_step_of_a_workflow_without_the_runtime_is_outside_any_run():
    with pytest.raises(StepOutsideRun):
        await Simple().run(value=1)
