"""A server on the loopback interface that misbehaves as told, and keeps its own log of what it received and what it did.

A fault is a function of the peer (one connection) and the request. Nothing here sleeps: what has to wait, waits for an event.
"""

from __future__ import annotations

import json
import select
import socket
import ssl
import struct
import threading
from dataclasses import dataclass, field


@dataclass
class Request:
    method: str
    target: str
    headers: list[tuple[str, str]]
    head: bytes
    body: bytes = b""

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    @property
    def raw(self) -> bytes:
        return self.head + self.body


class Peer:
    """One accepted connection."""

    def __init__(self, server: Server, sock: socket.socket) -> None:
        self.server, self.sock, self.buffer, self.open = server, sock, b"", True

    def _more(self) -> bool:
        try:
            data = self.sock.recv(1 << 16)
        except OSError:
            return False
        self.buffer += data
        return bool(data)

    def read_head(self) -> Request | None:
        while b"\r\n\r\n" not in self.buffer:
            if not self._more():
                return None
        head, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ", 2)
        headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        request = Request(method, target, headers, head + b"\r\n\r\n")
        self.server.received.append(request)
        self.server.arrived.set()
        return request

    def read_body(self, request: Request) -> bool:
        length = int(request.header("content-length") or 0)
        while len(self.buffer) < length:
            if not self._more():
                return False
        request.body, self.buffer = self.buffer[:length], self.buffer[length:]
        return True

    def wait_readable(self) -> None:
        select.select([self.sock], [], [])

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def reply(self, status: int, body: object = b"", *headers: tuple[str, str], kind: str = "application/json") -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(data)}"]
        if data:
            lines.append(f"Content-Type: {kind}")
        lines += [f"{name}: {value}" for name, value in headers]
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + data)

    def close(self) -> None:
        self.open = False
        self.server.peers.discard(self)
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.sock.close()

    def reset(self) -> None:
        """Close so that the other side gets a RST."""
        self.open = False
        self.server.peers.discard(self)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


@dataclass
class Server:
    """Listens until closed; ``received`` and ``committed`` are its log."""

    fault: object = None
    greet: object = None  # what happens to a connection before anything is read from it
    early: bool = False  # the fault is called once the head is there, before the body is
    tls: ssl.SSLContext | None = None
    received: list[Request] = field(default_factory=list)
    committed: list[Request] = field(default_factory=list)
    by_key: dict[str, dict] = field(default_factory=dict)
    connections: int = 0

    def __post_init__(self) -> None:
        self.fault = self.fault or refund
        self.peers: set[Peer] = set()
        self.arrived, self.released = threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self._listener.getsockname()[1]
        self._start(self._accept)

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def commit(self, request: Request) -> None:
        self.committed.append(request)

    def close(self) -> None:
        self.released.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for peer in list(self.peers):
            peer.close()
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive(), "a thread of the server does not end"

    def close_idle(self) -> None:
        """Close every connection, as servers do with those that were idle for long."""
        for peer in list(self.peers):
            peer.close()

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, target, *args) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._start(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        peer = Peer(self, sock)
        self.peers.add(peer)
        try:
            if self.tls is not None:
                peer.sock = self.tls.wrap_socket(sock, server_side=True)
            if self.greet is not None:
                self.greet(peer)
            while peer.open:
                request = peer.read_head()
                if request is None or not (self.early or peer.read_body(request)):
                    break
                self.fault(peer, request)
        except OSError:
            pass
        finally:
            peer.close()


# --- well behaved ------------------------------------------------------------------------------------------------------------


def refund(peer: Peer, request: Request) -> None:
    """Act, and answer with what was created."""
    peer.server.commit(request)
    peer.reply(201, {"id": f"re_{len(peer.server.committed)}", "ok": True}, ("Request-Id", "req_1"))


def refund_by_key(peer: Peer, request: Request) -> None:
    """Act once for each Idempotency-Key, and answer a repeat with the first answer; GETs find receipts."""
    server = peer.server
    if request.method == "GET":
        key = request.target.rpartition("=")[2].rpartition("/")[2]
        return peer.reply(*((200, server.by_key[key]) if key in server.by_key else (404, {})))
    key = request.header("idempotency-key").strip('"')
    if key in server.by_key:
        return peer.reply(201, server.by_key[key], ("Idempotent-Replayed", "true"))
    server.commit(request)
    server.by_key[key] = {"id": f"re_{len(server.committed)}", "reference": key, **json.loads(request.body)}
    return peer.reply(201, server.by_key[key])


def answering(status: int, body: object = b"", *headers: tuple[str, str], commit: bool = False, kind: str = "application/json"):
    def fault(peer: Peer, request: Request) -> None:
        if commit:
            peer.server.commit(request)
        peer.reply(status, body, *headers, kind=kind)

    return fault


# --- faults ------------------------------------------------------------------------------------------------------------------


def closes_at_once(peer: Peer) -> None:
    peer.close()


def resets_at_once(peer: Peer) -> None:
    peer.reset()


def closes_unread(peer: Peer) -> None:
    peer.wait_readable()
    peer.close()


def resets_unread(peer: Peer) -> None:
    peer.wait_readable()
    peer.reset()


def resets(peer: Peer, request: Request) -> None:
    peer.reset()


def commits_then_closes(peer: Peer, request: Request) -> None:
    peer.server.commit(request)
    peer.close()


def commits_then_resets(peer: Peer, request: Request) -> None:
    peer.server.commit(request)
    peer.reset()


def commits_then_hangs(peer: Peer, request: Request) -> None:
    peer.server.commit(request)
    peer.server.released.wait()


def hangs(peer: Peer, request: Request) -> None:
    peer.server.released.wait()


def commits_then_sends(data: bytes):
    """Act, send these bytes whatever they are, and close."""

    def fault(peer: Peer, request: Request) -> None:
        peer.server.commit(request)
        peer.send(data)
        peer.close()

    return fault


def refuses_and_drains(status: int):
    """Answer before the body is there, and read on until the other side has what it needs."""

    def fault(peer: Peer, request: Request) -> None:
        peer.reply(status, {"error": "too large"})
        peer.read_body(request)

    return fault


def commits_then_replies_when(gate: threading.Event):
    """Act, and answer once the gate is open."""

    def fault(peer: Peer, request: Request) -> None:
        peer.server.commit(request)
        gate.wait()
        peer.reply(201, {"id": "re_1"})

    return fault


def first_well_then(fault):
    """Behave for the first request, and then do this."""

    def both(peer: Peer, request: Request) -> None:
        (refund if len(peer.server.received) == 1 else fault)(peer, request)

    return both


def first_well_then_resets_unread(peer: Peer, request: Request) -> None:
    """Answer once, and reset on the next request without having read any of it."""
    refund(peer, request)
    resets_unread(peer)


# --- what is not listening ---------------------------------------------------------------------------------------------------


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class FullBacklog:
    """A port whose queue of connections is full, so that connecting to it gets no answer."""

    def __enter__(self):
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(0)
        self.port = self._listener.getsockname()[1]
        self._clients = []
        for _ in range(4):
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", self.port))
            self._clients.append(client)
        return self

    def __exit__(self, *_: object) -> None:
        for sock in [*self._clients, self._listener]:
            sock.close()
