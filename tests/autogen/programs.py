"""Whole AutoGen programs that are killed everywhere; each returns what it said, what was paid, and what it used."""

from __future__ import annotations

import asyncio
import json
import warnings
from types import SimpleNamespace

from autogen_agentchat.agents import AssistantAgent, BaseChatAgent, CodeExecutorAgent, SocietyOfMindAgent, UserProxyAgent
from autogen_agentchat.base import Response, TaskResult
from autogen_agentchat.conditions import HandoffTermination, MaxMessageTermination, TextMentionTermination
from autogen_agentchat.messages import TextMessage
from autogen_agentchat.teams import (
    DiGraphBuilder,
    GraphFlow,
    MagenticOneGroupChat,
    RoundRobinGroupChat,
    SelectorGroupChat,
    Swarm,
)
from autogen_agentchat.tools import AgentTool, TeamTool
from autogen_core.code_executor import CodeExecutor, CodeResult
from autogen_core.memory import ListMemory, MemoryContent, MemoryMimeType
from autogen_core.models import UserMessage
from autogen_core.tools import FunctionTool, StaticWorkbench
from pydantic import BaseModel

from letitloop import Ledger, UnknownOutcome, effect, step
from letitloop.adapters.autogen import AutoGenStateSerializer, tool_call_key
from letitloop.store.directory import resolve_store
from letitloop.testing import CallLog
from tests.autogen.scripted import Scripted, call, here, hit, results, said
from tests.effects.bank import Bank

PRELOAD = ("tests.autogen.programs",)


class World:
    """What lies outside the program: a bank, and a log of calls."""

    def __init__(self, evidence, kind="window"):
        self.calls = CallLog(evidence)
        self.bank = Bank(evidence / "bank", kind)
        self.durability = AutoGenStateSerializer(
            session_id="killed", tools={"pay": effect(key="invoice/{number}", provider=self.bank, recover="resend")}
        )

    def model(self, script, name="scripted-1"):
        return Scripted(script, self.calls, name)

    def tools(self):
        calls = self.calls

        def look(what: str) -> str:
            """Look something up."""
            with calls.call(here()):
                hit("tool.look")
                return f"{what} is {len(what)}, {len(tool_call_key())}"

        async def think(what: str) -> str:
            """Think about something."""
            with calls.call(here()):
                await asyncio.sleep(0)
                hit("tool.think")
                if what == "trouble":
                    raise ValueError("this cannot be thought")
                return f"{what}: thought with {len(tool_call_key())}"

        def pay(number: int, amount: int) -> str:
            """Pay an invoice."""
            raise AssertionError("the bank pays")

        return [look, think, pay]

    def paid(self):
        return sorted(str(one["arguments"]) for one in self.bank.done())


async def streamed(stream):
    """A stream's last item; its chunks are for show."""
    last = None
    async for item in stream:
        last = item
    assert isinstance(last, TaskResult)
    return last


def clerk(messages, settings):
    """Looks, pays two invoices at once while it thinks of trouble, and concludes."""
    done = results(messages)
    if settings.get("tool_choice") == "none":
        return f"reflected on {done}"
    if done == 0:
        return [call("look", "c1", what="invoice")]
    if done == 1:
        return [
            call("pay", "", number=1, amount=10),
            call("think", "", what="trouble"),
            call("pay", "", number=2, amount=20),
            call("think", "", what="peace"),
        ]
    return f"TERMINATE after {done} results"


def assistant(evidence):
    world = World(evidence)
    model = world.model(clerk)
    agent = AssistantAgent("clerk", model, tools=world.tools(), max_tool_iterations=5)
    world.durability.wrap_agent(agent)
    result = asyncio.run(agent.run(task="pay"))
    return said(result), world.paid(), model.total_usage()


class Total(BaseModel):
    total: int


