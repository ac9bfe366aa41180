"""The commands of ``lil ledger`` that ask a provider, or write down what a person decides."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import click

from letitloop.cli.common import Command, message, plain, print_json
from letitloop.cli.ledger_at import find_ledger, intent_arguments, ledger_options, load_provider, no_ledger, provider_options
from letitloop.cli.ledger_questions import Questions, either
from letitloop.cli.ledger_view import intent_data, note, summary, where
from letitloop.errors import DecodeError, IntentFailed, UnknownOutcome

if TYPE_CHECKING:
    from collections.abc import Generator

    from letitloop.cli.ledger_at import LedgerAt
    from letitloop.effects.intent import Row

__all__ = ["approve", "cancel", "deny", "reconcile", "resend", "resolve", "retry"]

_ALLOWED = (
    "attempt {} is allowed: the program's next call makes it. A run that recorded the refusal, or that is finished, calls it no "
    "more: --provider makes it now."
)


class _StillUnknown(click.ClickException):
    """An action after which the outcome of its intent is unknown."""

    exit_code = 2


# --- asking and sending ------------------------------------------------------------------------------------------------------


@click.command(cls=Command)
@intent_arguments(required=False)
@click.option("--all", "everything", is_flag=True, help="Ask about every open intent of this provider's account.")
@click.option("--watch", is_flag=True, help="Ask again when it is worth while, until nothing is open; Ctrl+C ends it.")
@provider_options(required=True)
@ledger_options
def reconcile(
    *,
    namespace: str | None,
    key: str | None,
    everything: bool,
    watch: bool,
    provider: str,
    modules: tuple[str, ...],
    store: str | None,
    ledger: str | None,
    cipher: str | None,
    as_json: bool,
) -> None:
    """Ask the provider what became of an open intent, and settle it if it knows; nothing is ever sent.

    A receipt settles it as SUCCEEDED, and a certificate that it never happens as FAILED. "Not found" proves nothing. The exit
    code is 2 while an outcome is unknown.
    """
    if everything == (namespace is not None):
        raise click.UsageError("Name one intent by NS and KEY, or say --all.")
    if namespace is not None and key is None:
        raise click.UsageError("An intent is named by NS and KEY.")
    place = find_ledger(store, ledger, cipher, whole=everything)
    who = load_provider(provider, modules)
    questions = Questions(place, who, None if namespace is None or key is None else (namespace, key), quiet=as_json, watch=watch)
    try:
        questions.ask_all()
    except KeyboardInterrupt:
        if as_json:
            print_json(questions.data())
        raise
    if as_json:
        print_json(questions.data())
    elif not questions.seen:
        click.echo(f"no intent of {plain(questions.identity)} is open." if place.exists else no_ledger(place))
    if any(place.open(row) for row in questions.rows()):
        sys.exit(2)


@click.command(cls=Command)
@intent_arguments()
@provider_options(required=True)
@ledger_options
def resend(
    *,
    namespace: str,
    key: str,
    provider: str,
    modules: tuple[str, ...],
    store: str | None,
    ledger: str | None,
    cipher: str | None,
    as_json: bool,
) -> None:
    """Send an open intent once more, with the same key and the same arguments, inside the window that its provider declares.

    It is refused after the window, and where the provider declares none. The exit code is 2 while the outcome is unknown.
    """
    place = find_ledger(store, ledger, cipher)
    before = place.row(namespace, key)
    who = load_provider(provider, modules)
    opened = place.for_writing(before, exact=True)
    with _acting(place, before, as_json=as_json):
        names = (namespace, key, who)
        either(who, partial(opened.resend, *names), partial(opened.aresend, *names))
    _finish(place, before, as_json=as_json)


@click.command(cls=Command)
@intent_arguments()
@click.option("--by", metavar="WHO", help="Who allows it; left out, the application.")
@provider_options(required=False)
@ledger_options
def retry(
    *,
    namespace: str,
    key: str,
    by: str | None,
    provider: str | None,
    modules: tuple[str, ...],
    store: str | None,
    ledger: str | None,
    cipher: str | None,
    as_json: bool,
) -> None:
    """Allow one more attempt of what certainly did not happen: a new attempt, with a new key for its provider.

    With --provider it is made at once; without, the program's next call makes it: a run that recorded the refusal, or that is
    finished, calls it no more.
    """
    place = find_ledger(store, ledger, cipher)
    before = place.row(namespace, key)
    actor = "application" if by is None else f"human {by}"
    if provider is None:
        place.for_writing(before).retry_failed(namespace, key, by=actor)
        _finish(place, before, as_json=as_json, said=_ALLOWED.format(before.attempt + 1))
        return
    who = load_provider(provider, modules)
    opened = place.for_writing(before, exact=True)
    with _acting(place, before, as_json=as_json):
        names = (namespace, key, who)
        either(who, partial(opened.retry_failed, *names, by=actor), partial(opened.aretry_failed, *names, by=actor))
    _finish(place, before, as_json=as_json)


@contextmanager
def _acting(place: LedgerAt, before: Row, *, as_json: bool) -> Generator[None]:
    """Let an action end in its intent, whatever it ends with."""
    try:
        yield
    except DecodeError:
        return  # the result's class is not known here; it is recorded, and shown from its bytes
    except (UnknownOutcome, IntentFailed) as error:
        after = place.row(*before.where)
        if as_json:
            print_json(intent_data(place, after))
        kind = _StillUnknown if place.open(after) else click.ClickException
        raise kind(message(error)) from error


# --- what a person decides ---------------------------------------------------------------------------------------------------


@click.command(cls=Command)
@intent_arguments()
@click.option("--as", "outcome", type=click.Choice(["succeeded", "failed"]), required=True, help="What became of it.")
@click.option("--evidence", metavar="TEXT", required=True, help="How that is known.")
@click.option("--by", metavar="WHO", required=True, help="Who says so.")
@click.option("--receipt", metavar="FILE", type=click.Path(exists=True, dir_okay=False), help="What proves it: JSON, or any file.")
@click.option(
    "--result", metavar="FILE", type=click.Path(exists=True, dir_okay=False), help="What later calls return: JSON, or any file."
)
@ledger_options
def resolve(
    *,
    namespace: str,
    key: str,
    outcome: str,
    evidence: str,
    by: str,
    receipt: str | None,
    result: str | None,
    store: str | None,
    ledger: str | None,
    cipher: str | None,
    as_json: bool,
) -> None:
    """Record what you found out about an open intent: that it happened, or that it certainly did not and never will.

    "failed" lets it be tried again. Look at the provider first: what is recorded here is believed.
    """
    place = find_ledger(store, ledger, cipher)
    before = place.row(namespace, key)
    place.for_writing(before).resolve(
        namespace,
        key,
        outcome=cast("Literal['succeeded', 'failed']", outcome),
        evidence=evidence,
        by=by,
        receipt=_content(receipt),
        result=_content(result),
    )
    said = f"resolved by {by}: {evidence}"
    if outcome == "failed":
        # a program that is started first meets the refusal, and an agent may end without the action
        said += f". To have it tried, before the program is started again: lil ledger retry {where(before)}{place.typed}"
    elif result is None:
        said += ". Callers get None as its result: --result FILE says what else"
    _finish(place, before, as_json=as_json, said=said)


def _content(file: str | None) -> object:
    """Return what a file holds: JSON, or else its text, or else its bytes; None for no file."""
    if file is None:
        return None
    data = Path(file).read_bytes()
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return data
    try:
        found: object = json.loads(text)
    except ValueError:
        return text
    return found


@click.command(cls=Command)
@intent_arguments()
@click.option("--by", metavar="WHO", required=True, help="Who grants it.")
@ledger_options
def approve(*, namespace: str, key: str, by: str, store: str | None, ledger: str | None, cipher: str | None, as_json: bool) -> None:
    """Grant what waits for an approval: for its recorded arguments, at its provider, once. The program's next call sends it."""
    place = find_ledger(store, ledger, cipher)
    before = place.row(namespace, key)
    granted = place.for_writing(before).approve(namespace, key, by=by)
    _finish(place, before, as_json=as_json, said=f"{granted.operation} is approved by {by}; the program's next call sends it")


