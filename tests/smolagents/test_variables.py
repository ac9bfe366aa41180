"""Variables of the local Python executor after a resume: those of the uninterrupted run, or the code is executed again."""

from __future__ import annotations

import collections
import dataclasses
import functools
import re

import numpy
import pandas
import pytest
from smolagents import CodeAgent, LocalPythonExecutor

from letitloop import StepChanged, UnknownOutcome
from letitloop.adapters.smolagents import SmolagentsWALCallback, durable_agent
from letitloop.codecs import default_codecs
from letitloop_smolagents._deciding import decide
from letitloop_smolagents._growth import Graphs
from tests.smolagents.conftest import Died
from tests.smolagents.scripted import Probe, Script, code


class Dying(Probe):
    """Ends the process when it is called for the first time."""

    def __init__(self, name="die"):
        super().__init__(name=name)

    def forward(self, what):
        raise Died


def agent_of(steps, tools=(), *, dies=False, policies=None, answer=None, **kwargs):
    probe = Probe(answer=answer)
    model = Script([code(step) for step in steps])
    agent = CodeAgent(
        tools=[probe, Dying() if dies else Probe(name="die"), *tools],
        model=model,
        step_callbacks=[SmolagentsWALCallback(session_id="variables", tools=policies)],
        verbosity_level=-1,
        **kwargs,
    )
    return agent, model, probe


def resumed(next_life, *steps, answer=None, **kwargs):
    """Run steps, die after the last of them but one, and return what the last one finds."""
    steps = [*steps[:-1], f"die(what=1)\n{steps[-1]}"]
    agent, *_ = agent_of(steps, dies=True, answer=answer, **kwargs)
    with pytest.raises(Died):
        agent.run("go")
    before = dict(agent.python_executor.state)
    next_life()
    agent, model, probe = agent_of(steps, answer=answer, **kwargs)
    result = agent.run("go")
    assert model.asked == []
    assert probe.seen == []
    return result, before, agent


# what the first step does, what the last one does after a crash, and what that comes to
STEPS = [
    ("a = [1]\nb = a", "b.append(2)\nfinal_answer([a, a is b])", [[1, 2], True]),
    ("a = [[1], [2]]\nb = a[0]", "b.append(5)\nfinal_answer(a)", [[1, 5], [2]]),
    ("a = {}\na['me'] = a", "final_answer(a['me'] is a)", True),
    ("def f(x, n=2):\n    return x * n", "final_answer(f(3))", 6),
    ("def f(x):\n    return g(x) + 1\ndef g(x):\n    return x * 10", "final_answer(f(3))", 31),
    ("k = 2\nf = lambda x: x * k", "k = 5\nfinal_answer(f(3))", 15),
    ("fs = [lambda x: x + 1, lambda x: x + 2]", "final_answer([f(1) for f in fs])", [2, 3]),
    (
        ("def make(n):\n    def inner(x):\n        return x + n\n    return inner\nadd = make(10)\nn = 3"),
        "final_answer(add(1))",
        11,
    ),
    (
        ("class K:\n    count = 0\n    def up(self):\n        self.count = self.count + 1\n        return self\nk = K()\nj = k"),
        ("k.up()\nfinal_answer([j.count, isinstance(j, K)])"),
        [1, True],
    ),
    (
        ("class A:\n    def name(self):\n        return 'a'\nclass B(A):\n    pass\nbs = [B(), B()]"),
        "final_answer([b.name() for b in bs])",
        ["a", "a"],
    ),
    (
        (
            "from collections import defaultdict, Counter, deque\n"
            "d = defaultdict(list)\n"
            "d['x'].append(1)\n"
            "c = Counter('aab')\n"
            "q = deque([1, 2], 2)"
        ),
        ("d['y'].append(2)\nq.append(3)\nfinal_answer([dict(d), c['a'], list(q)])"),
        [{"x": [1], "y": [2]}, 2, [2, 3]],
    ),
    (
        ("import math\nfrom math import sqrt as root\nr = math"),
        "final_answer([root(9), math.pi > 3, r.floor(2.5)])",
        [3.0, True, 2],
    ),
    ("look = probe\nvalues = [look(what='a')]", "final_answer(values)", ["<a>"]),
    ("t = (1, {2: [3]})\nu = t[1]", "u[2].append(4)\nfinal_answer(t)", (1, {2: [3, 4]})),
    ("a = 1\nb = 2\ndel a", "try:\n    x = a\nexcept Exception:\n    x = 'gone'\nfinal_answer(b)", 2),
    ("g = (n for n in [10, 20])\nfirst = next(g)", "final_answer([first, next(g)])", [10, 20]),
    ("rows = [1, 2, 3]\nit = iter(rows)\nnext(it)", "final_answer(list(it))", [2, 3]),
    ("rows = [1]\nit = iter(rows)\nprint(rows)", "rows.append(2)\nfinal_answer(list(it))", [1, 2]),
    ("s = {'b', 'a', 'c'}\ns", "final_answer(sorted(s))", ["a", "b", "c"]),
    ("e = None\ntry:\n    1 / 0\nexcept ZeroDivisionError as err:\n    e = str(err)", "final_answer(e)", "division by zero"),
    ("x = 1\nraise ValueError('later')", "final_answer(x)", 1),
    (
        ("from datetime import datetime, timedelta\nwhen = datetime(2024, 2, 29)"),
        "final_answer(str(when + timedelta(days=1)))",
        "2024-03-01 00:00:00",
    ),
]