def reflecting(evidence):
    """Structured output, with a reflection after one round of tools."""
    world = World(evidence)

    def script(messages, settings):
        if settings.get("json_output") is Total and settings.get("tool_choice") == "none":
            return json.dumps({"total": results(messages)})
        return [call("pay", "same", number=7, amount=70), call("look", "same", what="seven")]

    agent = AssistantAgent("clerk", world.model(script), tools=world.tools(), output_content_type=Total)
    world.durability.wrap_agent(agent)
    result = asyncio.run(agent.run(task="pay"))
    return said(result), result.messages[-1].content, world.paid()


def streaming(evidence):
    world = World(evidence)
    agent = AssistantAgent("clerk", world.model(clerk), tools=world.tools(), max_tool_iterations=5, model_client_stream=True)
    world.durability.wrap_agent(agent)
    return said(asyncio.run(streamed(agent.run_stream(task="pay")))), world.paid()


def two_runs(evidence):
    """Two runs of one agent, and two of the same task."""
    world = World(evidence)

    def script(messages, settings):
        users = sum(one.type == "UserMessage" for one in messages)
        if results(messages) < users:
            return [call("pay", number=users, amount=users)]
        return f"run {users}"

    agent = world.durability.wrap_agent(AssistantAgent("clerk", world.model(script), tools=world.tools(), max_tool_iterations=3))

    async def main():
        return [said(await agent.run(task=task)) for task in ("first", "again", "again")]

    return asyncio.run(main()), world.paid()


def speaker(name):
    """Pays in its first turn, and says in later ones how much it has heard."""

    def script(messages, settings):
        if results(messages) == 0 and settings.get("tools"):
            return [call("pay", number=len(name), amount=1), call("look", what=name)]
        return f"{name} heard {len(messages)}"

    return script


def round_robin(evidence):
    world = World(evidence)
    agents = [AssistantAgent(name, world.model(speaker(name)), tools=world.tools(), max_tool_iterations=2) for name in ("a", "bb")]
    team = RoundRobinGroupChat(agents, termination_condition=MaxMessageTermination(7))
    world.durability.wrap_team(team)
    result = asyncio.run(team.run(task="talk"))
    return said(result), result.stop_reason, len(result.messages), world.paid()


def selector(evidence):
    """A model selects; it errs at first. A function selects the very first speaker."""
    world = World(evidence)
    shared = world.model(speaker("shared"))

    def select(messages, settings):
        prompt = str(messages[0].content)
        if len(messages) == 1 and "heard 4" not in prompt:
            return "nobody at all"
        return "one" if prompt.count("\n\n") % 2 else "two"

    async def first(thread):
        with world.calls.call(here()):
            return "two" if len(thread) == 1 else None

    agents = [AssistantAgent(name, shared, tools=world.tools(), max_tool_iterations=2) for name in ("one", "two", "three")]
    team = SelectorGroupChat(
        agents,
        world.model(select, "selector"),
        selector_func=first,
        allow_repeated_speaker=True,
        termination_condition=MaxMessageTermination(8),
    )
    world.durability.wrap_team(team)
    result = asyncio.run(team.run(task="talk"))
    return said(result), result.stop_reason, world.paid()


def swarm(evidence):
    """Two runs of a team: the second answers a question that the first ended with."""
    world = World(evidence)

    def front(messages, settings):
        last = str(messages[-1].content)
        if results(messages) == 0:
            return [call("look", what="order"), call("transfer_to_back", "h")]
        return "TERMINATE" if "paid" in last or "money" in last else [call("transfer_to_user", "h")]

    def back(messages, settings):
        if not any("moved" in str(one.content) for one in messages):
            return [call("pay", number=3, amount=30)]
        return [call("transfer_to_front", "h")]

    team = Swarm(
        [
            AssistantAgent("front", world.model(front), tools=world.tools(), handoffs=["back", "user"]),
            AssistantAgent("back", world.model(back), tools=world.tools(), handoffs=["front"], max_tool_iterations=3),
        ],
        termination_condition=HandoffTermination("user") | TextMentionTermination("TERMINATE") | MaxMessageTermination(20),
    )
    world.durability.wrap_team(team)

    async def main():
        from autogen_agentchat.messages import HandoffMessage

        first = await team.run(task="refund me")
        second = await team.run(task=HandoffMessage(source="user", target="front", content="I want money"))
        return said(first), first.stop_reason, said(second), second.stop_reason

    return asyncio.run(main()), world.paid()


