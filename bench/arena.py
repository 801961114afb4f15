"""An empty store for each measurement: tables are made once for a contestant, then copied."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psycopg

from bench.calls import Failed, Program, ask
from bench.contestants import Contestant
from bench.redis_server import MODES, NoRedis, Redis, redis
from bench.report import Report
from bench.servers import Databases, copy, remove


class Arena:
    def __init__(self, made: Databases, servers: dict[str, Redis]) -> None:
        self._made = made
        self._servers = servers
        self._templates: dict[str, str] = {}
        self._used: list[str] = []
        self._number = 0

    def prepare(self, contestant: Contestant) -> dict[str, str]:
        """Make its tables; return what versions it is made of."""
        kind, _, mode = contestant.store.partition("-")
        if kind == "redis":
            if mode not in self._servers:
                raise Failed("there is no Redis")
            url = self._servers[mode].url
        else:
            url = self._made.new(kind, f"template-{contestant.name}")
            self._templates[contestant.name] = url
        program = self._program(contestant, url)
        if contestant.setup:
            ours = contestant._replace(module=contestant.setup, venv=None)
            ask(self._program(ours, url), "setup", key="ready")
        else:
            ask(program, "setup", key="ready")
        versions: dict[str, str] = ask(program, "version", key="versions")
        return versions

    def fresh(self, contestant: Contestant) -> Program:
        """The contestant on a store of its own that is empty."""
        kind, _, mode = contestant.store.partition("-")
        if kind == "redis":
            self._servers[mode].flush()
            return self._program(contestant, self._servers[mode].url)
        self._number += 1
        template = self._templates[contestant.name]
        url = copy(template, f"run-{self._number}")
        self._used.append(url)
        return self._program(contestant, url)

    def tidy(self, program: Program) -> None:
        """As if the store had rested since it was filled."""
        if program.url.startswith("postgresql"):
            with psycopg.connect(program.url, autocommit=True) as connection:
                connection.execute("VACUUM ANALYZE")

    def sweep(self) -> None:
        """Remove what is used up. Between rounds: to drop a database the server writes all it has to the disk."""
        for url in self._used:
            remove(url)
        self._used.clear()

    def _program(self, contestant: Contestant, url: str) -> Program:
        return Program(contestant.python(), contestant.module, url, contestant.options)


@contextmanager
def arena(report: Report, made: Databases, contestants: tuple[Contestant, ...]) -> Iterator[Arena]:
    """With the servers of Redis that these contestants need."""
    servers: dict[str, Redis] = {}
    with ExitStack() as stack:
        for mode in MODES:
            if any(contestant.store == f"redis-{mode}" for contestant in contestants):
                try:
                    servers[mode] = stack.enter_context(redis(made.directory, mode))
                except NoRedis as error:
                    report.fact(server=f"redis-{mode}", not_run=str(error))
                    continue
                report.fact(server=f"redis-{mode}", version=servers[mode].version(), options=MODES[mode])
        yield Arena(made, servers)
