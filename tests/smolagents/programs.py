"""The agents that are killed at every event. Each program is called with its evidence directory, and its result is compared."""

from __future__ import annotations

import re
import warnings

from smolagents import AgentError, CodeAgent, ToolCallingAgent

from letitloop import Ledger, UnknownOutcome, effect
from letitloop.adapters.smolagents import SmolagentsWALCallback
from letitloop.store.directory import resolve_store
from letitloop.testing import CallLog
from tests.effects.bank import Bank
from tests.smolagents.scripted import Pay, Probe, Script, Streaming, calls, code

warnings.simplefilter("ignore")
QUIET = {"verbosity_level": -1}


def paying(evidence):
    return {"pay": effect(key="invoice/{number}", provider=Bank(str(evidence / "bank"), "window"), recover="resend")}


def paid(evidence):
    return sorted(str(one["arguments"]) for one in Bank(str(evidence / "bank"), "window").done())


def told(agent):
    """Return what an agent's memory holds, without times and random numbers."""
    steps = []
    for step in agent.memory.steps:
        error = getattr(step, "error", None)
        said = f"{getattr(step, 'observations', '') or ''} {error or ''} {getattr(step, 'plan', '')}"
        steps.append((type(step).__name__, getattr(step, "step_number", 0), re.sub(r"0\.\d+", "RANDOM", said)))
    return steps


CODE = [
    """
import random, time
x = random.random()
started = time.time()
rows = [1, 2]
same = rows
def double(n):
    return 2 * n
class Box:
    size = 3
    def __init__(self, content):
        self.content = content
    def big(self):
        return self.content > self.size
box = Box(5)
triple = lambda n: 3 * n
print("first", x)
""",
    """
rows.append(probe(what="rows " + str(len(rows))))
again = pay(number="a-1", amount=double(box.content))
print(same, again, triple(2))
""",
    """
before = probe(what="before")
raise ValueError("nothing " + before)
""",
    """
box.content = probe(what=x > 0)
other = pay(number="a-2", amount=7)
gen = (n for n in [10, 20])
first = next(gen)
""",
    """
rows.append(next(gen))
final_answer([rows is same, rows, box.big(), box.content, double(4), triple(4), 0 < x < 1, started > 1, first])
""",
]


def code_agent(evidence):
    log = CallLog(evidence)
    agent = CodeAgent(
        tools=[Probe(log, lambda what: 9 if what is True else f"<{what}>"), Pay()],
        model=Script(map(code, CODE), log),
        step_callbacks=[SmolagentsWALCallback(session_id="code", tools=paying(evidence))],
        **QUIET,
    )
    return agent.run("analyse"), told(agent), paid(evidence), agent.monitor.total_input_token_count


def tool_agent(evidence):
    log = CallLog(evidence)

    def answer(what):
        if what == "bad":
            raise ValueError("it broke")
        return f"<{what}>"

    agent = ToolCallingAgent(
        tools=[Probe(log, answer), Pay()],
        model=Script(
            [
                calls(
                    ("1", "probe", {"what": "one"}), ("2", "pay", {"number": "b-1", "amount": 1}), ("3", "probe", {"what": "two"})
                ),
                '{"name": "probe", "arguments": {"what": "text"}}',
                calls(("", "probe", {"what": "p"}), ("", "probe", {"what": "q"}), ("", "pay", {"number": "b-2", "amount": 2})),
                calls(("9", "probe", {"what": "bad"})),
                '{"name": "pay", "arguments": {"number": "b-3", "amount": 3}}',
                calls(("7", "final_answer", {"answer": "done"})),
            ],
            log,
        ),
        step_callbacks=[SmolagentsWALCallback(session_id="tools", tools=paying(evidence))],
        max_tool_threads=4,
        **QUIET,
    )
    return str(agent.run("look")), [(name, number, said) for name, number, said in told(agent)], paid(evidence)


