"""What the commands about intents share: where the ledger is, how it is read and written, and which provider is meant."""

from __future__ import annotations

import importlib
import os
import shlex
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from letitloop.cli.common import json_option, open_store, plain
from letitloop.cli.jsonable import to_json, unpack
from letitloop.codecs import default_codecs
from letitloop.effects.reading import is_open, read_events, read_row, read_rows, read_stub
from letitloop.effects.states import DISPATCHED, PREPARED, UNKNOWN
from letitloop.effects.vault import Vault
from letitloop.errors import CodecError, LetItLoopError
from letitloop.runs.importing import only_imported

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.shell_completion import CompletionItem

    from letitloop.effects.intent import Row
    from letitloop.effects.intents import Recorded
    from letitloop.effects.ledger import Ledger
    from letitloop.effects.provider import Provider
    from letitloop.effects.vault import Cipher

__all__ = [
    "OPEN",
    "LedgerAt",
    "find_ledger",
    "intent_arguments",
    "ledger_options",
    "load_provider",
    "no_ledger",
    "provider_options",
]

OPEN = ("unknown", "owner gone")
"""What :meth:`LedgerAt.standing` says of an outcome that is unknown."""

F = TypeVar("F", bound="Callable[..., Any]")


# --- options -----------------------------------------------------------------------------------------------------------------


def ledger_options(function: F) -> F:
    """Add ``--store``, ``--ledger``, ``--cipher`` and ``--json``."""
    for option in (
        json_option,
        click.option("--cipher", metavar="MODULE:NAME", help="What decrypts an encrypted ledger: an object, or what makes it."),
        click.option("--ledger", metavar="FILE", type=click.Path(dir_okay=False), help="A ledger of its own, not a store's."),
        click.option("--store", metavar="DIR", type=click.Path(), help="The store whose ledger it is, as for other commands."),
    ):
        function = option(function)
    return function


def provider_options(*, required: bool) -> Callable[[F], F]:
    """Add ``--provider`` and ``--import``."""
    text = "The provider, or a function that makes it; or the name it is registered under by a module of --import."

    def add(function: F) -> F:
        function = click.option("--import", "modules", metavar="MODULE", multiple=True, help="Import this first; repeatable.")(
            function
        )
        return click.option("--provider", metavar="MODULE:NAME", required=required, help=text)(function)

    return add


def intent_arguments(*, required: bool = True) -> Callable[[F], F]:
    """Add the arguments NS and KEY; a shell completes them."""

    def add(function: F) -> F:
        for name, metavar in (("key", "KEY"), ("namespace", "NS")):
            shown = metavar if required else f"[{metavar}]"
            function = click.argument(name, metavar=shown, required=required, shell_complete=_complete)(function)
        return function

    return add


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    try:
        place = find_ledger(ctx.params.get("store"), ctx.params.get("ledger"))
        rows = place.rows(namespace=ctx.params.get("namespace") if param.name == "key" else None)
    except (LetItLoopError, OSError, click.ClickException):
        return []
    names = {row.key if param.name == "key" else row.namespace for row in rows}
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]


# --- the ledger --------------------------------------------------------------------------------------------------------------


class _Shown(Vault):
    """Reads no value that needs a class of the user's program: what commands show, they show from the bytes."""

    def decode(self, data: bytes | None) -> object:
        try:
            return super().decode(data)
        except CodecError:
            return None


@dataclass(frozen=True)
class LedgerAt:
    """A ledger, looked at without changing or making anything.

    Attributes:
        path: its file.
        cipher: what decrypts its values; None if they are not encrypted.
        typed: the options that named it, for commands that are to be typed.
    """

    path: str
    cipher: Cipher | None = None
    typed: str = ""

    @property
    def location(self) -> str:
        """Where it is, as a store names its ledger."""
        return f"sqlite:{self.path}"

    @property
    def exists(self) -> bool:
        """Whether there is one."""
        return os.path.exists(self.path)

    def rows(self, *, state: str | None = None, namespace: str | None = None) -> list[Row]:
        """Return the intents in the order of their identities."""
        return read_rows(self.location, state=state, namespace=namespace)

    def row(self, namespace: str, key: str) -> Row:
        """Return an intent, or end the command in one line."""
        if not self.exists:
            raise click.ClickException(no_ledger(self))
        found = read_row(self.location, namespace, key)
        if found is not None:
            return found
        pruned = read_stub(self.location, namespace, key)
        what = f"intent {key!r} of {namespace!r}"
        if pruned is not None:
            raise click.ClickException(plain(f"{what} was {pruned}, and was pruned with its history. Its key stays used."))
        raise click.ClickException(
            plain(
                f"there is no {what} in the ledger {self.path}. Nothing was changed. 'lil ledger list' shows those that are there."
            )
        )

    def events(self, row: Row) -> list[Recorded]:
        """Return an intent's history, oldest first."""
        return read_events(self.location, *row.where)

    def standing(self, row: Row) -> str:
        """Tell what an intent's row and its owner's lock say together.

        Returns:
            ``"unknown"``, ``"owner gone"`` (dispatched, and nobody is left to tell), ``"under way"``, ``"waiting"`` (for an
            approval), or nothing.
        """
        if row.state == DISPATCHED:
            return "owner gone" if is_open(self.location, row) else "under way"
        if row.state == UNKNOWN:
            return "unknown"
        return "waiting" if row.state == PREPARED and row.approval == "pending" else ""

    def open(self, row: Row) -> bool:
        """Tell whether its outcome is unknown."""
        return self.standing(row) in OPEN

    def value(self, data: bytes | None) -> Any:
        """Return a stored value as JSON holds it."""
        if data is None:
            return None
        try:
            return to_json(data if self.cipher is None else self.cipher.decrypt(data))
        except Exception as error:  # the user's cipher
            return {"$type": "unreadable", "error": f"it cannot be decrypted: {type(error).__name__}: {error}"}

    def for_writing(self, row: Row | None = None, *, exact: bool = False) -> Ledger:
        """Open it to write to it.

        Args:
            row: the intent that is written to: whether its values can be read tells whether the cipher is the right one.
            exact: a provider is given the values, so that each of their classes has to be known here.
        """
        from letitloop.effects.ledger import Ledger

        if not self.exists:
            raise click.ClickException(no_ledger(self))
        ledger = Ledger(self.path, cipher=self.cipher)
        if row is not None:
            self._check_cipher(row)
        if not exact:
            ledger.vault = _Shown(default_codecs, self.cipher)
        elif row is not None:
            try:
                ledger.vault.decode(row.arguments)
            except CodecError as error:
                raise click.ClickException(
                    plain(f"the arguments of {row.key!r} cannot be read here: {error} Nothing was done. --import names a module.")
                ) from error
        return ledger

    def _check_cipher(self, row: Row) -> None:
        try:
            unpack(row.arguments if self.cipher is None else self.cipher.decrypt(row.arguments))
        except Exception as error:
            what = "encrypted" if self.cipher is None else "encrypted otherwise"
            raise click.ClickException(
                f"the values of this ledger are {what}, or damaged. Nothing was changed: what is written has to be readable with "
                "the rest. Give --cipher MODULE:NAME, the cipher that the program gives its Ledger."
            ) from error


