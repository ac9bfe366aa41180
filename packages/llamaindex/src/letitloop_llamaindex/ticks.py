"""Ticks of a workflow to bytes and back, exactly: events by number, exceptions as data, event classes by name.

A tick passes its events on: the same event stands in the result that emitted it, in the tick that delivered it, and in the result
of the step that took it. So an event is recorded once, with the tick that first holds it, and by its number afterwards. Chat
messages are treated alike, wherever they stand: a history that grows is not recorded anew each time.
"""

# workflows.runtime is typed; its folder has no __init__.py, which hides that
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import sys
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from workflows.events import Event, StepFailedEvent, WorkflowFailedEvent
from workflows.runtime.types import results, ticks
from workflows.runtime.types.step_id import StepId

from letitloop.codecs import Codecs
from letitloop.codecs.classes import find
from letitloop.codecs.ext import class_of
from letitloop.errors import DecodeError, UnencodableError
from letitloop.integration.atoms import atoms, same
from letitloop.runs.failures import decode_failure, encode_failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from workflows.events import StartEvent
    from workflows.runtime.types.ticks import WorkflowTick

__all__ = ["TickCodec"]

_REMEMBERED = 20_000


@dataclass(frozen=True)
class _Numbered:
    """An event, by its number."""

    number: int


@dataclass(frozen=True)
class _Start:
    """The event that the run was started with, which the program gives again."""


@dataclass(frozen=True)
class _Items:
    """A list, by the numbers of its items."""

    numbers: list[int]


@dataclass(frozen=True)
class _Failed:
    """An exception, as :mod:`letitloop.runs.failures` records it."""

    data: bytes


@dataclass(frozen=True)
class _Class:
    """An event class, by its name."""

    tag: str


@dataclass(frozen=True)
class _Part:
    """A tick, or one of the framework's own models in it, by its fields."""

    name: str
    fields: dict[str, Any]


_PARTS: dict[str, Any] = {
    cls.__name__: cls
    for module in (ticks, results)
    for cls in vars(module).values()
    if isinstance(cls, type) and issubclass(cls, BaseModel) and cls.__module__ == module.__name__ and "[" not in cls.__name__
}


