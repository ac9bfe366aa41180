"""Exceptions of odd classes: the program gets its own, and a replay takes the same way or says what is missing."""

from __future__ import annotations

import builtins
import importlib.util
import sys

import pytest

from letitloop import MemoryStore, RecordedError, durable, step
from letitloop.codecs import default_codecs
from letitloop.runs.failures import decode_failure, encode_failure
from letitloop.runs.records import FAILED, pack_head
from tests.runs.helpers import crash, crashes

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def store():
    return MemoryStore()


class Text(str):
    __slots__ = ()


class SaysASubclass(Exception):
    def __str__(self):
        return Text("x")


class ExceptionsIsANumber(Exception):
    exceptions = 5


class ExceptionsIsADict(Exception):
    def __init__(self):
        super().__init__()
        self.exceptions = {"a": "b"}


class ExceptionsAreTexts(Exception):
    exceptions = ("a", None, ValueError)


class ExceptionsRaises(Exception):
    @property
    def exceptions(self):
        raise RuntimeError("exceptions")


class DictRaises(Exception):
    __dict__ = property(lambda self: 1 / 0)


class HasSlots(Exception):
    __slots__ = ("code", "never")

    def __init__(self):
        super().__init__("slots")
        self.code = 7


class EqualityRaises(Exception):
    def __eq__(self, other):
        raise RuntimeError("eq")

    __hash__ = None


class EverythingRaises(Exception):
    def __reduce__(self):
        raise RuntimeError("reduce")

    def __repr__(self):
        raise RuntimeError("repr")

    def __str__(self):
        raise RuntimeError("str")


class GetattrRaises(Exception):
    def __getattr__(self, name):
        raise RuntimeError(name)


class GetattributeRaises(Exception):
    def __getattribute__(self, name):
        raise RuntimeError(name)


class NoModule(Exception):
    __module__ = None


class Surrogates(Exception):
    def __init__(self):
        super().__init__("\ud800\0")
        self.big = "\ud800"


class _Meta(type):
    def __getattribute__(cls, name):
        if name in ("__module__", "__qualname__", "__name__"):
            raise RuntimeError(name)  # it cannot even say its name
        return super().__getattribute__(name)


class MetaclassRaises(Exception, metaclass=_Meta):
    pass


class ClassLies(Exception):
    __class__ = property(lambda self: int)


class NotesAreANumber(Exception):
    def __init__(self):
        super().__init__()
        self.__notes__ = 5


class SaysANumber(Exception):
    def __str__(self):
        return 5  # noqa: PLE0307 - that is what is odd about it


class NeedsArguments(Exception):
    def __init__(self, one, *, two):
        super().__init__(f"{one} {two}")
        self.one, self.two = one, two


def _needs_arguments():
    return NeedsArguments(1, two=2)


CLASSES = [
    SaysASubclass,
    ExceptionsIsANumber,
    ExceptionsIsADict,
    ExceptionsAreTexts,
    ExceptionsRaises,
    DictRaises,
    HasSlots,
    EqualityRaises,
    EverythingRaises,
    GetattrRaises,
    GetattributeRaises,
    NoModule,
    Surrogates,
    MetaclassRaises,
    ClassLies,
    NotesAreANumber,
    SaysANumber,
    _needs_arguments,
]
by_index = pytest.mark.parametrize(
    "index", range(len(CLASSES)), ids=[type.__repr__(type(make())).split(".")[-1][:-2] for make in CLASSES]
)


@by_index
def test_it_reaches_the_caller_as_itself_and_is_recorded(store, index):
    made = CLASSES[index]()

    def fail():
        raise made

    @durable(goal_id="g", store=store)
    def job():
        step("fail", fail)

    with pytest.raises(BaseException) as caught:
        job()
    same = caught.value is made  # not in the assert: these cannot be printed
    assert same
    run = job.runs.show()
    assert run.status == "failed"
    assert [(record.key, record.status) for record in run.steps] == [("fail", "failed")]


@by_index
def test_caught_it_comes_back_as_its_class_or_as_what_says_so(store, index):
    cls = type(CLASSES[index]())
    seen = []

    def fail():
        made = CLASSES[index]()
        raise made

    @durable(goal_id="g", store=store)
    def job():
        try:
            step("fail", fail)
        except Exception as exc:
            seen.append(exc)
        step("after", int)
        if len(seen) == 1:
            crash()

    crashes(job)
    job()
    same = [type(exc) in (cls, RecordedError) for exc in seen]  # as above
    assert same == [True, True]


