"""localstripe within the test's process, behind what it lacks: idempotency keys, time windows of lists, and faults.

localstripe is used as it is and none of it is copied. Its store pickles itself into the system's temporary directory on every
write, which is switched off; its webhooks too.
"""

from __future__ import annotations

import asyncio
import json
import threading
import warnings
from dataclasses import dataclass, field

import localstripe.resources as local
from aiohttp import web

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of its handlers that are plain functions
    from localstripe.server import app

HEADERS = {"Request-Id": "req_local"}


@dataclass
class Stored:
    body: bytes
    status: int = 0
    answer: bytes = b""

    @property
    def running(self) -> bool:
        return not self.status


@dataclass
class LocalStripe:
    """The server's log and its faults.

    ``fault`` is what happens to a POST with a key after it was carried out: ``drop``, ``500``, or ``gate`` (the answer waits).
    """

    posts: list[str] = field(default_factory=list)  # the keys of the POSTs that arrived
    gets: list[str] = field(default_factory=list)
    executed: int = 0
    fault: str = ""
    page: int = 100
    keys: dict[str, Stored] = field(default_factory=dict)
    arrived: threading.Event = field(default_factory=threading.Event)
    gate: threading.Event = field(default_factory=threading.Event)

    def reset(self) -> None:
        for name, value in vars(LocalStripe()).items():
            setattr(self, name, value)
        local.store.clear()

    def objects(self, kind: str) -> list:
        return [value for key, value in local.store.items() if key.startswith(f"{kind}:")]

    async def serve(self, request: web.Request, handler) -> web.StreamResponse:
        if request.method == "GET":
            return await self._list(request, handler)
        key = request.headers.get("Idempotency-Key")
        if key is None:
            return await handler(request)
        self.posts.append(key)
        body = request.path.encode() + b"?" + await request.read()
        known = self.keys.get(key)
        if known is not None and known.running:
            return _error(409, "idempotency_error", "idempotency_key_in_use")
        if known is not None and known.body != body:
            return _error(400, "idempotency_error", None)
        if known is not None:
            replayed = {**HEADERS, "Idempotent-Replayed": "true"}
            return web.Response(status=known.status, body=known.answer, headers=replayed, content_type="application/json")
        stored = self.keys[key] = Stored(body)
        response = await handler(request)
        if response.status in (400, 401, 403, 404, 429):  # refused before execution: not stored
            del self.keys[key]
            return response
        self.executed += response.status == 200
        answer, status = response.body, response.status
        if self.fault == "500":
            answer, status = b'{"error": {"type": "api_error"}}', 500
        elif self.fault == "gate":
            self.arrived.set()
            await asyncio.to_thread(self.gate.wait)
        stored.answer, stored.status = answer, status
        if self.fault == "drop":
            request.transport.abort()
        return web.Response(status=status, body=answer, headers=HEADERS, content_type="application/json")

    async def _list(self, request: web.Request, handler) -> web.StreamResponse:
        """Give a list what localstripe refuses: a time window, a customer of payment intents, a page of this server's size."""
        self.gets.append(str(request.rel_url))
        query = dict(request.query)
        since = int(query.pop("created[gte]", 0))
        customer = query.pop("customer", None) if request.path == "/v1/payment_intents" else None
        if "limit" in query:
            query["limit"] = str(min(int(query["limit"]), self.page))
        response = await handler(request.clone(rel_url=request.rel_url.with_query(query)))
        page = json.loads(response.body)
        if response.status == 200 and "data" in page:
            page["data"] = [item for item in page["data"] if item["created"] >= since and customer in (None, item.get("customer"))]
        return web.Response(status=response.status, body=json.dumps(page), headers=HEADERS, content_type="application/json")


def _error(status: int, kind: str, code: str | None) -> web.Response:
    error = {"type": kind, "message": "the key was refused", **({"code": code} if code else {})}
    return web.json_response({"error": error}, status=status, headers=HEADERS)


class Running:
    """localstripe on a loopback port, in a thread with an event loop of its own."""

    def __init__(self) -> None:
        self.local = LocalStripe()
        local.Store.dump_to_disk = local.Store.try_load_from_disk = lambda _store: None
        local.schedule_webhook = lambda _event: None

        @web.middleware
        async def outermost(request, handler):
            return await self.local.serve(request, handler)

        app.middlewares.insert(0, outermost)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.port = self._do(self._start())

    def close(self) -> None:
        self.local.gate.set()
        self._do(self._runner.cleanup())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _do(self, what):
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(20)

    async def _start(self) -> int:
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        return site._server.sockets[0].getsockname()[1]
