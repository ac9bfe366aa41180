"""One lost reply, four ways to deal with it: each strategy is carried out, and held against the service's own log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from letitloop import Ledger, UnknownOutcome
from letitloop.cli.demo.checks import Check
from letitloop.cli.demo.service import Service, Terms, effects, lookups, posts
from letitloop.cli.ledger_at import LedgerAt
from letitloop.cli.ledger_view import event_data, intent_data
from letitloop.effects.providers import HttpProvider
from letitloop.effects.providers.http import Endpoint, Lookup
from letitloop.effects.reading import read_events

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import TypeAlias

    # told of a strategy's number, and its result once there is one
    Watch: TypeAlias = "Callable[[int, Played | None], None]"

__all__ = ["ATTEMPTS", "NAMESPACE", "STRATEGIES", "Comparison", "Played", "Strategy", "Told", "perform"]

ATTEMPTS = 3  # of a caller who tries again upon every error
NAMESPACE = "shop-1"
KEY = "order-42/refund-1"
REFUND = {"order_id": "42", "amount_minor": 1200}


@dataclass(frozen=True)
class Told:
    """What the caller was told.

    Args:
        outcome: ``result``, ``UNKNOWN`` or ``error``.
        result: what was returned.
        tries: how many times it called.
        errors: what each call that failed raised.
        repeat: what a repeat of the whole gave, where there was one.
    """

    outcome: str
    result: object
    tries: int
    errors: Sequence[str]
    repeat: str = ""


@dataclass(frozen=True)
class Strategy:
    """A way to deal with a lost reply, and what comes of it.

    Args:
        name: its account at the service.
        title: what it is called.
        terms: how the service behaves.
        posts: how many POSTs the service is to have seen.
        effects: how many refunds it is to have paid.
        outcome: what the caller is to be told.
        act: carries it out, given the account's URL and a ledger's file.
    """

    name: str
    title: str
    terms: Terms
    posts: int
    effects: int
    outcome: str
    act: Callable[[str, Path], Told]


@dataclass(frozen=True)
class Played:
    """A strategy that was carried out, with its evidence.

    Args:
        strategy: which one.
        told: what the caller was told.
        log: the service's own log.
        intent: what the ledger knows, as ``lil ledger show --json`` has it; None without a ledger.
        events: its history.
    """

    strategy: Strategy
    told: Told
    log: list[dict[str, Any]]
    intent: dict[str, Any] | None
    events: list[dict[str, Any]]

    def checks(self) -> list[Check]:
        """Hold what was claimed against the service's own log, and what the ledger says as well."""
        strategy = self.strategy
        found = [
            ("effects by the service's log", strategy.effects, effects(self.log)),
            ("POSTs by the service's log", strategy.posts, posts(self.log)),
            ("the caller was told", strategy.outcome, self.told.outcome),
        ]
        if strategy.name in _LEDGER:
            kinds = [event["kind"] for event in self.events]
            intent = self.intent or {}
            keys = {entry["key"] for entry in self.log}
            found += [
                ("state in the ledger", _LEDGER[strategy.name][0], intent.get("state")),
                ("what that rests on", _LEDGER[strategy.name][1], intent.get("basis")),
                ("dispatches in the ledger", 1, kinds.count("dispatched")),
                ("the service saw the intent's key alone", True, keys == {intent.get("provider_key")}),
                ("a repeat", _LEDGER[strategy.name][2], self.told.repeat),
            ]
        if strategy.name == "native":
            found.append(("different keys that the service saw", 1, len({entry["key"] for entry in self.log})))
        return [Check(strategy.title, *one) for one in found]

    def as_json(self) -> dict[str, Any]:
        """Give it as plain data."""
        told = self.told
        return {
            "strategy": self.strategy.name,
            "title": self.strategy.title,
            "posts": posts(self.log),
            "lookups": lookups(self.log),
            "effects": effects(self.log),
            "told": {
                "outcome": told.outcome,
                "result": told.result,
                "tries": told.tries,
                "errors": list(told.errors),
                "repeat": told.repeat or None,
            },
            "intent": self.intent,
            "events": self.events,
            "service_log": self.log,
            "checks": [check.as_json() for check in self.checks()],
        }


