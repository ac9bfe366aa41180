"""Three workflows that are killed everywhere: 20 steps, a fan-out of five, nested scopes, a marker, a caught failure."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from letitloop import async_step, atomic_marker, carry, durable, scope, step
from letitloop.testing import CallLog

FAN_OUT = 5


class Work:
    """Steps that count what they really do."""

    def __init__(self, evidence: Path) -> None:
        self.calls = CallLog(evidence)

    def add(self, name: str, number: int) -> dict[str, object]:
        with self.calls.call(name):
            return {"name": name, "value": number + 1, "tuple": (number, str(number))}

    async def aadd(self, name: str, number: int) -> dict[str, object]:
        with self.calls.call(name):
            await asyncio.sleep(0)
            return {"name": name, "value": number + 1, "tuple": (number, str(number))}

    def fail(self, name: str) -> None:
        with self.calls.call(name):
            raise ValueError(f"{name} cannot be done")

    async def afail(self, name: str) -> None:
        self.fail(name)

    def step(self, name: str, number: int) -> dict[str, object]:
        done = step(name, self.add, name, number)
        self.calls.returned(name)
        return done

    async def astep(self, name: str, number: int) -> dict[str, object]:
        done = await async_step(name, self.aadd, name, number)
        self.calls.returned(name)
        return done


def sync_workflow(evidence: Path) -> object:
    work = Work(evidence)

    @durable(goal_id="sync")
    def goal(start: int) -> list[object]:
        out: list[object] = [work.step(f"first-{index}", start + index) for index in range(4)]
        for branch in range(FAN_OUT):
            with scope(f"branch-{branch}"):
                out.append(work.step(f"fan-{branch}", branch))
        with scope("outer"):
            out.append(work.step("outer-1", 1))
            with scope("inner"):
                out += [work.step("inner-1", 1), work.step("inner-2", 2)]
            out.append(work.step("outer-2", 2))
        try:
            step("fails", work.fail, "fails")
        except ValueError as error:
            out.append(repr(error))
        out.append(work.step("after-failure", 3))
        work.calls.returned("fails")  # from here on it is history
        with atomic_marker("notify") as act:
            if act:
                work.step("notify", 4)
        out += [work.step(f"last-{index}", index) for index in range(4)]
        return out

    return goal(10)


def threaded_workflow(evidence: Path) -> object:
    work = Work(evidence)

    def branch(number: int) -> list[object]:
        with scope(f"branch-{number}"):
            return [work.step(f"fan-{number}-1", number), work.step(f"fan-{number}-2", number)]

    @durable(goal_id="threaded")
    def goal(start: int) -> list[object]:
        out: list[object] = [work.step("first", start)]
        with ThreadPoolExecutor(FAN_OUT) as pool:
            out += [future.result() for future in [pool.submit(carry(branch), number) for number in range(FAN_OUT)]]
        with scope("outer"), scope("inner"):
            out += [work.step("inner-1", 1), work.step("inner-2", 2)]
        try:
            step("fails", work.fail, "fails")
        except ValueError as error:
            out.append(repr(error))
        out.append(work.step("after-failure", 3))
        work.calls.returned("fails")
        with atomic_marker("notify") as act:
            if act:
                work.step("notify", 4)
        out += [work.step(f"last-{index}", index) for index in range(4)]
        return out

    return goal(10)


def async_workflow(evidence: Path) -> object:
    work = Work(evidence)

    async def branch(number: int) -> list[object]:
        async with scope(f"branch-{number}"):
            return [await work.astep(f"fan-{number}-1", number), await work.astep(f"fan-{number}-2", number)]

    @durable(goal_id="async")
    async def goal(start: int) -> list[object]:
        out: list[object] = [await work.astep("first", start)]
        out += await asyncio.gather(*(branch(number) for number in range(FAN_OUT)))
        async with scope("outer"), scope("inner"):
            out += await asyncio.gather(work.astep("inner-1", 1), work.astep("inner-2", 2))
        try:
            await async_step("fails", work.afail, "fails")
        except ValueError as error:
            out.append(repr(error))
        out.append(await work.astep("after-failure", 3))
        work.calls.returned("fails")
        async with atomic_marker("notify") as act:
            if act:
                await work.astep("notify", 4)
        out += [await work.astep(f"last-{index}", index) for index in range(4)]
        return out

    return asyncio.run(goal(10))


# One call more than run at a time may run again: a failure counts as survived once a later step stands in its scope, so a kill
# within the step after it makes both run again.
WORKFLOWS = {
    "sync": (sync_workflow, 1 + 1),
    "threaded": (threaded_workflow, FAN_OUT + 1),
    "async": (async_workflow, FAN_OUT + 1),
}
"""The workflow, and how many of its calls may run again after one kill."""
