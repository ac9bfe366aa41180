"""Ways of running what is wrapped: what is streamed, arguments by position, many agents of one name, states that are loaded."""

from __future__ import annotations

import pytest
from autogen_agentchat.agents import AssistantAgent, BaseChatAgent
from autogen_agentchat.base import Response, TaskResult
from autogen_agentchat.messages import ModelClientStreamingChunkEvent, TextMessage
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import CancellationToken

from letitloop import StepChanged
from letitloop.adapters.autogen import AutoGenStateSerializer
from letitloop.errors import InvalidArgument
from tests.autogen.scripted import Scripted, call, results, said


@pytest.mark.parametrize("way", ["agent", "team", "turn"])
@pytest.mark.parametrize("reflects", [False, True])
async def test_chunks_tell_whose_parts_they_are(begin, way, reflects):
    """In each life the recorded id of the message, also of one that stands between others that are streamed."""

    def script(messages, settings):
        if settings.get("tool_choice") == "none":
            return "a reflection on it"
        return "a plain answer" if results(messages) else [call("work", number=1)]

    async def work(number: int) -> str:
        """Work."""
        return f"worked {number}"

    heard = []
    for life in range(3):
        client, task = Scripted(script), [TextMessage(content="go", source="user")]
        one = AssistantAgent(
            "a", client, tools=[work], max_tool_iterations=2 - reflects, model_client_stream=True, reflect_on_tool_use=reflects
        )
        if way == "team":
            begin().wrap_team(one := RoundRobinGroupChat([one], max_turns=2))
        else:
            begin().wrap_agent(one)
        items = []
        for _ in range(2):
            stream = one.on_messages_stream(task, CancellationToken()) if way == "turn" else one.run_stream(task=task)
            items += [item async for item in stream]
        chunks = [item for item in items if isinstance(item, ModelClientStreamingChunkEvent)]
        shown = [item.chat_message if isinstance(item, Response) else item for item in items if not isinstance(item, TaskResult)]
        messages = {item.id: item for item in shown if item not in chunks}
        texts = {}
        for chunk in chunks:
            texts[chunk.full_message_id] = texts.get(chunk.full_message_id, "") + chunk.content
        assert all(messages[key].content == text.strip() for key, text in texts.items())
        assert len(texts) == (4 if way == "team" else 2)
        assert life == 0 or not client.asked
        heard.append(list(texts))
    assert heard[0] == heard[1] == heard[2]


class Positional(BaseChatAgent):
    """Takes the arguments of its runs by position as well."""

    produced_message_types = (TextMessage,)

    def __init__(self, client):
        super().__init__("thinker", "Thinks.")
        self.client = client

    async def on_messages(self, messages, cancellation_token):
        answer = await self.client.create([one.to_model_message() for one in messages])
        return Response(chat_message=TextMessage(content=str(answer.content), source=self.name))

    async def on_reset(self, cancellation_token):
        pass

    async def run(self, task, cancellation_token=None, temperature=0.5):
        self.got = task, cancellation_token, temperature
        return await super().run(task=task, cancellation_token=cancellation_token)

    async def run_stream(self, *args, **named):
        self.got = args, named
        async for item in super().run_stream(task=args[0], **named):
            yield item


async def test_arguments_by_position(begin):
    for life in range(2):
        client = Scripted(lambda m, s: "thought")
        durability = begin()
        agent = durability.wrap_agent(Positional(client))
        token = CancellationToken()
        for arguments in (("one",), ("two", None, 0.7), ("three", token)):
            result = await agent.run(*arguments)
            assert said(result)[-1][-1] == "thought"
            assert (agent.got[0], agent.got[2]) == (arguments[0], arguments[2] if len(arguments) > 2 else 0.5)
        assert (await agent.run("four", temperature=1)).messages[0].content == "four"
        assert [one async for one in agent.run_stream("five")][-1].messages[0].content == "five"
        assert agent.got == (("five",), {})
        with pytest.raises(TypeError):
            await agent.run("six", None, 0.7, "too many")
        with pytest.raises(TypeError):
            await agent.run("six", task="six")
        with pytest.raises(TypeError):
            await durability.wrap_agent(AssistantAgent("stock", client)).run("six")
        assert len(client.asked) == (0 if life else 5)
    begin().wrap_agent(other := Positional(Scripted(lambda m, s: "thought")))
    with pytest.raises(StepChanged):
        await other.run("another one")


class Keys(dict):
    """Counts how often a key is looked for."""

    looked = 0

    def __contains__(self, key):
        self.looked += 1
        return super().__contains__(key)


def test_many_agents_of_one_name(begin):
    """Each has a key of its own, which is not looked for among all the others; what was refused leaves its key free."""
    durability = begin()
    durability._shared.members = keys = Keys()
    client, other = Scripted(lambda m, s: "fine"), AutoGenStateSerializer(session_id="other")
    other.wrap_agent(foreign := AssistantAgent("b", client))
    for number in range(50):
        if number in (7, 20):
            with pytest.raises(InvalidArgument):
                durability.wrap_team(RoundRobinGroupChat([AssistantAgent("a", client), foreign], name="refused"))
        durability.wrap_agent(AssistantAgent("a", client))
    durability.wrap_agent(AssistantAgent("a", client), "a 3")
    assert list(keys) == ["a", *(f"a {number}" for number in range(2, 51)), "a 3 2"]
    assert keys.looked < 50 * 5


@pytest.mark.parametrize("kind", ["agent", "team"])
@pytest.mark.parametrize("again", ["saved meanwhile", "the same"])
async def test_a_state_that_is_loaded(begin, kind, again):
    """AutoGen's own way of going on: with a session it is told from which load_state() the change comes."""
    saved = None
    for life in range(3):
        client = Scripted(lambda m, s: f"heard {len(m)}")
        one = AssistantAgent("a", client)
        durability = begin()
        one = durability.wrap_agent(one) if kind == "agent" else durability.wrap_team(RoundRobinGroupChat([one], max_turns=1))
        if saved is not None:
            await one.load_state(saved)
        if life and again == "saved meanwhile":
            with pytest.raises(StepChanged, match=f"has loaded a state into '{one.name}'") as told:
                await one.run(task="one")
            assert "messages" in told.value.arguments
            continue
        for task in ("one", "two"):
            result = await one.run(task=task)
        assert said(result)[-1][-1] == "heard 4"
        if again == "saved meanwhile":
            saved = await one.save_state()
        assert life == 0 or not client.asked
        if again == "the same":
            fresh = AssistantAgent("a", client)
            saved = await (fresh if kind == "agent" else RoundRobinGroupChat([fresh], max_turns=1)).save_state()
