"""Faults built into the log's code, and the layer that must notice each.

A crash test that passes proves little by itself. Each entry here is a mistake that somebody could make; the named layer has to
find it, or the layer has no teeth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.crash import decoding, failing, simulated
from tests.crash.worlds import World

Layer = Callable[[World], object]


def _power_cut(name: str, deep: int = 7) -> Layer:
    def layer(world: World) -> None:
        for strict_dirs in (False, True):
            fs, history = simulated.run(world, simulated.WORKLOADS[name], strict_dirs=strict_dirs)
            simulated.power_cuts(world, fs, history, deep=deep, per_instant=1000)

    return layer


def _kill_and_power_cut(name: str) -> Layer:
    def layer(world: World) -> None:
        for strict_dirs in (False, True):
            simulated.kills_then_power_cuts(world, simulated.WORKLOADS[name], strict_dirs=strict_dirs)

    return layer


LAYERS: dict[str, Layer] = {
    "L0 decoder": decoding.decoder,
    **{f"L1 power cut, {name}": _power_cut(name) for name in simulated.WORKLOADS},
    "L1 power cut during recovery, group commit": _power_cut("group commit", deep=1),
    **{f"L1 kill and power cut, {name}": _kill_and_power_cut(name) for name in simulated.WORKLOADS},
    "L3 failing disk": failing.faults,
}


@dataclass(frozen=True)
class Mutant:
    """A fault: its name, the layer that must notice it, and the text it replaces in one or more modules."""

    name: str
    layer: str
    changes: tuple[tuple[str, str, str], ...]


def _log(old: str, new: str = "") -> tuple[str, str, str]:
    return ("log", old, new)


def _commit(old: str, new: str = "") -> tuple[str, str, str]:
    return ("group_commit", old, new)


def _recovery(old: str, new: str = "") -> tuple[str, str, str]:
    return ("recovery", old, new)


def _format(old: str, new: str = "") -> tuple[str, str, str]:
    return ("format", old, new)


SYNC = """\
                try:
                    with self._syncing:
                        self._fs.sync(self._handle)
                except OSError as exc:
                    self._fail("sync", exc)
"""
WRITE = """\
                self._write_queue()
                written = self.next_seq
"""
WRITE_LATE = """\
                written = self.next_seq
                self._write_queue()
"""
SYNC_IF_NEEDED = """\
                written = self.next_seq
            if self._durable < written:
"""
WAKE_FIRST = """\
                written = self.next_seq
            before, self._durable = self._durable, written
            for waiter in batch:
                waiter.gate.release()
            batch = []
            if before < written:
"""
CREATE = """\
        fs.sync(handle)
        fs.replace(path + ".new", path)
        fs.sync_dir(os.path.dirname(path))
"""
RECOVERED = """\
    fs.sync(handle)
    fs.sync_dir(os.path.dirname(path))
    return found
"""
COMPACTED = """\
        self._fs.sync(handle)
        self._fs.replace(self.path + ".compact", self.path)
        self._fs.sync_dir(os.path.dirname(self.path))
"""
CUT_TAIL = """\
    fs.truncate(handle, found.end)
    found.size = found.end
"""
CRC = """\
                or crc32(view[at + 4 : stop], salt) != crc
