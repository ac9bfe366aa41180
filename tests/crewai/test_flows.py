"""Wrapped flows: finished methods return what they returned, people's answers and crews inside methods too."""

from __future__ import annotations

import asyncio

import pytest

from tests.crewai.flows import Counts, Died, Quiet, counting
from tests.crewai.lives import Died as LiteDied
from tests.crewai.scripted import Scripted, final, text_of  # sets the environment first

# isort: split
from crewai import Agent, Crew, Task
from crewai.flow import and_, human_feedback, listen, router, start
from crewai.types.usage_metrics import UsageMetrics

from letitloop import StepChanged, step
from letitloop.adapters.crewai import wrap_crew, wrap_flow
from letitloop.errors import InvalidArgument, UnencodableError

pytestmark = pytest.mark.filterwarnings("default")


def test_a_flow_that_was_completed_answers_from_the_log(handlers):
    ran = []
    ids = []
    for _ in range(2):
        flow = handlers().wrap_flow(counting(ran, Quiet[Counts], [])())
        assert flow.kickoff() == ("two", 1, 1, ("one",))
        ids.append(flow.state.id)
    assert ran == ["one", "two", "three"]
    assert ids[0] == ids[1]  # the state's random id too


def test_each_kickoff_of_a_script_is_one_of_its_own(handlers):
    ran = []
    for life in range(2):
        flow = handlers().wrap_flow(counting(ran, Quiet[Counts], [])())
        assert [flow.kickoff()[1] for _ in range(2)] == [1, 2]
        assert len(ran) == 6
        assert asyncio.run(flow.akickoff())[1] == 3 if life else True


def test_routers_and_joins_go_the_recorded_way(handlers):
    ran, down = [], [True]

    class Routed(Quiet):
        @start()
        def left(self):
            ran.append("left")
            self.state["left"] = 1

        @start()
        async def right(self):
            ran.append("right")
            self.state["right"] = 1

        @router(and_(left, right))
        def choose(self):
            ran.append("choose")
            return "up" if len(ran) == 3 else "down"

        @listen("up")
        def end(self):
            if down:
                raise Died
            return sorted(key for key in self.state if key != "id")

        @listen("down")
        def wrong(self):
            raise AssertionError("another way than at first")

    for life in range(2):
        flow = handlers().wrap_flow(Routed())
        if life:
            down.clear()
            assert flow.kickoff() == ["left", "right"]
        else:
            with pytest.raises(Died):
                flow.kickoff()
    assert sorted(ran) == ["choose", "left", "right"]


def test_other_inputs_and_what_cannot_be_recorded_are_errors(handlers):
    class Odd(Quiet):
        @start()
        def odd(self):
            return (lambda: 1) if self.state.get("odd") else self.state["number"]

    assert handlers().wrap_flow(Odd()).kickoff({"number": 1}) == 1
    with pytest.raises(StepChanged, match="'number' differs"):
        handlers().wrap_flow(Odd()).kickoff({"number": 2})
    with pytest.raises(UnencodableError):
        handlers(auto_resume=False).wrap_flow(Odd()).kickoff({"odd": True})


def test_a_humans_answers_are_not_asked_again(handlers):
    asked, down = [], [True]

    class Person:
        def request_input(self, message, flow, metadata=None):
            asked.append(message)
            return "yes"

    class Asking(Quiet):
        @start()
        def ask_first(self):
            answer = self.ask("really?")
            if down:
                raise Died
            return answer

    for life in range(2):
        flow = handlers().wrap_flow(Asking(input_provider=Person()))
        if life:
            down.clear()
            assert flow.kickoff() == "yes"
        else:
            with pytest.raises(Died):
                flow.kickoff()
    assert asked == ["really?"]


def test_people_asked_side_by_side_keep_their_answers(handlers):
    asked, down = [], [True]

    class Drafts(Quiet):
        @start()
        @human_feedback(message="is it good?")
        async def one(self):
            return "draft one"

        @start()
        @human_feedback(message="is it good?")
        async def two(self):
            return "draft two"

        @listen(and_(one, two))
        def end(self):
            if down:
                raise Died
            return sorted((str(had.output), had.feedback) for had in self.human_feedback_history)

    for life in range(2):
        flow = Drafts()

        def request(message, output, metadata=None, emit=None, method_name=None):
            asked.append(output)
            return f"about {output}"

        object.__setattr__(flow, "_request_human_feedback", request)
        handlers().wrap_flow(flow)
        if life == 0:
            with pytest.raises(Died):
                flow.kickoff()
            down.clear()
        else:
            assert flow.kickoff() == [("draft one", "about draft one"), ("draft two", "about draft two")]
    assert sorted(asked) == ["draft one", "draft two"]


