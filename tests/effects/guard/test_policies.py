"""A guard's policy: what is refused when a function is decorated, and limits, approvals and tickets that reach the ledger."""

from __future__ import annotations

import pytest

from letitloop import (
    Approval,
    ApprovalRequired,
    InvalidArgument,
    Limit,
    NotAuthorized,
    Redacted,
    Trusted,
    UnknownOutcome,
    effect,
    effect_context,
)
from letitloop.effects.context import from_context
from tests.effects.acting import Bank, capable, loses_its_reply, never_arrives
from tests.effects.guard.refunds import refund

# --- what is refused when it is decorated ------------------------------------------------------------------------------------

BAD_POLICIES = {
    "a key without a field": {"key": "refund"},
    "an empty key": {"key": ""},
    "a key of the context alone": {"key": "refund/{ctx.tenant}"},
    "an index": {"key": "refund/{order_id[0]}"},
    "an attribute": {"key": "refund/{order_id.x}"},
    "a format": {"key": "refund/{order_id:>10}"},
    "a conversion": {"key": "refund/{order_id!r}"},
    "a number": {"key": "refund/{0}"},
    "no name": {"key": "refund/{}"},
    "an open brace": {"key": "refund/{order_id"},
    "a nested field": {"key": "refund/{order_id:{amount_minor}}"},
    "the whole context": {"key": "refund/{ctx}"},
    "an unknown parameter": {"key": "refund/{order}"},
    "two fields with nothing between": {"key": "refund/{order_id}{amount_minor}"},
    "a scope from arguments": {"key": "{order_id}", "scope": "shop/{order_id}"},
    "a trusted parameter that is none": {"key": "{order_id}", "trusted": {"customer": from_context}},
    "a group of what is no parameter": {"key": "{order_id}", "limit": Limit(group="{customer}", max_intents=1)},
    "a ticket that is no parameter": {"key": "{order_id}", "ticket": "ticket"},
    "a redacted argument that is no parameter": {"key": "{order_id}", "redact": ("card",)},
    "a payload that is no parameter": {"key": "{order_id}", "payload": ("card",)},
    "a time that is none": {"key": "{order_id}", "approval": Approval(ttl="soon")},
    "a limit of nothing": {"key": "{order_id}", "model_fields": ("order_id",), "limit": Limit(group="refunds")},
    "a field that a model may choose without bound": {"key": "{order_id}", "model_fields": ("order_id",)},
    "a bound as narrow as the key": {
        "key": "{order_id}",
        "model_fields": ("order_id",),
        "limit": Limit(group="g/{order_id}", max_intents=1),
    },
    "a field that nobody answers for": {
        "key": "{order_id}/{amount_minor}",
        "model_fields": ("order_id",),
        "limit": Limit(group="g/{order_id}", max_intents=1),
    },
    "a recovery that does not exist": {"key": "{order_id}", "recover": "hope"},
    "no attempt": {"key": "{order_id}", "max_attempts": 0},
}


@pytest.mark.parametrize("options", BAD_POLICIES.values(), ids=BAD_POLICIES)
def test_a_policy_that_means_nothing_is_refused_when_a_function_is_decorated(options):
    with pytest.raises(InvalidArgument, match=r"effect|duration"):
        effect(**options)(refund)


FICKLE = ["uuid", "tool_call_id", "call_id", "run_id", "attempt", "timestamp", "now", "time", "random", "nonce", "epoch", "UUID"]


@pytest.mark.parametrize("name", FICKLE)
@pytest.mark.parametrize("form", ["{order_id}/{NAME}", "{order_id}/{ctx.NAME}"])
def test_a_key_with_what_is_new_in_every_attempt_is_refused(name, form):
    with pytest.raises(InvalidArgument, match="every attempt"):
        effect(key=form.replace("NAME", name))


def test_a_function_without_named_parameters_is_refused():
    for fn in (lambda order_id, *more: 1, lambda order_id, **more: 1):
        with pytest.raises(InvalidArgument, match="args"):
            effect(key="{order_id}")(fn)


