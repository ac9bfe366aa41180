"""Whole CrewAI programs that are killed everywhere; each returns what it came to, what was paid, and what it used."""

from __future__ import annotations

import asyncio
import json
import os
import warnings
from pathlib import Path

from tests.crewai.scripted import Scripted, action, call, final, here, hit, prompt_of, text_of  # sets the environment first

# isort: split
from crewai import Agent, Crew, Process, Task
from crewai.core.providers.human_input import SyncHumanInputProvider, set_provider
from crewai.flow import Flow, and_, listen, or_, persist, router, start
from crewai.tasks.conditional_task import ConditionalTask
from crewai.tools import BaseTool, tool
from pydantic import BaseModel

from letitloop import Ledger, UnknownOutcome, effect
from letitloop.adapters.crewai import CrewAIDurabilityHandler, LetItLoopFlowPersistence
from letitloop.store.directory import resolve_store
from letitloop.testing import CallLog
from tests.effects.bank import Bank

PRELOAD = ("tests.crewai.programs",)
EXECUTOR = Agent.model_fields["executor_class"].default
if hasattr(EXECUTOR, "flow_definition"):
    EXECUTOR.flow_definition()  # CrewAI makes it at first use, and fails if two threads do so at once


class World:
    """What lies outside the program: a bank, and a log of calls."""

    def __init__(self, evidence, kind="window"):
        os.environ["XDG_DATA_HOME"] = str(evidence / "data")
        self.calls = CallLog(evidence)
        self.bank = Bank(evidence / "bank", kind)
        self.handler = CrewAIDurabilityHandler(
            session_id="killed",
            tools={"pay": effect(key="invoice/{number}", provider=self.bank, recover="resend"), "count": "rerun"},
        )

    def model(self, script, **settings):
        return Scripted(script, self.calls, **settings)

    def tools(self, here=here):
        calls = self.calls

        @tool
        def look(what: str) -> str:
            """Look something up."""
            with calls.call(here()):
                hit("tool.look")
                return f"{what} is {len(what)}"

        @tool
        def trouble(what: str) -> str:
            """Do something, and then fail."""
            with calls.call(here()):
                hit("tool.trouble")
                raise ValueError(f"{what} cannot be done")

        @tool
        def pay(number: int, amount: int) -> str:
            """Pay an invoice."""
            raise AssertionError("the bank pays")

        class Think(BaseTool):
            name: str = "think"
            description: str = "Think about something."

            def _run(self, what: str) -> str:
                with calls.call(here()):
                    hit("tool.think")
                    return f"{what}: thought"

        @tool
        def count(what: str) -> str:
            """Count the letters of something."""
            return str(len(what))

        return [look, trouble, pay, Think(), count]

    def paid(self):
        return sorted(str(one["arguments"]) for one in self.bank.done())

    def agent(self, role, script, **options):
        model = self.model(script, **options.pop("model", {}))
        return Agent(role=role, goal=f"be a {role}", backstory="long", llm=model, verbose=False, **options)

    def mark(self, name):
        """A callback that counts."""

        def callback(_):
            with self.calls.call(f"{name} in {here()}"):
                hit("callback")

        return callback


def said(output):
    """What a kickoff came to, without what is new each time."""
    return [(one.raw, one.pydantic, one.json_dict, one.agent) for one in output.tasks_output], str(output), output.token_usage


class Steps:
    """A script that goes through answers by how many results the conversation holds, one list for each task by its words."""

    def __init__(self, **answers):
        self.answers = answers

    def __call__(self, messages, asked):
        prompt = prompt_of(messages)
        done = sum(
            one["role"] == "tool" or (one["role"] == "assistant" and "Observation:" in str(one.get("content"))) for one in messages
        )
        for words, answers in self.answers.items():
            if f"Current Task: {words}" in prompt:
                if done < len(answers):
                    return answers[done]
                return final(f"{'again ' * ('validation' in prompt)}{words} after {done}: {len(text_of(messages))}")
        return final(f"nothing to do in {len(messages)}")


class Report(BaseModel):
    title: str
    count: int


