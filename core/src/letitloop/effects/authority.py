"""What the application grants: approvals, limits of a group, tickets. Pure."""

from __future__ import annotations

import os
import re
from base64 import b32encode
from dataclasses import dataclass

from letitloop.effects.intent import Ticket
from letitloop.errors import InvalidArgument, NotAuthorized

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

__all__ = ["LARGEST", "Approval", "Limit", "amount_of", "check_ticket", "new_ticket", "seconds"]

LARGEST = 2**63 - 1
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True)
class Approval:
    """An action that somebody has to approve before it is sent.

    Attributes:
        when: tells from the arguments whether it has to; always if left out.
        ttl: how long a granted approval may be used: seconds, or ``"90s"``, ``"30m"``, ``"1h"``, ``"2d"``; for ever if None.

    Example:
        >>> large = Approval(when=lambda arguments: arguments["amount_minor"] > 5000, ttl="1h")
        >>> large.needed({"amount_minor": 1200})
        False
    """

    when: Callable[[Mapping[str, Any]], bool] | None = None
    ttl: float | str | None = None

    def needed(self, arguments: Mapping[str, Any]) -> bool:
        """Tell whether these arguments need an approval."""
        return self.when is None or bool(self.when(arguments))


@dataclass(frozen=True, slots=True)
class Limit:
    """What the intents of one group may come to, counted in the transaction that records a new one.

    Whatever is not certainly without effect counts: what is under way, waits for an approval, or is unknown.

    Attributes:
        group: the group's name; in :func:`effect` a template, as its key.
        max_intents: how many intents it may have.
        max_sum: an argument that is a whole number (minor units), and what its sum may come to; in :func:`effect` the bound may
            be a function of the arguments.

    Example:
        >>> Limit(group="refund/42", max_intents=3, max_sum=("amount_minor", 5000)).max_intents
        3
    """

    group: str
    max_intents: int | None = None
    max_sum: tuple[str, int | Callable[[Mapping[str, Any]], int]] | None = None


def seconds(duration: float | str) -> float:
    """Return a duration in seconds.

    Raises:
        InvalidArgument: it is none, or not positive.

    Example:
        >>> seconds("1h")
        3600.0
    """
    if isinstance(duration, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhd])\s*", duration)
        value = float(match[1]) * _UNITS[match[2]] if match else 0.0
    else:
        value = float(duration)
    if not 0 < value < float("inf"):
        raise InvalidArgument(f"{duration!r} is no duration: give seconds above 0, or '90s', '30m', '1h', '2d'. Nothing was done.")
    return value


def amount_of(arguments: Mapping[str, Any], field: str) -> int:
    """Return the argument that is an amount.

    Raises:
        InvalidArgument: it is absent, or no whole number: sums of fractions are not exact.
    """
    amount = arguments.get(field)
    if isinstance(amount, bool) or not isinstance(amount, int) or not 0 <= amount <= LARGEST:
        raise InvalidArgument(
            f"argument {field!r} has to be a whole number of minor units, from 0 to 2**63 - 1, to be limited; it is "
            f"{type(amount).__name__ if not isinstance(amount, int) else amount}. Nothing was recorded."
        )
    return amount


def new_ticket(operation: str, scope: Mapping[str, Any], max_amount: int | None, amount_field: str) -> Ticket:
    """Return a ticket with a random name."""
    return Ticket(b32encode(os.urandom(10)).decode().lower(), operation, dict(scope), max_amount, amount_field)


def check_ticket(ticket: Ticket, operation: str, arguments: Mapping[str, Any]) -> None:
    """Hold an action against the ticket that is to allow it.

    Raises:
        NotAuthorized: it is another operation, outside the ticket's scope, or above its amount.
    """
    wrong = None
    outside = [name for name, value in ticket.scope.items() if name not in arguments or arguments[name] != value]
    if ticket.operation != operation:
        wrong = f"it is for {ticket.operation!r}, not for {operation!r}"
    elif outside:
        wrong = f"{', '.join(map(repr, outside))} {'is' if len(outside) == 1 else 'are'} outside its scope"
    elif ticket.max_amount is not None and amount_of(arguments, ticket.amount_field) > ticket.max_amount:
        wrong = f"{ticket.amount_field!r} is above its {ticket.max_amount}"
    if wrong:
        raise NotAuthorized(f"ticket {ticket.id} does not allow this action: {wrong}. Nothing was recorded.")
