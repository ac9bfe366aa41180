"""Whole programs of workflows and agents that are killed everywhere; each returns what came of it, and what was paid."""

import asyncio
from dataclasses import dataclass

from llama_index.core.agent.workflow import AgentOutput, AgentWorkflow, FunctionAgent, ReActAgent
from llama_index.core.memory import ChatMemoryBuffer, Memory
from llama_index.core.utils import get_tokenizer
from llama_index.core.workflow import Context as AgentContext
from pydantic import BaseModel
from workflows import Context, Workflow, catch_error, step
from workflows.events import (
    Event,
    HumanResponseEvent,
    InputRequiredEvent,
    StartEvent,
    StepFailedEvent,
    StopEvent,
)
from workflows.retry_policy import retry_policy, stop_after_attempt, wait_fixed

import letitloop
from letitloop import Ledger, UnknownOutcome, effect
from letitloop.adapters.llamaindex import LetItLoopRuntime, durable_llm, durable_tool, durable_workflow
from letitloop.store.directory import resolve_store
from letitloop.testing import CallLog
from tests.effects.bank import Bank
from tests.llamaindex.scripted import Scripted, call, here, hit, results

get_tokenizer()  # 0.8 s, once for all trials of a sweep
PRELOAD = (
    "sqlalchemy.dialects.sqlite.aiosqlite",
    "tests.llamaindex.programs",
)


class World:
    """What lies outside the program: a bank, and a log of calls."""

    def __init__(self, evidence, kind="window"):
        self.calls = CallLog(evidence)
        self.bank = Bank(evidence / "bank", kind)
        self.pay = effect(key="invoice/{number}", provider=self.bank, recover="resend")
        self.runtime = LetItLoopRuntime(tools={"pay": self.pay})

    def do(self, what):
        """A call inside a step, which is a letitloop step."""

        def act():
            with self.calls.call(what):  # not by its place: work items that are on their way may be numbered in another order
                hit("work")
                return f"{what} done"

        return letitloop.step(what.split()[0], act)

    def paid(self):
        return sorted(str(one["arguments"]) for one in self.bank.done())

    def tools(self):
        calls = self.calls

        def look(what: str) -> str:
            """Look something up."""
            with calls.call(here()):
                hit("tool.look")
                return f"{what} is {len(what)}"

        async def think(what: str) -> str:
            """Think about something."""
            with calls.call(here()):
                await asyncio.sleep(0)
                hit("tool.think")
                if what == "trouble":
                    raise ValueError("this cannot be thought")
                return f"{what}: thought"

        async def note(ctx: AgentContext, text: str) -> str:
            """Note something in the workflow's state."""
            with calls.call(here()):
                notes = await ctx.store.get("notes", default=[])
                await ctx.store.set("notes", [*notes, text])
                hit("tool.note")
                return f"{len(notes) + 1} notes"

        def pay(number: int, amount: int) -> str:
            """Pay an invoice."""
            raise AssertionError("the bank pays")

        return [look, think, note, pay]


def finish(world, handler):
    async def main():
        return await handler()

    return asyncio.run(main())


# --- workflow shapes ---------------------------------------------------------------------------------------------------------


class Work(Event):
    number: int


class Done(Event):
    number: int
    text: str


class Flow(Workflow):
    """A workflow with a world."""

    def __init__(self, world, **options):
        super().__init__(**{"timeout": 30, "runtime": world.runtime, **options})
        self.world = world


class FanOut(Flow):
    """Sends events to several workers, which count in the shared state, and collects what they make of them."""

    @step
    async def begin(self, ctx: Context, ev: StartEvent) -> Work | None:
        await ctx.store.set("count", 0)
        await ctx.store.set("seen", {ev.topic: 1})
        self.world.do("prepare")
        for number in range(ev.width):
            ctx.send_event(Work(number=number))
        return None

    @step(num_workers=3)
    async def work(self, ctx: Context, ev: Work) -> Done:
        async with ctx.store.edit_state() as state:
            state.count += 1
        text = self.world.do(f"first {ev.number}")
        await asyncio.sleep(0)
        ctx.write_event_to_stream(Done(number=-ev.number, text=text))
        count = await ctx.store.get("count")
        await ctx.store.set("count", count + 1)
        self.world.do(f"second {ev.number}")
        return Done(number=ev.number, text=text)

    @step
    async def join(self, ctx: Context, ev: Done) -> StopEvent | None:
        done = ctx.collect_events(ev, [Done] * 5)
        if done is None:
            return None
        self.world.do("join")
        return StopEvent(result={(one.number, one.text) for one in done} | {await ctx.store.get("count")})


