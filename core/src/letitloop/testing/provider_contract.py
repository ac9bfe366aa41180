"""What every provider must do: :class:`ProviderContract`, a suite that a provider's own tests inherit."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
import unittest
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from letitloop.codecs import default_codecs
from letitloop.effects.intent import provider_key
from letitloop.effects.ledger import Ledger
from letitloop.effects.provider import (
    Caps,
    Dispatch,
    Found,
    NotExecuted,
    NotFound,
    StillRunning,
    Succeeded,
    Unavailable,
    Unknown,
)
from letitloop.testing.provider_rig import Blocking, Mute, Wrapped, adopted, died, paused_at, run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from letitloop.effects.provider import Provider
    from letitloop.testing.provider_rig import Outcome

__all__ = ["Held", "ProviderContract"]

_NAMESPACE = "provider-contract"
_REPLIES = (Succeeded, NotExecuted, Unknown)
_ANSWERS = (Found, StillRunning, NotFound, NotExecuted, Unavailable)


@dataclass(frozen=True)
class Held:
    """A request that the rig keeps from being carried out.

    Attributes:
        release: lets it be carried out; returns when it was.
        arrived: waits until the request is there; False if it never comes.
    """

    release: Callable[[], object]
    arrived: Callable[[], object] = lambda: None


class ProviderContract(ABC):
    """Tests for one provider; subclass it in a test module, with a name that pytest collects.

    Define :meth:`make_provider`, :meth:`make_arguments` and :meth:`effects`, so that each test has an outside world of its own. The
    rest are hooks: what only this provider's rig can do. A hook is either overridden, or named in :attr:`lacks` with the reason why
    the rig can't do it; then the tests that need it are skipped with that reason. One that is neither fails its tests.

    What a provider promises in its ``caps`` is what it is held to: with nothing promised, nothing is ever settled that was lost,
    and that is right. In no case are there two effects.

    Attributes:
        asynchronous: whether the provider acts in async code alone.
        operation: what the dispatches of the suite are called.
        secrets: texts that must not stand in the identity: keys, tokens, passwords.
        lacks: hooks that the rig can't offer, and why; and ``"processes"`` if other processes can't reach the outside world, and
            ``"receipt_arguments"`` if receipts state none of the arguments.

    Example:
        >>> import os, tempfile
        >>> from letitloop.effects.providers import FileProvider
        >>> from letitloop.testing import ProviderContract
        >>> class TestFiles(ProviderContract):
        ...     lacks = dict.fromkeys(
        ...         ["dispatches", "lose_reply", "hold", "delay", "duplicate", "fail_after_commit", "unreachable"],
        ...         "there is no network between a program and its files",
        ...     )
        ...     def setup_method(self):
        ...         self.folder = tempfile.mkdtemp()
        ...     def make_provider(self):
        ...         return FileProvider(self.folder)
        ...     def make_arguments(self, number):
        ...         return {"path": f"{number}.txt", "content": "hello"}
        ...     def bad_arguments(self):
        ...         return {"path": "../up.txt", "content": "hello"}
        ...     def effects(self):
        ...         return len([name for name in os.listdir(self.folder) if name.endswith(".txt")])
        >>> tests = TestFiles()
        >>> tests.setup_method()
        >>> tests.test_a_lost_reply_is_not_repeated()
        >>> tests.effects()
        1
    """

    asynchronous: ClassVar[bool] = False
    operation: ClassVar[str] = "act"
    secrets: ClassVar[Sequence[str]] = ()
    lacks: ClassVar[Mapping[str, str]] = {}

    # --- what every subclass defines -----------------------------------------------------------------------------------------

    @abstractmethod
    def make_provider(self) -> Provider:
        """Return the provider: at every call a new object, of the same account, at the outside world of this test.

        It is called in forked children too, so that no connection is shared with them.
        """

    @abstractmethod
    def make_arguments(self, number: int) -> Mapping[str, Any]:
        """Return valid arguments, another action for each number; the same for the same number."""

    @abstractmethod
    def effects(self) -> int:
        """Return how many actions really happened in this test, by the outside world's own record."""

    # --- hooks ---------------------------------------------------------------------------------------------------------------

    def dispatches(self) -> Sequence[object]:
        """Return each request to act that reached the outside world, in order, as it arrived: bytes, or what can be compared."""
        raise NotImplementedError

    def bad_arguments(self) -> Mapping[str, Any]:
        """Return arguments that ``validate`` has to refuse."""
        raise NotImplementedError

    def lose_reply(self) -> AbstractContextManager[object]:
        """Inside the block, requests are carried out and no reply arrives."""
        raise NotImplementedError

    def fail_after_commit(self) -> AbstractContextManager[object]:
        """Inside the block, requests are carried out and answered with a server's error, such as HTTP's 500 or 503."""
        raise NotImplementedError

    def hold(self) -> AbstractContextManager[Held]:
        """Inside the block, the next request is carried out, and answered, only when it is released."""
        raise NotImplementedError

    def delay(self) -> AbstractContextManager[Held]:
        """Inside the block, the next request gets no reply, and is carried out, unseen by its sender, when it is released."""
        raise NotImplementedError

    def duplicate(self) -> AbstractContextManager[object]:
        """Inside the block, each request is delivered twice."""
        raise NotImplementedError

    def unreachable(self) -> AbstractContextManager[object]:
        """Inside the block, no request of a provider that is made in it reaches the outside world at all."""
        raise NotImplementedError

    def catch_up(self) -> None:  # noqa: B027 - most rigs have nothing to do here
        """Let a lookup that is ``"eventual"`` see everything that has happened; by default there is nothing to wait for."""

    def same_result(self, first: object, later: object) -> bool:
        """Tell whether a result found afterwards is as good as the reply's own; by default, whether they are equal."""
        return bool(first == later)

    # --- the rig of the suite ------------------------------------------------------------------------------------------------

    def _ledger(self) -> Ledger:
        folder = tempfile.mkdtemp(prefix="letitloop-contract-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return Ledger(os.path.join(folder, "ledger.db"))

    def _provider(self) -> Any:
        """Return the provider, with plain methods even if it acts in async code alone; its caps say which of them it has."""
        return Blocking(self.make_provider()) if self.asynchronous else self.make_provider()

    def _needs(self, *hooks: str) -> None:
        """Skip a test whose hooks are declared lacking; fail it if they are neither offered nor declared."""
        for hook in hooks:
            why = self.lacks.get(hook)
            if why is not None:
                raise unittest.SkipTest(f"{type(self).__name__} lacks {hook}: {why}")
            if hook in _HOOKS and getattr(type(self), hook) is getattr(ProviderContract, hook):
                raise AssertionError(f"override {hook}() in {type(self).__name__}, or say in `lacks` why its rig can't offer it")

    def _needs_caps(self, have: object, what: str) -> None:
        if not have:
            raise unittest.SkipTest(f"this provider promises no {what}")

    def _dispatch(self, number: int = 1, *, key: str = "order", attempt: int = 1, epoch: int = 1) -> Dispatch:
        arguments = dict(self.make_arguments(number))
        made = provider_key(_NAMESPACE, key, attempt)
        return Dispatch(_NAMESPACE, key, attempt, epoch, made, self.operation, arguments, time.time())

    def _run(self, ledger: Ledger, provider: Any = None, *, number: int = 1, recover: Any = None) -> Outcome:
        """Run the action of the suite, as a program would that knows what its provider promises."""
        acting: Any = Wrapped(self._provider()) if provider is None else provider
        how: Any = recover or ("resend" if acting.caps.redispatch else "reconcile")
        arguments = self.make_arguments(number)
        return run(lambda: ledger.run(_NAMESPACE, "order", acting, arguments, operation=self.operation, recover=how))

    def _again(self, ledger: Ledger) -> None:
        """Run the action again after its reply was lost, and hold what comes of it against what the provider promises."""
        before = self.effects()
        assert before <= 1, f"{before} effects of one action"
        self.catch_up()
        caps = self._provider().caps
        outcome = self._run(ledger)
        state = ledger.get(_NAMESPACE, "order").state
        effects = self.effects()
        assert effects <= 1, f"{effects} effects of one action: {outcome}"
        if before and not (caps.redispatch or caps.tombstone or caps.lookup in ("list", "strong")):
            assert state in ("UNKNOWN", "SUCCEEDED"), outcome
        elif caps.tombstone and not before:
            assert (state, effects, outcome.name) == ("FAILED", 0, "IntentFailed"), outcome
        elif before or caps.redispatch:
            assert (state, effects, outcome.name) == ("SUCCEEDED", 1, ""), outcome
        else:
            assert (state, effects, outcome.name) == ("UNKNOWN", 0, "UnknownOutcome"), outcome
        assert [event.kind for event in ledger.anomalies()] == []
        self._is_settled(ledger)

    def _is_settled(self, ledger: Ledger) -> None:
        """Ask for a result once more: what has succeeded is not sent again."""
        effects, state = self.effects(), ledger.get(_NAMESPACE, "order").state
        if state == "SUCCEEDED":
            spy = Wrapped(self._provider())
            assert self._run(ledger, spy).raised is None
            assert spy.dispatches == []
        assert self.effects() == effects

    # --- what it says of itself ----------------------------------------------------------------------------------------------

    def test_what_is_lacking_is_declared(self) -> None:
        for hook in _HOOKS:
            offered = getattr(type(self), hook) is not getattr(ProviderContract, hook)
            assert offered != (hook in self.lacks), f"{hook}: override it, or name it in `lacks`, and not both"
        unknown = self.lacks.keys() - {*_HOOKS, "processes", "receipt_arguments"}
        assert not unknown, f"`lacks` names what is no hook: {sorted(unknown)}"
        assert all(self.lacks.values()), "`lacks` says why"

    def test_it_promises_what_it_has(self) -> None:
        provider = self.make_provider()
        caps = provider.caps
        assert isinstance(caps, Caps)
        assert caps == self.make_provider().caps
        assert isinstance(provider.name, str)
        assert provider.name
        for method, promised in (("execute", True), ("reconcile", caps.lookup != "none"), ("tombstone", caps.tombstone)):
            has = hasattr(provider, method) or hasattr(provider, f"a{method}")
            assert has or not promised, f"its caps promise what {method}() does, and it has none"
        if caps.redispatch is not None:
            assert caps.redispatch.seconds > 0

    def test_the_identity_is_stable_and_no_secret(self) -> None:
        provider = self._provider()
        identity = provider.identity()
        assert isinstance(identity, str)
        assert identity.strip()
        assert identity.encode().decode() == identity
        provider.execute(self._dispatch())
        assert provider.identity() == identity
        assert self._provider().identity() == identity
        told = [secret for secret in self.secrets if secret in identity or secret in provider.name]
        assert not told, "a secret stands in the identity or in the name"

    def test_validate_records_and_sends_nothing(self) -> None:
        provider = self._provider()
        arguments = dict(self.make_arguments(1))
        before = default_codecs.encode(arguments)
        provider.validate(self.operation, arguments)
        assert default_codecs.encode(arguments) == before, "validate() changed the arguments"
        assert self.effects() == 0
        if "dispatches" not in self.lacks:
            self._needs("dispatches")
            assert list(self.dispatches()) == []

    def test_what_cannot_be_carried_out_is_refused_before_it_is_recorded(self) -> None:
        self._needs("bad_arguments")
        ledger, bad = self._ledger(), self.bad_arguments()
        outcome = run(lambda: ledger.run(_NAMESPACE, "order", Wrapped(self._provider()), bad, operation=self.operation))
        assert isinstance(outcome.raised, Exception), "validate() raises an Exception for what cannot be carried out"
        assert ledger.list() == []
        assert self.effects() == 0

    # --- one dispatch --------------------------------------------------------------------------------------------------------

    def test_one_execute_is_one_effect(self) -> None:
        provider, dispatch = self._provider(), self._dispatch()
        before = default_codecs.encode(dispatch.arguments)
        reply = provider.execute(dispatch)
        assert isinstance(reply, Succeeded), f"an action that nothing disturbs succeeds, and this gave {reply}"
        assert self.effects() == 1
        default_codecs.encode(reply.result, path="result")
        default_codecs.encode(reply.receipt, path="receipt")
        assert default_codecs.encode(dispatch.arguments) == before, "execute() changed the arguments"

    def test_one_execute_is_one_request(self) -> None:
        self._needs("dispatches")
        self._provider().execute(self._dispatch())
        assert len(self.dispatches()) == 1

    def test_a_lost_reply_makes_it_send_no_second_request(self) -> None:
        self._needs("dispatches", "lose_reply")
        provider = self._provider()
        with self.lose_reply():
            outcome = run(lambda: provider.execute(self._dispatch()))
        assert outcome.raised is not None or isinstance(outcome.value, Unknown), "a lost reply is Unknown, or an exception"
        assert len(self.dispatches()) == 1, "it, or the library below it, makes retries of its own: switch them off"
        assert self.effects() == 1

    def test_other_actions_are_other_effects(self) -> None:
        provider = self._provider()
        for number in (1, 2, 3):
            provider.execute(self._dispatch(number, key=f"order-{number}"))
        assert self.effects() == 3

    def test_the_same_attempt_is_the_same_request(self) -> None:
        self._needs_caps(self._provider().caps.redispatch, "window for sending again")
        dispatch = self._dispatch()
        for epoch in (1, 2, 3):
            reply = self._provider().execute(replace(dispatch, epoch=epoch))
            assert isinstance(reply, (Succeeded, Unknown)), f"sent again inside the window, it gave {reply}"
        assert self.effects() == 1
        if "dispatches" not in self.lacks:
            self._needs("dispatches")
            sent = list(self.dispatches())
            assert all(one == sent[0] for one in sent), "the same attempt is byte for byte the same request"

    def test_it_works_through_a_ledger(self) -> None:
        ledger = self._ledger()
        first = self._run(ledger, self._provider(), recover="block")
        assert first.raised is None, first
        assert self.same_result(first.value, self._run(ledger).value)
        assert ledger.get(_NAMESPACE, "order").provider_identity == self._provider().identity()
        self._is_settled(ledger)

    def test_the_async_twin_does_the_same(self) -> None:
        import asyncio

        ledger, arguments = self._ledger(), self.make_arguments(1)
        provider: Any = self.make_provider()

        async def act() -> object:
            try:
                return await ledger.arun(_NAMESPACE, "order", provider, arguments, operation=self.operation)
            finally:
                if hasattr(provider, "aclose"):  # what belongs to this event loop
                    await provider.aclose()

        assert self.same_result(asyncio.run(act()), self._run(ledger).value)
        self._is_settled(ledger)

    # --- asked afterwards ----------------------------------------------------------------------------------------------------

    def test_a_receipt_is_this_dispatchs_own(self) -> None:
        provider, dispatch = self._provider(), self._dispatch()
        self._needs_caps(provider.caps.lookup != "none", "lookup")
        reply = provider.execute(dispatch)
        assert isinstance(reply, Succeeded)
        self.catch_up()
        answer = self._provider().reconcile(dispatch)
        assert isinstance(answer, Found), f"what has happened is found, and this gave {answer}"
        assert answer.provider_key == dispatch.provider_key
        assert self.same_result(reply.result, answer.result)
        default_codecs.encode((answer.result, answer.receipt))
        for name, value in answer.arguments.items():
            assert name in dispatch.arguments, f"its receipt states {name!r}, which is no argument"
            asked = dispatch.arguments[name]
            assert default_codecs.fingerprint((value,), {}) == default_codecs.fingerprint((asked,), {}), f"{name!r} differs"
        other = provider.reconcile(self._dispatch(key="another"))
        assert not isinstance(other, Found) or other.provider_key != provider_key(_NAMESPACE, "another", 1)
        assert self.effects() == 1

    def test_a_receipt_for_other_arguments_is_an_anomaly(self) -> None:
        caps = self._provider().caps
        self._needs_caps(caps.lookup != "none", "lookup")
        self._needs("receipt_arguments")
        self._provider().execute(self._dispatch(1))
        self.catch_up()
        ledger = self._ledger()
        lost = Wrapped(Mute(self._provider()))  # the ledger holds it for sent, and it was not
        self._run(ledger, lost, number=2, recover="block")
        intent = ledger.reconcile(_NAMESPACE, "order", Wrapped(self._provider()))
        assert intent.state == "UNKNOWN", f"a receipt for other arguments settled the intent: {intent}"
        assert self.effects() == 1

    def test_asking_never_acts(self) -> None:
        caps = self._provider().caps
        self._needs_caps(caps.lookup != "none", "lookup")
        dispatch = self._dispatch()
        for _ in range(3):
            answer = self._provider().reconcile(dispatch)
            assert isinstance(answer, _ANSWERS)
            assert not isinstance(answer, Found), "what never happened is not found"
            assert self.effects() == 0
        if isinstance(self._provider().reconcile(dispatch), NotExecuted):
            reply = self._provider().execute(dispatch)
            assert self.effects() == 0, f"it certified that this had not happened and never would, and then: {reply}"

    def test_not_found_changes_nothing(self) -> None:
        ledger = self._ledger()
        lost = Wrapped(self._provider(), after=_raise)
        assert self._run(ledger, lost, recover="block").name == "UnknownOutcome"
        for said in (NotFound(), Unavailable("it is away"), StillRunning(), OSError("no way there"), "no answer", None):
            mute = Wrapped(self._provider(), answers=NotFound() if said is None else said)
            intent = ledger.reconcile(_NAMESPACE, "order", mute)
            assert (intent.state, intent.attempt) == ("UNKNOWN", 1)
            assert mute.dispatches == []
        assert self.effects() == 1
        self._again(ledger)

    # --- tombstones ----------------------------------------------------------------------------------------------------------

    def test_a_tombstone_refuses_what_comes_late(self) -> None:
        self._needs_caps(self._provider().caps.tombstone, "tombstones")
        dispatch = self._dispatch()
        for _ in range(2):
            answer = self._provider().tombstone(dispatch)
            assert isinstance(answer, NotExecuted)
            assert answer.kind == "tombstoned"
            assert answer.certificate
        late = run(lambda: self._provider().execute(dispatch))
        assert not isinstance(late.value, Succeeded), late
        assert self.effects() == 0
        assert not isinstance(self._provider().reconcile(dispatch), Found)
        fresh = replace(dispatch, attempt=2, provider_key=provider_key(_NAMESPACE, "order", 2))
        assert isinstance(self._provider().execute(fresh), Succeeded), "another attempt has another key"
        assert self.effects() == 1

    def test_a_tombstone_takes_nothing_back(self) -> None:
        self._needs_caps(self._provider().caps.tombstone, "tombstones")
        dispatch = self._dispatch()
        self._provider().execute(dispatch)
        answer = self._provider().tombstone(dispatch)
        assert isinstance(answer, Found), f"what has happened is found, and this gave {answer}"
        assert answer.provider_key == dispatch.provider_key
        assert self.effects() == 1

    def test_a_tombstone_beside_a_request_in_flight(self) -> None:
        self._needs_caps(self._provider().caps.tombstone, "tombstones")
        self._needs("hold")
        dispatch = self._dispatch()
        with self.hold() as held:
            thread = threading.Thread(target=partial(run, lambda: self._provider().execute(dispatch)), daemon=True)
            thread.start()
            assert held.arrived() is not False, "the request never arrived"
            answer = self._provider().tombstone(dispatch)
            held.release()
            thread.join()
        assert isinstance(answer, (StillRunning, Unavailable, NotExecuted))
        assert self.effects() <= (not isinstance(answer, NotExecuted))

    # --- replies that do not arrive, or lie ----------------------------------------------------------------------------------

    def test_a_lost_reply_is_not_repeated(self) -> None:
        ledger = self._ledger()
        lost = self._run(ledger, Wrapped(self._provider(), after=_raise), recover="block")
        assert lost.name == "UnknownOutcome"
        assert self.effects() == 1
        self._again(ledger)

    def test_a_reply_that_is_really_lost_is_not_repeated(self) -> None:
        self._needs("lose_reply")
        ledger = self._ledger()
        with self.lose_reply():
            lost = self._run(ledger, recover="block")
        assert lost.name == "UnknownOutcome", f"it happened, and its reply was lost: that is unknown, not {lost}"
        assert self.effects() == 1
        self._again(ledger)

    def test_a_servers_error_after_the_commit_is_no_failure(self) -> None:
        self._needs("fail_after_commit")
        ledger = self._ledger()
        with self.fail_after_commit():
            lost = self._run(ledger, recover="block")
        assert lost.name in ("", "UnknownOutcome"), f"it happened, and a server's error proves nothing: {lost}"
        assert self.effects() == 1
        self._again(ledger)

    def test_while_it_is_slow_nobody_else_acts(self) -> None:
        self._needs("hold")
        ledger = self._ledger()
        outcomes: list[Outcome] = []
        with self.hold() as held:
            thread = threading.Thread(target=lambda: outcomes.append(self._run(ledger)), daemon=True)
            thread.start()
            assert held.arrived() is not False, "the request never arrived"
            second = Wrapped(self._provider())
            assert self._run(ledger, second).name == "InFlight"
            assert second.dispatches == []
            held.release()
            thread.join()
        assert outcomes[0].raised is None, outcomes
        assert self.effects() == 1
        self._is_settled(ledger)

    def test_what_is_absent_may_appear_later(self) -> None:
        self._needs("delay")
        ledger = self._ledger()
        with self.delay() as held:
            self._run(ledger, recover="block")
            assert self.effects() == 0
            asked = ledger.reconcile(_NAMESPACE, "order", Wrapped(self._provider()))
            assert asked.state in ("UNKNOWN", "FAILED"), asked
            held.release()
        assert self.effects() <= 1
        if asked.state == "FAILED":
            assert self.effects() == 0, f"it was certified not to happen, and happened: {asked}"
            assert self._run(ledger).name == "IntentFailed"
            return
        self._again(ledger)

    def test_a_request_that_is_delivered_twice(self) -> None:
        caps = self._provider().caps
        self._needs_caps(caps.redispatch or caps.tombstone or caps.atomic, "knowledge of keys")
        self._needs("duplicate")
        ledger = self._ledger()
        with self.duplicate():
            outcome = self._run(ledger, recover="block")
        assert outcome.name in ("", "UnknownOutcome")
        assert self.effects() == 1
        self._again(ledger)

    def test_what_was_not_sent_has_no_effect(self) -> None:
        self._needs("unreachable")
        with self.unreachable():
            provider = self._provider()
            outcome = run(lambda: provider.execute(self._dispatch()))
        assert not isinstance(outcome.value, Succeeded)
        assert outcome.raised is not None or isinstance(outcome.value, _REPLIES)
        assert self.effects() == 0

    # --- workers that wake up ------------------------------------------------------------------------------------------------

    def test_a_late_worker_finds_its_intent_taken_over(self) -> None:
        self._late_worker(self._ledger(), "intent.claimed")

    def test_a_late_reply_finds_its_intent_taken_over(self) -> None:
        self._late_worker(self._ledger(), "intent.replied")

    def _late_worker(self, ledger: Ledger, point: str) -> None:
        """Stop a worker, let another one take its intent over and settle it as it can, and wake the first."""
        with paused_at(point, lambda: _value(self._run(ledger, recover="block"))) as wake:
            adopted(ledger)
            self.catch_up()
            before = self.effects()
            asked = ledger.reconcile(_NAMESPACE, "order", Wrapped(self._provider()))
            assert asked.state in ("UNKNOWN", "FAILED", "SUCCEEDED")
            assert self.effects() == before
            late = wake()
        assert self.effects() <= 1
        if asked.state == "FAILED":
            assert self.effects() == 0, f"it was certified not to happen, and happened: {asked}, {late}"
        if late.raised is None:
            assert ledger.get(_NAMESPACE, "order").state == "SUCCEEDED"
        assert [event.kind for event in ledger.anomalies()] == []
        self._is_settled(ledger)

    # --- processes that die --------------------------------------------------------------------------------------------------

    def _crashes(self, point: str, effects: int, wrap: Callable[[Provider], Any] | None = None) -> Ledger:
        self._needs("processes")
        if not hasattr(os, "fork"):
            raise unittest.SkipTest("this system has no fork")
        ledger = self._ledger()
        make = wrap or Wrapped
        assert died(lambda: self._run(ledger, make(self._provider()), recover="block"), point), f"it never came to {point}"
        assert self.effects() == effects
        return ledger

    def test_a_death_before_it_is_recorded(self) -> None:
        ledger = self._crashes("intent.before_claim", 0)
        assert self._run(ledger).raised is None
        assert self.effects() == 1
        self._is_settled(ledger)

    def test_a_death_before_it_is_sent(self) -> None:
        self._again(self._crashes("intent.claimed", 0))

    def test_a_death_between_request_and_reply(self) -> None:
        self._again(self._crashes("", 1, lambda inner: Wrapped(inner, after=lambda _: os._exit(42))))

    def test_a_death_after_the_reply(self) -> None:
        self._again(self._crashes("intent.replied", 1))

    def test_a_death_after_a_lost_reply(self) -> None:
        self._again(self._crashes("intent.before_unknown", 1, lambda inner: Wrapped(inner, after=_raise)))

    def test_a_death_after_it_is_settled(self) -> None:
        ledger = self._crashes("intent.settled", 1)
        assert self._run(ledger).raised is None
        self._is_settled(ledger)


_HOOKS = ("dispatches", "bad_arguments", "lose_reply", "fail_after_commit", "hold", "delay", "duplicate", "unreachable")


def _raise(_: object) -> Any:
    raise ConnectionResetError("the reply was lost")


def _value(outcome: Outcome) -> object:
    if outcome.raised is not None:
        raise outcome.raised
    return outcome.value
