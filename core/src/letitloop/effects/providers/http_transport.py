"""Connections that tell what they sent, for the providers that speak HTTP.

Whether a request left is not to be learnt from the class of an exception: a connection that breaks has the same error whether the
other side acted before or not. httpx tells each phase of a request to a trace function, and there the rule is simple: as long as
no header of the request has been started, not a byte of it has left.
"""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import dataclass, field

from letitloop.errors import InvalidArgument

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable, Mapping
    from typing import Any

    import httpx

__all__ = ["Connections", "Exchange", "HttpReply", "Message", "check_headers", "require_httpx"]

_PIECE = 1 << 16
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?")


@dataclass(frozen=True, slots=True)
class HttpReply:
    """A complete answer, as a provider's ``check`` and ``read`` functions get it.

    Attributes:
        status: its code.
        headers: by their names in lower case.
        content: the body's bytes, no longer compressed.
        value: the body decoded: from JSON if it says so (or says nothing and is JSON), else as text; None if it is empty. Raises
            :class:`ValueError` where the body is not what it says.

    Example:
        >>> HttpReply(201, {"content-type": "application/json"}, b'{"id": "re_1"}').value
        {'id': 're_1'}
    """

    status: int
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    content: bytes = b""

    @property
    def value(self) -> object:
        """The body decoded, or :class:`ValueError`."""
        import json

        if not self.content.strip():
            return None
        kind, _, parameters = self.headers.get("content-type", "").partition(";")
        kind = kind.strip().lower()
        if not kind or kind == "application/json" or kind.endswith("+json"):
            try:
                return json.loads(self.content)
            except RecursionError as exc:
                raise ValueError("it is nested too deep") from exc
            except ValueError:
                if kind:
                    raise
        charset = re.search(r"charset=\"?([\w.:-]+)", parameters, re.IGNORECASE)
        try:
            return self.content.decode(charset[1] if charset else "utf-8")
        except LookupError as exc:
            raise ValueError(f"its charset is not known: {exc}") from exc


@dataclass(frozen=True, slots=True)
class Message:
    """A request, byte for byte; what authenticates it is added when it is sent.

    Attributes:
        method: in capitals.
        url: absolute, quoted.
        headers: in the order in which they are sent.
        content: the body.
    """

    method: str
    url: str
    headers: tuple[tuple[str, str], ...] = ()
    content: bytes = b""


class Exchange:
    """What became of one request.

    Attributes:
        started: how many times its headers were started. A proxy's CONNECT does not count: it is no request to the service.
        body_cut: whether its body certainly did not leave completely.
        status: the code that was seen, even if the answer broke off afterwards.
        reply: the complete answer; None if there was none.
        error: what was raised instead.
        certified: whether silence of the trace proves that nothing left: so it does before a transport is asked, and with httpx's
            own transports; one of somebody else's has to be seen tracing first.
    """

    __slots__ = ("_tunnelling", "body_cut", "certified", "error", "reply", "started", "status")

    def __init__(self) -> None:
        self.started = 0
        self.body_cut = False
        self.status: int | None = None
        self.reply: HttpReply | None = None
        self.error: Exception | None = None
        self.certified = True
        self._tunnelling = False

    @property
    def not_sent(self) -> bool:
        """Whether it is certain that not a byte of the request left."""
        return self.certified and self.started == 0 and self.reply is None

    def note(self, name: str, info: Mapping[str, Any]) -> None:
        """Take down one event of the transport's trace."""
        self.certified = True
        event = name.partition(".")[2]
        if event == "send_request_headers.started":
            self._tunnelling = getattr(info.get("request"), "method", b"") == b"CONNECT"
            self.started += not self._tunnelling
        elif self._tunnelling:
            return
        elif event == "send_request_body.failed":
            # after a timeout the rest may still lie in a buffer that is being sent; a write that failed is over
            self.body_cut = type(info.get("exception")).__name__ == "WriteError"
        elif event == "receive_response_headers.complete":
            self.status = info["return_value"][1]

    async def anote(self, name: str, info: Mapping[str, Any]) -> None:
        """Take down one event of an async transport's trace."""
        self.note(name, info)


