"""Code that reaches outside other than by tools: it is not executed again unless a policy says so, and harmless code needs none."""

from __future__ import annotations

import dataclasses
import functools
import re

import pytest
from smolagents import LocalPythonExecutor

from letitloop import UnknownOutcome
from letitloop_smolagents._deciding import decide
from tests.smolagents.conftest import Died
from tests.smolagents.helpers import agent_of, resumed
from tests.smolagents.scripted import Probe

OUTSIDE = {"additional_authorized_imports": ["pathlib"]}


def outside(path, last="final_answer(1)"):
    return [f"import pathlib\np = pathlib.Path({str(path)!r})\nwith p.open('a') as f:\n    f.write('x')\n{last}"]


def test_code_that_reaches_outside_and_was_under_way_is_unknown(next_life, tmp_path):
    target = tmp_path / "outside"
    steps = outside(target, "die(what=1)\nfinal_answer(1)")
    agent, *_ = agent_of(steps, dies=True, **OUTSIDE)
    with pytest.raises(Died):
        agent.run("go")
    for _ in range(2):
        next_life()
        agent, model, _ = agent_of(steps, **OUTSIDE)
        with pytest.raises(UnknownOutcome, match="pathlib"):
            agent.run("go")
        assert model.asked == []
    assert target.read_text() == "x"
    next_life()
    agent, *_ = agent_of(steps, policies={"python_interpreter": "record"}, **OUTSIDE)
    assert agent.run("go") == 1
    assert target.read_text() == "xx"


def test_finished_code_that_reached_outside_is_not_executed_again(next_life, tmp_path):
    target = tmp_path / "outside"
    steps = [*outside(target, "n = 5"), "die(what=1)\nfinal_answer(n)"]
    agent, *_ = agent_of(steps, dies=True, **OUTSIDE)
    with pytest.raises(Died):
        agent.run("go")
    next_life()
    agent, *_ = agent_of(steps, **OUTSIDE)
    with pytest.raises(UnknownOutcome):  # the open file cannot be made again without opening it again
        agent.run("go")
    assert target.read_text() == "x"
    next_life()
    agent, *_ = agent_of(steps, policies={"python_interpreter": "rerun"}, **OUTSIDE)
    assert agent.run("go") == 5


def test_a_local_policy_is_not_asked_by_code_that_stays_inside(next_life):
    result, _, _ = resumed(next_life, "x = 1", "final_answer(x + 1)", **OUTSIDE)
    assert result == 2


def test_what_is_on_record_imports_only_what_the_agent_may_import():
    from smolagents.local_python_executor import InterpreterError

    from letitloop_smolagents._graph import Thawer
    from letitloop_smolagents._world import World

    world = World({}, {}, {}, ["math"])
    assert Thawer(world, [["attr", "math", "sqrt"]]).value([0])(9) == 3
    for node in (["module", "subprocess"], ["attr", "os", "system"]):
        with pytest.raises(InterpreterError, match="not allowed"):
            Thawer(world, [node]).value([0])
    with pytest.raises(KeyError):
        Thawer(world, [["builtin", "eval"]]).value([0])


BASE_CLASS = "class A:\n    def go(self):\n        save()\n"


@pytest.mark.parametrize(
    ("made", "called"),
    [
        ("", "save()"),
        ("fs = [save]", "fs[0]()"),
        ("h = {'s': save}", "h['s']()"),
        (f"{BASE_CLASS}a = A()", "a.go()"),
        (f"{BASE_CLASS}class B(A):\n    pass\na = B()", "a.go()"),
        (f"{BASE_CLASS}many = [A()]", "many[0].go()"),
        (f"{BASE_CLASS}m = A().go", "m()"),
        ("class A:\n    pass\na = A()\na.f = save", "a.f()"),
        ("class A:\n    pass\na = A()\na.b = A()\na.b.f = save", "a.b.f()"),
        ("def outer():\n    kept = save\n    def inner():\n        kept()\n    return inner\nf = outer()", "f()"),
        ("each = map(lambda n: save(), [1])", "list(each)"),
        ("each = (save() for n in [1])", "list(each)"),
        ("saver = save", "saver()"),
    ],
)
def test_code_that_reaches_outside_from_behind_something(next_life, tmp_path, made, called):
    target = tmp_path / "outside"
    save = f"import pathlib\ndef save():\n    with pathlib.Path({str(target)!r}).open('a') as f:\n        f.write('x')\n{made}"
    steps = [save, f"{called}\ndie(what=1)\nfinal_answer(1)"]
    agent, *_ = agent_of(steps, dies=True, **OUTSIDE)
    with pytest.raises(Died):
        agent.run("go")
    next_life()
    agent, model, _ = agent_of(steps, **OUTSIDE)
    with pytest.raises(UnknownOutcome, match="pathlib"):
        agent.run("go")
    assert model.asked == []
    assert target.read_text() == "x"


SENT = []


class Sender:
    def send(self):
        SENT.append(1)


@dataclasses.dataclass
class Order:
    number: int

    def send(self):
        SENT.append(self.number)


def send():
    SENT.append(1)


