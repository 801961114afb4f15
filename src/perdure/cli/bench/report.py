"""What ``perdure bench`` says: a table of figures, and what they mean in a sentence each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from perdure.cli.bench.workloads import CALLERS, SLOTS, Figures
from perdure.cli.output import exact, say
from perdure.cli.tables import Column, table

TITLES = {
    "singles": "enqueue one by one",
    "callers": f"enqueue by {CALLERS} callers",
    "bulk": "enqueue 1,000 at once",
    "drain": "drain by one worker",
}
COMMIT = "a commit"
"""The bare database's, told in the first sentence."""
FAR = 0.005
"""Seconds for a commit from which on it is worth a word of advice."""


def tell(figures: Figures, database: str, *, as_json: bool) -> None:
    if as_json:
        for line in lines(figures):
            exact(json.dumps(line))
        return
    say()
    say(f"{database}; what bench made there is gone.")
    say()
    rows = [
        [line["figure"], _said(line["value"], line["unit"]), _bare(line), _part(line)]
        for line in lines(figures)
        if line["figure"] != COMMIT
    ]
    right = [Column(title, right=True) for title in ("perdure", "bare SQL", "ratio")]
    table([Column("workload"), *right], rows)
    say()
    for sentence in verdict(figures):
        say(sentence)


def lines(figures: Figures) -> Iterator[dict[str, Any]]:
    """Each figure; ``bare`` is what the database does without perdure, ``ratio`` how near perdure comes."""
    for name, title in TITLES.items():
        rate, bare = figures.ours[name], figures.bare.get(name)
        compared = {} if bare is None else {"bare": _short(bare), "ratio": _short(rate / bare)}
        yield {"figure": title, "value": _short(rate), "unit": "jobs/s", **compared}
    for at, seconds in figures.pick_up.items():
        yield {"figure": f"pick-up, p{at}", "value": _short(seconds * 1000), "unit": "ms"}
    yield {"figure": COMMIT, "value": _short(_commit(figures) * 1000), "unit": "ms"}


def verdict(figures: Figures) -> Iterator[str]:
    ours, bare, commit = figures.ours, figures.bare, _commit(figures)
    if ours["singles"] <= bare["singles"]:
        yield (
            f"A commit takes {_ms(commit)} here; nobody who waits for each enqueues more than "
            f"{_count(bare['singles'])} jobs a second."
        )
    else:
        yield f"A commit took {_ms(commit)}, but not each time: so unsteady a disk wants more --seconds."
    yield f"One by one, perdure enqueues {_count(ours['singles'])} a second, {_percent(ours, bare, 'singles')}."
    times = ours["callers"] / ours["singles"]
    yield f"{CALLERS} callers of one process together enqueue {times:.1f} times as many as one."
    yield f"In bulk it is {_count(ours['bulk'])} a second, {_percent(ours, bare, 'bulk')}."
    yield (
        f"One worker with {SLOTS} slots runs {_count(ours['drain'])} empty jobs a second, "
        f"{_percent(ours, bare, 'drain')}: {1e6 / ours['drain']:.0f} µs for each, besides what your code takes."
    )
    begins = figures.pick_up
    yield (
        f"An idle worker begins a job {_ms(begins[50])} after the call that enqueues it, half the time; "
        f"99 times of 100 within {_ms(begins[99])}."
    )
    if commit > FAR:
        yield "Commits are slow here: enqueue with enqueue_many or from many callers, and the disk matters less."


def _commit(figures: Figures) -> float:
    """Seconds: an insert is hardly more."""
    return 1 / figures.bare["singles"]


def _percent(ours: dict[str, float], bare: dict[str, float], name: str) -> str:
    return f"{_short(ours[name] / bare[name]):.0%} of what bare SQL does"


def _bare(line: dict[str, Any]) -> str:
    return _said(line["bare"], line["unit"]) if "bare" in line else ""


def _part(line: dict[str, Any]) -> str:
    return f"{line['ratio']:.0%}" if "bare" in line else ""


def _said(value: float, unit: str) -> str:
    return f"{_count(value)} {unit}" if unit == "jobs/s" else f"{value:.3g} {unit}"


def _count(rate: float) -> str:
    return f"{_short(rate):,.0f}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"


def _short(value: float) -> float:
    """Three digits say all that such a measurement can."""
    return float(f"{value:.3g}")