class Connections:
    """A pool for plain code and one for each event loop, opened when first used, in the process that uses them.

    A forked child opens its own and leaves its parent's sockets alone. HTTP/1.1 only, no retries, no redirects, no cookies, no
    authentication dance: one call is one request.
    """

    def __init__(
        self,
        *,
        timeout: float | httpx.Timeout = 30.0,
        verify: ssl.SSLContext | None = None,
        proxy: str | None = None,
        trust_env: bool = False,
        transport: Callable[[], httpx.BaseTransport] | None = None,
        async_transport: Callable[[], httpx.AsyncBaseTransport] | None = None,
    ) -> None:
        self._timeout: httpx.Timeout = require_httpx("http").Timeout(timeout)
        self._options: dict[str, Any] = {"proxy": proxy, "trust_env": trust_env, "http1": True, "http2": False}
        self._verify = verify
        self._transport = transport
        self._async_transport = async_transport
        self._plain: dict[int, tuple[httpx.Client, bool]] = {}
        self._async: dict[tuple[int, asyncio.AbstractEventLoop], tuple[httpx.AsyncClient, bool]] = {}

    def send(self, message: Message, exchange: Exchange, *, auth: Mapping[str, str] | None = None) -> HttpReply:
        """Send a request once and return the complete answer; what happens on the way is noted in the exchange."""
        client, own = self._client()
        request = self._request(message, message.content, exchange.note, auth)
        exchange.certified = own
        response = client.send(request, auth=None, follow_redirects=False)
        exchange.reply = _reply(response)
        return exchange.reply

    async def asend(self, message: Message, exchange: Exchange, *, auth: Mapping[str, str] | None = None) -> HttpReply:
        """Send a request once, from async code."""
        client, own = self._async_client()
        # in pieces: an event loop takes what it is given whole, and then does not tell how far it got
        content = _pieces(message.content) if len(message.content) > _PIECE else message.content
        request = self._request(message, content, exchange.anote, auth)
        exchange.certified = own
        response = await client.send(request, auth=None, follow_redirects=False)
        exchange.reply = _reply(response)
        return exchange.reply

    def close(self) -> None:
        """Close the connections of plain code in this process; a later request opens new ones."""
        opened = self._plain.pop(os.getpid(), None)
        if opened is not None:
            opened[0].close()

    async def aclose(self) -> None:
        """Close the connections of the running event loop; a later request opens new ones."""
        opened = self._async.pop((os.getpid(), asyncio.get_running_loop()), None)
        if opened is not None:
            await opened[0].aclose()

    def _request(
        self, message: Message, content: bytes | AsyncIterator[bytes], trace: object, auth: Mapping[str, str] | None
    ) -> httpx.Request:
        import httpx

        added = check_headers(auth or {})
        twice = {name.lower() for name in added} & {name.lower() for name, _ in message.headers}
        if twice:
            raise InvalidArgument(f"auth() returned {', '.join(sorted(twice))}, which the request has already. Nothing was sent.")
        headers = [*message.headers, *added.items()]
        if message.method != "GET":
            headers.append(("Content-Length", str(len(message.content))))
        extensions = {"trace": trace, "timeout": self._timeout.as_dict()}
        # made without the client: nothing of its defaults, which differ between versions, gets in
        return httpx.Request(message.method, message.url, headers=headers, content=content, extensions=extensions)

    def _context(self) -> ssl.SSLContext:
        """Return the certificates, loaded once: that takes longer than a request."""
        import httpx

        if self._verify is None:
            self._verify = httpx.create_ssl_context(trust_env=bool(self._options["trust_env"]))
        return self._verify

    def _client(self) -> tuple[httpx.Client, bool]:
        """Return this process's client, and whether its transport is httpx's own."""
        import httpx

        pid = os.getpid()
        opened = self._plain.get(pid)
        if opened is None:
            transport = None if self._transport is None else self._transport()
            own = transport is None or type(transport) is httpx.HTTPTransport
            made = httpx.Client(transport=transport, verify=self._context(), **self._options)
            # no lock: one that another thread held during a fork would stay shut in the child
            opened = self._plain.setdefault(pid, (made, own))
            if opened[0] is not made:
                made.close()
        return opened

    def _async_client(self) -> tuple[httpx.AsyncClient, bool]:
        import httpx

        loop = asyncio.get_running_loop()
        here = (os.getpid(), loop)
        opened = self._async.get(here)
        if opened is None:
            for old in [key for key in list(self._async) if key[0] == here[0] and key[1].is_closed()]:
                self._async.pop(old, None)  # its connections went with the loop
            transport = None if self._async_transport is None else self._async_transport()
            own = transport is None or type(transport) is httpx.AsyncHTTPTransport
            opened = self._async[here] = (httpx.AsyncClient(transport=transport, verify=self._context(), **self._options), own)
        return opened


def require_httpx(extra: str) -> Any:
    """Return httpx, or say which extra brings it."""
    try:
        import httpx
    except ImportError as exc:
        raise InvalidArgument(
            f'this provider needs httpx, which is not installed. Nothing was sent. Install it: pip install "letitloop[{extra}]".'
        ) from exc
    return httpx


def check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers whose names and values can be sent; a token read from a file likes to end in a newline.

    Raises:
        InvalidArgument: one cannot be sent. The message does not show its value.
    """
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise InvalidArgument(f"{name!r} cannot be the name of a header. Nothing was sent.")
        if not _HEADER_VALUE.fullmatch(value):
            raise InvalidArgument(
                f"the value of the header {name} cannot be sent: it is empty, begins or ends with a space or a newline, or has "
                "characters that headers cannot have. Nothing was sent."
            )
    return dict(headers)


async def _pieces(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), _PIECE):
        yield content[start : start + _PIECE]


def _reply(response: httpx.Response) -> HttpReply:
    headers = {name.lower(): value for name, value in response.headers.items()}
    return HttpReply(response.status_code, headers, response.content)