class TickCodec:
    """Encodes the ticks of one run in their order, and decodes them in the same order.

    Attributes:
        start: the event that the run was started with.
        live: what the program has made again, by its name in the state (``memory``): what is decoded is put into these.
        fetched: of a chat memory that lies in a database, by its id, the messages that are recorded next.
        unpacked: of such a memory that was decoded, by its id, the memory and its messages.
        capturing: whether :meth:`capture` encodes here.
    """

    def __init__(self) -> None:
        self.start: StartEvent | None = None
        self.live: dict[str, Any] = {}
        self.codecs = Codecs()
        self._numbers: dict[bytes, int] = {}
        self._bodies: list[bytes] = []
        self._new: list[bytes] = []
        self._seen: dict[tuple[bool, int], tuple[Any, list[Any], int]] = {}
        self._learned = False
        self.fetched: dict[int, Any] = {}
        self.unpacked: dict[int, Any] = {}
        self.capturing = False
        for cls in (StepFailedEvent, WorkflowFailedEvent):
            self.codecs.register(cls, encode=self._take_apart, decode=self._maker(cls))

    # --- values in their order -----------------------------------------------------------------------------------------------

    def encode(self, tick: WorkflowTick) -> bytes:
        """Encode a tick.

        Raises:
            UnencodableError: it holds something that cannot be recorded exactly.
        """
        self._learn()
        return self.codecs.encode(self._thin(tick, "tick"), path="tick")

    def decode(self, data: Any) -> WorkflowTick:
        """Decode a tick; its events are new objects.

        Raises:
            DecodeError: these are no bytes of a tick, or a class of it is gone or has changed.
        """
        self._learn()
        tick: WorkflowTick = self._whole(self.codecs.decode(data))
        return tick

    def encode_value(self, value: Any, path: str) -> bytes:
        """Encode a value of the state, or a list of events; the items of a list by their numbers."""
        self._learn()
        if class_of(value) is list:
            return self.codecs.encode(_Items([self._item(item, path) for item in value]))
        return self.codecs.encode(value, path=path)

    def _item(self, item: Any, path: str) -> int:
        def encode(value: Any) -> bytes:
            return self.codecs.encode(value, path=path)

        # an event may hold a whole conversation: a copy of it costs more than its bytes
        return (
            self.number(encode(item))
            if isinstance(item, Event) and "input" in vars(item)
            else self.remembered(item, encode, item=True)
        )

    def capture(self, value: Any) -> bytes | None:
        """Encode what a step reads, None if it cannot be given to it again.

        That is what has no bytes, and chat memory: what is decoded of it is put into the memory that the program has.
        """
        self.capturing = True
        try:
            return self.encode_value(value, "value")
        except UnencodableError:
            return None
        finally:
            self.capturing = False

    def decode_value(self, data: Any) -> Any:
        """Decode what :meth:`encode_value` gave."""
        self._learn()
        value = self.codecs.decode(data)
        return [self.codecs.decode(self.body(number)) for number in value.numbers] if isinstance(value, _Items) else value

    def can(self, value: object) -> bool:
        """Tell whether a value can be recorded."""
        self._learn()
        try:
            self.codecs.encode(value)
        except UnencodableError:
            return False
        return True

    def same(self, one: Event, other: Event) -> bool:
        """Tell whether two events have the same content."""
        self._learn()
        return self.codecs.encode(one) == self.codecs.encode(other)

    def take_new(self) -> list[bytes]:
        """Return the values that have got a number since this was last asked; a record that names them holds them."""
        new, self._new = self._new, []
        return new

    def take_in(self, bodies: Any) -> None:
        """Number the values that a record holds, before anything else of it is decoded."""
        for body in bodies:
            self.number(body)
        self._new.clear()

    def number(self, body: bytes) -> int:
        """Return the number of an encoded value, a new one if it is new."""
        digest = blake2b(body, digest_size=16).digest()
        number = self._numbers.get(digest)
        if number is None:
            number = self._numbers[digest] = len(self._bodies)
            self._bodies.append(body)
            self._new.append(body)
        return number

    def remembered(self, value: Any, encode: Callable[[Any], bytes], *, item: bool = False) -> int:
        """Return the number of a value that comes again and again, as messages do; while it is as it was, it is encoded once."""
        place = item, id(value)  # a message that is an item of a list has two: of its bytes, and of the reference to them
        known = self._seen.get(place)
        made_of = atoms(value)
        if known is not None and known[0] is value and same(known[1], made_of):
            return known[2]
        number = self.number(encode(value))
        if made_of is not None:
            if len(self._seen) >= _REMEMBERED:
                self._seen.clear()
            self._seen[place] = value, made_of, number
        return number

    def body(self, number: int) -> bytes:
        """Return the encoded value of a number."""
        return self._bodies[number]

    # --- ticks ---------------------------------------------------------------------------------------------------------------

    def _thin(self, value: Any, path: str) -> Any:
        """Replace what the codecs do not know, or what has a number."""
        kind = class_of(value)
        if kind is list:
            return [self._thin(item, f"{path}[{index}]") for index, item in enumerate(value)]
        if kind is dict:
            return {key: self._thin(item, f"{path}[{key!r}]") for key, item in value.items()}
        if self.start is not None and value is self.start:
            return _Start()
        if isinstance(value, Event):
            return _Numbered(self.number(self.codecs.encode(value, path=f"{path}.{type(value).__name__}")))
        if isinstance(value, Exception):
            return _Failed(encode_failure(value, self.codecs))
        if isinstance(value, StepId):
            return str(value)
        if isinstance(value, type) and issubclass(value, Event):
            return _Class(self._findable(value, path))
        if isinstance(value, BaseModel) and _PARTS.get(name := type(value).__name__.partition("[")[0]) is not None:
            fields = {key: self._thin(field, f"{path}.{key}") for key, field in vars(value).items() if key != "type"}
            return _Part(name, {key: field for key, field in fields.items() if field not in (None, [], {}, ())})
        if isinstance(value, results.CollectionReleasePayload):
            return _Part("", {**vars(value), "events": self._thin(value.events, f"{path}.events")})
        return value  # pyright: ignore[reportUnknownVariableType]  # of any type

    def _whole(self, value: Any) -> Any:
        kind = class_of(value)
        if kind is list:
            return [self._whole(item) for item in value]
        if kind is dict:
            return {key: self._whole(item) for key, item in value.items()}
        if isinstance(value, _Start):
            return self.start
        if isinstance(value, _Numbered):
            return self.codecs.decode(self.body(value.number))
        if isinstance(value, _Failed):
            return decode_failure(value.data, self.codecs, "a step of this workflow")
        if isinstance(value, _Class):
            return self._found(value.tag)
        if isinstance(value, _Part):
            fields = {key: self._whole(field) for key, field in value.fields.items()}
            if not value.name:
                return results.CollectionReleasePayload(**fields)
            if isinstance(fields.get("step_id"), str):
                fields["step_id"] = StepId.from_str(fields["step_id"])
            return _PARTS[value.name].model_construct(**fields)
        return value

    def _findable(self, cls: type[Event], path: str) -> str:
        tag = f"{cls.__module__}:{cls.__qualname__}"
        if find(tag) is not cls:
            raise UnencodableError(
                f"{path}: cannot record the event class {cls.__qualname__}: a reader cannot find it by its name. Move it to "
                "module level.",
                path=path,
                type_name=tag,
            )
        return tag

    def _found(self, tag: str) -> type:
        cls = find(tag)
        if cls is None:
            raise DecodeError(f"the record names the event class {tag!r}, which is not among the imported modules.")
        return cls

    # --- classes that hold what the codecs do not know -----------------------------------------------------------------------

    def _learn(self) -> None:
        """Register the classes of llama-index-core once it is imported."""
        if not self._learned and "llama_index.core.memory" in sys.modules:
            self._learned = True
            from letitloop_llamaindex.memories import register_with

            register_with(self)

    def _take_apart(self, event: Any) -> dict[str, Any]:
        fields: dict[str, Any] = {**vars(event), "exception": encode_failure(event.exception, self.codecs)}
        if "input_event" in fields:
            fields["input_event"] = self._thin(fields["input_event"], "input_event")  # it may be the start event
        return {"fields": fields, "private": event.__pydantic_private__, "set": sorted(event.__pydantic_fields_set__)}

    def _maker(self, cls: Any) -> Callable[[Any], Any]:
        def make(recorded: Any) -> Any:
            fields = recorded["fields"]
            fields["exception"] = decode_failure(fields["exception"], self.codecs, "a step of this workflow")
            if "input_event" in fields:
                fields["input_event"] = self._whole(fields["input_event"])
            # not model_construct(): it asks such an event for what __getattr__ looks up in a private attribute, before there is one
            event = cls.__new__(cls)
            parts = {"dict": fields, "pydantic_fields_set": set(recorded["set"]), "pydantic_extra": None}
            for name, part in {**parts, "pydantic_private": recorded["private"]}.items():
                object.__setattr__(event, f"__{name}__", part)
            return event

        return make
