"""How intents and their histories are shown: as data, as a table, one by one."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import TYPE_CHECKING, Any

from letitloop.cli.common import ago, console, count, fitting, iso, moment, plain, table
from letitloop.cli.jsonable import _is
from letitloop.cli.ledger_at import OPEN
from letitloop.effects.intent import provider_key
from letitloop.effects.refusals import typed
from letitloop.effects.states import CANCELLED, DISPATCHED, FAILED, PREPARED, SUCCEEDED, UNKNOWN

if TYPE_CHECKING:
    from rich.console import Console

    from letitloop.cli.ledger_at import LedgerAt
    from letitloop.effects.intent import Row
    from letitloop.effects.intents import Recorded

__all__ = [
    "STATE_STYLES",
    "advice",
    "event_data",
    "intent_data",
    "note",
    "print_events",
    "print_intent",
    "print_list",
    "summary",
    "told",
    "where",
]

STATE_STYLES = {
    PREPARED: "cyan",
    DISPATCHED: "cyan",
    SUCCEEDED: "green",
    FAILED: "red",
    UNKNOWN: "bold yellow",
    CANCELLED: "dim",
}
_MOST_NOTES = 20
_NOTE = 90  # as much of a reason as the list shows, in characters
_REDACTED = "letitloop.effects.intent:Redacted"


# --- as data -----------------------------------------------------------------------------------------------------------------


def intent_data(place: LedgerAt, row: Row) -> dict[str, Any]:
    """Return an intent as data."""
    standing = place.standing(row)
    return {
        "namespace": row.namespace,
        "key": row.key,
        "state": row.state,
        "open": standing in OPEN,
        "owner_alive": standing == "under way" if row.state == DISPATCHED else None,
        "attempt": row.attempt,
        "epoch": row.epoch,
        "operation": row.operation,
        "provider": row.provider,
        "provider_identity": row.identity,
        "provider_key": provider_key(row.namespace, row.key, row.attempt),
        "arguments": _redacted(place.value(row.arguments)),
        "result": place.value(row.result),
        "receipt": place.value(row.receipt),
        "basis": row.basis,
        "kind": row.kind,
        "reason": row.failure,
        "detail": place.value(row.detail),
        "retry_authorised": bool(row.retry),
        "approval": row.approval,
        "approver": row.approver,
        "group": row.group_key,
        "compensates": None if row.compensates is None else row.compensates.split("\0"),
        "run_id": row.run_id,
        "step_key": row.step_key,
        "owner": row.owner,
        "created": iso(row.created),
        "updated": iso(row.updated),
        "dispatched_at": iso(row.dispatched_at or 0),
        "key_expires_at": iso(row.key_expires_at or 0),
        "next_check_at": iso(row.next_check_at or 0),
    }


def _redacted(arguments: Any) -> Any:
    """Put a short mark in place of what the ledger keeps a hash of."""
    if not _is(arguments, dict):
        return arguments
    return {name: _mark(value) for name, value in _object(arguments).items()}


def _mark(value: Any) -> Any:
    found = _object(value)
    if found.get("class") != _REDACTED:
        return value
    return {"$type": "redacted", "sha256": _object(found.get("fields")).get("sha256")}


def _object(value: Any) -> dict[str, Any]:
    """Return a JSON object; an empty one for anything else."""
    return value if _is(value, dict) else {}


def _type_of(value: Any) -> str:
    return str(_object(value).get("$type", ""))


def event_data(place: LedgerAt, event: Recorded) -> dict[str, Any]:
    """Return a line of an intent's history as data."""
    evidence = place.value(event.evidence)
    receipt = _object(_object(evidence).get("receipt"))
    if _type_of(receipt) == "bytes":  # a value within the value
        evidence["receipt"] = place.value(b64decode(receipt["base64"]))
    return {
        "seq": event.seq,
        "namespace": event.namespace,
        "key": event.key,
        "at": iso(event.at),
        "kind": event.kind,
        "before": event.before or None,
        "after": event.after,
        "attempt": event.attempt,
        "epoch": event.epoch,
        "actor": event.actor,
        "evidence": evidence,
    }


# --- in words ----------------------------------------------------------------------------------------------------------------


def where(row: Row) -> str:
    """Write an intent's identity as a shell takes it."""
    return plain(typed(row))


