"""The durable workflow of ``lil demo brief``, and the process that runs it: the one that gets killed.

``write_brief`` is all there is to it: nothing in it knows about the kill. Run the process again, and what had finished is
answered from the log.
"""

from __future__ import annotations

import argparse
import asyncio
import contextvars
import hashlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from letitloop import Ledger, async_step, durable
from letitloop.cli.demo import documents, textrank
from letitloop.cli.demo.client import request
from letitloop.cli.demo.documents import Section
from letitloop.cli.demo.textrank import Summary
from letitloop.cli.demo.witness import Witness
from letitloop.effects.provider import Found
from letitloop.effects.providers import FunctionProvider

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from letitloop.effects.provider import Dispatch

__all__ = ["compose", "receiver_at", "split_all", "write_brief"]

P = ParamSpec("P")
T = TypeVar("T")
AT_ONCE = 3  # summariser calls at a time, as a service that is asked for them would allow
witness: Witness  # set by main(): the functions below report their real calls to it
pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="summariser")
ledger = Ledger()  # the store's own


@durable(goal_id="brief")
async def write_brief(paths: list[str], deliver_to: str, edition: str) -> str:
    """Read documents, summarise each section, merge the summaries, deliver the brief once.

    Args:
        paths: the documents.
        deliver_to: the URL that takes the brief.
        edition: another edition is another run.
    """
    sections = await seen("split", async_step("split", split_documents, paths))
    summaries = await asyncio.gather(
        *(
            seen(f"summarise#{number}", async_step("summarise", summarise, number, section))
            for number, section in enumerate(sections, 1)
        )
    )
    brief = await seen("merge", async_step("merge", merge, sections, list(summaries)))
    # an intent: on record before it is sent, sent once, and if its reply is lost the receiver is asked
    await seen("deliver", ledger.arun(namespace_of(edition), "deliver", receiver_at(deliver_to), {"brief": brief}))
    return brief


def namespace_of(edition: str) -> str:
    """Name whose intents those of an edition are."""
    return f"brief-{edition}"


async def split_documents(paths: list[str]) -> list[Section]:
    """Step: read the documents and split them into sections."""
    return await in_thread("split", split_all, paths)


async def summarise(number: int, section: Section) -> Summary:
    """Step: summarise one section."""
    return await in_thread(f"summarise#{number}", textrank.summarise, section.text, title=section.title)


async def merge(sections: list[Section], summaries: list[Summary]) -> str:
    """Step: make one brief of the summaries."""
    return await in_thread("merge", compose, sections, summaries)


def receiver_at(url: str) -> FunctionProvider:
    """Make the provider that delivers a brief, and finds the receipt of what was delivered."""

    def deliver(brief: str, *, idempotency_key: str) -> int:
        return witness.call("deliver", post, url, brief, idempotency_key)

    def receipt(dispatch: Dispatch) -> Found | None:
        status, body = request("GET", f"{url}/{dispatch.provider_key}")
        return Found(status, dispatch.provider_key, {"brief": body.decode()}) if status == 200 else None

    return FunctionProvider(deliver, identity=f"receiver/1 {url}", name="receiver", lookup=receipt)


async def in_thread(step: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Do the work of a step in a thread, under the eyes of the witness."""
    context = contextvars.copy_context()
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(pool, context.run, lambda: witness.call(step, function, *args, **kwargs))


async def seen(step: str, pending: Coroutine[Any, Any, T]) -> T:
    """Wait for a step, and report when its value has reached the workflow."""
    begin = time.monotonic()
    result = await pending
    witness.returned(step, time.monotonic() - begin)
    return result


def split_all(paths: list[str]) -> list[Section]:
    """Read documents and split them into sections; there is a limit to their number."""
    found: list[Section] = []
    for path in paths:
        found += documents.split(documents.text_of(documents.read(path), os.path.basename(path)))
    return found[: documents.MOST_SECTIONS]


def compose(sections: list[Section], summaries: list[Summary]) -> str:
    """Merge summaries into a brief: the sentences that lead them all, then each section's own."""
    leading = textrank.summarise("\n\n".join(sentence for summary in summaries for sentence in summary.sentences), count=3)
    lines = [
        "# Brief",
        "",
        *(f"> {sentence}" for sentence in leading.sentences),
        "",
        f"Key words: {', '.join(leading.keywords)}",
    ]
    document = ""
    for section, summary in zip(sections, summaries, strict=True):
        if section.document != document:
            document = section.document
            lines += ["", f"## {document}"]
        lines += ["", f"### {section.title}", "", f"*{summary.total} sentences; {', '.join(summary.keywords)}*", ""]
        lines += [f"- {sentence}" for sentence in summary.sentences]
    return "\n".join(lines) + "\n"


def post(url: str, brief: str, key: str) -> int:
    """Deliver a brief by HTTP; returns the status."""
    status, _ = request("POST", url, brief.encode(), {"Content-Type": "text/markdown; charset=utf-8", "Idempotency-Key": key})
    if status != 200:
        raise RuntimeError(f"the receiver answered {status}")
    return status


def recorded_delivery(edition: str) -> dict[str, Any]:
    """Read what the ledger knows of the delivery, as evidence."""
    namespace = namespace_of(edition)
    intent = ledger.get(namespace, "deliver")
    return {
        "namespace": namespace,
        "key": intent.key,
        "state": intent.state,
        "basis": intent.basis,
        "attempt": intent.attempt,
        "provider": intent.provider_identity,
        "provider_key": intent.provider_key,
        "arguments_sha256": hashlib.sha256(str(intent.arguments["brief"]).encode()).hexdigest(),
        "events": [event.kind for event in ledger.events(namespace, "deliver")],
    }


def main() -> None:
    """Run the workflow once, in this process."""
    global witness
    parser = argparse.ArgumentParser(description="The process that `lil demo brief` starts, kills and starts again.")
    parser.add_argument("--pipe", type=int, required=True, help="descriptor for event lines")
    parser.add_argument("--counter", required=True, help="file that counts the real calls")
    parser.add_argument("--answers", type=int, help="descriptor on which the parent answers each returned step")
    parser.add_argument("--deliver-to", required=True)
    parser.add_argument("--edition", required=True)
    parser.add_argument("documents", nargs="+")
    options = parser.parse_args()
    witness = Witness(options.pipe, options.counter, options.answers)
    witness.tell("ready")
    arguments = (options.documents, options.deliver_to, options.edition)
    brief = asyncio.run(write_brief(*arguments))
    run = write_brief.runs.show(*arguments)
    records = [{"key": record.key, "status": record.status, "life": record.life} for record in run.steps]
    witness.tell("log", log={"run": run.id, "bytes": run.size, "records": records})
    witness.tell("ledger", intent=recorded_delivery(options.edition))
    witness.tell("result", brief=brief)


if __name__ == "__main__":
    main()
