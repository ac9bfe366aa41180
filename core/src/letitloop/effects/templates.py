"""Keys made of validated arguments: templates with plain fields, compiled once and checked then. Pure."""

from __future__ import annotations

import unicodedata
from datetime import date
from decimal import Decimal
from enum import Enum
from string import Formatter
from uuid import UUID

from letitloop.effects.intent import Ticket
from letitloop.errors import InvalidArgument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

    from letitloop.effects.context import EffectContext

__all__ = ["Template"]

_LONGEST_NUMBER = 100  # digits
_FICKLE = ("uuid", "tool_call_id", "call_id", "run_id", "attempt", "timestamp", "now", "time", "random", "nonce", "epoch")


class Template:
    """A text with fields, ``{order_id}`` from the arguments or ``{ctx.tenant}`` from the application's context.

    Args:
        text: the template.
        what: what it is, for messages: ``key``, ``scope`` or ``group``.

    Attributes:
        fields: the arguments that it needs.

    Raises:
        InvalidArgument: a field is no plain name, or names what is new in every run.

    Example:
        >>> Template("refund/{order_id}", "key").fields
        ('order_id',)
    """

    def __init__(self, text: str, what: str) -> None:
        self._what = what
        self._parts: list[tuple[str, str | None]] = []
        names: list[str] = []
        try:
            parsed = list(Formatter().parse(text))
        except ValueError as exc:
            raise InvalidArgument(f"effect({what}={text!r}): {exc}. Nothing was done.") from None
        for literal, field, spec, conversion in parsed:
            self._parts.append((literal, field))
            if field is None:
                continue
            name = field.removeprefix("ctx.")
            if spec or conversion or not name.isidentifier():
                raise InvalidArgument(
                    f"effect({what}={text!r}): a field is the name of an argument, or ctx.NAME, without format or index; "
                    f"{{{field}}} is not. Nothing was done."
                )
            if name.lower() in _FICKLE:
                raise InvalidArgument(
                    f"effect({what}={text!r}): {{{field}}} is another in every attempt, so the same action would have many keys "
                    "and could happen many times. Name what the action is about. Nothing was done."
                )
            if name == field:
                names.append(name)
        self.fields: Collection[str] = tuple(dict.fromkeys(names))
        after = [literal[:1] for literal, _ in self._parts[1:]]
        if any(not literal and field is not None for literal, field in self._parts[1:]):
            raise InvalidArgument(
                f"effect({what}={text!r}): two fields with nothing between them cannot be told apart. Put a '/' there. Nothing was "
                "decorated."
            )
        self._escaped = {ord(one): f"%{one.encode().hex().upper()}" for one in {"%", "/", *after} if one}

    def render(self, arguments: Mapping[str, Any], context: EffectContext) -> str:
        """Return the text for these arguments.

        Raises:
            InvalidArgument: a field's value is of a kind that has no one text, or is empty.
            NotAuthorized: the context has no such value.
        """
        text = ""
        for literal, field in self._parts:
            text += literal.replace("%", "%%")  # no value has two in a row
            if field is not None:
                name = field.removeprefix("ctx.")
                text += self._text(name, arguments[name] if name == field else getattr(context, name))
        return text

    def check(self, values: Mapping[str, Any]) -> None:
        """Refuse values of fields of which :meth:`render` makes no text.

        Raises:
            InvalidArgument: one is of a kind that has no one text, or is empty.
        """
        for name, value in values.items():
            self._text(name, value)

    def _text(self, name: str, value: object) -> str:
        """Return a field's value so that no two values have one text, and no value can imitate two fields."""
        if isinstance(value, Enum):
            value = value.value
        if isinstance(value, str):
            found = unicodedata.normalize("NFC", value).strip()
        elif isinstance(value, int) and not isinstance(value, bool):
            found = str(value)
        elif isinstance(value, Decimal) and value.is_finite() and abs(value.adjusted()) < _LONGEST_NUMBER:
            found = _number(value)
        elif isinstance(value, (UUID, date, Ticket)):
            found = str(value)
        else:
            raise InvalidArgument(
                f"{name!r} is part of the {self._what} of an action and has to be a text, a whole number, a Decimal, a UUID or a "
                f"date; it is {type(value).__name__}. Nothing was recorded."
            )
        if not found:
            raise InvalidArgument(f"{name!r} is part of the {self._what} of an action and must not be empty. Nothing was recorded.")
        return found.translate(self._escaped)  # what separates fields occurs in none of them


def _number(value: Decimal) -> str:
    """Return one text for equal numbers, whatever the program's decimal context rounds to."""
    text = format(value, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text