def test_slots_come_back(store):
    back = decode_failure(encode_failure(HasSlots(), default_codecs), default_codecs, "step 's'")
    assert (type(back), back.code, str(back)) == (HasSlots, 7, "slots")
    assert not hasattr(back, "never")


# --- the exceptions of SDKs --------------------------------------------------------------------------------------------------


class Response:
    """Nothing that can be recorded."""

    status = 429


class HTTPError(Exception):
    pass


class StatusError(HTTPError):
    def __init__(self, message, *, response):
        super().__init__(message)
        self.response = response
        self.status = response.status


class ResponseInArguments(HTTPError):
    def __init__(self, message, response):
        super().__init__(message, response)
        self.status = response.status

    def __str__(self):
        return self.args[0]


@pytest.mark.parametrize(
    "make", [lambda: StatusError("slow down", response=Response()), lambda: ResponseInArguments("slow down", Response())]
)
def test_a_resumed_run_takes_the_same_way_after_an_exception_that_carries_a_response(store, make):
    def ask():
        asked.append(1)
        raise make()

    @durable(store=store)
    def job():
        try:
            step("ask", ask)
        except HTTPError as exc:
            way = step("wait", lambda status, text: (status, text), exc.status, str(exc))
            caught.append(exc)
        if len(caught) == 1:
            crash()
        return way

    asked, caught = [], []
    crashes(job)
    assert job() == (429, "slow down")
    assert len(asked) == 1
    assert type(caught[1]) is type(caught[0])
    if sys.version_info >= (3, 11):
        assert "does not have" in caught[1].__notes__[0], "what is missing is told"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="groups came with 3.11")
def test_a_group_that_was_caught_is_an_exception_on_replay_too(store):
    group = builtins.ExceptionGroup

    def fail():
        raise group("g", [ValueError(1)])

    @durable(store=store)
    def job():
        try:
            step("fail", fail)
        except Exception as exc:
            seen.append(exc)
        step("after", int)
        if len(seen) == 1:
            crash()

    seen = []
    crashes(job)
    job()
    assert isinstance(seen[1], (group, RecordedError))


# --- reading runs nobody's code ----------------------------------------------------------------------------------------------


def test_a_failure_of_a_module_that_is_imported_lazily_does_not_import_it(store, tmp_path, monkeypatch):
    path = tmp_path / "lazy_module_of_a_test.py"
    path.write_text("raise AssertionError('it was imported')\n")
    spec = importlib.util.spec_from_file_location("lazy_module_of_a_test", path)
    loader = importlib.util.LazyLoader(spec.loader)
    spec.loader = loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    loader.exec_module(module)

    @durable(goal_id="g", store=store)
    def job():
        try:
            step("bad", int)
        except RecordedError as exc:
            seen.append(exc)
        step("after", int)

    seen = []
    crashing = durable(lambda: crash(), goal_id="g", store=store)
    crashes(crashing)
    log = store.open_log("runs", store.names("runs")[0])
    failure = {"type": f"{spec.name}:Boom", "text": "x", "args": [], "state": {}, "lacking": [], "traceback": ""}
    log.append(FAILED, b"bad", pack_head(0, b"", log.next_seq, 1e9, 0.0) + default_codecs.encode(failure))
    log.append(18, b"after", pack_head(0, b"", log.next_seq, 1e9, 0.0) + default_codecs.encode(0))
    log.close()
    job()
    assert seen[0].type_name == f"{spec.name}:Boom"
    assert type(module).__name__ == "_LazyModule", "untouched"


def test_a_value_whose_class_answers_for_any_name_is_no_awaitable(store):
    class Odd:
        def __getattr__(self, name):
            raise RuntimeError(name)

    @durable(store=store)
    def job():
        return step("s", lambda value: type(value).__name__, Odd())

    assert job() == "Odd"
    with pytest.raises(TypeError, match="cannot be recorded"):  # what it is, and not what it raises
        durable(lambda: step("s", Odd), store=store)()
