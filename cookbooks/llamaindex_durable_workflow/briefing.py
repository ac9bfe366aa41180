"""A briefing on three documents: sections are summarised side by side, and an editor approves it, in a later process."""

import argparse
import asyncio
import os
import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from workflows import Context, Workflow, step
from workflows.events import Event, HumanResponseEvent, InputRequiredEvent, StartEvent, StopEvent

import letitloop
from letitloop import effect
from letitloop.adapters.llamaindex import LetItLoopRuntime
from letitloop.cli.demo.documents import read, shipped, split, text_of
from letitloop.cli.demo.textrank import summarise
from letitloop.effects.providers import FileProvider

CALLS = Path("calls.log")
OUT = Path("out")


def note(what):
    """Note what was really done, outside letitloop, in a file that only grows."""
    with CALLS.open("a") as file:
        file.write(f"{what}\n")


# --- the events --------------------------------------------------------------------------------------------------------------


class Section(Event):
    place: int
    document: str
    title: str
    text: str


class Summary(Event):
    place: int
    document: str
    sentence: str
    keywords: tuple[str, ...]


class Draft(Event):
    text: str


class Approve(InputRequiredEvent):
    text: str


class Approved(HumanResponseEvent):
    by: str


@dataclass(frozen=True)
class Published:
    path: str
    size: int
    by: str


# --- the pipeline ------------------------------------------------------------------------------------------------------------


class Briefing(Workflow):
    """Documents to sections, sections to summaries, summaries to a draft, a draft to a file."""

    def __init__(self, *, kill_at=-1, **options):
        super().__init__(timeout=120, **options)
        self.kill_at = kill_at
        OUT.mkdir(exist_ok=True)
        self.publish = effect(key="briefing/{path}", provider=FileProvider(OUT))(publish)

    @step
    async def split(self, ctx: Context, ev: StartEvent) -> list[Section]:
        note("split")
        found = [one for name in ev.documents for one in split(text_of(read(name), Path(name).name))]
        await ctx.store.set("sections", Counter(one.document for one in found))
        return [Section(place=place, document=one.document, title=one.title, text=one.text) for place, one in enumerate(found)]

    @step(num_workers=3)
    async def summarise(self, ev: Section) -> Summary:
        await asyncio.sleep(0)  # so that three are under way at once
        if ev.place == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        ranked = letitloop.step("rank", rank, ev.document, ev.title, ev.text)
        return Summary(place=ev.place, document=ev.document, sentence=ranked[0], keywords=ranked[1])

    @step
    async def draft(self, ctx: Context, summaries: list[Summary]) -> Draft:
        note("draft")
        sections = await ctx.store.get("sections")
        lines = []
        for one in sorted(summaries, key=lambda summary: summary.place):
            if not lines or one.document not in "".join(lines):
                lines.append(f"\n{one.document}, {sections[one.document]} sections\n")
            lines.append(f"- {one.sentence} ({', '.join(one.keywords)})\n")
        return Draft(text="".join(lines).lstrip())

    @step
    async def approve(self, ctx: Context, ev: Draft) -> StopEvent:
        approved = await ctx.wait_for_event(Approved, waiter_event=Approve(text=ev.text), waiter_id="editor", timeout=None)
        done = await self.publish(path="briefing.txt", content=f"{ev.text}\nApproved by {approved.by}.\n")
        return StopEvent(result=Published(done["path"], done["size"], approved.by))


def rank(document, title, text):
    """Choose a section's best sentence."""
    note(f"rank {document}, {title}")
    summary = summarise(text, title=title, count=1)
    return summary.sentences[0], tuple(summary.keywords[:3])


async def publish(path: str, content: str) -> str:
    """Publish a text; the provider does it."""
    raise AssertionError(path)


async def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--approve", metavar="NAME", help="the editor has read the draft and approves it")
    options.add_argument("--kill-at", type=int, default=-1, metavar="N", help="die while section N is summarised")
    given = options.parse_args()
    workflow = Briefing(kill_at=given.kill_at, runtime=LetItLoopRuntime())
    handler = workflow.run(run_id="briefing-1", documents=[str(path) for path in shipped()])
    async for event in handler.stream_events():
        if isinstance(event, Approve) and given.approve:
            handler.ctx.send_event(Approved(by=given.approve))
        elif isinstance(event, Approve):
            Path("draft.txt").write_text(event.text)
            print(f"draft of {event.text.count('- ')} lines written; run this with --approve NAME when you have read it")
            return
    print(await handler)
    done = Counter(line.partition(" ")[0] for line in CALLS.read_text().splitlines())
    print(", ".join(f"{count} x {what}" for what, count in done.items()))


if __name__ == "__main__":
    asyncio.run(main())
