"""Mail, phase by phase: certainly not sent before the final dot, the server's word after it, and unknown without one."""

from __future__ import annotations

import email
import socket
import ssl
from contextlib import contextmanager
from email import policy

import pytest
import trustme
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult

from letitloop import InvalidArgument
from letitloop.effects.provider import Caps, NotExecuted, Succeeded, Unavailable, Unknown
from letitloop.effects.providers import SmtpProvider
from letitloop.effects.providers import smtp as module
from tests.effects.providers.interleaving import Crash, dispatch, handles
from tests.effects.providers.mail_server import MailServer

ARGUMENTS = {"to": "Ada <ada@example.org>", "subject": "Ordered", "text": "Thank you.\n"}
ACTION = dispatch(ARGUMENTS, operation="mail")
OWN_FIELDS = ("Bcc", "CC", "to", "From", "Sender", "Message-ID", "Content-Type", "Resent-To")
LARGE = dispatch({**ARGUMENTS, "text": ("x" * 76 + "\n") * 100_000}, operation="mail")


def provider(port, **options):
    settings = {"sender": "Shop <shop@example.org>", "security": "none", "timeout": 20, "local_hostname": "client.test"}
    return SmtpProvider("localhost", port, **{**settings, **options})


def sent(arguments, **options):
    """Return a mail as the server got it."""
    with MailServer() as server:
        assert isinstance(provider(server.port, **options).execute(dispatch(arguments)), Succeeded)
    (message,) = server.accepted
    return message


def parsed(arguments, **options):
    return email.message_from_bytes(sent(arguments, **options).replace(b"\r\n..", b"\r\n."), policy=policy.default)


# --- the plain course --------------------------------------------------------------------------------------------------------


def test_a_mail_is_sent_and_the_server_s_line_is_the_receipt():
    with MailServer() as server:
        reply = provider(server.port).execute(ACTION)
    receipt = {
        "message_id": f"<{ACTION.provider_key}@example.org>",
        "reply": "250 2.0.0 Ok: queued as 4F1A2B",
        "queue_id": "4F1A2B",
    }
    assert reply == Succeeded(receipt, receipt)
    assert [command.lower() for command in server.commands[1:]] == [
        f"mail from:<shop@example.org> size={len(server.accepted[0])}",
        "rcpt to:<ada@example.org>",
        "data",
        "quit",
    ]


def test_a_line_that_names_no_queue_is_a_receipt_too():
    with MailServer("dot", "250 fine") as server:
        assert provider(server.port).execute(ACTION).receipt["queue_id"] is None


def test_the_mail_says_what_was_asked_for():
    mail = parsed(
        {**ARGUMENTS, "subject": "Grüße ✓", "text": "Schöne Grüße\n.\n..\nEnd", "headers": {"X-Order": "42", "Reply-To": "a@b.c"}}
    )
    assert str(mail["From"]) == "Shop <shop@example.org>"
    assert str(mail["To"]) == "Ada <ada@example.org>"
    assert mail["Subject"] == "Grüße ✓"
    assert mail["Message-ID"] == f"<{ACTION.provider_key}@example.org>"
    assert mail["Date"] == "Tue, 14 Nov 2023 22:13:20 +0000"
    assert (mail["X-Order"], mail["Reply-To"]) == ("42", "a@b.c")
    assert mail.get_content().splitlines() == ["Schöne Grüße", ".", "..", "End"]


def test_text_and_html_are_alternatives():
    mail = parsed({**ARGUMENTS, "html": "<p>Thank you</p>"})
    assert mail.get_content_type() == "multipart/alternative"
    assert [part.get_content_type() for part in mail.iter_parts()] == ["text/plain", "text/html"]
    only = parsed({"to": "a@b.c", "subject": "", "html": "<p>x</p>"})
    assert only.get_content_type() == "text/html"


