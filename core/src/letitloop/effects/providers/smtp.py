"""One mail to one recipient through an SMTP server, driven phase by phase.

A server takes charge of a message when it has read the final ``CRLF.CRLF``, and not before: whatever ends the conversation earlier,
the message was not accepted, which is certain. From the first byte of that final dot on, only the server's reply tells: 2xx that it
was accepted, 4xx or 5xx that it was not, and without a reply nobody knows. SMTP has no way to ask afterwards, and no server refuses
a message because it has seen its Message-ID.
"""

from __future__ import annotations

import re
import smtplib
import socket
import ssl
from collections.abc import Mapping
from contextlib import closing
from datetime import datetime, timezone
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, getaddresses
from typing import cast

from letitloop.effects.provider import Caps, NotExecuted, Succeeded, Unavailable, Unknown
from letitloop.errors import InvalidArgument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Literal

    from letitloop.effects.provider import Dispatch, Reply

__all__ = ["SmtpProvider"]

_PORTS = {"starttls": 587, "tls": 465, "none": 25}
_FIELD = re.compile(r"[!-9;-~]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\x85\u2028\u2029]")
_OWN = ("from", "sender", "to", "cc", "bcc", "subject", "date", "message-id", "received", "return-path", "mime-version")
_OWN_FAMILIES = ("content-", "resent-")
_QUEUED = re.compile(r"queued as[ :]+([^\s;,)]+)", re.IGNORECASE)
_FAREWELL = 5.0  # seconds to wait for the answer to QUIT, which changes nothing
_POLICY = SMTP.clone(cte_type="7bit")


