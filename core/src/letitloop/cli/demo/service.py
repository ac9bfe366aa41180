"""A service that pays refunds: it commits, and then may lose the reply. Its own log says what it did."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import dataclass
from typing import Any

from letitloop.cli.demo.loopback import Loopback, Reply

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Literal

    from letitloop.cli.demo.loopback import Request

__all__ = ["CLOSED", "Service", "Terms", "effects", "lookups", "posts"]

CLOSED = "connection closed"


@dataclass(frozen=True)
class Terms:
    """How the service behaves for one account.

    Args:
        honours_keys: whether it answers a repeated ``Idempotency-Key`` with the first refund instead of paying again.
        receipts: whether it can be asked for the receipt of a key: no, yes, or it is out of order.
        replies_lost: to how many of its first POSTs it closes the connection, after the commit and before the reply.
    """

    honours_keys: bool = False
    receipts: Literal["none", "yes", "down"] = "none"
    replies_lost: int = 1


class Service:
    """The service on the loopback interface; use it in a ``with`` block.

    ``POST /ACCOUNT/refunds`` pays a refund, ``GET /ACCOUNT/refunds/KEY`` gives the receipt of a key. Each request becomes one
    entry of the log, written before the reply.

    Args:
        accounts: the terms of each account.
        file: a file that takes the log too, one JSON object a line, synced before the reply.
    """

    def __init__(self, accounts: Mapping[str, Terms], file: Path | None = None) -> None:
        self._accounts = accounts
        self._file = file
        self._start = time.monotonic()
        self._lock = threading.Lock()
        self._entries: list[dict[str, Any]] = []
        self._refunds: dict[str, list[dict[str, Any]]] = {account: [] for account in accounts}
        self._server = Loopback(self._answer)

    def __enter__(self) -> Service:  # noqa: PYI034  typing.Self is younger than Python 3.10
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.__exit__()

    def url(self, account: str) -> str:
        """Give the base URL of an account."""
        return self._server.url(f"/{account}")

    def log(self, account: str) -> list[dict[str, Any]]:
        """List what the service did for an account so far."""
        with self._lock:
            return [dict(entry) for entry in self._entries if entry["account"] == account]

    def _answer(self, request: Request) -> Reply | None:
        account, _, rest = request.path.strip("/").partition("/")
        kind, _, key = rest.partition("/")
        with self._lock:
            if account not in self._accounts or kind != "refunds" or bool(key) == (request.method == "POST"):
                return Reply(404)
            if request.method == "GET":
                return self._receipt(account, key)
            return self._pay(account, request)

    def _pay(self, account: str, request: Request) -> Reply | None:
        terms, paid = self._accounts[account], self._refunds[account]
        key = request.headers.get("idempotency-key", "")
        known = [refund for refund in paid if refund["key"] == key] if terms.honours_keys and key else []
        if not known:
            paid.append({"id": f"re_{len(paid) + 1}", "key": key, **json.loads(request.body)})
        refund = known[0] if known else paid[-1]
        lost = sum(entry["request"] == "POST" for entry in self._entries if entry["account"] == account) < terms.replies_lost
        self._note(account, "POST", key, None if known else refund["id"], CLOSED if lost else 201)
        return None if lost else _json(201, refund)

    def _receipt(self, account: str, key: str) -> Reply:
        terms = self._accounts[account]
        found = [refund for refund in self._refunds[account] if refund["key"] == key]
        status = 503 if terms.receipts == "down" else 200 if found and terms.receipts == "yes" else 404
        self._note(account, "GET", key, None, status)
        return _json(status, found[0]) if status == 200 else Reply(status)

    def _note(self, account: str, method: str, key: str, effect: str | None, reply: str | int) -> None:
        entry = {
            "n": len(self._entries) + 1,
            "seconds": time.monotonic() - self._start,
            "account": account,
            "request": method,
            "key": key,
            "effect": effect,
            "reply": reply,
        }
        self._entries.append(entry)
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
                file.flush()
                os.fsync(file.fileno())


def posts(log: list[dict[str, Any]]) -> int:
    """Count the POSTs in a log."""
    return sum(entry["request"] == "POST" for entry in log)


def lookups(log: list[dict[str, Any]]) -> int:
    """Count the questions for a receipt in a log."""
    return sum(entry["request"] == "GET" for entry in log)


def effects(log: list[dict[str, Any]]) -> int:
    """Count what really happened."""
    return sum(entry["effect"] is not None for entry in log)


def _json(status: int, value: object) -> Reply:
    return Reply(status, json.dumps(value).encode(), {"Content-Type": "application/json"})
