"""``import letitloop`` is cheap because of what it does not load; the time itself is a figure of ``nox -s bench``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FORBIDDEN = {
    *("asyncio", "inspect", "dataclasses", "typing", "logging", "uuid", "pathlib", "subprocess", "json", "sqlite3"),
    *("importlib.metadata", "ormsgpack", "msgpack", "click", "rich"),
}


def modules_after(program: str, tmp_path: Path) -> set[str]:
    """Return what a fresh interpreter has loaded after ``program``, without what site and .pth files load on their own."""
    # -I keeps the caller's environment out; .pth files of the environment (editable installs) still run, as for a user
    code = f"import sys\nbefore = set(sys.modules)\n{program}\nprint(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_import_loads_nothing_costly(tmp_path):
    loaded = modules_after("import letitloop", tmp_path)
    assert "letitloop" in loaded
    assert not loaded & FORBIDDEN


@pytest.mark.parametrize("name", ["step", "durable", "scope", "Retry", "current_run"])
def test_a_name_that_is_looked_up_loads_no_encoder_and_no_ledger(name, tmp_path):
    loaded = modules_after(f"import letitloop\nletitloop.{name}", tmp_path)
    assert not loaded & {"asyncio", "msgpack", "ormsgpack", "sqlite3", "click", "rich", "logging"}


def test_public_names_resolve_and_are_listed():
    import letitloop

    missing = [name for name in letitloop.__all__ if not hasattr(letitloop, name)]
    assert not missing
    assert set(letitloop.__all__) <= set(dir(letitloop))
    with pytest.raises(AttributeError, match="no_such_name"):
        letitloop.no_such_name  # noqa: B018


def test_the_package_says_that_it_is_typed():
    import letitloop

    assert (Path(letitloop.__file__).parent / "py.typed").is_file()
