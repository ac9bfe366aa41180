"""The payment service of this recipe: a table of refunds in a SQLite file, as a service of its own would have it.

It acts on every request that it gets. It knows no idempotency key; what it can do is to say which refunds it has made, by the
reference that the caller gave. That is enough to find out what became of a request whose reply never came.
"""

from __future__ import annotations

import os
import signal
import sqlite3

from letitloop.effects.provider import Caps, Found, NotFound, Succeeded


class Refunds:
    """A provider: carries refunds out, and looks one up by its reference.

    Args:
        path: the service's file.
        die_after_commit: end this process after the service has acted and before its reply arrives.
    """

    name = "refunds"
    caps = Caps(lookup="strong")

    def __init__(self, path, *, die_after_commit=False):
        self._path = str(path)
        self._die = die_after_commit
        with self._open() as db:
            db.execute("CREATE TABLE IF NOT EXISTS refunds (reference TEXT, order_id TEXT, cents INTEGER)")

    def _open(self):
        return sqlite3.connect(self._path, isolation_level=None)

    def identity(self):
        return "refunds/1 shop-account"

    def validate(self, operation, arguments):
        if arguments["cents"] <= 0:
            raise ValueError("a refund is of more than nothing")

    def execute(self, dispatch):
        order_id, cents = dispatch.arguments["order_id"], dispatch.arguments["cents"]
        with self._open() as db:
            db.execute("INSERT INTO refunds VALUES (?, ?, ?)", (dispatch.provider_key, order_id, cents))
        if self._die:
            os.kill(os.getpid(), signal.SIGKILL)  # the money has moved; nobody here has heard of it
        return Succeeded(f"refunded {cents} cents for order {order_id}")

    def reconcile(self, dispatch):
        with self._open() as db:
            row = db.execute("SELECT order_id, cents FROM refunds WHERE reference = ?", (dispatch.provider_key,)).fetchone()
        if row is None:
            return NotFound()
        return Found(f"refunded {row[1]} cents for order {row[0]}", dispatch.provider_key, {"order_id": row[0], "cents": row[1]})

    def made(self):
        """Return every refund that the service has made."""
        with self._open() as db:
            return db.execute("SELECT order_id, cents FROM refunds ORDER BY rowid").fetchall()
