"""How much is recorded of variables: what grows at its end is recorded once, and comes back from what it has more."""

from __future__ import annotations

import pytest

from letitloop.adapters.smolagents import durable_agent
from letitloop.codecs import default_codecs
from letitloop_smolagents._growth import Graphs
from tests.smolagents.helpers import agent_of


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
