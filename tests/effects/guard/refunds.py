"""A function to guard."""

from __future__ import annotations

from letitloop import Trusted


def refund(order_id: str, amount_minor: int, *, request_id: Trusted[str] = "r") -> str:
    return f"{order_id}:{amount_minor}:{request_id}"