@dataclass(frozen=True)
class Comparison:
    """All strategies side by side."""

    played: Sequence[Played]

    def checks(self) -> list[Check]:
        """List all assertions."""
        return [check for played in self.played for check in played.checks()]

    def differences(self) -> list[str]:
        """Say what is not as it should be; empty: all is well."""
        return [str(check) for check in self.checks() if not check.ok]

    def as_json(self) -> dict[str, Any]:
        """Give everything as plain data."""
        differences = self.differences()
        return {
            "demo": "http",
            "ok": not differences,
            "differences": differences,
            "strategies": [played.as_json() for played in self.played],
        }


def perform(work: Path, watch: Watch | None = None) -> Comparison:
    """Carry out each strategy once, at an account of its own.

    Args:
        work: a directory for the ledgers.
        watch: told when a strategy begins, and how it ended.
    """
    played: list[Played] = []
    with Service({strategy.name: strategy.terms for strategy in STRATEGIES}) as service:
        for number, strategy in enumerate(STRATEGIES):
            if watch is not None:
                watch(number, None)
            file = work / f"{strategy.name}.db"
            told = strategy.act(service.url(strategy.name), file)
            played.append(Played(strategy, told, service.log(strategy.name), *_recorded(file)))
            if watch is not None:
                watch(number, played[-1])
    return Comparison(played)


def _recorded(file: Path) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """Read an intent and its history from a ledger, as ``lil ledger`` shows them."""
    place = LedgerAt(str(file))
    if not place.exists:
        return None, []
    history = read_events(place.location, NAMESPACE, KEY)
    return intent_data(place, place.row(NAMESPACE, KEY)), [event_data(place, event) for event in history]


# --- the strategies ----------------------------------------------------------------------------------------------------------


def blind_retry(url: str, file: Path) -> Told:
    """Send again upon every error."""
    return _insist(partial(_post, url, {}))


def native_key(url: str, file: Path) -> Told:
    """Send again upon every error, with a key that the service recognises."""
    return _insist(partial(_post, url, {"Idempotency-Key": KEY}))


def through_ledger(url: str, file: Path) -> Told:
    """Let the ledger send, call again upon every error, and then do the whole a second time."""
    lookup = Lookup("/refunds/{provider_key}", key="/key", arguments={"amount_minor": "/amount_minor"})
    refunds = HttpProvider(url, Endpoint("POST", "/refunds", lookup=lookup), account=NAMESPACE)
    with Ledger(file) as ledger:
        act = partial(ledger.run, NAMESPACE, KEY, refunds, REFUND, operation="refund")
        first = _insist(act)
        again = _insist(act)
    refunds.close()
    same = again.outcome == "result" and again.result == first.result
    repeat = "the recorded result" if same else "blocked" if again.outcome == "UNKNOWN" else again.outcome
    return Told(first.outcome, first.result, first.tries, first.errors, repeat)


def _insist(act: Callable[[], object]) -> Told:
    """Call as most callers do: again upon every exception, a few times."""
    errors: list[str] = []
    while len(errors) < ATTEMPTS:
        try:
            result = act()
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
        except UnknownOutcome as unknown:  # no Exception: no loop like this one swallows it
            return Told("UNKNOWN", None, len(errors) + 1, [*errors, f"UnknownOutcome: {unknown}"])
        else:
            return Told("result", result, len(errors) + 1, errors)
    return Told("error", None, ATTEMPTS, errors)


def _post(url: str, headers: dict[str, str]) -> object:
    import httpx

    with httpx.Client(trust_env=False, timeout=30) as client:
        response = client.post(f"{url}/refunds", json=REFUND, headers=headers)
        response.raise_for_status()
        return response.json()


_LEDGER = {"receipt": ("SUCCEEDED", "receipt", "the recorded result"), "unknown": ("UNKNOWN", None, "blocked")}

STRATEGIES = (
    Strategy("blind", "blind retry", Terms(), 2, 2, "result", blind_retry),
    Strategy("native", "native idempotency key", Terms(honours_keys=True), 2, 1, "result", native_key),
    Strategy("receipt", "letitloop, receipt", Terms(receipts="yes"), 1, 1, "result", through_ledger),
    Strategy("unknown", "letitloop, lookup down", Terms(receipts="down"), 1, 1, "UNKNOWN", through_ledger),
)
