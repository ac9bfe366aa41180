"""Agents whose models are told of sets: ``python -m tests.smolagents.other_order LIFE``, each life with another PYTHONHASHSEED.

Life 0 is the stock framework's, in life 1 each agent's process ends at its last question, life 2 goes on. What came of each
agent is printed as JSON.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import sys
import traceback
import types
import warnings

from pydantic import BaseModel
from smolagents import CodeAgent, ToolCallingAgent

from letitloop.adapters.smolagents import durable_agent
from tests.smolagents.conftest import Died
from tests.smolagents.scripted import Probe, Script, calls, code
from tests.smolagents.test_tools import Elsewhere

warnings.simplefilter("ignore")
LIFE = int(sys.argv[1]) if __name__ == "__main__" else 0
NAMES = "['red', 'green', 'blue', 'white', 'black', 'cyan']"
done: list[str] = []


class Mortal(Script):
    """Ends the process in life 1 when it is asked for one of its answers."""

    def __init__(self, answers, dies_at=None, **kwargs):
        super().__init__(answers, **kwargs)
        self.dies_at = dies_at

    def generate(self, *args, **kwargs):
        answer = super().generate(*args, **kwargs)
        n = int(self.asked[-1].split()[0]) if self.asked[-1][0].isdigit() else -1
        if LIFE == 1 and n == self.dies_at:
            raise Died
        done.append(f"{self.name} answered {n}")
        return answer


def colours():
    return set(eval(NAMES))


@dataclasses.dataclass
class Found:
    tags: set


class Model(BaseModel):
    tags: set


Pair = collections.namedtuple("Pair", "name tags")  # noqa: PYI024


def look(answer=lambda what: f"<{what}>", name="probe"):
    def looked(what):
        if name != "again":
            done.append(f"{name} {''.join(sorted(str(what)))}")  # in no order
        return answer(what)

    return Probe(answer=looked, name=name)


def one(name, **arguments):
    return calls(("1", name, arguments))


def calling(answers, tools, policies=None, **kwargs):
    agent = ToolCallingAgent(tools=tools, model=Mortal(answers, len(answers) - 1), verbosity_level=-1, **kwargs)
    return durable(agent, policies)


def coding(steps, tools=(), policies=None, **kwargs):
    agent = CodeAgent(tools=list(tools), model=Mortal(list(map(code, steps)), len(steps) - 1), verbosity_level=-1, **kwargs)
    return durable(agent, policies)


def durable(agent, policies):
    return durable_agent(agent, session_id=sys._getframe(2).f_code.co_name, tools=policies) if LIFE else agent


def member(answers, tools=(), cls=ToolCallingAgent, **kwargs):
    model = Mortal(answers, name="member")
    return cls(tools=list(tools), model=model, name="helper", description="helps", verbosity_level=-1, **kwargs)


# --- where the text of a set comes into a prompt ----------------------------------------------------------------------------


def additional_arguments():
    agent = coding(["probe(what='a')", "final_answer(sorted(tags))"], [look()])
    return agent.run("go", additional_args={"tags": colours(), "n": 1})


def additional_arguments_that_stay():
    agent = coding(["final_answer(1)", "probe(what='a')", "final_answer(sorted(tags))"], [look()], planning_interval=5)
    agent.model.plans = ["plan"]
    agent.run("go", additional_args={"tags": {"deep": [Found(colours())]}})
    return agent.run("more", reset=False, stream=False, additional_args={"tags": colours()})


def additional_arguments_in_a_stream():
    agent = coding(["probe(what='a')", "final_answer(sorted(tags))"], [look()])
    return list(agent.run("go", stream=True, additional_args={"tags": colours()}))[-1].output


def additional_arguments_of_a_member():
    helper = member([one("probe", what="ada"), one("final_answer", answer="sent")], [look()])
    steps = [f"names = set({NAMES})", "r = helper(task='Write', additional_args={'names': names})", "final_answer(r)"]
    return coding(steps, managed_agents=[helper]).run("go")


def results_of_tools():
    made = {
        "set": lambda _: colours(),
        "nested": lambda _: [{"a": (frozenset(colours()),)}],
        "key": lambda _: {frozenset(colours()): 1},
        "deque": lambda _: collections.deque([colours()]),
        "counter": lambda _: collections.OrderedDict(a=colours()),
        "dataclass": lambda _: Found(colours()),
        "pydantic": lambda _: Model(tags=colours()),
        "namedtuple": lambda _: Pair("a", colours()),
        "again": lambda _: types.SimpleNamespace(tags=colours()),
    }
    wanted = [one(name, what="x") for name in made if name != "again"]
    several = calls(("1", "set", {"what": "y"}), ("2", "dataclass", {"what": "y"}), ("3", "again", {"what": "y"}))
    tools = [look(answer, name) for name, answer in made.items()]
    agent = calling([*wanted, several, one("set", what="z"), one("final_answer", answer="ok")], tools, {"again": "rerun"})
    return agent.run("go")


def errors_of_tools():
    def fail(what):
        raise ValueError(what)

    tools = [look(fail), look(fail, "other")]
    agent = calling(
        [one("probe", what="tags"), one("other", what="n"), one("probe", what="b"), one("final_answer", answer="ok")], tools
    )
    return agent.run("go", additional_args={"tags": colours(), "n": 1})


def a_final_answer():
    agent = coding([f"final_answer(set({NAMES}))", "x = probe(what='a')", "final_answer(x)"], [look()])
    found = agent.run("which?")
    return [type(found).__name__, sorted(found), agent.run("go on", reset=False)]


def a_final_answer_of_a_call():
    agent = calling([one("final_answer", answer="tags"), one("probe", what="x"), one("final_answer", answer="ok")], [look()])
    found = agent.run("which?", additional_args={"tags": colours()})
    return [type(found).__name__, sorted(found), agent.run("go on", reset=False)]


def a_final_answer_that_is_refused():
    def check(answer, memory, agent):
        if isinstance(answer, set):
            raise ValueError(answer)
        return True

    steps = [f"final_answer(set({NAMES}))", "x = probe(what='a')", "final_answer(x)"]
    return coding(steps, [look()], final_answer_checks=[check]).run("go")


def a_table():
    steps = [f"import pandas\npandas.DataFrame({{'a': [set({NAMES})]}})", "probe(what='a')", "final_answer(1)"]
    return coding(steps, [look()], {"python_interpreter": "record"}, additional_authorized_imports=["pandas"]).run("go")


class Far(Elsewhere):
    def __call__(self, code_action):
        output = super().__call__(code_action)
        output.output = output.output or colours()
        return output


def code_elsewhere():
    executor = Far({"on": False})
    return coding(["1", "2", "final_answer(1)"], policies={"python_interpreter": "record"}, executor=executor).run("go")


def an_answer_of_a_member():
    helper = member([code(f"final_answer(set({NAMES}))")], cls=CodeAgent)
    wanted = [one("helper", task="t"), one("probe", what="x"), one("final_answer", answer="ok")]
    return calling(wanted, [look()], managed_agents=[helper]).run("go")


def a_full_answer_of_a_member():
    helper = member([code(f"final_answer(set({NAMES}))")], cls=CodeAgent, return_full_result=True, provide_run_summary=True)
    wanted = [one("helper", task="t"), one("probe", what="x"), one("final_answer", answer="ok")]
    return calling(wanted, [look()], managed_agents=[helper]).run("go")


def an_answer_of_a_member_that_code_passes_on():
    helper = member([code(f"final_answer(set({NAMES}))")], cls=CodeAgent)
    steps = ["r = helper(task='t')\nprint(r)\nx = len(probe(what=r))", "y = probe(what='b')", "final_answer([x, y])"]
    return coding(steps, [look()], managed_agents=[helper]).run("go")


def an_error_of_a_member():
    helper = member([ValueError("no")])
    wanted = [one("helper", task="t", additional_args="tags"), one("probe", what="x"), one("final_answer", answer="ok")]
    return calling(wanted, [look()], managed_agents=[helper]).run("go", additional_args={"tags": {"tags": colours()}})


SCENARIOS = [
    additional_arguments,
    additional_arguments_that_stay,
    additional_arguments_in_a_stream,
    additional_arguments_of_a_member,
    results_of_tools,
    errors_of_tools,
    a_final_answer,
    a_final_answer_of_a_call,
    a_final_answer_that_is_refused,
    a_table,
    code_elsewhere,
    an_answer_of_a_member,
    a_full_answer_of_a_member,
    an_answer_of_a_member_that_code_passes_on,
    an_error_of_a_member,
]


def main():
    told = {"order": list(colours())}
    for scenario in SCENARIOS:
        done.clear()
        try:
            came = str(scenario())
        except BaseException as exc:
            came = type(exc).__name__ if isinstance(exc, Died) else traceback.format_exc()
        told[scenario.__name__] = [came, list(done)]
    print(json.dumps(told))


if __name__ == "__main__":
    main()