def note(row: Row, standing: str) -> str:
    """Say what is to be known of an intent that needs somebody; empty if it needs nobody."""
    if standing == "owner gone":
        return f"open: its owner is gone ({row.owner}), and it may or may not have happened"
    if standing == "unknown":
        return f"open: {row.failure or 'no outcome was recorded'}"
    if standing == "under way":
        return f"under way: {row.owner} is carrying it out"
    return "waits for an approval" if standing == "waiting" else ""


def advice(place: LedgerAt, row: Row) -> list[str]:
    """Say what can be done about an intent."""
    standing, name = place.standing(row), f"{where(row)}{plain(place.typed)}"
    if standing in OPEN:
        said = [f"ask its provider, which sends nothing: lil ledger reconcile {name} --provider MODULE:NAME"]
        if row.key_expires_at is not None:
            until = moment(row.key_expires_at)
            said.append(f"send it again with the same key, until {until}: lil ledger resend {name} --provider MODULE:NAME")
        way = f"lil ledger resolve {name} --as succeeded|failed [--result FILE] --evidence TEXT --by NAME"
        return [*said, f"look there, then say so: {way}"]
    if standing == "waiting":
        return [f"lil ledger approve {name} --by NAME", f"or lil ledger deny {name} --by NAME --reason TEXT"]
    if standing == "under way":
        return ["wait for its owner"]
    if row.state == PREPARED:
        return ["call it again: that sends it"]
    if row.state == FAILED:
        again = f"call it again: that makes attempt {row.attempt + 1}"
        return [again] if row.retry else [f"allow another attempt: lil ledger retry {name}; then {again}"]
    return []


def told(event: dict[str, Any]) -> str:
    """Put an event's evidence, as data, in one line."""
    evidence = event["evidence"]
    facts = _object(evidence)
    if facts and not _type_of(facts):
        return "; ".join(f"{name}: {_text(value)}" for name, value in facts.items() if value is not None)
    return "" if evidence is None else _text(evidence)


def summary(row: Row) -> str:
    """Say how it is known what became of an intent."""
    if row.state == SUCCEEDED:
        return f"by {row.basis}" if row.basis else ""
    if row.state == FAILED:
        return f"{row.kind}: {row.failure}"
    return row.failure or ""


def _text(value: Any) -> str:
    if isinstance(value, str):
        return plain(value)
    if _type_of(value) == "redacted":
        return "(redacted: a hash is kept)"
    if _type_of(value) == "unreadable":
        return f"(unreadable: {plain(str(value.get('error', '')))})"
    return plain(json.dumps(value, ensure_ascii=False))


# --- printed -----------------------------------------------------------------------------------------------------------------


def print_list(place: LedgerAt, rows: list[Row]) -> None:
    """Print intents as a table, and below it what needs somebody."""
    from rich.text import Text

    out = console()
    standings = [place.standing(row) for row in rows]
    cells: dict[str, list[str]] = {
        "namespace": [plain(row.namespace) for row in rows],
        "key": [plain(row.key) for row in rows],
        "state": [
            f"{row.state}, open" if standing == "owner gone" else row.state for row, standing in zip(rows, standings, strict=True)
        ],
        "operation": [plain(row.operation) for row in rows],
        "attempt": [str(row.attempt) for row in rows],
        "updated": [moment(row.updated, short=True) for row in rows],
        "age": [ago(row.updated) for row in rows],
    }
    styles = [
        "bold yellow" if standing in OPEN else STATE_STYLES.get(row.state, "")
        for row, standing in zip(rows, standings, strict=True)
    ]
    # namespace and key are what the other commands take, so they are never broken
    columns = fitting(cells, out.width, ("updated", "attempt", "operation", "age", "state"))
    if "state" in columns:
        grid = table(*columns, right=("attempt", "age"))
        for number in range(len(rows)):
            grid.add_row(*(Text(cells[name][number], style=styles[number] if name == "state" else "") for name in columns))
        out.print(grid)
    else:
        for number, row in enumerate(rows):
            out.print(Text.assemble(where(row), "  ", (cells["state"][number], styles[number])), soft_wrap=True)
    _print_notes(out, [(row, text) for row, standing in zip(rows, standings, strict=True) if (text := note(row, standing))])


def _print_notes(out: Console, notes: list[tuple[Row, str]]) -> None:
    from rich.text import Text

    if notes:
        out.print()
    for row, text in notes[:_MOST_NOTES]:
        said = plain(text)
        if len(said) > _NOTE:
            said = said[: _NOTE - 1] + "… (lil ledger show has all of it)"
        out.print(Text.assemble((where(row), "bold"), f": {said}"), soft_wrap=True)
    if len(notes) > _MOST_NOTES:
        out.print(Text(f"... and {count(len(notes) - _MOST_NOTES, 'more note')}, see lil ledger show", style="dim"), soft_wrap=True)


