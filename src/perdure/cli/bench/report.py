"""The output of ``perdure bench``: a table of figures, and sentences that explain them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from perdure.cli.bench.workloads import CALLERS, ROUNDS, SLOTS, Figures
from perdure.cli.output import exact, say
from perdure.cli.tables import Column, table

TITLES = {
    "singles": "enqueue one by one",
    "callers": f"enqueue by {CALLERS} callers",
    "bulk": "enqueue 1,000 at once",
    "drain": "drain by one worker",
}
COMMIT = "a commit"
"""The name of a figure: the time of a commit in bare SQL. The figure is not in the table, but in the first sentence."""
FAR = 0.005
"""If a commit takes more seconds than this, the report advises fewer commits."""


def print_report(figures: Figures, database: str, *, as_json: bool) -> None:
    if as_json:
        for line in lines(figures):
            exact(json.dumps(line))
        return
    say()
    say(f"{database}; the tables of bench are deleted.")
    say()
    rows = [
        [line["figure"], _said(line["value"], line["unit"]), _range(line), *_bare(line), _part(line)]
        for line in lines(figures)
        if line["figure"] != COMMIT
    ]
    titles = ("perdure", "range", "bare SQL", "range", "ratio")
    table([Column("workload"), *(Column(title, right=True) for title in titles)], rows)
    say()
    say(f"A rate is the median of {ROUNDS} rounds; its range goes from the slowest to the fastest one.")
    for sentence in verdict(figures):
        say(sentence)


def lines(figures: Figures) -> Iterator[dict[str, Any]]:
    """Each figure as a document, with its slowest and fastest round.

    ``bare``: the rate without perdure. ``ratio``: perdure's rate divided by ``bare``.
    """
    for name, title in TITLES.items():
        rate, (low, high) = figures.ours[name], figures.ours_range[name]
        line = {"value": _short(rate), "low": _short(low), "high": _short(high), "unit": "jobs/s"}
        compared = {}
        if (bare := figures.bare.get(name)) is not None:
            low, high = figures.bare_range[name]
            compared = {"bare": _short(bare), "bare_low": _short(low), "bare_high": _short(high)}
            compared["ratio"] = _short(rate / bare)
        yield {"figure": title, **line, **compared}
    for at, seconds in figures.pick_up.items():
        yield {"figure": f"pick-up, p{at}", "value": _short(seconds * 1000), "unit": "ms"}
    yield {"figure": COMMIT, "value": _short(_commit(figures) * 1000), "unit": "ms"}


def verdict(figures: Figures) -> Iterator[str]:
    ours, bare, commit = figures.ours, figures.bare, _commit(figures)
    if ours["singles"] <= bare["singles"]:
        yield (
            f"A commit takes {_ms(commit)} here; a caller that waits for each commit enqueues at most "
            f"{_count(bare['singles'])} jobs a second."
        )
    else:
        yield f"A commit took {_ms(commit)}, but times varied: the disk is unsteady, so measure with more --seconds."
    yield f"One by one, perdure enqueues {_count(ours['singles'])} a second, {_percent(ours, bare, 'singles')}."
    times = ours["callers"] / ours["singles"]
    yield f"{CALLERS} concurrent callers in one process enqueue {times:.1f} times as many as one."
    yield f"In bulk it is {_count(ours['bulk'])} a second, {_percent(ours, bare, 'bulk')}."
    yield (
        f"One worker with {SLOTS} slots runs {_count(ours['drain'])} empty jobs a second, "
        f"{_percent(ours, bare, 'drain')}: {1e6 / ours['drain']:.0f} µs for each, plus the time of your code."
    )
    begins = figures.pick_up
    yield (
        f"An idle worker begins a job within {_ms(begins[50])} of the enqueue call in half of the cases, "
        f"and within {_ms(begins[99])} in 99 of 100."
    )
    if commit > FAR:
        yield "Commits are slow here: enqueue_many, or many concurrent callers, need fewer commits."


def _commit(figures: Figures) -> float:
    """The seconds that a commit takes. This is the time of an insert in bare SQL, nearly all of which is the commit."""
    return 1 / figures.bare["singles"]


def _percent(ours: dict[str, float], bare: dict[str, float], name: str) -> str:
    return f"{_short(ours[name] / bare[name]):.0%} of what bare SQL does"


def _bare(line: dict[str, Any]) -> list[str]:
    """The rate of bare SQL, and its range."""
    if "bare" not in line:
        return ["", ""]
    return [_said(line["bare"], line["unit"]), _range(line, "bare_")]


def _range(line: dict[str, Any], prefix: str = "") -> str:
    if f"{prefix}low" not in line:
        return ""
    return f"{_count(line[f'{prefix}low'])} to {_count(line[f'{prefix}high'])}"


def _part(line: dict[str, Any]) -> str:
    return f"{line['ratio']:.0%}" if "bare" in line else ""


def _said(value: float, unit: str) -> str:
    return f"{_count(value)} {unit}" if unit == "jobs/s" else f"{value:.3g} {unit}"


def _count(rate: float) -> str:
    return f"{_short(rate):,.0f}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"


def _short(value: float) -> float:
    """Round to three digits; the measurement is no more exact than that."""
    return float(f"{value:.3g}")
