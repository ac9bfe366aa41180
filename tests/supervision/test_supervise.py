"""``supervise``: functions in processes that really die; what the caller gets."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import decimal
import enum
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import NamedTuple

import pytest

import letitloop
from letitloop import GeneratorFunction, InvalidArgument, async_step, durable, supervise
from tests.supervision.helpers import DEADLINE, die, environment, lives, python, quick, script

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


class Colour(enum.Enum):
    RED = 1


class Pair(NamedTuple):
    left: int
    right: str


@dataclasses.dataclass
class Report:
    title: str
    when: datetime.datetime
    parts: tuple[Pair, ...]


RESULTS = [
    None,
    0,
    2**80,
    float("inf"),
    "text",
    b"\0\xff",
    [1, [2, (3,)]],
    {1: "a", "1": "b", (1, 2): {3}},
    Colour.RED,
    Pair(1, "x"),
    Report("r", datetime.datetime(2024, 5, 6, tzinfo=datetime.timezone.utc), (Pair(1, "x"),)),
    decimal.Decimal("1.10"),
    Path("a/b"),
    "x" * 3_000_000,
]


@supervise(**quick)
def give_back(value):
    return value


@supervise(start="spawn", **quick)
def give_back_from_afar(value):
    return value


@pytest.mark.parametrize("value", RESULTS, ids=lambda value: type(value).__name__)
def test_the_caller_gets_the_functions_own_result(value):
    for found in (give_back(value), give_back_from_afar(value)):
        assert found == value
        assert type(found) is type(value)


def test_a_function_that_dies_is_called_again_in_another_process(tmp_path):
    @supervise(**quick)
    def fragile(word, *, times):
        if lives(tmp_path / "lives") <= times:
            die()
        return word, os.getpid()

    word, pid = fragile("done", times=3)
    assert word == "done"
    assert pid != os.getpid()
    assert lives(tmp_path / "lives") == 5


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_durable_function_goes_on_where_it_was(tmp_path, start, capfd):
    program = f"""
        from letitloop import durable, step, supervise
        @supervise(backoff=0, start="{start}")
        @durable(goal_id="report")
        def report(n):
            parts = []
            for part in range(n):
                parts.append(step("part", os.getpid))
                if parts[-1] == os.getpid() and life() < 3: die()
            return parts
        if __name__ == "__main__":
            parts = report(3)
            assert len(set(parts)) == 3, parts
            assert os.getpid() not in parts
            print(os.path.getsize("lives"), [run.status for run in report.runs], len(report.runs.show(3).lives))
    """
    done = python(tmp_path, str(script(tmp_path, program)))
    assert done.stdout == "3 ['finished'] 3\n"
    assert "restart 2 now; resuming report at step 2 of 2 recorded" in done.stderr


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.parametrize("how", ["script", "module", "-c", "directory"])
def test_each_way_to_start_a_program(tmp_path, start, how):
    text = f"""
        import dataclasses
        from letitloop import supervise
        @dataclasses.dataclass
        class Answer:
            words: tuple
        @supervise(backoff=0, start="{start}")
        def work(*words):
            if life() < 3: die()
            return Answer(words)
        if __name__ == "__main__":
            print(work("a", 1), sys.argv[1:], flush=True)
    """
    (tmp_path / "package").mkdir()
    path = script(tmp_path / "package", text, "__main__.py")
    (tmp_path / "package" / "__init__.py").touch()
    words = {
        "script": [str(script(tmp_path, text))],
        "module": ["-m", "package"],
        "-c": ["-c", path.read_text()],
        "directory": ["package"],
    }[how]
    done = python(tmp_path, *words, "-v")
    assert done.stdout == "Answer(words=('a', 1)) ['-v']\n"
    assert os.path.getsize(tmp_path / "lives") == 3


def test_under_pytest_with_its_capturing(tmp_path):
    test = """
        from letitloop import supervise
        @supervise(backoff=0)
        def forked(): return print("in the child") or 1
        @supervise(backoff=0, start="spawn")
        def spawned(): return 2
        def test_both(): assert (forked(), spawned()) == (1, 2)
    """
    script(tmp_path, test, "test_it.py")
    done = python(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib", "test_it.py")
    assert "1 passed" in done.stdout


def test_from_threads_at_the_same_time(tmp_path):
    @supervise(**quick)
    def work(n):
        if lives(tmp_path / f"lives-{n}") < 3:
            die()
        return n, os.getpid()

    found = {}

    def call(n):
        found[n] = work(n)

    threads = [threading.Thread(target=call, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {n: value[0] for n, value in found.items()} == {n: n for n in range(6)}
    assert len({value[1] for value in found.values()}) == 6


def test_nested(tmp_path):
    @supervise(**quick)
    def inner(n):
        if lives(tmp_path / "inner") < 3:
            die()
        return n + 1

    @supervise(**quick)
    def outer(n):
        value = inner(n)
        if lives(tmp_path / "outer") < 3:
            die(signal.SIGSEGV)
        return value + inner(value)

    assert outer(1) == 5
    assert lives(tmp_path / "outer") == 4


def test_the_death_of_an_outer_process_ends_the_inner_one(tmp_path):
    program = """
        from letitloop import supervise
        @supervise(backoff=0)
        def inner():
            if os.path.exists("again"): return "done"
            print("ready", os.getppid(), flush=True)
            signal.pause()
        @supervise(backoff=0)
        def outer(): return inner()
        if __name__ == "__main__": print(outer())
    """
    process = subprocess.Popen(
        [sys.executable, str(script(tmp_path, program))], stdout=-1, stderr=-1, text=True, cwd=tmp_path, env=environment()
    )
    outer = int(process.stdout.readline().split()[1])
    (tmp_path / "again").touch()
    os.kill(outer, signal.SIGKILL)
    out, _ = process.communicate(timeout=DEADLINE)  # both streams come to their end: nobody is left
    assert out == "done\n"


async def test_async_functions_leave_the_loop_free(tmp_path):
    @supervise(**quick)
    async def work(n):
        await asyncio.sleep(0)
        if lives(tmp_path / f"lives-{n}") < 3:
            die()
        return n

    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    ticking = asyncio.ensure_future(tick())
    assert await asyncio.gather(work(1), work(2)) == [1, 2]
    ticking.cancel()
    assert ticks > 2


async def test_a_cancelled_task_ends_its_process_which_is_told(tmp_path):
    source, sink = os.pipe()

    @supervise(**quick)
    async def work():
        try:
            os.write(sink, b"ready")
            await asyncio.sleep(3000)
        finally:
            os.write(sink, b"finally")

    task = asyncio.ensure_future(work())
    loop = asyncio.get_running_loop()
    assert await loop.run_in_executor(None, os.read, source, 100) == b"ready"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    os.close(sink)
    assert await loop.run_in_executor(None, os.read, source, 100) == b"finally"
    assert await loop.run_in_executor(None, os.read, source, 100) == b""  # nobody has the other end any more
    os.close(source)


async def test_a_durable_async_function(tmp_path):
    @supervise(**quick)
    @durable(goal_id="async")
    async def work():
        found = [await async_step("pid", os.getpid) for _ in range(2)]
        if lives(tmp_path / "lives") < 3:
            die()
        return found

    first, second = await work()
    assert first == second
    assert lives(tmp_path / "lives") == 4


def test_nothing_is_left_open():
    def descriptors():
        return sorted(os.listdir("/proc/self/fd"))

    if not os.path.exists("/proc/self/fd"):
        pytest.skip("this system does not list a process's descriptors")
    give_back(1)
    before = descriptors(), threading.active_count()
    for _ in range(20):
        give_back(1)
    give_back_from_afar(1)
    assert (descriptors(), threading.active_count()) == before
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    assert handlers[0] is signal.default_int_handler


# --- what is refused


def test_what_is_refused():
    with pytest.raises(InvalidArgument, match="is no function"):
        supervise(3)
    with pytest.raises(InvalidArgument, match="start"):
        supervise(start="thread")
    with pytest.raises(InvalidArgument, match="max_restarts"):
        supervise(max_restarts=-1)
    with pytest.raises(InvalidArgument, match="stall"):
        supervise(stall=0)

    def generator():
        yield 1

    with pytest.raises(GeneratorFunction):
        supervise(generator)


def test_a_fresh_interpreter_must_be_able_to_find_the_function():
    @supervise(start="spawn", **quick)
    def local():
        return 1

    with pytest.raises(InvalidArgument, match="not at the top level of a module"):
        local()
    with pytest.raises(InvalidArgument, match="argument of give_back_from_afar"):
        give_back_from_afar(threading.Lock())


def test_it_has_the_functions_name_signature_and_runs():
    @supervise
    @durable(goal_id="named")
    def named(n: int) -> int:
        """Say so."""
        return n

    assert (named.__name__, named.__doc__) == ("named", "Say so.")
    assert named(3) == 3
    assert [run.goal_id for run in named.runs] == ["named"]
    assert named.runs.forget(3)
    assert letitloop.supervise is supervise


def test_methods(tmp_path):
    class Agent:
        def __init__(self, name):
            self.name = name

        @supervise(**quick)
        def work(self, n):
            if lives(tmp_path / "lives") < 2:
                die()
            return f"{self.name} {n}"

    assert Agent("a").work(1) == "a 1"
