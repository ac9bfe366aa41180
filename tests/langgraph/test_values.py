"""What is recorded of a channel's value: all that the codecs take, whoever changed it in whatever way, or a refusal by name."""

from __future__ import annotations

import sys
import uuid
from collections import deque, namedtuple
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, TypedDict

import pytest
from langchain_core.messages import AnyMessage, HumanMessage
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import RetryPolicy
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from letitloop import MemoryStore
from letitloop.codecs import Codecs
from letitloop.errors import InvalidArgument, UnencodableError
from letitloop_langgraph import CodecSerializer, InputsChanged, LetItLoopCheckpointSaver, durable_config
from letitloop_langgraph.config import INPUTS
from tests.langgraph.helpers import at, put, restarted

attrs = pytest.importorskip("attrs")


class Private(BaseModel):
    open: int = 1
    _n: int = PrivateAttr(default=0)
    _box: list = PrivateAttr(default_factory=list)


class Plain(BaseModel):
    a: int = 1
    b: list = Field(default_factory=list)


class Extra(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int = 1


class Slotted(Plain):
    __slots__ = ("hidden",)


@dataclass
class Data:
    a: int = 1
    b: list = field(default_factory=list)


@dataclass(slots=True)
class DataSlots:
    a: int = 1


@dataclass
class Listing(list):  # the codecs take it as it is registered
    a: int = 1


def listing(items):
    made = Listing()
    made.extend(items)
    return made


@attrs.define
class Attrs:
    a: int = 1


class Named(NamedTuple):
    a: list


def grown(item, change, codecs=None):
    """Record a list, change its first item, record it with one more, and return what is read back."""
    saver = LetItLoopCheckpointSaver(store=MemoryStore(), serde=CodecSerializer(codecs))
    config = put(saver, at(), {"xs": [item]}, "a", versions={"xs": 1})
    put(saver, config, {"xs": [item, 1]}, "b", versions={"xs": 2})
    change(item)
    put(saver, at(checkpoint_id="b"), {"xs": [item, 1, 2]}, "c", versions={"xs": 3})
    saver.close()
    restarted(saver)
    return saver.get_tuple(at()).checkpoint["channel_values"]["xs"]


def set_slot(name, value):
    return lambda item: object.__setattr__(item, name, value)


CHANGES = {
    "private": (Private(), lambda item: setattr(item, "_n", 5)),
    "private, made": (Private(), lambda item: item._box.append(1)),
    "private, another dict": (Private(), set_slot("__pydantic_private__", {"_n": 7, "_box": []})),
    "private, none before": (Private.model_construct(), set_slot("__pydantic_private__", {"_n": 7, "_box": []})),
    "nested private": ([Private()], lambda item: setattr(item[0], "_n", 5)),
    "private in a dict in a model": (Plain(b=[{"k": Private()}]), lambda item: setattr(item.b[0]["k"], "_n", 5)),
    "private in a dataclass": (Data(b=[Private()]), lambda item: setattr(item.b[0], "_n", 5)),
    "extra": (Extra(), lambda item: setattr(item, "more", 5)),
    "extra, one of some": (Extra(more=1), lambda item: setattr(item, "more", 5)),
    "extra, another dict": (Extra(more=1), set_slot("__pydantic_extra__", {"more": 6})),
    "fields that were set": (Plain(), lambda item: setattr(item, "a", item.a)),
    "fields that were set, another set": (Plain(), set_slot("__pydantic_fields_set__", {"a"})),
    "fields that were set, as many": (Plain(a=1), lambda item: (item.model_fields_set.clear(), item.model_fields_set.add("b"))),
    "nested fields that were set": ([Plain()], lambda item: setattr(item[0], "a", item[0].a)),
    "a slot of a model": (Slotted(), set_slot("hidden", 5)),
    "a field": (Plain(), lambda item: setattr(item, "a", 5)),
    "a list in a field": (Plain(), lambda item: item.b.append(5)),
    "a dataclass": (Data(), lambda item: setattr(item, "a", 5)),
    "more of a dataclass": (Data(), lambda item: setattr(item, "more", 5)),
    "a dataclass with slots": (DataSlots(), lambda item: setattr(item, "a", 5)),
    "attrs": (Attrs(), lambda item: setattr(item, "a", 5)),
    "a list in a named tuple": (Named([1]), lambda item: item.a.append(5)),
    "a set": ({1}, lambda item: item.add(5)),
    "a deque": (deque([1]), lambda item: item.append(5)),
    "a bytearray": (bytearray(b"1"), lambda item: item.append(5)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_in_an_earlier_item_of_a_list_that_grew_is_recorded(what):
    item, change = CHANGES[what]
    codecs = Codecs()
    encoded = codecs.encode(item)
    found = grown(item, change)
    assert codecs.encode(item) != encoded
    assert codecs.encode(found[0]) == codecs.encode(item)
    assert found[1:] == [1, 2]


def test_a_change_in_an_array_is_recorded():
    numpy = pytest.importorskip("numpy")
    assert grown(numpy.zeros(2), lambda item: item.fill(5))[0].tolist() == [5, 5]


def test_a_change_in_the_built_in_part_of_a_registered_class_is_recorded():
    codecs = Codecs()
    codecs.register(Listing, encode=list, decode=listing)
    assert list(grown(listing([1]), lambda item: item.append(5), codecs)[0]) == [1, 5]


@pytest.mark.parametrize(
    ("item", "change"),
    [
        (Private(), lambda item: setattr(item, "_n", 5)),
        (Extra(), lambda item: setattr(item, "more", 5)),
        (Plain(), lambda item: setattr(item, "a", 5)),
        ({"k": [Private()]}, lambda item: setattr(item["k"][0], "_n", 5)),
    ],
    ids=["private", "extra", "a field", "nested private"],
)
def test_a_value_that_is_changed_in_place_and_not_returned_is_told(item, change):
    saver = LetItLoopCheckpointSaver(store=MemoryStore())
    config = put(saver, at(), {"x": item}, "a")
    change(item)
    with pytest.warns(RuntimeWarning, match="'x'"):
        put(saver, config, {"x": item}, "b", new={})
    saver.close()


# --- exceptions --------------------------------------------------------------------------------------------------------------


class Any_(TypedDict, total=False):
    value: Any


def test_an_exception_that_is_a_value_is_refused_by_name_and_one_that_ends_a_task_is_told():
    saver = LetItLoopCheckpointSaver(store=MemoryStore())

    def graph(node):
        made = StateGraph(Any_)
        made.add_node("node", node)
        made.add_edge(START, "node")
        return made.compile(checkpointer=saver)

    config = {"configurable": {"thread_id": "value"}}
    with pytest.raises(UnencodableError, match="ValueError"):
        graph(lambda state: {"value": ValueError("boom")}).invoke({}, config)
    with pytest.raises(UnencodableError, match="ValueError"):
        put(saver, at(), {"value": ValueError("boom")}, "a")
    with pytest.raises(UnencodableError, match="ValueError"):
        saver.serde.dumps_typed(ValueError("boom"))

    def fail(state):
        raise ValueError("boom")

    config = {"configurable": {"thread_id": "error"}}
    app = graph(fail)
    with pytest.raises(ValueError, match="boom"):
        app.invoke({}, config)
    saver.close()
    restarted(saver)
    assert app.get_state(config).tasks[0].error == "ValueError('boom')"
    saver.close()


# --- inputs of durable_config ------------------------------------------------------------------------------------------------


@dataclass
class DataState:
    messages: Annotated[list[AnyMessage], add_messages] = field(default_factory=list)
    n: int = 0


class ModelState(BaseModel):
    messages: Annotated[list[AnyMessage], add_messages] = []
    n: int = 0


class DictState(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    n: int


@dataclass
class Inside:
    message: HumanMessage


@pytest.mark.parametrize("kind", [DataState, ModelState, DictState])
def test_ids_that_langgraph_gives_messages_are_no_other_inputs(kind):
    saver = LetItLoopCheckpointSaver(store=MemoryStore())
    graph = StateGraph(kind)
    graph.add_node("node", lambda state: {"messages": [("ai", "hi")]})
    graph.add_edge(START, "node")
    app = graph.compile(checkpointer=saver)
    inputs = kind(messages=[HumanMessage("hi")], n=1)
    first = app.invoke(inputs, durable_config("1", inputs))
    assert app.invoke(inputs, durable_config("1", inputs)) == first
    fresh = kind(messages=[HumanMessage("hi")], n=1)
    assert app.invoke(fresh, durable_config("1", fresh)) == first
    for other in (kind(messages=[HumanMessage("ho")], n=1), kind(messages=[HumanMessage("hi")], n=2)):
        with pytest.raises(InputsChanged):
            app.invoke(other, durable_config("1", other))
    saver.close()


Pair = namedtuple("Pair", "message n")  # noqa: PYI024 - the old form is one of those that are recorded


@pytest.mark.parametrize(
    "make",
    [
        lambda message: {"deep": [Inside(message)]},
        lambda message: Inside(message),
        lambda message: Pair(message, 1),
        lambda message: attrs_state(message),
        lambda message: Extra(more=[message]),
    ],
    ids=["deep", "dataclass", "named tuple", "attrs", "extra"],
)
def test_ids_that_langgraph_gave_messages_are_no_inputs_wherever_the_messages_are(make):
    def told(message):
        return durable_config("1", make(message))["metadata"][INPUTS]

    one, two = (str(uuid.UUID(int=number)) for number in (1, 2))
    assert told(HumanMessage("hi", id=one)) == told(HumanMessage("hi", id=two)) != told(HumanMessage("ho", id=one))
    assert told(HumanMessage("hi", id="1")) != told(HumanMessage("hi", id="2"))


@attrs.define
class AttrsState:
    message: Any


def attrs_state(message):
    return AttrsState(message)


def test_states_of_different_classes_are_different_inputs():
    told = {durable_config("1", kind(messages=[HumanMessage("hi")]))["metadata"][INPUTS] for kind in (DataState, ModelState, dict)}
    assert len(told) == 3


@pytest.mark.parametrize("run", ["a\0b", "\0", "\ud800", "x\udfff", 7, None])
def test_a_name_of_a_run_that_would_not_be_recognised_is_refused(run):
    with pytest.raises(InvalidArgument, match="Nothing was run"):
        durable_config("1", {}, run=run)


@pytest.mark.parametrize("run", ["", "second", "x" * 5000, "\U0001f600", " ", "a:b/c"])
def test_a_run_of_any_other_name_is_answered_when_it_is_asked_for_again(run):
    saver = LetItLoopCheckpointSaver(store=MemoryStore())
    calls = []
    graph = StateGraph(Any_)
    graph.add_node("node", lambda state: calls.append(1) or {"value": 1}, retry_policy=RetryPolicy())
    graph.add_edge(START, "node")
    app = graph.compile(checkpointer=saver)
    for _ in range(2):
        assert app.invoke({"value": 0}, durable_config("1", {"value": 0}, run=run)) == {"value": 1}
    assert calls == [1]
    saver.close()


def test_what_pydantic_keeps_beside_the_fields_is_all_that_is_looked_at():
    """If a pydantic of the future keeps more, this says so."""
    assert sys.modules["pydantic"].BaseModel.__slots__ == (
        "__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__"
    )  # fmt: skip
