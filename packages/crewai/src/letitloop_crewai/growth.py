"""States on record as what they have over an earlier one: a state that grows is recorded once, and not once a method.

What differs is found in the bytes, so it does not matter what the state is made of: a field that is as it was, and a list or a text
that only grew, wherever it lies, is a reference to bytes that are on record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

from letitloop.errors import DecodeError
from letitloop_crewai.states import fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Growing", "difference", "patched"]

_BLOCK = 48
"""How many bytes have to be the same for a reference to be worth it."""
_PATIENCE = 1 << 17
"""How much is looked at before all that follows is taken for new: a state that changed everywhere is not worth more time."""
_FOUND = 32
"""How much of that a part costs that was found."""
_WHOLE, _OVER = "whole", "over"


class Growing:
    """The states that the methods of one kickoff leave.

    On record a state is ``["whole", name, bytes]`` or ``["over", name, base, pieces, fingerprint]``, where the base is the name of
    an earlier one. That is always one which the same process recorded in the same scope: whatever is taken back later, for a change
    of the program, is everything from some record on, and so never a base alone.

    Args:
        look: returns all that are on record in this scope; called when a base is none that was met so far.
    """

    def __init__(self, look: Callable[[], list[Any]]) -> None:
        self._forms: dict[str, list[Any]] = {}
        self._look = look
        self._base: tuple[str, bytes] | None = None
        self._held: tuple[str, bytes] | None = None

    def form(self, state: Any) -> Any:
        """Return what is recorded of a state; of one that is not in bytes, itself."""
        if not isinstance(state, bytes):
            return state
        name = uuid4().hex[:16]
        pieces = None if self._base is None else difference(self._base[1], state)
        if self._base is None or pieces is None:
            return [_WHOLE, name, state]
        return [_OVER, name, self._base[0], pieces, fingerprint(state)]

    def keep(self, form: Any, state: Any) -> None:
        """Note that a state is on record; the next ones may refer to it."""
        if isinstance(form, list):
            self._forms[form[1]] = form
            self._base = self._held = form[1], state

    def whole(self, form: Any) -> Any:
        """Return the state that is recorded in a form.

        Raises:
            DecodeError: the state that it refers to is not on record, or is another one.
        """
        if not isinstance(form, list):  # not in bytes
            return form
        self._forms[form[1]] = form
        ahead: list[list[Any]] = []
        state: bytes | None = None
        while state is None:
            if self._held is not None and self._held[0] == form[1]:
                state = self._held[1]
            elif form[0] == _WHOLE:
                state = form[2]
            else:
                ahead.append(form)
                form = self._form_of(form[2])
        for one in reversed(ahead):
            state = patched(state, one[3])
            if fingerprint(state) != one[4]:
                raise DecodeError("the state of a flow refers to one that is not the one on record")
        if ahead:
            form = ahead[0]
        self._held = form[1], state
        return state

    def _form_of(self, name: str) -> list[Any]:
        if name not in self._forms:
            for form in self._look():
                if isinstance(form, list):
                    self._forms.setdefault(form[1], form)
        try:
            return self._forms[name]
        except KeyError:
            raise DecodeError("the state of a flow refers to one that is not on record") from None


# --- bytes over other bytes --------------------------------------------------------------------------------------------------


def difference(old: bytes, new: bytes) -> list[Any] | None:
    """Return what bytes are made of: ``[at, length]`` for a part of the old ones, and bytes; None if that is no shorter.

    >>> old = bytes(range(200))
    >>> difference(old, b"new" + old + b"more")
    [b'new', [0, 200], b'more']
    """
    start = _alike(old, 0, new, 0)
    end = _alike_before(old[start:], new[start:])
    pieces: list[Any] = [[0, start]] if start else []
    pieces += _found(old, start, len(old) - end, new, start, len(new) - end)
    if end:
        pieces.append([len(old) - end, end])
    size = sum(len(one) if isinstance(one, bytes) else 12 for one in pieces)
    return pieces if size < len(new) * 3 // 4 and patched(old, pieces) == new else None


def patched(old: bytes, pieces: list[Any]) -> bytes:
    """Return the bytes that :func:`difference` took apart."""
    return b"".join(one if isinstance(one, bytes) else old[one[0] : one[0] + one[1]] for one in pieces)


def _found(old: bytes, first: int, last: int, new: bytes, at: int, upto: int) -> list[Any]:
    """Return what a part of the new bytes is made of, by the old ones' blocks in it."""
    blocks: dict[bytes, int] = {}
    for place in range(first, last - _BLOCK + 1, _BLOCK):
        blocks.setdefault(old[place : place + _BLOCK], place)
    pieces: list[Any] = []
    fresh, patience = at, _PATIENCE
    while blocks and at + _BLOCK <= upto and patience > 0:
        place = blocks.get(new[at : at + _BLOCK], -1)
        if place < 0:
            patience -= 1
            at += 1
            continue
        back = _alike_before(old[max(0, place - _BLOCK) : place], new[max(fresh, at - _BLOCK) : at])
        if fresh < at - back:
            pieces.append(new[fresh : at - back])
        length = min(_BLOCK + _alike(old, place + _BLOCK, new, at + _BLOCK), upto - at)
        pieces.append([place - back, back + length])
        at = fresh = at + length
        patience -= _FOUND
    if fresh < upto:
        pieces.append(new[fresh:upto])
    return pieces


def _alike(one: bytes, at: int, other: bytes, beside: int) -> int:
    """Return how many bytes are the same in both from these places on."""
    most = min(len(one) - at, len(other) - beside)
    return _longest(most, lambda done, upto: one[at + done : at + upto] == other[beside + done : beside + upto])


def _alike_before(one: bytes, other: bytes) -> int:
    """Return how many bytes are the same at the ends of both."""
    here, there = len(one), len(other)
    return _longest(min(here, there), lambda done, upto: one[here - upto : here - done] == other[there - upto : there - done])


def _longest(most: int, same: Callable[[int, int], bool]) -> int:
    """Return how many bytes are the same, by ever longer parts and then ever shorter ones: they are not compared in Python."""
    done, step = 0, _BLOCK
    while done < most:
        size = min(step, most - done)
        if same(done, done + size):
            done, step = done + size, step * 2
        elif size == 1:
            break
        else:
            most, step = done + size - 1, size // 2
    return done
