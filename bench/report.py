"""What a benchmark prints: one JSON line per fact or figure, and an exit status."""

from __future__ import annotations

import json
from typing import TextIO


class Report:
    """Prints figures as they come and remembers whether one has missed its target."""

    def __init__(self, copy: TextIO | None = None) -> None:
        """``copy`` gets every line as well, for `bench.table` to read."""
        self._copy = copy
        self._missed: list[str] = []

    def fact(self, **facts: object) -> None:
        """Something a reader needs to judge the figures."""
        self._print(facts)

    def figure(
        self,
        name: str,
        value: float,
        unit: str,
        *,
        at_least: float | None = None,
        at_most: float | None = None,
        **context: object,
    ) -> None:
        ok = None
        if at_least is not None:
            ok = value >= at_least
        elif at_most is not None:
            ok = value <= at_most
        if ok is False:
            self._missed.append(name)
        target = at_least if at_most is None else at_most
        self._print(
            {"figure": name, "value": _short(value), "unit": unit, "target": target, "ok": ok, **context}
        )

    def failure(self, name: str, **facts: object) -> None:
        """What could not be measured though it had to be."""
        self._missed.append(name)
        self._print(facts)

    def status(self) -> int:
        """What the process ends with: 1 if a target was missed."""
        if self._missed:
            self.fact(missed=self._missed)
        return 1 if self._missed else 0

    def _print(self, line: dict[str, object]) -> None:
        shown = {key: _short(value) if isinstance(value, float) else value for key, value in line.items()}
        text = json.dumps(shown)
        print(text, flush=True)
        if self._copy is not None:
            print(text, file=self._copy, flush=True)


def _short(value: float) -> float:
    """Three digits say all that such a measurement can."""
    return float(f"{value:.3g}")