def fan_out(evidence):
    """Streams as well: what a step showed before a crash is shown again."""
    world = World(evidence)

    async def main():
        handler = FanOut(world).run(run_id="fan-out", topic="numbers", width=5)
        shown = [event.number async for event in handler.stream_events() if isinstance(event, Done)]
        return await handler, sorted(set(shown))

    return asyncio.run(main())


class Parts(Event):
    number: int


class Piece(Event):
    number: int


class Lists(Flow):
    """Returns lists of events, and takes lists of them."""

    @step
    async def begin(self, ev: StartEvent) -> list[Parts]:
        self.world.do("split")
        return [Parts(number=number) for number in range(3)]

    @step(num_workers=2)
    async def part(self, ev: Parts) -> Piece:
        self.world.do(f"part {ev.number}")
        await asyncio.sleep(0)
        return Piece(number=ev.number * 10)

    @step
    async def join(self, pieces: list[Piece]) -> StopEvent:
        self.world.do("join")
        return StopEvent(result=sorted(one.number for one in pieces))


def lists(evidence):
    world = World(evidence)

    async def main():
        return await Lists(world).run(run_id="lists")

    return asyncio.run(main())


class Flaky(Exception):
    pass


class Tries(Flow):
    """A step that is retried, and one whose failure another step takes."""

    @step(retry_policy=retry_policy(wait=wait_fixed(0), stop=stop_after_attempt(3)))
    async def begin(self, ctx: Context, ev: StartEvent) -> Work:
        attempt = ctx.retry_info().retry_number
        self.world.do(f"try{attempt}")
        if attempt < 2:
            raise Flaky(f"attempt {attempt}")
        return Work(number=attempt)

    @step
    async def fail(self, ev: Work) -> Done:
        self.world.do("fail")
        raise Flaky("for good")

    @step
    async def never(self, ev: Done) -> StopEvent:
        raise AssertionError("fail() has failed")

    @catch_error
    async def rescue(self, ev: StepFailedEvent) -> StopEvent:
        self.world.do("rescue")
        return StopEvent(result=(ev.step_name, type(ev.exception).__name__, str(ev.exception), ev.attempts))


def retries(evidence):
    world = World(evidence)

    async def main():
        return await Tries(world).run(run_id="tries")

    return asyncio.run(main())


class Question(InputRequiredEvent):
    text: str


class Answer(HumanResponseEvent):
    text: str


@dataclass
class Decision:
    approved: bool
    by: tuple[str, ...]


class Approved(StopEvent):
    decision: Decision
    notes: list[str]


class Approval(Flow):
    """Asks two people, one after the other; work before and between the questions is done once."""

    @step
    async def draft(self, ctx: Context, ev: StartEvent) -> Work:
        return Work(number=len(self.world.do("draft")))

    @step
    async def ask(self, ctx: Context, ev: Work) -> Approved:
        names = []
        for name in ("ada", "bob"):
            note = self.world.do(f"before-{name}")
            answer = await ctx.wait_for_event(Answer, waiter_event=Question(text=name), waiter_id=name, requirements={"who": name})
            names.append(f"{name} {answer.text} {note}")
        self.world.do("after")
        return Approved(decision=Decision(approved=True, by=("ada", "bob")), notes=names)


def approval(evidence):
    """The program answers each question that it is shown; the result is an event with a typed field."""
    world = World(evidence)

    async def main():
        handler = Approval(world).run(run_id="approval")
        async for event in handler.stream_events():
            if isinstance(event, Question):
                world.calls.started(f"asked {event.text}")
                hit("asked")
                handler.ctx.send_event(Answer(text="yes", who=event.text))
        result = await handler
        return type(result).__name__, result.decision, result.notes

    return asyncio.run(main())


