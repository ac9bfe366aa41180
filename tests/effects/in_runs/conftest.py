"""A store and its ledger, and one program for the tests of intents in runs: it is driven in sync and in async code."""

from __future__ import annotations

import asyncio

import pytest

from letitloop import DirectoryStore, Ledger, durable
from tests.interrupts import in_memory


@pytest.fixture
def store():
    with in_memory() as path:
        yield DirectoryStore(f"{path}/store")


@pytest.fixture
def ledger(store):
    return Ledger(store=store)


@pytest.fixture(params=["sync", "async"])
def program(request, store):
    """Make a durable function of a generator that yields what is to be done; it is called without arguments."""

    def make(body, **options):
        options = {"goal_id": "job", "store": store, "sync": "process", "on_complete": "return", **options}

        @durable(**options)
        def job():
            plan = body()
            value, go_on = None, plan.send
            while True:
                try:
                    order = go_on(value)
                except StopIteration as done:
                    return done.value
                try:
                    value, go_on = order.sync(), plan.send
                except BaseException as exc:
                    value, go_on = exc, plan.throw

        @durable(**options)
        async def ajob():
            plan = body()
            value, go_on = None, plan.send
            while True:
                try:
                    order = go_on(value)
                except StopIteration as done:
                    return done.value
                try:
                    value, go_on = await order.later(), plan.send
                except BaseException as exc:
                    value, go_on = exc, plan.throw

        if request.param == "sync":
            return job

        def call():
            return asyncio.run(ajob())

        call.durable = ajob
        return call

    return make