def test_a_policy_where_a_model_chooses_which_and_not_how_often_is_accepted(ledger, bank):
    @effect(
        key="refund/{order_id}/{request_id}",
        trusted={"request_id": from_context},
        model_fields=("order_id",),
        limit=Limit(group="refund/{order_id}", max_intents=1),
        provider=bank,
        ledger=ledger,
    )
    def tool(order_id: str, *, request_id: Trusted[str]): ...

    with effect_context(request_id="r1"):
        tool("o1")
    with effect_context(request_id="r2"), pytest.raises(NotAuthorized):
        tool("o1")


def test_a_parameter_annotated_as_trusted_needs_nobody_else_to_answer_for_it():
    effect(key="refund/{order_id}/{request_id}", model_fields=("order_id",), limit=Limit(group="refund/{order_id}", max_intents=1))(
        refund
    )


# --- limits, approvals, tickets ----------------------------------------------------------------------------------------------


def test_a_group_is_made_of_arguments_and_context(ledger, bank):
    tool = effect(
        key="refund/{order_id}/{request_id}",
        limit=Limit(group="{ctx.tenant}/{order_id}", max_intents=1, max_sum=("amount_minor", lambda a: 100)),
        provider=bank,
        ledger=ledger,
    )(refund)
    with effect_context(tenant="acme", request_id="1"):
        tool("o1", 60)
        tool("o2", 60)
        with pytest.raises(NotAuthorized, match="100"):
            tool("o3", 101)
    with effect_context(tenant="acme", request_id="2"), pytest.raises(NotAuthorized, match="acme/o1"):
        tool("o1", 1)
    with effect_context(tenant="zeta", request_id="2"):
        tool("o1", 1)
    assert [intent.group for intent in ledger.list()] == ["acme/o1", "zeta/o1", "acme/o2"]


def test_one_unknown_outcome_freezes_its_group_and_block_group_on_none_does_not(ledger):
    bank = Bank(never_arrives, never_arrives)
    options = {"key": "refund/{order_id}/{request_id}", "provider": bank, "ledger": ledger}
    limit = Limit(group="refund/{order_id}", max_intents=9)
    frozen = effect(limit=limit, **options)(refund)
    free = effect(limit=limit, block_group_on=None, **options)(refund)
    with effect_context(request_id="1"), pytest.raises(UnknownOutcome):
        frozen("o1", 5)
    with effect_context(request_id="2"):
        with pytest.raises(UnknownOutcome, match="same group"):
            frozen("o1", 5)
        with pytest.raises(UnknownOutcome):
            free("o1", 5)
    assert len(bank.sent) == 2


def test_an_approval_is_asked_for_where_when_says_so(ledger, bank):
    approval = Approval(when=lambda a: a["amount_minor"] > 5000, ttl="1h")
    tool = effect(key="refund/{order_id}", approval=approval, provider=bank, ledger=ledger)(refund)
    tool("small", 5000)
    with pytest.raises(ApprovalRequired) as caught:
        tool("large", 5001)
    ledger.approve(caught.value.namespace, caught.value.key, by="alice")
    tool("large", 5001)
    assert [one.key for one in bank.sent] == ["refund/small", "refund/large"]


def test_a_parameter_may_hold_a_ticket(ledger, bank):
    @effect(key="refund/{order_id}/{ticket}", ticket="ticket", provider=bank, ledger=ledger)
    def refund_with(order_id: str, amount_minor: int, *, ticket: Trusted[str]): ...

    tickets = [ledger.authorize("refund_with", {"order_id": "o1"}, max_amount=100) for _ in range(2)]
    for ticket in tickets:
        for given_as in (ticket, str(ticket)):
            with effect_context(ticket=given_as):
                refund_with("o1", 100)
    assert len(bank.sent) == 2
    with effect_context(ticket=tickets[0]), pytest.raises(NotAuthorized):
        refund_with("o2", 100)
    with effect_context(ticket="made up"), pytest.raises(NotAuthorized):
        refund_with("o1", 100)


def test_options_reach_the_ledger(ledger):
    bank = capable(loses_its_reply)
    tool = effect(key="refund/{order_id}", recover="block", redact=("amount_minor",), provider=bank, ledger=ledger)(refund)
    with pytest.raises(UnknownOutcome):
        tool("o1", 5)
    assert not bank.asked
    (intent,) = ledger.list()
    assert isinstance(intent.arguments["amount_minor"], Redacted)
    assert (intent.operation, intent.namespace) == ("refund", "default")
