"""What looks alike and is not the same: names, calls of one answer, kickoffs at one time, crews of one session, shared tools."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest

from tests.crewai.lives import Died, Pay, asked, paying, results, task_in, tasks, works
from tests.crewai.scripted import Scripted, action, call, final, text_of  # sets the environment first

# isort: split
from crewai import Agent, Crew, Task
from crewai.tools import BaseTool, tool

from letitloop import durable, effect, effect_context
from letitloop.adapters.crewai import CrewAIDurabilityHandler, wrap_crew
from letitloop.errors import InvalidArgument
from letitloop.runs.history import list_runs
from letitloop.store.directory import DirectoryStore
from letitloop_crewai.driving import title
from letitloop_crewai.handler import _owners
from tests.effects.bank import Bank

pytestmark = pytest.mark.filterwarnings("default")

EXECUTOR = Agent.model_fields["executor_class"].default
LONG = "Research the market of renewable energy in northern Europe for the year 2026, part "


# --- names -------------------------------------------------------------------------------------------------------------------


def test_two_names_are_two_titles():
    names = ["", " ", "a", " a", "a ", "a b", "a  b", "a\nb", "a\tb", LONG, LONG + "one", LONG + "two", LONG.strip(), "\ud800", "?"]
    titles = [title(one) for one in names]
    assert len(set(titles)) == len(names)
    assert all(0 < len(one) <= 80 and one == " ".join(one.split()) for one in titles)
    assert (title("task a"), title("ä" * 80)) == ("task a", "ä" * 80)


@pytest.mark.parametrize("names", [(LONG + "one", LONG + "two"), ("a b", "a  b"), ("a", "a ")])
def test_tasks_of_nearly_the_same_name_have_each_its_output(lives, names):
    for life in range(2):
        agent = lives.agent(works())
        made = [Task(name=name, description=f"do {i}", expected_output="x", agent=agent) for i, name in enumerate(names)]
        crew = lives.begin().wrap_crew(Crew(agents=[agent], tasks=made))
        assert [one.raw for one in crew.kickoff().tasks_output] == ["done 'do 0'", "done 'do 1'"]
        assert asked(crew) == (0 if life else 2)


@pytest.mark.parametrize("names", [(LONG + "one", LONG + "two"), ("a b", "a  b")])
def test_crews_and_agents_of_nearly_the_same_name_too(lives, names):
    for life in range(2):
        handler = lives.begin()
        for name in names:
            agent = lives.agent(lambda m, a, name=name: final(f"by {name[-3:]}"), role=name)
            crew = handler.wrap_crew(Crew(name=name, agents=[agent], tasks=tasks(agent, "one")))
            assert crew.kickoff().raw == f"by {name[-3:]}"
            assert asked(crew) == (0 if life else 1)


# --- calls of one answer -----------------------------------------------------------------------------------------------------


@pytest.fixture
def in_order(monkeypatch):
    """Let the calls of an answer come in an order of their ids, one after the other."""
    order = []

    def apart(stock):
        events = {}

        def execute(self, tool_call=None, **parts):
            call_id = parts.get("call_id") or tool_call["id"]
            if call_id not in order:
                return stock(self, *(() if tool_call is None else (tool_call,)), **parts)
            at = order.index(call_id)
            done = events.setdefault((call_id, tuple(order)), threading.Event())
            if at:
                before = events.setdefault((order[at - 1], tuple(order)), threading.Event())
                assert before.wait(30)
            try:
                return stock(self, *(() if tool_call is None else (tool_call,)), **parts)
            finally:
                done.set()

        return execute

    monkeypatch.setattr(EXECUTOR, "_execute_single_native_tool_call", apart(EXECUTOR._execute_single_native_tool_call))
    return order


def drawing(drawn, kind):
    def draw(what):
        drawn.append(what)
        return f"card {len(drawn)}"

    if kind == "async":

        @tool
        async def pick(what: str) -> str:
            """Draw a card."""
            return draw(what)

        return pick
    if kind == "class":

        class Pick(BaseTool):
            name: str = "pick"
            description: str = "Draw a card."

            def _run(self, what: str) -> str:
                return draw(what)

        return Pick()

    @tool
    def pick(what: str) -> str:
        """Draw a card."""
        return draw(what)

    return pick


@pytest.mark.parametrize("cache", [False, True], ids=["no cache", "cache"])
@pytest.mark.parametrize("kind", ["plain", "async", "class"])
def test_equal_calls_of_an_answer_go_by_their_position(lives, in_order, kind, cache):
    drawn, seen = [], []
    for life, order in enumerate((["c1", "c2", "c3"], ["c3", "c2", "c1"], ["c2", "c1", "c3"])):
        in_order[:] = order

        def script(messages, asked, life=life):
            got = [one["content"] for one in messages if one["role"] == "tool"]
            if not got:
                return [call("pick", one, what="x") for one in ("c1", "c2", "c3")]
            seen.append(got)
            if len(got) == 3:
                return [call("pick", "c4", what="y")]
            return "done" if life == 2 else Died()

        agent = lives.agent(script, tools=[drawing(drawn, kind)], native=True, cache=cache)
        crew = lives.begin().wrap_crew(Crew(agents=[agent], tasks=tasks(agent, "one"), cache=cache))
        if life == 2:
            assert crew.kickoff().raw == "done"
        else:
            with pytest.raises(Died):
                crew.kickoff()
    assert drawn == ["x", "x", "x", "y"]
    assert seen == [["card 1", "card 2", "card 3"], *[["card 1", "card 2", "card 3", "card 4"]] * 3]


def test_what_the_cache_had_before_an_answer_serves_all_equal_calls_of_it(lives, in_order):
    drawn = []

    def script(messages, asked):
        got = results(messages)
        return [call("pick", f"c{got}{one}", what="x") for one in range(1 + got)] if got < 3 else text_of(messages)

    agent = lives.agent(script, tools=[drawing(drawn, "plain")], native=True, cache=True)
    crew = lives.begin().wrap_crew(Crew(agents=[agent], tasks=tasks(agent, "one"), cache=True))
    assert crew.kickoff().raw.count("card 1") == 3
    assert drawn == ["x"]


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_an_effect_asked_for_twice_in_an_answer_happens_once(lives, kind):
    sent = []
    both = threading.Barrier(2)

    class Twice(BaseTool):
        name: str = "other"
        description: str = "Be there."

        def _run(self, what: str) -> str:
            return what

    def mail(to):
        sent.append(to)
        return f"mailed {to}"

    if kind == "async":

        @tool
        async def send(to: str) -> str:
            """Send."""
            await asyncio.sleep(0)
            return mail(to)

    else:

        @tool
        def send(to: str) -> str:
            """Send."""
            return mail(to)

    def script(messages, asked):
        return text_of(messages) if results(messages) else [call("send", f"c{one}", to="ada") for one in range(2)]

    agent = lives.agent(script, tools=[send, Twice()], native=True)
    crew = lives.begin(tools={"send": effect(key="mail/{to}")}).wrap_crew(
        Crew(agents=[agent], tasks=tasks(agent, "one"), cache=False)
    )
    meeting(agent, both)
    assert crew.kickoff().raw.count("mailed ada") == 2
    assert sent == ["ada"]


def meeting(agent, both):
    """Let two calls begin at one time."""
    for one in agent.tools:
        stock = one.run

        def run(*args, stock=stock, **kwargs):
            both.wait(30)
            return stock(*args, **kwargs)

        object.__setattr__(one, "run", run)


def test_async_effects_in_one_loop_happen_once_too(lives):
    sent = []

    @tool
    async def send(to: str) -> str:
        """Send."""
        await asyncio.sleep(0)
        sent.append(to)
        return f"mailed {to}"

    def script(messages, asked):
        return final("done") if results(messages) else action("both", what="x")

    class Both(BaseTool):
        name: str = "both"
        description: str = "Send it twice at one time."

        def _run(self, what: str) -> str:
            async def main():
                return await asyncio.gather(send.func(to="ada"), send.func(to="ada"))

            return str(asyncio.run(main()))

    agent = lives.agent(script, tools=[send, Both()])
    policies = {"send": effect(key="mail/{to}"), "both": "rerun"}
    lives.begin(tools=policies).wrap_crew(Crew(agents=[agent], tasks=tasks(agent, "one"))).kickoff()
    assert sent == ["ada"]


@pytest.mark.skipif(not hasattr(EXECUTOR, "_ensure_step_executor"), reason="its agents plan in another way")
def test_steps_of_a_plan_that_run_side_by_side_are_parts_of_their_own(lives):
    from crewai.agent.planning_config import PlanningConfig

    drawn, seen, together = [], [], threading.Barrier(2)

    @tool
    def pick(what: str) -> str:
        """Draw a card."""
        drawn.append(what)
        together.wait(30)
        return f"card of {threading.get_ident()}"

    for life in range(2):

        def script(messages, asked, life=life):
            names, text = [one["function"]["name"] for one in asked["tools"] or ()], text_of(messages)
            if "create_reasoning_plan" in names:
                steps = [
                    {"step_number": one, "description": f"look {one}", "tool_to_use": "pick", "depends_on": []} for one in (1, 2)
                ]
                return json.dumps({"plan": "p", "steps": steps, "ready": True})
            if asked["response_model"] is not None:
                more = {"remaining_plan_still_valid": True, "needs_full_replan": False}
                return asked["response_model"](step_completed_successfully=True, key_information_learned="x", **more)
            if "pick" not in names:
                return final(f"all of {text}")
            return text if results(messages) else [call("pick", what="x")]

        def guard(output, life=life):
            seen.append(output.raw)
            if not life:
                raise Died
            return True, output

        agent = lives.agent(script, tools=[pick], native=True, planning_config=PlanningConfig())
        crew = lives.begin().wrap_crew(Crew(agents=[agent], tasks=tasks(agent, "one", guardrail=guard), cache=False))
        if life:
            crew.kickoff()
            assert agent.llm.asked == []
        else:
            with pytest.raises(Died):
                crew.kickoff()
    assert drawn == ["x", "x"]
    assert seen[0] == seen[1]
    assert seen[0].count("card of") == 2


# --- kickoffs at one time ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["akickoff_for_each", "kickoff_for_each_async"])
def test_batches_at_one_time_are_told_apart_by_the_order_of_their_calls(lives, form):
    down = [True]
    for life in range(3):

        def script(messages, asked, life=life):
            return Died() if down and not life and task_in(messages) == "say d" else final(f"{task_in(messages)}!")

        agent = lives.agent(script)
        crew = lives.begin().wrap_crew(Crew(agents=[agent], tasks=tasks(agent, "say {x}")))

        async def main(crew=crew):
            batches = [["a", "b"], ["a", "b"], ["c", "d"]]
            calls = (getattr(crew, form)(inputs=[{"x": one} for one in batch]) for batch in batches)
            return await asyncio.gather(*calls, return_exceptions=True)

        outputs = asyncio.run(main())
        if not life:
            assert isinstance(outputs[2], Died)
            down.clear()
            again = asyncio.run(getattr(crew, form)(inputs=[{"x": "c"}, {"x": "d"}]))  # it goes on with the one that failed
            outputs[2] = again
        said = [[one.raw for one in batch] for batch in outputs]
        assert said == [["say a!", "say b!"], ["say a!", "say b!"], ["say c!", "say d!"]]
        assert len(agent.llm.asked) == (0 if life else 7)


def test_an_item_that_is_at_work_when_another_fails_stays_guarded(lives, tmp_path):
    bank, failed, pay = Bank(tmp_path / "bank"), threading.Event(), paying()

    def script(messages, asked):
        if task_in(messages) == "say a":
            return Died()
        if results(messages):
            return final("paid")
        assert failed.wait(30)
        return action("pay", number=1)

    agent = lives.agent(script, tools=[pay])
    policies = {"pay": effect(key="n/{number}", provider=bank)}
    crew = lives.begin(tools=policies).wrap_crew(Crew(agents=[agent], tasks=tasks(agent, "say {x}")))

    async def main():
        with pytest.raises(Died):
            await crew.kickoff_for_each_async(inputs=[{"x": "a"}, {"x": "b"}])
        failed.set()

    asyncio.run(main())  # which waits for the other's thread
    assert len(bank.requests()) == 1


# --- crews of one session ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [("research", "write"), ("joke", "joke")])
def test_crews_wrapped_by_the_short_form_are_two(lives, words, caplog):
    for life in range(2):
        crews = []
        for number, one in enumerate(words):
            agent = lives.agent(lambda m, a, number=number: final(f"answer {number}"))
            crews.append(wrap_crew(Crew(agents=[agent], tasks=tasks(agent, one)), session_id="short", store=str(lives.place)))
            assert crews[-1].kickoff().raw == f"answer {number}"
            assert asked(crews[-1]) == (0 if life else 1)
        assert "is 'crew crew 2' in its log" in caplog.text
        for one in crews:
            handler = _owners[id(one)]
            handler.unwrap()
            handler.close()


@pytest.mark.parametrize("end", ["unwrap", "close"])
def test_a_new_handler_after_the_end_of_another_is_a_new_life(lives, end):
    for life in range(2):
        agent = lives.agent(works("a"))
        handler = CrewAIDurabilityHandler("life", store=str(lives.place))
        handler.wrap_crew(Crew(agents=[agent], tasks=tasks(agent, "one"))).kickoff()
        assert len(agent.llm.asked) == (0 if life else 2)
        getattr(handler, end)()
    handler.close()


def test_handlers_made_in_each_drive_of_a_durable_function_are_new_lives(lives):
    ran = []

    @durable(goal_id="outer", store=str(lives.place), on_complete="restart")
    def outer():
        agent = lives.agent(works("a"))
        crew = wrap_crew(Crew(agents=[agent], tasks=tasks(agent, "one")), session_id="inside", store=str(lives.place))
        crew.kickoff()
        ran.append(asked(crew))
        if len(ran) == 1:
            raise Died

    with pytest.raises(Died):
        outer()
    outer()
    assert ran == [2, 0]


# --- shared tools ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [0, 1])
def test_a_shared_tool_hides_its_trusted_parameters_whoever_wraps_it_first(lives, first):
    shown, pay = [], Pay()

    def script(messages, asked):
        shown.append(sorted(asked["tools"][0]["function"]["parameters"]["properties"]))
        return text_of(messages) if results(messages) else [call("pay", number=7)]

    def crew():
        agent = Agent(role="a", goal="g", backstory="b", llm=Scripted(script, native=True), tools=[pay], cache=False)
        return Crew(agents=[agent], tasks=tasks(agent, "one"))

    guarded = CrewAIDurabilityHandler("guarded", store=str(lives.place), tools={"pay": effect(key="pay/{number}")})
    free = CrewAIDurabilityHandler("free", store=str(lives.place))
    crews = {}
    for handler in (guarded, free)[:: 1 if first else -1]:
        crews[handler] = handler.wrap_crew(crew())
    with effect_context(account="ours"):
        assert "paid 7 from ours" in crews[guarded].kickoff().raw
    with pytest.raises(InvalidArgument, match="shared with a crew of another handler"):
        crews[free].kickoff()
    assert all(one == ["number"] for one in shown)
    for handler in crews:
        handler.unwrap()
        handler.close()
    assert set(pay.args_schema.model_fields) == {"number", "account"}


def test_a_session_is_finished_when_its_kickoffs_are(tmp_path):
    store = DirectoryStore(tmp_path)
    for dies in (True, False):

        def script(messages, options, dies=dies):
            if dies:
                raise Died
            return final("done")

        agent = Agent(role="clerk", goal="g", backstory="b", llm=Scripted(script))
        handler = CrewAIDurabilityHandler("listed", store=store)
        crew = handler.wrap_crew(Crew(agents=[agent], tasks=[Task(description="d", expected_output="e", agent=agent)]))
        if dies:
            with pytest.raises(Died):
                crew.kickoff()
        else:
            assert crew.kickoff().raw == "done"
        handler.unwrap()
        handler.close()
        (run,) = list_runs(store)
        assert run.status == ("interrupted" if dies else "finished")
