"""An HTTP server on the loopback interface, in a thread of this process, that can also break a connection off."""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Loopback", "Reply", "Request"]


@dataclass(frozen=True)
class Request:
    """What arrived.

    Args:
        method: ``GET`` or ``POST``.
        path: the path it was sent to.
        headers: by their names in lower case.
        body: its body.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Reply:
    """What is sent back.

    Args:
        status: its code.
        body: its body.
        headers: its headers, beside the length.
    """

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


class Loopback:
    """A server on a free port of 127.0.0.1; use it in a ``with`` block.

    Args:
        answer: gives the reply to each request, in the thread of its connection; None closes the connection instead.
    """

    def __init__(self, answer: Callable[[Request], Reply | None]) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 30

            def do_GET(self) -> None:
                self._serve()

            def do_POST(self) -> None:
                self._serve()

            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                reply = answer(Request(self.command, self.path, headers, body))
                self.close_connection = True  # one request a connection: nobody waits for a second one
                if reply is None:
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                self.send_response(reply.status)
                for name, value in {**reply.headers, "Content-Length": str(len(reply.body)), "Connection": "close"}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(reply.body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  http.server's name for it
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="loopback", daemon=True)

    def __enter__(self) -> Loopback:  # noqa: PYI034  typing.Self is younger than Python 3.10
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def url(self, path: str = "") -> str:
        """Give the URL under which ``path`` (with its leading slash) is reached."""
        return f"http://127.0.0.1:{self._server.server_port}{path}"