@pytest.mark.parametrize("extra", [{}, {"html": "<p>ä</p>"}, {"headers": {"X-A": "1"}}])
def test_the_same_dispatch_is_the_same_to_the_byte(extra):
    arguments = {**ARGUMENTS, **extra}
    assert sent(arguments) == sent(arguments)


@pytest.mark.parametrize(
    "text", ["", ".", ".\n", "\n.\n", "a\r\n.\r\nb", "a\n.\r\nQUIT", "a\r.\rb", "x" * 5000, "ä" * 5000, "a\n\n\n", "\0"]
)
def test_no_text_ends_the_message_early(text):
    message = sent({**ARGUMENTS, "text": text})
    assert b"\r\n.\r\n" not in message
    assert b"\r" not in message.replace(b"\r\n", b"")
    assert b"\n" not in message.replace(b"\r\n", b"")
    assert max(map(len, message.split(b"\r\n"))) < 998


def test_lines_end_in_one_way_whatever_built_them():
    assert module._on_the_wire(b".a\n.\r.b\r\n\r\n..c") == b"..a\r\n..\r\n..b\r\n\r\n...c\r\n"


def test_nothing_stays_open():
    before = handles()
    for at in ("", "connect", "RCPT", "dot", "QUIT"):
        with MailServer(at) as server:
            provider(server.port).execute(ACTION)
    assert handles() == before


# --- the conversation ends ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["close", "reset", "hang"])
@pytest.mark.parametrize("at", ["connect", "EHLO", "MAIL", "RCPT", "DATA", "body"])
def test_before_the_final_dot_it_was_certainly_not_sent(at, what):
    with MailServer(at, what, EHLO="250 here") as server:
        timeout = 0.3 if what == "hang" else 20
        # the body is larger than what fits on the way: the client is still sending when the connection ends
        reply = provider(server.port, timeout=timeout).execute(LARGE if at == "body" and what != "hang" else ACTION)
    if at == "body" and what == "hang":
        assert isinstance(reply, Unknown)  # all of it was swallowed, with the dot
    else:
        assert (type(reply), reply.kind) == (NotExecuted, "not_sent")
        assert "before the final dot" in reply.certificate
    assert server.accepted == []


@pytest.mark.parametrize("what", ["close", "reset", "hang", "what 250 ok", "hello", "354 more"])
def test_after_the_final_dot_a_lost_reply_is_unknown(what):
    with MailServer("dot", what) as server:
        reply = provider(server.port, timeout=0.3 if what == "hang" else 20).execute(ACTION)
    assert isinstance(reply, Unknown)
    assert len(server.accepted) == 1


def test_a_reply_that_is_too_long_is_no_refusal():
    with MailServer("dot", "250 " + "x" * 20_000) as server:
        assert isinstance(provider(server.port).execute(ACTION), Unknown)
    assert len(server.accepted) == 1


@pytest.mark.parametrize("what", ["close", "reset", "500 no", "250"])
def test_what_happens_at_the_farewell_changes_nothing(what):
    with MailServer("QUIT", what) as server:
        assert isinstance(provider(server.port).execute(ACTION), Succeeded)
    assert len(server.accepted) == 1


@pytest.mark.parametrize("failure", [BrokenPipeError("no"), TimeoutError("no"), ValueError("no")])
def test_a_final_dot_that_could_not_be_written_may_have_left(monkeypatch, failure):
    real = module.smtplib.SMTP.send

    def send(self, data):
        if data == b".\r\n":
            real(self, data)
            raise failure
        real(self, data)

    monkeypatch.setattr(module.smtplib.SMTP, "send", send)
    with MailServer() as server:
        assert isinstance(provider(server.port).execute(ACTION), Unknown)


@pytest.mark.parametrize("point", ["offer", "finish"])
def test_an_interrupt_passes_and_closes(monkeypatch, point):
    def interrupted(*_):
        raise Crash

    monkeypatch.setattr(module._Conversation, point, interrupted)
    before = handles()
    with MailServer() as server, pytest.raises(Crash):
        provider(server.port).execute(ACTION)
    assert handles() == before
    assert server.accepted == []