def find_ledger(store: str | None, ledger: str | None, cipher: str | None = None, *, whole: bool = False) -> LedgerAt:
    """Return the ledger that the command line or the environment names.

    Args:
        store: the store's directory.
        ledger: a ledger's own file.
        cipher: ``module:name`` of what decrypts it.
        whole: as :func:`letitloop.cli.common.open_store`.
    """
    if store is not None and ledger is not None:
        raise click.UsageError("--store and --ledger exclude each other.")
    found = None if cipher is None else _made("--cipher", cipher, ("encrypt", "decrypt"), "a cipher")
    if ledger is not None:
        return LedgerAt(os.path.abspath(ledger), found, f" --ledger {shlex.quote(ledger)}")
    typed = "" if store is None else f" --store {shlex.quote(store)}"
    return LedgerAt(open_store(store, whole=whole).ledger.partition(":")[2], found, typed)


def no_ledger(place: LedgerAt) -> str:
    """Say that there is no ledger, and how it would come to be."""
    return (
        f"no ledger here yet: there is no file {place.path}, and none was made. The first action of a Ledger, or the first marker, "
        "makes it; --store or --ledger names another."
    )


# --- the provider ------------------------------------------------------------------------------------------------------------


def load_provider(name: str, modules: tuple[str, ...]) -> Provider:
    """Return the provider that the command line names.

    Args:
        name: ``module:name``, or the name it is registered under.
        modules: imported first.
    """
    for module in modules:
        _import("--import", module)
    if ":" in name:
        made: Provider = _made("--provider", name, ("identity", "caps"), "a provider")
        return made
    from letitloop.effects.guard import find_provider

    try:
        return find_provider(name)
    except Exception as error:
        raise click.ClickException(
            plain(f"--provider {name}: {error} It is MODULE:NAME, or registered by a module that --import names.")
        ) from error


def _made(option: str, name: str, needed: tuple[str, ...], what: str) -> Any:
    """Return an object by its name, or what the function of that name makes."""
    module, _, path = name.partition(":")
    if not module or not path:
        raise click.ClickException(f"{option} {plain(name)}: it is MODULE:NAME, as in shop.payments:refunds. Nothing was done.")
    found: Any = _import(option, module)
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise click.ClickException(f"{option} {plain(name)}: {module} has no {plain(part)}. Nothing was done.") from error
    if callable(found) and (isinstance(found, type) or not _has(found, needed)):
        try:
            found = found()
        except (Exception, SystemExit) as error:
            raise click.ClickException(f"{option} {plain(name)}: making it failed: {_told(error)} Nothing was done.") from error
    if not _has(found, needed):
        raise click.ClickException(
            f"{option} {plain(name)}: it is {type(found).__name__}, and no {what.partition(' ')[2]}: it has no "
            f"{' or no '.join(one for one in needed if not hasattr(found, one))}. Nothing was done."
        )
    return found


def _has(found: object, needed: tuple[str, ...]) -> bool:
    return all(hasattr(found, one) for one in needed)


def _import(option: str, module: str) -> Any:
    """Import a module as ``python -m`` would find it; what it does when it is imported is no reason to send anything."""
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        with only_imported(module):
            return importlib.import_module(module)
    except (Exception, SystemExit) as error:
        raise click.ClickException(f"{option} {plain(module)}: importing it failed: {_told(error)} Nothing was done.") from error


def _told(error: BaseException) -> str:
    text = plain(str(error)) or "no message"
    return f"{type(error).__name__}: {text}{'' if text.endswith('.') else '.'}"
