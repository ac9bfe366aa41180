"""Any HTTP API, one endpoint a provider: what is declared about it decides what can be known of an action whose reply was lost."""

from __future__ import annotations

from urllib.parse import urlsplit

from letitloop.effects.provider import Caps, Unavailable
from letitloop.effects.providers.http_endpoint import REFUSED, Endpoint, Lookup, render
from letitloop.effects.providers.http_transport import Connections, Exchange, HttpReply, Message, check_headers
from letitloop.effects.providers.http_verdict import described, look_up, verdict
from letitloop.errors import InvalidArgument

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Generator, Mapping
    from typing import Any

    import httpx

    from letitloop.effects.provider import Answer, Dispatch, Reply

__all__ = ["REFUSED", "Endpoint", "HttpProvider", "HttpReply", "Lookup"]


class HttpProvider:
    """Acts through one endpoint of an HTTP API: one call, one request.

    Nothing is retried and no redirect is followed. That a request was not sent is certified by the transport's own trace, never by
    the class of an error. Install with ``pip install "letitloop[http]"``.

    Several operations of one API are several providers, since what an endpoint declares (its window, its lookup) is what the
    ledger goes by; :meth:`sibling` makes one that shares the connections.

    Args:
        base_url: what paths are put behind, ``https://api.example.com/v1``; without name and password.
        endpoint: the operation, and what is declared about it.
        account: whose account this is, in a word of yours: part of the identity, the same for ever, and no secret.
        headers: headers of every request that are no secret.
        auth: called for each request; returns the headers that authenticate it. They are neither kept nor recorded, and it should
            return at once, from async code too.
        timeout: seconds for each of connecting, sending, receiving and waiting for a free connection, or an ``httpx.Timeout``.
        verify: a context with other certificates than the public ones; a client's certificate is loaded into it as well.
        proxy: the address of a proxy.
        trust_env: whether proxies and certificates may come from the environment too. Not by default: what an action passes
            through is said in the program.
        transport: makes another transport for plain code, in each process; silence of its trace certifies nothing unless it is an
            ``httpx.HTTPTransport``.
        async_transport: makes another transport for async code, in each event loop.

    Raises:
        InvalidArgument: httpx is not installed, or an argument means nothing.

    Example:
        >>> import httpx
        >>> from letitloop.effects.provider import Dispatch
        >>> def service(request):
        ...     return httpx.Response(201, json={"id": "re_1", "path": request.url.path, "got": request.content.decode()})
        >>> refunds = HttpProvider(
        ...     "https://api.example.com", Endpoint("POST", "/orders/{order_id}/refunds"), account="shop-1",
        ...     transport=lambda: httpx.MockTransport(service),
        ... )
        >>> refunds.identity()
        'http/1 shop-1 POST https://api.example.com/orders/{order_id}/refunds'
        >>> order = {"order_id": 42, "amount_minor": 1200}
        >>> reply = refunds.execute(Dispatch("shop", "order-42/refund", 1, 1, "k" * 40, "refund", order, 0.0))
        >>> reply.result
        {'id': 're_1', 'path': '/orders/42/refunds', 'got': '{"amount_minor":1200}'}
        >>> refunds.close()
    """

    name = "http"

    def __init__(
        self,
        base_url: str,
        endpoint: Endpoint,
        *,
        account: str,
        headers: Mapping[str, str] | None = None,
        auth: Callable[[], Mapping[str, str]] | None = None,
        timeout: float | httpx.Timeout = 30.0,
        verify: ssl.SSLContext | None = None,
        proxy: str | None = None,
        trust_env: bool = False,
        transport: Callable[[], httpx.BaseTransport] | None = None,
        async_transport: Callable[[], httpx.AsyncBaseTransport] | None = None,
    ) -> None:
        parts = urlsplit(base_url)
        if parts.username or parts.password or parts.query or parts.fragment or not parts.hostname:
            raise InvalidArgument(
                "base_url has to be an address with a host and without name, password, query and fragment: it becomes part of the "
                "identity. What authenticates a request is returned by auth=."
            )
        if not account:
            raise InvalidArgument("account= is empty: it says whose account is acted on, and tells two accounts of one API apart.")
        self._base_url = base_url.rstrip("/")
        self._account = account
        self._headers = tuple(check_headers(headers or {}).items())
        self._endpoint = self._checked(endpoint)
        self._auth = auth
        self._connections = Connections(
            timeout=timeout, verify=verify, proxy=proxy, trust_env=trust_env, transport=transport, async_transport=async_transport
        )

    def __repr__(self) -> str:
        return f"<HttpProvider {self.identity()}>"

    @property
    def caps(self) -> Caps:
        """What follows from what the endpoint declares."""
        lookup = self._endpoint.lookup
        return Caps(
            redispatch=self._endpoint.window,
            lookup="none" if lookup is None else lookup.consistency,
            in_flight=self._endpoint.conflict == "running" or (lookup is not None and bool(lookup.running)),
        )

    def sibling(self, endpoint: Endpoint) -> HttpProvider:
        """Return the provider of another endpoint of the same API and account; it shares headers and connections.

        Args:
            endpoint: the other operation.
        """
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, _endpoint=self._checked(endpoint))
        return other

    def identity(self) -> str:
        return f"http/1 {self._account} {self._endpoint.method} {self._base_url}{self._endpoint.path}"

    def validate(self, operation: str, arguments: Mapping[str, Any]) -> None:
        render(self._endpoint, self._base_url, operation, arguments, "k" * 40)

    def execute(self, dispatch: Dispatch) -> Reply:
        exchange = Exchange()
        try:
            message = self._rendered(dispatch)
            self._connections.send(message, exchange, auth=self._authenticate())
        except MemoryError:
            raise
        except Exception as exc:
            exchange.error = exc
        return verdict(self._endpoint, exchange)

    async def aexecute(self, dispatch: Dispatch) -> Reply:
        """Act, once, from async code."""
        exchange = Exchange()
        try:
            message = self._rendered(dispatch)
            await self._connections.asend(message, exchange, auth=self._authenticate())
        except MemoryError:
            raise
        except Exception as exc:
            exchange.error = exc
        return verdict(self._endpoint, exchange)

    def reconcile(self, dispatch: Dispatch) -> Answer:
        plan = self._looking_up(dispatch)
        try:
            message = next(plan)
            while True:
                reply = self._connections.send(self._complete(message), Exchange(), auth=self._authenticate())
                message = plan.send(reply)
        except StopIteration as done:
            answer: Answer = done.value
            return answer
        except Exception as exc:
            return Unavailable(described(exc))

    async def areconcile(self, dispatch: Dispatch) -> Answer:
        """Look for a receipt, from async code."""
        plan = self._looking_up(dispatch)
        try:
            message = next(plan)
            while True:
                reply = await self._connections.asend(self._complete(message), Exchange(), auth=self._authenticate())
                message = plan.send(reply)
        except StopIteration as done:
            answer: Answer = done.value
            return answer
        except Exception as exc:
            return Unavailable(described(exc))

    def tombstone(self, dispatch: Dispatch) -> Unavailable:
        """Say that this provider has no tombstones."""
        return Unavailable("an HTTP endpoint has no tombstones")

    def close(self) -> None:
        """Close the connections of plain code in this process, a sibling's too; a later request opens new ones."""
        self._connections.close()

    async def aclose(self) -> None:
        """Close the connections of the running event loop, a sibling's too; a later request opens new ones."""
        await self._connections.aclose()

    def _checked(self, endpoint: Endpoint) -> Endpoint:
        ours = {"content-type", "content-length", "host", "transfer-encoding", (endpoint.key_header or "").lower()}
        taken = [name for name, _ in self._headers if name.lower() in ours]
        if taken:
            raise InvalidArgument(f"headers= has {', '.join(taken)}, which this provider writes itself.")
        check_headers({endpoint.key_header: "k"} if endpoint.key_header is not None else {})
        return endpoint

    def _rendered(self, dispatch: Dispatch) -> Message:
        endpoint = self._endpoint
        return self._complete(render(endpoint, self._base_url, dispatch.operation, dispatch.arguments, dispatch.provider_key))

    def _complete(self, message: Message) -> Message:
        given = {name.lower() for name, _ in self._headers}
        own = [(name, value) for name, value in message.headers if name.lower() not in given]
        return Message(message.method, message.url, (*own, *self._headers), message.content)

    def _authenticate(self) -> Mapping[str, str]:
        return {} if self._auth is None else self._auth()

    def _looking_up(self, dispatch: Dispatch) -> Generator[Message, HttpReply, Answer]:
        if self._endpoint.lookup is None:
            return _nothing()
        return look_up(self._endpoint.lookup, self._base_url, dispatch)


def _nothing() -> Generator[Message, HttpReply, Answer]:
    """Ask nothing: no lookup is declared."""
    yield from ()
    return Unavailable("no lookup is declared for this endpoint")
