"""A faulty network: a TCP proxy in front of PostgreSQL that counts, freezes, cuts and drops."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from urllib.parse import urlsplit


class Proxy:
    """``url`` leads through it, ``heard`` is what clients said.

    ``round_trips`` counts how often one spoke after it had been answered.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._server = (parts.hostname or "", parts.port or 5432)
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        login = parts.netloc.rpartition("@")[0]
        self.url = parts._replace(netloc=f"{login}@127.0.0.1:{port}").geturl()
        self.round_trips = 0
        self.connections = 0
        self.heard = bytearray()
        # Seconds that an answer takes: what a client says in the meantime, it says without having heard it.
        self.latency = 0.0
        self.refused = 0
        self._admits = True
        self._sockets: list[socket.socket] = []
        self._flowing = threading.Event()
        self._flowing.set()
        # Called with what the server says; what it returns is passed on, None cuts the connection.
        self.on_reply: Callable[[bytes], bytes | None] = lambda data: data
        threading.Thread(target=self._accept, daemon=True).start()

    def freeze(self) -> None:
        """Stop forwarding, without a word to anybody."""
        self._flowing.clear()

    def thaw(self) -> None:
        self._flowing.set()

    def refuse(self) -> None:
        """Break every connection and hang up on new ones."""
        self._admits = False
        self.cut()

    def admit(self) -> None:
        self._admits = True

    def swallow_next_reply(self) -> None:
        """Let the next request through, then cut the connection instead of delivering the answer."""

        def swallow(data: bytes) -> None:
            self.on_reply = lambda data: data

        self.on_reply = swallow

    def cut(self) -> None:
        """Break every connection."""
        for end in self._sockets:
            _close(end)
        self._sockets.clear()

    def hang_up(self) -> None:
        """Say on every connection that there is nothing more to come, and go on listening."""
        for end in self._sockets:
            with suppress(OSError):
                end.shutdown(socket.SHUT_WR)
        self._sockets.clear()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # On Linux closing alone does not end accept().
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._flowing.set()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if not self._admits:
                    self.refused += 1
                    client.close()
                    continue
                server = socket.create_connection(self._server)
                self._sockets += [client, server]
                self.connections += 1
                answered = threading.Event()
                answered.set()
                for target in (self._forward, self._answer):
                    threading.Thread(target=target, args=(client, server, answered), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket, answered: threading.Event) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                self._flowing.wait()
                self.round_trips += answered.is_set()
                answered.clear()
                self.heard += data
                server.sendall(data)
        _close(client)
        _close(server)

    def _answer(self, client: socket.socket, server: socket.socket, answered: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                self._flowing.wait()
                passed = self.on_reply(data)
                if passed is None:
                    break
                time.sleep(self.latency)
                answered.set()
                client.sendall(passed)
        _close(client)
        _close(server)


def _close(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
