"""``lil verify``, ``repair``, ``compact``, ``export``, ``seal``, ``proof``: what logs hold, and what is told of damage."""

from __future__ import annotations

import json
import os
import zipfile
from base64 import b64decode
from collections import Counter, OrderedDict, deque
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PurePosixPath
from uuid import UUID

import pytest

from letitloop import DirectoryStore, durable, step
from letitloop.cli.heads import unpacked
from letitloop.cli.jsonable import to_json
from letitloop.codecs import default_codecs
from letitloop.errors import ForeignFile
from letitloop.wal.recovery import open_log
from tests.cli import stores
from tests.cli.stores import KEY, data, lil, workflow


@pytest.fixture
def sealed(monkeypatch):
    monkeypatch.setenv("LETITLOOP_SEAL_KEY", KEY)


def outcome(name, *more, code=0):
    return next(one for one in data("verify", name, *more, code=code) if one["log"] == name)


# --- verify ------------------------------------------------------------------------------------------------------------------


def test_a_sound_store_is_clean():
    workflow()
    assert "2 logs: all good" in lil("verify")
    assert {one["verdict"] for one in data("verify")} == {"clean"}


def test_a_narrow_terminal_breaks_no_name(monkeypatch):
    name = workflow("a-goal-with-a-name-that-is-quite-long")
    stores.rot(name, 3)
    monkeypatch.setenv("COLUMNS", "64")
    lines = lil("verify", code=1).splitlines()
    assert any(line.split() == [name, "rot"] for line in lines)


def test_a_torn_tail_is_told_and_good():
    name = workflow()
    end = stores.torn(name).stat().st_size - 3
    found = outcome(name)
    assert (found["verdict"], found["ok"], found["offset"]) == ("torn", True, end)
    assert "the next start cuts it off" in lil("verify", name)


def test_rot_is_damage_with_its_place():
    name = workflow()
    stores.rot(name, 3)
    found = outcome(name, code=1)
    assert (found["verdict"], found["ok"], found["record"]) == ("rot", False, 3)
    assert found["later"] > 5
    said = lil("verify", code=1)
    assert "lil repair" in said
    assert "1 not good" in said


def test_a_suspect_record_is_damage():
    name = workflow()
    stores.suspect(name)
    found = outcome(name, code=1)
    assert found["verdict"] == "suspect"
    assert "holds effects" in found["advice"]


def test_every_flipped_byte_is_noticed_or_torn():
    @durable(goal_id="small")
    def run():
        return step("a", str, 1)

    run()
    (name,) = DirectoryStore(os.environ["LETITLOOP_STORE"]).names("runs")
    path = stores.log_path(name)
    whole = path.read_bytes()
    for offset in range(len(whole)):
        stores.flip(path, offset)
        verdicts = {one["verdict"] for one in data("verify", path, code=None)}
        assert verdicts <= {"torn", "rot", "suspect", "foreign", "newer"}, offset
        path.write_bytes(whole)


def test_other_files_are_told_apart(tmp_path):
    (tmp_path / "text").write_text("hello")
    (tmp_path / "empty").write_bytes(b"")
    name = workflow()
    newer = bytearray(stores.log_path(name).read_bytes())
    newer[6] = 9
    from zlib import crc32

    newer[60:64] = crc32(newer[:60]).to_bytes(4, "little")
    (tmp_path / "newer.wal").write_bytes(newer)
    for file, verdict in (("text", "foreign"), ("empty", "foreign"), ("newer.wal", "newer")):
        assert data("verify", tmp_path / file, code=1)[0]["verdict"] == verdict
    assert "no file" in lil("verify", tmp_path / "absent.wal", code=1)


def test_a_kind_of_a_newer_version_is_told():
    name = workflow()
    log = open_log(str(stores.log_path(name)))
    log.append(99, b"", b"")
    log.close()
    assert outcome(name, code=1)["verdict"] == "newer"


def test_looking_changes_nothing():
    name = workflow()
    stores.torn(name)
    folder = stores.log_path(name).parent
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for command in (["verify"], ["runs"], ["show", name], ["export", name]):
        lil(*command)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


# --- repair ------------------------------------------------------------------------------------------------------------------


def counted(calls, n=6):
    @durable(goal_id="counted")
    def run():
        return [step(f"s{i}", lambda i=i: calls.append(i) or i) for i in range(n)]

    return run


def test_repair_keeps_what_is_before_the_damage_and_the_damaged_file():
    calls = []
    run = counted(calls)
    run()
    (name,) = DirectoryStore(os.environ["LETITLOOP_STORE"]).names("runs")
    damaged = stores.rot(name, 3).read_bytes()  # START, s0, s1, s2
    with pytest.raises(Exception, match="lil repair"):
        run()
    found = data("repair", name)
    assert found["runs_again"] == ["s3", "s4", "s5"]
    assert Path(found["copy"]).read_bytes() == damaged
    assert Path(found["copy"]).parent.name == "torn"
    calls.clear()
    assert run() == [0, 1, 2, 3, 4, 5]
    assert calls == [2, 3, 4, 5]


