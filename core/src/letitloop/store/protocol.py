"""What a store is: where logs live, and where its ledger is found.

Nothing above this room knows that there are files: a log is found by a room and a name. ``Store`` exists for type checkers alone:
a store is whatever has these methods, and ``import letitloop`` does not pay for ``typing``.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from letitloop.wal.log import Log
    from letitloop.wal.recovery import View

    class Store(Protocol):
        """Where logs live, each under a room (``"runs"``, ``"threads"``) and a name.

        A name consists of ASCII letters, digits, ``.``, ``_`` and ``-``, does not start with a dot, and has at most 200
        characters. ``letitloop.testing.StoreContract`` is the suite that every implementation must pass.
        """

        @property
        def location(self) -> str:
            """Where the store is, as a user would name it."""
            ...

        @property
        def ledger(self) -> str:
            """Where the store's ledger of markers and intents is: ``sqlite:PATH`` or ``memory:NAME``."""
            ...

        def open_log(
            self,
            room: str,
            name: str,
            *,
            sync: str = "power",
            seal_key: bytes | None = None,
            wait: bool = False,
            create: bool = True,
            guarded: frozenset[int] = frozenset(),
        ) -> Log:
            """Open a log for writing; arguments and errors are those of :func:`letitloop.wal.recovery.open_log`.

            Raises:
                StoreError: the store cannot be used at all.
                FileNotFoundError: the log is absent and ``create`` is false.
            """
            ...

        def view_log(self, room: str, name: str, *, seal_key: bytes | None = None) -> View:
            """Open a log for reading; nothing is locked or changed.

            Raises:
                FileNotFoundError: there is none of that name.
            """
            ...

        def names(self, room: str) -> list[str]:
            """Return the names of a room's logs, sorted; none if the store does not exist yet."""
            ...

        def holder(self, room: str, name: str) -> int | None:
            """Return the pid of the live process that holds a log, 0 if that is not known, None if nobody does."""
            ...

        def remove(self, room: str, name: str) -> None:
            """Remove a log for good; one that is absent is no error.

            Raises:
                LogLocked: a live process holds it.
            """
            ...