def planning_agent(evidence):
    log = CallLog(evidence)
    agent = CodeAgent(
        tools=[Probe(log)],
        model=Script(map(code, ["a = probe(what='a')", "b = a + probe(what='b')", "c = b * 2", "final_answer(c)"]), log),
        step_callbacks=[SmolagentsWALCallback(session_id="planning")],
        planning_interval=2,
        final_answer_checks=[lambda answer, memory, agent: len(answer) == 12],
        **QUIET,
    )
    return agent.run("plan it"), told(agent)


HELPER = """
try:
    found
except Exception:
    found = []
found.append(search(what="deep " + str(len(found))))
pay(number="c-" + str(len(found)), amount=1)
"""  # the second call of the helper finds the variables of the first


def managed_agent(evidence):
    log = CallLog(evidence)
    helper = CodeAgent(
        tools=[Probe(log, name="search"), Pay()],
        model=Script(map(code, [HELPER, "final_answer(found)"]), log, name="helper"),
        name="helper",
        description="It helps.",
        **QUIET,
    )
    second = ToolCallingAgent(
        tools=[Probe(log, name="ask")],
        model=Script(
            [calls(("1", "ask", {"what": "wide"})), calls(("2", "final_answer", {"answer": "wide enough"}))], log, name="second"
        ),
        name="second",
        description="It asks.",
        **QUIET,
    )
    agent = CodeAgent(
        tools=[Probe(log)],
        managed_agents=[helper, second],
        model=Script(
            map(
                code,
                [
                    "first = helper(task='find it')\nkept = probe(what='top')",
                    "more = helper(task='find it again')\nwide = second(task='ask')",
                    "final_answer([first, more, kept, wide])",
                ],
            ),
            log,
        ),
        step_callbacks=[SmolagentsWALCallback(session_id="managed", tools=paying(evidence))],
        **QUIET,
    )
    return str(agent.run("delegate")), told(agent), told(helper), helper.python_executor.state["found"], paid(evidence)


def parallel_managed_agent(evidence):
    """A managed agent that answers with several calls at once, and is one of several calls itself."""
    log = CallLog(evidence)
    helper = ToolCallingAgent(
        tools=[Probe(log, name="search"), Pay()],
        model=Script(
            [
                calls(("1", "search", {"what": "x"}), ("2", "pay", {"number": "d-1", "amount": 1}), ("3", "search", {"what": "y"})),
                calls(("4", "final_answer", {"answer": "found"})),
            ],
            log,
            name="helper",
        ),
        name="helper",
        description="It helps.",
        max_tool_threads=3,
        **QUIET,
    )
    agent = ToolCallingAgent(
        tools=[Probe(log)],
        managed_agents=[helper],
        model=Script(
            [
                calls(("1", "helper", {"task": "find"}), ("2", "probe", {"what": "beside"})),
                calls(("3", "final_answer", {"answer": "all found"})),
            ],
            log,
        ),
        step_callbacks=[SmolagentsWALCallback(session_id="parallel", tools=paying(evidence))],
        **QUIET,
    )
    return str(agent.run("delegate")), told(agent), told(helper), paid(evidence)


OVER_A_SET = """
for number in set(["e-1", "e-2", "e-3"]):
    pay(number=number, amount=1)
paid = probe(what="paid")
"""


def unknown_agent(evidence):
    """A bank that tells nothing about a payment in flight: a person looks, says what happened, and the agent goes on."""
    ledger = Ledger(store=resolve_store(None))
    while True:
        log = CallLog(evidence)
        bank = Bank(str(evidence / "bank"), "opaque")
        callback = SmolagentsWALCallback(session_id="unknown", tools={"pay": effect(key="invoice/{number}", provider=bank)})
        agent = CodeAgent(
            tools=[Probe(log), Pay()],
            model=Script(map(code, [OVER_A_SET, "final_answer(paid)"]), log),
            step_callbacks=[callback],
            **QUIET,
        )
        try:
            result = agent.run("pay")
        except UnknownOutcome as open_:
            callback.close()
            done = any(open_.key.endswith(f"/{one['arguments']['number']}") for one in bank.done())
            said_so = {"outcome": "succeeded" if done else "failed", "evidence": "the bank's books", "by": "Ada"}
            ledger.resolve(open_.namespace, open_.key, result={"moved": 1} if done else None, **said_so)
            if not done:
                ledger.retry_failed(open_.namespace, open_.key, by="human Ada")
        else:
            return result, told(agent), sorted(str(one["arguments"]) for one in bank.done())