def test_salvage_keeps_what_is_after_the_damage():
    calls = []
    run = counted(calls)
    run()
    (name,) = DirectoryStore(os.environ["LETITLOOP_STORE"]).names("runs")
    stores.rot(name, 3)
    said = lil("repair", name, "--salvage")
    assert "salvaged" in said
    lil("rewind", name, "s4")
    calls.clear()
    assert run() == [0, 1, 2, 3, 4, 5]
    assert calls == [2, 4, 5], "the damaged step, and what was rewound"


def test_repair_by_path_keeps_copies_apart(tmp_path):
    counted([])()
    (name,) = DirectoryStore(os.environ["LETITLOOP_STORE"]).names("runs")
    path = stores.rot(name, 5)
    first = data("repair", path)["copy"]
    stores.rot(name, 2)
    second = data("repair", path)["copy"]
    assert first.endswith(".rot-1")
    assert second.endswith(".rot-2")


def test_a_sound_log_is_not_repaired():
    name = workflow()
    before = stores.log_path(name).read_bytes()
    assert "nothing to repair" in lil("repair", name)
    stores.torn(name)
    assert "the next start cuts it off" in lil("repair", name)
    assert stores.log_path(name).read_bytes() == before + b"\1\2\3"


def test_a_suspect_log_with_effects_goes_on_after_repair():
    name = workflow()
    stores.suspect(name)
    with pytest.raises(Exception, match="lil repair"):
        workflow()
    assert "1 damaged record" in lil("repair", name)
    workflow()


# --- compact -----------------------------------------------------------------------------------------------------------------


def test_compact_drops_what_was_taken_back_and_nothing_else():
    name = workflow(fail=True)
    before = data("show", name)["steps"]
    lil("rewind", name, "branch/fetch")
    standing = data("show", name)["steps"]
    assert len(standing) < len(before)
    (found,) = data("compact", name)
    assert found["dropped"] == 5, "two steps, the failed last one and its end of the drive, the rewind; the effect stays"
    assert found["bytes_after"] < found["bytes_before"]
    assert data("show", name)["steps"] == standing, "sequence numbers too: payloads refer to them"
    assert "nothing to drop" in lil("compact", name)
    workflow()
    assert data("verify", name)[0]["ok"]


def test_a_failure_that_ended_the_run_is_tried_again_after_compaction():
    """What a failure did to the run is told by sequence numbers, so they must outlive a compaction."""
    calls = []
    broken = [True]

    def fragile():
        calls.append("fragile")
        if broken[0]:
            raise ValueError("not yet")
        return "fine"

    @durable(goal_id="fragile")
    def run():
        step("a", int)
        step("b", int)
        try:
            return step("fragile", fragile)
        except ValueError:
            step("clean up", int)
            raise

    for _ in range(2):
        with pytest.raises(ValueError, match="not yet"):
            run()
    assert calls == ["fragile", "fragile"]
    lil("rewind", "fragile", "clean up")
    lil("compact", "--all")
    broken[0] = False
    assert run() == "fine"


def test_compact_wants_names_or_all():
    assert "say --all" in lil("compact", code=2)
    assert "no runs here yet" in lil("compact", "--all")
    name = workflow()
    stores.rot(name, 2)
    assert "skipped" in str(data("compact", "--all"))


# --- export ------------------------------------------------------------------------------------------------------------------


def test_export_is_json_without_the_programs_classes(tmp_path):
    name = workflow()
    lil("rewind", name, "last")
    found = json.loads(lil("export", name))
    records = {record.get("key"): record for record in found["records"]}
    assert records["fetch"]["value"] == {
        "$type": "dict",
        "items": [
            ["n", 0],
            ["pair", {"$type": "tuple", "items": [0, 1.5]}],
            ["raw", {"$type": "bytes", "base64": "AAE="}],
            [
                "at",
                {"$type": "object", "class": "tests.cli.stores:Point", "kind": "d", "fields": {"x": 0, "y": 0.5}},
            ],
            [7, None],
        ],
    }
    assert records["boom"]["failure"]["type"] == "builtins:ValueError"
    assert (records["fetch"]["counts"], records["last"]["counts"]) == (True, False)
    written = data("export", name, "--output", tmp_path / "run.json")
    assert json.loads((tmp_path / "run.json").read_text()) == found
    assert written["records"] == len(found["records"])
    assert (tmp_path / "run.json").stat().st_mode & 0o077 == 0


