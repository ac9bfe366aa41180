"""Serialisers: what LangGraph's own wrote is read, nothing is called that is not allowed, and encryption leaves no plain text."""

from __future__ import annotations

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Send

from letitloop.errors import DecodeError, UnknownType
from letitloop_langgraph import CodecSerializer, LetItLoopCheckpointSaver
from tests.langgraph.helpers import at, put


def test_the_codecs_read_what_langgraphs_serialiser_wrote(saver):
    old = LetItLoopCheckpointSaver(store=saver.store, serde=JsonPlusSerializer())
    values = {"m": [HumanMessage("hi", id="1")], "n": 3, "b": b"raw", "none": None, "ba": bytearray(b"x")}
    config = put(old, at(), values, "a")
    old.put_writes(config, [("x", Send("node", {"a": 1}))], "t")
    old.close()
    found = saver.get_tuple(at())
    assert found.checkpoint["channel_values"] == values
    assert found.pending_writes == [("t", "x", Send("node", {"a": 1}))]


class Custom:
    made = 0

    def __init__(self, value):
        Custom.made += 1
        self.value = value

    def model_dump(self):
        return {"value": self.value}


def test_nothing_is_imported_or_called_for_a_class_that_is_not_allowed(saver):
    tag, body = JsonPlusSerializer().dumps_typed(Custom(3))
    before = Custom.made
    with pytest.raises(UnknownType, match="allowlist"):
        saver.serde.loads_typed((tag, body))
    assert Custom.made == before
    clone = saver.with_allowlist([(Custom.__module__, "Custom")])
    assert clone.serde.loads_typed((tag, body)).value == 3
    evil = JsonPlusSerializer().dumps_typed({"x": 1})[1].replace(b"x", b"y")
    assert saver.serde.loads_typed((tag, evil)) == {"y": 1}


def test_pickles_are_not_read(saver):
    with pytest.raises(DecodeError, match="pickle"):
        saver.serde.loads_typed(("pickle", b"cos\nsystem\n(S'true'\ntR."))


class Rot13:
    """A cipher that gives other bytes each time."""

    def __init__(self):
        self.n = 0

    def encrypt(self, plaintext):
        self.n += 1
        return "xor", bytes([self.n % 256]) + bytes(byte ^ (self.n % 256) for byte in plaintext)

    def decrypt(self, ciphername, ciphertext):
        assert ciphername == "xor"
        return bytes(byte ^ ciphertext[0] for byte in ciphertext[1:])


@pytest.mark.parametrize("inner", [JsonPlusSerializer, CodecSerializer])
def test_an_encrypting_serialiser_leaves_no_plain_text(inner, tmp_path):
    saver = LetItLoopCheckpointSaver(store=tmp_path, serde=EncryptedSerializer(Rot13(), inner()))
    items, config = [], at()
    for step in range(5):
        items = [*items, f"SECRET {step}"]
        config = put(
            saver, config, {"xs": items, "one": "SECRET"}, f"{step}",
            versions={"xs": step + 1, "one": 1}, metadata={"source": "loop", "who": "SECRET", "run_id": "SECRET-RUN"},
        )  # fmt: skip
        saver.put_writes(config, [("xs", ["SECRET"])], "t")
    saver.close()
    for file in tmp_path.rglob("*.wal"):
        assert b"SECRET" not in file.read_bytes()
    again = LetItLoopCheckpointSaver(store=tmp_path, serde=saver.serde)
    found = again.get_tuple(at())
    assert found.checkpoint["channel_values"] == {"xs": items, "one": "SECRET"}
    assert found.metadata["who"] == "SECRET"
    assert [len(one.checkpoint["channel_values"]["xs"]) for one in again.list(at())] == [5, 4, 3, 2, 1]
    again.prune(["1"])
    assert again.get_tuple(at()).checkpoint["channel_values"]["xs"] == items
    again.close()


def test_a_list_that_grows_under_a_foreign_serialiser_is_stored_as_its_new_part(tmp_path):
    saver = LetItLoopCheckpointSaver(store=tmp_path, serde=JsonPlusSerializer())
    items, config = [], at()
    for step in range(60):
        items = [*items, f"{step:03}" + "x" * 1000]
        config = put(saver, config, {"xs": items}, f"{step:03}", versions={"xs": step + 1})
    saver.close()
    assert sum(file.stat().st_size for file in tmp_path.rglob("*.wal")) < 60 * 1500
    assert saver.get_tuple(at()).checkpoint["channel_values"]["xs"] == items
    saver.close()
