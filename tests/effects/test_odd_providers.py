"""Providers that misbehave, values that cannot be recorded, names of all shapes: the outcome is known or UNKNOWN, nothing else."""

from __future__ import annotations

import asyncio
import threading

import pytest

from letitloop import Halt, IntentFailed, IntentNotFound, InvalidArgument, Ledger, MemoryStore, UnencodableError, UnknownOutcome
from letitloop.effects.intent import Unrecorded
from letitloop.effects.provider import Caps, Found, NotExecuted, NotFound, StillRunning, Succeeded, Unavailable, Unknown
from tests.effects.acting import ARGUMENTS, KEY, SHOP, Bank, capable, loses_its_reply, never_arrives, raises, returns, run
from tests.interrupts import in_memory


@pytest.fixture
def ledger():
    return Ledger(store=MemoryStore())


@pytest.fixture(params=["sync", "async"])
def act(request, ledger):
    """``run`` and ``arun`` with the same arguments."""
    if request.param == "sync":
        return lambda bank, **options: run(ledger, bank, **options)
    return lambda bank, **options: asyncio.run(ledger.arun(SHOP, KEY, bank, ARGUMENTS, **options))


class Unspeakable(Exception):
    def __repr__(self):
        raise RuntimeError("no words")

    __str__ = __repr__


def by_type(value):
    return type(value).__name__


def unknown_and_known_as_such(ledger, bank):
    """The outcome is on record as UNKNOWN, whoever asks is told so, and nothing is sent again."""
    assert ledger.get(SHOP, KEY).state == "UNKNOWN"
    with pytest.raises(UnknownOutcome):
        run(ledger, bank)
    assert len(bank.sent) == 1


# --- what execute returns and raises -----------------------------------------------------------------------------------------

NO_REPLIES = [
    None,
    True,
    {},
    "done",
    Succeeded,
    NotFound(),
    Found("r", "k"),
    StillRunning(),
    Unavailable("503"),
    Unspeakable(),
    Caps(),
]


@pytest.mark.parametrize("value", NO_REPLIES, ids=by_type)
def test_what_is_no_reply_leaves_the_outcome_unknown(ledger, act, value):
    bank = Bank(returns(value))
    with pytest.raises(UnknownOutcome, match="no reply"):
        act(bank)
    unknown_and_known_as_such(ledger, bank)


ODD_REPLIES = [
    NotExecuted("not sent", "a kind with a mistake in it"),
    NotExecuted("human", "a provider is no person"),
    NotExecuted(None, "no kind"),
    NotExecuted(["rejected"], "a kind that cannot be hashed"),
    Unknown("half a character \ud800"),
    Unknown("a zero \0"),
    Unknown(None),
    Unknown(ValueError("odd")),
    Unknown(5),
    Unknown("long " * 100_000),
]


@pytest.mark.parametrize("reply", ODD_REPLIES, ids=range(len(ODD_REPLIES)))
def test_a_reply_that_certifies_nothing_leaves_the_outcome_unknown(ledger, act, reply):
    bank = Bank(returns(reply))
    with pytest.raises(UnknownOutcome):
        act(bank)
    unknown_and_known_as_such(ledger, bank)


@pytest.mark.parametrize("certificate", ["half a character \ud800", "a zero \0", None, ValueError("odd"), 5], ids=by_type)
def test_an_odd_certificate_in_words_is_kept_as_words(ledger, act, certificate):
    bank = Bank(returns(NotExecuted("rejected", certificate, detail=threading.Lock())))
    with pytest.raises(IntentFailed) as caught:
        act(bank)
    assert caught.value.kind == "rejected"
    intent = ledger.get(SHOP, KEY)
    assert intent.state == "FAILED"
    assert isinstance(intent.detail, Unrecorded)
    assert isinstance(intent.reason, str)


@pytest.mark.parametrize("basis", ["odd", None, 5, ["response"]], ids=by_type)
def test_a_success_with_an_odd_basis_is_a_success(ledger, act, basis):
    bank = Bank(returns(Succeeded("r", basis=basis)))
    assert act(bank) == "r"
    assert ledger.get(SHOP, KEY).state == "SUCCEEDED"


EXCEPTIONS = [
    ValueError("odd"),
    StopIteration(3),
    StopAsyncIteration(),
    Unspeakable(),
    ValueError("\ud800\0"),
    ValueError("x" * 100_000),
    IntentFailed("not mine", kind="not_sent"),
    IntentNotFound("not mine"),
    TimeoutError(),
    MemoryError(),
    RecursionError(),
]


