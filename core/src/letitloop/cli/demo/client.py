"""The plain HTTP of the demos' processes, from the standard library."""

from __future__ import annotations

import http.client
from urllib.parse import urlsplit

__all__ = ["request"]


def request(method: str, url: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    """Send one HTTP request; returns status and body of the answer."""
    target = urlsplit(url)
    connection = http.client.HTTPConnection(target.hostname or "127.0.0.1", target.port, timeout=30)
    try:
        connection.request(method, target.path, body=body, headers=headers or {})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()