def magentic(evidence):
    world = World(evidence)

    def orchestrate(messages, settings):
        prompt = str(messages[-1].content)
        if "json" not in prompt.lower():
            return f"words about {len(messages)} messages"
        turns = sum("heard" in str(one.content) for one in messages)
        ledger = {
            "is_request_satisfied": {"reason": "enough", "answer": turns >= 3},
            "is_progress_being_made": {"reason": "so it seems", "answer": turns != 1},
            "is_in_loop": {"reason": "no", "answer": False},
            "instruction_or_question": {"reason": "go on", "answer": f"do part {turns}"},
            "next_speaker": {"reason": "its turn", "answer": "a" if turns % 2 == 0 else "bb"},
        }
        return json.dumps(ledger)

    agents = [AssistantAgent(name, world.model(speaker(name)), tools=world.tools(), max_tool_iterations=2) for name in ("a", "bb")]
    team = MagenticOneGroupChat(agents, world.model(orchestrate, "orchestrator"), max_stalls=2)
    world.durability.wrap_team(team)
    result = asyncio.run(team.run(task="research"))
    return said(result), result.stop_reason, world.paid()


def graph(evidence):
    """a, then b and c side by side with two tools each, then d."""
    world = World(evidence)

    def side(name):
        def script(messages, settings):
            if results(messages) == 0:
                return [call("pay", number=ord(name), amount=1), call("think", what=name)]
            return f"{name} heard {len(messages)}"

        return script

    def last(messages, settings):
        heard = " ".join(sorted(str(one.content) for one in messages if one.type == "UserMessage"))
        return f"d heard {heard}"

    a, b, c = (AssistantAgent(one, world.model(side(one)), tools=world.tools(), max_tool_iterations=2) for one in "abc")
    d = AssistantAgent("d", world.model(last))
    builder = DiGraphBuilder()
    for node in (a, b, c, d):
        builder.add_node(node)
    builder.add_edge(a, b).add_edge(a, c).add_edge(b, d).add_edge(c, d)
    team = GraphFlow(builder.get_participants(), graph=builder.build())
    world.durability.wrap_team(team)
    result = asyncio.run(team.run(task="go"))
    return sorted(said(result)[:-1]), result.stop_reason, world.paid()


def cycle(evidence):
    """A writer and a reviewer who sends it back twice, then a publisher who pays."""
    world = World(evidence)

    def review(messages, settings):
        drafts = sum(str(one.content).startswith("draft") for one in messages if one.type == "UserMessage")
        return f"again, after {drafts}" if drafts < 3 else f"good, after {drafts}"

    def write(messages, settings):
        if messages[-1].type != "FunctionExecutionResultMessage":
            return [call("think", what=f"draft {len(messages)}")]
        return f"draft of {len(messages)}"

    def publish(messages, settings):
        return "published" if results(messages) else [call("pay", number=77, amount=3)]

    writer = AssistantAgent("writer", world.model(write), tools=world.tools(), max_tool_iterations=2)
    reviewer = AssistantAgent("reviewer", world.model(review))
    publisher = AssistantAgent("publisher", world.model(publish), tools=world.tools(), max_tool_iterations=2)
    builder = DiGraphBuilder()
    for node in (writer, reviewer, publisher):
        builder.add_node(node)
    builder.add_edge(writer, reviewer)
    builder.add_edge(reviewer, writer, condition="again").add_edge(reviewer, publisher, condition="good")
    builder.set_entry_point(writer)
    team = GraphFlow(builder.get_participants(), graph=builder.build(), termination_condition=MaxMessageTermination(30))
    world.durability.wrap_team(team)
    result = asyncio.run(team.run(task="go"))
    return said(result), result.stop_reason, world.paid()


