"""Variables of the local Python executor after a resume: those of the uninterrupted run, or the code is executed again."""

from __future__ import annotations

import collections

import numpy
import pandas
import pytest
from smolagents import CodeAgent

from letitloop import StepChanged, UnknownOutcome
from letitloop.adapters.smolagents import SmolagentsWALCallback
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

    from letitloop_smolagents._graph import Thawer, World

    world = World({}, {}, {}, ["math"])
    assert Thawer(world, [["attr", "math", "sqrt"]]).value([0])(9) == 3
    for node in (["module", "subprocess"], ["attr", "os", "system"]):
        with pytest.raises(InterpreterError, match="not allowed"):
            Thawer(world, [node]).value([0])
    with pytest.raises(KeyError):
        Thawer(world, [["builtin", "eval"]]).value([0])


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
