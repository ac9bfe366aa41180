"""Programs that act: what they ask for, as a step or through the ledger, in sync and in async code."""

from __future__ import annotations

from typing import NamedTuple

from letitloop import Ledger, async_step, step
from tests.effects.acting import ARGUMENTS, KEY, SHOP, Bank


class Act(NamedTuple):
    """What a program asks for: an action through the ledger."""

    ledger: Ledger
    bank: Bank
    key: str = KEY
    options: dict | None = None
    arguments: dict = ARGUMENTS

    def sync(self):
        return self.ledger.run(SHOP, self.key, self.bank, self.arguments, **self.options or {})

    async def later(self):
        return await self.ledger.arun(SHOP, self.key, self.bank, self.arguments, **self.options or {})


class Do(NamedTuple):
    """What a program asks for: a step."""

    name: str
    fn: object
    arguments: tuple = ()

    def sync(self):
        return step(self.name, self.fn, *self.arguments)

    async def later(self):
        return await async_step(self.name, self.fn, *self.arguments)


class Ends(Exception):
    """The end of a drive that the next one goes on from."""


class Once:
    """A step that fails the first time."""

    def __init__(self, error=Ends):
        self.error, self.calls = error, 0

    def __call__(self):
        self.calls += 1
        if self.calls == 1:
            raise self.error
        return "done"


def the_durable(job):
    return getattr(job, "durable", job)
