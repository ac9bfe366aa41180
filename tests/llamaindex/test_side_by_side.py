"""What a rerun repeats: stock, with the framework's own ``Context.to_dict``, and with letitloop; and what each writes."""

import asyncio
import contextlib
import gc
import json

import pytest
from workflows import Context, Workflow, step
from workflows.events import Event, StartEvent, StopEvent

from letitloop.adapters.llamaindex import LetItLoopRuntime

made = []


class Page(Event):
    number: int


class Summary(Event):
    number: int
    text: str


class Summaries(Workflow):
    """Fetches pages, summarises each in two calls, side by side, and joins what comes of it."""

    @step
    async def fetch(self, ctx: Context, ev: StartEvent) -> Page | None:
        made.append("fetch")
        await ctx.store.set("topic", ev.topic)
        for number in range(ev.pages):
            ctx.send_event(Page(number=number))
        return None

    @step(num_workers=2)
    async def summarise(self, ctx: Context, ev: Page) -> Summary:
        made.append(f"summarise {ev.number}")
        await asyncio.sleep(0)
        if ev.number == dies_at[0]:
            raise Death
        return Summary(number=ev.number, text=f"page {ev.number}: " + "x" * 1000)

    @step
    async def join(self, ctx: Context, ev: Summary) -> StopEvent | None:
        texts = await ctx.store.get("texts", default=[])
        await ctx.store.set("texts", [*texts, ev.text])
        done = ctx.collect_events(ev, [Summary] * await ctx.store.get("pages", default=pages[0]))
        if done is None:
            return None
        made.append("join")
        return StopEvent(result=len(done))


class Death(BaseException):
    """The end of the process."""


dies_at, pages = [-1], [5]


async def run(make, **given):
    with contextlib.suppress(Death):
        return await make().run(topic="looms", pages=pages[0], **given)


async def stock():
    """Nothing is kept: the program begins again."""
    await run(Summaries)
    dies_at[0] = -1
    return await run(Summaries), 0


async def to_dict():
    """The context is saved after each summary, as often as a program that fears for its work would."""
    saved = []

    class Saving(Summaries):
        @step
        async def join(self, ctx: Context, ev: Summary) -> StopEvent | None:
            result = await Summaries.join(self, ctx, ev)
            saved.append(json.dumps(handlers[0].ctx.to_dict()))
            return result

    handlers = [Saving().run(topic="looms", pages=pages[0])]
    with contextlib.suppress(Death):
        await handlers[0]
    dies_at[0] = -1
    again = Saving()
    if not saved:
        return await run(Saving), 0
    handlers[0] = again.run(ctx=Context.from_dict(again, json.loads(saved[-1])))
    return await handlers[0], sum(map(len, saved))


async def letitloop(store):
    def make():
        return Summaries(runtime=LetItLoopRuntime(store=store))

    await run(make, run_id="summaries")
    gc.collect()
    dies_at[0] = -1
    result = await run(make, run_id="summaries")
    return result, sum(file.stat().st_size for file in store.glob("runs/*.wal"))


@pytest.fixture
def table(tmp_path, capsys):
    rows = []
    yield rows
    with capsys.disabled():
        print(f"\n{'pages':>5}  {'way':10}  {'repeated':>8}  {'bytes':>9}")
        for row in rows:
            print("{:>5}  {:10}  {:>8}  {:>9}".format(*row))


async def test_side_by_side(tmp_path, table):
    found = {}
    for count in (5, 20, 60):
        pages[0] = count
        for name, way in (
            ("stock", stock),
            ("to_dict", to_dict),
            ("letitloop", lambda count=count: letitloop(tmp_path / f"store-{count}")),
        ):
            made.clear()
            dies_at[0] = count - 1
            result, written = await way()
            assert result == count
            repeated = len(made) - len(set(made))
            found[name, count] = repeated, written
            table.append((count, name, repeated, written))
    for count in (5, 20, 60):
        assert found["letitloop", count][0] <= 2 < found["stock", count][0] == count + 1  # the two that were in flight
    grown = [found["letitloop", count][1] / count for count in (5, 20, 60)]
    assert max(grown) < 2 * min(grown), "the log grows with the work, not with its square"
    assert found["to_dict", 60][1] > 5 * found["letitloop", 60][1]
