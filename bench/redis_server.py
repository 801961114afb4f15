"""A Redis of our own on a private port: stock, or with every write on the disk before it is answered."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Ends the server when its owner closes the pipe, or is killed and the kernel does.
KEEPER = """
import subprocess, sys
server = subprocess.Popen(sys.argv[1:])
sys.stdin.read()
server.terminate()
try:
    server.wait(timeout=10)
except subprocess.TimeoutExpired:
    server.kill()
"""
MODES = {"stock": (), "durable": ("--appendonly", "yes", "--appendfsync", "always")}


class NoRedis(Exception):
    """It could not be started; the message says why."""


class Redis:
    def __init__(self, port: int) -> None:
        self._port = port
        self.url = f"redis://127.0.0.1:{port}/0"

    def flush(self) -> None:
        assert self.call("FLUSHALL") == "+OK"

    def version(self) -> str:
        return self._answer("INFO server").partition("redis_version:")[2].partition("\r\n")[0]

    def config(self, name: str) -> str:
        return self._answer(f"CONFIG GET {name}").splitlines()[-1]

    def call(self, command: str) -> str:
        """The first line of its answer."""
        return self._answer(command).partition("\r\n")[0]

    def _answer(self, command: str) -> str:
        """All of it; the protocol is plain enough to need no library."""
        with socket.create_connection(("127.0.0.1", self._port), timeout=10) as connection:
            connection.sendall(f"{command}\r\nQUIT\r\n".encode())
            parts = []
            while part := connection.recv(65536):
                parts.append(part)
        return b"".join(parts).decode().removesuffix("+OK\r\n") or "+OK"


@contextmanager
def redis(directory: Path, mode: str) -> Iterator[Redis]:
    """A server for as long as the block lasts."""
    program = shutil.which("redis-server")
    if program is None:
        raise NoRedis("there is no redis-server on the PATH")
    data = directory / f"redis-{mode}"
    data.mkdir()
    port = _free_port()
    options = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(data), *MODES[mode]]
    keeper = subprocess.Popen(
        [sys.executable, "-c", KEEPER, program, *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # an interrupt typed at the terminal is for the owner alone
    )
    try:
        server = Redis(port)
        _await(server, keeper)
        yield server
    finally:
        assert keeper.stdin is not None
        keeper.stdin.close()
        keeper.wait(timeout=30)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _await(server: Redis, keeper: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            if server.call("PING") == "+PONG":
                return
        except OSError:
            pass
        if keeper.poll() is not None or time.monotonic() > deadline:
            raise NoRedis("redis-server does not answer")
        time.sleep(0.05)
