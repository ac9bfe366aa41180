"""Events and items of the state are recorded as they are: whatever they hold, and whoever changes them in place."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone

import numpy as np
import pytest
import workflows.events
from pydantic import BaseModel, PrivateAttr
from workflows import Context, Workflow, step
from workflows.events import Event, StartEvent, StepState, StopEvent

import letitloop
from letitloop import UnencodableError
from letitloop.adapters.llamaindex import LetItLoopRuntime
from letitloop_llamaindex.ticks import TickCodec
from tests.llamaindex.helpers import Crash, Middle, made, make, trouble
from tests.llamaindex.pairs import First, Second, again, crashed, die

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


@dataclass
class Row:
    key: str
    note: str = field(default="", compare=False)


class Card(BaseModel):
    key: str
    _note: list[str] = PrivateAttr(default_factory=list)

    def __repr__(self):
        return f"Card({self.key}, {self._note})"


def note_row(rows):
    rows[0].note = "noted"


def note_card(rows):
    rows[0]._note.append("noted")


def note_event(rows):
    rows[0]["note"] = "noted"


def to_bool(rows):
    rows[0]["n"] = True


def to_float(rows):
    rows[0]["n"] = 1.0


def reorder(rows):
    rows[0]["n"] = rows[0].pop("n")


def fill(rows):
    rows[0][1] = 7


CHANGES = {
    note_row: [Row("a")],
    note_card: [Card(key="a")],
    note_event: [Event(key="a")],
    to_bool: [{"n": 1, "m": 2}],
    to_float: [{"n": 1, "m": 2}],
    reorder: [{"n": 1, "m": 2}],
    fill: [np.arange(3)],
}


@pytest.mark.parametrize("change", CHANGES)
async def test_an_item_that_is_changed_in_place_is_recorded_whatever_equality_says(change):
    class Changes(Workflow):
        @step
        async def one(self, ctx: Context, ev: StartEvent) -> First:
            await ctx.store.set("rows", CHANGES[change])
            return First()

        @step
        async def two(self, ctx: Context, ev: First) -> Second:
            rows = await ctx.store.get("rows")
            change(rows)
            made.append(repr(rows))
            return Second()

        @step
        async def three(self, ctx: Context, ev: Second) -> StopEvent:
            die()
            return StopEvent(result=repr(await ctx.store.get("rows")))

    await crashed(Changes)
    assert [await again(Changes)] == made
