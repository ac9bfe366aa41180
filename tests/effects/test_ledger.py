"""The ledger: every verb in every state, conflicts, what is done about an open outcome, odd providers and odd values."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from datetime import timedelta

import pytest

import letitloop
from letitloop import (
    ActionConflict,
    Halt,
    IntentFailed,
    IntentNotFound,
    InvalidArgument,
    Ledger,
    MemoryStore,
    UnknownOutcome,
)
from letitloop.effects import ledger_file
from letitloop.effects.provider import Found, NotExecuted, NotFound, StillRunning, Succeeded, Unavailable
from tests.effects.acting import (
    ARGUMENTS,
    KEY,
    RECORDED,
    SHOP,
    Bank,
    Clock,
    capable,
    does_not_know,
    does_not_send,
    happens,
    in_flight,
    loses_its_reply,
    never_arrives,
    raises,
    rejects,
    run,
    state,
)
from tests.interrupts import in_memory


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def ledger(clock):
    with in_memory() as path:
        yield Ledger(f"{path}/actions.db", clock=clock)


@pytest.fixture
def bank():
    return Bank()


def stored(ledger, key=KEY):
    """Return all that is on record of an intent."""
    try:
        return asdict(ledger.get(SHOP, key)), ledger.events(SHOP, key)
    except IntentNotFound:
        return None


def kinds(ledger, key=KEY):
    return [event.kind for event in ledger.events(SHOP, key)]


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


def test_the_history_tells_each_transition_by_whom_and_on_what_it_rests(ledger):
    bank = capable(does_not_send, never_arrives, loses_its_reply)
    for error in (IntentFailed, IntentFailed):
        with pytest.raises(error):
            run(ledger, bank)
    ledger.retry_failed(SHOP, KEY, by="human dora")
    run(ledger, bank)
    run(ledger, bank)
    history = [(e.kind, e.before, e.after, e.attempt, e.actor) for e in ledger.events(SHOP, KEY)]
    assert history == [
        ("prepared", "", "PREPARED", 1, "worker"),
        ("dispatched", "PREPARED", "DISPATCHED", 1, "worker"),
        ("failed", "DISPATCHED", "FAILED", 1, "worker"),
        ("dispatched", "FAILED", "DISPATCHED", 2, "worker"),
        ("unknown", "DISPATCHED", "UNKNOWN", 2, "worker"),
        ("failed", "UNKNOWN", "FAILED", 2, "reconciler"),
        ("retry_authorised", "FAILED", "FAILED", 2, "human dora"),
        ("dispatched", "FAILED", "DISPATCHED", 3, "worker"),
        ("unknown", "DISPATCHED", "UNKNOWN", 3, "worker"),
        ("succeeded", "UNKNOWN", "SUCCEEDED", 3, "reconciler"),
    ]
    assert len({one.provider_key for one in bank.sent}) == 3, "a new attempt has a new provider key"
    assert len(bank.effects) == 1
    assert ledger.get(SHOP, KEY).basis == "receipt"


def test_not_sent_is_tried_again_by_itself_at_most_max_attempts_times(ledger):
    bank = Bank(*[does_not_send] * 9)
    for _ in range(5):
        with pytest.raises(IntentFailed) as caught:
            run(ledger, bank, max_attempts=3)
    assert len(bank.sent) == 3
    assert (caught.value.kind, caught.value.certificate) == ("not_sent", "connection refused")


def test_other_certified_failures_are_tried_again_where_the_application_says_so(ledger):
    bank = Bank(rejects)
    with pytest.raises(IntentFailed) as caught:
        run(ledger, bank, retry=("rejected",))
    assert (caught.value.kind, caught.value.certificate) == ("rejected", "the account is closed")
    assert caught.value.detail == {"code": 402}, "the provider's own statement"
    assert ledger.get(SHOP, KEY).detail == {"code": 402}
    assert run(ledger, bank, retry=("rejected",)) == {"refunded": 1200, "to": KEY}
    assert [one.attempt for one in bank.sent] == [1, 2]


def test_an_allowed_retry_allows_one_attempt(ledger):
    bank = Bank(rejects, rejects)
    for _ in range(2):
        with pytest.raises(IntentFailed):
            run(ledger, bank)
    assert len(bank.sent) == 1
    ledger.retry_failed(SHOP, KEY)
    for _ in range(2):
        with pytest.raises(IntentFailed):
            run(ledger, bank)
    assert len(bank.sent) == 2


@pytest.mark.parametrize("outcome", ["succeeded", "failed"])
def test_what_a_person_resolved_stands_with_name_and_evidence(ledger, bank, outcome):
    with state("UNKNOWN", ledger, bank):
        intent = ledger.resolve(SHOP, KEY, outcome=outcome, evidence="case 7", by="carol", result={"ok": 1}, receipt="r-9")
    event = ledger.events(SHOP, KEY)[-1]
    assert (event.kind, event.actor, event.evidence) == ("resolved", "human carol", "case 7")
    if outcome == "succeeded":
        assert (intent.basis, intent.receipt) == ("human", "r-9")
        assert run(ledger, bank) == {"ok": 1}
    else:
        assert intent.kind == "human"
        with pytest.raises(IntentFailed, match="case 7"):
            run(ledger, bank)
    assert not bank.sent


@pytest.mark.parametrize("details", [{"by": " "}, {"evidence": ""}, {"outcome": "perhaps"}])
def test_a_resolution_without_evidence_a_name_or_an_outcome_is_refused(ledger, bank, details):
    with state("UNKNOWN", ledger, bank):
        before = stored(ledger)
        with pytest.raises(InvalidArgument):
            ledger.resolve(SHOP, KEY, **{"outcome": "failed", "evidence": "case 7", "by": "carol", **details})
        assert stored(ledger) == before


def test_a_list_of_a_state_that_does_not_exist_is_refused(ledger):
    with pytest.raises(InvalidArgument, match="PREPARED"):
        ledger.list(state="OPEN")


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


# --- an outcome that is open -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [loses_its_reply, does_not_know, raises(RuntimeError("odd"))])
def test_an_open_outcome_is_never_sent_again_without_a_window(ledger, lost):
    bank = Bank(lost)
    for recover in ("reconcile", "block", "resend", "reconcile"):
        with pytest.raises(UnknownOutcome) as caught:
            run(ledger, bank, recover=recover)
    assert len(bank.sent) == 1
    assert (caught.value.namespace, caught.value.key) == (SHOP, KEY)
    assert "not sent again" in str(caught.value)
    assert SHOP in str(caught.value)


def test_a_lost_reply_is_found_by_its_receipt_in_the_same_call(ledger):
    bank = capable(loses_its_reply)
    assert run(ledger, bank) == {"refunded": 1200, "to": KEY}
    assert len(bank.sent) == len(bank.effects) == 1
    assert ledger.get(SHOP, KEY).receipt == "r-1"


def test_recover_block_does_not_even_ask(ledger):
    bank = capable(loses_its_reply)
    with pytest.raises(UnknownOutcome):
        run(ledger, bank, recover="block")
    assert not bank.asked


PROVES_NOTHING = [
    NotFound("no such key"),
    StillRunning("working"),
    Unavailable("503"),
    NotExecuted("not_sent", "I say so"),
    None,
    5,
    "no",
]


@pytest.mark.parametrize("answer", PROVES_NOTHING)
def test_what_proves_nothing_changes_nothing_but_when_to_ask_again(ledger, clock, answer):
    bank = Bank(loses_its_reply, lookup="strong")
    bank.reconcile = lambda dispatch: answer
    with pytest.raises(UnknownOutcome):
        run(ledger, bank)
    first = ledger.get(SHOP, KEY)
    for _ in range(3):
        clock.now += 5
        assert ledger.reconcile(SHOP, KEY, bank).state == "UNKNOWN"
    last = ledger.get(SHOP, KEY)
    assert last.next_check_at > first.next_check_at
    assert (last.attempt, last.provider_key, last.arguments) == (first.attempt, first.provider_key, first.arguments)
    assert kinds(ledger)[-4:] == ["checked"] * 4


@pytest.mark.parametrize("error", [ValueError("odd"), StopIteration(3), AssertionError(), OSError(5, "EIO"), LookupError("\ud800")])
@pytest.mark.parametrize("method", ["reconcile", "tombstone"])
def test_an_error_of_a_lookup_settles_nothing(ledger, method, error):
    bank = capable(never_arrives)

    def fails(dispatch):
        raise error

    setattr(bank, method, fails)
    with pytest.raises(UnknownOutcome):
        run(ledger, bank)
    assert ledger.reconcile(SHOP, KEY, bank).state == "UNKNOWN"


def test_a_request_that_is_still_being_worked_on_is_found_once_it_has_ended(ledger):
    bank = capable(loses_its_reply)
    bank.reconcile = lambda dispatch: StillRunning("queued")
    with pytest.raises(UnknownOutcome):
        run(ledger, bank)
    assert bank.asked == [], "its key is not occupied while it is being worked on"
    del bank.reconcile
    assert run(ledger, bank) == {"refunded": 1200, "to": KEY}


def test_a_tombstone_makes_certain_that_it_did_not_happen_and_a_late_request_is_refused(ledger):
    bank = capable(never_arrives)
    with pytest.raises(IntentFailed) as caught:
        run(ledger, bank)
    assert caught.value.kind == "tombstoned"
    assert isinstance(bank.act(bank.sent[0]), NotExecuted), "the late request"
    run(ledger, bank, retry=("tombstoned",))
    assert len(bank.effects) == 1


@pytest.mark.parametrize(
    ("receipt", "wrong"),
    [
        (Found("r", "0" * 40), ["provider_key"]),
        (Found("r", None, {"amount_minor": 1}), ["amount_minor"]),
        (Found("r", None, {"amount_minor": 1200, "currency": "usd"}), ["currency"]),
        (Found("r", None, {"payee": "me"}), ["payee"]),
    ],
)
def test_a_receipt_of_another_action_is_an_anomaly_and_no_success(ledger, receipt, wrong):
    bank = Bank(loses_its_reply, lookup="strong")
    bank.reconcile = lambda dispatch: Found(receipt.result, receipt.provider_key or dispatch.provider_key, receipt.arguments)
    with pytest.raises(UnknownOutcome):
        run(ledger, bank)
    (anomaly,) = ledger.anomalies()
    assert (anomaly.key, anomaly.evidence["what"], anomaly.evidence["fields"]) == (KEY, "mismatch", wrong)
    assert ledger.get(SHOP, KEY).state == "UNKNOWN"


@pytest.mark.parametrize(("seconds", "sent"), [(0, 2), (59.9, 2), (60, 1), (1e9, 1), (-1, 1)])
def test_sending_again_ends_with_the_provider_s_window_and_never_trusts_a_clock_that_went_back(ledger, clock, seconds, sent):
    bank = Bank(loses_its_reply, window=60)
    with pytest.raises(UnknownOutcome):
        run(ledger, bank)
    clock.now += seconds
    if sent == 2:
        assert ledger.resend(SHOP, KEY, bank) == {"refunded": 1200, "to": KEY}
        assert ledger.get(SHOP, KEY).basis == "replay"
    else:
        with pytest.raises(UnknownOutcome, match=r"window|clock"):
            ledger.resend(SHOP, KEY, bank)
        with pytest.raises(UnknownOutcome, match=r"window|clock"):
            run(ledger, bank, recover="resend")
    assert len(bank.sent) == sent
    assert len({(one.provider_key, tuple(one.arguments.items())) for one in bank.sent}) == 1
    assert len(bank.effects) == 1


def test_the_window_counts_from_the_first_sending(ledger, clock):
    bank = Bank(*[never_arrives] * 9, window=60)
    with pytest.raises(UnknownOutcome):
        run(ledger, bank)
    for _ in range(5):
        clock.now += 15
        with pytest.raises(UnknownOutcome):
            ledger.resend(SHOP, KEY, bank)
    assert len(bank.sent) == 4, "at 0, 15, 30 and 45 seconds"


def test_a_window_that_the_provider_no_longer_declares_is_closed_and_a_longer_one_does_not_count(ledger, clock):
    bank = Bank(never_arrives, window=60)
    with pytest.raises(UnknownOutcome):
        run(ledger, bank)
    clock.now += 30
    for window in (None, 20):
        with pytest.raises(UnknownOutcome, match="window"):
            ledger.resend(SHOP, KEY, Bank(window=window))
    clock.now += 40
    with pytest.raises(UnknownOutcome, match="window"):
        ledger.resend(SHOP, KEY, Bank(window=86400))


@pytest.mark.parametrize("reply", [does_not_send, rejects])
def test_that_the_second_sending_did_not_happen_proves_nothing_about_the_first(ledger, reply):
    bank = Bank(loses_its_reply, reply, window=60)
    with pytest.raises(UnknownOutcome):
        run(ledger, bank)
    with pytest.raises(UnknownOutcome, match="first sending"):
        ledger.resend(SHOP, KEY, bank)
    assert ledger.get(SHOP, KEY).state == "UNKNOWN"
    assert ledger.resend(SHOP, KEY, bank) == {"refunded": 1200, "to": KEY}
    assert len(bank.effects) == 1


# --- late facts --------------------------------------------------------------------------------------------------------------


def after_it_was_given_up(ledger, then, reply):
    """Act so slowly that the owner counts as dead, ``then`` is done about the intent, and only now the reply comes."""

    def acts(bank, dispatch):
        ledger_file.open_ledger(ledger.location).owner.under_way.clear()
        then()
        return reply(bank, dispatch)

    return acts


def test_a_late_success_settles_what_is_unknown(ledger):
    other = Bank()
    bank = Bank(after_it_was_given_up(ledger, lambda: ledger.reconcile(SHOP, KEY, other), happens))
    assert run(ledger, bank) == {"refunded": 1200, "to": KEY}
    assert kinds(ledger) == ["prepared", "dispatched", "takeover", "late_result", "succeeded"]
    assert ledger.get(SHOP, KEY).basis == "response"


@pytest.mark.parametrize("reply", [never_arrives, does_not_send, rejects, does_not_know])
def test_a_late_failure_settles_nothing_for_its_owner_was_fenced(ledger, reply):
    other = Bank()
    bank = Bank(after_it_was_given_up(ledger, lambda: ledger.reconcile(SHOP, KEY, other), reply))
    with pytest.raises(UnknownOutcome):
        run(ledger, bank)
    assert kinds(ledger)[-1] == "late_result"
    assert ledger.get(SHOP, KEY).state == "UNKNOWN"


def test_a_late_success_of_what_a_person_called_failed_is_an_anomaly_that_reaches_the_caller(ledger):
    def says_no():
        ledger.resolve(SHOP, KEY, outcome="failed", evidence="case 7", by="carol")

    with pytest.raises(letitloop.Fenced) as caught:
        run(ledger, Bank(after_it_was_given_up(ledger, says_no, happens)))
    assert not isinstance(caught.value, Exception)
    (anomaly,) = ledger.anomalies()
    assert anomaly.evidence["what"] == "contradiction"
    assert ledger.get(SHOP, KEY).state == "FAILED"


def test_a_late_success_of_an_earlier_attempt_is_an_anomaly_of_a_duplicate(ledger):
    def is_done_again():
        ledger.resolve(SHOP, KEY, outcome="failed", evidence="case 7", by="carol")
        ledger.retry_failed(SHOP, KEY, Bank())

    with pytest.raises(letitloop.Fenced):
        run(ledger, Bank(after_it_was_given_up(ledger, is_done_again, happens)))
    (anomaly,) = ledger.anomalies()
    assert anomaly.evidence["what"] == "duplicate"
    assert ledger.get(SHOP, KEY).attempt == 2
    assert ledger.get(SHOP, KEY).state == "SUCCEEDED"


def test_a_late_certificate_against_what_a_person_called_succeeded_is_an_anomaly(ledger):
    def says_yes():
        ledger.resolve(SHOP, KEY, outcome="succeeded", evidence="case 7", by="carol", result="by hand")

    assert run(ledger, Bank(after_it_was_given_up(ledger, says_yes, rejects))) == "by hand"
    (anomaly,) = ledger.anomalies()
    assert anomaly.evidence["what"] == "contradiction"


def test_a_late_success_of_what_was_found_by_its_receipt_is_noted_and_changes_nothing(ledger):
    bank = capable()
    late = after_it_was_given_up(ledger, lambda: ledger.reconcile(SHOP, KEY, bank), lambda bank, dispatch: Succeeded("late"))
    bank.says.append(lambda bank, dispatch: (bank.act(dispatch), late(bank, dispatch))[1])
    run(ledger, bank)
    assert kinds(ledger)[-2:] == ["succeeded", "late_result"]
    assert ledger.get(SHOP, KEY).result == {"refunded": 1200, "to": KEY}
    assert ledger.anomalies() == []


# --- what belongs to whom ----------------------------------------------------------------------------------------------------


def test_one_key_in_two_namespaces_is_two_actions(ledger, bank):
    for namespace in ("shop-1", "shop-2"):
        ledger.run(namespace, KEY, bank, ARGUMENTS)
    assert len(bank.sent) == 2
    assert len({one.provider_key for one in bank.sent}) == 2


def test_the_provider_is_given_the_whole_dispatch(ledger, clock, bank):
    run(ledger, bank)
    (sent,) = bank.sent
    intent = ledger.get(SHOP, KEY)
    assert (sent.namespace, sent.key, sent.attempt, sent.epoch) == (SHOP, KEY, 1, 1)
    assert (sent.operation, dict(sent.arguments)) == ("refund", ARGUMENTS)
    assert sent.provider_key == intent.provider_key
    assert len(sent.provider_key) == 40
    assert sent.first_dispatched_at == intent.dispatched_at == clock.now


def test_it_is_on_record_as_dispatched_when_the_provider_is_called(ledger):
    seen = []
    run(ledger, Bank(lambda bank, dispatch: (seen.append(ledger.get(SHOP, KEY).state), bank.act(dispatch))[1]))
    assert seen == ["DISPATCHED"]


def test_the_operation_is_the_one_given_or_the_argument_s_or_the_provider_s_name(ledger, bank):
    ledger.run(SHOP, "a", bank, ARGUMENTS)
    ledger.run(SHOP, "b", bank, ARGUMENTS, operation="pay back")
    ledger.run(SHOP, "c", bank)
    assert [intent.operation for intent in ledger.list()] == ["refund", "pay back", "bank"]


def test_a_store_s_ledger_and_one_in_memory_keep_what_they_are_told(tmp_path, bank):
    for ledger in (Ledger(), Ledger(store=tmp_path / "s"), Ledger(store=MemoryStore())):
        run(ledger, bank)
        run(ledger, bank)
        assert ledger.get(SHOP, KEY).state == "SUCCEEDED"
    assert len(bank.sent) == 3
    assert (tmp_path / "letitloop-store" / "ledger.db").exists()
    assert (tmp_path / "s" / "ledger.db").exists()
    with pytest.raises(InvalidArgument):
        Ledger(tmp_path / "x.db", store=tmp_path / "s")


def test_a_ledger_is_one_however_its_path_is_written(ledger, bank, tmp_path, monkeypatch):
    path = tmp_path / "actions.db"
    link = tmp_path / "elsewhere" / "link.db"
    link.parent.mkdir()
    link.symlink_to(path)
    first = Ledger(path)
    monkeypatch.chdir(tmp_path)
    with in_flight(first, bank):
        for other in (Ledger("actions.db"), Ledger(tmp_path / "elsewhere" / ".." / "actions.db"), Ledger(link)):
            with pytest.raises(letitloop.InFlight):
                run(other, Bank())