@pytest.mark.parametrize(("first", "last", "expected"), STEPS)
def test_variables_come_back(next_life, first, last, expected):
    result, _, _ = resumed(next_life, first, last)
    assert result == expected


# what several steps do, what the last one does after a crash, and what that comes to: iterators, views and bound methods share
# objects with variables, and are moved on from behind containers, functions and base classes
SHARED = [
    (["rows = [1]\nit = iter(rows)", "rows.append(2)"], "final_answer(list(it))", [1, 2]),
    (["d = {'a': 1}\npairs = d.items()", "d['b'] = 2"], "final_answer(sorted(pairs))", [("a", 1), ("b", 2)]),
    (["d = {'a': 1}\nk = d.keys()", "d['b'] = 2"], "final_answer(list(k))", ["a", "b"]),
    (["rows = []\nadd = rows.append", "rows.append(1)"], "add(2)\nfinal_answer(rows)", [1, 2]),
    (["xs = [1, 2]\nsquares = map(lambda v: v * v, xs)", "xs.append(3)"], "final_answer(list(squares))", [1, 4, 9]),
    (["import queue\nq = queue.Queue()\njob = ['a']\nq.put(job)", "job.append('b')"], "final_answer(q.get())", ["a", "b"]),
    (["ns = [1]\ng = (n for n in ns)", "ns.append(2)"], "final_answer(list(g))", [1, 2]),
    (
        [
            "class P:\n    def __init__(self):\n        self.n = 0\n    def up(self):\n        self.n += 1\np = P()\nm = p.up",
            "p.up()",
        ],
        "m()\nfinal_answer(p.n)",
        2,
    ),
    (
        ["g = (n for n in [10, 20, 30])\ndef nx():\n    return next(g)\nfs = [nx]", "a = fs[0]()"],
        "final_answer([a, fs[0]()])",
        [10, 20],
    ),
    (
        [
            "g = (n for n in [10, 20])\nclass A:\n    def nx(self):\n        return next(g)\nclass B(A):\n    pass\nb = B()",
            "a = b.nx()",
        ],
        "final_answer([a, b.nx()])",
        [10, 20],
    ),
    (["its = [iter([1, 2, 3])]", "x = next(its[0])", "h = {'i': its}\ny = next(h['i'][0])"], "final_answer(next(its[0]))", 3),
    (["counter = iter([1, 2, 3])", "x = next(countr)"], "final_answer(next(counter))", 2),  # a similar name is taken for it
    (["from collections import namedtuple\nP = namedtuple('P', 'x y')\np = P(1, [2])"], "final_answer(p == P(1, [2]))", True),
    (["from collections import namedtuple\nP = namedtuple('P', 'x y', defaults=[7])"], "final_answer(P(1).y)", 7),
    (["import random\nr = {'r': random}\na = r['r'].random()"], "final_answer(0 < a < 1)", True),
    (["many = [probe]\nmany"], "final_answer(many[0](what='a'))", "<a>"),
    (["probe"], "final_answer(1)", 1),
]


@pytest.mark.parametrize(("steps", "last", "expected"), SHARED)
def test_what_shares_objects_with_variables_comes_back(next_life, steps, last, expected):
    steps = [*steps, f"die(what=1)\n{last}"]
    agent, *_ = agent_of(steps, dies=True)
    with pytest.raises(Died):
        agent.run("go")
    next_life()
    agent, model, _ = agent_of(steps)
    assert agent.run("go") == expected
    assert model.asked == []


