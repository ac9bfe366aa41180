"""A process that dies when the service has committed, and a second one that goes on: with a receipt, and without."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from typing import Any

from letitloop.cli.demo.checks import Check
from letitloop.cli.demo.crash_child import DEATH, NAMESPACE
from letitloop.cli.demo.lives import ChildFailed, environment
from letitloop.cli.demo.service import Service, Terms, effects, lookups, posts
from letitloop.cli.ledger_at import LedgerAt
from letitloop.cli.ledger_view import event_data, intent_data

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from typing import TypeAlias

    # told of a case's number, what has just happened, and whether that was all
    Watch: TypeAlias = "Callable[[int, str, bool], None]"

__all__ = ["CASES", "LEDGER", "LOG", "Case", "Crash", "Crashed", "Process", "perform"]

LEDGER = "actions.db"
LOG = "service.jsonl"
TIMEOUT = 120.0  # seconds after which a process counts as stuck


@dataclass(frozen=True)
class Case:
    """A kind of provider, and what comes of a crash there.

    Args:
        name: its account at the service.
        title: what it is called.
        outcome: what the second process is to be told.
        state: the intent's state in the end.
        basis: what that is to rest on.
        lookups: how often the provider is to be asked for a receipt.
    """

    name: str
    title: str
    outcome: str
    state: str
    basis: str | None
    lookups: int

    @property
    def receipts(self) -> bool:
        """Whether the provider can be asked for a receipt."""
        return self.name == "receipt"


CASES = (
    Case("receipt", "provider with a receipt", "result", "SUCCEEDED", "receipt", 1),
    Case("opaque", "opaque provider", "UNKNOWN", "UNKNOWN", None, 0),
)


@dataclass(frozen=True)
class Process:
    """A process that has ended.

    Args:
        pid: its process id.
        status: its exit status.
        told: what it printed in the end; empty if it did not come to that.
    """

    pid: int
    status: int
    told: dict[str, Any]


@dataclass(frozen=True)
class Crashed:
    """A case with its evidence.

    Args:
        case: which one.
        key: the intent's key.
        first: the process that died.
        second: the one that went on.
        between: the intent when the first was dead, as ``lil ledger show --json`` has it.
        paid: how many refunds the service had paid then.
        intent: the intent in the end.
        events: its history.
        log: the service's own log.
    """

    case: Case
    key: str
    first: Process
    second: Process
    between: dict[str, Any]
    paid: int
    intent: dict[str, Any]
    events: list[dict[str, Any]]
    log: list[dict[str, Any]]

    def ended(self) -> str:
        """Say what the second process came to."""
        told = self.second.told.get("outcome")
        if told == "UNKNOWN":
            return "UNKNOWN, nothing sent" if posts(self.log) == 1 else "UNKNOWN"
        return "reconciled by receipt" if self.intent["basis"] == "receipt" else str(told)

    def checks(self) -> list[Check]:
        """Hold what was claimed against the service's own log, and what the ledger says as well."""
        case, told = self.case, self.second.told
        kinds = [event["kind"] for event in self.events]
        given = {refund["id"] for refund in [told.get("result")] if refund}
        found = [
            ("exit status of the first process", DEATH, self.first.status),
            ("effects when it was dead", 1, self.paid),
            ("state then", "DISPATCHED", self.between["state"]),
            ("its owner alive then", False, self.between["owner_alive"]),
            ("exit status of the second process", 0, self.second.status),
            ("the second process was told", case.outcome, told.get("outcome")),
            ("it was given the refund that was paid", case.receipts, given == {self.log[0]["effect"]}),
            ("state in the end", case.state, self.intent["state"]),
            ("what that rests on", case.basis, self.intent["basis"]),
            ("dispatches in the ledger", 1, kinds.count("dispatched")),
            ("the service saw the intent's key alone", True, {one["key"] for one in self.log} == {self.intent["provider_key"]}),
            ("questions for a receipt by the service's log", case.lookups, lookups(self.log)),
            ("POSTs by the service's log", 1, posts(self.log)),
            ("effects by the service's log", 1, effects(self.log)),
        ]
        return [Check(case.title, *one) for one in found]

    def as_json(self) -> dict[str, Any]:
        """Give it as plain data."""
        return {
            "provider": self.case.name,
            "namespace": NAMESPACE,
            "key": self.key,
            "first": {"pid": self.first.pid, "status": self.first.status},
            "between": {"effects": self.paid, "intent": self.between},
            "second": {"pid": self.second.pid, "status": self.second.status, **self.second.told},
            "posts": posts(self.log),
            "lookups": lookups(self.log),
            "effects": effects(self.log),
            "intent": self.intent,
            "events": self.events,
            "service_log": self.log,
            "checks": [check.as_json() for check in self.checks()],
        }


