"""What a demo asserts: each thing that it claims, beside what was found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Check"]


@dataclass(frozen=True)
class Check:
    """One assertion.

    Args:
        about: of whom: a strategy, a provider.
        what: what was counted or read, and where.
        expected: what the demo claims.
        found: what the evidence has.
    """

    about: str
    what: str
    expected: object
    found: object

    @property
    def ok(self) -> bool:
        """Whether it holds."""
        return self.expected == self.found

    def __str__(self) -> str:
        return f"{self.about}: {self.what}: {self.found} instead of {self.expected}"

    def as_json(self) -> dict[str, Any]:
        """Give it as plain data."""
        return {"check": self.what, "expected": self.expected, "found": self.found, "ok": self.ok}
