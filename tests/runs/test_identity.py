"""Which run a call means, which record a step means, and what happens when the inputs are others."""

from __future__ import annotations

import asyncio
import functools
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass

import pytest

from letitloop import (
    InvalidArgument,
    MemoryStore,
    StepChanged,
    StoreError,
    async_step,
    atomic_marker,
    current_run,
    durable,
    scope,
    step,
)
from tests.runs.helpers import crash, crashes


@pytest.fixture
def store():
    return MemoryStore()


class Program:
    """A run whose steps are given from outside: ``script`` is a list of (name, argument), the run crashes or ends after it."""

    def __init__(self, store, **options):
        self.calls = []
        self.script = []
        self.die = True
        self.run = durable(store=store, goal_id="program", **options)(self._drive)

    def _drive(self):
        found = [step(name, self._work, name, value) for name, value in self.script]
        if self.die:
            crash()
        return found

    def _work(self, name, value):
        self.calls.append((name, value))
        return f"{name}:{value}:{len(self.calls)}"

    def crash_with(self, *script):
        self.calls.clear()
        self.script, self.die = list(script), True
        crashes(self.run)
        return list(self.calls)

    def finish_with(self, *script):
        self.calls.clear()
        self.script, self.die = list(script), False
        return self.run()


# --- runs --------------------------------------------------------------------------------------------------------------------


def test_two_calls_with_other_arguments_are_two_runs(store):
    calls = []

    @durable(store=store)
    def sync(user, *, full=False):
        value = step("fetch", lambda: calls.append((user, full)) or (user, full))
        if die:
            crash()
        return value

    die = True
    for user, full in ((1, False), (2, False), (1, True), ("1", False)):
        crashes(sync, user, full=full)
    die = False
    assert [sync(1), sync(2), sync(1, full=True), sync("1")] == [(1, False), (2, False), (1, True), ("1", False)]
    assert len(calls) == 4
    assert len(sync.runs.list()) == 4


def test_one_call_written_in_other_ways_is_one_run(store):
    @durable(store=store, goal_id="g")
    def sync(user, full=False, *, deep=None):
        return user

    sync(1)
    sync(user=1)
    sync(1, False)
    sync(1, full=False, deep=None)
    sync(deep=None, full=False, user=1)
    assert len(sync.runs.list()) == 1


def test_a_keyword_is_not_taken_for_the_positional_argument_of_its_name(store):
    @durable(store=store, goal_id="g")
    def job(name, /, **fields):
        return step("s", str, name)

    assert [job("a", name="z"), job("b", name="z"), job("a", name="y")] == ["a", "b", "a"]
    assert len(job.runs.list()) == 3


def test_positional_rest_and_keywords_are_arguments(store):
    @durable(store=store, goal_id="g")
    def job(*rest, **more):
        return step("s", repr, (rest, more))

    calls = [((), {}), ((1,), {}), ((1, 2), {}), ((2, 1), {}), ((), {"a": 1}), ((1,), {"a": 1}), ((None,), {})]
    assert [job(*a, **k) for a, k in calls] == [repr((a, k)) for a, k in calls]


def test_equal_arguments_of_other_types_are_other_runs(store):
    @durable(store=store, goal_id="g")
    def job(x):
        return step("s", type(x).__name__.upper)

    assert [job(x) for x in (1, True, 1.0, "1", b"1", [1], (1,))] == ["INT", "BOOL", "FLOAT", "STR", "BYTES", "LIST", "TUPLE"]


def test_what_cannot_be_encoded_counts_by_its_type(store):
    class Client:
        pass

    class OtherClient:
        pass

    calls = []

    @durable(store=store)
    def job(client, n):
        value = step("s", lambda c: calls.append(n) or n, client)
        if die:
            crash()
        return value

    die = True
    crashes(job, Client(), 1)
    die = False
    assert job(Client(), 1) == 1
    assert calls == [1]
    job(OtherClient(), 1)
    assert calls == [1, 1]


def test_functions_of_other_names_are_other_runs_and_a_goal_joins_them(store):
    @durable(store=store)
    def one():
        return step("s", str, "one")

    @durable(store=store)
    def two():
        return step("s", str, "two")

    assert (one(), two()) == ("one", "two")

    @durable(store=store, goal_id="same")
    def three():
        return step("s", str, "three")

    @durable(store=store, goal_id="same")
    def four():
        return step("s", str, "four")

    assert (three(), four()) == ("three", "three")