@pytest.mark.parametrize(
    ("given", "called"),
    [
        (send, "v()"),
        (lambda: send(), "v()"),
        (Sender().send, "v()"),
        (Sender(), "v.send()"),
        ([Sender()], "v[0].send()"),
        ({"s": send}, "v['s']()"),
        (functools.partial(send), "v()"),
        (Order(1), "v.send()"),
        ([Order(1)], "getattr(v[0], 'send')()"),
    ],
)
def test_what_the_agent_is_given_reaches_outside(next_life, given, called):
    SENT.clear()
    steps = [f"m = v\n{called.replace('v', 'm', 1)}\ndie(what=1)\nfinal_answer(1)"]
    agent, *_ = agent_of(steps, dies=True)
    with pytest.raises(Died):
        agent.run("go", additional_args={"v": given})
    next_life()
    agent, *_ = agent_of(steps)
    with pytest.raises(UnknownOutcome, match=r"outside other than by tools \((tests|Order)"):
        agent.run("go", additional_args={"v": given})
    assert SENT == [1]


def test_data_reaches_nothing(next_life):
    steps = ["n = order.number\nprint(order)\ndie(what=1)\nfinal_answer(n)"]
    for dies in (True, False):
        agent, *_ = agent_of(steps, dies=dies)
        if dies:
            with pytest.raises(Died):
                agent.run("go", additional_args={"order": Order(3)})
            next_life()
        else:
            assert agent.run("go", additional_args={"order": Order(3)}) == 3


HARMLESS = [
    """
import re
from datetime import datetime, timedelta, timezone
found = [re.sub("a", "b", one) for one in re.search(r"(\\w+)", "aa b").group(1)]
x = (datetime.now(timezone.utc) - timedelta(days=2)).strftime("%Y")
""",
    """
import collections, itertools, statistics, math, random, queue, unicodedata, time
r = random.Random(3)
q = queue.PriorityQueue()
q.put((statistics.mean([1, 2]), unicodedata.normalize("NFC", "a")))
x = [collections.Counter("aab").most_common(1), list(itertools.chain([1], [2])), r.choice([1, 2]), time.perf_counter()]
groups = itertools.groupby([1, 1, 2])
""",
    """
from random import shuffle
from itertools import product as pairs_of
rows = [{"a": 1}, {"a": 0}]
rows.sort(key=lambda row: row["a"])
shuffle(rows)
x = sum(row["a"] for row in rows) + len(list(pairs_of([1], [2]))) + max(map(lambda row: row["a"], rows))
""",
    """
class Sum:
    total = 0
    def __init__(self, n):
        self.n = n
    def __str__(self):
        return f"S{self.n}"
def apply(f, one):
    return f(one)
try:
    raise KeyError("q")
except KeyError as e:
    kept = e
x = [str(Sum(1)), apply(str, 2), {"up": str.upper}["up"]("a"), getattr("A", "lower")(), apply(probe, 3)]
""",
    """
from collections import namedtuple, ChainMap, deque
P = namedtuple("P", "a b")
chain = ChainMap({"a": 1})
x = [P(1, 2)._replace(a=3)._asdict(), chain["a"], deque([1], maxlen=3)]
""",
]


@pytest.mark.parametrize("first", HARMLESS)
def test_what_needs_no_policy(next_life, first):
    everything = "\n".join(
        f"{name} = {name}" for name in ("rows", "r", "q", "groups", "kept", "chain") if re.search(rf"\b{name} = ", first)
    )
    result, before, _ = resumed(next_life, first, f"{everything}\nfinal_answer(x)")
    assert result == before["x"]


def test_a_part_of_a_tool_reaches_outside(next_life):
    seen = []
    steps = ["probe.answer(1)\ndie(what=1)\nfinal_answer(1)"]
    for dies in (True, False):
        agent, *_ = agent_of(steps, dies=dies, answer=seen.append)
        with pytest.raises(Died if dies else UnknownOutcome):
            agent.run("go")
        next_life()
    assert seen == [1]


def test_another_name_of_an_added_function(next_life):
    SENT.clear()
    steps = ["e = emit", "e()\ndie(what=1)\nfinal_answer(1)"]
    for dies in (True, False):
        executor = LocalPythonExecutor([], additional_functions={"emit": send})
        agent, *_ = agent_of(steps, dies=dies, executor=executor)
        with pytest.raises(Died if dies else UnknownOutcome):
            agent.run("go")
        next_life()
    assert SENT == [1]


def test_what_a_tool_hands_over_reaches_outside(next_life):
    SENT.clear()

    class Connect(Probe):
        def forward(self, what):
            return Sender()

    steps = ["c = connect(what=1)\nc.send()\ndie(what=1)\nfinal_answer(1)"]
    for dies in (True, False):
        agent, *_ = agent_of(steps, [Connect(name="connect")], dies=dies, policies={"connect": "rerun"})
        with pytest.raises(Died if dies else UnknownOutcome):
            agent.run("go")
        next_life()
    assert SENT == [1]


# --- what is done about a code step -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("past", "outside", "opaque", "policy", "decision"),
    [
        ("new", True, True, None, "execute"),
        ("under way", False, False, None, "execute"),
        ("under way", True, False, None, "unknown"),
        ("under way", True, False, "record", "execute"),
        ("under way", True, False, "rerun", "execute"),
        ("finished", True, False, None, "set"),
        ("finished", True, False, "record", "set"),
        ("finished", False, False, "rerun", "execute"),
        ("finished", False, True, None, "execute"),
        ("finished", True, True, None, "unknown"),
        ("finished", True, True, "record", "execute"),
        ("finished", True, True, "rerun", "execute"),
    ],
)
def test_the_decision(past, outside, opaque, policy, decision):
    assert decide(past, outside=outside, opaque=opaque, policy=policy) == decision