def agent_tools(evidence):
    """An agent whose tools are an agent, called twice, and a team."""
    world = World(evidence)

    def main_script(messages, settings):
        done = results(messages)
        if done == 0:
            return [call("clerk", "x", task="pay the first")]
        if done == 1:
            return [call("clerk", "x", task="and again")]
        if done == 2:
            return [call("choir", "y", task="sing")]
        return f"done: {messages[-1].content[0].content}"

    inner = AssistantAgent("clerk", world.model(clerk), tools=world.tools(), max_tool_iterations=5)
    singers = [AssistantAgent(name, world.model(speaker(name))) for name in ("alto", "bass")]
    choir = RoundRobinGroupChat(singers, name="choir", termination_condition=MaxMessageTermination(3))
    outer = AssistantAgent(
        "boss",
        world.model(main_script, "boss"),
        tools=[AgentTool(inner), TeamTool(choir, "choir", "Sings.")],
        max_tool_iterations=5,
    )
    world.durability.wrap_agent(outer)
    return said(asyncio.run(outer.run(task="manage"))), world.paid()


def nested_teams(evidence):
    """A society of mind and a team, inside a team."""
    world = World(evidence)

    def agent(name):
        return AssistantAgent(name, world.model(speaker(name)), tools=world.tools(), max_tool_iterations=2)

    mind = SocietyOfMindAgent(
        "mind",
        RoundRobinGroupChat([agent("a"), agent("bb")], name="inner", max_turns=2),
        world.model(lambda messages, settings: f"mind: {len(messages)}", "mind"),
    )
    pair = RoundRobinGroupChat([agent("ccc"), agent("dddd")], name="pair", max_turns=2)
    team = RoundRobinGroupChat([mind, pair], max_turns=4)
    world.durability.wrap_team(team)
    result = asyncio.run(streamed(team.run_stream(task="think")))
    return said(result), result.stop_reason, world.paid()


class Shell(CodeExecutor):
    """Pretends to run code."""

    component_type = "code_executor"

    def __init__(self, calls):
        self.calls = calls

    async def execute_code_blocks(self, code_blocks, cancellation_token):
        with self.calls.call(here()):
            hit("tool.execute")
            return CodeResult(0, f"ran {code_blocks[0].code.strip()}")

    async def start(self):
        pass

    async def stop(self):
        pass

    async def restart(self):
        pass


