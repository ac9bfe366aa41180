"""One run, one question: calls that ask different things never share a run, whatever ``==`` says of their arguments."""

from __future__ import annotations

import dataclasses
import enum
import subprocess
import sys
import zipapp

import pytest

from letitloop import InvalidArgument, MemoryStore, durable, step

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def store():
    return MemoryStore()


@dataclasses.dataclass
class Config:
    name: str
    token: str = dataclasses.field(default="", compare=False)


@dataclasses.dataclass
class Agreeable:
    """Equal to everything."""

    value: int

    def __eq__(self, other):
        return True

    __hash__ = None


@dataclasses.dataclass
class Account:
    id: int

    def work(self):
        return self.id


class Plain:
    def __init__(self, number):
        self.id = number

    def work(self):
        return self.id


# --- defaults ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("default", "others"),
    [
        (1, [True, 1.0, 1 + 0j]),
        (0.0, [-0.0, 0, False]),
        ((1,), [(True,), (1.0,), [1]]),
        ({"n": 1}, [{"n": True}, {"n": 1.0}]),
        (Config("a", "default's"), [Config("a", "other")]),
        (Agreeable(1), [Agreeable(2)]),
        (None, [Agreeable(1)]),
    ],
)
def test_what_merely_equals_the_default_is_another_run(store, default, others):
    @durable(goal_id="g", store=store)
    def job(value=default):
        return step("s", lambda value: repr((value, getattr(value, "token", None))), value)

    values = [default, *others]
    expected = [repr((value, getattr(value, "token", None))) for value in values]
    assert job() == expected[0]
    assert [job(value) for value in values] == expected
    assert len(store.names("runs")) == len(values)


def test_the_default_given_is_the_run_of_the_default_left_out(store):
    config = Config("a", "t")

    @durable(goal_id="g", store=store)
    def job(x=(1, 2.0), *, config=config):
        return len(calls)

    calls = []
    job()
    job((1, 2.0))
    job(x=(1, 2.0), config=Config("a", "t"))
    assert len(store.names("runs")) == 1


# --- methods -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("goal_id", [None, "sync"])
def test_a_method_of_an_object_that_nothing_tells_from_another_is_refused(store, goal_id):
    called = []

    class Client(Plain):
        @durable(goal_id=goal_id, store=store)
        def sync(self):
            called.append(self.id)

        @durable(goal_id=goal_id, store=store)
        async def sync_async(self):
            called.append(self.id)

    with pytest.raises(InvalidArgument) as caught:
        Client(1).sync()
    for part in ("sync", "method", "Client", "Nothing was run", "goal_id"):
        assert part in str(caught.value)
    with pytest.raises(InvalidArgument, match="goal_id"):
        Client(1).sync_async().send(None)
    assert not called
    assert not store.names("runs")


def test_a_method_of_data_has_a_run_for_each_object(store):
    @dataclasses.dataclass
    class Customer(Account):
        @durable(goal_id="sync", store=store)
        def sync(self):
            return step("work", self.work)

    assert [Customer(i).sync() for i in (1, 2, 1)] == [1, 2, 1]
    assert len(store.names("runs")) == 2


def test_a_method_whose_goal_names_the_object_has_a_run_for_each(store):
    class Customer(Plain):
        @durable(goal_id=lambda self: f"sync-{self.id}", store=store)
        def sync(self):
            return step("work", self.work)

    assert [Customer(i).sync() for i in (1, 2, 1)] == [1, 2, 1]
    assert {run.goal_id for run in Customer.sync.runs} == {"sync-1", "sync-2"}


def test_an_object_that_tells_itself_apart_is_no_reason_to_refuse_other_functions(store):
    @durable(goal_id="f", store=store)
    def job(client, question):
        return step("ask", lambda client, question: question, client, question)

    assert job(Plain(1), "hi") == "hi"


# --- names -------------------------------------------------------------------------------------------------------------------


class Kind(str, enum.Enum):
    SYNC = "sync"


class Odd(str):
    """A string that equals all of its kind."""

    __slots__ = ()

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 1


@pytest.mark.parametrize("goal", [Kind.SYNC, Odd("sync")])
def test_a_goal_may_be_any_kind_of_string(store, goal):
    for goal_id in (goal, lambda: goal):
        job = durable(lambda: step("s", int), goal_id=goal_id, store=store)
        assert job() == 0
    assert len(store.names("runs")) == 1
    assert durable(lambda: 5, goal_id="sync", store=store)() == 0


def test_names_of_any_kind_of_string_are_told_apart_by_their_text(store):
    @durable(store=store)
    def job():
        return [step(name, str) for name in (Odd("a"), Odd("b"), Kind.SYNC, "sync", "a")]

    job()
    assert [record.key for record in job.runs.show().steps] == ["a", "b", "sync", "sync#2", "a#2"]


# --- the program's name ------------------------------------------------------------------------------------------------------

PROGRAM = """
import multiprocessing
from letitloop import current_run, durable

@durable
def main():
    return current_run().goal_id

def child(results):
    results.put(main())

if __name__ == "__main__":
    print(main())
    for method in METHODS:
        context = multiprocessing.get_context(method)
        results = context.SimpleQueue()
        process = context.Process(target=child, args=(results,))
        process.start()
        print(results.get())
        process.join()
"""


def _goals(*command, cwd):
    done = subprocess.run([sys.executable, *command], cwd=cwd, capture_output=True, text=True, timeout=25, check=True)
    return done.stdout.split()


def test_children_of_multiprocessing_know_the_run_by_the_same_name(tmp_path):
    (tmp_path / "prog.py").write_text(PROGRAM.replace("METHODS", "['spawn', 'fork', 'forkserver']"))
    assert _goals("prog.py", cwd=tmp_path) == ["prog:main"] * 4
    assert _goals("-m", "prog", cwd=tmp_path) == ["prog:main"] * 4
    assert _goals("-c", "import prog; print(prog.main())", cwd=tmp_path) == ["prog:main"]


def test_programs_that_are_a_folder_or_an_archive_are_told_apart(tmp_path):
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "__main__.py").write_text(PROGRAM.replace("METHODS", "[]"))
        zipapp.create_archive(folder, tmp_path / f"{name}.pyz")
    goals = [_goals(program, cwd=tmp_path) for program in ("one", "two", "one.pyz", "two.pyz")]
    assert goals == [["one:main"], ["two:main"], ["one:main"], ["two:main"]]
