"""The outside world of the demo: an HTTP receiver on the loopback interface that counts what is delivered to it."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["Delivery", "Receiver"]


@dataclass(frozen=True)
class Delivery:
    """One request that arrived.

    Args:
        path: the path it was sent to.
        key: its idempotency key.
        body: what was delivered.
        t: when, on the monotonic clock, in seconds.
    """

    path: str
    key: str
    body: bytes
    t: float


class Receiver:
    """A receiver on a free port of 127.0.0.1, in a thread of this process; use it in a ``with`` block.

    It counts and never refuses: a second delivery is not hidden by the receiver's own care.
    """

    def __init__(self) -> None:
        self._deliveries: list[Delivery] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 30

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                key = self.headers.get("Idempotency-Key") or ""
                receiver._deliveries.append(Delivery(self.path, key, body, time.monotonic()))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  http.server's name for it
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="receiver", daemon=True)

    def __enter__(self) -> Receiver:  # noqa: PYI034  typing.Self is younger than Python 3.10
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def url(self, path: str) -> str:
        """Give the URL under which ``path`` (with its leading slash) is delivered to this receiver."""
        return f"http://127.0.0.1:{self._server.server_port}{path}"

    def deliveries(self, path: str) -> list[Delivery]:
        """List what arrived at ``path`` so far."""
        return [delivery for delivery in self._deliveries if delivery.path == path]
