"""Count the jobs that match a filter, one scan range at a time."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from perdure.ops.batch import rows_of
from perdure.ops.find import find
from perdure.ops.op import Op, ask_last, operation
from perdure.request.filter import Filter

By: TypeAlias = Literal["state", "queue", "task", "tenant", "error_code"]


class Counted(NamedTuple):
    """The counts of a scan range, by value. ``end``: where the next range begins; None after the last range."""

    numbers: dict[str | None, int]
    end: str | None


@operation("read")
def count_stretch(filter: Filter, by: By, *, before: str, length: int) -> Op[Counted]:
    """Count the matching jobs for each value of ``by``, among the next ``length`` jobs below the id ``before``."""
    scan = yield from find(filter, before=before, length=length, n=length)
    rows = yield from ask_last("count_found", ids=rows_of([job.id for job in scan.jobs]), by=by)
    return Counted(dict(rows), scan.end)
