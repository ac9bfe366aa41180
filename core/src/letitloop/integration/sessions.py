"""A run that an adapter keeps open: a framework's own loop is driven again, and its finished leaf calls answer from the log.

A session is a run named by the user. Inside a durable function it is a scope of that run, and has no log of its own.
"""

from __future__ import annotations

import atexit
import os
from contextlib import contextmanager
from threading import RLock

from letitloop.codecs import default_codecs
from letitloop.errors import InvalidArgument
from letitloop.runs.journal import Value
from letitloop.runs.opening import Spec, is_name, open_run, prepare
from letitloop.runs.scope import Scope, current, current_scope, restore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Literal

    from typing_extensions import Self

    from letitloop.codecs import Codecs
    from letitloop.runs.run import Run
    from letitloop.store.protocol import Store

__all__ = ["Session", "entered", "reopened", "session_from", "settled"]


def _session() -> None:
    """Stand for the program that a session's run belongs to."""


class Session:
    """What the leaf calls of one framework object are recorded in.

    The log is opened at the first use, held until :meth:`close` or the end of the process, and shared by all sessions of that
    name in the process.

    Args:
        session_id: the user's name for it; the same name after a crash goes on.
        store: a store or a directory; ``LETITLOOP_STORE`` or ``./.letitloop`` by default.
        on_change: what a leaf call with other inputs than the recorded ones does: ``"raise"`` :class:`StepChanged`, ``"rerun"``
            it and what follows in its scope, or ``"reuse"`` the recorded result.
        codecs: how values become bytes; the registered defaults if left out.
        sync: what a recorded call survives: ``"power"`` or ``"process"``.
        kind: which adapter it is of; sessions of one name and two kinds are two.

    Raises:
        InvalidArgument: an option has a value that means nothing.

    Example:
        >>> from letitloop.integration.leaves import leaf
        >>> with Session("example", store="memory:sessions") as session, session.entered("run") as scope:
        ...     leaf(scope, "model", {"prompt": "hello"}, lambda: "hi")
        'hi'
    """

    def __init__(
        self,
        session_id: str,
        *,
        store: Store | str | os.PathLike[str] | None = None,
        on_change: Literal["raise", "rerun", "reuse"] = "raise",
        codecs: Codecs | None = None,
        sync: Literal["power", "process"] = "power",
        kind: str = "session",
    ) -> None:
        if not is_name(session_id):
            raise InvalidArgument(f"session_id={session_id!r}: it is a text with something in it. Nothing was opened.")
        self.id = session_id
        self._place: Scope | None = None
        self._spec = Spec(
            _session,
            goal_id=f"{kind}:{session_id}",
            store=store,
            on_change=on_change,
            on_complete="return",
            on_locked="raise",
            sync=sync,
            codecs=codecs or default_codecs,
            seal_key=None,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def root(self) -> Scope:
        """Return the scope that everything of this session lies in, opening the log if need be.

        Raises:
            LogLocked: another live process works in this session.
            StoreError, LogError: the log cannot be used.
        """
        around = current_scope()
        if around is not None and around.run.active and around.run not in _open.values():
            return self._inside(around.run)
        return self._run().root

    @contextmanager
    def entered(self, name: str) -> Generator[Scope]:
        """Reserve a scope of this session, and make it the current one inside the block.

        Args:
            name: what it is called; the second of a name is another one (``name#2``).
        """
        scope = reopened(self.root().inner(name))
        with entered(scope):
            yield scope

    def close(self) -> None:
        """Let another process have the session; what is recorded stays."""
        with _guard:
            run = _open.pop(self._key(), None)
            if run is not None:
                run.close()

    def _inside(self, run: Run) -> Scope:
        """Return this session's place in a durable function's run: the same for every use in one drive."""
        if self._place is None or self._place.run is not run:
            self._place = run.root.inner(str(self._spec.goal_id))
        return self._place

    def _key(self) -> tuple[str, str]:
        return self._spec.store().location, str(self._spec.goal_id)

    def _run(self) -> Run:
        with _guard:
            key = self._key()
            run = _open.get(key)
            if run is None or not run.active or not run.log.lock.held:
                # not as a part of a run that happens to be current: the session outlives it
                token = current.set(None)
                try:
                    opened = open_run(prepare(self._spec, (), {}))
                finally:
                    restore(current, token)
                assert not isinstance(opened, Value), "a session's run is never finished"
                run = _open[key] = opened
            return run


def session_from(
    session_id: str,
    *,
    kind: str,
    store: Store | str | os.PathLike[str] | None,
    wal_dir: str | os.PathLike[str] | None,
    on_change: Literal["raise", "rerun", "reuse"],
    auto_resume: bool,
) -> Session:
    """Return a session as the options say that adapters take.

    Args:
        session_id: the user's name for it.
        kind: which adapter it is of.
        store: as of :class:`Session`.
        wal_dir: the same as ``store``, by an older name.
        on_change: as of :class:`Session`.
        auto_resume: false: the session is one of a new name, and what is recorded under this one stays as it is.

    Raises:
        InvalidArgument: both ``store`` and ``wal_dir`` are given, or an option has a value that means nothing.

    Example:
        >>> session_from("one", kind="x", store="memory:from", wal_dir=None, on_change="raise", auto_resume=True).id
        'one'
    """
    if store is not None and wal_dir is not None:
        raise InvalidArgument("store=…, wal_dir=…: they mean the same; give one. Nothing was opened.")
    name = session_id if auto_resume else f"{session_id} {os.urandom(4).hex()}"
    return Session(name, store=store if wal_dir is None else wal_dir, on_change=on_change, kind=kind)


def reopened(scope: Scope) -> Scope:
    """Return a scope whose finished calls answer again in this process: a framework may drive the same part a second time."""
    return Scope(scope.run, scope.prefix, nested=True)


def settled(scope: Scope) -> None:
    """Forget what the finished calls of a reopened scope would answer in this process: it is not driven again."""
    live = scope.run._live
    for key in [key for key in list(live) if key.startswith(scope.prefix)]:
        live.pop(key, None)


@contextmanager
def entered(scope: Scope) -> Generator[None]:
    """Make a scope the current one inside the block, for ``step`` and effects in the framework's own callbacks."""
    token = current.set(scope)
    try:
        yield
    finally:
        restore(current, token)


_guard = RLock()
_open: dict[tuple[str, str], Run] = {}


@atexit.register
def _close_all() -> None:
    with _guard:
        while _open:
            _open.popitem()[1].close()
