"""Values of intents to bytes and back: the codecs, and around them the user's cipher if there is one."""

from __future__ import annotations

from base64 import b64decode, b64encode

from letitloop.errors import CodecError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from letitloop.codecs import Codecs

    class Cipher(Protocol):
        """What encrypts arguments, results, receipts and evidence before they reach the ledger's file."""

        def encrypt(self, data: bytes, /) -> bytes:
            """Return what is stored."""
            ...

        def decrypt(self, data: bytes, /) -> bytes:
            """Return what was encrypted; raise if it cannot be."""
            ...


__all__ = ["Unread", "Vault"]

_MARK = b"letitloop"
_HIDDEN = "cipher:"


class Unread:
    """A value whose class is not known to this program, in an :class:`~letitloop.Intent`: import its module to see it.

    Attributes:
        why: why it cannot be read.
    """

    __slots__ = ("why",)

    def __init__(self, why: str) -> None:
        self.why = why

    def __repr__(self) -> str:
        return f"<unread: {self.why}>"


class Vault:
    """Encodes and encrypts.

    Args:
        codecs: how values become bytes.
        cipher: what encrypts them; None leaves them readable.

    Attributes:
        codecs: the same.
        sealed: whether there is a cipher.
    """

    def __init__(self, codecs: Codecs, cipher: Cipher | None) -> None:
        self.codecs = codecs
        self._cipher = cipher
        self.sealed = cipher is not None

    def encode(self, value: object, *, path: str = "value") -> bytes:
        """Return a value as it is stored.

        Raises:
            UnencodableError: it cannot be recorded.
        """
        data = self.codecs.encode(value, path=path)
        return data if self._cipher is None else self._cipher.encrypt(data)

    def decode(self, data: bytes | None) -> object:
        """Return what was stored; None for nothing.

        Raises:
            DecodeError: its class is not known here, or it was not written by letitloop.
        """
        if data is None:
            return None
        return self.codecs.decode(data if self._cipher is None else self._cipher.decrypt(data))

    def read(self, data: bytes | None) -> object:
        """Return what was stored, for somebody who looks at it; :class:`Unread` where its class is not known here."""
        try:
            return self.decode(data)
        except CodecError as exc:
            return Unread(str(exc))

    def hide(self, text: str) -> str:
        """Return a text as it is stored."""
        return text if self._cipher is None else _HIDDEN + b64encode(self._cipher.encrypt(text.encode())).decode()

    def show(self, text: str) -> str:
        """Return a text that was stored; as it lies there if it cannot be decrypted."""
        if self._cipher is None or not text.startswith(_HIDDEN):
            return text
        return self._cipher.decrypt(b64decode(text[len(_HIDDEN) :])).decode()

    def mark(self) -> str:
        """Return what tells later that a ledger was encrypted with this cipher."""
        assert self._cipher is not None, "only a cipher leaves a mark"
        return b64encode(self._cipher.encrypt(_MARK)).decode()

    def made(self, mark: str) -> bool:
        """Tell whether this cipher left a mark."""
        try:
            return self._cipher is not None and self._cipher.decrypt(b64decode(mark)) == _MARK
        except Exception:
            return False
