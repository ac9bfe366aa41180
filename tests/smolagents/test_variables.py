"""Variables of the local Python executor after a resume: those of the uninterrupted run, or the code is executed again."""

from __future__ import annotations

import collections
import random

import numpy
import pandas
import pytest

from letitloop import StepChanged
from tests.smolagents.conftest import Died
from tests.smolagents.helpers import agent_of, resumed

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


DRAWS = ["a = random.random()", "b = [random.random() for _ in range(700)][-1]", "c = random.gauss(0, 1)", "g = (n for n in [a])"]


@pytest.mark.parametrize("first", ["import random", "import random\nrandom.seed(3)"], ids=["program", "code"])
@pytest.mark.parametrize("at", range(1, 6))
def test_numbers_go_on_after_a_death_as_they_would_have_gone_on(next_life, monkeypatch, tmp_path, first, at):
    """Seeded by the program or by the code: none that was handed out is handed out again."""
    steps = [first, *DRAWS, "final_answer([a, b, c, random.gauss(0, 1), random.random()])"]
    steps.insert(at, "die(what=1)")
    results = []
    for lives in ([False], [True, False]):
        monkeypatch.setenv("LETITLOOP_STORE", str(tmp_path / str(len(lives))))
        for dies in lives:
            random.seed(42)
            agent, *_ = agent_of(steps, dies=dies)
            if dies:
                with pytest.raises(Died):
                    agent.run("go")
            else:
                results.append(agent.run("go"))
            next_life()
    assert results[0] == results[1]


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


def test_counter_of_the_standard_library_is_itself(next_life):
    _, _, agent = resumed(next_life, "from collections import Counter\nc = Counter('aab')", "final_answer(1)")
    assert agent.python_executor.state["c"] == collections.Counter("aab")


# --- any variables -----------------------------------------------------------------------------------------------------------


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
