"""The outside world of the demo: an HTTP receiver on the loopback interface that counts what is delivered to it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from letitloop.cli.demo.loopback import Loopback, Reply

TYPE_CHECKING = False
if TYPE_CHECKING:
    from letitloop.cli.demo.loopback import Request

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

    It counts and never refuses: a second delivery is not hidden by the receiver's own care. Asked for the receipt of a key, at
    ``PATH/KEY``, it returns what was delivered under it.
    """

    def __init__(self) -> None:
        self._deliveries: list[Delivery] = []
        self._server = Loopback(self._answer)

    def __enter__(self) -> Receiver:  # noqa: PYI034  typing.Self is younger than Python 3.10
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.__exit__()

    def url(self, path: str) -> str:
        """Give the URL under which ``path`` (with its leading slash) is delivered to this receiver."""
        return self._server.url(path)

    def deliveries(self, path: str) -> list[Delivery]:
        """List what arrived at ``path`` so far."""
        return [delivery for delivery in self._deliveries if delivery.path == path]

    def _answer(self, request: Request) -> Reply:
        if request.method == "POST":
            key = request.headers.get("idempotency-key", "")
            self._deliveries.append(Delivery(request.path, key, request.body, time.monotonic()))
            return Reply(200)
        path, _, key = request.path.rpartition("/")
        found = [delivery for delivery in self.deliveries(path) if delivery.key == key]
        return Reply(200, found[0].body) if found else Reply(404)