def test_random_and_time_are_those_of_the_first_life(next_life):
    result, before, _ = resumed(
        next_life,
        "import random, time\nx = [random.random() for _ in range(3)]\nt = time.time()\nprint(x, t)",
        "final_answer([x, t])",
    )
    assert result == [before["x"], before["t"]]


def test_random_beside_what_has_to_be_made_again(next_life):
    result, before, _ = resumed(
        next_life, "import random\nx = random.random()\ng = (n * x for n in [1, 2])\nnext(g)", "final_answer([x, next(g)])"
    )
    assert result == [before["x"], before["x"] * 2]


def test_code_in_flight_asks_its_tools_the_same_random_numbers(next_life):
    steps = ["import random\nx = random.random()\na = probe(what=x)\ndie(what=1)\nfinal_answer(a)"]
    agent, _, probe = agent_of(steps, dies=True)
    with pytest.raises(Died):
        agent.run("go")
    next_life()
    agent, _, again = agent_of(steps)
    assert agent.run("go") == f"<{probe.seen[0]}>"
    assert again.seen == []


def test_a_step_that_is_executed_again_calls_no_tool(next_life):
    result, _, _ = resumed(next_life, "g = (n for n in [probe(what='x'), 2])\nnext(g)", "final_answer(next(g))")
    assert result == 2


def test_executed_again_it_must_call_what_it_called(next_life):
    steps = ["import time\na = probe(what=time.time())\ng = (n for n in [1])", "die(what=1)\nfinal_answer(next(g))"]
    agent, *_ = agent_of(steps, dies=True)
    with pytest.raises(Died):
        agent.run("go")
    next_life()
    agent, _, probe = agent_of(steps)
    with pytest.raises(StepChanged, match="probe"):
        agent.run("go")
    assert probe.seen == []


def test_arrays_and_tables(next_life):
    answers = {
        "array": numpy.arange(6).reshape(2, 3),
        "table": pandas.DataFrame(
            {"n": [1, 2], "x": [0.5, None], "s": ["a", "b"], "when": pandas.to_datetime(["2024-01-01", "2024-02-01"])},
            index=["r1", "r2"],
        ).astype({"s": "category"}),
    }
    result, _, agent = resumed(
        next_life,
        "a = probe(what='array')\nt = probe(what='table')\nu = t\nc = t['n']",
        "u['extra'] = 1\nfinal_answer([int(a.sum()), list(t.columns), t.shape[0]])",
        answer=answers.get,
        policies={"python_interpreter": "record"},
    )
    assert result == [15, ["n", "x", "s", "when", "extra"], 2]
    state = agent.python_executor.state
    pandas.testing.assert_frame_equal(state["t"].drop(columns="extra"), answers["table"])
    assert state["t"] is state["u"]


def test_views_of_one_array_share_its_memory(next_life):
    result, _, _ = resumed(
        next_life,
        "import numpy\na = numpy.zeros(4)\nb = a[1:]",
        "b[0] = 7\nfinal_answer(float(a[1]))",
        additional_authorized_imports=["numpy"],
        policies={"python_interpreter": "rerun"},
    )
    assert result == 7.0


def test_objects_in_an_array_are_those_of_the_variables(next_life):
    steps = [
        "import numpy\nxs = [1]\na = numpy.array([xs, None], dtype='O')",
        "xs.append(2)",
        "die(what=1)\nfinal_answer([a[0], a[0] is xs])",
    ]
    options = {"additional_authorized_imports": ["numpy"], "policies": {"python_interpreter": "record"}}
    agent, *_ = agent_of(steps, dies=True, **options)
    with pytest.raises(Died):
        agent.run("go")
    next_life()
    agent, *_ = agent_of(steps, **options)
    assert agent.run("go") == [[1, 2], True]


# --- code that reaches outside other than by tools ---------------------------------------------------------------------------

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


def test_counter_of_the_standard_library_is_itself(next_life):
    _, _, agent = resumed(next_life, "from collections import Counter\nc = Counter('aab')", "final_answer(1)")
    assert agent.python_executor.state["c"] == collections.Counter("aab")


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


# --- how much is recorded -----------------------------------------------------------------------------------------------------


