"""Stripe: refunds, charges and payment intents, on the official SDK with its retries off."""

from __future__ import annotations

import importlib
from urllib.parse import urlsplit

from letitloop.effects.provider import Caps, Unavailable, Window
from letitloop.effects.providers.http_transport import Connections, Exchange, Message, require_httpx
from letitloop.effects.providers.http_verdict import described
from letitloop.effects.providers.stripe_rules import kind_of, listing, render, verdict
from letitloop.errors import InvalidArgument

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping
    from typing import Any

    import httpx
    from stripe import HTTPClient

    from letitloop.effects.provider import Answer, Dispatch, Reply
    from letitloop.effects.providers.http_transport import HttpReply

__all__ = ["StripeProvider"]

_API = "https://api.stripe.com"
_API_VERSION = "2025-03-31.basil"
_CAPS = Caps(
    # documented: at least 24 hours; an hour less for the clocks' difference and the journey
    redispatch=Window(23 * 3600.0, checks_body=True, stores_5xx=True),
    lookup="list",
    in_flight=True,
)


class StripeProvider:
    """Creates refunds, charges and payment intents at Stripe: one call, one request.

    The intent's provider key is Stripe's idempotency key, good for a resend within 23 hours of the first dispatch, and stands in
    the object's metadata as ``lil_intent``. A receipt is looked for in the list of the parent's objects (the refunds of a charge or
    payment intent, the charges and payment intents of a customer), every page; the search lags behind and is never asked. Without
    a customer the account's list since the first dispatch is read. Install with ``pip install "letitloop[stripe]"``.

    Arguments of an action are Stripe's parameters; ``amount_minor`` may stand for ``amount``. The result is the object as a dict; a
    payment intent's holds its ``client_secret``, and is recorded with it. A declined payment (402) is a certified failure.

    Args:
        api_key: a secret or restricted key, or what returns it for each request. It is neither recorded nor part of the identity.
        account: the id of the account that the key belongs to, ``acct_...``.
        connected_account: the connected account that is acted for.
        api_version: the version of Stripe's API, part of the identity: an upgrade of the SDK does not change it.
        timeout: seconds for each of connecting, sending, receiving and waiting for a free connection, or an ``httpx.Timeout``.
        base_url: where the API is.
        verify: a context with other certificates than the public ones.
        proxy: the address of a proxy.
        trust_env: whether proxies and certificates may come from the environment too.
        transport: makes another transport for plain code, in each process.
        async_transport: makes another transport for async code, in each event loop.

    Raises:
        InvalidArgument: the SDK is not installed, or an argument means nothing.

    Example:
        >>> stripe = StripeProvider("sk_test_1", account="acct_1")
        >>> stripe.identity()
        'stripe/1 acct_1 livemode=0 version=2025-03-31.basil'
        >>> stripe.validate("refund", {"charge": "ch_1", "amount_minor": 1200})
        >>> stripe.validate("refund", {"amount_minor": 1200})
        Traceback (most recent call last):
            ...
        letitloop.errors.InvalidArgument: a refund names the charge or the payment_intent, one of them. Nothing was sent.
    """

    name = "stripe"
    caps = _CAPS

    def __init__(
        self,
        api_key: str | Callable[[], str],
        *,
        account: str,
        connected_account: str | None = None,
        api_version: str = _API_VERSION,
        timeout: float | httpx.Timeout = 80.0,
        base_url: str = _API,
        verify: ssl.SSLContext | None = None,
        proxy: str | None = None,
        trust_env: bool = False,
        transport: Callable[[], httpx.BaseTransport] | None = None,
        async_transport: Callable[[], httpx.AsyncBaseTransport] | None = None,
    ) -> None:
        _require_sdk()
        for value in (account, connected_account):
            if value is not None and not value.startswith("acct_"):
                raise InvalidArgument(f"{value!r} is no account of Stripe's: its id begins with acct_.")
        parts = urlsplit(base_url)
        if parts.username or parts.password or parts.query or parts.path.strip("/") or not parts.hostname:
            raise InvalidArgument("base_url has to be an address with a host and nothing behind it.")
        self._api_key: Callable[[], str] = (lambda: api_key) if isinstance(api_key, str) else api_key
        self._account = account
        self._connected = connected_account
        self._version = api_version
        self._base_url = base_url.rstrip("/")
        self._livemode = _livemode(self._api_key())
        self._connections = Connections(
            timeout=timeout, verify=verify, proxy=proxy, trust_env=trust_env, transport=transport, async_transport=async_transport
        )

    def __repr__(self) -> str:
        return f"<StripeProvider {self.identity()}>"

    def identity(self) -> str:
        connected = "" if self._connected is None else f" connected={self._connected}"
        elsewhere = "" if self._base_url == _API else f" at={self._base_url}"
        return f"stripe/1 {self._account} livemode={self._livemode:d} version={self._version}{connected}{elsewhere}"

    def validate(self, operation: str, arguments: Mapping[str, Any]) -> None:
        render(operation, arguments, "k" * 40)

    def execute(self, dispatch: Dispatch) -> Reply:
        exchange = Exchange()
        try:
            path, parameters = self._rendered(dispatch)
            self._sdk(exchange).raw_request("post", path, **parameters)
        except MemoryError:
            raise
        except Exception as exc:
            exchange.error = exchange.error or exc
        return verdict(dispatch.operation, dispatch.provider_key, exchange)

    async def aexecute(self, dispatch: Dispatch) -> Reply:
        """Act, once, from async code."""
        exchange = Exchange()
        try:
            path, parameters = self._rendered(dispatch)
            await self._sdk(exchange).raw_request_async("post", path, **parameters)
        except MemoryError:
            raise
        except Exception as exc:
            exchange.error = exchange.error or exc
        return verdict(dispatch.operation, dispatch.provider_key, exchange)

    def reconcile(self, dispatch: Dispatch) -> Answer:
        try:
            path, plan = kind_of(dispatch.operation).path, listing(dispatch)
            query = next(plan)
            while True:
                exchange = Exchange()
                try:
                    self._sdk(exchange).raw_request("get", path, **query)
                except Exception as exc:
                    exchange.error = exchange.error or exc
                query = plan.send(_answered(exchange))
        except StopIteration as done:
            answer: Answer = done.value
            return answer
        except Exception as exc:
            return Unavailable(described(exc))

    async def areconcile(self, dispatch: Dispatch) -> Answer:
        """Look for a receipt, from async code."""
        try:
            path, plan = kind_of(dispatch.operation).path, listing(dispatch)
            query = next(plan)
            while True:
                exchange = Exchange()
                try:
                    await self._sdk(exchange).raw_request_async("get", path, **query)
                except Exception as exc:
                    exchange.error = exchange.error or exc
                query = plan.send(_answered(exchange))
        except StopIteration as done:
            answer: Answer = done.value
            return answer
        except Exception as exc:
            return Unavailable(described(exc))

    def tombstone(self, dispatch: Dispatch) -> Unavailable:
        """Say that Stripe has no tombstones."""
        return Unavailable("Stripe has no tombstones")

    def close(self) -> None:
        """Close the connections of plain code in this process; a later request opens new ones."""
        self._connections.close()

    async def aclose(self) -> None:
        """Close the connections of the running event loop; a later request opens new ones."""
        await self._connections.aclose()

    def _rendered(self, dispatch: Dispatch) -> tuple[str, dict[str, Any]]:
        parameters: dict[str, Any] = dict(render(dispatch.operation, dispatch.arguments, dispatch.provider_key))
        # said here too, where no default of the SDK can say otherwise
        parameters |= {"idempotency_key": dispatch.provider_key, "max_network_retries": 0}
        return kind_of(dispatch.operation).path, parameters

    def _sdk(self, exchange: Exchange) -> Any:
        """Return the SDK's client for one request, which it notes in the exchange."""
        import stripe

        key = self._api_key()
        if _livemode(key) != self._livemode:
            raise InvalidArgument(
                f"the key is not of livemode={self._livemode:d}, as this provider's identity has it. Nothing was sent."
            )
        return stripe.StripeClient(
            key,
            stripe_account=self._connected,
            stripe_version=self._version,
            base_addresses={"api": self._base_url},
            max_network_retries=0,
            http_client=_once(self._connections, exchange),
        )


