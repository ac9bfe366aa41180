"""The suite for providers: a good one passes it, whatever it promises; and each kind of bad one is found out."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
import unittest
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType

import pytest

from letitloop.effects.provider import Caps, Found, NotExecuted, NotFound, Succeeded, Unknown
from letitloop.effects.providers import FileProvider, FunctionProvider
from letitloop.errors import InvalidArgument
from letitloop.testing.provider_contract import Held, ProviderContract
from tests.effects.bank import Bank


class Wire:
    """What lies between a bank and its customers in one process, and can be tampered with."""

    def __init__(self):
        self.mode = ""
        self.arrived, self.let_in = threading.Event(), threading.Event()
        self.carried_out = threading.Event()


class WiredBank(Bank):
    def __init__(self, root, kind, wire):
        super().__init__(root, kind)
        self.wire = wire

    def validate(self, operation, arguments):
        if not isinstance(arguments.get("amount"), int):
            raise InvalidArgument("no amount")

    def execute(self, dispatch):
        mode = self.wire.mode
        request = {"key": dispatch.provider_key, "arguments": dict(dispatch.arguments)}
        if mode == "unreachable":
            return NotExecuted("not_sent", "the connection was refused")
        if mode != "delay":
            self._append("requests", request)
        if mode == "hold":
            self.wire.arrived.set()
            assert self.wire.let_in.wait(60)
        if mode == "delay":
            threading.Thread(target=self._later, args=(request,), daemon=True).start()
            return Unknown("no reply in time")
        acted = self._act(request)
        if mode == "duplicate":
            self._act(request)
        if mode == "fail_after_commit":
            return Unknown("503")
        if mode == "lose_reply":
            raise ConnectionResetError("lost")
        if acted == "dead":
            return NotExecuted("tombstoned", "its key is occupied")
        return Succeeded({"moved": dispatch.arguments["amount"]}, {"key": dispatch.provider_key})

    def _later(self, request):
        assert self.wire.let_in.wait(60)
        self._append("requests", request)
        self._act(request)
        self.wire.carried_out.set()


class BankContract(ProviderContract):
    kind = "receipt"
    secrets = ("hunter2",)

    def setup_method(self):
        self.root = tempfile.mkdtemp()
        self.wire = Wire()

    def teardown_method(self):
        shutil.rmtree(self.root, ignore_errors=True)

    def make_provider(self):
        return WiredBank(self.root, self.kind, self.wire)

    def make_arguments(self, number):
        return {"amount": number, "to": f"account-{number}"}

    def effects(self):
        return len(Bank(self.root, self.kind).done())

    def dispatches(self):
        return [json.dumps(request) for request in Bank(self.root, self.kind).requests()]

    def bad_arguments(self):
        return {"amount": "much"}

    @contextmanager
    def _mode(self, mode):
        self.wire.mode = mode
        self.wire.let_in.clear()
        try:
            yield Held(self._release, lambda: self.wire.arrived.wait(60))
        finally:
            self.wire.mode = ""
            self.wire.let_in.set()

    def _release(self):
        mode = self.wire.mode
        self.wire.let_in.set()
        if mode == "delay":
            assert self.wire.carried_out.wait(60)

    def lose_reply(self):
        return self._mode("lose_reply")

    def fail_after_commit(self):
        return self._mode("fail_after_commit")

    def hold(self):
        return self._mode("hold")

    def delay(self):
        return self._mode("delay")

    def duplicate(self):
        return self._mode("duplicate")

    def unreachable(self):
        return self._mode("unreachable")


class TestReceipt(BankContract):
    kind = "receipt"


class TestOpaque(BankContract):
    kind = "opaque"


class TestTombstone(BankContract):
    kind = "tombstone"


class TestWindow(BankContract):
    kind = "window"


NO_NETWORK = dict.fromkeys(
    ["dispatches", "lose_reply", "fail_after_commit", "hold", "delay", "duplicate", "unreachable"], "there is no network to spoil"
)


class TestFileProvider(ProviderContract):
    lacks = NO_NETWORK

    def setup_method(self):
        self.root = tempfile.mkdtemp()

    def teardown_method(self):
        shutil.rmtree(self.root, ignore_errors=True)

    def make_provider(self):
        return FileProvider(self.root)

    def make_arguments(self, number):
        return {"path": f"{number}.txt", "content": f"number {number}"}

    def bad_arguments(self):
        return {"path": "../up.txt", "content": ""}

    def effects(self):
        return len([name for name in os.listdir(self.root) if name.endswith(".txt")])


IN_MEMORY = {**NO_NETWORK, "processes": "what it did is in this process's memory", "receipt_arguments": "it has no receipts"}


class TestFunctionInThisProcess(ProviderContract):
    lacks = IN_MEMORY

    def setup_method(self):
        self.moved = []

    def make_provider(self):
        return FunctionProvider(self.move, identity="account 7")

    def move(self, amount):
        self.moved.append(amount)
        return {"moved": amount}

    def make_arguments(self, number):
        return {"amount": number}

    def bad_arguments(self):
        return {"height": 1}

    def effects(self):
        return len(self.moved)


class TestAsyncFunction(TestFunctionInThisProcess):
    asynchronous = True

    def make_provider(self):
        async def move(amount):
            return self.move(amount)

        return FunctionProvider(move, identity="account 7")


# --- bad providers are found out ---------------------------------------------------------------------------------------------


class Retrying(WiredBank):
    def execute(self, dispatch):
        for _ in range(2):
            try:
                return super().execute(dispatch)
            except ConnectionResetError:
                pass
        return super().execute(dispatch)


class TimeoutIsFailure(WiredBank):
    def execute(self, dispatch):
        try:
            reply = super().execute(dispatch)
        except ConnectionResetError:
            return NotExecuted("rejected", "timeout")
        return NotExecuted("rejected", reply.reason) if isinstance(reply, Unknown) else reply


class AbsentIsFailure(WiredBank):
    def reconcile(self, dispatch):
        answer = super().reconcile(dispatch)
        return NotExecuted("rejected", "not found") if isinstance(answer, NotFound) else answer


class SearchIsProof(WiredBank):
    def reconcile(self, dispatch):
        for request in self.done():
            if request["arguments"] == dict(dispatch.arguments):
                return Found({"moved": request["arguments"]["amount"]}, dispatch.provider_key, request["arguments"])
        return NotFound()


class ReceiptWithoutArguments(WiredBank):
    def reconcile(self, dispatch):
        answer = super().reconcile(dispatch)
        return replace(answer, arguments={}) if isinstance(answer, Found) else answer


class FreshKeys(WiredBank):
    def execute(self, dispatch):
        return super().execute(replace(dispatch, provider_key=os.urandom(4).hex()))


class EmptyTombstone(WiredBank):
    def tombstone(self, dispatch):
        answer = self.reconcile(dispatch)
        return NotExecuted("tombstoned", "so it is said") if isinstance(answer, NotFound) else answer


class Secretive(WiredBank):
    def identity(self):
        return "bank/1 hunter2"


class Fickle(WiredBank):
    def identity(self):
        return f"bank/1 {os.urandom(4).hex()}"


class ActsWhenAsked(WiredBank):
    def reconcile(self, dispatch):
        answer = super().reconcile(dispatch)
        if isinstance(answer, NotFound):
            self._act({"key": dispatch.provider_key, "arguments": dict(dispatch.arguments)})
        return answer


class ActsWhenItValidates(WiredBank):
    def validate(self, operation, arguments):
        super().validate(operation, arguments)
        self._append("requests", {"key": "", "arguments": {}})


class ChangesArguments(WiredBank):
    def execute(self, dispatch):
        reply = super().execute(dispatch)
        dispatch.arguments["moved_at"] = 1
        return reply


class PromisesMuch(WiredBank):
    caps = Caps(lookup="strong")
    reconcile = None


class ValidatesNothing(WiredBank):
    def validate(self, operation, arguments):
        pass

    def execute(self, dispatch):
        self._act({"key": dispatch.provider_key, "arguments": dict(dispatch.arguments)})
        return Succeeded({"moved": dispatch.arguments.get("amount")})


def run_all(contract):
    """Run a contract as pytest would; return the names of the tests that failed."""
    failed = []
    for name in [name for name in dir(contract) if name.startswith("test_")]:
        tests = contract()
        tests.setup_method()
        try:
            getattr(tests, name)()
        except unittest.SkipTest:
            pass
        except BaseException:
            failed.append(name.removeprefix("test_"))
        finally:
            tests.teardown_method()
    return failed


@pytest.mark.parametrize(
    ("bad", "kind", "test"),
    [
        (Retrying, "receipt", "a_lost_reply_makes_it_send_no_second_request"),
        (TimeoutIsFailure, "receipt", "a_reply_that_is_really_lost_is_not_repeated"),
        (TimeoutIsFailure, "opaque", "a_servers_error_after_the_commit_is_no_failure"),
        (AbsentIsFailure, "receipt", "what_is_absent_may_appear_later"),
        (AbsentIsFailure, "receipt", "asking_never_acts"),
        (SearchIsProof, "receipt", "a_receipt_is_this_dispatchs_own"),
        (ReceiptWithoutArguments, "receipt", "a_receipt_for_other_arguments_is_an_anomaly"),
        (FreshKeys, "window", "the_same_attempt_is_the_same_request"),
        (EmptyTombstone, "tombstone", "a_tombstone_refuses_what_comes_late"),
        (EmptyTombstone, "tombstone", "a_late_worker_finds_its_intent_taken_over"),
        (Secretive, "opaque", "the_identity_is_stable_and_no_secret"),
        (Fickle, "opaque", "the_identity_is_stable_and_no_secret"),
        (ActsWhenAsked, "receipt", "asking_never_acts"),
        (ActsWhenItValidates, "opaque", "validate_records_and_sends_nothing"),
        (ChangesArguments, "opaque", "one_execute_is_one_effect"),
        (ValidatesNothing, "opaque", "what_cannot_be_carried_out_is_refused_before_it_is_recorded"),
    ],
)
def test_a_bad_provider_is_found_out(bad, kind, test):
    class Contract(BankContract):
        def make_provider(self):
            return bad(self.root, kind, self.wire)

        def effects(self):
            return len(Bank(self.root, kind).done())

    Contract.kind = kind
    tests = Contract()
    tests.setup_method()
    try:
        with pytest.raises(BaseException) as caught:
            getattr(tests, f"test_{test}")()
        assert not isinstance(caught.value, unittest.SkipTest)
    finally:
        tests.teardown_method()


def test_what_is_neither_offered_nor_declared_fails():
    class Contract(TestFileProvider):
        lacks = MappingProxyType({})

    tests = Contract()
    tests.setup_method()
    try:
        with pytest.raises(AssertionError, match="dispatches: override it, or name it"):
            tests.test_what_is_lacking_is_declared()
        with pytest.raises(AssertionError, match=r"override lose_reply\(\)"):
            tests.test_a_reply_that_is_really_lost_is_not_repeated()
    finally:
        tests.teardown_method()


def test_what_is_declared_is_skipped_with_its_reason():
    tests = TestFileProvider()
    tests.setup_method()
    try:
        with pytest.raises(unittest.SkipTest, match="TestFileProvider lacks hold: there is no network to spoil"):
            tests.test_while_it_is_slow_nobody_else_acts()
    finally:
        tests.teardown_method()
