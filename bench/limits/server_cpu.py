"""The CPU time of a PostgreSQL server: of all its processes, also of those that have ended."""

from __future__ import annotations

import os
from pathlib import Path


def server_cpu(data_directory: Path) -> float:
    """Seconds so far."""
    server = int((data_directory / "postmaster.pid").read_text().split()[0])
    # The server's own row counts what its children have used, once they have ended.
    ticks = sum(int(field) for field in _fields(server)[11:15])
    ticks += sum(int(field) for child in _children(server) for field in _fields(child)[11:13])
    return ticks / os.sysconf("SC_CLK_TCK")


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; zeros if the process has just ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return ["0"] * 15
