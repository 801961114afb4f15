"""Toys to measure, and the place where they stand."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import cast

from bench.arena import Arena
from bench.calls import Program, ask
from bench.contestants import Contestant
from bench.measures import Setting, Sizes

SIZES = Sizes(singles=20, concurrent=100, bulk=1000, idle=5, pause=0.005, loaded=0.2)
TOY = Contestant("toy", "sqlite", "tests.bench.toy", 10, 300, ())


class Shelf:
    """An arena of toys."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made = 0

    def fresh(self, contestant: Contestant) -> Program:
        self._made += 1
        url = f"sqlite:///{self._directory / str(self._made)}.db"
        program = Program(Path(sys.executable), contestant.module, url, contestant.options)
        ask(program, "setup", key="ready")
        return program

    def tidy(self, program: Program) -> None: ...


def setting(directory: Path, *, rate: float | None = None) -> Setting:
    return Setting(cast(Arena, Shelf(directory)), SIZES, rate)
