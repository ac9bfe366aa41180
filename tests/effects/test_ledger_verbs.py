"""Every verb of the ledger in every state, sync and async; and another action under the same key is refused in each of them."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from letitloop import ActionConflict, Halt, InvalidArgument, Ledger, UnknownOutcome
from tests.effects.acting import ARGUMENTS, KEY, RECORDED, SHOP, Bank, capable, never_arrives, run, state, stored

# --- every verb in every state -----------------------------------------------------------------------------------------------

VERBS = {
    "run": ("run", (ARGUMENTS,), {}),
    "run_block": ("run", (ARGUMENTS,), {"recover": "block"}),
    "run_resend": ("run", (ARGUMENTS,), {"recover": "resend"}),
    "reconcile": ("reconcile", (), {}),
    "resend": ("resend", (), {}),
    "retry": ("retry_failed", None, {}),
    "retry_now": ("retry_failed", (), {}),
    "succeeded": ("resolve", None, {"outcome": "succeeded", "evidence": "bank statement", "by": "carol"}),
    "failed": ("resolve", None, {"outcome": "failed", "evidence": "bank statement", "by": "carol"}),
    "approve": ("approve", None, {"by": "carol"}),
    "deny": ("deny", None, {"by": "carol", "reason": "no"}),
    "cancel": ("cancel", None, {}),
    "get": ("get", None, {}),
    "events": ("events", None, {}),
}

# What a verb does: "done" returns, a word is the beginning of an error's name; "+" stands where the provider acted, ">" before
# the state that it leaves, if that is another one.
TABLE = """
            absent        pending         granted         in_flight orphaned        SUCCEEDED
run         +done>SUCC    Approval        +done>SUCC      InFlight  Unknown>UNKNOWN done
run_block   +done>SUCC    Approval        +done>SUCC      InFlight  Unknown>UNKNOWN done
run_resend  +done>SUCC    Approval        +done>SUCC      InFlight  Unknown>UNKNOWN done
reconcile   NotFound      done            done            InFlight  done>UNKNOWN    done
resend      NotFound      Approval        Approval        InFlight  Unknown>UNKNOWN done
retry       NotFound      Invalid         Invalid         Invalid   Invalid         Invalid
retry_now   NotFound      Invalid         Invalid         Invalid   Invalid         Invalid
succeeded   NotFound      Invalid         Invalid         InFlight  done>SUCC       Invalid
failed      NotFound      Invalid         Invalid         InFlight  done>FAILED     Invalid
approve     NotFound      done            done            Invalid   Invalid         Invalid
deny        NotFound      done>CANCELLED  done>CANCELLED  Invalid   Invalid         Invalid
cancel      NotFound      done>CANCELLED  done>CANCELLED  Invalid   Invalid         Invalid
get         NotFound      done            done            done      done            done
events      NotFound      done            done            done      done            done

            rejected      not_sent        UNKNOWN         CANCELLED pruned
run         Failed        +done>SUCC      Unknown         Failed    Pruned
run_block   Failed        +done>SUCC      Unknown         Failed    Pruned
run_resend  Failed        +done>SUCC      Unknown         Failed    Pruned
reconcile   done          done            done            done      NotFound
resend      Failed        Failed          Unknown         Failed    NotFound
retry       done          done            Invalid         Invalid   NotFound
retry_now   +done>SUCC    +done>SUCC      Invalid         Invalid   NotFound
succeeded   Invalid       Invalid         done>SUCC       Invalid   NotFound
failed      Invalid       Invalid         done>FAILED     Invalid   NotFound
approve     Invalid       Invalid         Invalid         Invalid   NotFound
deny        Invalid       Invalid         Invalid         Invalid   NotFound
cancel      Invalid       Invalid         Invalid         Invalid   NotFound
get         done          done            done            done      NotFound
events      done          done            done            done      NotFound
"""

# The same for a bank that finds its receipts and occupies keys; "lost" is UNKNOWN without an effect.
CAPABLE = """
            orphaned        UNKNOWN       lost
run         done>SUCC       done>SUCC     Failed>FAILED
run_block   Unknown>UNKNOWN Unknown       Unknown
run_resend  done>SUCC       done>SUCC     Failed>FAILED
reconcile   done>SUCC       done>SUCC     done>FAILED
resend      Unknown>UNKNOWN Unknown       Unknown
"""

# The same for a bank that recognises a repeated key and finds nothing.
WINDOW = """
            orphaned        UNKNOWN       lost
