"""An HTTP provider to call, sync or async, and the word for what its answer proves."""

from __future__ import annotations

import asyncio
import ssl

import httpx
import pytest

from letitloop.effects.provider import Dispatch, NotExecuted
from letitloop.effects.providers.http import Endpoint, HttpProvider, Lookup

KEY = "k" * 40
TRUSTING_NOBODY = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # loading the public certificates costs more than a test
NOT_SENT, REJECTED, UNKNOWN, SUCCEEDED = "not_sent", "rejected", "unknown", "succeeded"
BOTH = pytest.mark.parametrize("mode", ["sync", "async"])
SHORT = httpx.Timeout(10.0, read=0.2)

LOOKUP = Lookup(
    "/refunds?reference={provider_key}", items="/data", key="/reference", arguments={"amount_minor": "/amount"}, result="/id"
)


def dispatch(**arguments) -> Dispatch:
    return Dispatch(
        "shop", "order-42/refund", 1, 1, KEY, "refund", arguments or {"order_id": 42, "amount_minor": 1200}, 1_700_000_000.0
    )


def provider(url, *, timeout=10.0, options=None, **declared) -> HttpProvider:
    return HttpProvider(
        url,
        Endpoint("POST", "/orders/{order_id}/refunds", **declared),
        account="shop-1",
        timeout=timeout,
        **{"verify": TRUSTING_NOBODY, **(options or {})},
    )


def call(target, mode: str, method: str = "execute", *dispatches: Dispatch):
    """Call a method for each dispatch, and return the last answer."""
    if mode == "sync":
        answers = [getattr(target, method)(each) for each in dispatches]
        target.close()
        return answers[-1]

    async def calls():
        try:
            return [await getattr(target, "a" + method)(each) for each in dispatches]
        finally:
            await target.aclose()

    return asyncio.run(calls())[-1]


def verdict_of(reply) -> str:
    return reply.kind if isinstance(reply, NotExecuted) else type(reply).__name__.lower()
