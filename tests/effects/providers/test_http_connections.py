"""The connections of an HTTP provider: pools, forks, loops, threads and interruptions; a request is sent once."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading

import httpx
import pytest

from letitloop.effects.provider import Succeeded
from letitloop.effects.providers.http import Endpoint
from tests.effects.providers import http_server as faults
from tests.effects.providers.http_calls import BOTH, KEY, NOT_SENT, SUCCEEDED, UNKNOWN, call, dispatch, provider, verdict_of
from tests.effects.providers.http_server import Server

# --- a connection is used again ----------------------------------------------------------------------------------------------


@BOTH
def test_pool_exhausted(mode, exchanges):
    gate = threading.Event()
    limits = httpx.Limits(max_connections=1)
    options = {
        "transport": lambda: httpx.HTTPTransport(limits=limits),
        "async_transport": lambda: httpx.AsyncHTTPTransport(limits=limits),
    }
    with Server(faults.commits_then_replies_when(gate)) as server:
        target = provider(server.url, timeout=httpx.Timeout(10.0, pool=0.1), options=options)
        if mode == "sync":
            first = []
            thread = threading.Thread(target=lambda: first.append(target.execute(dispatch())))
            thread.start()
            server.arrived.wait()
            second = target.execute(dispatch())
            gate.set()
            thread.join()
            target.close()
            first = first[0]
        else:

            async def both():
                one = asyncio.create_task(target.aexecute(dispatch()))
                await asyncio.to_thread(server.arrived.wait)
                two = await target.aexecute(dispatch())
                gate.set()
                try:
                    return await one, two
                finally:
                    await target.aclose()

            first, second = asyncio.run(both())
        assert (verdict_of(first), verdict_of(second)) == (SUCCEEDED, NOT_SENT)
        assert "PoolTimeout" in second.certificate
        assert [each.started for each in exchanges] == [1, 0]
        assert len(server.committed) == 1


@BOTH
def test_pooled_connection_that_was_closed_while_idle(mode, exchanges):
    with Server() as server:
        target = provider(server.url)
        if mode == "sync":
            first = target.execute(dispatch())
            server.close_idle()
            second = target.execute(dispatch())
            target.close()
        else:

            async def both():
                one = await target.aexecute(dispatch())
                server.close_idle()
                try:
                    return one, await target.aexecute(dispatch())
                finally:
                    await target.aclose()

            first, second = asyncio.run(both())
        assert (verdict_of(first), verdict_of(second)) == (SUCCEEDED, SUCCEEDED)
        assert [each.started for each in exchanges] == [1, 1]
        assert (len(server.received), len(server.committed), server.connections) == (2, 2, 2)


@BOTH
def test_pooled_connection_that_closes_as_the_request_is_sent(mode, exchanges):
    with Server(faults.first_well_then_resets_unread) as server:
        reply = call(provider(server.url), mode, "execute", dispatch(), dispatch())
        assert verdict_of(reply) == UNKNOWN
        assert [each.started for each in exchanges] == [1, 1]
        assert (len(server.committed), server.connections) == (1, 1)


@BOTH
def test_pooled_connection_on_which_the_server_acts_and_closes(mode, exchanges):
    with Server(faults.first_well_then(faults.commits_then_closes)) as server:
        reply = call(provider(server.url), mode, "execute", dispatch(), dispatch())
        assert verdict_of(reply) == UNKNOWN
        assert "Server disconnected without sending a response" in reply.reason
        assert [each.started for each in exchanges] == [1, 1]
        assert (len(server.committed), server.connections) == (2, 1)


# --- interruptions -----------------------------------------------------------------------------------------------------------


def test_ctrl_c_after_the_request_is_not_swallowed():
    def interrupts(peer, request):
        peer.server.commit(request)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        peer.server.released.wait()

    assert threading.current_thread() is threading.main_thread()
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with Server(interrupts) as server:
            target = provider(server.url)
            with pytest.raises(KeyboardInterrupt):
                target.execute(dispatch())
            assert len(server.committed) == 1
            target.close()
    finally:
        signal.signal(signal.SIGINT, previous)


def test_cancellation_after_the_request_is_not_swallowed():
    async def cancelled():
        task = asyncio.create_task(target.aexecute(dispatch()))
        await asyncio.to_thread(server.arrived.wait)
        task.cancel()
        try:
            await task
        finally:
            await target.aclose()

    with Server(faults.commits_then_hangs) as server:
        target = provider(server.url)
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(cancelled())


@BOTH
def test_memory_error_is_not_swallowed(mode):
    def full(request):
        raise MemoryError

    mock = httpx.MockTransport(full)
    with pytest.raises(MemoryError):
        call(
            provider("http://shop.invalid", options={"transport": lambda: mock, "async_transport": lambda: mock}),
            mode,
            "execute",
            dispatch(),
        )


# --- the connections ---------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_a_forked_child_opens_its_own_connection_and_leaves_the_parent_its():
    with Server() as server:
        target = provider(server.url)
        assert verdict_of(target.execute(dispatch())) == SUCCEEDED
        pid = os.fork()
        if pid == 0:
            try:
                os._exit(0 if isinstance(target.execute(dispatch()), Succeeded) else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert verdict_of(target.execute(dispatch())) == SUCCEEDED
        target.close()
    assert (len(server.committed), server.connections) == (3, 2)


def test_each_event_loop_has_its_own_connections():
    with Server() as server:
        target = provider(server.url)
        for _ in range(2):
            assert verdict_of(call(target, "async", "execute", dispatch(), dispatch())) == SUCCEEDED
    assert (len(server.committed), server.connections) == (4, 2)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_loops_that_ended_without_closing_are_forgotten():
    with Server() as server:
        target = provider(server.url)
        for _ in range(3):
            asyncio.run(target.aexecute(dispatch()))
        assert len(target._connections._async) == 1
        target._connections._async.clear()
        gc.collect()


def test_threads_share_one_pool():
    with Server() as server:
        target = provider(server.url)
        replies = []
        threads = [threading.Thread(target=lambda: replies.append(target.execute(dispatch()))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [verdict_of(reply) for reply in replies] == [SUCCEEDED] * 8
        assert len(target._connections._plain) == 1
        target.close()


def test_a_closed_provider_opens_again():
    with Server() as server:
        target = provider(server.url)
        target.close()
        assert verdict_of(call(target, "sync", "execute", dispatch())) == SUCCEEDED
        assert verdict_of(call(target, "sync", "execute", dispatch())) == SUCCEEDED


def test_a_sibling_shares_the_connections():
    with Server() as server:
        target = provider(server.url)
        charges = target.sibling(Endpoint("PUT", "/charges/{provider_key}", key_header=None))
        target.execute(dispatch())
        charges.execute(dispatch())
        charges.close()
    assert [request.target for request in server.received] == ["/orders/42/refunds", f"/charges/{KEY}"]
    assert server.connections == 1
    assert charges.identity() != target.identity()