def test_raw_export_holds_every_payload():
    name = workflow()
    path = stores.log_path(name)
    raw = path.read_bytes()
    found = json.loads(lil("export", name, "--raw"))["records"]
    for record, entry in zip(found, stores.entries(path), strict=True):
        assert b64decode(record["payload"]) == raw[entry.offset : entry.offset + entry.size]


def test_export_to_a_folder_that_is_not_there_is_one_message(tmp_path):
    assert "No such file" in lil("export", workflow(), "-o", tmp_path / "no" / "run.json", code=1)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ([True, "é", -5], [True, "é", -5]),
        (float("nan"), {"$type": "float", "value": "nan"}),
        (1 << 80, {"$type": "int", "value": str(1 << 80)}),
        ({"$type": "x"}, {"$type": "dict", "items": [["$type", "x"]]}),
        ({(1, 2): 3}, {"$type": "dict", "items": [[{"$type": "tuple", "items": [1, 2]}, 3]]}),
        ({4}, {"$type": "set", "items": [4]}),
        (deque([1], 2), {"$type": "deque", "maxlen": 2, "items": [1]}),
        (OrderedDict(a=1), {"$type": "OrderedDict", "items": [["a", 1]]}),
        (Counter("a"), {"$type": "Counter", "items": [["a", 1]]}),
        (Decimal("1.10"), {"$type": "Decimal", "value": "1.10"}),
        (1 + 2j, {"$type": "complex", "value": "(1+2j)"}),
        (UUID(int=5), {"$type": "UUID", "value": str(UUID(int=5))}),
        (PurePosixPath("/a"), {"$type": "path", "class": "p", "value": "/a"}),
        (timedelta(1, 2, 3), {"$type": "timedelta", "days": 1, "seconds": 2, "microseconds": 3}),
        (bytearray(b"x"), {"$type": "bytearray", "base64": "eA=="}),
        (
            datetime(2024, 2, 29, tzinfo=timezone.utc),
            {"$type": "datetime", "value": "2024-02-29T00:00:00+00:00", "zone": "UTC"},
        ),
    ],
)
def test_values_that_json_cannot_hold_are_tagged(value, expected):
    found = to_json(default_codecs.encode(value))
    assert found == expected
    json.dumps(found, allow_nan=False)


def test_damaged_deep_and_huge_values_are_exported():
    assert to_json(default_codecs.encode(1 << 20_000)) == {"$type": "int", "value": hex(1 << 20_000)}
    assert to_json(b"\xc1")["$type"] == "unreadable"
    deep: list[object] = []
    for _ in range(390):
        deep = [deep]
    json.dumps(to_json(default_codecs.encode(deep)))
    json.dumps(to_json(b"\x91" * 5000 + b"\xc0"))


# --- seal and proof ----------------------------------------------------------------------------------------------------------


def test_a_seal_is_verified_with_the_key_alone(sealed, monkeypatch, tmp_path):
    name = workflow()
    assert outcome(name)["seal"] == "verified"
    monkeypatch.delenv("LETITLOOP_SEAL_KEY")
    assert outcome(name)["seal"] == "not checked"
    assert "not checked" in lil("verify")
    (tmp_path / "key").write_text(KEY + "\n")
    assert outcome(name, "--key-file", tmp_path / "key")["seal"] == "verified"
    (tmp_path / "other").write_text("another key of 16 bytes")
    assert outcome(name, "--key-file", tmp_path / "other", code=1)["verdict"] == "other key"
    lil("verify", name, "--key-file", tmp_path / "absent", code=2)


def forge(path: Path) -> None:
    """Change a record and make every checksum right again; what a checksum chain without a key would let pass."""
    from zlib import crc32

    from letitloop.wal.format import parse_header

    raw = bytearray(path.read_bytes())
    entry = stores.entries(path)[2]
    start, stop = entry.offset - 32 - len(entry.key), entry.offset + entry.size + 36
    raw[entry.offset + entry.size - 1] ^= 1
    salt = parse_header(bytes(raw[:64]), "").salt
    raw[start : start + 4] = crc32(raw[start + 4 : stop], salt).to_bytes(4, "little")
    path.write_bytes(raw)


def test_a_forged_record_breaks_the_seal(sealed, monkeypatch):
    name = workflow()
    head = lil("seal", name).splitlines()[-1]
    forge(stores.log_path(name))
    assert outcome(name, code=1)["verdict"] == "broken seal"
    assert "seal is broken" in lil("verify", name, "--head", head, code=1)
    assert "seal is broken" in lil("seal", name, code=1)
    assert "seal is broken" in lil("repair", name, code=1)
    monkeypatch.delenv("LETITLOOP_SEAL_KEY")
    assert "without the key" in lil("verify", name, "--head", head, code=2)


