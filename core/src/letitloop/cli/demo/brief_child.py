"""The durable workflow of ``lil demo brief``, and the process that runs it: the one that gets killed.

``write_brief`` is all there is to it: nothing in it knows about the kill. Run the process again, and what had finished is
answered from the log.
"""

from __future__ import annotations

import argparse
import asyncio
import contextvars
import http.client
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar
from urllib.parse import urlsplit

from letitloop import async_step, atomic_marker, durable
from letitloop.cli.demo import documents, textrank
from letitloop.cli.demo.documents import Section
from letitloop.cli.demo.textrank import Summary
from letitloop.cli.demo.witness import Witness

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

__all__ = ["compose", "split_all", "write_brief"]

P = ParamSpec("P")
T = TypeVar("T")
AT_ONCE = 3  # summariser calls at a time, as a service that is asked for them would allow
witness: Witness  # set by main(): the functions below report their real calls to it
pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="summariser")


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
    async with atomic_marker("deliver") as should_execute:
        if should_execute:
            key = should_execute.idempotency_key
            await seen("deliver", async_step("deliver", deliver, deliver_to, brief, key))
    return brief


async def split_documents(paths: list[str]) -> list[Section]:
    """Step: read the documents and split them into sections."""
    return await in_thread("split", split_all, paths)


async def summarise(number: int, section: Section) -> Summary:
    """Step: summarise one section."""
    return await in_thread(f"summarise#{number}", textrank.summarise, section.text, title=section.title)


async def merge(sections: list[Section], summaries: list[Summary]) -> str:
    """Step: make one brief of the summaries."""
    return await in_thread("merge", compose, sections, summaries)


async def deliver(url: str, brief: str, key: str) -> int:
    """Step: send the brief off."""
    return await in_thread("deliver", post, url, brief, key)


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
    target = urlsplit(url)
    body = brief.encode()
    connection = http.client.HTTPConnection(target.hostname or "127.0.0.1", target.port, timeout=30)
    try:
        headers = {"Content-Type": "text/markdown; charset=utf-8", "Idempotency-Key": key}
        connection.request("POST", target.path, body=body, headers=headers)
        response = connection.getresponse()
        response.read()
    finally:
        connection.close()
    if response.status != 200:
        raise RuntimeError(f"the receiver answered {response.status} {response.reason}")
    return response.status


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
    witness.tell("result", brief=brief)


if __name__ == "__main__":
    main()
