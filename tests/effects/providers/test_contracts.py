"""The providers that come with letitloop pass the suite for providers, against a real database and a real server."""

from __future__ import annotations

import json
import sqlite3
import threading
from contextlib import closing, contextmanager
from types import MappingProxyType

import pytest

from letitloop.effects.provider import Window
from letitloop.effects.providers import HttpProvider, SqliteProvider
from letitloop.effects.providers.http_endpoint import Endpoint, Lookup
from letitloop.testing import Held, ProviderContract
from tests.effects.providers.http_server import Server, closed_port

NO_NETWORK = dict.fromkeys(
    ["dispatches", "lose_reply", "fail_after_commit", "hold", "delay", "duplicate", "unreachable"],
    "there is no network between a program and its database",
)


class TestSqliteProvider(ProviderContract):
    operation = "take"
    lacks = NO_NETWORK

    @pytest.fixture(autouse=True)
    def _shop(self, tmp_path):
        self.path = str(tmp_path / "shop.db")
        with closing(sqlite3.connect(self.path)) as shop:
            shop.execute("create table taken(item text)")

    def make_provider(self):
        return SqliteProvider(self.path, {"take": self.take})

    @staticmethod
    def take(connection, arguments):
        connection.execute("insert into taken values(:item)", arguments)
        return connection.execute("select count(*) from taken where item = :item", arguments).fetchone()[0]

    def make_arguments(self, number):
        return {"item": f"lamp {number}"}

    def bad_arguments(self):
        return {"item": object()}

    def effects(self):
        with closing(sqlite3.connect(self.path)) as shop:
            return shop.execute("select count(*) from taken").fetchone()[0]


class HttpContract(ProviderContract):
    operation = "refund"
    secrets = ("a secret token",)
    declared = MappingProxyType({})
    by_key = True

    @pytest.fixture(autouse=True)
    def _service(self):
        self.mode, self.made = "", []
        self.go, self.there, self.done = threading.Event(), threading.Event(), threading.Event()
        with Server(self._serve) as self.server:
            self.url = self.server.url
            yield
            self.go.set()
            for provider in self.made:
                provider.close()

    def make_provider(self):
        endpoint = Endpoint("POST", "/refunds", **self.declared)
        provider = HttpProvider(
            self.server.url if self.mode != "unreachable" else f"http://127.0.0.1:{self.nobody}",
            endpoint,
            account="shop-1",
            timeout=0.2 if self.mode == "delay" else 60.0,
            auth=lambda: {"Authorization": "a secret token"},
        )
        self.made.append(provider)
        return provider

    def make_arguments(self, number):
        return {"amount": number, "currency": "eur"}

    def bad_arguments(self):
        return {"amount": object()}

    def effects(self):
        return len(self.server.committed)

    def dispatches(self):
        posts = [one for one in self.server.received if one.method == "POST"]
        return [(one.target, one.header("idempotency-key"), one.body) for one in posts]

    # --- the service ---------------------------------------------------------------------------------------------------------

    def _serve(self, peer, request):
        if request.method == "GET":
            key = request.target.rpartition("/")[2]
            peer.reply(*((200, self.server.by_key[key]) if key in self.server.by_key else (404, {})))
            return
        mode = self.mode
        if mode in ("hold", "delay"):
            self.there.set()
            assert self.go.wait(20)
        for _ in range(2 if mode == "duplicate" else 1):
            receipt = self._refund(request)
        self.done.set()
        if mode == "lose_reply":
            peer.close()
        elif mode == "fail_after_commit":
            peer.reply(503, {"error": "overloaded"})
        elif mode != "delay":
            peer.reply(201, receipt)
        else:
            peer.close()

    def _refund(self, request):
        key = request.header("idempotency-key") or ""
        known = self.server.by_key.get(key.strip('"'))
        if known is not None and self.by_key:
            return known
        self.server.commit(request)
        receipt = {"id": f"re_{len(self.server.committed)}", "reference": key.strip('"'), **json.loads(request.body)}
        self.server.by_key[key.strip('"')] = receipt
        return receipt

    @contextmanager
    def _in(self, mode):
        self.go.clear()
        self.there.clear()
        self.done.clear()
        self.mode = mode
        try:
            yield Held(self._release, lambda: self.there.wait(20))
        finally:
            self.mode = ""
            self.go.set()

    def _release(self):
        self.go.set()
        assert self.done.wait(20)

    def lose_reply(self):
        return self._in("lose_reply")

    def fail_after_commit(self):
        return self._in("fail_after_commit")

    def hold(self):
        return self._in("hold")

    def delay(self):
        return self._in("delay")

    def duplicate(self):
        return self._in("duplicate")

    @contextmanager
    def unreachable(self):
        self.nobody = closed_port()
        self.mode = "unreachable"
        try:
            yield
        finally:
            self.mode = ""


RECEIPTS = Lookup(
    "/refunds/{provider_key}",
    consistency="strong",
    key="/reference",
    arguments={"amount": "/amount", "currency": "/currency"},
)


class TestHttpWithoutAnything(HttpContract):
    by_key = False


class TestHttpWithReceipts(HttpContract):
    by_key = False
    declared = MappingProxyType({"lookup": RECEIPTS})


class TestHttpWithKeys(HttpContract):
    declared = MappingProxyType({"lookup": RECEIPTS, "window": Window(3600.0)})


class TestHttpWithKeysAlone(HttpContract):
    declared = MappingProxyType({"window": Window(3600.0)})
