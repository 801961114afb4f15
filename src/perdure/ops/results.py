"""The results of steps, for those behind them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perdure.model.job import State
from perdure.ops.batch import rows_of
from perdure.ops.op import Op, ask_last, operation


class ParentResult(NamedTuple):
    """How a step before this one ended, and what came of it."""

    key: str
    task: str
    state: State
    result: str | None
    reason: str | None

    @property
    def dropped(self) -> bool:
        """It returned something that could not be kept, which is not the same as nothing."""
        return self.result is None and self.reason is not None and self.reason.startswith("result.")


@operation("read")
def read_parents(steps: Sequence[str]) -> Op[dict[str, list[ParentResult]]]:
    """Of each step its parents; none of one that has over a thousand."""
    rows = yield from ask_last("read_parents", children=rows_of(steps))
    found: dict[str, list[ParentResult]] = {step: [] for step in steps}
    for child, *parent in rows:
        found[child].append(ParentResult(*parent))
    return found


@operation("read")
def find_ancestor(step: str, workflow: str, key: str) -> Op[ParentResult | None]:
    rows = yield from ask_last("find_ancestor", id=step, workflow=workflow, key=key)
    return ParentResult(*rows[0]) if rows else None