def _livemode(key: str) -> bool:
    """Tell by its prefix whether a key moves real money."""
    kind, _, rest = key.partition("_")
    mode = rest.partition("_")[0]
    if kind not in ("sk", "rk") or mode not in ("live", "test"):
        raise InvalidArgument("the API key has to begin with sk_test_, rk_test_, sk_live_ or rk_live_.")
    return mode == "live"


def _answered(exchange: Exchange) -> HttpReply:
    """Return the answer, whatever the SDK made of it."""
    if exchange.reply is None:
        raise exchange.error or LookupError("no answer")
    return exchange.reply


def _require_sdk() -> None:
    require_httpx("stripe")
    try:
        importlib.import_module("stripe")
    except ImportError as exc:
        raise InvalidArgument(
            'StripeProvider needs the SDK of Stripe, which is not installed. Install it: pip install "letitloop[stripe]".'
        ) from exc


def _once(connections: Connections, exchange: Exchange) -> HTTPClient:
    """Return a transport for the SDK that sends one request, through connections that tell what they sent."""
    import stripe

    connection_error: type[Any] = stripe.APIConnectionError

    class Once(stripe.HTTPClient):
        """Answers where the SDK would retry, and where it would add what it measured of the last request."""

        name = "letitloop"

        def request_with_retries(
            self,
            method: str,
            url: str,
            headers: Mapping[str, str],
            post_data: Any = None,
            max_network_retries: int | None = None,
            *,
            _usage: list[str] | None = None,
        ) -> tuple[str, int, Mapping[str, str]]:
            try:
                reply = connections.send(_message(exchange, method, url, headers, post_data), exchange)
            except Exception as exc:
                exchange.error = exchange.error or exc
                raise connection_error(described(exc)) from exc
            return reply.content.decode("utf-8", "replace"), reply.status, reply.headers

        async def request_with_retries_async(
            self,
            method: str,
            url: str,
            headers: Mapping[str, str],
            post_data: Any = None,
            max_network_retries: int | None = None,
            *,
            _usage: list[str] | None = None,
        ) -> tuple[Any, int, Any]:
            try:
                reply = await connections.asend(_message(exchange, method, url, headers, post_data), exchange)
            except Exception as exc:
                exchange.error = exchange.error or exc
                raise connection_error(described(exc)) from exc
            return reply.content.decode("utf-8", "replace"), reply.status, reply.headers

        def close(self) -> None:
            """Leave the connections open: they are shared."""

        async def close_async(self) -> None:
            """Leave the connections open: they are shared."""

    return Once()


def _message(exchange: Exchange, method: str, url: str, headers: Mapping[str, str], post_data: Any) -> Message:
    if exchange.started or exchange.reply is not None:
        raise RuntimeError("the SDK wanted to send a request a second time, which was refused")
    content = post_data.encode() if isinstance(post_data, str) else b""
    return Message(method.upper(), url, (*headers.items(), ("Accept-Encoding", "identity")), content)
