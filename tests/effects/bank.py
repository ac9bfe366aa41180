"""A provider with a record of its own: files that every process sees, whoever dies."""

from __future__ import annotations

import json
import os

from letitloop import failpoints
from letitloop.effects.provider import Caps, Found, NotExecuted, NotFound, Succeeded, Window

KINDS = ("receipt", "opaque", "tombstone", "window")
_CAPS = {
    "receipt": Caps(lookup="strong"),
    "opaque": Caps(),
    "tombstone": Caps(lookup="strong", tombstone=True),
    "window": Caps(redispatch=Window(3600.0), lookup="strong"),
}


def hit(name):
    if failpoints.active:
        failpoints.hit(name)


class Bank:
    """Moves money: one line in ``done`` for each time it really moved.

    ``receipt`` and ``opaque`` act on every request they get, with or without being asked afterwards; ``tombstone`` and ``window``
    act once for a key. Faults apply to the very first request:

    * ``lost``: it acts, and its reply never arrives;
    * ``slow``: it passes the failpoint ``bank.slow`` before it acts;
    * ``duplicate``: the network delivers the request twice, where the bank knows the key;
    * ``late``: the request stays under way, until somebody calls :meth:`arrive`.
    """

    name = "bank"

    def __init__(self, root, kind="receipt", fault=""):
        self.root = root
        self.kind = kind
        self.fault = fault
        self.caps = _CAPS[kind]
        os.makedirs(os.path.join(root, "keys"), exist_ok=True)

    # --- as the ledger sees it -----------------------------------------------------------------------------------------------

    def identity(self):
        return "bank/1 account-7"

    def validate(self, operation, arguments):
        pass

    def execute(self, dispatch):
        request = {
            "key": dispatch.provider_key,
            "attempt": dispatch.attempt,
            "epoch": dispatch.epoch,
            "arguments": dict(dispatch.arguments),
        }
        fault = "" if self.requests() else self.fault
        self._append("requests", request)
        hit("bank.posted")
        if fault == "late":
            self._append("under_way", request)
            raise TimeoutError("no answer")
        if fault == "slow":
            hit("bank.slow")
        acted = self._act(request)
        if fault == "duplicate" and self.kind in ("tombstone", "window"):
            self._act(request)
        hit("bank.committed")
        if fault == "lost":
            raise ConnectionResetError("the reply was lost")
        if acted == "dead":
            return NotExecuted("tombstoned", "its key is occupied")
        return Succeeded({"moved": dispatch.arguments.get("amount")}, {"key": dispatch.provider_key})

    def reconcile(self, dispatch):
        hit("bank.asked")
        for request in self.done():
            if request["key"] == dispatch.provider_key:
                return Found({"moved": request["arguments"].get("amount")}, request["key"], request["arguments"])
        if self._occupied(dispatch.provider_key) == "dead":
            return NotExecuted("tombstoned", "its key is occupied")
        return NotFound()

    def tombstone(self, dispatch):
        if self._occupy(dispatch.provider_key, "dead") == "dead":
            return NotExecuted("tombstoned", "its key is occupied")
        answer = self.reconcile(dispatch)
        assert isinstance(answer, Found)
        return answer

    # --- as it is ------------------------------------------------------------------------------------------------------------

    def requests(self):
        """Every request that was sent."""
        return self._lines("requests")

    def done(self):
        """Every time that money really moved."""
        if self.kind in ("tombstone", "window"):
            found = [self._occupied(key) for key in sorted(os.listdir(os.path.join(self.root, "keys")))]
            return [json.loads(one) for one in found if one != "dead"]
        return self._lines("done")

    def arrive(self):
        """Let the requests that are under way arrive."""
        for request in self._lines("under_way"):
            self._act(request)

    def _act(self, request):
        if self.kind in ("tombstone", "window"):
            return self._occupy(request["key"], json.dumps(request))
        self._append("done", request)
        return "done"

    def _occupied(self, key):
        try:
            with open(os.path.join(self.root, "keys", key)) as file:
                return file.read()
        except FileNotFoundError:
            return None

    def _occupy(self, key, what):
        """Put something under a key unless there is something, in one step; return what is there."""
        draft = os.path.join(self.root, f"draft-{os.getpid()}-{os.urandom(4).hex()}")
        with open(draft, "w") as file:
            file.write(what)
        try:
            os.link(draft, os.path.join(self.root, "keys", key))
        except FileExistsError:
            pass
        os.unlink(draft)
        return self._occupied(key)

    def _append(self, name, request):
        handle = os.open(os.path.join(self.root, name), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, json.dumps(request).encode() + b"\n")
        finally:
            os.close(handle)

    def _lines(self, name):
        try:
            with open(os.path.join(self.root, name)) as file:
                return [json.loads(line) for line in file]
        except FileNotFoundError:
            return []


class Till:
    """A provider that counts, and does nothing else: one line in a file for each time."""

    name = "till"
    caps = Caps()

    def __init__(self, path):
        self.path = path

    def identity(self):
        return "till/1"

    def validate(self, operation, arguments):
        pass

    def execute(self, dispatch):
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, f"{dispatch.key}\n".encode())
        finally:
            os.close(handle)
        return Succeeded(dispatch.key)

    @property
    def counted(self):
        with open(self.path) as file:
            return file.read().split()