def log_size(tmp_path, steps):
    agent, *_ = agent_of(steps, answer=lambda what: "r" * 200, max_steps=len(steps) + 1)
    agent.step_callbacks._callbacks.clear()
    durable_agent(agent, session_id="size", store=str(tmp_path))
    agent.run("go")
    return sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())


@pytest.mark.parametrize(
    ("begun", "grown"),
    [
        ("rows = []", "rows.append(probe(what='a'))"),
        ("rows = []", "rows.append({'found': probe(what='a')})"),
        ("rows = []", "rows = rows + [probe(what='a')]"),
        ("found = {}", "found[len(found)] = [probe(what='a')]"),
        ("text = ''", "text += probe(what='a')"),
    ],
)
def test_what_grows_at_its_end_is_recorded_once(tmp_path, next_life, begun, grown):
    # "rows + […]" and "text +=" are a step's value, which the model is shown and the record holds: that is as long as it is
    sizes = []
    for count in (10, 20, 40):
        sizes.append(log_size(tmp_path / str(count), [begun, *[f"{grown}\nNone"] * count, "final_answer(1)"]))
        next_life()
    assert sizes[2] - sizes[1] < 2.3 * (sizes[1] - sizes[0])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([["list", [1, 2]]], [["list", [1, 2, 3]]]),
        ([["list", [1, 2]]], [["list", [True, 2, 3]]]),
        ([["list", [0.0]]], [["list", [-0.0, 1]]]),
        ([["list", [float("nan")]]], [["list", [float("nan"), 1]]]),
        ([["list", [[1], [2]]], ["list", []], ["dict", []]], [["list", [[1], [2]]], ["list", [5]], ["dict", [["k", 1]]]]),
        ([["list", [1, 2]]], [["list", [1]]]),
        ([["list", [[1]]], ["value", b"x"]], [["list", []]]),
    ],
)
def test_a_graph_comes_back_from_what_it_has_more(before, after):
    told, read = Graphs(), Graphs()
    for nodes, text in ((before, "t" * 100), (after, "t" * 100 + "more"), (after, "another")):
        packed = told.pack(nodes, {"s:a": [0], "s:text": text})
        told.unpack(packed)
        again = read.unpack(default_codecs.decode(default_codecs.encode(packed)))
        assert default_codecs.encode(again) == default_codecs.encode((nodes, {"s:a": [0], "s:text": text}))


NAMES = "abcdef"


def random_step(rng):
    """Return a line or two of code about the variables a to f, of which any may be missing or of any kind."""
    x, y, z = rng.choice(NAMES), rng.choice(NAMES), rng.choice(NAMES)
    n = rng.randrange(100)
    lines = [
        f"{x} = [{n}]",
        f"{x} = {y}",
        f"{x} = [{y}, {z}, {y}]",
        f"{x} = {{'k': {y}, {n}: {z}}}",
        f"{x} = ({y}, {n})",
        f"{y}.append({z})",
        f"{y}['k'] = {z}",
        f"{y}.append({n})",
        f"{x} = {y}[0]",
        f"{x} = Box({y})",
        f"{y}.content = {z}",
        f"{x} = {y}.content",
        f"del {x}",
        f"{x} = lambda v: [v, {y}]",
        f"{x} = {y}({n})",
        f"{x} = keep({y})",
        f"{x} = iter([{n}, {y}])",
        f"{x} = next({y})",
        f"import random\n{x} = random.random()",
        f"{x} = set([{n}, {n + 1}])",
        f"{x} = {y}.append",
        f"{x} = {y}.items()",
        f"{x} = map(keep, [{y}])",
        f"{y}.append('{'long' * 20}')",
    ]
    return "\n".join(f"try:\n    {line}\nexcept Exception:\n    pass" for line in rng.sample(lines, 2)).replace(
        "    import random\n", "    import random\n    "
    )


def shape(values):
    """Return what variables hold and which of them are one object, without addresses and random numbers."""
    seen = {}

    def told(value):
        if isinstance(value, float):
            return "float"
        if value is None or isinstance(value, (int, str)):
            return value
        if id(value) in seen:
            return f"^{seen[id(value)]}"
        number = seen[id(value)] = len(seen)
        held.append(value)
        if isinstance(value, (list, tuple)):
            inside = [told(one) for one in value]
        elif isinstance(value, dict):
            inside = [(key, told(one)) for key, one in value.items()]
        elif isinstance(value, set):
            inside = sorted(map(str, value))
        elif hasattr(value, "__self__"):
            inside = told(value.__self__)
        elif isinstance(value, type({}.items())):
            inside = [(key, told(one)) for key, one in value]
        else:
            inside = told(getattr(value, "__dict__", {}).get("content"))
        return [number, type(value).__name__, inside]

    held = []
    return {name: told(values[name]) for name in NAMES if name in values}