def test_a_head_tells_that_the_tail_was_cut_off(sealed):
    name = workflow()
    head = data("seal", name)["head"]
    assert "contains the head" in lil("verify", name, "--head", head)
    path = stores.log_path(name)
    whole = path.read_bytes()
    path.write_bytes(whole[: stores.entries(path)[-3].offset - 32 - len(stores.entries(path)[-3].key)])
    assert outcome(name)["verdict"] == "clean", "the chain alone cannot tell"
    assert "its tail was cut off" in lil("verify", name, "--head", head, code=1)
    path.write_bytes(whole)
    lil("rewind", name, "last")
    assert outcome(name, "--head", head)["ok"], "a log that went on still contains it"
    lil("compact", name)
    assert "rewritten" in lil("verify", name, "--head", head, code=1)
    assert "is no head" in lil("verify", name, "--head", "lil1:x", code=2)


def test_a_log_without_a_seal_proves_nothing(tmp_path):
    name = workflow()
    assert "has no seal" in lil("seal", name, code=1)
    assert "has no seal" in lil("proof", name, "-o", tmp_path / "p.zip", code=1)
    assert not (tmp_path / "p.zip").exists()


def test_a_key_in_the_environment_is_no_reason_to_refuse_a_log_without_a_seal(monkeypatch):
    name = workflow()
    monkeypatch.setenv("LETITLOOP_SEAL_KEY", KEY)
    assert outcome(name)["seal"] == "none"
    for command in (["show", name], ["compact", name], ["repair", name], ["export", name]):
        lil(*command)


def test_a_proof_is_accepted_without_the_store(sealed, monkeypatch, tmp_path):
    name = workflow()
    proof = tmp_path / "proof.zip"
    data("proof", name, "--output", proof)
    lil("forget", name)
    found = data("verify", proof, "--store", tmp_path / "nowhere")[0]
    assert (found["verdict"], found["seal"], found["proof_of"]) == ("clean", "verified", name)
    monkeypatch.delenv("LETITLOOP_SEAL_KEY")
    assert data("verify", proof, code=1)[0]["verdict"] == "unproved"
    assert "no key was given" in lil("seal", workflow("other", seal_key=KEY), code=1)


def remade(source: Path, target: Path, **changes) -> Path:
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            new.writestr(name, changes.get(name.partition(".")[0], lambda data: data)(old.read(name)))
    return target


def test_a_changed_proof_is_refused(sealed, tmp_path):
    name = workflow()
    proof = tmp_path / "proof.zip"
    lil("proof", name, "-o", proof)

    def shorter(data):
        said = json.loads(data)
        said["head"]["records"] -= 1
        return json.dumps(said).encode()

    bad = tmp_path / "bad.zip"
    for change in (
        {"head": shorter},
        {"log": lambda data: data[:-40]},
        {"log": lambda data: data + b"x"},
        {"head": lambda _: b"[]"},
    ):
        assert not data("verify", remade(proof, bad, **change), code=1)[0]["ok"]
    bad.write_bytes(proof.read_bytes()[: proof.stat().st_size // 2])
    assert data("verify", bad, code=1)[0]["verdict"] == "foreign"


def test_every_flipped_bit_of_a_proof_is_read_or_refused_by_name(sealed, tmp_path):
    name = workflow()
    proof, bad = tmp_path / "proof.zip", tmp_path / "bad.zip"
    lil("proof", name, "-o", proof)
    whole = proof.read_bytes()
    with unpacked(str(proof)) as (_, head, _), zipfile.ZipFile(proof) as bundle:
        compressed = bundle.getinfo("log.wal").compress_size
    first = len(whole) - compressed  # the members' bytes are under checksums; all the rest is the zip file's own structure
    offsets = [at for at in range(len(whole)) if at % 31 == 0 or at < 200 or at > compressed]
    assert len(offsets) > first
    for offset in offsets:
        for bit in range(8):
            bad.write_bytes(whole[:offset] + bytes([whole[offset] ^ 1 << bit]) + whole[offset + 1 :])
            try:
                with unpacked(str(bad)) as (_, found, _):
                    assert found == head, (offset, bit)
            except ForeignFile:
                pass


def test_a_sealed_log_is_repaired_with_its_key(sealed, monkeypatch):
    name = workflow()
    stores.rot(name, 3)
    monkeypatch.delenv("LETITLOOP_SEAL_KEY")
    assert "no key was given" in lil("repair", name, code=1)
    monkeypatch.setenv("LETITLOOP_SEAL_KEY", KEY)
    found = data("repair", name, "--salvage")
    assert found["salvaged"] > 5
    assert outcome(name)["seal"] == "verified"
    workflow()
