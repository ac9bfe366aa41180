"""Lives of a program: forked, watched at their failpoints, ended there; and what a ledger's file tells afterwards."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import select
import signal
import sqlite3
import threading
import traceback

from letitloop import Ledger, failpoints
from letitloop.effects.states import allowed
from letitloop.errors import IntentFailed

_PATIENCE = 60.0  # seconds: for a machine that is busy, not for anything to happen


def outcome_of(work):
    """Call ``work`` and put what came of it in data."""
    try:
        value = work()
    except BaseException as exc:
        text = "" if isinstance(exc, IntentFailed) else f"{exc}"
        return {"raised": type(exc).__name__, "kind": getattr(exc, "kind", ""), "text": text}
    return {"value": value}


class Life:
    """A forked child that calls ``work(life)``, tells each failpoint it passes, and what came of it.

    ``failpoint`` is what ``LETITLOOP_FAILPOINT`` would say; ``stops`` names points at which it waits for :meth:`go`; ``quiet``
    keeps it from telling the points it passes, so that it never waits for a reader.
    """

    def __init__(self, work, *, failpoint="", stops=(), watch=None, quiet=False):
        self._stops, self._watch, self._quiet = stops, watch, quiet
        gc.freeze()  # or the first collection in the child copies every page
        told, self._tell = os.pipe()
        self._wait, go = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._live(work, failpoint, (told, go))
        os.close(self._tell)
        os.close(self._wait)
        self._told, self._go, self._rest = told, go, b""
        self.passed = []
        self.outcome = None
        self.code = None

    def _live(self, work, failpoint, others):
        code = 1
        try:
            gc.disable()
            for handle in others:
                os.close(handle)
            failpoints._rules[:] = [failpoints._Rule(part) for part in failpoint.split(",") if part]
            failpoints.observe(None if self._quiet else self._seen)
            outcome = outcome_of(lambda: work(self))
            os.write(self._tell, f"= {json.dumps(outcome, default=repr)}\n".encode())
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def _seen(self, name):
        os.write(self._tell, f"{name}\n".encode())
        if name in self._stops:
            os.read(self._wait, 1)
        if self._watch is not None:
            self._watch(name)

    # --- its parent ----------------------------------------------------------------------------------------------------------

    def until(self, name, n=1):
        """Wait until it has passed a point for the n-th time; return whether it did, and has not ended before."""
        while self.passed.count(name) < n:
            if not self._read():
                return False
        return True

    def _read(self):
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._told], [], [], _PATIENCE)
            assert ready, f"stuck after {self.passed}"
            more = os.read(self._told, 65536)
            if not more:
                return False
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        if line.startswith(b"= "):
            self.outcome = json.loads(line[2:])
        else:
            self.passed.append(line.decode())
        return True

    def go(self):
        """Let it go on from a stop."""
        os.write(self._go, b"g")

    def kill(self):
        """End it with SIGKILL, wherever it is."""
        os.kill(self.pid, signal.SIGKILL)
        return self.end()

    def end(self):
        """Wait for its end; return what came of its work, None if it died before it could tell."""
        while self._read():
            pass
        self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self._told)
        os.close(self._go)
        return self.outcome


def lived(work, **options):
    """Let a life run to its end, and return its outcome."""
    life = Life(work, **options)
    life.end()
    return life.outcome


class Cancelling:
    """Cancels a task of async code when it passes a point for the n-th time, from whichever of its threads that is."""

    def __init__(self, point, n=1):
        self.point, self.left = point, n
        self.loop = self.task = None
        self.ended = threading.Event()

    def watch(self, name):
        if name != self.point or self.task is None:
            return
        self.left -= 1
        if self.left == 0:
            if threading.current_thread() is threading.main_thread():
                self.task.cancel()
            elif threading.current_thread().name == "letitloop-provider":
                self.loop.call_soon_threadsafe(self.task.cancel)
                assert self.ended.wait(_PATIENCE)  # the provider goes on when nobody waits for it any more
            else:
                self.loop.call_soon_threadsafe(self.task.cancel)

    def run(self, make):
        """Run a coroutine, and wait until the threads that it left behind have ended too."""

        async def main():
            self.loop = asyncio.get_running_loop()
            self.task = asyncio.ensure_future(make())
            self.task.add_done_callback(lambda _: self.ended.set())
            try:
                return await self.task
            finally:
                for thread in threading.enumerate():
                    if thread.name == "letitloop-provider":
                        await asyncio.to_thread(thread.join)

        return asyncio.run(main())


# --- what is in a ledger's file ----------------------------------------------------------------------------------------------


def row_of(path, key="k"):
    """Return what the file says of an intent, asked without the ledger's own code; None if nothing."""
    if not os.path.exists(path):
        return None
    connection = sqlite3.connect(path, timeout=30)
    connection.row_factory = sqlite3.Row
    try:
        found = connection.execute("select * from intent where key=?", (key,)).fetchone()
    except sqlite3.OperationalError as exc:
        if "no such table" in str(exc):
            return None
        raise
    finally:
        connection.close()
    return None if found is None else dict(found)


def state_of(path, key="k"):
    row = row_of(path, key)
    return None if row is None else row["state"]


def check_history(path, bank=None):
    """Hold every event in a ledger's file against the machine, and the bank's requests against the events."""
    connection = sqlite3.connect(path, timeout=30)
    connection.row_factory = sqlite3.Row
    events = connection.execute("select * from event order by seq").fetchall()
    rows = {(row["namespace"], row["key"]): row for row in connection.execute("select * from intent")}
    connection.close()
    now, sent = {}, {}
    for event in events:
        where = (event["namespace"], event["key"])
        state, attempt, epoch = now.get(where, ("", 1, 0))
        assert event["before"] == state, (where, state, dict(event))
        if event["before"] != event["after"]:
            assert allowed(event["before"], event["after"], event["actor"]), dict(event)
        assert event["epoch"] >= epoch, dict(event)
        assert event["attempt"] == attempt + (event["before"] == "FAILED" and event["after"] == "DISPATCHED"), dict(event)
        if event["after"] == "DISPATCHED" and event["before"] != "DISPATCHED":
            dispatches = sent.setdefault(where, [])
            assert not dispatches or event["epoch"] > dispatches[-1][1], dict(event)
            dispatches.append((event["attempt"], event["epoch"]))
        now[where] = (event["after"], event["attempt"], event["epoch"])
    assert {where: tuple(row[name] for name in ("state", "attempt", "epoch")) for where, row in rows.items()} == now
    if bank is not None:
        everything = [one for each in sent.values() for one in each]
        posted = [(request["attempt"], request["epoch"]) for request in bank.requests()]
        assert all(posted.count(one) <= everything.count(one) for one in posted), (posted, everything)
        keys = {}
        for request in bank.requests():
            assert keys.setdefault(request["key"], (request["attempt"], request["arguments"])) == (
                request["attempt"],
                request["arguments"],
            )
    return now


def ledger(path, **options):
    return Ledger(os.fspath(path), **options)
