"""``lil ledger``: the group, and its commands that look: list, show, events, export; and prune."""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from letitloop.cli.app import LazyGroup
from letitloop.cli.common import Command, ago, count, plain, print_json
from letitloop.cli.ledger_at import find_ledger, intent_arguments, ledger_options, no_ledger
from letitloop.cli.ledger_view import event_data, intent_data, print_events, print_intent, print_list, where
from letitloop.cli.runs import _seconds
from letitloop.effects.reading import events_in, prunable_in, read, rows_in
from letitloop.effects.states import STATES

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator
    from typing import TypeAlias

    from letitloop.cli.ledger_at import LedgerAt
    from letitloop.effects.intent import Row

    _Export: TypeAlias = tuple[
        str | None, list[dict[str, Any]], list[dict[str, Any]]
    ]  # the ledger's name, intents, what was pruned

__all__ = ["ledger"]

COMMANDS: dict[str, tuple[str, str]] = {
    "list": ("letitloop.cli.ledger:list_intents", "List intents, and what needs somebody."),
    "show": ("letitloop.cli.ledger:show", "Show an intent and what can be done about it."),
    "events": ("letitloop.cli.ledger:events", "Play an intent's history back."),
    "reconcile": ("letitloop.cli.ledger_verbs:reconcile", "Ask a provider what became of an intent; sends nothing."),
    "resend": ("letitloop.cli.ledger_verbs:resend", "Send an open intent again, inside its provider's window."),
    "retry": ("letitloop.cli.ledger_verbs:retry", "Allow another attempt of what certainly did not happen."),
    "resolve": ("letitloop.cli.ledger_verbs:resolve", "Record what you found out about an open intent."),
    "approve": ("letitloop.cli.ledger_verbs:approve", "Grant what waits for an approval."),
    "deny": ("letitloop.cli.ledger_verbs:deny", "Refuse what waits for an approval."),
    "cancel": ("letitloop.cli.ledger_verbs:cancel", "Give up an intent that was never sent."),
    "prune": ("letitloop.cli.ledger:prune", "Forget what was settled long ago; its keys stay used."),
    "export": ("letitloop.cli.ledger:export", "Write all intents with their histories as JSON."),
}

_NOTHING = "nothing is to be pruned: no intent is settled, that old, past its window, and free of anomalies."
_EXIT_CODES = """\b
Exit codes:
  0  done
  1  it could not be done: the message says what to do
  2  the outcome of the intent is unknown (show, reconcile, resend, retry);
     or the command line means nothing
  130  Ctrl+C
"""


@click.group(cls=LazyGroup, lazy=COMMANDS, epilog=_EXIT_CODES)
def ledger() -> None:
    """Actions on the outside world: what became of them, and what to do where nobody knows.

    An intent is named by its namespace NS and its KEY. Commands that look change nothing, and need no write permission.
    """


# --- looking -----------------------------------------------------------------------------------------------------------------


@click.command("list", cls=Command)
@click.option("--state", type=click.Choice(STATES, case_sensitive=False), help="Only those in this state.")
@click.option("--namespace", metavar="NS", help="Only those of this namespace.")
@ledger_options
def list_intents(
    *, state: str | None, namespace: str | None, store: str | None, ledger: str | None, cipher: str | None, as_json: bool
) -> None:
    """List the intents of a ledger, and what needs somebody.

    DISPATCHED with "open" is an intent whose owner is gone: nobody knows whether it happened.
    """
    place = find_ledger(store, ledger, cipher, whole=True)
    rows = place.rows(state=state, namespace=namespace)
    if as_json:
        print_json([intent_data(place, row) for row in rows])
    elif rows:
        print_list(place, rows)
    else:
        chosen = " such" if state or namespace else ""
        click.echo(f"the ledger {place.path} holds no{chosen} intents." if place.exists else no_ledger(place))


@click.command(cls=Command)
@intent_arguments()
@ledger_options
def show(*, namespace: str, key: str, store: str | None, ledger: str | None, cipher: str | None, as_json: bool) -> None:
    """Show an intent: what it is, how it stands, what can be done about it.

    The exit code is 2 while its outcome is unknown.
    """
    place = find_ledger(store, ledger, cipher)
    row = place.row(namespace, key)
    if as_json:
        print_json(intent_data(place, row))
    else:
        print_intent(place, row)
    if place.open(row):
        sys.exit(2)