def print_intent(place: LedgerAt, row: Row) -> None:
    """Print one intent: what it is, how it stands, what can be done."""
    from rich.text import Text

    out = console()
    data, standing = intent_data(place, row), place.standing(row)
    style = "bold yellow" if standing in OPEN else STATE_STYLES.get(row.state, "")
    said = {"owner gone": "open: its owner is gone", "under way": "under way", "waiting": "waits for an approval"}.get(standing, "")
    out.print(Text.assemble((plain(row.key), "bold"), "  ", (row.state, style), f"  ({said})" if said else ""), soft_wrap=True)
    lines = [
        ("namespace", row.namespace),
        ("operation", row.operation),
        ("provider", f"{row.provider} ({row.identity})"),
        ("its key", data["provider_key"]),
        ("attempt", f"{row.attempt}, epoch {row.epoch}" + (f", by {row.owner}" if row.owner else "")),
        ("created", _moment(row.created)),
        ("sent", _moment(row.dispatched_at)),
        ("updated", _moment(row.updated)),
        ("resend", f"until {moment(row.key_expires_at)}" if standing in OPEN and row.key_expires_at else ""),
        ("next check", moment(row.next_check_at or 0) if standing in OPEN else ""),
        ("approval", f"{row.approval}{f', by {row.approver}' if row.approver else ''}" if row.approval else ""),
        ("group", row.group_key or ""),
        ("compensates", " ".join(data["compensates"] or ())),
        ("run", " ".join(part for part in (row.run_id, row.step_key) if part)),
        ("known" if row.state == SUCCEEDED else "reason", summary(row)),
    ]
    lines += _values("arguments", data["arguments"])
    lines += [(name, _text(data[name])) for name in ("result", "receipt", "detail") if data[name] is not None]
    lines += [("next" if not number else "", text) for number, text in enumerate(advice(place, row))]
    for name, text in lines:
        if text:
            out.print(Text.assemble((f"{name:<12}", "dim"), plain(text)), soft_wrap=True)


def _moment(at: float | None) -> str:
    return f"{moment(at)}, {ago(at)} ago" if at else ""


def _values(name: str, values: Any) -> list[tuple[str, str]]:
    found = _object(values)
    if not found or _type_of(found):
        return [(name, _text(values))]
    return [(name if not number else "", f"{one} = {_text(value)}") for number, (one, value) in enumerate(found.items())]


def print_events(events: list[dict[str, Any]], times: list[float]) -> None:
    """Print an intent's history as a table; on a narrow terminal, line by line."""
    from rich.text import Text

    out = console()
    cells: dict[str, list[str]] = {
        "at": [moment(at) for at in times],
        "what": [event["kind"] for event in events],
        "state": [_step(event) for event in events],
        "attempt": [str(event["attempt"]) for event in events],
        "epoch": [str(event["epoch"]) for event in events],
        "by": [plain(event["actor"]) for event in events],
    }
    said = [told(event) for event in events]
    wanted = {**cells, "evidence": ["x" * min(24, max(map(len, ["", *said])))]}
    columns = fitting(wanted, out.width, ("attempt", "epoch", "state", "by", "evidence"))
    if "evidence" not in columns:
        for number, text in enumerate(said):
            line = (cells["at"][number], "  ", (cells["what"][number], _event_style(events[number])), "  ", cells["state"][number])
            out.print(Text.assemble(*line, f"  {text}" if text else ""), soft_wrap=True)
        return
    grid = table(*columns, right=("attempt", "epoch"))
    grid.columns[-1].no_wrap, grid.columns[-1].overflow = False, "fold"
    for number, text in enumerate(said):
        row = [Text(cells[name][number], style=_event_style(events[number]) if name == "what" else "") for name in columns[:-1]]
        grid.add_row(*row, Text(text))
    out.print(grid)


def _step(event: dict[str, Any]) -> str:
    before, after = event["before"], event["after"]
    return after if before in (None, after) else f"{before} -> {after}"


def _event_style(event: dict[str, Any]) -> str:
    if event["kind"] == "anomaly":
        return "bold red"
    return STATE_STYLES.get(event["after"], "") if event["before"] != event["after"] else "dim"