def sequential(evidence):
    """Three tasks in words: tools that work, fail and pay, a guardrail that objects once, a typed output, callbacks, a file."""
    world = World(evidence)
    script = Steps(
        research=[action("look", what="topic"), action("trouble", what="it"), action("look", what="topic")],
        settle=[action("pay", number=1, amount=10), action("pay", number=2, amount=20), action("count", what="abc")],
        report=['Thought: done\nFinal Answer: {"title": "all", "count": 3}'],
    )
    agent = world.agent("clerk", script, tools=world.tools(), step_callback=world.mark("step"))

    def longer(output):
        with world.calls.call(f"guardrail of {output.raw[:5]}"):
            hit("guardrail")
            return (True, output.raw) if output.raw.startswith("again") else (False, "say it again")

    tasks = [
        Task(description="research {topic}", expected_output="facts", agent=agent, callback=world.mark("own")),
        Task(description="settle it", expected_output="a receipt", agent=agent, guardrail=longer),
        Task(description="report", expected_output="json", agent=agent, output_pydantic=Report, output_file="report.json"),
    ]
    crew = Crew(name="clerks", agents=[agent], tasks=tasks, task_callback=world.mark("crew"))
    world.handler.wrap_crew(crew)
    output = crew.kickoff(inputs={"topic": "AI"})
    with open("report.json") as file:
        return said(output), output.pydantic, file.read(), world.paid(), crew.usage_metrics


def native(evidence):
    """Native tool calls, several at a time: the same call twice in one answer, and again in the next."""
    world = World(evidence)
    script = Steps(
        gather=[
            [
                call("look", "c1", what="a"),
                call("look", "c1", what="a"),
                call("think", "c2", what="b"),
                call("pay", "c3", number=7, amount=1),
            ],
            None,
            None,
            None,
            [call("look", "c4", what="a"), call("trouble", "c5", what="c")],
        ],
    )
    # which of two equal calls at one time is the first may change; they are told apart by their number alone
    agent = world.agent("clerk", script, tools=world.tools(lambda: here().partition("#")[0]), model={"native": True})
    crew = Crew(agents=[agent], tasks=[Task(description="gather", expected_output="facts", agent=agent)])
    world.handler.wrap_crew(crew)
    return said(crew.kickoff()), world.paid()


def hierarchical(evidence):
    """A manager made by CrewAI delegates to two coworkers, one of them twice with the same words."""
    world = World(evidence)

    def manage(messages, asked):
        done = sum(one["role"] == "assistant" and "Observation:" in str(one.get("content")) for one in messages)
        orders = [("miner", "dig"), ("miner", "dig"), ("smith", "forge")]
        if done < len(orders):
            coworker, task = orders[done]
            return action("delegate_work_to_coworker", coworker=coworker, task=task, context="now")
        return final(f"all was done: {len(text_of(messages))}")

    script = Steps(dig=[action("look", what="gold")], forge=[action("pay", number=9, amount=9), action("look", what="iron")])
    agents = [world.agent(role, script, tools=world.tools()) for role in ("miner", "smith")]
    crew = Crew(
        agents=agents,
        tasks=[Task(description="make a ring", expected_output="a ring")],
        process=Process.hierarchical,
        manager_llm=world.model(manage),
    )
    world.handler.wrap_crew(crew)
    return said(crew.kickoff()), world.paid(), crew.usage_metrics


def side_by_side(evidence):
    """Two tasks at a time, one that sums them up, and two conditional ones, of which one is left out."""
    world = World(evidence)
    script = Steps(one=[action("look", what="one"), action("pay", number=1, amount=1)], two=[action("think", what="two")])
    agents = [world.agent(role, script, tools=world.tools()) for role in ("first", "second", "third")]

    def condition(wanted):
        def ask(output):
            with world.calls.call(f"condition {wanted}"):
                hit("condition")
                return wanted

        return ask

    tasks = [
        Task(description="one", expected_output="x", agent=agents[0], async_execution=True),
        Task(description="two", expected_output="x", agent=agents[1], async_execution=True),
        Task(description="sum", expected_output="x", agent=agents[2]),
        ConditionalTask(description="never", expected_output="x", agent=agents[0], condition=condition(False)),
        ConditionalTask(description="always", expected_output="x", agent=agents[1], condition=condition(True)),
    ]
    crew = Crew(agents=agents, tasks=tasks)
    world.handler.wrap_crew(crew)
    return said(crew.kickoff()), world.paid()


def small_crew(world, name="small"):
    script = Steps(fetch=[action("look", what="it"), action("pay", number=5, amount=5)])
    agent = world.agent("clerk", script, tools=world.tools())
    tasks = [
        Task(description="fetch {what}", expected_output="x", agent=agent),
        Task(description="tell {what}", expected_output="x", agent=agent),
    ]
    return world.handler.wrap_crew(Crew(name=name, agents=[agent], tasks=tasks))


def for_each(evidence):
    """Three items, two of them equal; then one of a single kickoff of the same crew, twice."""
    world = World(evidence)
    crew = small_crew(world)
    outputs = crew.kickoff_for_each(inputs=[{"what": "a"}, {"what": "b"}, {"what": "a"}])
    batch = crew.usage_metrics
    return [said(one) for one in outputs], batch, said(crew.kickoff({"what": "c"})), said(crew.kickoff({"what": "c"})), world.paid()