@pytest.mark.parametrize("error", EXCEPTIONS, ids=by_type)
def test_an_exception_leaves_the_outcome_unknown_and_reaches_the_caller_as_that(ledger, act, error):
    bank = Bank(raises(error))
    with pytest.raises(UnknownOutcome, match=type(error).__name__) as caught:
        act(bank)
    assert caught.value.key == KEY
    unknown_and_known_as_such(ledger, bank)


class Halted(Halt):
    pass


class Odd(BaseException):
    pass


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, Halted, Odd])
def test_what_is_no_exception_goes_on_to_the_caller_and_leaves_the_outcome_unknown(ledger, error):
    bank = Bank(raises(error("from outside")))
    with pytest.raises(UnknownOutcome if error is GeneratorExit else error):  # a GeneratorExit would end who waits for it
        run(ledger, bank)
    unknown_and_known_as_such(ledger, bank)


@pytest.mark.parametrize("error", [GeneratorExit, asyncio.CancelledError, Halted, Odd])
def test_in_async_code_too_what_is_no_exception_leaves_the_outcome_unknown(ledger, error):
    async def program():
        bank = Bank(raises(error("from outside")))
        with pytest.raises((error, UnknownOutcome)):
            await ledger.arun(SHOP, KEY, bank, ARGUMENTS)
        unknown_and_known_as_such(ledger, bank)

    asyncio.run(program())


def test_an_unknown_outcome_inside_a_provider_leaves_the_outer_one_unknown_too(ledger, act):
    """A function that acts through the ledger itself: its own outcome is no better known than what it called."""
    inner = Bank(never_arrives)
    bank = Bank(lambda bank, dispatch: ledger.run(SHOP, "inner", inner))
    with pytest.raises(UnknownOutcome):
        act(bank)
    assert ledger.get(SHOP, "inner").state == "UNKNOWN"
    unknown_and_known_as_such(ledger, bank)


def test_a_provider_may_use_the_same_ledger_inside_for_another_key_and_meets_itself_under_its_own(ledger, act):
    met = []

    def acts(bank, dispatch):
        met.append(ledger.run(SHOP, "inner", Bank(), ARGUMENTS))
        with pytest.raises(Exception, match="is being carried out"):
            ledger.run(SHOP, KEY, Bank(), ARGUMENTS)
        return bank.act(dispatch)

    assert act(Bank(acts))
    assert met == [{"refunded": 1200, "to": "inner"}]
    assert {intent.state for intent in ledger.list()} == {"SUCCEEDED"}


# --- the other methods of a provider -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["identity", "validate"])
@pytest.mark.parametrize("error", [ValueError("no such account"), KeyboardInterrupt()], ids=by_type)
def test_a_provider_that_refuses_beforehand_leaves_nothing_on_record(ledger, act, method, error):
    bank = Bank()

    def refuses(*_):
        raise error

    setattr(bank, method, refuses)
    with pytest.raises(type(error)):
        act(bank)
    assert ledger.list() == []
    assert not bank.sent


def test_capabilities_that_cannot_be_asked_leave_nothing_on_record(ledger, act):
    class Broken(Bank):
        @property
        def caps(self):
            raise LookupError("no capabilities")

        @caps.setter
        def caps(self, value):
            pass

    with pytest.raises(LookupError):
        act(Broken())
    assert ledger.list() == []


@pytest.mark.parametrize("account", ["", None, 5, "half a character \ud800"], ids=repr)
def test_an_identity_that_is_no_text_is_refused_before_anything_is_recorded(ledger, act, account):
    bank = Bank(identity=account)
    with pytest.raises(InvalidArgument):
        act(bank)
    assert ledger.list() == []
    assert not bank.sent


ODD_ANSWERS = [
    Unspeakable(),
    Found("r", "another key"),
    Found("r", None, None),
    Found("r", None, {"amount_minor": threading.Lock()}),
    Found("r", None, {5: 5}),
    Found("r", 5),
    Found("r", None, [("amount_minor", 1)]),
    NotFound(None),
    NotFound("half \ud800"),
    StillRunning(Unspeakable()),
    Unavailable("half \ud800"),
    Unavailable(ValueError("odd")),
    NotExecuted("not_sent", "which a lookup cannot know"),
    NotExecuted(["tombstoned"], "odd"),
]


