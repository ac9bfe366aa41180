"""What errors of the ledger tell to type can be typed, and finds the ledger; and wrong objects are refused by name."""

from __future__ import annotations

import shlex

import pytest

from letitloop import InvalidArgument, Ledger, UnknownOutcome, effect
from letitloop.effects.providers import FunctionProvider
from tests.cli.stores import lil

KEY = "mail/ada/Hello; world $HOME's"


def loses_its_reply(**arguments):
    raise ConnectionError("reset by peer")


def unknown(ledger, namespace="my ns"):
    provider = FunctionProvider(loses_its_reply, identity="mail-1")
    with pytest.raises(UnknownOutcome) as caught:
        ledger.run(namespace, KEY, provider, {"to": "ada"})
    return str(caught.value)


def typed(text):
    start = text.index("lil ledger resolve")
    return shlex.split(text[start : text.index(" --as", start)])[1:]


@pytest.mark.parametrize("where", ["the store's", "a file"])
def test_the_command_in_the_error_settles_that_very_intent(tmp_path, where):
    path = tmp_path / "a b.db"
    with Ledger(path) if where == "a file" else Ledger() as ledger:
        words = typed(unknown(ledger))
        settled = [*words, "--as", "succeeded", "--evidence", "seen", "--by", "me"]
        assert "--result FILE" in lil(*settled)
        assert ledger.get("my ns", KEY).state == "SUCCEEDED"
    assert ("--ledger" in words) == (where == "a file")


def test_what_is_shown_to_type_names_the_ledger(tmp_path):
    path = tmp_path / "other.db"
    with Ledger(path) as ledger:
        unknown(ledger)
        shown = lil("ledger", "show", "my ns", KEY, "--ledger", str(path), code=2).replace("\n", " ")
        assert shown.count(f"--ledger {path}") >= 2
        failed = lil("ledger", "resolve", "my ns", KEY, "--ledger", str(path), "--as", "failed", "--evidence", "e", "--by", "me")
        assert f"lil ledger retry 'my ns' {shlex.quote(KEY)} --ledger {path}" in failed


@pytest.mark.parametrize("provider", ["refunds", loses_its_reply, FunctionProvider], ids=["text", "function", "class"])
def test_what_is_no_provider_is_refused(provider):
    with pytest.raises(InvalidArgument, match="it is no provider"):
        Ledger().run("ns", "k", provider, {})
    if provider != "refunds":  # a text names a registered one there
        with pytest.raises(InvalidArgument, match="it is no provider"):
            effect(key="k/{to}", provider=provider)


@pytest.mark.parametrize(("option", "value"), [("ledger", "l.db"), ("limit", 3), ("approval", True)])
def test_options_of_other_kinds_are_refused(option, value):
    with pytest.raises(InvalidArgument, match=option):
        effect(key="k/{to}", **{option: value})
