"""Speed and size of the LangGraph saver, as ratios to SqliteSaver and to raw append+fdatasync, in one run; raw data as JSON.

    python tests/bench/langgraph.py [--steps 1000] [--rounds 3] [--json FILE] [--dir DIRECTORY]

Each workload is a loop graph of that many steps with ``durability="sync"``. The raw writer appends what a step stores to a file and
syncs it; it is interleaved with the savers, so that all of them meet the same disk. Figures are medians of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import operator
import os
import random
import shutil
import statistics
import string
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Annotated, TypedDict

sys.path[:] = [
    entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent
]  # this file's own name

from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph

from letitloop_langgraph import LetItLoopCheckpointSaver

warnings.simplefilter("ignore")
MESSAGE = 500
FIXED = 10_000
HERE = {"configurable": {"thread_id": "bench", "checkpoint_ns": ""}, "recursion_limit": 10**6}


class Growing(TypedDict):
    messages: Annotated[list, operator.add]
    n: int


class Fixed(TypedDict):
    state: dict
    n: int


def text(rng, size):
    return "".join(rng.choices(string.ascii_letters, k=size))


def growing(steps, kind):
    rng = random.Random(1)
    make = (lambda n: text(rng, MESSAGE)) if kind == "text" else (lambda n: HumanMessage(text(rng, MESSAGE), id=str(n)))
    graph = StateGraph(Growing)
    graph.add_node("step", lambda state: {"messages": [make(state["n"])], "n": state["n"] + 1})
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", lambda state: END if state["n"] >= steps else "step", ["step", END])
    return graph, {"messages": [], "n": 0}


def fixed(steps):
    rng = random.Random(1)
    graph = StateGraph(Fixed)
    graph.add_node("step", lambda state: {"state": {str(at): text(rng, 100) for at in range(FIXED // 100)}, "n": state["n"] + 1})
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", lambda state: END if state["n"] >= steps else "step", ["step", END])
    return graph, {"state": {}, "n": 0}


class Raw:
    """What a disk asks for one durable append."""

    def __init__(self, directory):
        self.handle = os.open(Path(directory) / "raw", os.O_WRONLY | os.O_CREAT)
        self.at = 0
        self.times = []

    def append(self, size):
        began = time.perf_counter()
        os.pwrite(self.handle, b"x" * size, self.at)
        os.fdatasync(self.handle)
        self.times.append(time.perf_counter() - began)
        self.at += size


def timed(saver, raw, size):
    """Measure what put and put_writes take; every eighth put a raw append is made beside it."""
    spent = {"put": [], "put_writes": []}
    put, put_writes = saver.put, saver.put_writes

    def timed_put(config, checkpoint, metadata, new_versions):
        began = time.perf_counter()
        done = put(config, checkpoint, metadata, new_versions)
        spent["put"].append(time.perf_counter() - began)
        if len(spent["put"]) % 8 == 0:
            raw.append(size)
        return done

    def timed_put_writes(config, writes, task_id, task_path=""):
        began = time.perf_counter()
        put_writes(config, writes, task_id, task_path)
        spent["put_writes"].append(time.perf_counter() - began)

    saver.put, saver.put_writes = timed_put, timed_put_writes
    return spent


def each(function, times):
    measured = []
    for _ in range(times):
        began = time.perf_counter()
        function()
        measured.append(time.perf_counter() - began)
    return statistics.median(measured) * 1000


def size_of(directory):
    return sum(file.stat().st_size for file in Path(directory).rglob("*") if file.is_file() and file.name != "raw")


class Ours:
    name = "letitloop"

    def __init__(self, directory):
        self.directory = directory
        self.saver = LetItLoopCheckpointSaver(store=directory)

    def reopened(self):
        self.saver.close()
        self.saver.room._threads.clear()
        return self.saver

    def close(self):
        self.saver.close()


class Sqlite:
    name = "sqlite"

    def __init__(self, directory):
        import sqlite3

        self.directory = directory
        Path(directory).mkdir(parents=True, exist_ok=True)
        self._connect = lambda: SqliteSaver(sqlite3.connect(Path(directory) / "db", check_same_thread=False))
        self.saver = self._connect()

    def reopened(self):
        self.saver.conn.close()
        self.saver = self._connect()
        return self.saver

    def close(self):
        self.saver.conn.close()


class InMemory:
    """What a graph costs without a disk: the most that any saver could come to."""

    name = "memory"

    def __init__(self, directory):
        self.saver = InMemorySaver()

    def close(self):
        pass


def workload(make, cls, directory, size):
    rig = cls(Path(directory) / cls.name)
    raw = Raw(directory)
    graph, inputs = make()
    saver = rig.saver
    spent = timed(saver, raw, size)
    began = time.perf_counter()
    graph.compile(checkpointer=saver).invoke(inputs, HERE, durability="sync")
    wall = time.perf_counter() - began
    del saver.put, saver.put_writes
    tenth = max(1, len(spent["put"]) // 10)
    found = {
        "wall_s": wall,
        "put_total_s": sum(spent["put"]),
        "put_writes_total_s": sum(spent["put_writes"]),
        "both_total_s": sum(spent["put"]) + sum(spent["put_writes"]),
        "put_first_tenth_ms": statistics.median(spent["put"][:tenth]) * 1000,
        "put_last_tenth_ms": statistics.median(spent["put"][-tenth:]) * 1000,
        "raw_ms": statistics.median(raw.times) * 1000 if raw.times else 0.0,
        "get_latest_warm_ms": each(lambda: saver.get_tuple(HERE), 50),
        "list_10_ms": each(lambda: list(saver.list(HERE, limit=10)), 10),
        "list_10_no_namespace_ms": each(lambda: list(saver.list({"configurable": {"thread_id": "bench"}}, limit=10)), 3),
    }
    cold = []
    for _ in range(5):
        reopened = rig.reopened()
        gc.collect()  # of the graphs that ran before, or it falls into the measurement
        began = time.perf_counter()
        assert reopened.get_tuple(HERE) is not None
        cold.append((time.perf_counter() - began) * 1000)
    found["cold_open_ms"] = statistics.median(cold)
    rig.close()
    found["file_bytes"] = size_of(rig.directory)
    os.close(raw.handle)
    return found


def disk_part(directory, steps):
    """Measure the put's bytes instead of its time: what reaches the disk in the first and in the last tenth of a growing thread."""
    from letitloop import DirectoryStore
    from letitloop.wal.files import default_fs

    class Counting:
        def __init__(self, inner):
            self.inner, self.written = inner, 0

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def pwrite(self, handle, data, offset):
            self.written += len(bytes(data).rstrip(b"\0"))
            return self.inner.pwrite(handle, data, offset)

    fs = Counting(default_fs())
    saver = LetItLoopCheckpointSaver(store=DirectoryStore(Path(directory) / "disk", fs=fs))
    sizes = []
    put = saver.put

    def counted(*args):
        before = fs.written
        done = put(*args)
        sizes.append(fs.written - before)
        return done

    saver.put = counted
    graph, inputs = growing(steps, "text")
    graph.compile(checkpointer=saver).invoke(inputs, HERE, durability="sync")
    saver.close()
    tenth = max(1, len(sizes) // 10)
    return {"first_tenth_bytes": statistics.median(sizes[:tenth]), "last_tenth_bytes": statistics.median(sizes[-tenth:])}


def threads(cls, directory, count=16, steps=100):
    rig = cls(Path(directory) / f"threads-{cls.name}")
    graph, _ = growing(steps, "text")
    app = graph.compile(checkpointer=rig.saver)

    def work(number):
        config = {"configurable": {"thread_id": str(number)}, "recursion_limit": 10**6}
        app.invoke({"messages": [], "n": 0}, config, durability="sync")

    workers = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    began = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    wall = time.perf_counter() - began
    rig.close()
    return {"wall_s": wall, "steps_per_s": count * steps / wall}


def threads_at_the_saver(cls, directory, count=16, steps=100):
    """Measure what the saver itself does for 16 threads: the graph's own work, which holds the interpreter, is left out."""
    rig = cls(Path(directory) / f"direct-{cls.name}")
    saver = rig.saver
    barrier = threading.Barrier(count + 1)
    words = [text(random.Random(number), MESSAGE) for number in range(steps)]

    def work(number):
        items = []
        config = {"configurable": {"thread_id": str(number), "checkpoint_ns": ""}}
        barrier.wait()
        for at in range(steps):
            items = [*items, words[at]]
            version = float(at + 1)
            made = {
                "v": 4,
                "id": str(uuid6(clock_seq=at)),
                "ts": "",
                "channel_values": {"messages": items, "n": at},
                "versions_seen": {},
            }
            made |= {"channel_versions": {"messages": version, "n": version}, "updated_channels": ["messages", "n"]}
            config = saver.put(config, made, {"source": "loop", "step": at}, made["channel_versions"])
            saver.put_writes(config, [("messages", [items[-1]]), ("n", at)], str(uuid6()), "~__pregel_pull, step")

    workers = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for worker in workers:
        worker.start()
    barrier.wait()
    began = time.perf_counter()
    for worker in workers:
        worker.join()
    wall = time.perf_counter() - began
    rig.close()
    return {"wall_s": wall, "steps_per_s": count * steps / wall}


async def in_asyncio(make_saver, steps=200, count=8):
    async with make_saver() as saver:
        graph, _ = growing(steps, "text")
        app = graph.compile(checkpointer=saver)
        began = time.perf_counter()
        configs = [{"configurable": {"thread_id": str(n)}, "recursion_limit": 10**6} for n in range(count)]
        await asyncio.gather(*(app.ainvoke({"messages": [], "n": 0}, config, durability="sync") for config in configs))
        return {"wall_s": time.perf_counter() - began}


class AsyncOurs:
    def __init__(self, directory):
        self.saver = LetItLoopCheckpointSaver(store=directory)

    async def __aenter__(self):
        return self.saver

    async def __aexit__(self, *exc):
        self.saver.close()


def medians(rounds):
    """Return the median of each figure of several rounds."""
    return {what: statistics.median(one[what] for one in rounds) for what in rounds[0]}


def measure(directory, steps, rounds):
    """Measure everything, the savers one after the other in each round: the disk is not the same a minute later."""
    workloads = {
        "growing text": (lambda: growing(steps, "text"), MESSAGE),
        "growing messages": (lambda: growing(steps, "message"), MESSAGE),
        "fixed 10 KB": (lambda: fixed(steps), FIXED),
    }
    fewer = max(10, steps // 10)
    raw = {}
    for number in range(rounds):
        place = Path(directory) / str(number)

        def note(name, figures):
            raw.setdefault(name, []).append(figures)
            print(name, {what: round(value, 3) for what, value in figures.items()}, file=sys.stderr)

        for name, (make, size) in workloads.items():
            here = place / name.replace(" ", "-")
            here.mkdir(parents=True)
            for cls in (Ours, Sqlite):
                note(f"{name}: {cls.name}", workload(make, cls, here, size))
        note("disk part", disk_part(place, steps))
        for cls in (Ours, Sqlite, InMemory):
            note(f"16 threads: {cls.name}", threads(cls, place, steps=fewer))
            note(f"16 threads at the saver: {cls.name}", threads_at_the_saver(cls, place, steps=fewer))
        tasks = {
            "letitloop": lambda place=place: AsyncOurs(place / "tasks"),
            "sqlite": lambda place=place: AsyncSqliteSaver.from_conn_string(str(place / "tasks.db")),
        }
        for name, make_saver in tasks.items():
            note(f"8 tasks: {name}", asyncio.run(in_asyncio(make_saver, steps // 5)))
        shutil.rmtree(place)
    return raw


def table(results, steps):
    """Return the figures of the table, each with its bar and whether it is met."""
    text_, message, fixed_ = (results[f"{name}: letitloop"] for name in ("growing text", "growing messages", "fixed 10 KB"))
    text_sql, message_sql, fixed_sql = (results[f"{name}: sqlite"] for name in ("growing text", "growing messages", "fixed 10 KB"))
    disk, tasks = results["disk part"], (results["8 tasks: letitloop"]["wall_s"], results["8 tasks: sqlite"]["wall_s"])
    own = steps * MESSAGE

    def ratio(what, which="letitloop"):
        return results[f"{what}: {which}"]["steps_per_s"] / results[f"{what}: sqlite"]["steps_per_s"]

    direct, rate, most = ratio("16 threads at the saver"), ratio("16 threads"), ratio("16 threads", "memory")
    return [
        ("growing messages: file / own bytes (text)", text_["file_bytes"] / own, "<=", 3.0, text_sql["file_bytes"] / own),
        (
            "growing messages: file / own bytes (HumanMessage)",
            message["file_bytes"] / own,
            "<=",
            3.0,
            message_sql["file_bytes"] / own,
        ),
        (
            "growing messages: put + put_writes / SqliteSaver (text)",
            text_["both_total_s"] / text_sql["both_total_s"],
            "<=",
            0.35,
            1.0,
        ),
        ("growing messages: the same (HumanMessage)", message["both_total_s"] / message_sql["both_total_s"], "<=", 0.35, 1.0),
        ("fixed 10 KB: put + put_writes / SqliteSaver", fixed_["both_total_s"] / fixed_sql["both_total_s"], "<=", 0.8, 1.0),
        ("last tenth / first tenth, bytes of put", disk["last_tenth_bytes"] / disk["first_tenth_bytes"], "<=", 1.5, 0.0),
        ("put / raw append+fdatasync (text)", text_["put_total_s"] / steps / text_["raw_ms"] * 1000, "", 0.0, 0.0),
        ("latest get_tuple, warm, ms (text)", text_["get_latest_warm_ms"], "<=", 0.5, text_sql["get_latest_warm_ms"]),
        ("cold open and get_tuple, ms (text)", text_["cold_open_ms"], "<=", 60.0, text_sql["cold_open_ms"]),
        ("list(limit=10) with namespace, ms (text)", text_["list_10_ms"], "<=", 3.0, text_sql["list_10_ms"]),
        ("list(limit=10) without, ms (text)", text_["list_10_no_namespace_ms"], "<=", 3.0, text_sql["list_10_no_namespace_ms"]),
        ("16 threads at the saver: steps per second / SqliteSaver", direct, ">=", 3.0, 1.0),
        ("16 threads of a graph: steps per second / SqliteSaver", rate, "", 0.0, 1.0),
        ("16 threads of a graph: InMemorySaver / SqliteSaver", most, "", 0.0, 1.0),
        ("8 tasks: wall time / AsyncSqliteSaver", tasks[0] / tasks[1], "", 0.0, 1.0),
    ]


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=1000)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--json", type=Path)
    options.add_argument("--dir", help="where to write; a temporary directory by default")
    chosen = options.parse_args()
    directory = tempfile.mkdtemp(prefix="letitloop-bench-", dir=chosen.dir)
    try:
        raw = measure(directory, chosen.steps, chosen.rounds)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    rows = table({name: medians(rounds) for name, rounds in raw.items()}, chosen.steps)
    missed = 0
    print(f"{'figure':<58}{'ours':>10}  {'bar':>9}  {'sqlite':>10}")
    for name, value, sign, bar, other in rows:
        met = not sign or (value <= bar if sign == "<=" else value >= bar)
        missed += not met
        shown = f"{sign} {bar:g}" if sign else ""
        print(f"{name:<58}{value:>10.3f}  {shown:>9}  {other or float('nan'):>10.3f}{'' if met else '  MISSED'}")
    if chosen.json:
        chosen.json.write_text(json.dumps({"steps": chosen.steps, "rounds": raw, "table": rows}, indent=1))
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