def test_the_goal_may_be_made_of_the_arguments(store):
    @durable(store=store, goal_id=lambda user, *, day: f"{user}@{day}")
    def job(user, *, day):
        return current_run().goal_id

    assert job("ada", day=1) == "ada@1"
    assert [run.goal_id for run in job.runs] == ["ada@1"]
    for wrong in ("", None, 5):
        with pytest.raises(InvalidArgument, match="goal_id"):
            durable(store=store, goal_id=lambda wrong=wrong: wrong)(lambda: 1)()


def test_methods_are_durable_and_their_object_is_an_argument(store):
    @dataclass
    class Account:
        number: int

        @durable(store=store)
        def close(self, day):
            return step("close", lambda: (self.number, day))

        @durable(store=store)
        async def aclose(self, day):
            return await step("close", self._close, day)

        async def _close(self, day):
            return self.number, day

        @staticmethod
        @durable(store=store)
        def static(day):
            return step("s", int, day)

        @classmethod
        @durable(store=store)
        def made(cls, day):
            return step("s", int, day)

    assert [Account(1).close(5), Account(2).close(5), Account(1).close(6)] == [(1, 5), (2, 5), (1, 6)]
    assert len(Account.close.runs.list()) == 3
    assert Account.close.runs.show(Account(2), 5).status == "finished"
    assert asyncio.run(Account(3).aclose(1)) == (3, 1)
    assert (Account.static(1), Account.made(2)) == (1, 2)


def test_partials_are_told_apart_by_what_they_hold(store):
    def add(a, b, *, c=0):
        value = step("add", lambda: a + b + c)
        if die:
            crash()
        return value

    die = True
    crashes(durable(store=store)(functools.partial(add, 1)), 10)
    die = False
    assert durable(store=store)(functools.partial(add, 2))(10) == 12
    assert durable(store=store)(functools.partial(add, 1, c=5))(10) == 16
    assert durable(store=store)(functools.partial(add, 1))(10) == 11

    async def aadd(a, b):
        return await step("add", functools.partial(_aplus, a), b)

    async def _aplus(a, b):
        return a + b

    assert asyncio.run(durable(store=store)(functools.partial(aadd, 1))(3)) == 4


def test_a_step_tells_partials_and_bound_values_apart(store):
    program = [functools.partial(int, "1")]

    @durable(store=store, goal_id="g")
    def job():
        value = step("s", program[0])
        if die:
            crash()
        return value

    die = True
    crashes(job)
    die = False
    program[0] = functools.partial(int, "2")
    with pytest.raises(StepChanged):
        job()
    program[0] = functools.partial(int, "1")
    assert job() == 1


def test_the_state_of_a_methods_object_is_no_input(store):
    found = []

    @durable(store=store, goal_id="g")
    def job(die):
        for n in range(3):
            step("push", found.append, n)
        if die:
            crash()

    crashes(job, True)
    crashes(job, True)  # here the list is full from the start
    found.clear()
    crashes(job, True)  # and here it is empty, since every step is replayed
    assert found == []


def test_callable_objects_are_durable(store):
    class Job:
        def __call__(self, n):
            return step("s", pow, n, 2)

    class AsyncJob:
        async def __call__(self, n):
            return await async_step("s", pow, n, 2)

    class Tool:
        func = args = 5  # what a partial has as well

        def __call__(self, n):
            return step("s", pow, n, 2)

    assert durable(store=store)(Job())(3) == 9
    assert asyncio.run(durable(store=store)(AsyncJob())(4)) == 16
    assert durable(store=store)(Tool())(5) == 25

    @durable(store=store)
    def job():
        return step("tool", Tool(), 5)

    assert job() == 25


def test_a_decorated_function_is_still_itself(store):
    @durable(store=store)
    def job(n: int) -> int:
        """Say it."""
        return n

    assert (job.__name__, job.__doc__, job.__wrapped__(3)) == ("job", "Say it.", 3)
    fetch = step("s", key="k")(job.__wrapped__)
    assert fetch.__name__ == "job"
    assert fetch.__wrapped__ is job.__wrapped__