def people(evidence):
    """A person, a code executor with an approval, and a memory."""
    world = World(evidence)

    def ask(prompt):
        with world.calls.call(here()):
            hit("human.answered")
            return "go ahead"

    def approve(request):
        from autogen_agentchat.agents import ApprovalResponse

        with world.calls.call(here()):
            return ApprovalResponse(approved=True, reason="fine")

    def coder(messages, settings):
        noted = sum("blue" in str(one.content) for one in messages)
        return f"```python\nprint({len(messages)}, {noted})\n```"

    memory = ListMemory("notes", [MemoryContent(content="the sky is blue", mime_type=MemoryMimeType.TEXT)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runner = CodeExecutorAgent("runner", Shell(world.calls), approval_func=approve)
        fixer = CodeExecutorAgent("fixer", Shell(world.calls), model_client=world.model(lambda m, s: f"said {len(m)}", "fixer"))
    team = RoundRobinGroupChat(
        [AssistantAgent("coder", world.model(coder), memory=[memory]), runner, fixer, UserProxyAgent("person", input_func=ask)],
        max_turns=7,
    )
    world.durability.wrap_team(team)
    result = asyncio.run(team.run(task="write"))
    return said(result), result.stop_reason


class Judge(BaseChatAgent):
    """An agent of the user's own: two models in a dictionary, three questions at once, a workbench in a helper, and a step."""

    def __init__(self, fast, smart, tools):
        super().__init__("judge", "Judges.")
        self.clients = {"fast": fast, "smart": smart}
        self.desk = SimpleNamespace(bench=StaticWorkbench([FunctionTool(one, one.__name__, one.__name__) for one in tools]))

    @property
    def produced_message_types(self):
        return (TextMessage,)

    async def on_messages(self, messages, cancellation_token):
        asked = [UserMessage(content=f"{which} of {len(messages)}", source="judge") for which in ("facts", "risks")]
        answers = await asyncio.gather(
            self.clients["fast"].create(asked[:1]),
            self.clients["fast"].create(asked[1:]),
            self.clients["smart"].create(asked),
        )
        found = await asyncio.gather(
            self.desk.bench.call_tool("look", {"what": "case"}),
            self.desk.bench.call_tool("think", {"what": "verdict"}),
            self.desk.bench.call_tool("pay", {"number": 9 + len(messages), "amount": 1}),
        )
        texts = [one.content for one in answers] + [one.to_text() for one in found]
        number = step("weigh", len, texts)
        last = await self.clients["smart"].create([UserMessage(content=" ".join(texts), source="judge")])
        return Response(chat_message=TextMessage(content=f"{number}: {last.content}", source=self.name))

    async def on_reset(self, cancellation_token):
        pass


def custom(evidence):
    """A custom agent, alone and in a team."""
    world = World(evidence)

    def fast(messages, settings):
        return f"fast: {messages[0].content}"

    def smart(messages, settings):
        return f"smart: {len(messages)} {len(messages[0].content)}"

    judge = Judge(world.model(fast, "fast"), world.model(smart, "smart"), world.tools())
    team = RoundRobinGroupChat([judge, AssistantAgent("clerk", world.model(speaker("clerk")))], max_turns=3)
    world.durability.wrap_agent(judge)
    world.durability.wrap_team(team)

    async def main():
        return said(await judge.run(task="alone")), said(await team.run(task="together"))

    return asyncio.run(main()), world.paid()


def unknown(evidence):
    """A bank that tells nothing about a payment whose reply was lost: a person looks, says what happened, and goes on."""
    ledger = Ledger(store=resolve_store(None))
    for alone in (True, False):
        while True:
            world = World(evidence, "opaque")
            agent = AssistantAgent(
                "clerk" if alone else "other", world.model(payer(alone)), tools=world.tools(), max_tool_iterations=5
            )
            runner = (
                world.durability.wrap_agent(agent)
                if alone
                else world.durability.wrap_team(RoundRobinGroupChat([agent], max_turns=1))
            )
            try:
                result = asyncio.run(runner.run(task="pay"))
            except UnknownOutcome as open_:
                world.durability.close()
                done = any(f"/{one['arguments']['number']}" in open_.key for one in world.bank.done())
                said_so = {"outcome": "succeeded" if done else "failed", "evidence": "the bank's books", "by": "Ada"}
                ledger.resolve(open_.namespace, open_.key, result={"moved": 1} if done else None, **said_so)
                if not done:
                    ledger.retry_failed(open_.namespace, open_.key, by="human Ada")
            else:
                break
        if alone:
            first = said(result)
            world.durability.close()
    return first, said(result), world.paid()


def payer(alone):
    def script(messages, settings):
        if results(messages) < 2:
            return [call("pay", number=results(messages) + (10 if alone else 20), amount=1)]
        return "paid twice"

    return script


ALL = [
    assistant,
    reflecting,
    streaming,
    two_runs,
    round_robin,
    selector,
    swarm,
    magentic,
    graph,
    cycle,
    agent_tools,
    nested_teams,
    people,
    custom,
    unknown,
]
AT_ONCE = {assistant: 2, streaming: 2, agent_tools: 2, graph: 2, custom: 3}
"""How many recorded calls may be under way at one instant; the ledger sees to payments."""
