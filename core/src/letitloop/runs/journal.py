"""What a run knows: an index over its log, the rules of recall, and the bytes of what is recorded next.

A journal decides and encodes; it reads records, and leaves writing them to the drivers.

Recall: the record under the step's own key with the same fingerprint answers it. Else a record of the same
scope and name with that fingerprint does: calls were reordered, and each record answers once. Else, if the own key holds another
fingerprint, the inputs changed, unless that record overlapped with another call of its name. Else the call is new work.
"""

from __future__ import annotations

from threading import Lock

from letitloop.errors import DecodeError, LogVersionError
from letitloop.runs.failures import decode_failure
from letitloop.runs.identity import base_of, enclosing, is_inside, is_part
from letitloop.runs.records import (
    ATTEMPT,
    EFFECT,
    END,
    ENDED,
    FAILED,
    HEAD_SIZE,
    KNOWN,
    OK,
    RESUME,
    START,
    STEP_KINDS,
    VOID,
    Head,
    as_fields,
    unpack_head,
    unpack_void,
)
from letitloop.wal.log import CLOSE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from letitloop.codecs import Codecs
    from letitloop.wal.format import Entry

__all__ = ["Changed", "Failure", "Journal", "Value", "standing"]


class Value:
    """A recorded or fresh result of a call. A class of its own, since a result may be None."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


class Failure:
    """A recorded or fresh failure of a call.

    Attributes:
        error: the exception.
        seq: the record's sequence number; -1 if it is not recorded.
    """

    __slots__ = ("error", "seq")

    def __init__(self, error: Exception, seq: int = -1) -> None:
        self.error = error
        self.seq = seq


class Changed:
    """The step's key holds a record of other arguments.

    Attributes:
        entry: that record.
        head: its head.
    """

    __slots__ = ("entry", "head")

    def __init__(self, entry: Entry, head: Head) -> None:
        self.entry = entry
        self.head = head


def _body_at(payload: bytes) -> int:
    try:
        return HEAD_SIZE + payload[1]
    except IndexError:
        raise DecodeError("a step's record is empty") from None


def standing(entries: Iterable[Entry], read: Callable[[Entry], bytes], path: str) -> list[Entry]:
    """Return the records that count: those that no later VOID record took back. An effect has happened and is never taken back.

    Args:
        entries: a log's records, in their order.
        read: returns a record's payload.
        path: the log's file, for messages.

    Raises:
        LogVersionError: a record's kind is not known and may not be skipped.
    """
    found: list[Entry] = []
    for entry in entries:
        kind = entry.kind
        if kind == VOID:
            first, upto = unpack_void(read(entry))
            scope = entry.key
            found = [
                other
                for other in found
                if not first <= other.seq < upto or not other.key.startswith(scope) or other.kind in (START, RESUME, EFFECT)
            ]
        elif kind in KNOWN:
            found.append(entry)
        elif kind != CLOSE and kind < 128:
            raise LogVersionError(
                f"{path}: record {entry.seq} is of kind {kind}, which this letitloop does not know: a newer one wrote it. The log "
                "was left as it is; upgrade letitloop to go on with this run.",
                path=path,
            )
    return found


class Journal:
    """The index of one run's log, for one drive of the run.

    Args:
        entries: the log's records at opening.
        read: returns a record's payload.
        codecs: the run's codecs.
        path: the log's file, for messages.

    Attributes:
        start: the START record, None in a new log.
        end: the END record of a finished run, else None.
        upto: the seq after the last record at opening: what this drive records is never taken back by itself.
        run: the name of the run, for messages.
        index: the records that answer a call, by their keys.
    """

    def __init__(self, entries: list[Entry], read: Callable[[Entry], bytes], codecs: Codecs, path: str) -> None:
        self._read = read
        self._codecs = codecs
        self._entries = standing(entries, read, path)
        self.index: dict[bytes, Entry] = {}
        self._others: dict[bytes, list[Entry]] = {}
        self._alike: dict[tuple[bytes, bytes], list[Entry]] | None = None
        self._taking = Lock()
        self._attempts: dict[bytes, int] = {}
        self.start: Entry | None = None
        self.end: Entry | None = None
        self._ended: list[Entry] = []
        self.run = ""
        self.upto = entries[-1].seq + 1 if entries else 0
        index = self.index
        for entry in self._entries:
            kind = entry.kind
            if kind == OK:
                if self._attempts:
                    self._attempts.pop(entry.key, None)
                previous = index.get(entry.key)
                if previous is not None and previous.kind == OK:
                    self._others.setdefault(entry.key, []).append(previous)
                index[entry.key] = entry
            else:
                self._note(entry)

    def steps_on_record(self) -> int:
        """Return how many steps have a result or a failure on record."""
        return len(self.index)

    def entries(self) -> tuple[Entry, ...]:
        """Return the records that count, as the log had them at opening, in their order."""
        return tuple(self._entries)

    def payload(self, entry: Entry) -> bytes:
        """Return a record's payload."""
        return self._read(entry)

    def _note(self, entry: Entry) -> None:
        kind, key = entry.kind, entry.key
        if kind == FAILED:
            self.index.setdefault(key, entry)
            if self.index[key].kind == FAILED:
                self.index[key] = entry
            self._attempts.pop(key, None)
        elif kind == ATTEMPT:
            self._attempts[key] = self._attempts.get(key, 0) + 1
        elif kind == START:
            self.start = entry
        elif kind == END:
            self.end = entry
        elif kind == ENDED:
            self._ended.append(entry)

    # --- what the run is -----------------------------------------------------------------------------------------------------

    def description(self) -> dict[str, Any]:
        """Return what the START record says of the run; empty in a new log."""
        if self.start is None:
            return {}
        return as_fields(self._codecs.decode(self._read(self.start)), goal=str, instance=str, created=float)

    def last_drive(self) -> dict[str, Any]:
        """Return what is recorded of the last drive of the run; empty in a new log."""
        for entry in reversed(self._entries):
            if entry.kind in (START, RESUME):
                return as_fields(self._codecs.decode(self._read(entry)))
        return {}

    def result(self) -> tuple[Value, Head]:
        """Return a finished run's recorded result, decoded afresh, with its record's head."""
        assert self.end is not None, "only a finished run has a result"
        payload = self._read(self.end)
        head = unpack_head(payload)
        return Value(self._codecs.decode(payload[head.body_at :])), head

    # --- recall --------------------------------------------------------------------------------------------------------------

    def recall(self, key: bytes, base: bytes, fingerprint: bytes, prefix: bytes) -> Value | Failure | Changed | None:
        """Return what the log knows of a call, or None if it is new work.

        Args:
            key: the step's key.
            base: the same without its ordinal.
            fingerprint: the arguments' fingerprint.
            prefix: the scope's path.
        """
        index = self.index
        if not index:
            return None
        entry = index.get(key)
        if entry is not None and entry.kind == OK and key not in self._others:
            payload = self._read(entry)
            body_at = _body_at(payload)
            if payload[HEAD_SIZE:body_at] == fingerprint:
                value = Value(self._codecs.decode(payload[body_at:]))  # decoded before it is taken: a record that cannot be
                if index.pop(key, None) is entry:  # read is no finished call to forget; and of two threads one takes it
                    return value
        with self._taking:
            return self._look(key, base, fingerprint, prefix)

    def _look(self, key: bytes, base: bytes, fingerprint: bytes, prefix: bytes) -> Value | Failure | Changed | None:
        entry = self.index.get(key)
        changed: Changed | None = None
        if entry is not None:
            payload = self._read(entry)
            body_at = _body_at(payload)
            if payload[HEAD_SIZE:body_at] != fingerprint:
                head = unpack_head(payload)
                changed = None if head.overlapped else Changed(entry, head)
            else:
                answer = self._answer(entry, payload, body_at, prefix)
                if self._claim(entry):
                    return answer
        return self._elsewhere(base, fingerprint, prefix) or changed

    def _answer(self, entry: Entry, payload: bytes, body_at: int, prefix: bytes) -> Value | Failure | None:
        """Decode what a record says; None if it is a failure that is tried again."""
        if entry.kind == OK:
            return Value(self._codecs.decode(payload[body_at:]))
        if not self.survived(entry, prefix):
            return None
        where = f"step {entry.key.decode('utf-8', 'replace')!r} of run {self.run}"
        return Failure(decode_failure(payload[body_at:], self._codecs, where), entry.seq)

    def _claim(self, entry: Entry) -> bool:
        """Take a record out of the index, so that it answers once; False if another thread was first."""
        others = self._others.get(entry.key, [])
        if entry in others:
            others.remove(entry)
            return True
        taken = self.index.pop(entry.key, None)
        if taken is entry:
            if others:
                self.index[entry.key] = others.pop()
            return True
        if taken is not None:
            self.index[entry.key] = taken
        return False

    def _elsewhere(self, base: bytes, fingerprint: bytes, prefix: bytes) -> Value | Failure | None:
        """Find a record of the same scope and name, and of these arguments, that has not answered yet."""
        if self._alike is None:  # built once, when the first call comes in another order
            self._alike = {}
            for entry in [*list(self.index.values()), *(other for others in self._others.values() for other in others)]:
                found = unpack_head(self._read(entry)).fingerprint
                self._alike.setdefault((base_of(entry.key), found), []).append(entry)
        candidates = self._alike.get((base, fingerprint), [])
        candidates.sort(key=lambda entry: entry.seq)
        for entry in list(candidates):
            if self.index.get(entry.key) is entry or entry in self._others.get(entry.key, ()):
                payload = self._read(entry)
                answer = self._answer(entry, payload, _body_at(payload), prefix)
                if self._claim(entry):
                    candidates.remove(entry)
                    return answer
            candidates.remove(entry)  # it has answered under its own key
        return None

    def reuse(self, changed: Changed, prefix: bytes) -> Value | Failure | None:
        """Let the record of other arguments answer, as ``on_change="reuse"`` asks."""
        with self._taking:
            answer = self._answer(changed.entry, self._read(changed.entry), changed.head.body_at, prefix)
            return answer if self._claim(changed.entry) else None

    def survived(self, failed: Entry, prefix: bytes) -> bool:
        """Tell whether the run went on after a failure: then it is history, and is raised again.

        It did if a step or effect of the same scope, of one in it or of one around it, was called later. A drive that this very
        failure ended did not go on, whatever its handlers did before they raised.
        """
        for ended in self._ended:
            if ended.seq > failed.seq and failed.seq in as_fields(self._codecs.decode(self._read(ended)), steps=list)["steps"]:
                return False
        base = base_of(failed.key)
        for entry in reversed(self._entries):
            if entry.seq <= failed.seq:
                return False
            if is_inside(base, entry.key) or not (entry.key.startswith(prefix) or enclosing(prefix, entry.key)):
                continue
            if entry.kind == EFFECT or (entry.kind in STEP_KINDS and unpack_head(self._read(entry)).began > failed.seq):
                return True
        return False

    def results(self, size: int) -> set[bytes]:
        """Return the keys of the steps whose results are on record, each cut to ``size`` bytes."""
        return {entry.key[:size] for entry in self._entries if entry.kind == OK}

    def attempts(self, key: bytes) -> int:
        """Return how many attempts of a step failed before this drive, since it last succeeded or failed for good."""
        return self._attempts.get(key, 0)

    # --- voiding -------------------------------------------------------------------------------------------------------------

    def effects_after(self, entry: Entry, prefix: bytes) -> list[str]:
        """Return the keys of the effects that voiding a scope from a record on would take back, each once.

        Those inside the step that is recorded there belong to it, and were recorded before it.
        """
        base, fingerprint = base_of(entry.key), unpack_head(self._read(entry)).fingerprint
        found = {  # in their order; one that was taken over has begun twice
            other.key.decode("utf-8", "replace"): None
            for other in self._entries
            if other.kind == EFFECT
            and other.key.startswith(prefix)
            and (other.seq >= entry.seq or is_part(base, fingerprint, other.key))
        }
        return list(found)

    def void(self, first: int, prefix: bytes) -> None:
        """Forget the records of a scope from a seq on, as the VOID record that is appended now makes every later opening do."""
        self._entries = [
            entry for entry in self._entries if entry.seq < first or not entry.key.startswith(prefix) or entry.kind == EFFECT
        ]
        for key in [key for key, entry in self.index.items() if entry.seq >= first and key.startswith(prefix)]:
            del self.index[key]
            self._others.pop(key, None)
            self._attempts.pop(key, None)
        self.end = None
