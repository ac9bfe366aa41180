"""Secrets: no redacted value lies anywhere in the ledger's file, and with a cipher nothing in it can be read."""

from __future__ import annotations

import base64

import pytest

from letitloop import (
    ActionConflict,
    Approval,
    ApprovalRequired,
    IntentFailed,
    InvalidArgument,
    Ledger,
    Redacted,
    StoreError,
    UnknownOutcome,
)
from letitloop.effects.provider import NotExecuted
from tests.effects.acting import (
    ARGUMENTS,
    KEY,
    SHOP,
    Bank,
    Xor,
    capable,
    closed,
    content,
    happens,
    loses_its_reply,
    never_arrives,
    raises,
    rejects,
    run,
)

CARD = "4111-1111-1111-1234"
WITH_CARD = {**ARGUMENTS, "card": CARD}


def forms(text):
    """Return how a text may lie in a file."""
    raw = text.encode()
    return [raw, raw.hex().encode(), base64.b64encode(raw)[:-3], text.encode("utf-16-le")]


def assert_absent(text, path):
    found = content(path)
    assert found
    assert not [form for form in forms(text) if form in found]


LIVES = [(happens,), (loses_its_reply,), (never_arrives,), (rejects,)]


@pytest.mark.parametrize("says", LIVES, ids=lambda says: says[0].__name__)
def test_no_redacted_value_lies_anywhere_in_the_file_whatever_becomes_of_the_intent(ledger, path, says):
    bank = Bank(*says)
    for _ in range(2):
        try:
            run(ledger, bank, arguments=WITH_CARD, redact=("card",), approval=Approval())
        except (ApprovalRequired, UnknownOutcome, IntentFailed):
            pass
        else:
            break
        if ledger.get(SHOP, KEY).state == "PREPARED":
            ledger.approve(SHOP, KEY, by="alice")
    assert bank.sent[0].arguments["card"] == CARD, "the provider needs it"
    assert_absent(CARD, path)
    closed(ledger)
    assert_absent(CARD, path)
    kept = ledger.get(SHOP, KEY).arguments["card"]
    assert isinstance(kept, Redacted)
    assert len(kept.sha256) == 64


@pytest.mark.parametrize("text", [f"card {CARD} was declined", f"card={CARD}", {"card": CARD}], ids=["words", "pair", "data"])
def test_a_redacted_value_in_a_provider_s_words_is_not_kept_either(ledger, path, text):
    for n, says in enumerate([raises(ValueError(text)), lambda bank, dispatch: NotExecuted("rejected", str(text))]):
        with pytest.raises((UnknownOutcome, IntentFailed)):
            run(ledger, Bank(says), key=f"k{n}", arguments=WITH_CARD, redact=("card",))
    assert_absent(CARD, path)


@pytest.mark.parametrize(
    ("secret", "words"),
    [
        ({"number": CARD, "cvc": "987"}, f"card {CARD} was declined"),
        ([CARD], f"card {CARD} was declined"),
        (CARD, "x" * 470 + f" card {CARD} was declined"),
        (CARD, "x" * 1985 + f" card {CARD} was declined"),
        (CARD, f"card {CARD!r:>30} was declined" * 3),
    ],
    ids=["inside a mapping", "inside a list", "cut off", "cut off far behind", "quoted"],
)
def test_no_part_of_a_redacted_value_in_a_provider_s_words_is_kept(ledger, path, secret, words):
    for n, says in enumerate([raises(ValueError(words)), lambda bank, dispatch: NotExecuted("rejected", words)]):
        with pytest.raises((UnknownOutcome, IntentFailed)):
            run(ledger, Bank(says), key=f"k{n}", arguments={**ARGUMENTS, "card": secret}, redact=("card",))
    assert_absent(CARD[:8], path)


def test_a_value_stays_redacted_though_a_later_call_does_not_ask_for_that(ledger, path):
    bank = Bank(never_arrives, raises(ValueError(f"card {CARD} was declined")), window=60)
    with pytest.raises(UnknownOutcome):
        run(ledger, bank, arguments=WITH_CARD, redact=("card",))
    with pytest.raises(UnknownOutcome):
        run(ledger, bank, arguments=WITH_CARD, recover="resend")
    assert len(bank.sent) == 2
    assert_absent(CARD, path)
    assert isinstance(ledger.get(SHOP, KEY).arguments["card"], Redacted)


def test_a_redacted_argument_has_to_be_the_same_in_a_repeat(ledger, bank):
    run(ledger, bank, arguments=WITH_CARD, redact=("card",))
    assert run(ledger, bank, arguments=WITH_CARD, redact=("card",))
    other = {**WITH_CARD, "card": "4111-1111-1111-9999"}
    with pytest.raises(ActionConflict) as caught:
        run(ledger, bank, arguments=other, redact=("card",))
    assert caught.value.fields == ("card",)
    assert "4111" not in str(caught.value)
    assert len(bank.sent) == 1


def test_equal_secrets_of_two_ledgers_or_two_arguments_have_different_hashes(folder, bank):
    hashes = set()
    for n in range(2):
        ledger = Ledger(f"{folder}/{n}.db")
        run(ledger, bank, arguments={**WITH_CARD, "again": CARD}, redact=("card", "again"))
        kept = ledger.get(SHOP, KEY).arguments
        hashes |= {kept["card"].sha256, kept["again"].sha256}
    assert len(hashes) == 4