@dataclass(frozen=True)
class Crash:
    """Both cases side by side.

    Args:
        directory: what keeps ledger, log and evidence.
        crashed: the cases.
    """

    directory: Path
    crashed: Sequence[Crashed]

    def checks(self) -> list[Check]:
        """List all assertions."""
        return [check for crashed in self.crashed for check in crashed.checks()]

    def differences(self) -> list[str]:
        """Say what is not as it should be; empty: all is well."""
        return [str(check) for check in self.checks() if not check.ok]

    def as_json(self) -> dict[str, Any]:
        """Give everything as plain data."""
        differences = self.differences()
        return {
            "demo": "crash",
            "ok": not differences,
            "differences": differences,
            "directory": str(self.directory),
            "ledger": str(self.directory / LEDGER),
            "service_log_file": str(self.directory / LOG),
            "cases": [crashed.as_json() for crashed in self.crashed],
        }


def perform(directory: Path, watch: Watch | None = None) -> Crash:
    """Let a process die for each kind of provider, and let a second one go on.

    Args:
        directory: what keeps ledger and log; those of an earlier time are added to.
        watch: told what has happened.

    Raises:
        ChildFailed: a process ended otherwise than it was to.
    """
    place = LedgerAt(str(directory / LEDGER))
    before = len(place.rows()) if place.exists else 0
    crashed: list[Crashed] = []
    with Service({case.name: Terms(receipts="yes", replies_lost=0) for case in CASES}, directory / LOG) as service:
        for number, case in enumerate(CASES):
            order = f"order-{before + number + 1}"
            key = f"{order}/refund-1"
            arguments = ["--ledger", place.path, "--url", service.url(case.name), "--account", case.name, "--order", order]
            arguments += ["--receipts"] * case.receipts
            tell = partial(watch or _ignore, number)
            tell("at work", False)
            first = _run([*arguments, "--dies"], DEATH)
            between, paid = intent_data(place, place.row(NAMESPACE, key)), effects(service.log(case.name))
            tell("died; the second is at work", False)
            second = _run(arguments, 0)
            row = place.row(NAMESPACE, key)
            history = [event_data(place, event) for event in place.events(row)]
            log = service.log(case.name)
            crashed.append(Crashed(case, key, first, second, between, paid, intent_data(place, row), history, log))
            tell(f"died; then {crashed[-1].ended()}", True)
    return Crash(directory, crashed)


def _ignore(number: int, what: str, over: bool) -> None:  # noqa: FBT001  the signature of who watches
    """Watch for nobody."""


def _run(arguments: Sequence[str], expected: int) -> Process:
    """Run the child until it ends, and read what it printed."""
    command = [sys.executable, "-m", "letitloop.cli.demo.crash_child", *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as child:
        try:
            out, err = child.communicate(timeout=TIMEOUT)
        except BaseException as error:
            child.kill()  # Ctrl+C as well: nothing is left running
            if isinstance(error, subprocess.TimeoutExpired):
                raise ChildFailed(f"the process {child.pid} did not end within {TIMEOUT:.0f} s") from None
            raise
    if child.returncode != expected:
        said = err.decode(errors="replace").strip()
        raise ChildFailed(f"the process {child.pid} ended with status {child.returncode}; it wrote:\n{said[-4000:] or '(nothing)'}")
    return Process(child.pid, child.returncode, json.loads(out) if out.strip() else {})
