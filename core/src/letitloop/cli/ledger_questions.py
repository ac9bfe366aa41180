"""Questions to a provider about open intents: one round, or again and again until none is open."""

from __future__ import annotations

import asyncio
import inspect
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from letitloop.cli.common import message, moment, plain
from letitloop.cli.ledger_view import event_data, intent_data, summary, told, where
from letitloop.errors import DecodeError, InFlight, LetItLoopError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from letitloop.cli.ledger_at import LedgerAt
    from letitloop.effects.intent import Row
    from letitloop.effects.provider import Provider

__all__ = ["Questions", "either"]

_SHORTEST_PAUSE = 1.0  # seconds between two questions about the same intent
_LONGEST_PAUSE = 60.0  # so that intents that open meanwhile are seen


class Questions:
    """Questions to one provider about its open intents.

    Args:
        place: the ledger.
        provider: who is asked.
        name: the one intent that is asked about; None for all that are open.
        quiet: print nothing.
        watch: ask again when it is worth while, until none is open.

    Attributes:
        identity: the provider's.
        seen: the intents that were asked about, and when, by a clock that is never set.
    """

    def __init__(self, place: LedgerAt, provider: Provider, name: tuple[str, str] | None, *, quiet: bool, watch: bool) -> None:
        self.identity = _identity(provider)
        self.seen: dict[tuple[str, str], float] = {}
        self._place = place
        self._provider = provider
        self._name = name
        self._quiet = quiet
        self._watch = watch
        self._askable = provider.caps.lookup != "none" or provider.caps.tombstone
        self._hopeless: set[tuple[str, str]] = set()

    def ask_all(self) -> None:
        """Ask about each; when watching, until none is open that can be asked about."""
        due = self._open() if self._name is None else [self._place.row(*self._name)]
        while due:
            for row in due:
                self._ask(row)
            due = self._wait() if self._watch else []

    def rows(self) -> list[Row]:
        """Return what was asked about, as it stands."""
        return [self._place.row(*name) for name in self.seen]

    def data(self) -> Any:
        """Return what was asked about as data: a list, or the one that was named."""
        found = [intent_data(self._place, row) for row in self.rows()]
        return found if self._name is None else found[0] if found else None

    def _open(self) -> list[Row]:
        if not self._place.exists:
            return []
        rows = self._place.rows() if self._name is None else [self._place.row(*self._name)]
        return [row for row in rows if row.identity == self.identity and self._place.open(row)]

    def _wait(self) -> list[Row]:
        """Sleep until asking is worth while, and return about what; nothing if none is open that can be asked about."""
        while left := [row for row in self._open() if row.where not in self._hopeless]:
            pauses = {row.where: self._pause(row) for row in left}
            due = [row for row in left if pauses[row.where] <= 0]
            if due:
                return due
            time.sleep(min(*pauses.values(), _LONGEST_PAUSE))
        return []

    def _pause(self, row: Row) -> float:
        """Return how long to wait before asking about an intent, in seconds."""
        asked = self.seen.get(row.where)
        worth = (row.next_check_at or 0.0) - time.time()
        return worth if asked is None else max(worth, asked + _SHORTEST_PAUSE - time.monotonic())

    def _ask(self, row: Row) -> None:
        try:
            ledger = self._place.for_writing(row, exact=True)
            names = (*row.where, self._provider)
            either(self._provider, partial(ledger.reconcile, *names), partial(ledger.areconcile, *names))
        except StoreError:
            raise
        except DecodeError:
            pass  # the result's class is not known here; it is recorded, and shown from its bytes
        except (LetItLoopError, click.ClickException) as error:
            if self._name is not None:
                raise
            if not isinstance(error, InFlight):
                self._hopeless.add(row.where)
            self._say(row, message(error) if isinstance(error, LetItLoopError) else error.message)
            return
        finally:
            self.seen[row.where] = time.monotonic()
        after = self._place.row(*row.where)
        if not self._askable:
            self._hopeless.add(row.where)
        self._say(after, self._outcome(row, after))

    def _outcome(self, before: Row, after: Row) -> str:
        if not self._place.open(after):
            known = summary(after)
            settled = before.state in ("UNKNOWN", "DISPATCHED")
            return f"{after.state}{f', {known}' if known else ''}" + ("" if settled else "; nobody was asked, for it was not open")
        if not self._askable:
            return f"{after.state}: its provider cannot be asked (it has no lookup and no tombstone). Look there, then resolve it"
        newest = told(event_data(self._place, self._place.events(after)[-1]))
        again = (
            ""
            if after.next_check_at is None
            else f"; {'asked' if self._watch else 'worth asking'} again {moment(after.next_check_at)}"
        )
        return f"still {after.state}: {newest or 'no answer'}{again}"

    def _say(self, row: Row, text: str) -> None:
        if not self._quiet:
            click.echo(f"{where(row)}: {plain(text)}")


def _identity(provider: Provider) -> str:
    try:
        return provider.identity()
    except Exception as error:
        raise click.ClickException(
            f"the provider does not tell whose account it acts on: {type(error).__name__}: {plain(str(error))}. Nothing was done."
        ) from error


def either(provider: Provider, plainly: Callable[[], object], in_loop: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Call a verb, or its async twin where the provider acts or answers in async code alone."""
    if _needs_loop(provider):
        asyncio.run(in_loop())
    else:
        plainly()


def _needs_loop(provider: Provider) -> bool:
    plain = getattr(provider, "execute", None)
    if plain is None or inspect.iscoroutinefunction(plain):
        return True
    # a class that has async twins has plain methods too; one object's own twins stand for what is async, as of a function
    own: dict[str, Any] = getattr(provider, "__dict__", {})
    return not own.keys().isdisjoint(("aexecute", "areconcile", "atombstone"))
