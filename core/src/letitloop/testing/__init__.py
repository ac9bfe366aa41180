"""The public test kit: what letitloop's own promises are checked with, for programs and adapters built on it.

* :class:`SimFs`: a file system in memory that yields every disk content a power cut may leave.
* :class:`FaultFs`: a file system that fails on request.
* :func:`kill_sweep`: SIGKILL a program at each event, run it again, compare; :func:`kill_sweeps`: several programs.
  :class:`CallLog` counts what a program really did.
* :func:`assert_replayable`: drive a function against its own log, with no live call, and name the first call that differs.
* :func:`plain`: steps call their functions directly, for unit tests of code that uses steps.
* :class:`StoreContract`: the suite that every store must pass; :class:`ProviderContract`: that of every provider of effects, with
  :class:`Held` for its hooks; :class:`IntentStoreContract`: that of every place where intents are stored.
* ``failpoints``: end or spoil a process at a named point (``LETITLOOP_FAILPOINT=name:action@n``).

Never loaded by ``import letitloop``.
"""

from __future__ import annotations

from letitloop import failpoints
from letitloop.testing.evidence import CallLog
from letitloop.testing.faults import Fault, FaultFs
from letitloop.testing.intent_store_contract import IntentStoreContract
from letitloop.testing.plain import plain
from letitloop.testing.provider_contract import Held, ProviderContract
from letitloop.testing.replay import assert_replayable
from letitloop.testing.simfs import CrashState, SimFs
from letitloop.testing.store_contract import StoreContract
from letitloop.testing.sweep import SweepFailure, SweepReport, kill_sweep, kill_sweeps

__all__ = [
    "CallLog",
    "CrashState",
    "Fault",
    "FaultFs",
    "Held",
    "IntentStoreContract",
    "ProviderContract",
    "SimFs",
    "StoreContract",
    "SweepFailure",
    "SweepReport",
    "assert_replayable",
    "failpoints",
    "kill_sweep",
    "kill_sweeps",
    "plain",
]
