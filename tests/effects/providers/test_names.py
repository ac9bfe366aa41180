"""The names of the providers: each loads its own module, and nothing that another one needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from letitloop.effects import providers


def test_all_names_resolve_and_are_listed():
    for name in providers.__all__:
        assert getattr(providers, name).__name__ == name
    assert set(providers.__all__) <= set(dir(providers))
    with pytest.raises(AttributeError, match="NoSuchProvider"):
        providers.NoSuchProvider  # noqa: B018


@pytest.mark.parametrize(
    ("name", "foreign"),
    [
        ("FileProvider", {"sqlite3", "smtplib", "httpx", "stripe"}),
        ("SqliteProvider", {"smtplib", "httpx", "stripe"}),
        ("SmtpProvider", {"sqlite3", "httpx", "stripe"}),
        ("FunctionProvider", {"sqlite3", "smtplib", "httpx", "stripe"}),
    ],
)
def test_a_provider_loads_only_what_it_needs(name, foreign, tmp_path):
    code = f"import sys\nfrom letitloop.effects.providers import {name}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert not foreign & set(done.stdout.split())


@pytest.mark.parametrize(("name", "library"), [("HttpProvider", "httpx"), ("StripeProvider", "stripe")])
def test_a_name_is_there_without_the_library_that_its_provider_needs(name, library, tmp_path):
    code = f"import sys\nsys.modules[{library!r}] = None\nfrom letitloop.effects import providers\nprint(providers.{name}.__name__)"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.split() == [name]
