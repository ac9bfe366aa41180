"""What every store must do: :class:`StoreContract`, a suite that a store's own tests inherit."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from letitloop.errors import InvalidArgument, LetItLoopError, LogLocked, SealError

if TYPE_CHECKING:
    from letitloop.store.protocol import Store
    from letitloop.wal.log import Log

__all__ = ["StoreContract"]

_KIND = 40
_KEY = b"secret of the store contract"


class StoreContract(ABC):
    """Tests for one kind of store; subclass it in a test module, with a name that pytest collects, and define :meth:`make_store`.

    Example::

        class TestMyStore(StoreContract):
            def make_store(self):
                return MyStore(...)
    """

    @abstractmethod
    def make_store(self) -> Store:
        """Return an empty store, another one at each call."""

    # --- names ---------------------------------------------------------------------------------------------------------------

    def test_an_empty_store_has_no_names(self) -> None:
        store = self.make_store()
        assert store.names("runs") == []
        assert store.holder("runs", "absent") is None

    def test_names_are_sorted_and_each_room_has_its_own(self) -> None:
        store = self.make_store()
        for room, name in (("runs", "b"), ("runs", "a.1_x-Y"), ("threads", "c"), ("runs", "a" * 200)):
            store.open_log(room, name).close()
        assert store.names("runs") == ["a.1_x-Y", "a" * 200, "b"]
        assert store.names("threads") == ["c"]

    def test_a_name_that_could_leave_the_store_is_refused(self) -> None:
        store = self.make_store()
        for name in ("", ".", "..", "../evil", "a/b", "a\\b", ".hidden", "a b", "ä", "a\0b", "a" * 201, "a\n"):
            _raises(InvalidArgument, lambda name=name: store.open_log("runs", name))
            _raises(InvalidArgument, lambda name=name: store.open_log(name, "a"))
            _raises(InvalidArgument, lambda name=name: store.remove("runs", name))
            _raises((InvalidArgument, FileNotFoundError), lambda name=name: store.view_log("runs", name))
        assert store.names("runs") == []

    def test_location_and_ledger_are_told_and_stay(self) -> None:
        store = self.make_store()
        assert store.location
        assert store.location == store.location
        kind, _, path = store.ledger.partition(":")
        assert kind in ("sqlite", "memory")
        assert path
        assert store.ledger == store.ledger
        assert self.make_store().ledger != store.ledger

    # --- records -------------------------------------------------------------------------------------------------------------

    def test_records_come_back_bit_for_bit_in_their_order(self) -> None:
        store = self.make_store()
        records = [(16 + i % 100, b"key%d" % i, bytes([i % 256]) * (i * 37 % 5000)) for i in range(60)]
        records += [(_KIND, b"", b""), (_KIND, bytes(range(256)), b"\0" * 70_000)]
        log = store.open_log("runs", "a")
        for kind, key, payload in records:
            log.append(kind, key, payload)
        log.close()
        for level in ("power", "process"):
            log = store.open_log("runs", "a", sync=level)
            assert _own(log) == records
            log.close()
        view = store.view_log("runs", "a")
        try:
            assert [(e.kind, e.key, view.read(e)) for e in view.entries if e.kind >= 16] == records
        finally:
            view.close()

    def test_what_was_appended_is_there_without_a_close(self) -> None:
        store = self.make_store()
        for level in ("power", "process"):
            log = store.open_log("runs", "a", sync=level)
            log.append(_KIND, level.encode(), b"value")
            log.abandon()
        log = store.open_log("runs", "a")
        assert _own(log) == [(_KIND, b"power", b"value"), (_KIND, b"process", b"value")]
        log.close()

    def test_a_queued_record_is_there_after_a_close(self) -> None:
        store = self.make_store()
        log = store.open_log("runs", "a")
        log.queue(_KIND, b"k", b"v")
        log.close()
        log.close()
        log = store.open_log("runs", "a")
        assert _own(log) == [(_KIND, b"k", b"v")]
        log.close()

    def test_every_opening_is_a_new_epoch(self) -> None:
        store = self.make_store()
        epochs: list[int] = []
        for _ in range(3):
            log = store.open_log("runs", "a")
            epochs.append(log.epoch)
            log.append(_KIND, b"", b"")
            log.close()
        assert epochs == [1, 2, 3]

    def test_threads_that_append_lose_nothing(self) -> None:
        store = self.make_store()
        log = store.open_log("runs", "a")
        start = threading.Barrier(8)

        def work(worker: int) -> None:
            start.wait()
            for i in range(25):
                log.append(_KIND, b"%d" % worker, b"%d" % i)

        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        log.close()
        log = store.open_log("runs", "a")
        for worker in range(8):
            assert [payload for _, key, payload in _own(log) if key == b"%d" % worker] == [b"%d" % i for i in range(25)]
        log.close()

    def test_compaction_keeps_what_it_is_told_to_keep(self) -> None:
        store = self.make_store()
        log = store.open_log("runs", "a")
        kept = [log.append(_KIND, b"%d" % i, bytes(1000)) for i in range(20)][5:8]
        log.compact(lambda _: kept)
        log.append(_KIND, b"new", b"1")
        assert [key for _, key, _ in _own(log)] == [b"5", b"6", b"7", b"new"]
        log.close()
        log = store.open_log("runs", "a")
        assert [key for _, key, _ in _own(log)] == [b"5", b"6", b"7", b"new"]
        log.compact(lambda _: ())
        log.close()
        log = store.open_log("runs", "a")
        assert _own(log) == []
        log.close()

    def test_a_sealed_log_asks_for_its_key(self) -> None:
        store = self.make_store()
        log = store.open_log("runs", "a", seal_key=_KEY)
        log.append(_KIND, b"k", b"v")
        log.close()
        _raises(SealError, lambda: store.open_log("runs", "a", seal_key=b"another secret, as long"))
        _raises(SealError, lambda: store.open_log("runs", "a"))
        log = store.open_log("runs", "a", seal_key=_KEY)  # the refusals left no lock behind
        assert _own(log) == [(_KIND, b"k", b"v")]
        log.close()

    # --- one writer ----------------------------------------------------------------------------------------------------------

    def test_a_log_has_one_writer_and_its_holder_is_told(self) -> None:
        store = self.make_store()
        log = store.open_log("runs", "a")
        log.append(_KIND, b"k", b"v")
        error = _raises(LogLocked, lambda: store.open_log("runs", "a"))
        assert isinstance(error, LogLocked)
        assert error.pid == os.getpid()
        assert str(os.getpid()) in str(error) or "this process" in str(error)
        assert store.holder("runs", "a") == os.getpid()
        _raises(LogLocked, lambda: store.remove("runs", "a"))
        assert store.names("runs") == ["a"]
        other = store.open_log("runs", "b")  # another log is free
        view = store.view_log("runs", "a")  # and readers need no lock
        assert [entry.key for entry in view.entries] == [b"k"]
        view.close()
        other.close()
        log.close()
        assert store.holder("runs", "a") is None
        store.open_log("runs", "a").close()

    def test_who_waits_gets_the_log_when_its_writer_ends(self) -> None:
        store = self.make_store()
        log = store.open_log("runs", "a")
        log.append(_KIND, b"first", b"")
        found: list[list[bytes]] = []
        asked = threading.Event()

        def wait() -> None:
            asked.set()
            mine = store.open_log("runs", "a", wait=True)
            found.append([key for _, key, _ in _own(mine)])
            mine.close()

        thread = threading.Thread(target=wait)
        thread.start()
        asked.wait()
        log.append(_KIND, b"second", b"")
        log.close()
        thread.join()
        assert found == [[b"first", b"second"]]

    def test_a_closed_log_takes_nothing_more(self) -> None:
        store = self.make_store()
        log = store.open_log("runs", "a")
        log.close()
        _raises(LetItLoopError, lambda: log.append(_KIND, b"k", b"v"))
        log = store.open_log("runs", "a")
        assert _own(log) == []
        log.close()

    # --- absence and removal -------------------------------------------------------------------------------------------------

    def test_what_is_absent_is_said_to_be_absent(self) -> None:
        store = self.make_store()
        _raises(FileNotFoundError, lambda: store.open_log("runs", "a", create=False))
        _raises(FileNotFoundError, lambda: store.view_log("runs", "a"))
        store.remove("runs", "a")
        assert store.names("runs") == []

    def test_a_removed_log_is_gone_and_its_name_is_free(self) -> None:
        store = self.make_store()
        for _ in range(2):
            log = store.open_log("runs", "a")
            assert _own(log) == []
            log.append(_KIND, b"k", b"v")
            log.close()
            store.open_log("runs", "a", create=False).close()
            store.remove("runs", "a")
            assert store.names("runs") == []
            _raises(FileNotFoundError, lambda: store.view_log("runs", "a"))


def _own(log: Log) -> list[tuple[int, bytes, bytes]]:
    """Return the records of the log's user; kinds below 16 are the log's own."""
    return [(entry.kind, entry.key, log.read(entry)) for entry in log.entries if entry.kind >= 16]


def _raises(kind: type[Exception] | tuple[type[Exception], ...], act: object) -> Exception:
    """Call ``act`` and return the exception that it must raise; here, since a store's tests need not use pytest."""
    assert callable(act)
    try:
        act()
    except kind as exc:
        return exc
    raise AssertionError(f"nothing was raised where {kind} was due")