class Inner(Flow):
    @step
    async def begin(self, ctx: Context, ev: StartEvent) -> Work:
        self.world.do(f"inner {ev.number}")
        await ctx.store.set("number", ev.number)
        return Work(number=ev.number)

    @step
    async def end(self, ctx: Context, ev: Work) -> StopEvent:
        self.world.do(f"inside {ev.number}")
        return StopEvent(result=Decision(await ctx.store.get("number") > 1, (str(ev.number),)))


class Outer(Flow):
    """Runs workflows inside its steps, side by side as well."""

    @step
    async def begin(self, ev: StartEvent) -> Work:
        first = await Inner(self.world).run(number=1)
        self.world.do("between")
        assert first == Decision(approved=False, by=("1",))
        return Work(number=len(first.by))

    @step
    async def end(self, ev: Work) -> StopEvent:
        found = await asyncio.gather(*(Inner(self.world).run(number=number) for number in (2, 3)))
        self.world.do("last")
        return StopEvent(result=list(found))


def nested(evidence):
    world = World(evidence)

    async def main():
        return await Outer(world).run(run_id="nested")

    return asyncio.run(main())


class Order(BaseModel):
    number: int


class ByHand(Flow):
    """Calls a model and tools itself, from async steps and from one that the framework runs in a thread."""

    @step
    async def ask(self, ctx: Context, ev: StartEvent) -> Work:
        model = durable_llm(Scripted(lambda messages, tools: f"heard {messages[-1].content}", self.world.calls))
        first = await model.acomplete("one")
        second, third = await asyncio.gather(model.acomplete("two"), model.acomplete("three"))
        chunks = [chunk.delta async for chunk in await model.astream_chat([])] if ev.get("never") else []
        await ctx.store.set("heard", [str(first), str(second), str(third), *chunks])
        return Work(number=3)

    @step
    async def act(self, ev: Work) -> Done:
        look, think, _, pay = self.world.tools()
        looked = await durable_tool(look).acall(what="invoice")
        await durable_tool(think).acall(what="peace")
        paid = await durable_tool(pay, self.world.pay).acall(number=ev.number, amount=30)
        return Done(number=ev.number, text=f"{looked.content}, {paid.content}")

    @step
    def total(self, ev: Done) -> StopEvent:
        return StopEvent(result=(Order(number=ev.number), ev.text, self.world.do("total")))


def by_hand(evidence):
    world = World(evidence)

    async def main():
        handler = ByHand(world).run(run_id="by-hand")
        return await handler, await handler.ctx.store.get("heard"), world.paid()

    return asyncio.run(main())


# --- agents ------------------------------------------------------------------------------------------------------------------


def clerk(messages, tools):
    """Looks, pays two invoices at once while it thinks of trouble and takes a note, and concludes."""
    done = results(messages)
    if done == 0:
        return [call("look", "c1", what="invoice")]
    if done == 1:
        return [
            call("pay", "c2", number=1, amount=10),
            call("think", "c3", what="trouble"),
            call("pay", "c4", number=2, amount=20),
            call("note", "c5", text="both paid"),
        ]
    return f"paid after {done} results"


def outcome(result):
    assert isinstance(result, AgentOutput), type(result)
    return str(result), result.current_agent_name, sorted((one.tool_name, str(one.tool_kwargs)) for one in result.tool_calls)


def function_agent(evidence):
    """With a stream of events; the words of an answer that is replayed come at once."""
    world = World(evidence)

    async def main():
        agent = FunctionAgent(name="clerk", llm=Scripted(clerk, world.calls), tools=world.tools(), runtime=world.runtime)
        handler = agent.run(user_msg="pay", run_id="clerk")
        shown = {type(event) async for event in handler.stream_events()}
        assert AgentOutput in shown, shown
        return outcome(await handler), await handler.ctx.store.get("notes")

    return asyncio.run(main()), world.paid()


