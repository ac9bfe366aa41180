"""Flows without what CrewAI prints and imports, and one that counts in a persisted state; and their deaths."""

from __future__ import annotations

import tests.crewai.scripted  # noqa: F401  # sets the environment first

# isort: split
from crewai.flow import Flow, listen, start
from pydantic import BaseModel


class Died(Exception):
    pass


class Quiet(Flow):
    """A flow without what CrewAI prints and imports."""

    _skip_auto_memory = True

    def __init__(self, **options):
        super().__init__(suppress_flow_events=True, **options)


class Counts(BaseModel):
    id: str = ""
    a: int = 0
    b: int = 0
    seen: tuple[str, ...] = ()


def counting(ran, base, down):
    """A flow of three methods that add to a persisted state; it dies in the third while ``down``."""

    class Counting(base):
        @start()
        def one(self):
            ran.append("one")
            self.state.a += 1
            return "one"

        @listen(one)
        def two(self, said):
            ran.append("two")
            self.state.b += 1
            self.state.seen = (*self.state.seen, said)
            return "two"

        @listen(two)
        def three(self, said):
            ran.append("three")
            if down:
                raise Died
            return said, self.state.a, self.state.b, self.state.seen

    return Counting