def streaming_agent(evidence):
    log = CallLog(evidence)
    agent = CodeAgent(
        tools=[Probe(log)],
        model=Streaming(map(code, ["a = probe(what='a')", "b = probe(what='b')", "final_answer(a + b)"]), log),
        step_callbacks=[SmolagentsWALCallback(session_id="streaming")],
        stream_outputs=True,
        **QUIET,
    )
    steps = [type(step).__name__ for step in agent.run("stream it", stream=True)]
    return steps, told(agent)


def several_runs(evidence):
    log = CallLog(evidence)
    agent = CodeAgent(
        tools=[Probe(log)],
        model=Script(map(code, ["x = probe(what=which)\nfinal_answer(x)", "y = x + probe(what='y')\nfinal_answer(y)"]), log),
        step_callbacks=[SmolagentsWALCallback(session_id="several")],
        **QUIET,
    )
    first = agent.run("one", additional_args={"which": "first"})
    again = agent.run("once more", additional_args={"which": "second"})
    more = agent.run("two", reset=False)
    return first, again, more, told(agent)


def inner_agents(evidence):
    """Agents that tools run, in this session and in another one, and one managed agent that an answer calls twice."""
    log = CallLog(evidence)
    steps = ["found = look(what=q)", "final_answer('about ' + found)"]
    runs = {}
    for name, session in (("ask", "inner"), ("consult", "other")):
        tools = [Probe(log, name="look")]
        expert = CodeAgent(tools=tools, model=Script(map(code, steps), log, name=name), name=f"{name}_expert", **QUIET)
        SmolagentsWALCallback(session_id=session).bind(expert)
        runs[name] = lambda what, expert=expert: str(expert.run(what, additional_args={"q": what}))
    helper = CodeAgent(
        tools=[],
        model=Script(map(code, ["final_answer('helped')"]), log, name="helper"),
        name="helper",
        description="It helps.",
        **QUIET,
    )
    agent = ToolCallingAgent(
        tools=[Probe(None, answer, name=name) for name, answer in runs.items()],
        managed_agents=[helper],
        model=Script(
            [
                calls(("1", "ask", {"what": "x"})),
                calls(("2", "ask", {"what": "y"}), ("3", "ask", {"what": "z"})),
                calls(("4", "helper", {"task": "a"}), ("5", "helper", {"task": "b"})),
                calls(("6", "consult", {"what": "v"})),
                calls(("7", "consult", {"what": "w"})),
                calls(("8", "final_answer", {"answer": "done"})),
            ],
            log,
        ),
        step_callbacks=[SmolagentsWALCallback(session_id="inner")],
        **QUIET,
    )
    return str(agent.run("go")), told(agent)


def survived_ends(evidence):
    """A failing tool, a check that raises, and a run that is interrupted and gone on from."""
    log = CallLog(evidence)

    def lose(what):
        raise TimeoutError("no reply")

    def interrupt(step, agent):
        if step.step_number == 2 and agent.task == "one":
            agent.interrupt()

    def good(answer, memory, agent):
        if answer == 1:
            raise ValueError("not one")
        return True

    agent = CodeAgent(
        tools=[Probe(log, lose)],
        model=Script(
            map(
                code,
                [
                    "x = 1",
                    "probe(what='a')",
                    "try:\n    probe(what='b')\nexcept Exception:\n    x = 2",
                    "final_answer(1)",
                    "final_answer(x)",
                ],
            ),
            log,
        ),
        step_callbacks=[SmolagentsWALCallback(session_id="ends"), interrupt],
        final_answer_checks=[good],
        **QUIET,
    )
    ends = []
    for task in ("one", "two"):
        try:
            ends.append(agent.run(task, reset=False))
        except AgentError as exc:
            ends.append(str(exc))
    return ends, told(agent)