@click.command(cls=Command)
@intent_arguments()
@ledger_options
def events(*, namespace: str, key: str, store: str | None, ledger: str | None, cipher: str | None, as_json: bool) -> None:
    """Play an intent's history back, oldest first; nothing is asked, sent or changed."""
    place = find_ledger(store, ledger, cipher)
    found = place.events(place.row(namespace, key))
    data = [event_data(place, event) for event in found]
    if as_json:
        print_json(data)
    else:
        print_events(data, [event.at for event in found])


@click.command(cls=Command)
@click.option("--jsonl", is_flag=True, help="Write one intent a line.")
@ledger_options
def export(*, jsonl: bool, store: str | None, ledger: str | None, cipher: str | None, as_json: bool) -> None:
    """Write all intents with their histories as JSON, and the keys of those that were pruned.

    The export is JSON with or without --json. Values that JSON can't hold become objects with "$type"; of a redacted argument
    there is its hash.
    """
    place = find_ledger(store, ledger, cipher, whole=True)

    def ask(inside: sqlite3.Connection) -> _Export:
        histories: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for event in events_in(inside):
            histories.setdefault((event.namespace, event.key), []).append(event_data(place, event))
        rows = [{**intent_data(place, row), "events": histories.get(row.where, [])} for row in rows_in(inside)]
        names = inside.execute("select namespace, key, state from stub order by namespace, key")
        uuid = inside.execute("select v from meta where k='ledger_uuid'").fetchone()
        return uuid and uuid[0], rows, [dict(zip(("namespace", "key", "state"), one, strict=True)) for one in names]

    nothing: _Export = (None, [], [])
    for piece in _pieces(place, *read(place.location, ask, nothing), lines=jsonl):
        click.echo(piece)


def _pieces(
    place: LedgerAt, uuid: str | None, intents: list[dict[str, Any]], pruned: list[dict[str, Any]], *, lines: bool
) -> Iterator[str]:
    if lines:
        yield from map(json.dumps, [*intents, *({**one, "pruned": True} for one in pruned)])
        return
    head = {"format": "letitloop-ledger-export", "version": 1, "ledger": place.path, "uuid": uuid}
    yield json.dumps({**head, "intents": intents, "pruned": pruned}, indent=2)


# --- pruning -----------------------------------------------------------------------------------------------------------------


@click.command(cls=Command)
@click.option("--older-than", metavar="AGE", required=True, help="What was settled before that, e.g. 12h, 90d, 52w.")
@click.option("--namespace", metavar="NS", help="Only of this namespace.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@ledger_options
def prune(
    *, older_than: str, namespace: str | None, yes: bool, store: str | None, ledger: str | None, cipher: str | None, as_json: bool
) -> None:
    """Forget what was settled long ago, with arguments, results and histories; the keys stay used.

    What is open is kept, and so is what is younger than its provider's window, and what has an anomaly.
    """
    age = min(_seconds(older_than), 1e11)
    place = find_ledger(store, ledger, cipher, whole=True)
    now = time.time()
    chosen: list[Row] = read(place.location, lambda inside: prunable_in(inside, now - age, now, namespace), [])
    if not chosen:
        if as_json:
            print_json({"pruned": 0})
        else:
            click.echo(_NOTHING if place.exists else no_ledger(place))
        return
    if not yes:
        _confirm(place, chosen)
    gone = place.for_writing().prune(older_than=timedelta(seconds=age), namespace=namespace)
    if as_json:
        print_json({"pruned": gone})
    else:
        click.echo(f"pruned {count(gone, 'intent')}; their keys stay used.")


def _confirm(place: LedgerAt, chosen: list[Row]) -> None:
    """Say what is removed, and ask on a terminal."""
    states = sorted({row.state for row in chosen})
    what = f"{count(len(chosen), 'intent')} ({', '.join(f'{sum(r.state == s for r in chosen)} {s}' for s in states)})"
    span = f"the oldest settled {ago(chosen[0].updated)} ago, the newest {ago(chosen[-1].updated)} ago"
    if not _is_terminal():
        raise click.UsageError(f"This would prune {what}, {span}. There is no terminal to ask on: say --yes.")
    listed = "\n  ".join([*map(where, chosen[:20]), *([f"... and {len(chosen) - 20} more"] if len(chosen) > 20 else [])])
    click.confirm(
        f"  {listed}\nPrune {what} from {plain(place.path)}, {span}? Arguments, results and histories go for good; the keys stay "
        "used.",
        abort=True,
        err=True,
    )


def _is_terminal() -> bool:
    return sys.stdin.isatty()
