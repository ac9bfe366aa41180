"""What providers with receipts of their own have in common: how long those last, and what they say of the arguments."""

from __future__ import annotations

from letitloop.codecs import default_codecs
from letitloop.effects.intent import Redacted
from letitloop.effects.provider import Window

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PERMANENT", "differing", "digests", "stated"]

PERMANENT = Window(100 * 365 * 86400.0)
"""A window as long as the receipts are kept: for ever. A hundred years, so that its end still is a date."""


def digests(arguments: Mapping[str, object]) -> dict[str, str]:
    """Return what a receipt records of the arguments: a hash of each, in hex.

    Example:
        >>> sorted(digests({"amount": 5, "to": "ada"}))
        ['amount', 'to']
    """
    return {name: default_codecs.fingerprint((value,), {}).hex() for name, value in arguments.items()}


def differing(recorded: Mapping[str, str], arguments: Mapping[str, object]) -> list[str]:
    """Return the names of the arguments that are not those of a receipt; redacted ones cannot be told.

    Example:
        >>> differing(digests({"amount": 5, "to": "ada"}), {"amount": 6, "to": "ada"})
        ['amount']
    """
    now = digests(arguments)
    names = sorted({*recorded, *now})
    return [name for name in names if now.get(name) != recorded.get(name) and not isinstance(arguments.get(name), Redacted)]


def stated(recorded: Mapping[str, str], arguments: Mapping[str, object]) -> dict[str, object]:
    """Return the arguments that a receipt states, as :class:`letitloop.effects.provider.Found` has them.

    Args:
        recorded: what the receipt holds, from :func:`digests`.
        arguments: the intent's. One that is not the receipt's stands with the receipt's hash instead of its value, so that
            whoever compares them sees it; a redacted one is left out.

    Example:
        >>> stated(digests({"amount": 5, "to": "ada"}), {"amount": 6, "to": "ada"})
        {'amount': 'sha256:...', 'to': 'ada'}
    """
    wrong = differing(recorded, arguments)
    known = {name: value for name, value in arguments.items() if name not in wrong and not isinstance(value, Redacted)}
    return {**{name: f"sha256:{recorded.get(name, 'none')}" for name in wrong}, **known}
