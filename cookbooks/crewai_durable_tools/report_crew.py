"""A crew of three: one reads documents, one writes a report file, one sends it by mail. It may be killed while it mails."""

from __future__ import annotations

import os

# this recipe runs offline: nothing is told to anybody
os.environ.update(CREWAI_DISABLE_TELEMETRY="true", CREWAI_TRACING_ENABLED="false", OTEL_SDK_DISABLED="true")

import argparse
import re
import signal
import smtplib
from collections import Counter
from importlib.resources import files
from pathlib import Path

from crewai import Agent, Crew, Task
from crewai.tools import BaseTool, tool
from post import Post, accepted, open_office
from script import Model

from letitloop import effect
from letitloop.adapters.crewai import CrewAIDurabilityHandler

TEXTS = {one.name.removesuffix(".txt"): one for one in files("letitloop.cli.demo.texts").iterdir() if one.name.endswith(".txt")}
CALLS = Path("calls.log")


def note(what):
    """Note what was really done, outside letitloop, in a file that only grows."""
    with CALLS.open("a") as file:
        file.write(f"{what}\n")


@tool
def read_document(name: str) -> str:
    """Read a document, and tell how long it is and which long word it uses most."""
    note("tool read_document")
    words = re.findall(r"[a-z]+", TEXTS[name].read_text(encoding="utf-8").lower())
    word, times = Counter(one for one in words if len(one) > 6).most_common(1)[0]
    return f"{name}: {len(words)} words, most of all {word!r}, {times} times"


class SendMail(BaseTool):
    """Sends the report; with letitloop its provider does."""

    name: str = "send_mail"
    description: str = "Send a mail."
    port: int
    kill: bool

    def _run(self, to: str, subject: str, text: str) -> str:
        note("mail sent")
        with smtplib.SMTP("127.0.0.1", self.port) as server:
            server.sendmail("crew@example.org", to, f"To: {to}\nSubject: {subject}\n\n{text}")
        if self.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        return "sent"


def build_crew(port, kill):
    model = Model(note, sorted(TEXTS))
    researcher, writer, secretary = (
        Agent(role=role, goal=f"be a good {role}", backstory="Long in the trade.", llm=model, tools=tools)
        for role, tools in (("researcher", [read_document]), ("writer", []), ("secretary", [SendMail(port=port, kill=kill)]))
    )
    tasks = [
        Task(name="research", description="Read all documents.", expected_output="facts", agent=researcher),
        Task(name="report", description="Write the report.", expected_output="text", agent=writer, output_file="report.md"),
        Task(name="mail", description="Mail the report to {reader}.", expected_output="a receipt", agent=secretary),
    ]
    return Crew(name="reporters", agents=[researcher, writer, secretary], tasks=tasks)


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--kill", action="store_true", help="end the process in the mail tool, when the mail is accepted")
    options.add_argument("--stock", action="store_true", help="without letitloop")
    given = options.parse_args()

    port = open_office()
    crew = build_crew(port, given.kill)
    if not given.stock:
        mail = effect(key="report/{to}", provider=Post(port, note=note, kill=given.kill))
        CrewAIDurabilityHandler(session_id="report", tools={"send_mail": mail}).wrap_crew(crew)
    output = crew.kickoff(inputs={"reader": "ada@example.org"})

    print(output.raw)
    print(Path("report.md").read_text())
    for what, count in Counter(CALLS.read_text().splitlines()).items():
        print(f"  {count} x {what}")
    print(f"mails in the mailbox: {[one['to'] for one in accepted()]}")


if __name__ == "__main__":
    main()