"""
USABLE = """\
        if self._poison is not None:
            raise LogPoisoned"""
NEW_FILE = 'handle = new_file(self._fs, self.path + ".compact", header)'
FRAME = "data = frame(salt, entry.kind, key, payload, epoch, seq, durable, seal)"
AHEAD = 'data = data.ljust(self._allocated - offset, b"\\0")'


def _without(text: str, *lines: int) -> str:
    return "".join(line for number, line in enumerate(text.splitlines(keepends=True)) if number not in lines)


MUTANTS = [
    Mutant("no fdatasync after a write", "L1 power cut, append", (_commit(SYNC),)),
    Mutant(
        "acknowledged before its sync, which covers what was written before", "L1 power cut, append", (_commit(WRITE, WRITE_LATE),)
    ),
    Mutant("waiters are woken before the sync of their batch", "L3 failing disk", (_commit(SYNC_IF_NEEDED, WAKE_FIRST),)),
    Mutant(
        "the thread that handed the lead on leads again",
        "L3 failing disk",
        (
            _commit("        self._leader = _PROMOTED\n"),
            _commit("                    with self._syncing:\n                        self._fs", "                    self._fs"),
        ),
    ),
    Mutant(
        "the directory of a new log is not synced",
        "L1 power cut, append",
        (_recovery(CREATE, _without(CREATE, 2)), _recovery(RECOVERED, _without(RECOVERED, 1))),
    ),
    Mutant(
        "the header of a new log is not synced before it gets its name",
        "L1 power cut, append",
        (_recovery(CREATE, _without(CREATE, 0)),),
    ),
    Mutant("checksums are not compared", "L0 decoder", (_format(CRC),)),
    Mutant("checksums are not compared (seen by a power cut)", "L1 power cut, append", (_format(CRC),)),
    Mutant(
        "any valid record after the damage counts as rot (no watermark)",
        "L1 power cut, group commit",
        (_format("        if found.durable > found.seq:", "        if found.later:"),),
    ),
    Mutant(
        "the watermark is never believed: rot is cut off as a torn tail",
        "L0 decoder",
        (_format("        if found.durable > found.seq:", "        if False:"),),
    ),
    Mutant(
        "the watermark of a record covers the batch it is in",
        "L1 power cut, group commit",
        (_log(FRAME, FRAME.replace("durable", "seq")),),
    ),
    Mutant(
        "the watermark of a record that is written alone covers what is not synced",
        "L1 power cut, several writes, one sync",
        (_log("seq, self._durable, self._tag)", "seq, seq, self._tag)"),),
    ),
    Mutant("checksums are not salted", "L0 decoder", (_format("self.salt = crc32(uuid)", "self.salt = 0"),)),
    Mutant("sequence numbers are not compared", "L0 decoder", (_format("number != seq\n                or "),)),
    Mutant(
        "compaction does not sync the new file before it gets the name",
        "L1 power cut, compaction",
        (_log(COMPACTED, _without(COMPACTED, 0)),),
    ),
    Mutant("compaction does not sync the directory", "L1 power cut, compaction", (_log(COMPACTED, _without(COMPACTED, 2)),)),
    Mutant(
        "compaction writes over the log instead of beside it",
        "L1 power cut, compaction",
        (_log(NEW_FILE, NEW_FILE.replace(' + ".compact"', "")), _log(COMPACTED, _without(COMPACTED, 1))),
    ),
    Mutant(
        "recovery hands records out without a sync",
        "L1 kill and power cut, append",
        (_recovery(RECOVERED, _without(RECOVERED, 0)),),
    ),
    Mutant(
        "recovery does not sync the directory of a log whose maker was killed",
        "L1 kill and power cut, append",
        (_recovery(RECOVERED, _without(RECOVERED, 1)),),
    ),
    # each of the three is enough: the tail is cut off, the next write puts zeros behind its record, and a stale record has an
    # older epoch than the one written before it
    Mutant(
        "a torn tail is neither cut off nor written over, and epochs are not compared",
        "L1 power cut during recovery, group commit",
        (_recovery(CUT_TAIL), _format("                or epoch < last_epoch\n")),
    ),
    Mutant(
        "a doubtful last record is cut off although the log guards effects",
        "L0 decoder",
        (_recovery("    if found.verdict == SUSPECT and any(", "    if found.verdict == SUSPECT and not any("),),
    ),
    Mutant(
        "a short write is taken for a whole one",
        "L3 failing disk",
        (_log("while written < len(data):\n            more", "while False:\n            more"),),
    ),
    Mutant(
        "a log whose sync failed goes on",
        "L3 failing disk",
        (
            _log(USABLE, USABLE.replace("self._poison is not None", "False")),
            _log('raise AssertionError("unreachable") from exc', 'raise LogPoisoned("only this once") from exc'),
        ),
    ),
    Mutant(
        "a failed sync is taken for a sync",
        "L3 failing disk",
        (_commit('                    self._fail("sync", exc)\n', "                    pass\n"),),
    ),
    Mutant(
        "the end is not moved on after a write: the next record overwrites it",
        "L1 power cut, append",
        (_log("        self._end = end\n"),),
    ),
    Mutant(
        "the zeros ahead are written over the record",
        "L1 power cut, extension",
        (_log(AHEAD, "data = bytes(self._allocated - offset)"),),
    ),
    Mutant(
        "a clean close cuts off the last record",
        "L1 power cut, clean close",
        (
            _log(
                "            self._fs.truncate(self._handle, self._end)\n",
                "            self._fs.truncate(self._handle, self._end - 40)\n",
            ),
        ),
    ),
]
