"""Run as a program: what a rerun repeats with nothing, with CrewAI's own checkpoints, and with letitloop; and what each writes.

It imports CrewAI once and forks each life. It prints JSON: ``{"repeats": {variant: counts}, "bytes": {variant: {tasks: bytes}}}``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import time
import warnings
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from tests.crewai.scripted import Scripted, action, final, prompt_of  # sets the environment first

# isort: split
from crewai import LLM, Agent, CheckpointConfig, Crew, Task
from crewai.tools import BaseTool

from letitloop import effect
from letitloop.adapters.crewai import CrewAIDurabilityHandler


def note(what):
    with open("calls.log", "a") as file:
        file.write(f"{what}\n")


def answer(prompt, messages, state):
    if "Current Task: mail" not in prompt:
        return final("x" * 1000)
    if not any(one["role"] == "tool" or (one["role"] == "assistant" and "Observation:" in str(one["content"])) for one in messages):
        return action("send_mail", to="ada")
    if state["kill"]:
        os.kill(state["pid"], signal.SIGKILL)
    return final("mailed")


def script(messages, asked):
    note("model")
    return answer(prompt_of(messages), messages, json.loads(Path("state").read_text()))


class SendMail(BaseTool):  # a class: CrewAI's checkpoints fail with tools that are functions
    name: str = "send_mail"
    description: str = "Send a mail."

    def _run(self, to: str) -> str:
        note("mail")
        return f"mailed {to}"


def build(llm, tasks, **options):
    agent = Agent(role="writer", goal="write", backstory="long", llm=llm, tools=[SendMail()])
    words = ["research", "mail", "report"] if tasks == 3 else [f"part {number}" for number in range(tasks)]
    return Crew(agents=[agent], tasks=[Task(description=one, expected_output="x", agent=agent) for one in words], **options)


def wait_for_checkpoint(place):
    """Give CrewAI its chance: it writes the first task's checkpoint beside the kickoff."""
    deadline = time.monotonic() + 20
    while not list(place.rglob(".checkpoints/**/*.json")) and time.monotonic() < deadline:
        time.sleep(0.05)


class Service(BaseHTTPRequestHandler):
    """Speaks the protocol of a provider whose model class CrewAI can restore; each life works in a directory of its own."""

    def do_POST(self):
        place = Path(os.environ["NOW"]).read_text()
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with open(f"{place}/calls.log", "a") as file:
            file.write("model\n")
        state = json.loads(Path(place, "state").read_text())
        if state["kill"] and any(one["role"] == "tool" for one in body["messages"]):
            wait_for_checkpoint(Path(place))
        message = {"role": "assistant", "content": answer(prompt_of(body["messages"]), body["messages"], state)}
        if "Action:" in message["content"]:
            wanted = {"name": "send_mail", "arguments": json.dumps({"to": "ada"})}
            message = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": wanted}]}
        reply = {
            "id": "1",
            "object": "chat.completion",
            "created": 1,
            "model": "gpt-4o-mini",
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }
        data = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        with contextlib.suppress(OSError):  # whoever asked may be dead
            self.wfile.write(data)

    def log_message(self, *_):
        pass


def serve():
    """Start the service in a process of its own, which outlives the lives; return its id."""
    server = HTTPServer(("127.0.0.1", 0), Service)
    os.environ["OPENAI_API_KEY"] = "sk-SECRET"
    os.environ["OPENAI_BASE_URL"] = f"http://127.0.0.1:{server.server_port}/v1"
    pid = os.fork()
    if not pid:
        server.serve_forever()
    server.server_close()
    return pid


def served():
    """A model of the OpenAI class."""
    return LLM(model="openai/gpt-4o-mini", base_url=os.environ["OPENAI_BASE_URL"], api_key="sk-SECRET")


def nothing(tasks, life):
    build(Scripted(script), tasks).kickoff()


def checkpoints(tasks, life):
    crew = build(served(), tasks, checkpoint=CheckpointConfig())
    found = sorted(Path(".checkpoints").rglob("*.json"), key=lambda one: one.stat().st_mtime)
    crew.kickoff(from_checkpoint=CheckpointConfig(restore_from=str(found[-1])) if life and found else None)


def logged(tasks, life):
    with CrewAIDurabilityHandler(session_id="table", store="store") as handler:
        handler.wrap_crew(build(Scripted(script), tasks)).kickoff()


def guarded(tasks, life):
    with CrewAIDurabilityHandler(session_id="table", store="store", tools={"send_mail": effect(key="mail/{to}")}) as handler:
        handler.wrap_crew(build(Scripted(script), tasks)).kickoff()


VARIANTS = {"nothing": nothing, "checkpoints": checkpoints, "letitloop": logged, "letitloop, an effect": guarded}


def in_a_child(fn, tasks, life, place, kill):
    place.mkdir(exist_ok=True)
    pid = os.fork()
    if not pid:
        os.chdir(place)
        os.environ["XDG_DATA_HOME"] = str(place / "data")
        Path(os.environ["NOW"]).write_text(str(place))
        Path("state").write_text(json.dumps({"pid": os.getpid(), "kill": kill}))
        with open(os.devnull, "w") as null:
            os.dup2(null.fileno(), 1)
        code = 1
        try:
            fn(tasks, life)
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]


def repeats(place):
    found = {}
    for name, fn in VARIANTS.items():
        here = place / name
        assert os.WIFSIGNALED(in_a_child(fn, 3, 0, here, kill=True)), name
        assert in_a_child(fn, 3, 1, here, kill=False) == 0, name
        calls = (here / "calls.log").read_text().split()
        keys = any(b"sk-SECRET" in one.read_bytes() for one in here.rglob("*") if one.is_file())
        found[name] = {"model": calls.count("model"), "mail": calls.count("mail"), "key on disk": keys}
    return found


def sizes(place):
    found = {}
    for name, fn, counts in (("checkpoints", checkpoints, (5, 20)), ("letitloop", logged, (5, 20, 60))):
        found[name] = {}
        for count in counts:
            here = place / f"{name} {count}"
            assert in_a_child(fn, count, 0, here, kill=False) == 0, name
            written = [here / "store", here / ".checkpoints"]
            found[name][count] = sum(
                one.stat().st_blocks and one.stat().st_size for root in written for one in root.rglob("*") if one.is_file()
            )
    return found


def main():
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as place:
        os.environ["NOW"] = f"{place}/now"
        service = serve()
        try:
            measured = {"repeats": repeats(Path(place)), "bytes": sizes(Path(place))}
        finally:
            os.kill(service, signal.SIGKILL)
        print(json.dumps(measured))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