def test_what_is_redacted_can_be_sent_again_only_by_whoever_has_all_arguments(ledger):
    bank = Bank(never_arrives, window=60)
    with pytest.raises(UnknownOutcome):
        run(ledger, bank, arguments=WITH_CARD, redact=("card",))
    with pytest.raises(UnknownOutcome, match=r"hashes.*run\(\)"):
        ledger.resend(SHOP, KEY, bank)
    assert len(bank.sent) == 1
    run(ledger, bank, arguments=WITH_CARD, redact=("card",), recover="resend")
    assert [one.arguments["card"] for one in bank.sent] == [CARD, CARD]


def test_a_failed_attempt_with_redacted_arguments_is_made_again_by_whoever_has_all_of_them(ledger):
    bank = Bank(rejects)
    with pytest.raises(IntentFailed):
        run(ledger, bank, arguments=WITH_CARD, redact=("card",))
    with pytest.raises(InvalidArgument, match="hashes"):
        ledger.retry_failed(SHOP, KEY, bank)
    assert len(bank.sent) == 1
    run(ledger, bank, arguments=WITH_CARD, redact=("card",))
    assert [one.arguments["card"] for one in bank.sent] == [CARD, CARD]


def test_a_lookup_is_given_hashes_where_the_caller_gives_no_values(ledger):
    bank = Bank(never_arrives, lookup="strong")
    seen = []
    bank.reconcile = lambda dispatch: seen.append(dispatch.arguments["card"])
    with pytest.raises(UnknownOutcome):
        run(ledger, bank, arguments=WITH_CARD, redact=("card",))
    ledger.reconcile(SHOP, KEY, bank)
    assert seen[0] == CARD
    assert isinstance(seen[1], Redacted)


def test_with_a_cipher_nothing_that_a_provider_was_told_or_said_is_readable(path):
    ledger = Ledger(path, cipher=Xor())
    words = f"the holder of {CARD} said no"
    bank = Bank(raises(ValueError(words)), lambda bank, dispatch: NotExecuted("rejected", words, {"about": CARD}))
    with pytest.raises(UnknownOutcome):
        run(ledger, bank, key="a", arguments=WITH_CARD)
    with pytest.raises(IntentFailed):
        run(ledger, bank, key="b", arguments=WITH_CARD)
    ledger.resolve(SHOP, "a", outcome="succeeded", evidence=words, by="carol", result=WITH_CARD, receipt=WITH_CARD)
    ledger.authorize("refund", scope={"card": CARD})
    assert run(ledger, bank, key="a", arguments=WITH_CARD) == WITH_CARD
    assert ledger.get(SHOP, "b").detail == {"about": CARD}
    assert ledger.events(SHOP, "a")[-1].evidence == words
    assert_absent(CARD, path)
    closed(ledger)
    assert_absent(CARD, path)


def test_a_cipher_makes_no_two_actions_of_one_and_still_notices_others(path, bank):
    ledger = Ledger(path, cipher=Xor())
    run(ledger, bank)
    assert run(Ledger(path, cipher=Xor()), bank)
    with pytest.raises(ActionConflict) as caught:
        run(ledger, bank, arguments={**ARGUMENTS, "amount_minor": 1})
    assert caught.value.fields == ("amount_minor",)
    assert len(bank.sent) == 1


@pytest.mark.parametrize("other", [None, Xor(0x11)], ids=["none", "another"])
def test_with_no_cipher_or_another_one_nothing_is_sent_and_nothing_written(path, other):
    ledger = Ledger(path, cipher=Xor())
    run(ledger, Bank())
    with pytest.raises(UnknownOutcome):
        run(ledger, Bank(never_arrives), key="open")
    before = ledger.get(SHOP, "open"), ledger.events(SHOP, "open")
    stranger, bank = Ledger(path, cipher=other), capable(window=60)
    for key in ("new", "open"):
        with pytest.raises(StoreError, match="encrypted"):
            run(stranger, bank, key=key, recover="resend")
    with pytest.raises(StoreError, match="encrypted"):
        stranger.resolve(SHOP, "open", outcome="failed", evidence="e", by="carol")
    assert not bank.sent
    assert not bank.asked
    assert (ledger.get(SHOP, "open"), ledger.events(SHOP, "open")) == before
    assert len(ledger.list()) == 2


def test_a_ledger_that_was_readable_does_not_become_half_encrypted(path, bank):
    run(Ledger(path), bank)
    with pytest.raises(StoreError, match="not encrypted"):
        run(Ledger(path, cipher=Xor()), bank, key="new")
    assert len(bank.sent) == 1


def test_a_cipher_that_fails_before_the_dispatch_sends_nothing(path, bank):
    cipher = Xor()
    cipher.fails = True
    ledger = Ledger(path, cipher=cipher)
    with pytest.raises(RuntimeError, match="key service"):
        run(ledger, bank)
    assert not bank.sent
    assert ledger.list() == []


def test_a_cipher_that_fails_after_the_dispatch_leaves_the_outcome_unknown(path):
    cipher = Xor()
    ledger = Ledger(path, cipher=cipher)

    def acts(bank, dispatch):
        cipher.fails = True
        return bank.act(dispatch)

    bank = capable(acts)
    with pytest.raises(UnknownOutcome):
        run(ledger, bank)
    cipher.fails = False
    assert run(ledger, bank) == {"refunded": 1200, "to": KEY}
    assert len(bank.effects) == 1
