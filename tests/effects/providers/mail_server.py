"""A mail server of sockets that answers, drops, resets or falls silent where it is told to, and keeps what it accepted."""

from __future__ import annotations

import socket
import struct
import threading

PHASES = ("connect", "EHLO", "MAIL", "RCPT", "DATA", "body", "dot", "QUIT")


class MailServer:
    """Serves one conversation after another until it is closed.

    Args:
        at: the phase at which it does ``what``.
        what: ``close``, ``reset``, ``hang`` (until the client leaves), or a reply.
        replies: what it says at other phases instead of its usual words.
    """

    def __init__(self, at="", what="close", **replies):
        self.at, self.what, self.replies = at, what, replies
        self.accepted = []
        self.commands = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # so that a large mail does not fit on the way
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as lines:
                try:
                    self._converse(connection, lines)
                except OSError:
                    pass

    def _say(self, connection, phase, usual):
        """Answer at a phase; false if the conversation ends there."""
        if phase == self.at:
            if self.what == "close":
                return False
            if self.what == "reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return False
            if self.what == "hang":
                while connection.recv(65536):
                    pass
                return False
            usual = self.what
        if usual:
            connection.sendall(self.replies.get(phase, usual).encode("latin-1") + b"\r\n")
        return True

    def _converse(self, connection, lines):
        usual = {
            "EHLO": "250-here\r\n250 SIZE 99999999",
            "MAIL": "250 ok",
            "RCPT": "250 ok",
            "DATA": "354 go on",
            "QUIT": "221 bye",
        }
        if not self._say(connection, "connect", "220 here"):
            return
        for line in lines:
            self.commands.append(line.decode().strip())
            verb = line.split()[0].decode().upper()
            if not self._say(connection, verb, usual.get(verb, "502 what?")) or verb == "QUIT":
                return
            if verb == "DATA" and "DATA" not in self.replies and self.at != "DATA" and not self._message(connection, lines):
                return

    def _message(self, connection, lines):
        if self.at == "body" and not self._say(connection, "body", ""):
            return False
        body = []
        for line in lines:
            if line == b".\r\n":
                self.accepted.append(b"".join(body))
                return self._say(connection, "dot", "250 2.0.0 Ok: queued as 4F1A2B")
            body.append(line)
        return False