@pytest.mark.parametrize("answer", ODD_ANSWERS, ids=range(len(ODD_ANSWERS)))
def test_an_odd_answer_to_a_lookup_leaves_the_outcome_unknown_and_is_no_error_of_the_caller(ledger, act, answer):
    bank = Bank(loses_its_reply, lookup="strong")

    def reconcile(dispatch):
        if isinstance(answer, Found) and answer.provider_key is None:
            return Found(answer.result, dispatch.provider_key, answer.arguments)
        return answer

    bank.reconcile = reconcile
    with pytest.raises(UnknownOutcome):
        act(bank)
    assert ledger.reconcile(SHOP, KEY, bank).state == "UNKNOWN"
    unknown_and_known_as_such(ledger, bank)


@pytest.mark.parametrize("method", ["reconcile", "tombstone"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, Odd, Halted])
def test_an_interrupted_lookup_goes_on_to_the_caller_and_the_outcome_stays_unknown(ledger, method, error):
    bank = capable(never_arrives)

    def interrupted(dispatch):
        raise error("from outside")

    original = getattr(bank, method)
    setattr(bank, method, interrupted)
    with pytest.raises(error):
        run(ledger, bank)
    assert ledger.get(SHOP, KEY).state == "UNKNOWN"
    setattr(bank, method, original)
    assert ledger.reconcile(SHOP, KEY, bank).state == "FAILED"


# --- results -----------------------------------------------------------------------------------------------------------------


class Secretive:
    def __repr__(self):
        raise RuntimeError("no words")


RESULTS = [None, 0, "", [], {"a": (1, None)}, b"\0" * 3_000_000, "ä 中 🎉 \ud800 \0", float("nan"), 10**40, {1: {2: {3: [4]}}}]


@pytest.mark.parametrize("result", RESULTS, ids=range(len(RESULTS)))
def test_a_result_comes_back_as_it_was(ledger, act, result):
    bank = Bank(returns(Succeeded(result, receipt=result)))
    for _ in range(2):
        found = act(bank)
        assert type(found) is type(result)
        assert found == result or found != found
    assert len(bank.sent) == 1


@pytest.mark.parametrize(
    "result", [threading.Lock(), [object()], {"deep": {"er": lambda: 1}}, Secretive(), Unspeakable()], ids=by_type
)
def test_a_result_that_cannot_be_recorded_is_a_success_all_the_same(ledger, act, result):
    bank = Bank(returns(Succeeded(result, receipt=result)))
    assert act(bank) is result
    again = act(bank)
    assert isinstance(again, Unrecorded)
    assert again.type_name.endswith(type(result).__name__)
    assert len(again.text) <= 1000
    assert isinstance(ledger.get(SHOP, KEY).receipt, Unrecorded)
    assert len(bank.sent) == 1


@pytest.mark.parametrize("result", [threading.Lock(), Secretive()], ids=by_type)
def test_a_receipt_whose_result_cannot_be_recorded_settles_it(ledger, result):
    bank = Bank(loses_its_reply, lookup="strong")
    bank.reconcile = lambda dispatch: Found(result, dispatch.provider_key)
    found = run(ledger, bank)
    assert found is result or isinstance(found, Unrecorded)
    assert ledger.get(SHOP, KEY).state == "SUCCEEDED"


# --- arguments ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [threading.Lock(), object(), lambda: 1, {"deep": [object()]}], ids=by_type)
def test_arguments_that_cannot_be_recorded_are_refused_by_name_and_nothing_is_recorded(ledger, act, value):
    bank = Bank()
    with pytest.raises(UnencodableError, match=r"arguments.*amount_minor"):
        ledger.run(SHOP, KEY, bank, {"amount_minor": value})
    assert ledger.list() == []
    assert not bank.sent


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), 10**40, "ä 中 🎉 \ud800 \0", b"\0", None, [{"a": (1,)}], {}, ""], ids=repr
)
def test_arguments_of_all_kinds_are_the_same_in_a_repeat(ledger, value):
    bank = Bank()
    for _ in range(2):
        ledger.run(SHOP, KEY, bank, {"amount_minor": value})
    assert len(bank.sent) == 1


