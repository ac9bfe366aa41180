"""A post office on the loopback interface: it speaks SMTP, and keeps what it accepted in a file, whoever dies."""

from __future__ import annotations

import email
import json
import os
import signal
import socketserver
import threading
from pathlib import Path

from letitloop.effects.provider import Caps, Found, NotFound
from letitloop.effects.providers import SmtpProvider

MAILBOX = Path("mailbox.jsonl")


class Counter(socketserver.StreamRequestHandler):
    """One conversation."""

    def handle(self):
        self.say("220 post.example")
        while line := self.rfile.readline():
            verb = line[:4].upper()
            if verb == b"DATA":
                self.say("354 go on")
                self.keep()
            elif verb == b"QUIT":
                self.say("221 goodbye")
                return
            else:
                self.say("250 fine")

    def keep(self):
        """Take charge of a mail, then say so."""
        lines = []
        while (line := self.rfile.readline()) != b".\r\n":
            lines.append(line)
        mail = email.message_from_bytes(b"".join(lines))
        kept = {"to": mail["To"], "subject": mail["Subject"], "id": mail["Message-ID"], "text": mail.get_payload()}
        with MAILBOX.open("a") as file:
            file.write(json.dumps(kept) + "\n")
        self.say("250 accepted")

    def say(self, line):
        self.wfile.write(f"{line}\r\n".encode())


def open_office():
    """Start the server in a thread; return its port."""
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Counter)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


def accepted():
    """Every mail that the post office took charge of."""
    return [json.loads(line) for line in MAILBOX.read_text().splitlines()] if MAILBOX.exists() else []


class Post(SmtpProvider):
    """The SMTP provider, with what SMTP itself lacks: a mailbox where one can look whether a mail was accepted."""

    caps = Caps(lookup="strong")

    def __init__(self, port, *, note, kill):
        super().__init__("127.0.0.1", port, sender="crew@example.org", security="none", local_hostname="crew.example")
        self._note, self._kill = note, kill

    def identity(self):
        return "post.example from=crew@example.org"  # its port is another one each time

    def execute(self, dispatch):
        self._note("mail sent")
        reply = super().execute(dispatch)
        if self._kill:
            os.kill(os.getpid(), signal.SIGKILL)  # the mail is on its way, and nothing here knows
        return reply

    def reconcile(self, dispatch):
        self._note("mailbox searched")
        for mail in accepted():
            if dispatch.provider_key.lower() in (mail["id"] or ""):
                stated = {"to": mail["to"], "subject": mail["subject"]}
                return Found({"message_id": mail["id"]}, dispatch.provider_key, stated, mail["id"])
        return NotFound()