def unstreamed_agent(evidence):
    """Wrapped when it exists already; two runs that share a memory and a context."""
    world = World(evidence)

    def script(messages, tools):
        users = sum(one.role == "user" for one in messages)
        if results(messages) < users:
            return [call("pay", f"p{users}", number=users, amount=users)]
        return f"run {users}, {len(messages)} messages"

    async def main():
        agent = FunctionAgent(llm=Scripted(script, world.calls), tools=world.tools(), streaming=False)
        durable_workflow(agent, tools={"pay": world.pay})
        memory = ChatMemoryBuffer.from_defaults(token_limit=4000)
        first = await agent.run("one", memory=memory, run_id="chat-1")
        second = await agent.run("two", memory=memory, run_id="chat-2")
        handler = agent.run("three", memory=memory, run_id="chat-3")
        third = await handler
        fourth = await agent.run("four", ctx=handler.ctx, run_id="chat-4")
        return [str(one) for one in (first, second, third, fourth)], [str(one.content) for one in memory.get_all()][:4]

    return asyncio.run(main()), world.paid()


def react_agent(evidence):
    world = World(evidence)

    def script(messages, tools):
        seen = sum("Observation:" in str(one.content) for one in messages if one.role == "user")
        if seen == 0:
            return 'Thought: I look.\nAction: look\nAction Input: {"what": "invoice"}'
        if seen == 1:
            return 'Thought: I pay.\nAction: pay\nAction Input: {"number": 5, "amount": 50}'
        return "Thought: I can answer.\nAnswer: paid."

    async def main():
        agent = ReActAgent(llm=Scripted(script, world.calls, calling=False), tools=world.tools(), runtime=world.runtime)
        return outcome(await agent.run(user_msg="pay", run_id="react"))

    return asyncio.run(main()), world.paid()


def handoffs(evidence):
    """Two agents and a memory that lies in a database."""
    world = World(evidence)

    def triage(messages, tools):
        return [call("handoff", "h1", to_agent="payer", reason="it pays")]

    def payer(messages, tools):
        done = sum(one.role == "tool" and "moved" in str(one.content) for one in messages)
        if done == 0:
            return [call("pay", "p1", number=8, amount=80)]
        return f"paid {done}"

    async def main():
        agents = [
            FunctionAgent(name="triage", description="decides", llm=Scripted(triage, world.calls), tools=world.tools()[:1]),
            FunctionAgent(name="payer", description="pays", llm=Scripted(payer, world.calls), tools=world.tools()),
        ]
        team = AgentWorkflow(agents, root_agent="triage", initial_state={"paid": 0}, runtime=world.runtime)
        memory = Memory.from_defaults(session_id="team", token_limit=4000)
        handler = team.run(user_msg="pay", memory=memory, run_id="team")
        result = outcome(await handler)
        said = [(str(one.role), str(one.content)) for one in await memory.aget_all()]
        await memory.sql_store._async_engine.dispose()
        return result, said

    return asyncio.run(main()), world.paid()


def unknown(evidence):
    """A bank that tells nothing about a payment whose reply was lost: a person looks, says what happened, and goes on."""
    ledger = Ledger(store=resolve_store(None))

    def script(messages, tools):
        if results(messages) < 2:
            return [call("pay", f"p{results(messages)}", number=results(messages) + 10, amount=1)]
        return "paid twice"

    while True:
        world = World(evidence, "opaque")

        async def main(world=world):
            agent = FunctionAgent(llm=Scripted(script, world.calls), tools=world.tools(), runtime=world.runtime)
            handler = agent.run(user_msg="pay", run_id="unknown")
            async for _ in handler.stream_events():
                pass
            return outcome(await handler)

        try:
            return asyncio.run(main()), world.paid()
        except UnknownOutcome as open_:
            done = any(f"/{one['arguments']['number']}" in open_.key for one in world.bank.done())
            said_so = {"outcome": "succeeded" if done else "failed", "evidence": "the bank's books", "by": "Ada"}
            ledger.resolve(open_.namespace, open_.key, result={"moved": 1} if done else None, **said_so)
            if not done:
                ledger.retry_failed(open_.namespace, open_.key, by="human Ada")


WORKFLOWS = [fan_out, lists, retries, approval, nested, by_hand]
AGENTS = [function_agent, unstreamed_agent, react_agent, handoffs, unknown]
AT_ONCE = {fan_out: 3, lists: 2, nested: 2, by_hand: 2, function_agent: 3}
"""How many recorded calls may be under way at one instant; the ledger sees to payments."""