@click.command(cls=Command)
@intent_arguments()
@click.option("--by", metavar="WHO", required=True, help="Who refuses it.")
@click.option("--reason", metavar="TEXT", required=True, help="Why.")
@ledger_options
def deny(
    *, namespace: str, key: str, by: str, reason: str, store: str | None, ledger: str | None, cipher: str | None, as_json: bool
) -> None:
    """Refuse what waits for an approval; it is CANCELLED, and its key stays used."""
    place = find_ledger(store, ledger, cipher)
    before = place.row(namespace, key)
    place.for_writing(before).deny(namespace, key, by=by, reason=reason)
    _finish(place, before, as_json=as_json, said=f"denied by {by}: {reason}")


@click.command(cls=Command)
@intent_arguments()
@click.option("--reason", metavar="TEXT", default="", help="Why.")
@ledger_options
def cancel(
    *, namespace: str, key: str, reason: str, store: str | None, ledger: str | None, cipher: str | None, as_json: bool
) -> None:
    """Give up an intent that was never sent; its key stays used."""
    place = find_ledger(store, ledger, cipher)
    before = place.row(namespace, key)
    place.for_writing(before).cancel(namespace, key, reason=reason)
    _finish(place, before, as_json=as_json)


def _finish(place: LedgerAt, before: Row, *, as_json: bool, said: str = "") -> None:
    """Say how the intent stands now."""
    after = place.row(*before.where)
    if as_json:
        print_json(intent_data(place, after))
    else:
        step = after.state if before.state == after.state else f"{before.state} -> {after.state}"
        more = said or note(after, place.standing(after)) or summary(after)
        click.echo(f"{where(after)}: {step}{f'; {plain(more)}' if more else ''}")
    if place.open(after):
        sys.exit(2)
