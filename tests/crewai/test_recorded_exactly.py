"""What is recorded comes back as it was, and what has no order or no address means the same in every process."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import os
import re
import subprocess
import sys
from collections import OrderedDict, deque
from decimal import Decimal
from pathlib import PurePosixPath
from uuid import UUID

import pytest

from tests.crewai.lives import Died, asked, results, tasks
from tests.crewai.scripted import Scripted, action, call, final, prompt_of, text_of  # sets the environment first

# isort: split
from crewai import Crew, Task
from crewai.tools import tool
from crewai.utilities.planning_handler import PlannerTaskPydanticOutput, PlanPerTask
from pydantic import AnyUrl, BaseModel, ConfigDict, Field, SecretStr, computed_field

from letitloop.errors import UnencodableError
from letitloop_crewai.asking import digest
from letitloop_crewai.steady import plain, steady
from letitloop_crewai.typed import pack, unpack

pytestmark = pytest.mark.filterwarnings("default")


# --- digests -----------------------------------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Point:
    x: object
    y: object = None


class Tagged(BaseModel):
    tags: set[str] = set()
    more: object = None


class Opaque:
    def __init__(self, text="", address=False):
        self.text = f"{text}{f' 0x{id(self):x}' if address else ''}"

    def __repr__(self):
        return f"<Opaque {self.text}>"


WORDS = {"red", "green", "blue", "white", "black"}

DIFFERENT = [
    None, 1, "1", 1.5, [1], ["a", "b"], {"a": 1}, {1: 1}, {"1": 1}, {(1, "a"): 1}, {(1, "b"): 1}, {None: 1, "a": 2}, {"a": 2, 3: 1},
    {frozenset({1, 2}), frozenset({3})}, {1, 2}, {1, 3}, frozenset({"a", ("b", 2)}), {"s": {1, 2}}, [{1}, {2}], WORDS,
    WORDS | {"grey"},
    Tagged(tags=WORDS), Tagged(tags={"red"}), Tagged(more={1: WORDS}), Point(WORDS), Point({"red"}), Point(1, 2),
    Colour.RED, Colour.BLUE,
    datetime.date(2026, 1, 2), datetime.date(2026, 1, 3), Decimal("1.0"), Decimal("1.00"), UUID(int=1), UUID(int=2), b"a", b"b", 1j,
    PurePosixPath("/a"), PurePosixPath("/b"), Opaque("a"), Opaque("b"), Opaque(address=True), len, digest, Point, float("inf"),
]  # fmt: skip


def test_different_values_have_different_digests():
    found = [digest(one) for one in DIFFERENT]
    assert [DIFFERENT[i] for i, one in enumerate(found) if found.index(one) != i] == []


def test_equal_values_have_one_digest():
    assert digest({0, 8}) == digest({8, 0})
    assert digest({"a": {8, 0, 16}, "b": 1}) == digest({"b": 1, "a": {0, 16, 8}})
    assert digest({(0, 1): "x", 2: "y"}) == digest({2: "y", (0, 1): "x"})
    assert digest(Opaque(address=True)) == digest(Opaque(address=True))
    assert digest(object()) == digest(object())
    assert digest((1, 2)) == digest([1, 2]) == digest(deque([1, 2]))  # as JSON would have it
    assert digest(OrderedDict(a=1)) == digest({"a": 1})
    around = [1]
    around.append(around)
    assert digest(around) == digest(around)


def test_digests_are_those_of_another_process(tmp_path):
    code = (
        "from tests.crewai.test_recorded_exactly import *\n"
        "print([digest(one) for one in DIFFERENT], str(steady([WORDS, Point(WORDS)])))"
    )
    found = set()
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "XDG_DATA_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        found.add(done.stdout)
    assert len(found) == 1


# --- what a model saw of a tool's result -------------------------------------------------------------------------------------


def test_sets_in_results_keep_one_order():
    for one in (
        WORDS,
        {"a": [WORDS]},
        (frozenset(WORDS), 1),
        Point(WORDS),
        Tagged(tags=WORDS),
        {frozenset({1}), frozenset({2, 3})},
    ):
        assert steady(one) == one
        assert plain(steady(one)) == one
        assert type(plain(steady(one))) is type(one)
    assert str(steady({"b", "a"})) == "{'a', 'b'}"
    assert str(steady({"x": frozenset({"b", "a"})})) == "{'x': frozenset({'a', 'b'})}"
    assert list(steady({16, 0, 8})) == [0, 8, 16]
    assert steady(Tagged(tags={"b", "a"})).model_dump_json() == '{"tags":["a","b"],"more":null}'
    kept = {"a": [1, (2,)], "set": set()}
    assert steady(kept) is kept
    point = Point({1, 2})
    assert steady(point).x == point.x
    assert type(point.x) is set  # the tool's own is left alone


@pytest.mark.parametrize("native", [False, True], ids=["words", "native"])
@pytest.mark.parametrize("policy", ["record", "rerun"])
def test_a_result_that_is_a_set_is_the_same_text_again(lives, native, policy):
    texts = []
    for life in range(2):

        @tool
        def tags(what: str) -> object:
            """Tags."""
            return [{0, 8, 16}, {16, 8, 0}][life]  # noqa: B023 - called in this life

        def script(messages, asked, life=life):
            if not results(messages):
                return [call("tags", what="x")] if native else action("tags", what="x")
            texts.append(text_of(messages))
            return (text_of(messages) if native else final("done")) if life else Died()

        agent = lives.agent(script, tools=[tags], native=native)
        crew = lives.begin(tools={"tags": policy}).wrap_crew(Crew(agents=[agent], tasks=tasks(agent, "one")))
        if life:
            crew.kickoff()
        else:
            with pytest.raises(Died):
                crew.kickoff()
    assert texts[0] == texts[1]
    assert "{0, 8, 16}" in texts[0]


# --- typed outputs -----------------------------------------------------------------------------------------------------------


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    x: int

    @computed_field
    @property
    def double(self) -> int:
        return 2 * self.x


class Sites(BaseModel):
    sites: list[AnyUrl]


class Score(BaseModel):
    score: float
    when: datetime.date = datetime.date(2026, 1, 2)


class Hidden(BaseModel):
    x: int
    secret: str = Field(default="none", exclude=True)


class Aliased(BaseModel):
    foo_bar: int = Field(alias="fooBar")


class Secret(BaseModel):
    key: SecretStr


def local_class():
    class Item(BaseModel):
        name: str
        price: float

    class Local(BaseModel):
        items: dict[str, list[Item]]
        point: tuple[int, ...] = (1, 2)

    return Local


TYPED = {
    "computed": (Strict, '{"x": 3}'),
    "nan": (Score, '{"score": NaN}'),
    "excluded": (Hidden, '{"x": 1, "secret": "s"}'),
    "alias": (Aliased, '{"fooBar": 3}'),
    "local": (None, '{"items": {"a": [{"name": "n", "price": Infinity}]}}'),
}


@pytest.mark.parametrize("field", ["output_pydantic", "output_json", "response_model"])
@pytest.mark.parametrize("kind", TYPED)
def test_typed_outputs_survive(lives, kind, field):
    found = []
    for life in range(2):
        cls = TYPED[kind][0] or local_class()
        text = TYPED[kind][1]

        def script(messages, asked, text=text):
            return final(text) if asked["response_model"] is None else asked["response_model"].model_validate_json(text)

        agent = lives.agent(script, tools=[])
        crew = lives.begin().wrap_crew(Crew(agents=[agent], tasks=tasks(agent, "one", **{field: cls})))
        output = crew.kickoff().tasks_output[0]
        assert asked(crew) == (0 if life else 1)
        if field != "output_json" and output.pydantic is not None:
            assert type(output.pydantic) is cls
        state = re.sub(" at 0x[0-9a-f]+", "", repr({**vars(output.pydantic)} if output.pydantic else None))
        found.append((state, repr(output.json_dict), output.raw))
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", TYPED)
def test_an_answer_of_a_class_survives_the_death_of_its_task(lives, kind):
    found = []
    for life in range(2):
        cls = TYPED[kind][0] or local_class()
        text = TYPED[kind][1]

        def script(messages, asked, text=text):
            return text if asked["response_model"] is None else asked["response_model"].model_validate_json(text)

        def guard(output, life=life):
            if not life:
                raise Died
            return True, output

        agent = lives.agent(script, tools=[], native=True)
        crew = lives.begin().wrap_crew(Crew(agents=[agent], tasks=tasks(agent, "one", output_pydantic=cls, guardrail=guard)))
        if life:
            found.append(crew.kickoff().pydantic)
            assert asked(crew) == 0
        else:
            with pytest.raises(Died):
                crew.kickoff()
    assert type(found[0]) is cls


class Loose(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    what: object


def test_a_typed_value_that_cannot_come_back_is_refused():
    with pytest.raises(UnencodableError):
        pack(Loose(what=object()))


def test_typed_values_that_crewai_itself_makes_nothing_of_come_back():
    for one in (Sites(sites=["https://example.org/x"]), Secret(key="abc"), Tagged(tags=WORDS, more=Tagged())):
        assert unpack(pack(one), type(one)) == one


# --- plans -------------------------------------------------------------------------------------------------------------------


def test_a_plan_is_made_once_for_a_kickoff_that_failed_in_this_process(lives):
    down = [True]

    def plan(messages, asked):
        plans = [PlanPerTask(task_number=one, task=f"t{one}", plan=f" PLAN{one}") for one in (1, 2)]
        made = PlannerTaskPydanticOutput(list_of_plans_per_task=plans)
        return made if asked["response_model"] else final(made.model_dump_json())

    def script(messages, asked):
        return Died() if down and "second" in prompt_of(messages) else final("done")

    for inputs in (None, {}, {"what": "x"}):
        down.append(True)
        agent, planner = lives.agent(script, tools=[]), Scripted(plan, model="planner")
        made = [
            Task(description=f"{one} {{what}}" if inputs else one, expected_output="x", agent=agent) for one in ("first", "second")
        ]
        crew = Crew(agents=[agent], tasks=made, planning=True, planning_llm=planner)
        lives.begin(auto_resume=False).wrap_crew(crew)
        for _ in range(2):
            with pytest.raises(Died):
                crew.kickoff(inputs)
        down.clear()
        crew.kickoff(inputs)
        assert len(planner.asked) == 1
        assert ["second" in prompt_of(one) for one in agent.llm.asked] == [False, True, True, True]
        assert crew.tasks[1].description.count("PLAN2") == 1
