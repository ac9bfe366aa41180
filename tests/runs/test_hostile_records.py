"""Records that no run wrote, values that cannot be read any more, and runs taken back: named errors, and nothing done twice."""

from __future__ import annotations

import asyncio
import dataclasses
import struct
import sys

import pytest

from letitloop import (
    CodecError,
    DecodeError,
    Halt,
    LetItLoopError,
    MemoryStore,
    Retry,
    SchemaChanged,
    UnknownType,
    async_step,
    durable,
    step,
)
from letitloop.codecs import default_codecs
from letitloop.runs.history import forget_run, list_runs, rewind_run
from letitloop.runs.records import END, OK, START
from letitloop.wal.memory import MemoryFs
from tests.runs.helpers import Crash, crash, crashes

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def store():
    return MemoryStore()


# --- payloads that no run writes ---------------------------------------------------------------------------------------------


def _head(fingerprint=b"", started=1e9, took=1.0):
    return struct.pack("<BBIdf", 0, len(fingerprint), 0, started, took) + fingerprint


def _start(**odd):
    said = {
        "goal": "g",
        "function": "f",
        "named": True,
        "arguments": b"",
        "source": b"",
        "created": 1.0,
        "pid": 1,
        "instance": "",
        "parent": None,
        "version": "",
    }
    return default_codecs.encode(said | odd)


_encode = default_codecs.encode
_INF, _NAN = float("inf"), float("nan")
PAYLOADS = [
    b"",
    b"\xff",
    b"\0" * 17,
    b"\xc1" * 40,
    b"\0" * 64,
    _head(),
    _head() + _encode(5),
    _head() + _encode({}),
    _head() + b"\xc1\xff",
    _head(b"x" * 255)[:100],
    _head(started=_INF) + _encode(1),
    _head(started=_NAN, took=_NAN) + _encode(1),
    _head(started=1e300) + _encode(1),
    _head(started=-1e15) + _encode(1),
    *(_encode(value) for value in (5, None, [], {}, "x", {5: 6})),
    _start(goal=5, function=[], created="x", pid="x", instance=5, parent=7),
    _start(created=_INF),
    _start(created=1e300, pid=10**30),
    _start(created=_NAN),
    _start(goal=None, function=None, created=None, pid=None),
    _encode({"at": "x", "pid": "x", "in_flight": 5}),
    _encode({"at": 1.0, "pid": 1, "in_flight": [1, None, [1]]}),
    _encode({"at": _INF, "pid": -1, "in_flight": ["\x1b[31m"]}),
    _encode({"steps": 5, "at": "x", "error": 5}),
    _encode({"steps": [1], "at": 1.0, "error": b"\xc1"}),
    _encode({"steps": ["x", None], "at": _INF, "error": _encode({})}),
    _encode({"steps": list(range(10)), "at": 1.0, "error": _encode({"type": 5, "text": None, "args": 7, "state": 3})}),
    _head() + _encode({"type": 5, "text": None, "args": 7, "state": 3, "traceback": 9}),
    _head() + _encode({"type": "builtins:ValueError", "text": "x", "args": b"\xc1", "state": b"\xc1", "lacking": 5}),
    _head() + _encode({"type": "builtins:ValueError", "text": "x", "args": [b"\xc1"], "state": {"a": 5}, "lacking": [5]}),
    _head() + _encode({"type": "builtins:ValueError", "text": "x", "args": [5], "state": {5: 6}, "lacking": []}),
    _head() + _encode({"type": "builtins:UnicodeDecodeError", "text": "x", "args": [_encode(1)], "state": {}, "lacking": []}),
    _head() + _encode({"type": "\ud800:\ud800", "text": "\ud800\x1b[2J", "args": None, "state": None, "traceback": "\ud800"}),
    struct.pack("<Q", 0),
    struct.pack("<QQ", 0, 2**64 - 1),
    struct.pack("<QQ", 2**64 - 1, 0),
]
KEYS = [b"", b"a", b"bad", b"\xff\xfe", b"a#99999999999999999999", b"x>\xff"]


def _bad():
    raise ValueError("b")


def _plays(store, goal, *, crashing):
    @durable(goal_id=goal, store=store, sync="process", on_complete="restart")
    def job():
        total = step("a", abs, 1)
        try:
            step("bad", _bad)
        except ValueError:
            pass
        total += step("b", abs, 2)
        if crashing:
            crash()
        return total

    return job


def _named_only(what, *args, **kwargs):
    try:
        return what(*args, **kwargs)
    except (LetItLoopError, Halt, Crash):
        return None
    except ValueError as exc:
        if str(exc) != "b":  # the program's own, recorded
            raise
        return None


def _copy(store):
    other = MemoryStore()
    other.root = store.root
    for path, file in store._fs._files.items():
        handle = other._fs.open(path, write=True, create=True)
        MemoryFs.pwrite(other._fs, handle, bytes(file.data), 0)
        other._fs.close(handle)
    return other


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("kind", range(START, END + 2))
def test_a_record_that_no_run_writes_is_a_named_error_and_hides_no_other_run(kind, first):
    template = MemoryStore()
    _plays(template, "other", crashing=False)()
    crashes(_plays(template, "g", crashing=True))
    name = next(name for name in template.names("runs") if name.startswith("g-"))
    for payload in PAYLOADS:
        for key in KEYS if payload in (b"", PAYLOADS[6]) else KEYS[:3]:
            store = _copy(template)
            log = store.open_log("runs", name)
            kept = [(entry.kind, entry.key, log.read(entry)) for entry in log.entries if entry.kind >= START]
            if first:
                log.compact(lambda _: ())
            log.append(kind, key, payload)
            for record in kept if first else ():
                log.append(*record)
            log.close()
            runs = list_runs(store)
            assert {run.id for run in runs} == set(template.names("runs"))
            assert next(run for run in runs if run.id != name).status == "finished"
            assert all(isinstance(text, str) for run in runs for life in run.lives for text in life.in_flight)
            other = _copy(store)
            for crashing in (True, False):
                _named_only(_plays(store, "g", crashing=crashing))
            _named_only(rewind_run, other, name, "a")
            _named_only(rewind_run, other, name, "zz")
            _named_only(forget_run, other, name)