class SmtpProvider:
    """Sends mails, one recipient an action.

    Arguments of an action: ``to``, one address; ``subject``; ``text`` or ``html`` or both; and ``headers``, a mapping of further
    header fields. The result is ``{"message_id": …, "reply": …, "queue_id": …}``: the server's last line, and the id in it under
    which it has queued the mail, None where it names none.

    A reply that is lost after the final dot leaves the outcome unknown, for good: only a person can find out. A connection is
    opened for each mail and closed after it, so that several threads may use the provider at once.

    Args:
        host: the server's name.
        port: its port; by default 587 for ``"starttls"``, 465 for ``"tls"``, 25 for ``"none"``.
        sender: who sends: ``ada@example.org``, or ``Ada <ada@example.org>``. The bare address is the envelope's sender too.
        security: ``"starttls"`` (refuses to go on without), ``"tls"`` from the first byte, or ``"none"``.
        username: whom to log in as; None for no login.
        password: its password, or a function that returns it.
        timeout: how long to wait for the server at each step, in seconds.
        context: the TLS settings; by default certificates are verified against the system's authorities.
        local_hostname: what to introduce this machine as; by default its fully qualified name.
        name: what the provider is called in the ledger.

    Raises:
        InvalidArgument: the sender is no address, or a password would travel in the clear.

    Example:
        >>> mail = SmtpProvider("smtp.example.org", sender="Shop <shop@example.org>", username="shop", password="secret")
        >>> mail.identity()
        'smtp/1 smtp.example.org:587 from=shop@example.org'
        >>> mail.validate("mail", {"to": "ada@example.org, bob@example.org", "subject": "Hi", "text": "…"})
        Traceback (most recent call last):
        letitloop.errors.InvalidArgument: to is 'ada@example.org, bob@example.org'; it has to be one address...
    """

    caps = Caps()

    def __init__(
        self,
        host: str,
        port: int | None = None,
        *,
        sender: str,
        security: Literal["starttls", "tls", "none"] = "starttls",
        username: str | None = None,
        password: str | Callable[[], str] | None = None,
        timeout: float = 30.0,
        context: ssl.SSLContext | None = None,
        local_hostname: str | None = None,
        name: str = "smtp",
    ) -> None:
        if security not in _PORTS:
            raise InvalidArgument(f"security={security!r}: it is 'starttls', 'tls' or 'none'. Nothing was done.")
        if (username is None) != (password is None):
            raise InvalidArgument("username and password belong together: give both or none. Nothing was done.")
        if username is not None and security == "none":
            raise InvalidArgument(
                "security='none' would send the password in the clear. Nothing was done. Use 'starttls' or 'tls'."
            )
        if timeout <= 0:
            raise InvalidArgument(f"timeout={timeout!r}: it has to be more than 0 seconds. Nothing was done.")
        self.name = name
        self._host = host
        self._port = _PORTS[security] if port is None else port
        self._sender = sender
        self._envelope = _address(sender, "sender")
        self._security = security
        self._username = username
        self._password = password
        self._timeout = timeout
        self._context = context
        self._local_hostname = local_hostname

    def __repr__(self) -> str:
        return f"SmtpProvider({self._host!r}, {self._port}, sender={self._sender!r})"

    def identity(self) -> str:
        """Return the server and the sender of the envelope."""
        return f"smtp/1 {self._host}:{self._port} from={self._envelope}"

    def validate(self, operation: str, arguments: Mapping[str, Any]) -> None:
        """Check that the mail can be built, and goes to one address.

        Raises:
            InvalidArgument: the action cannot be carried out as described; nothing was recorded or sent.
        """
        unknown = sorted(arguments.keys() - {"to", "subject", "text", "html", "headers", "operation"})
        if unknown:
            raise InvalidArgument(f"a mail has to, subject, text, html and headers; {unknown} mean nothing here. Nothing was done.")
        self._message(arguments, "check", 0.0)

    def execute(self, dispatch: Dispatch) -> Reply:
        """Send the mail."""
        message, data = self._message(dispatch.arguments, dispatch.provider_key, dispatch.first_dispatched_at)
        to = _address(dispatch.arguments["to"], "to")
        with closing(_Conversation(self._local_hostname, self._timeout)) as talk:
            try:
                self._greet(talk)
                talk.offer(self._envelope, to, data)
            except smtplib.SMTPResponseException as exc:
                return _refused(talk.phase, exc.smtp_code, exc.smtp_error)
            except Exception as exc:
                what = f"{type(exc).__name__}: {exc}"
                return NotExecuted(
                    "not_sent", f"the conversation ended at {talk.phase}, before the final dot ({what})", {"phase": talk.phase}
                )
            try:
                code, line = talk.finish()
            except Exception as exc:
                return Unknown(f"the connection was lost after the final dot, before a reply ({type(exc).__name__}: {exc})")
            if 400 <= code <= 599:
                return _refused("the message", code, line)
            if not 200 <= code <= 299:
                return Unknown(f"the reply to the message is none of SMTP's: {code} {_text(line)}")
        reply = f"{code} {_text(line)}"
        queued = _QUEUED.search(reply)
        receipt = {"message_id": message["Message-ID"], "reply": reply, "queue_id": queued[1] if queued else None}
        return Succeeded(receipt, receipt)

    def reconcile(self, dispatch: Dispatch) -> Unavailable:
        """SMTP knows no way to ask."""
        return Unavailable("SMTP has no way to ask what became of a message")

    def tombstone(self, dispatch: Dispatch) -> Unavailable:
        """SMTP knows no way to refuse a message in advance."""
        return Unavailable("SMTP has no way to refuse a message in advance")

    def _greet(self, talk: _Conversation) -> None:
        context = self._context or ssl.create_default_context()
        talk.connect(self._host, self._port, context if self._security == "tls" else None)
        talk.hello()
        if self._security == "starttls":
            talk.start_tls(self._host, context)
        if self._username is not None:
            password = self._password() if callable(self._password) else self._password
            talk.login(self._username, password or "")

    def _message(self, arguments: Mapping[str, Any], key: str, at: float) -> tuple[EmailMessage, bytes]:
        """Build the mail, the same to the byte for the same dispatch."""
        text, html = arguments.get("text"), arguments.get("html")
        bodies = [body for body in (text, html) if body is not None]
        if not bodies or not all(isinstance(body, str) for body in bodies):
            raise InvalidArgument("a mail needs a text or a html, both of them str. Nothing was done.")
        message = EmailMessage(policy=_POLICY)
        try:
            message["From"] = self._sender
            message["To"] = _address(arguments.get("to"), "to", whole=True)
            message["Subject"] = _line(arguments.get("subject"), "subject")
            message["Date"] = format_datetime(datetime.fromtimestamp(at, timezone.utc))
            message["Message-ID"] = f"<{key.lower()}@{self._envelope.rpartition('@')[2]}>"
            for field, value in _fields(arguments.get("headers")):
                message[field] = value
            message.set_content(bodies[0], subtype="plain" if text is not None else "html")
            if text is not None and html is not None:
                message.add_alternative(html, subtype="html")
                message.set_boundary(f"=_lil_{key}")
            return message, _on_the_wire(message.as_bytes())
        except (ValueError, LookupError, TypeError) as exc:
            if isinstance(exc, InvalidArgument):
                raise
            raise InvalidArgument(f"the mail cannot be built: {exc}. Nothing was done.") from exc


