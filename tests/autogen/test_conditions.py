"""Termination conditions in later lives: what is on record is not asked again, and what they keep is what it was."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from dataclasses import dataclass, field
from functools import partial

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import TerminatedException, TerminationCondition
from autogen_agentchat.conditions import (
    ExternalTermination,
    FunctionalTermination,
    MaxMessageTermination,
    SourceMatchTermination,
    TextMentionTermination,
    TimeoutTermination,
    TokenUsageTermination,
)
from autogen_agentchat.messages import StopMessage
from autogen_agentchat.teams import RoundRobinGroupChat, SelectorGroupChat
from autogen_core.models import UserMessage

from letitloop.adapters.autogen import AutoGenStateSerializer
from tests.autogen.scripted import Scripted

HANG = 30
"""Seconds after which something hangs; nothing is measured."""
ASKED: list[int] = []
"""How often each condition is asked in this life; no life gives it back, since its name is told to nobody in a condition."""


class Died(Exception):
    """Stands for the death of a program in the middle of a model call."""


def count():
    globals()["ASKED"].append(1)


@pytest.fixture(autouse=True)
def _nothing_asked():
    ASKED.clear()


# --- conditions that would say something else if they were asked again -------------------------------------------------------


class Passing:
    """What is true from the second life on: a deadline, a file, a button."""

    passed = False


def deadline(world):
    return FunctionalTermination(lambda messages: count() or world.passed)


def async_deadline(world):
    async def passed(messages):
        await asyncio.sleep(0)
        return count() or world.passed

    return FunctionalTermination(passed)


def button(world):
    condition = ExternalTermination()
    if world.passed:
        condition.set()
    return condition


def timeout(world):
    return TimeoutTermination(0 if world.passed else 3600)


class Own(TerminationCondition):
    """A condition of the user's, as AutoGen says how to write one."""

    def __init__(self, world):
        self.world = world
        self._terminated = False

    @property
    def terminated(self):
        return self._terminated

    async def __call__(self, messages):
        if self._terminated:
            raise TerminatedException("over")
        count()
        self._terminated = self.world.passed
        return StopMessage(content="passed", source="own") if self._terminated else None

    async def reset(self):
        self._terminated = False