# --- a result that cannot be read any more -----------------------------------------------------------------------------------


@dataclasses.dataclass
class Point:
    x: int


@dataclasses.dataclass
class Wider:
    x: int
    y: int = 0


def _got_a_field(monkeypatch, store):
    Wider.__qualname__ = "Point"
    monkeypatch.setattr(sys.modules[__name__], "Point", Wider)


def _is_gone(monkeypatch, store):
    monkeypatch.delattr(sys.modules[__name__], "Point")


def _is_garbage(monkeypatch, store):
    log = store.open_log("runs", store.names("runs")[0])
    entry = next(entry for entry in log.entries if entry.kind == OK)
    log.append(OK, entry.key, log.read(entry)[:18] + b"\xc1")
    log.close()


CHANGES = [(_got_a_field, SchemaChanged), (_is_gone, UnknownType), (_is_garbage, DecodeError)]


@pytest.mark.parametrize(("change", "error"), CHANGES)
def test_a_result_that_cannot_be_read_is_no_failure_of_its_step(store, monkeypatch, change, error):
    calls, caught = [], []
    point = Point

    def make():
        calls.append("make")
        return point(1)

    @durable(goal_id="g", store=store)
    def job():
        for _ in range(3):
            try:
                step("make", make)
                break
            except Exception as exc:
                caught.append(type(exc))
        if dying:
            crash()
        step("fall back", calls.append, "fall back")
        return "done"

    dying = True
    crashes(job)
    dying = False
    change(monkeypatch, store)
    for _ in range(2):
        with pytest.raises(error):
            job()
    assert calls == ["make"]
    assert set(caught) == {error}


@pytest.mark.parametrize(("change", "error"), CHANGES)
async def test_an_async_result_that_cannot_be_read_is_no_failure_of_its_step(store, monkeypatch, change, error):
    calls = []
    point = Point

    async def make():
        calls.append("make")
        return point(1)

    @durable(goal_id="g", store=store)
    async def job():
        results = await asyncio.gather(*(async_step("make", make) for _ in range(1)), return_exceptions=True)
        if dying:
            crash()
        await async_step("fall back", calls.append, "fall back")
        return len(results)

    dying = True
    with pytest.raises(Crash):
        await job()
    dying = False
    change(monkeypatch, store)
    with pytest.raises(CodecError) as raised:
        await job()
    assert raised.type is error
    assert calls == ["make"]


# --- on_change="rerun" -------------------------------------------------------------------------------------------------------


def test_a_rerun_takes_back_nothing_that_was_recorded_since_the_run_was_opened(store):
    calls = []

    def call(name, *_):
        calls.append(name)
        return name, len(calls)

    @durable(goal_id="g", store=store, on_change="rerun")
    def job():
        new = step("new", call, "new") if life > 1 else None
        step("x", call, "x", 1 if life == 1 else 2)
        step("y", call, "y")
        if life < 3:
            crash()
        return new

    done = []
    for life in (1, 2):  # noqa: B007 - the workflow looks at it
        crashes(job)
        done.append(calls[:])
        calls.clear()
    life = 3
    assert job() == ("new", 1)
    assert done == [["x", "y"], ["new", "x", "y"]]
    assert not calls


async def test_a_rerun_takes_back_nothing_of_the_tasks_beside_it(store):
    calls = []

    async def call(name, *_):
        calls.append(name)
        return name

    @durable(goal_id="g", store=store, on_change="rerun")
    async def job():
        beside = await asyncio.gather(*(async_step(f"new {i}", call, i) for i in range(3))) if life > 1 else None
        await async_step("x", call, "x", min(life, 2))
        if life < 3:
            crash()
        return beside

    for life in (1, 2):  # noqa: B007 - the workflow looks at it
        with pytest.raises(Crash):
            await job()
    calls.clear()
    life = 3
    assert await job() == [0, 1, 2]
    assert not calls


def test_a_rerun_inside_a_step_takes_back_the_steps_of_that_call_alone(store):
    calls = []

    def note(name, value=None):
        calls.append(name)
        return value

    def outer(which):
        step("in", note, f"in {which}", life if which == "a" else 1)
        if life == 1:
            raise Crash
        return which

    @durable(goal_id="g", store=store, on_change="rerun")
    def job():
        for which in "ab":
            try:
                step("outer", outer, which)
            except Crash:
                pass
        if life == 1:
            crash()

    life = 1
    crashes(job)
    life = 2
    job()
    assert calls == ["in a", "in b", "in a"]


def test_attempts_of_what_was_taken_back_do_not_count(store):
    calls = []

    def flaky(_):
        calls.append(life)
        if calls.count(life) <= (1 if life == 1 else 2):
            raise OSError(life)
        return life

    @durable(goal_id="g", store=store, on_change="rerun")
    def job():
        result = step("x", retry=Retry(3, backoff=0))(flaky)(life)
        if life == 1:
            crash()
        return result

    life = 1
    crashes(job)
    life = 2
    assert job() == 2
    assert calls == [1, 1, 2, 2, 2]
