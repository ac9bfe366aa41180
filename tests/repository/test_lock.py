"""The lock file: our distributions come from this repository, the rest from an index, nothing from somebody's disk.

The public index holds an unrelated distribution of the name ``letitloop``; resolving to it would test another program.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "uv.lock").read_text(encoding="utf-8")
PACKAGES = tomllib.loads(LOCK)["package"]
OURS = [package for package in PACKAGES if package["name"].startswith("letitloop")]


def distributions() -> dict[str, dict]:
    files = [ROOT / "core" / "pyproject.toml", *sorted(ROOT.glob("packages/*/pyproject.toml"))]
    return {file.parent.relative_to(ROOT).as_posix(): tomllib.loads(file.read_text(encoding="utf-8")) for file in files}


@pytest.mark.parametrize("folder", distributions())
def test_each_distribution_comes_from_the_workspace(folder):
    name = distributions()[folder]["project"]["name"]
    assert [package["source"] for package in OURS if package["name"] == name] == [{"editable": folder}]


def test_nothing_of_ours_comes_from_an_index():
    assert {package["name"] for package in OURS} >= {"letitloop", "letitloop-workspace"}
    for package in OURS:
        assert package["source"].keys() <= {"editable", "virtual"}, package["name"]
        assert "sdist" not in package, package["name"]
        assert "wheels" not in package, package["name"]


def test_everything_else_comes_from_an_index():
    assert {key for package in PACKAGES if package not in OURS for key in package["source"]} == {"registry"}


def test_no_path_of_a_machine():
    assert not re.findall(r'"(?:file:|/|~|[A-Za-z]:\\|\.\.)[^"]*"', LOCK)


def test_bounds_on_our_own_name_exclude_the_foreign_distribution():
    for folder, project in {
        "": tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8")),
        **distributions(),
    }.items():
        extras = project["project"].get("optional-dependencies", {}).values()
        for requirement in [*project["project"].get("dependencies", []), *(one for extra in extras for one in extra)]:
            if requirement.startswith("letitloop"):
                assert requirement.replace(" ", "").partition(";")[0].endswith(">=1.0,<2"), (folder, requirement)


def test_every_dependency_has_a_lower_bound():
    for folder, project in distributions().items():
        extras = project["project"].get("optional-dependencies", {}).values()
        for requirement in [*project["project"].get("dependencies", []), *(one for extra in extras for one in extra)]:
            assert re.search(r">=|==|~=", requirement), (folder, requirement)


def test_each_distribution_carries_the_licence():
    for folder in distributions():
        assert (ROOT / folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes(), folder