# --- the server refuses ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [421, 450, 550, 554])
@pytest.mark.parametrize("at", ["connect", "EHLO", "MAIL", "RCPT", "DATA", "dot"])
def test_a_refusal_at_any_phase_is_a_rejection(at, code):
    with MailServer(at, f"{code} no way", HELO=f"{code} no way") as server:
        reply = provider(server.port).execute(ACTION)
    assert (type(reply), reply.kind) == (NotExecuted, "rejected")
    assert reply.detail["code"] == code
    assert "no way" in reply.certificate
    assert len(server.accepted) == (at == "dot")


def test_a_reply_to_data_that_is_no_go_is_no_message():
    with MailServer("DATA", "250 whatever") as server:
        reply = provider(server.port).execute(ACTION)
    assert isinstance(reply, NotExecuted)
    assert server.accepted == []


def test_a_server_that_is_not_there():
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    assert provider(port).execute(ACTION).kind == "not_sent"
    nowhere = SmtpProvider("no-such-host.invalid", sender="a@b.c", security="none")
    assert nowhere.execute(ACTION).kind == "not_sent"


# --- TLS and login, against another implementation ---------------------------------------------------------------------------


class Inbox:
    def __init__(self):
        self.mails = []

    async def handle_DATA(self, server, session, envelope):
        self.mails.append((envelope.mail_from, envelope.rcpt_tos, bool(session.ssl), session.auth_data))
        return "250 OK queued as: Q-1"


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@contextmanager
def mailbox(authority, *, tls="starttls", login=False):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    inbox = Inbox()
    options = (
        {"tls_context": context, "require_starttls": True}
        if tls == "starttls"
        else {"ssl_context": context}
        if tls == "tls"
        else {}
    )
    if login:

        def check(server, session, envelope, mechanism, data):
            return AuthResult(success=(data.login, data.password) == (b"shop", b"secret"), handled=False, auth_data=data.login)

        options |= {"authenticator": check, "auth_required": True, "auth_require_tls": tls == "starttls"}
    controller = _Free(inbox, hostname="127.0.0.1", port=0, **options)
    controller.start()
    try:
        yield controller.port, inbox
    finally:
        controller.stop()


class _Free(Controller):
    """At a port that is free."""

    def _trigger_server(self):
        self.port = self.server.sockets[0].getsockname()[1]
        super()._trigger_server()


def trusting(authority):
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS")  # it does not see the TLS around it
@pytest.mark.parametrize("tls", ["starttls", "tls"])
@pytest.mark.parametrize("login", [False, True])
def test_tls_and_login(authority, tls, login):
    options = {"username": "shop", "password": lambda: "secret"} if login else {}
    with mailbox(authority, tls=tls, login=login) as (port, inbox):
        reply = provider(port, security=tls, context=trusting(authority), **options).execute(ACTION)
    assert isinstance(reply, Succeeded), reply
    assert reply.receipt["queue_id"] == "Q-1"
    assert inbox.mails == [("shop@example.org", ["ada@example.org"], tls == "starttls", b"shop" if login else None)]


def test_a_wrong_password_is_a_rejection(authority):
    with mailbox(authority, login=True) as (port, inbox):
        secured = provider(port, security="starttls", context=trusting(authority), username="shop", password="wrong")
        reply = secured.execute(ACTION)
    assert (reply.kind, reply.detail["code"]) == ("rejected", 535)
    assert "wrong" not in repr(reply) + repr(secured) + secured.identity()
    assert inbox.mails == []


@pytest.mark.parametrize("tls", ["starttls", "tls"])
def test_a_certificate_that_is_not_trusted_ends_it(authority, tls):
    before = handles()
    with mailbox(authority, tls=tls) as (port, inbox):
        reply = provider(port, security=tls).execute(ACTION)
    assert reply.kind == "not_sent"
    assert "CERTIFICATE_VERIFY_FAILED" in reply.certificate
    assert inbox.mails == []
    assert handles() == before


