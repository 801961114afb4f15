"""The JSON lines of a run, read again."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.results import Summary

Line = dict[str, Any]


def read(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def ratios(lines: Iterable[Line]) -> dict[str, Summary]:
    """The ratios of a contest, by name."""
    return {
        line["figure"]: Summary(line["value"], line["spread"][0], line["spread"][1], line["rounds"])
        for line in lines
        if line.get("unit") == "ratio" and "rounds" in line
    }