@pytest.mark.parametrize("later", [False, True])
def test_feedback_through_a_provider_is_not_asked_for_again(handlers, later):
    asked, down = [], [True]

    class Person:
        def request_feedback(self, context, flow):
            asked.append(context.message)
            return self.coming() if later else "yes"

        async def coming(self):
            return "yes"

    class Drafts(Quiet):
        @start()
        @human_feedback(message="is it good?", provider=Person())
        def draft(self):
            return "draft"

        @listen(draft)
        def end(self, had):
            if down:
                raise Died
            return had.output, had.feedback

    with pytest.raises(Died):
        handlers().wrap_flow(Drafts()).kickoff()
    down.clear()
    told = []
    for _ in range(2):
        flow = handlers().wrap_flow(Drafts())
        assert flow.kickoff() == ("draft", "yes")
        told.append((flow.human_feedback_history, flow.last_human_feedback))
    assert asked == ["is it good?"]
    assert told[0] == told[1]
    assert told[0][1].feedback == "yes"


def test_a_flow_that_has_ended_tells_what_it_used(handlers):
    class Using(Quiet):
        @start()
        def run(self):
            self._aggregated_usage_metrics.add_usage_metrics(UsageMetrics(total_tokens=7, successful_requests=1))

    for _ in range(2):
        flow = handlers().wrap_flow(Using())
        flow.kickoff()
        assert flow.usage_metrics.total_tokens == 7


def test_wrapping_is_taken_back(handlers, tmp_path):
    ran = []
    flow = counting(ran, Quiet[Counts], [])()
    handler = handlers()
    assert handler.wrap_flow(flow) is handler.wrap_flow(flow) is flow
    with pytest.raises(InvalidArgument, match="'flows' already"):
        wrap_flow(flow, session_id="other", store=str(tmp_path))
    with pytest.raises(InvalidArgument, match="no flow"):
        handler.wrap_flow(object())
    handler.unwrap()
    flow.kickoff()
    flow.kickoff()
    assert len(ran) == 6


# --- crews in methods --------------------------------------------------------------------------------------------------------


def test_crews_and_steps_inside_a_method_are_parts_of_it(handlers):
    llms, stepped = [], []

    class Outer(Quiet):
        crew: object = None

        @start()
        def run(self):
            step("note", stepped.append, 1)
            raw = self.crew.kickoff().raw
            if len(llms) == 1:
                raise Died
            return raw

    for life in range(2):
        llm = Scripted(lambda messages, asked: final("said"))
        llms.append(llm)
        agent = Agent(role="speaker", goal="speak", backstory="long", llm=llm)
        crew = Crew(agents=[agent], tasks=[Task(description="speak", expected_output="x", agent=agent)])
        handler = handlers()
        flow = handler.wrap_flow(Outer(crew=handler.wrap_crew(crew)))
        if life:
            assert flow.kickoff() == "said"
        else:
            with pytest.raises(Died):
                flow.kickoff()
    assert [len(llm.asked) for llm in llms] == [1, 0]
    assert stepped == [1]


def crew_of(script, *words):
    llm = Scripted(script)
    agent = Agent(role="speaker", goal="speak", backstory="long", llm=llm)
    return Crew(agents=[agent], tasks=[Task(description=one, expected_output="x", agent=agent) for one in words]), llm


def test_a_crew_that_failed_in_a_method_goes_on_when_it_is_kicked_off_again(handlers):
    asked, down = [], [True, True]

    def script(messages, call):
        word = "second" if "second" in text_of(messages) else "first"
        asked.append(word)
        if word == "second" and len(down) == 2:
            down.pop()
            return LiteDied()
        return final(word)

    class Again(Quiet):
        crew: object = None

        @start()
        def run(self):
            for _ in range(2):
                try:
                    said = self.crew.kickoff({"topic": "x"}).raw
                    break
                except LiteDied:
                    continue
            other = self.crew.kickoff({"topic": "other"}).raw
            if down:
                raise Died
            return said, other

    for life in range(2):
        handler = handlers()
        crew, _ = crew_of(script, "say first {topic}", "say second {topic}")
        flow = handler.wrap_flow(Again(crew=handler.wrap_crew(crew)))
        if life == 0:
            with pytest.raises(Died):
                flow.kickoff()
            down.clear()
        else:
            assert flow.kickoff() == ("second", "second")
    assert asked == ["first", "second", "second", "first", "second"]


def test_a_crew_of_another_session_in_a_method_is_a_part_of_the_flow(handlers, tmp_path):
    asked = []

    class Outer(Quiet):
        @start()
        def run(self):
            crew, _ = crew_of(lambda messages, call: asked.append(1) or final(self.state["x"]), "speak of {x}")
            wrap_crew(crew, session_id="inner", store=str(tmp_path / "store"))
            return crew.kickoff({"x": self.state["x"]}).raw

    for _ in range(2):
        flow = handlers().wrap_flow(Outer())
        assert [flow.kickoff({"x": "one"}), flow.kickoff({"x": "two"})] == ["one", "two"]
    assert len(asked) == 2