def test_a_server_without_starttls_gets_nothing_in_the_clear():
    with MailServer() as server:
        reply = provider(server.port, security="starttls").execute(ACTION)
    assert reply.kind == "not_sent"
    assert "no STARTTLS" in reply.certificate
    assert [command.split()[0].upper() for command in server.commands] == ["EHLO", "QUIT"]


@pytest.mark.parametrize("what", ["close", "454 not now"])
def test_a_starttls_that_fails(what):
    with MailServer("STARTTLS", what, EHLO="250-here\r\n250 STARTTLS") as server:
        reply = provider(server.port, security="starttls").execute(ACTION)
    assert reply.kind == ("rejected" if what != "close" else "not_sent")
    assert server.accepted == []


# --- what is refused beforehand ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"to": None},
        {"to": ""},
        {"to": "ada"},
        {"to": "@example.org"},
        {"to": ["ada@example.org"]},
        {"to": ["ada@example.org", "bob@example.org"]},
        {"to": "ada@example.org, bob@example.org"},
        {"to": "ada@example.org; bob@example.org"},
        {"to": "group: ada@example.org, bob@example.org;"},
        {"to": "ada@example.org\r\nBcc: bob@example.org"},
        {"to": "ada@example.org>\r\nRCPT TO:<bob@example.org"},
        {"to": "ädä@example.org"},
        {"to": "ada@exämple.org"},
        {"subject": None},
        {"subject": "a\nBcc: bob@example.org"},
        {"subject": "a\rb"},
        {"subject": "a\u2028Bcc: bob@example.org"},
        {"subject": "a\x00b"},
        {"text": None},
        {"text": b"bytes"},
        {"text": "\ud800"},
        {"html": 5},
        {"headers": "X: y"},
        {"headers": {"X": "a\r\nBcc: bob@example.org"}},
        {"headers": {"X\r\nBcc": "bob@example.org"}},
        {"headers": {"X: y\nBcc": "bob@example.org"}},
        {"headers": {"X ": "y"}},
        {"headers": {"": "y"}},
        {"headers": {"X": 5}},
        {"headers": {5: "y"}},
        *({"headers": {field: "bob@example.org"}} for field in OWN_FIELDS),
        {"cc": "bob@example.org"},
        {"body": "x"},
    ],
)  # fmt: skip
def test_what_is_no_mail_to_one_recipient_is_refused_beforehand(change):
    with pytest.raises(InvalidArgument, match="Nothing was done"):
        provider(1).validate("mail", {**ARGUMENTS, **change})


def test_a_mail_is_valid_without_a_connection():
    provider(1).validate("mail", {**ARGUMENTS, "operation": "mail", "html": "<p>", "headers": None})


@pytest.mark.parametrize(
    "options",
    [
        {"sender": "nobody"},
        {"sender": "a@b.c, d@e.f"},
        {"sender": "a@b.c\r\nX: y"},
        {"security": "ssl"},
        {"username": "shop"},
        {"password": "secret", "security": "tls"},
        {"username": "shop", "password": "secret"},
        {"timeout": 0},
    ],
)
def test_settings_that_mean_nothing_are_refused(options):
    with pytest.raises(InvalidArgument, match="Nothing was done"):
        provider(1, **options)


@pytest.mark.parametrize(("security", "port"), [("starttls", 587), ("tls", 465), ("none", 25)])
def test_identity_is_the_server_and_the_sender(security, port):
    mail = SmtpProvider("mail.example.org", sender="Shop <shop@example.org>", security=security)
    assert mail.identity() == f"smtp/1 mail.example.org:{port} from=shop@example.org"
    assert SmtpProvider("h", 1025, sender="a@b.c").identity() == "smtp/1 h:1025 from=a@b.c"


def test_nothing_is_promised():
    assert SmtpProvider.caps == Caps()
    assert isinstance(provider(1).reconcile(ACTION), Unavailable)
    assert isinstance(provider(1).tombstone(ACTION), Unavailable)
