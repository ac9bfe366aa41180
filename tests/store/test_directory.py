"""What is particular to the directory store: its files, their modes, and directories that cannot be one."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import textwrap

import pytest

from letitloop import DirectoryStore, LogWriteFailed, StoreError, atomic_marker, durable, step
from letitloop.errors import RunNotFound
from letitloop.store.directory import resolve_store
from letitloop.testing import Fault, FaultFs
from letitloop.wal.files import OsFs


def _mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.mark.skipif(os.name == "nt", reason="modes are POSIX's")
def test_files_are_for_their_owner_alone_and_stay_out_of_repositories(tmp_path):
    old = os.umask(0)
    try:
        root = tmp_path / "deep" / "store"

        @durable(store=root)
        def job():
            with atomic_marker("once") as should:
                assert should
            return step("work", int, 1)

        job()
        store = DirectoryStore(root)
        (name,) = store.names("runs")
    finally:
        os.umask(old)
    assert (root / ".gitignore").read_text() == "*\n"
    found = [os.path.join(where, name) for where, folders, files in os.walk(root) for name in folders + files]
    for path in [str(root), *found]:
        if not path.endswith(".gitignore"):
            assert _mode(path) == (0o700 if os.path.isdir(path) else 0o600), path
    assert (root / "runs" / f"{name}.wal").exists()
    assert (root / "ledger.db").exists()


def test_nothing_is_made_before_something_is_written(tmp_path):
    store = DirectoryStore(tmp_path / "s")
    assert store.names("runs") == []
    assert store.holder("runs", "a") is None

    @durable(store=store)
    def job():
        return 1

    assert job.runs.list() == []
    assert job.runs.forget() is False
    assert not (tmp_path / "s").exists()


def test_the_store_is_the_argument_else_the_variable_else_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LETITLOOP_STORE", str(tmp_path / "from-variable"))
    assert resolve_store(tmp_path / "given").location == str(tmp_path / "given")
    assert resolve_store(None).location == str(tmp_path / "from-variable")
    monkeypatch.delenv("LETITLOOP_STORE")
    assert resolve_store(None).location == str(tmp_path / ".letitloop")
    assert resolve_store("memory:x") is resolve_store("memory:x")
    assert resolve_store("memory:x") is not resolve_store("memory:y")
    with pytest.raises(StoreError, match="mysql://"):
        resolve_store("mysql://host/db")


@pytest.mark.parametrize("below", [False, True])
def test_a_store_that_is_a_file_is_refused_by_name_and_left_alone(tmp_path, below):
    file = tmp_path / "file"
    file.write_text("mine")
    root = file / "sub" if below else file
    calls = []

    @durable(store=root)
    def job():
        return step("work", calls.append, 1)

    with pytest.raises(StoreError, match="file"):
        job()
    with pytest.raises(StoreError):
        job.runs.list()
    with pytest.raises(StoreError):
        job.runs.show()
    with pytest.raises(StoreError), atomic_marker("m", namespace="n", store=root):
        calls.append(2)
    assert calls == []
    assert file.read_text() == "mine"


def test_a_run_that_is_not_there_is_a_named_error(tmp_path):
    @durable(store=tmp_path / "s")
    def job(n):
        return n

    job(1)
    with pytest.raises(RunNotFound, match="there is no run"):
        job.runs.show(2)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="dropping to another user needs root")
def test_a_read_only_store_is_refused_by_name(tmp_path):
    root = tmp_path / "ro"
    root.mkdir(mode=0o755)
    for folder in [tmp_path, *tmp_path.parents]:
        if folder != folder.parent and not _mode(folder) & 0o001 and os.stat(folder).st_uid == 0:
            folder.chmod(_mode(folder) | 0o055)
    code = """
        import os, sys
        from letitloop import StoreError, atomic_marker, durable, step
        os.setgid(65534); os.setuid(65534)
        calls = []
        @durable(store=sys.argv[1])
        def job():
            return step("work", calls.append, 1)
        try:
            job()
        except StoreError as exc:
            assert sys.argv[1] in str(exc) and "ermission" in str(exc), exc
        else:
            raise SystemExit("not refused")
        try:
            with atomic_marker("m", namespace="n", store=sys.argv[1]):
                calls.append(2)
        except StoreError as exc:
            assert sys.argv[1] in str(exc), exc
        else:
            raise SystemExit("marker not refused")
        assert calls == [], calls
        assert job.runs.list() == []
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), root], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert os.listdir(root) == []


@pytest.mark.parametrize("kind", ["open", "mkdir", "pwrite", "sync", "sync_dir", "replace", "lock"])
def test_a_disk_that_refuses_the_first_run_is_a_named_error_and_runs_nothing(tmp_path, kind):
    fs = FaultFs(OsFs(), Fault(kind, error=28, times=-1))
    calls = []

    @durable(store=DirectoryStore(tmp_path / "s", fs=fs))
    def job():
        return step("work", calls.append, 1)

    with pytest.raises((StoreError, LogWriteFailed), match="No space"):
        job()
    assert calls == []
    fs.clear()
    job()  # no lock or half-made log stands in the way
    assert calls == [1]