run         Unknown>UNKNOWN Unknown       Unknown
run_block   Unknown>UNKNOWN Unknown       Unknown
run_resend  +done>SUCC      +done>SUCC    +done>SUCC
reconcile   done>UNKNOWN    done          done
resend      +done>SUCC      +done>SUCC    +done>SUCC
"""

ERRORS = {
    "Approval": "ApprovalRequired",
    "Failed": "IntentFailed",
    "InFlight": "InFlight",
    "Invalid": "InvalidArgument",
    "NotFound": "IntentNotFound",
    "Pruned": "IntentPruned",
    "Unknown": "UnknownOutcome",
}


def cells(table):
    return list(_cells(table))


def _cells(table):
    for part in table.strip().split("\n\n"):
        header, *lines = (line.split() for line in part.splitlines())
        for verb, *found in lines:
            yield from ((verb, name, cell) for name, cell in zip(header, found, strict=True))


def call(ledger, verb, provider, how):
    """Call a verb about KEY; return what it raised, or None."""
    method, after, options = VERBS[verb]
    arguments = (SHOP, KEY) if after is None else (SHOP, KEY, provider, *after)
    try:
        if how == "sync":
            getattr(ledger, method)(*arguments, **options)
        else:
            asyncio.run(getattr(ledger, f"a{method}")(*arguments, **options))
    except (Exception, Halt) as exc:
        return exc
    return None


def check_cell(ledger, bank, verb, name, cell, how):
    acts, outcome, after = cell.startswith("+"), cell.removeprefix("+").partition(">")[0], cell.partition(">")[2]
    if name == "lost":
        bank.says.append(never_arrives)
        with pytest.raises(UnknownOutcome):
            run(ledger, bank, recover="block")
        bank.sent.clear()
        begins = state("", ledger, bank)
    else:
        begins = state(name, ledger, bank)
    with begins:
        before = stored(ledger)
        raised = call(ledger, verb, bank, how)
        now = stored(ledger)
        assert (type(raised).__name__ if raised else "done") == ERRORS.get(outcome, outcome), raised
        assert len(bank.sent) == acts
        if not after:
            assert (now and now[0]["state"]) == (before and before[0]["state"])
        else:
            assert now[0]["state"].startswith(after)
    assert len(bank.effects) <= 1


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize(("verb", "name", "cell"), cells(TABLE))
def test_every_verb_in_every_state(ledger, bank, verb, name, cell, how):
    check_cell(ledger, bank, verb, name, cell, how)


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize(("verb", "name", "cell"), cells(CAPABLE))
def test_a_bank_that_can_tell_settles_what_is_open(ledger, verb, name, cell, how):
    check_cell(ledger, capable(), verb, name, cell, how)


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize(("verb", "name", "cell"), cells(WINDOW))
def test_a_bank_with_a_window_is_sent_to_again_only_when_that_is_asked_for(ledger, verb, name, cell, how):
    check_cell(ledger, Bank(window=60), verb, name, cell, how)


@pytest.mark.parametrize("name", RECORDED)
def test_what_does_not_depend_on_an_intent_has_async_twins_that_do_the_same(ledger, bank, name):
    with state(name, ledger, bank):
        (found,) = ledger.list()
        assert found == ledger.get(SHOP, KEY)
        assert ledger.list(state=RECORDED[name], namespace=SHOP) == [found]
        assert ledger.list(namespace="elsewhere") == ledger.anomalies() == []
        assert ledger.prune(older_than=timedelta(days=1)) == 0

        async def the_same():
            assert await ledger.alist() == await ledger.alist(state=RECORDED[name], namespace=SHOP) == [found]
            assert await ledger.aanomalies() == []
            assert await ledger.aprune(older_than=timedelta(days=1), namespace=SHOP) == 0
            ticket = await ledger.aauthorize("refund", {"currency": "eur"}, max_amount=5)
            assert (ticket.operation, ticket.scope, ticket.max_amount) == ("refund", {"currency": "eur"}, 5)

        asyncio.run(the_same())


def test_every_verb_has_an_async_twin_with_the_same_documentation_in_its_words():
    verbs = [name for name in vars(Ledger) if f"a{name}" in vars(Ledger)]
    assert len(verbs) == 15 - 1
    for verb in verbs:
        assert verb in (getattr(Ledger, f"a{verb}").__doc__ or "")


# --- conflicts ---------------------------------------------------------------------------------------------------------------

OTHERS = {
    "payload": ({**ARGUMENTS, "amount_minor": 987654}, "bank/1 account-7", {}, ("amount_minor",)),
    "more": ({**ARGUMENTS, "note": "hush-hush", "amount_minor": 987654}, "bank/1 account-7", {}, ("amount_minor", "note")),
    "fewer": ({"operation": "refund", "amount_minor": 1200}, "bank/1 account-7", {}, ("currency",)),
    "type": ({**ARGUMENTS, "amount_minor": "1200"}, "bank/1 account-7", {}, ("amount_minor",)),
    "provider": (ARGUMENTS, "bank/1 account-8", {}, ()),
    "operation": ({**ARGUMENTS, "operation": "charge"}, "bank/1 account-7", {}, ()),
    "operation_given": (ARGUMENTS, "bank/1 account-7", {"operation": "charge"}, ()),
}


@pytest.mark.parametrize("recover", ["block", "reconcile", "resend"])
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("name", RECORDED)
def test_another_action_under_the_same_key_is_refused_in_every_state(ledger, name, other, recover):
    arguments, identity, options, fields = OTHERS[other]
    with state(name, ledger, capable(window=60)):
        before = stored(ledger)
        stranger = capable(window=60, identity=identity)
        with pytest.raises(ActionConflict) as caught:
            run(ledger, stranger, arguments=arguments, recover=recover, **options)
        assert stored(ledger) == before
    assert not stranger.sent
    assert not stranger.asked
    assert caught.value.kind == {"more": "payload", "fewer": "payload", "type": "payload", "operation_given": "operation"}.get(
        other, other
    )
    assert caught.value.fields == fields
    assert (caught.value.namespace, caught.value.key) == (SHOP, KEY)
    text = str(caught.value)
    for field in fields:
        assert field in text
    for value in ("987654", "1200", "hush-hush", "'eur'"):
        assert value not in text


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize("verb", ["reconcile", "resend", "retry_now"])
@pytest.mark.parametrize("name", RECORDED)
def test_no_verb_asks_or_tells_another_provider_about_an_intent(ledger, name, verb, how):
    with state(name, ledger, capable(window=60)):
        before = stored(ledger)
        stranger = capable(window=60, identity="bank/1 account-8")
        raised = call(ledger, verb, stranger, how)
        assert not stranger.sent
        assert not stranger.asked
        assert isinstance(raised, (ActionConflict, InvalidArgument)), raised
        if verb != "retry_now":
            assert raised.kind == "provider"
        assert stored(ledger) == before, "a refused verb changes nothing"


def test_the_order_of_arguments_and_the_provider_s_code_make_no_conflict(ledger, bank):
    run(ledger, bank)
    again = Bank()
    again.name = "bank, version 2"
    assert run(ledger, again, arguments=dict(reversed(ARGUMENTS.items()))) == {"refunded": 1200, "to": KEY}
    assert not again.sent


def test_payload_names_what_has_to_be_the_same(ledger, bank):
    given = {**ARGUMENTS, "note": "first words"}
    run(ledger, bank, arguments=given, payload=("amount_minor",))
    assert run(ledger, bank, arguments={**given, "note": "other words"}, payload=("amount_minor",))
    with pytest.raises(ActionConflict) as caught:
        run(ledger, bank, arguments={**given, "note": "other words", "amount_minor": 1}, payload=("amount_minor",))
    assert caught.value.fields == ("amount_minor",)
    assert len(bank.sent) == 1


def test_what_is_sent_again_is_what_was_sent_first_whatever_a_repeat_says_outside_its_payload(ledger):
    bank = Bank(never_arrives, window=60)
    with pytest.raises(UnknownOutcome):
        run(ledger, bank, arguments={**ARGUMENTS, "note": "first words"}, payload=("amount_minor",))
    run(ledger, bank, arguments={**ARGUMENTS, "note": "other words"}, payload=("amount_minor",), recover="resend")
    first, second = bank.sent
    assert first.provider_key == second.provider_key
    assert first.arguments == second.arguments, "the same attempt is the same request"