PRELUDE = """
class Box:
    def __init__(self, content):
        self.content = content
def keep(v):
    def kept(w):
        return [v, w]
    return kept
"""


@pytest.mark.parametrize("seed", range(30))
def test_any_variables_come_back(next_life, seed):
    import random

    rng = random.Random(seed)
    steps = [PRELUDE, *(random_step(rng) for _ in range(10)), "die(what=1)\nfinal_answer(1)"]
    agent, *_ = agent_of(steps, dies=True)
    with pytest.raises(Died):
        agent.run("go")
    before = shape(agent.python_executor.state)
    next_life()
    agent, model, _ = agent_of(steps)
    agent.run("go")
    assert model.asked == []
    assert shape(agent.python_executor.state) == before


# --- identity ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (["a = float('nan')\nseen = [a]", "final_answer([a in seen, a == a])"], [True, False]),
        (["a = float('nan')\nb = float('nan')", "final_answer([a in [b], a in (a,), {a: 1}.get(a)])"], [False, True, 1]),
        (["a = complex('nan')\nseen = {'a': a}", "final_answer(a is seen['a'])"], True),
        (["import math\na = [math.nan]", "final_answer(math.nan in a)"], True),
        (["a = [1.5, float('inf'), -0.0]", "final_answer(str(a))"], "[1.5, inf, -0.0]"),
    ],
)
def test_a_nan_equals_itself_alone(next_life, steps, expected):
    assert resumed(next_life, *steps)[0] == expected


CHANGES = {
    "the argument": (lambda x: x, "x = [1]\ny = probe(what=x)\nx.append(2)", "[x, y, x is y]", [[1, 2], [1, 2], True]),
    "what holds it": (lambda x: {"it": (x, [x])}, "x = [1]\ny = probe(what=x)\nx.append(2)", "y", {"it": ([1, 2], [[1, 2]])}),
    "what it holds": (lambda x: x["a"][1], "x = {'a': [0, [1]]}\ny = probe(what=x)\ny.append(2)", "x", {"a": [0, [1, 2]]}),
    "changed": (lambda x: x.append(3), "x = [1]\ny = probe(what=x)", "[x, y]", [[1, 3], None]),
    "changed and returned": (
        lambda x: x.append(3) or x,
        "x = [1]\ny = probe(what=x)\ny.append(4)",
        "[x, x is y]",
        [[1, 3, 4], True],
    ),
    "changed inside": (
        lambda x: x[0].update(b=2),
        "x = [{'a': 1}]\nz = x[0]\ny = probe(what=x)",
        "[x, z]",
        [[{"a": 1, "b": 2}], {"a": 1, "b": 2}],
    ),
    "moved": (lambda x: x.reverse() or x[0], "x = [[1], [2]]\ny = probe(what=x)\ny.append(0)", "x", [[2, 0], [1]]),
    "a set": (lambda x: x.add(2) or x, "x = {1}\ny = probe(what=x)\ny.add(3)", "sorted(x)", [1, 2, 3]),
    "looks like a mark": (
        lambda x: {"letitloop:given": ["what"]},
        "x = [1]\ny = probe(what=x)",
        "y",
        {"letitloop:given": ["what"]},
    ),
    "looks like a change": (
        lambda x: {"letitloop:changed": [1, []]},
        "x = [1]\ny = probe(what=x)",
        "y",
        {"letitloop:changed": [1, []]},
    ),
    "looks like a failure": (lambda x: {"letitloop:raised": b"x"}, "x = [1]\ny = probe(what=x)", "y", {"letitloop:raised": b"x"}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_tool_that_returns_or_changes_what_it_is_given(next_life, change):
    """Also where code that was in flight is executed again, and its answer comes from the log."""
    answer, before, after, expected = CHANGES[change]
    seen = []
    for dies in (True, False):
        agent, model, probe = agent_of([f"{before}\ndie(what=1)\nfinal_answer({after})"], dies=dies, answer=answer)
        seen += [probe]
        if dies:
            with pytest.raises(Died):
                agent.run("go")
        else:
            assert agent.run("go") == expected
        next_life()
    assert [len(probe.seen) for probe in seen] == [1, 0]
    assert model.asked == []