@pytest.mark.parametrize("arguments", [{5: 1}, {None: 1}, ["amount_minor"], "amount_minor", 5], ids=repr)
def test_arguments_are_a_mapping_of_names(ledger, arguments):
    with pytest.raises(InvalidArgument, match="arguments"):
        ledger.run(SHOP, KEY, Bank(), arguments)
    assert ledger.list() == []


def test_the_provider_cannot_change_what_is_on_record_by_changing_what_it_was_given(ledger):
    def changes(bank, dispatch):
        dispatch.arguments["items"].append("more")
        return bank.act(dispatch)

    ledger.run(SHOP, KEY, Bank(changes), {"items": ["one"]})
    assert ledger.get(SHOP, KEY).arguments == {"items": ["one"]}


# --- names -------------------------------------------------------------------------------------------------------------------

NAMES = [
    "a",
    "x" * 512,
    "🎉" * 512,
    "ä",
    "a/b",
    "a%2Fb",
    "../../evil",
    "a b",
    "'; drop table intent; --",
    "\n",
    "{}",
    "\ufffe",
    " ",
]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_any_text_names_an_action(name):
    with in_memory() as path:
        ledger = Ledger(f"{path}/l.db")
        bank = Bank()
        for _ in range(2):
            ledger.run(name, name, bank, ARGUMENTS)
        assert len(bank.sent) == 1
        (intent,) = ledger.list()
        assert (intent.namespace, intent.key) == (name, name)
        assert ledger.get(name, name) == intent
        assert [event.key for event in ledger.events(name, name)] == [name] * 3


def test_names_that_look_alike_are_told_apart(ledger):
    bank = Bank()
    pairs = [("a", "b"), ("ab", ""), ("a/b", "c"), ("a", "b/c"), ("\u00e9", "x"), ("e\u0301", "x"), ("A", "b"), ("a", "b ")]
    for namespace, key in pairs:
        ledger.run(namespace, key or "-", bank)
    assert len({one.provider_key for one in bank.sent}) == len(pairs)


@pytest.mark.parametrize("name", ["", "x" * 513, "a\0b", "\ud800", None, 5, b"x", ["x"]], ids=by_type)
@pytest.mark.parametrize("which", ["namespace", "key"])
def test_what_is_no_name_is_refused_by_every_verb_before_anything_happens(ledger, name, which):
    bank = Bank()
    where = (name, KEY) if which == "namespace" else (SHOP, name)
    verbs = [
        lambda: ledger.run(*where, bank, ARGUMENTS),
        lambda: ledger.reconcile(*where, bank),
        lambda: ledger.resend(*where, bank),
        lambda: ledger.retry_failed(*where),
        lambda: ledger.resolve(*where, outcome="failed", evidence="e", by="b"),
        lambda: ledger.approve(*where, by="b"),
        lambda: ledger.deny(*where, by="b", reason="r"),
        lambda: ledger.cancel(*where),
        lambda: ledger.get(*where),
        lambda: ledger.events(*where),
    ]
    for verb in verbs:
        with pytest.raises(InvalidArgument, match=which):
            verb()
    assert ledger.list() == []
    assert not bank.sent


@pytest.mark.parametrize(
    "options",
    [
        {"recover": "hope"},
        {"retry": "not_sent"},
        {"retry": ("unknown",)},
        {"max_attempts": 0},
        {"redact": "card"},
        {"redact": ("card",)},
        {"payload": "amount_minor"},
        {"payload": ("card",)},
        {"block_group_on": "FAILED"},
        {"compensates": ("only one",)},
        {"compensates": ("one", "two", "three")},
        {"compensates": ("shop-1", "")},
        {"operation": 5},
        {"operation": "half \ud800"},
    ],
    ids=repr,
)
def test_an_option_that_means_nothing_is_refused_and_nothing_is_recorded(ledger, options):
    bank = Bank()
    with pytest.raises(InvalidArgument):
        run(ledger, bank, **options)
    assert ledger.list() == []
    assert not bank.sent


def test_an_option_that_does_not_exist_is_no_argument(ledger):
    with pytest.raises(TypeError, match="bogus"):
        run(ledger, Bank(), bogus=1)


def test_a_provider_that_acts_in_async_code_alone_is_refused_by_the_sync_verbs(ledger):
    class Asynchronous(Bank):
        execute = None

        async def aexecute(self, dispatch):
            return self.act(dispatch)

    bank = Asynchronous()
    with pytest.raises(TypeError, match="arun"):
        run(ledger, bank)
    assert ledger.list() == []
