"""What is done around a task is a step too: callbacks, files, memory, knowledge, servers of tools, steps of the user's own."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from tests.crewai.lives import Died, asked, mcp_shop, results, tasks, works
from tests.crewai.scripted import action, final, prompt_of, text_of  # sets the environment first

# isort: split
from crewai import Crew, Task
from crewai.tools import tool

from letitloop import current_run, durable, step

pytestmark = pytest.mark.filterwarnings("default")


def test_callbacks_and_files_are_steps_of_their_own(lives, tmp_path):
    called, down = [], [True]

    def second(output):
        called.append("crew")
        if down:
            raise Died

    for life in range(3):
        agent = lives.agent(works("a"), step_callback=lambda _: called.append("step"))
        task = Task(
            description="one", expected_output="x", agent=agent, callback=lambda _: called.append("task"), output_file="out.txt"
        )
        crew = Crew(agents=[agent], tasks=[task], task_callback=second)
        lives.begin().wrap_crew(crew)
        if life:
            assert crew.kickoff().raw == "done 'one'"
            assert (tmp_path / "out.txt").read_text() == "done 'one'"
            (tmp_path / "out.txt").unlink()  # the next life writes it again
        else:
            with pytest.raises(Died):
                crew.kickoff()
            down.clear()
    assert called == ["step", "step", "task", "crew", "crew"]
    assert lives.done == ["a"]


def test_a_callback_that_both_name_is_called_once(lives):
    called = []
    agent = lives.agent(works())
    crew = Crew(agents=[agent], tasks=tasks(agent, "one"), task_callback=lambda _: called.append(1))
    lives.begin().wrap_crew(crew).kickoff()
    assert called == [1]


def test_kickoff_callbacks_are_done_once(lives):
    called = []

    def before(inputs):
        called.append("before")
        return {**inputs, "number": len(called)}

    def after(output):
        called.append("after")
        output.raw += "!"
        return output

    for _ in range(2):
        agent = lives.agent(works())
        crew = Crew(
            agents=[agent],
            tasks=tasks(agent, "number {number}"),
            before_kickoff_callbacks=[before],
            after_kickoff_callbacks=[after],
        )
        assert lives.begin().wrap_crew(crew).kickoff({}).raw == "done 'number 1'!"
    assert called == ["before", "after"]


def test_memory_and_knowledge_are_asked_once(lives):
    asked_of = []

    class Memory(SimpleNamespace):
        read_only = False

        def recall(self, query, limit):
            asked_of.append("recall")
            return [SimpleNamespace(format=lambda: f"remembered {len(asked_of)}")]

        def extract_memories(self, content):
            asked_of.append("extract")
            return ["fact"]

        def remember_many(self, contents, agent_role=None, root_scope=None):
            asked_of.append(("save", *contents))
            return []

        def drain_writes(self):
            if asked_of[-1] == ("save", "fact"):  # CrewAI does it at the end of a kickoff too
                asked_of.append("drained")

    class Knowledge(SimpleNamespace):
        def query(self, query, **options):
            asked_of.append("knowledge")
            return [{"content": f"known {len(asked_of)}", "score": 1.0}]

    prompts = []
    for life in range(2):

        def script(messages, asked, life=life):
            prompts.append(prompt_of(messages))
            if "Current Task: two" in prompt_of(messages) and not life:
                return Died()
            return final("done")

        agent = lives.agent(script, tools=[])
        object.__setattr__(agent, "memory", Memory())
        object.__setattr__(agent, "knowledge", Knowledge())
        object.__setattr__(agent, "_get_knowledge_search_query", lambda prompt, task: "what")
        object.__setattr__(agent, "set_knowledge", lambda crew_embedder=None: None)
        crew = lives.begin().wrap_crew(Crew(agents=[agent], tasks=tasks(agent, "one", "two")))
        object.__setattr__(crew, "_prepare_tools", lambda agent, task, tools: tools)
        if life:
            crew.kickoff()
        else:
            with pytest.raises(Died):
                crew.kickoff()
    assert "remembered" in prompts[-1]
    assert "known" in prompts[-1]
    assert prompts[1] == prompts[2]
    once = ["recall", "knowledge", "extract", ("save", "fact"), "drained"]
    assert asked_of == [*once, *once]


def test_tools_of_an_mcp_server_are_called_once(lives, tmp_path):
    for life in range(2):

        def script(messages, asked, life=life):
            if not results(messages):
                name = re.search(r"only one name of \[(\S+)\]", text_of(messages))[1]
                return action(name, item="tea")
            return final(text_of(messages).rpartition("Observation:")[2].strip()[:11]) if life else Died()

        agent = lives.agent(script, tools=[], mcps=[mcp_shop(tmp_path / "orders")])
        crew = lives.begin().wrap_crew(Crew(agents=[agent], tasks=tasks(agent, "one")))
        if life:
            assert crew.kickoff().raw == "ordered tea"
        else:
            with pytest.raises(Died):
                crew.kickoff()
    assert (tmp_path / "orders").read_text() == "tea\n"


def test_results_that_crewai_keeps_for_later_tasks_survive(lives):
    for life in range(2):

        def script(messages, asked, life=life):
            if "Current Task: two" in prompt_of(messages) and not life:
                return Died()
            return works("a")(messages, asked)

        agent = lives.agent(script, cache=True)
        crew = lives.begin().wrap_crew(Crew(agents=[agent], tasks=tasks(agent, "one", "two"), cache=True))
        if life:
            crew.kickoff()
        else:
            with pytest.raises(Died):
                crew.kickoff()
    assert lives.done == ["a"]  # as stock: the second task finds the first one's result


def test_steps_of_the_users_own_are_steps_inside_tools(lives):
    stepped = []

    @tool
    def fetch(what: str) -> str:
        """Fetch."""
        step("part", stepped.append, what)
        if len(stepped) < 2 and what == "die":
            raise SystemExit
        return f"{what} in {current_run().goal_id}"

    agent = lives.agent(lambda m, a: final(text_of(m)[-400:]) if results(m) else action("fetch", what="it"), tools=[fetch])
    crew = lives.begin().wrap_crew(Crew(agents=[agent], tasks=tasks(agent, "one")))
    assert "it in crewai:lives" in crew.kickoff().raw
    assert stepped == ["it"]


def test_a_crew_in_a_durable_function_is_a_part_of_its_run(lives):
    ran = []

    @durable(goal_id="outer", store=str(lives.place), on_complete="restart")
    def outer(fail):
        agent = lives.agent(works("a"))
        crew = lives.begin().wrap_crew(Crew(agents=[agent], tasks=tasks(agent, "one")))
        raw = crew.kickoff().raw
        ran.append(asked(crew))
        if len(ran) == 1:
            raise Died
        return raw

    with pytest.raises(Died):
        outer(1)
    assert outer(1) == "done 'one'"
    assert ran == [2, 0]
