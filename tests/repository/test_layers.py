"""Who may touch the disk: of the rooms that hold logs and runs, only ``wal/files.py`` asks the system for files.

import-linter holds the imports between rooms (``nox -s layers``); it can't see a call of ``open``.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "core" / "src" / "letitloop"
MODULES = sorted(path for room in ("codecs", "wal", "runs") for path in (SOURCE / room).rglob("*.py"))

# asking for these is no use of the disk
HARMLESS = {
    *("PathLike", "fspath", "fsencode", "fsdecode", "path", "environ", "getenv", "sep", "altsep", "name", "curdir"),
    *("getpid", "getppid", "register_at_fork", "urandom", "cpu_count", "sched_yield", "strerror"),
}
HARMLESS_PATH = {
    *("join", "dirname", "basename", "splitext", "split", "abspath", "normpath", "relpath", "isabs", "expanduser"),
    *("sep", "commonpath"),
}
DISK_MODULES = {"io", "shutil", "tempfile", "pathlib", "mmap", "fcntl", "msvcrt", "sqlite3", "glob", "posix", "nt"}


def uses_of_the_disk(source: str, allowed: tuple[str, ...] = ()) -> list[str]:
    """Name each place where a module asks the system for files, as ``line: what``."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found += [(node, one.name) for one in names if one.name.partition(".")[0] in DISK_MODULES]
            case ast.ImportFrom(module=str(module), names=names, level=0) if module.partition(".")[0] in DISK_MODULES:
                found.append((node, module))
            case ast.ImportFrom(module="os", names=names, level=0):
                found += [(node, f"os.{one.name}") for one in names if one.name not in HARMLESS]
            case ast.ImportFrom(module="os.path", names=names, level=0):
                found += [(node, f"os.path.{one.name}") for one in names if one.name not in HARMLESS_PATH]
            case ast.Attribute(value=ast.Name(id="os"), attr=attr) if attr not in HARMLESS:
                found.append((node, f"os.{attr}"))
            case ast.Attribute(value=ast.Attribute(value=ast.Name(id="os"), attr="path"), attr=attr) if attr not in HARMLESS_PATH:
                found.append((node, f"os.path.{attr}"))
            case ast.Call(func=ast.Name(id="open")):
                found.append((node, "open()"))
    return [f"{node.lineno}: {what}" for node, what in found if what not in allowed]


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_only_wal_files_touches_the_disk(module):
    allowed = ("pathlib",) if "codecs" in module.relative_to(SOURCE).parts else ()  # a path is a value like any other
    found = uses_of_the_disk(module.read_text(encoding="utf-8"), allowed)
    if module.relative_to(SOURCE).as_posix() == "wal/files.py":
        assert found, "the one module that should call the system does not: is this test still looking at the right place?"
    else:
        assert not found, f"{module.name} goes past the Fs protocol: {found}"


def test_there_is_something_to_look_at():
    assert {path.relative_to(SOURCE).parts[0] for path in MODULES} == {"codecs", "wal", "runs"}


@pytest.mark.parametrize(
    "line",
    [
        "import os\nos.open('x', 0)",
        "import os\nos.fsync(3)",
        "import os\nwrite = os.pwrite",
        "from os import write",
        "from os.path import exists",
        "import os\nos.path.exists('x')",
        "def f():\n    import sqlite3",
        "from pathlib import Path",
        "with open('x') as f: pass",
    ],
)
def test_each_way_to_the_disk_is_seen(line):
    assert uses_of_the_disk(line)


def test_what_is_harmless_passes():
    assert not uses_of_the_disk("import os\nos.getpid()\nos.path.join('a', os.environ['B'])\nfs.open('x')\nself.open()\n")