def for_each_async(evidence):
    """Items at the same time, by threads and by tasks."""
    world = World(evidence)
    threads, tasks = small_crew(world, "threads"), small_crew(world, "tasks")

    async def main():
        inputs = [{"what": "a"}, {"what": "a"}]
        return await threads.kickoff_for_each_async(inputs=inputs), await tasks.akickoff_for_each(inputs=inputs)

    return [said(one)[:2] for outputs in asyncio.run(main()) for one in outputs], world.paid()  # stock usage depends on timing


def asynchronous(evidence):
    """A crew in an event loop: its tasks, callbacks and tools are async too."""
    world = World(evidence)

    async def told(output):
        with world.calls.call(f"told in {here()}"):
            hit("callback")

    @tool
    async def wander(where: str) -> str:
        """Go somewhere."""
        with world.calls.call(here()):
            await asyncio.sleep(0)
            hit("tool.wander")
            return f"been to {where}"

    script = Steps(one=[action("wander", where="here"), action("look", what="it")], two=[action("pay", number=2, amount=2)])
    agents = [world.agent(role, script, tools=[wander, *world.tools()]) for role in ("first", "second")]
    tasks = [
        Task(description="one", expected_output="x", agent=agents[0], async_execution=True, callback=told),
        Task(description="two", expected_output="x", agent=agents[1], async_execution=True, output_json=Report),
        Task(description="sum", expected_output="x", agent=agents[0], output_file="sum.txt"),
    ]
    script.answers["two"].append('Thought: done\nFinal Answer: {"title": "two", "count": 2}')
    crew = world.handler.wrap_crew(Crew(agents=agents, tasks=tasks))

    async def main():
        first = await crew.akickoff()
        return said(first), said(await crew.kickoff_async())

    return asyncio.run(main()), world.paid()


def streaming(evidence):
    """Streams, one by a thread and one by an event loop."""
    world = World(evidence)
    crews = small_crew(world, "one"), small_crew(world, "two")
    for crew in crews:
        crew.stream = True

    async def main():
        stream = await crews[1].akickoff({"what": "b"})
        async for _ in stream:
            pass
        return stream.result

    stream = crews[0].kickoff({"what": "a"})
    for _ in stream:
        pass
    return said(stream.result), said(asyncio.run(main())), world.paid()


def retries(evidence):
    """What CrewAI does again without any crash: a tool that fails after its effect, a model that fails after a tool."""
    world = World(evidence)
    failed = []

    def script(messages, asked):
        text = text_of([one for one in messages if one["role"] == "assistant"])
        if "Observation" not in text:
            return action("trouble", what="it")
        if "is 4" not in text:
            return action("look", what="gold")
        if len(failed) < 2:
            failed.append(1)
            return RuntimeError("the model is down")
        if "moved" not in text:
            return action("pay", number=3, amount=3)
        return final(f"at last: {len(text)}")

    agent = world.agent("clerk", script, tools=world.tools())
    crew = world.handler.wrap_crew(Crew(agents=[agent], tasks=[Task(description="try", expected_output="x", agent=agent)]))
    output = crew.kickoff()
    return output.raw, world.paid()


def planned(evidence):
    """A planner, a human who asks for more once, and a text guardrail."""
    world = World(evidence)

    def script(messages, asked):
        prompt = prompt_of(messages)
        if "Create the most descriptive plan" in prompt:
            plans = [{"task_number": number, "task": "t", "plan": f" Plan {number}."} for number in (1, 2)]
            return json.dumps({"list_of_plans_per_task": plans})
        if "Ensure the following task result complies" in prompt:
            return json.dumps({"valid": "better" in prompt, "feedback": "say it in another way"})
        again = any("more" in str(one.get("content")) and one["role"] == "user" for one in messages[1:])
        return final(f"{'better ' if 'validation' in prompt else ''}{'more ' * again}{'Plan' in prompt} {len(prompt)}")

    can_be_corrected = hasattr(EXECUTOR, "_format_feedback_message")  # in the oldest 1.15 a human's answer is an error
    agent = world.agent("clerk", script)
    tasks = [
        Task(description="one", expected_output="x", agent=agent, human_input=can_be_corrected),
        Task(description="two", expected_output="x", agent=agent, guardrail="it has to be good"),
    ]
    crew = Crew(agents=[agent], tasks=tasks, planning=True, planning_llm=world.model(script))
    world.handler.wrap_crew(crew)

    class Human(SyncHumanInputProvider):
        def _prompt_input(self, crew):
            with world.calls.call(here()):
                hit("human")
                return "more, please" if here().endswith("human") else ""

    set_provider(Human())
    return said(crew.kickoff())


