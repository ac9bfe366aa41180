"""The reference pages are complete: every public name, every error, every command with its options."""

from __future__ import annotations

import inspect
import os
import re
from pathlib import Path

import click
import pytest

import letitloop
from letitloop import errors, failpoints
from letitloop.cli.app import COMMANDS, lil

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
PUBLIC = [name for name in letitloop.__all__ if not name.startswith("_") and not hasattr(errors, name)]


def sections(page: str) -> dict[str, str]:
    """Return the text under each heading of a page, up to the next heading of the same or a higher level."""
    text = (REFERENCE / page).read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for part in re.split(r"^##+ ", text, flags=re.MULTILINE)[1:]:
        title, _, body = part.partition("\n")
        found[title.strip()] = body
    return found


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_on_the_api_page_with_its_arguments(name):
    body = sections("api.md")[name]
    if name not in ("durable_async", "Trusted"):  # another name for durable; a type
        missing = [
            argument
            for argument in inspect.signature(getattr(letitloop, name)).parameters
            if not re.search(rf"\b{argument}\b", body)
        ]
        assert not missing


@pytest.mark.parametrize("name", ["Retry", "atomic_marker", "durable"])
def test_the_defaults_on_the_api_page_are_those_of_the_code(name):
    body = " ".join(sections("api.md")[name].split()).replace('"', "'")
    for parameter in inspect.signature(getattr(letitloop, name)).parameters.values():
        default = parameter.default
        if default is not inspect.Parameter.empty and parameter.kind is not parameter.POSITIONAL_ONLY:
            shown = default.__name__ if isinstance(default, type) else repr(default)
            assert f"{parameter.name}={shown}" in body


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_is_on_its_page_with_its_options(name):
    body = sections("cli.md")[f"lil {name}"]
    command = lil.get_command(click.Context(lil), name)
    assert command is not None
    options = [option for parameter in command.params for option in parameter.opts if option.startswith("--")]
    assert [option for option in options if f"{option}`" not in body and f"{option} " not in body] == []


def test_every_environment_variable_is_on_its_page():
    text = (REFERENCE / "environment.md").read_text(encoding="utf-8")
    source = Path(letitloop.__file__).parent
    named = {
        name for file in source.rglob("*.py") for name in re.findall(r"\bLETITLOOP_[A-Z_]+\b", file.read_text(encoding="utf-8"))
    }
    assert "LETITLOOP_STORE" in named
    assert {name for name in named if f"`{name}`" not in text} == set()


def test_every_failpoint_is_on_the_environment_page():
    text = (REFERENCE / "environment.md").read_text(encoding="utf-8")
    source = Path(letitloop.__file__).parent
    points = {
        name
        for file in source.rglob("*.py")
        if file.name != os.path.basename(failpoints.__file__)
        for name in re.findall(r"""failpoints\.hit\("([^"]+)"\)""", file.read_text(encoding="utf-8"))
    }
    assert "step.recorded" in points
    assert {name for name in points if f"`{name}`" not in text} == set()