class _Conversation:
    """One connection; ``phase`` says how far it came."""

    def __init__(self, local_hostname: str | None, timeout: float) -> None:
        self.phase = "connecting"
        self._timeout = timeout
        self._smtp = smtplib.SMTP(local_hostname=local_hostname, timeout=timeout)
        self._polite = False

    def close(self) -> None:
        """Close the connection; the server may miss a farewell, but not be told one in the middle of a message."""
        try:
            if self._polite and self._smtp.sock is not None:
                self._smtp.sock.settimeout(min(self._timeout, _FAREWELL))
                self._smtp.docmd("QUIT")
        except Exception:  # noqa: S110  # what was agreed before stands
            pass
        finally:
            self._smtp.close()

    def connect(self, host: str, port: int, context: ssl.SSLContext | None) -> None:
        sock = socket.create_connection((host, port), self._timeout)
        self._smtp.sock = sock
        if context is not None:
            self._smtp.sock = context.wrap_socket(sock, server_hostname=host)
        self._expect("the greeting", (220,), self._smtp.getreply())
        self._polite = True

    def hello(self) -> None:
        self.phase = "EHLO"
        self._smtp.ehlo_or_helo_if_needed()

    def start_tls(self, host: str, context: ssl.SSLContext) -> None:
        self.phase = "STARTTLS"
        if not self._smtp.has_extn("starttls"):
            raise smtplib.SMTPNotSupportedError("the server offers no STARTTLS")
        self._expect("STARTTLS", (220,), self._smtp.docmd("STARTTLS"))
        smtp = self._smtp
        assert smtp.sock is not None, "it has answered"
        self._polite = False
        smtp.sock = context.wrap_socket(smtp.sock, server_hostname=host)
        # what came unencrypted, and may be an attacker's, is forgotten: buffered bytes, and who the server said it is
        smtp.file = None
        smtp.helo_resp = smtp.ehlo_resp = None
        self._polite = True
        self.hello()

    def login(self, username: str, password: str) -> None:
        self.phase = "AUTH"
        self._smtp.login(username, password)

    def offer(self, sender: str, to: str, data: bytes) -> None:
        """Go as far as can be gone without handing the message over."""
        smtp = self._smtp
        options = [f"size={len(data)}"] if smtp.has_extn("size") else []
        self.phase = "MAIL"
        self._expect("MAIL", (250,), smtp.mail(sender, options))
        self.phase = "RCPT"
        self._expect("RCPT", (250, 251), smtp.rcpt(to))
        self.phase = "DATA"
        self._expect("DATA", (354,), smtp.docmd("DATA"))
        self.phase = "the body"
        self._polite = False
        smtp.send(data)

    def finish(self) -> tuple[int, bytes]:
        """Hand the message over, and return what the server says."""
        self.phase = "the final dot"
        self._smtp.send(b".\r\n")
        reply = self._smtp.getreply()
        self._polite = True
        return reply

    def _expect(self, phase: str, wanted: tuple[int, ...], reply: tuple[int, bytes]) -> None:
        self.phase = phase
        if reply[0] not in wanted:
            raise smtplib.SMTPResponseException(*reply)


# --- what the server said ----------------------------------------------------------------------------------------------------


def _text(line: bytes | str) -> str:
    text = line.decode("utf-8", "replace") if isinstance(line, bytes) else line
    return " / ".join(text.splitlines())[:500]


def _refused(phase: str, code: int, line: bytes | str) -> NotExecuted:
    detail = {"phase": phase, "code": code, "reply": _text(line)}
    return NotExecuted("rejected", f"the server refused {phase} with {code} {_text(line)}", detail)


# --- the mail ----------------------------------------------------------------------------------------------------------------


def _line(value: object, what: str) -> str:
    """Return a text that fits into one header field and cannot begin another."""
    if not isinstance(value, str) or _CONTROL.search(value):
        raise InvalidArgument(f"{what} is {value!r}; it has to be a text in one line. Nothing was done.")
    return value


def _address(value: object, what: str, *, whole: bool = False) -> str:
    """Return the one address in a text, bare or with its name."""
    text = _line(value, what)
    found = getaddresses([text])
    bare = found[0][1] if len(found) == 1 else ""
    local, _, domain = bare.rpartition("@")
    if not local or not domain or not bare.isascii() or re.search(r"[\s<>,;:]", bare):
        raise InvalidArgument(
            f"{what} is {text!r}; it has to be one address, in ASCII. Nothing was done. For several recipients make an action "
            "of each: a server may accept a mail for some of them only."
        )
    return text if whole else bare


def _fields(headers: object) -> list[tuple[str, str]]:
    """Return further header fields, none of which stands for one of the mail's own."""
    if headers is None:
        return []
    if not isinstance(headers, Mapping):
        raise InvalidArgument(f"headers is {type(headers).__name__}; it has to be a mapping of names to texts. Nothing was done.")
    fields: list[tuple[str, str]] = []
    for field, value in cast("Mapping[object, object]", headers).items():
        lower = field.lower() if isinstance(field, str) else ""
        if not isinstance(field, str) or not _FIELD.fullmatch(lower) or lower in _OWN or lower.startswith(_OWN_FAMILIES):
            raise InvalidArgument(f"headers may not hold {field!r}: it is no name, or one of the mail's own. Nothing was done.")
        fields.append((field, _line(value, f"the header {field}")))
    return fields


def _on_the_wire(message: bytes) -> bytes:
    """Return the bytes between DATA and the final dot: lines that end in CRLF, a dot at the start of one doubled."""
    lines = re.sub(rb"\r\n|\r|\n", b"\r\n", message)
    lines = re.sub(rb"(?m)^\.", b"..", lines)
    return lines if lines.endswith(b"\r\n") else lines + b"\r\n"