class Count(BaseModel):
    id: str = ""
    a: int = 0
    b: int = 0
    where: Path = Path("nowhere")


def flowing(evidence):
    """A flow with a router that goes round twice, a listener beside it, a crew inside, and a persisted state."""
    world = World(evidence)
    crew = small_crew(world)

    class Work(Flow[Count]):
        _skip_auto_memory = True  # CrewAI imports a vector database for it, which takes seconds

        @start()
        def begin(self):
            with world.calls.call(here()):
                hit("flow.begin")
                self.state.a += 1
                self.state.where = Path("here")
                return ("begun", self.state.a)

        @listen(begin)
        async def fetch(self, begun):
            with world.calls.call(here()):
                hit("flow.fetch")
            return (await crew.kickoff_async({"what": begun[0]})).raw

        @router(or_(fetch, "again"))
        def decide(self):
            with world.calls.call(here()):
                hit("flow.decide")
                self.state.b += 1
                return "again" if self.state.b < 3 else "enough"

        @listen("enough")
        def end(self):
            with world.calls.call(here()):
                hit("flow.end")
                return self.state.model_dump(exclude={"id"}), len(self.state.id), self.ask("how was it?")

    class Person:
        def request_input(self, message, flow, metadata=None):
            with world.calls.call(here()):
                hit("flow.asked")
                return "good"

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        flow = persist(LetItLoopFlowPersistence(store=str(evidence / "states")))(Work)(
            input_provider=Person(), suppress_flow_events=True
        )
    world.handler.wrap_flow(flow)
    result = flow.kickoff(inputs={"id": "order-42"})
    return result, flow.state.a, flow.state.b, flow.state.where, world.paid()


def joining(evidence):
    """A flow whose methods run side by side, and whose way depends on which of them is the first to finish."""
    world = World(evidence)

    class Work(Flow):
        _skip_auto_memory = True

        def work(self, name):
            with world.calls.call(here()):
                hit(f"flow.{name}")
                self.state[name] = len(name)
                return name

        @start()
        def slow(self):
            return self.work("slow")

        @start()
        async def quick(self):
            await asyncio.sleep(0)
            return self.work("quick")

        @start()
        async def other(self):
            return self.work("other")

        @listen(or_(slow, quick, other))
        def first(self, winner):
            self.work("first")
            return winner

        @router(and_(or_(slow, quick), other))
        async def both(self, last):
            self.work("both")
            return f"after {last}"

        @listen(or_("after slow", "after quick", "after other"))
        def way(self):
            return self.work("way")

        @listen(and_(first, way))
        def end(self):
            self.work("end")
            return sorted(key for key in self.state if key != "id")

    flow = Work(suppress_flow_events=True)
    world.handler.wrap_flow(flow)
    result = flow.kickoff()
    assert result == flow.method_outputs[-1]
    return result, len(flow.method_outputs), len(flow.state), world.paid()


def unknown(evidence):
    """A bank that tells nothing about a payment whose reply was lost: a person looks, says what happened, and goes on."""
    ledger = Ledger(store=resolve_store(None))
    outputs = []
    for name, options in (("sync", {}), ("side by side", {"async_execution": True})):
        world = World(evidence, "opaque")
        number = 10 if name == "sync" else 20
        script = Steps(pay=[action("pay", number=number, amount=1), action("pay", number=number + 1, amount=1)])
        agent = world.agent("clerk", script, tools=world.tools())
        crew = Crew(name=name, agents=[agent], tasks=[Task(description="pay", expected_output="x", agent=agent, **options)])
        world.handler.wrap_crew(crew)
        while True:
            try:
                outputs.append(said(crew.kickoff()))
                break
            except UnknownOutcome as open_:
                done = any(f"/{one['arguments']['number']}" in open_.key for one in world.bank.done())
                said_so = {"outcome": "succeeded" if done else "failed", "evidence": "the bank's books", "by": "Ada"}
                ledger.resolve(open_.namespace, open_.key, result={"moved": 1} if done else None, **said_so)
                if not done:
                    ledger.retry_failed(open_.namespace, open_.key, by="human Ada")
        world.handler.close()
    return outputs, world.paid()


ALL = [
    sequential,
    native,
    hierarchical,
    side_by_side,
    for_each,
    for_each_async,
    asynchronous,
    streaming,
    retries,
    planned,
    flowing,
    joining,
    unknown,
]
AT_ONCE = {native: 3, side_by_side: 2, for_each_async: 2, asynchronous: 2, flowing: 2, joining: 4}
"""How many recorded calls may be under way at one instant; the ledger sees to payments."""
