"""The part of ``perdure stats`` that shows how long jobs waited and ran."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from perdure.cli.output import number, say
from perdure.cli.tables import Column, table

if TYPE_CHECKING:
    from perdure.client.stats import RecentStats
    from perdure.model.latency import Latency, Spread

RANKS = ("p50", "p95", "p99", "max")


def show_recent(recent: RecentStats) -> None:
    """Print the latencies by queue and by task."""
    sample = "" if recent.whole else f", among {number(recent.looked_at)} jobs"
    say()
    say(f"Ended since {recent.since:%Y-%m-%d %H:%M:%S} UTC{sample}; seconds waited and run:")
    _show("QUEUE", recent.queues)
    say()
    _show("TASK", recent.tasks)


def _show(title: str, latencies: Mapping[str, Latency]) -> None:
    columns = [
        Column(title, least=8, keep_end=True),
        Column("ENDED", right=True),
        Column("FAILED", rank=1, right=True),
        Column("PER S", rank=3, right=True),
        *(Column(f"{what} {rank}".upper(), rank=_RANK[rank], right=True) for what in _WHAT for rank in RANKS),
    ]
    table(columns, [_line(name, one) for name, one in latencies.items()])


_WHAT = ("waited", "ran")
_RANK = {"p50": 1, "p95": 2, "p99": 5, "max": 4}


def _line(name: str, one: Latency) -> list[str]:
    ended = one.succeeded + one.failed + one.canceled
    return [
        name,
        number(ended),
        number(one.failed) if one.failed else "",
        number(one.per_second),
        *_times(one.waited),
        *_times(one.ran),
    ]


def _times(spread: Spread | None) -> list[str]:
    return [""] * len(RANKS) if spread is None else [f"{seconds:.3f}" for seconds in spread]