def test_a_script_is_known_by_its_name_wherever_it_is_started(tmp_path):
    script = tmp_path / "nightly.py"
    script.write_text(
        "from letitloop import durable, current_run\n@durable\ndef job():\n    return current_run().goal_id\nprint(job())\n"
    )
    shutil.copytree(tmp_path, tmp_path / "elsewhere")
    for folder in (tmp_path, tmp_path / "elsewhere"):
        done = subprocess.run([sys.executable, "nightly.py"], cwd=folder, capture_output=True, text=True, check=True)
        assert done.stdout == "nightly:job\n"
    done = subprocess.run([sys.executable, "-m", "nightly"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "nightly:job\n"


def test_the_log_of_another_run_renamed_into_place_is_refused_and_left_alone(tmp_path):
    calls = []

    @durable(store=tmp_path, goal_id="pay")
    def pay(user):
        step("pay", lambda: calls.append(user))
        crash()

    crashes(pay, 1)
    (first,) = (tmp_path / "runs").glob("*.wal")
    crashes(pay, 2)
    second = next(path for path in (tmp_path / "runs").glob("*.wal") if path != first)
    data = first.read_bytes()
    second.write_bytes(data)
    with pytest.raises(StoreError, match="another run"):
        pay(2)
    assert calls == [1, 2]
    assert second.read_bytes().rstrip(b"\0") == data.rstrip(b"\0")


# --- steps -------------------------------------------------------------------------------------------------------------------


def test_steps_are_told_apart_by_how_often_their_name_was_used(store):
    program = Program(store)
    script = [("a", 1), ("a", 1), ("b", 1), ("a", 2)]
    assert program.crash_with(*script) == script
    assert program.finish_with(*script) == ["a:1:1", "a:1:2", "b:1:3", "a:2:4"]
    assert program.calls == []


def test_a_renamed_step_is_new_work_and_the_others_are_replayed(store):
    program = Program(store)
    program.crash_with(("a", 1), ("b", 2), ("c", 3))
    assert program.finish_with(("a", 1), ("renamed", 2), ("c", 3))[0::2] == ["a:1:1", "c:3:3"]
    assert program.calls == [("renamed", 2)]


def test_reordered_steps_keep_their_results_each_once(store):
    program = Program(store)
    program.crash_with(("a", 1), ("a", 2), ("b", 9), ("a", 3))
    assert program.finish_with(("b", 9), ("a", 3), ("a", 1), ("a", 2)) == ["b:9:3", "a:3:4", "a:1:1", "a:2:2"]
    assert program.calls == []


def test_reordered_equal_calls_answer_once_each(store):
    program = Program(store)
    program.crash_with(("a", 1), ("a", 1), ("a", 2))
    assert program.finish_with(("a", 2), ("a", 1), ("a", 1), ("a", 1)) == ["a:2:3", "a:1:2", "a:1:1", "a:1:1"]
    assert program.calls == [("a", 1)]


def test_an_inserted_call_of_the_same_name_is_new_work(store):
    program = Program(store)
    program.crash_with(("a", 1), ("a", 2))
    assert program.finish_with(("a", 1), ("a", 2), ("a", 7)) == ["a:1:1", "a:2:2", "a:7:1"]


def test_changed_arguments_halt_before_anything_is_called(store):
    program = Program(store)
    program.crash_with(("a", 1), ("b", 2))
    with pytest.raises(StepChanged) as caught:
        program.finish_with(("a", 1), ("b", 3))
    assert program.calls == []
    assert caught.value.step == "b"
    assert caught.value.arguments == ("value",)
    assert caught.value.run_id == program.run.runs.show().id
    for part in ("'b'", "value", f"lil rewind {caught.value.run_id} b", "on_change"):
        assert part in str(caught.value)
    assert program.finish_with(("a", 1), ("b", 2)) == ["a:1:1", "b:2:2"]  # every record is kept


def test_changed_arguments_are_no_exception_that_a_handler_catches(store):
    @durable(store=store, goal_id="g")
    def job(die):
        try:
            step("s", int, inputs[0])
        except Exception:
            return "swallowed"
        if die:
            crash()
        return "done"

    inputs = ["1"]
    crashes(job, True)
    inputs = ["2"]
    with pytest.raises(StepChanged):
        job(True)


def test_a_changed_number_of_arguments_is_told(store):
    @durable(store=store, goal_id="g")
    def job():
        step("s", max, *numbers)
        crash()

    numbers = [1, 2]
    crashes(job)
    numbers = [1, 2, 3]
    with pytest.raises(StepChanged, match="3 arguments now and was recorded with 2"):
        job()


def test_changed_keywords_are_named(store):
    def fetch(url, *, page, size):
        return url, page, size

    @durable(store=store, goal_id="g")
    def job():
        step("s", fetch, "u", page=page, size=10)
        crash()

    page = 1
    crashes(job)
    page = 2
    with pytest.raises(StepChanged) as caught:
        job()
    assert caught.value.arguments == ("page",)


def test_on_change_rerun_runs_it_and_what_follows_in_its_scope(store):
    program = Program(store, on_change="rerun")
    program.crash_with(("a", 1), ("b", 2), ("c", 3))
    assert program.crash_with(("a", 1), ("b", 5), ("c", 3)) == [("b", 5), ("c", 3)]
    assert program.finish_with(("a", 1), ("b", 5), ("c", 3)) == ["a:1:1", "b:5:1", "c:3:2"]
    assert program.calls == []


def test_on_change_rerun_leaves_other_scopes_alone(store):
    calls = []

    @durable(store=store, goal_id="g", on_change="rerun")
    def job(die=False):
        for branch in ("left", "right"):
            with scope(branch):
                step("in", calls.append, (branch, inputs[branch]))
                step("out", calls.append, (branch, "out"))
        if inputs["die"]:
            crash()

    inputs = {"left": 1, "right": 1, "die": True}
    crashes(job)
    calls.clear()
    inputs = {"left": 2, "right": 1, "die": False}
    job()
    assert calls == [("left", 2), ("left", "out")]


@pytest.mark.parametrize("named", [True, False])
def test_the_command_that_takes_records_back_names_the_store(tmp_path, monkeypatch, named):
    """Another store may have a run of that name, which it would strike."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LETITLOOP_STORE", raising=False)
    given = [1]

    @durable(goal_id="job", store=tmp_path / "team b" if named else None)
    def job():
        step("work", str, given[0])
        raise OSError

    with pytest.raises(OSError):
        job()
    given[0] = 2
    with pytest.raises(StepChanged) as caught:
        job()
    command = re.search(r"""["'](lil rewind .*)["'] voids""", str(caught.value))[1]
    options = ["--store", f"{tmp_path}/team b"] if named else []
    assert shlex.split(command) == ["lil", "rewind", caught.value.run_id, "work", *options]


def test_on_change_rerun_is_refused_where_an_effect_would_be_voided(store):
    @durable(store=store, goal_id="g", on_change="rerun")
    def job():
        step("in", int, value)
        with atomic_marker("mail") as should:
            if should:
                sent.append(value)
        crash()

    sent = []
    value = 1
    crashes(job)
    value = 2
    with pytest.raises(StepChanged, match=r"mail.*refused"):
        job()
    assert sent == [1]
    value = 1
    crashes(job)
    assert sent == [1]


def test_on_change_reuse_hands_the_old_value_on(store):
    program = Program(store, on_change="reuse")
    program.crash_with(("a", 1), ("b", 2))
    assert program.finish_with(("a", 1), ("b", 5)) == ["a:1:1", "b:2:2"]
    assert program.calls == []


def test_a_key_is_taken_instead_of_the_arguments(store):
    calls = []

    def fetch(session, user):
        calls.append(user)
        return user

    @durable(store=store, goal_id="g")
    def job():
        first = step("fixed", key="k")(fetch)(session, 1)
        second = step("computed", key=lambda session, user: f"user-{user}")(fetch)(session, user)
        if die:
            crash()
        return first, second

    die, session, user = True, "one", 7
    crashes(job)
    session, die = "two", False
    assert job() == (1, 7)
    assert calls == [1, 7]

    @durable(store=store, goal_id="g2")
    def job2():
        step("s", key=lambda user: f"user-{user}")(str)(user)
        crash()

    crashes(job2)
    user = 8
    with pytest.raises(StepChanged, match="key="):
        job2()


def test_keys_of_providers_beat_the_order_of_arrival(store):
    calls = []

    @durable(store=store, goal_id="g")
    def job():
        found = {}
        for item in order:
            found[item] = step("item", key=item)(lambda item=item: calls.append(item) or item * 2)()
        if die:
            crash()
        return found

    die, order = True, ["a", "b", "c"]
    crashes(job)
    die, order = False, ["c", "a", "d", "b"]
    assert job() == {"c": "cc", "a": "aa", "d": "dd", "b": "bb"}
    assert calls == ["a", "b", "c", "d"]


def test_changed_code_is_told_and_never_a_reason_to_refuse(store):
    def old(n):
        value = step("s", int, n)
        crash()
        return value

    def new(n):
        value = step("s", int, n)
        return value + 100

    def newer(n):
        return step("s", int, n + 1) + 200

    for function in (old, new, newer):
        function.__qualname__ = "job"
    crashes(durable(store=store, goal_id="g")(old), 1)
    with pytest.raises(StepChanged, match="code has changed"):
        durable(store=store, goal_id="g")(newer)(1)
    assert durable(store=store, goal_id="g")(new)(1) == 101


def test_a_replayed_value_is_a_fresh_one_each_time(store):
    seen = []

    @durable(store=store, goal_id="g")
    def job():
        value = step("s", list, "ab")
        seen.append(list(value))
        value.append("mutated")
        step("t", len, ["x"])
        crash()

    for _ in range(3):
        crashes(job)
    assert seen == [["a", "b"]] * 3