PASSING = {"function": deadline, "async": async_deadline, "button": button, "timeout": timeout, "own": Own}
AROUND = {
    "alone": lambda one: one,
    "or": lambda one: one | MaxMessageTermination(30),
    "and": lambda one: one & MaxMessageTermination(1) & TextMentionTermination("go"),
    "both": lambda one: (TextMentionTermination("never") | one) & MaxMessageTermination(1),
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("kind", PASSING)
async def test_what_is_true_now_ends_the_run_at_its_next_check(tmp_path, kind, around):
    """Not at one that is on record, and not by a hang."""
    world = Passing()
    for dies_at in (4, None):
        client = Scripted(lambda m, s, at=dies_at: Died() if len(m) == at else f"heard {len(m)}")
        condition = AROUND[around](PASSING[kind](world))
        team = RoundRobinGroupChat([AssistantAgent(one, client) for one in "ab"], termination_condition=condition)
        with AutoGenStateSerializer(session_id="passing", store=tmp_path / "store") as durability:
            durability.wrap_team(team)
            if dies_at:
                with pytest.raises(RuntimeError, match="Died"):
                    await asyncio.wait_for(team.run(task="go"), HANG)
            else:
                result = await asyncio.wait_for(team.run(task="go"), HANG)
                assert [one.source for one in result.messages] == ["user", "a", "b", "a"]
                assert len(ASKED) == (kind in ("function", "async", "own"))
                assert len(client.asked) == 1
        world.passed = True
        ASKED.clear()


# --- conditions that keep something ------------------------------------------------------------------------------------------


class Keeps(TerminationCondition):
    """Ends a run at its fifth check, by what it keeps in an attribute."""

    terminated = False

    def __init__(self):
        self.kept = self.nothing()

    async def __call__(self, messages):
        count()
        return StopMessage(content=f"{self.kept}", source="keeps") if self.more(messages) >= 5 else None

    async def reset(self):
        self.kept = self.nothing()


@dataclass
class Helper:
    seen: int = 0


@dataclass
class Deep:
    helpers: list[Helper] = field(default_factory=lambda: [Helper()])


class Number(Keeps):
    nothing = int

    def more(self, messages):
        self.kept += 1
        return self.kept


class Messages(Keeps):
    nothing = list

    def more(self, messages):
        self.kept.append(list(messages))
        return len(self.kept)


class Sources(Keeps):
    nothing = dict

    def more(self, messages):
        self.kept.setdefault(messages[-1].source, []).append(len(messages))
        return sum(map(len, self.kept.values()))


class Some(Keeps):
    nothing = set

    def more(self, messages):
        self.kept.add(len(self.kept))
        return len(self.kept)


class Last(Keeps):
    nothing = partial(deque, maxlen=5)

    def more(self, messages):
        self.kept.append(1)
        return len(self.kept)


class Helped(Keeps):
    nothing = Deep

    def more(self, messages):
        self.kept.helpers[0].seen += 1
        return self.kept.helpers[0].seen


class Late(Keeps):
    """Makes its attribute when it is first asked, and has a class attribute that is one of its own then."""

    nothing = bool
    number = 0

    def more(self, messages):
        self.number += 1
        self.made = [*getattr(self, "made", ()), self.number]
        return len(self.made)

    async def reset(self):
        self.number = 0
        del self.made


class Slots(Keeps):
    __slots__ = ("slot",)
    nothing = int

    def more(self, messages):
        self.slot = getattr(self, "slot", 0) + 1
        return self.slot

    async def reset(self):
        self.slot = 0


class Combined(TerminationCondition):
    """A combination of the user's own."""

    def __init__(self, *parts):
        self.parts = parts

    @property
    def terminated(self):
        return False

    async def __call__(self, messages):
        count()
        said = [await one(messages) for one in self.parts]
        return said[0] if len(messages) and said[0] else None

    async def reset(self):
        for one in self.parts:
            await one.reset()


class Counting(MaxMessageTermination):
    async def __call__(self, messages):
        count()
        return await super().__call__(messages)


def closed_over():
    seen = 0

    def check(messages):
        nonlocal seen
        count()
        seen += 1
        return seen >= 5

    return FunctionalTermination(check)


def helped_by_a_function():
    seen = {"n": 0}

    def more():
        seen["n"] += 1
        return seen["n"]

    async def check(messages):
        count()
        await asyncio.sleep(0)
        return more() >= 5

    return FunctionalTermination(check)


class Checker:
    def __init__(self):
        self.seen = []

    def check(self, messages):
        count()
        self.seen.append(len(messages))
        return len(self.seen) >= 5

    __call__ = check


def with_a_list(seen, messages):
    count()
    seen.append(1)
    return len(seen) >= 5


CHECKS = 0


def of_the_module(messages):
    global CHECKS
    count()
    CHECKS += 1
    return CHECKS >= 5


KEEPING = {
    "number": Number,
    "list": Messages,
    "dict": Sources,
    "set": Some,
    "deque": Last,
    "dataclass": Helped,
    "late": Late,
    "slots": Slots,
    "combined": lambda: Combined(MaxMessageTermination(5), TextMentionTermination("never")),
    "combined again": lambda: Combined(Combined(Counting(5)), FunctionalTermination(lambda messages: False)),
    "subclass": lambda: Counting(5),
    "variable": closed_over,
    "function's function": helped_by_a_function,
    "method": lambda: FunctionalTermination(Checker().check),
    "callable": lambda: FunctionalTermination(Checker()),
    "partial": lambda: FunctionalTermination(partial(with_a_list, [])),
    "module": lambda: FunctionalTermination(of_the_module),
}


@pytest.mark.parametrize("dies_at", [2, 4, 5])
@pytest.mark.parametrize("kind", KEEPING)
async def test_what_a_condition_keeps(tmp_path, caplog, kind, dies_at):
    """Nothing on record is asked again, and the run is as long as it would be."""
    for life in range(3):
        globals()["CHECKS"] = 0  # as in a new process
        client = Scripted(lambda m, s, life=life: Died() if len(m) == dies_at and not life else f"heard {len(m)}")
        condition = KEEPING[kind]() | TokenUsageTermination(100_000) | SourceMatchTermination(["nobody"])
        team = RoundRobinGroupChat([AssistantAgent(one, client) for one in "ab"], termination_condition=condition)
        with AutoGenStateSerializer(session_id="keeping", store=tmp_path / "store") as durability:
            durability.wrap_team(team)
            ASKED.clear()
            if not life:
                with pytest.raises(RuntimeError, match="Died"):
                    await asyncio.wait_for(team.run(task="go"), HANG)
                continue
            result = await asyncio.wait_for(team.run(task="go"), HANG)
            assert [one.source for one in result.messages] == ["user", *"abab"]
            each = 3 if kind == "combined again" else 1
            assert len(ASKED) == (each * (6 - dies_at) if life == 1 else 0)
            if life == 1:
                reason = result.stop_reason
            assert result.stop_reason == reason
    assert not [one for one in caplog.records if one.name == "letitloop"]


async def test_a_judge_is_asked_once(tmp_path):
    """A condition that asks a model: its question holds what it counts."""

    class Judge(TerminationCondition):
        terminated = False

        def __init__(self, client):
            self.client, self.number = client, 0

        async def __call__(self, messages):
            self.number += 1
            asked = UserMessage(content=f"{self.number}: is {messages[-1].content!r} the end?", source="judge")
            answer = await self.client.create([asked])
            return StopMessage(content="judged", source="judge") if answer.content == "yes" else None

        async def reset(self):
            self.number = 0

    questions = []
    for life in range(3):
        judge = Scripted(lambda m, s: "yes" if "5" in m[0].content else "no")
        client = Scripted(lambda m, s, life=life: Died() if len(m) == 4 and not life else f"heard {len(m)}")
        team = RoundRobinGroupChat([AssistantAgent(one, client) for one in "ab"], termination_condition=Judge(judge))
        with AutoGenStateSerializer(session_id="judge", store=tmp_path / "store") as durability:
            durability.wrap_team(team)
            if life:
                assert (await asyncio.wait_for(team.run(task="go"), HANG)).stop_reason == "judged"
            else:
                with pytest.raises(RuntimeError, match="Died"):
                    await asyncio.wait_for(team.run(task="go"), HANG)
        questions.append([one[0].content for one, _ in judge.asked])
    assert [len(one) for one in questions] == [3, 2, 0]
    assert [one[0] for one in questions[0] + questions[1]] == list("12345")


async def test_what_a_selector_keeps(tmp_path):
    """The same, of a function that chooses who speaks."""
    for life in range(3):
        turn, asked = 0, []

        def choose(thread):
            nonlocal turn
            globals()["ASKED"].append(1)
            turn += 1
            return "ab"[turn % 2]

        client = Scripted(lambda m, s, life=life: Died() if len(m) == 4 and not life else f"heard {len(m)}")
        agents = [AssistantAgent(one, client) for one in "ab"]
        team = SelectorGroupChat(agents, client, selector_func=choose, max_turns=4, allow_repeated_speaker=True)
        ASKED.clear()
        with AutoGenStateSerializer(session_id="choosing", store=tmp_path / "store") as durability:
            durability.wrap_team(team)
            if life:
                result = await asyncio.wait_for(team.run(task="go"), HANG)
                assert [one.source for one in result.messages] == ["user", *"baba"]
            else:
                with pytest.raises(RuntimeError, match="Died"):
                    await asyncio.wait_for(team.run(task="go"), HANG)
        asked.append(len(ASKED))
        assert asked == [[3, 1, 0][life]]


# --- what cannot be kept is told ---------------------------------------------------------------------------------------------


class Hidden(Keeps):
    """Keeps something that is no plain data."""

    class Counter:
        seen = 0

    nothing = Counter

    def more(self, messages):
        self.kept.seen += 1
        return self.kept.seen


class Unencodable(Keeps):
    nothing = list

    def more(self, messages):
        self.kept.append(lambda: 1)
        return len(self.kept)


def large():
    kept = list(range(20_000))

    def check(messages):
        kept.append(0)
        return len(kept) >= 20_005

    return FunctionalTermination(check)


@pytest.mark.parametrize("kind", [Hidden, Unencodable, large])
async def test_what_cannot_be_recorded_is_told(tmp_path, caplog, kind):
    team = RoundRobinGroupChat([AssistantAgent("a", Scripted(lambda m, s: "fine"))], termination_condition=kind())
    with AutoGenStateSerializer(session_id="hidden", store=tmp_path / "store") as durability:
        durability.wrap_team(team)
        with caplog.at_level(logging.WARNING, "letitloop"):
            assert len((await team.run(task="go")).messages) == 5
    (record,) = caplog.records
    assert "keeps something in 'kept'" in record.getMessage()


async def test_a_list_that_begins_otherwise_is_told(tmp_path, caplog):
    for life in range(2):
        client = Scripted(lambda m, s, life=life: Died() if len(m) == 4 and not life else "fine")
        condition = Messages()
        condition.kept = [[]] * (1 + life)
        team = RoundRobinGroupChat([AssistantAgent("a", client)], termination_condition=condition)
        with AutoGenStateSerializer(session_id="otherwise", store=tmp_path / "store") as durability:
            durability.wrap_team(team)
            with contextlib.nullcontext() if life else pytest.raises(RuntimeError, match="Died"):
                await asyncio.wait_for(team.run(task="go"), HANG)
    assert "was not there before a call on record" in caplog.text


async def test_a_condition_that_is_over_already_does_not_hang(tmp_path):
    """As one does that two teams share; stock AutoGen waits for ever."""
    condition = Own(Passing())
    condition._terminated = True
    team = RoundRobinGroupChat([AssistantAgent("a", Scripted(lambda m, s: "fine"))], termination_condition=condition)
    with AutoGenStateSerializer(session_id="over", store=tmp_path / "store") as durability:
        durability.wrap_team(team)
        with pytest.raises(TerminatedException):
            await asyncio.wait_for(team.run(task="go"), HANG)
