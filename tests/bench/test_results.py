from __future__ import annotations

import json

import pytest

from bench.report import Report
from bench.results import Entry, Results
from bench.targets import TARGETS, Target, judge

DRAIN, SLOW = Entry("drain", "perdure"), Entry("drain", "huey")


def made_up(**rounds: list[float]) -> Results:
    """Rates of drains by contestant, one for each round; 0 where it did not run."""
    results = Results()
    for contestant, values in rounds.items():
        for number, value in enumerate(values):
            if value:
                results.add(number, Entry("drain", contestant), value)
    return results


def test_a_ratio_is_the_median_of_ratios_within_rounds() -> None:
    results = made_up(perdure=[100, 300, 800], huey=[10, 60, 100])
    summary = results.ratio([DRAIN], [SLOW])
    assert summary == (8.0, 5.0, 10.0, 3)
    assert results.summary(DRAIN) == (300, 100, 800, 3)


def test_a_round_without_both_sides_does_not_count() -> None:
    summary = made_up(perdure=[100, 300], huey=[0, 60]).ratio([DRAIN], [SLOW])
    assert summary is not None
    assert (summary.value, summary.rounds) == (5.0, 1)
    assert made_up(perdure=[100]).ratio([DRAIN], [SLOW]) is None


def test_the_best_of_a_side_counts_and_for_a_latency_that_is_the_least() -> None:
    results = Results()
    for name, value in {"perdure": 2.0, "pgqueuer": 4.0, "chancy": 3.0}.items():
        results.add(0, Entry("idle p50", name), value)
        results.add(0, Entry("drain", name), value)
    peers = ("pgqueuer", "chancy")
    idle = results.ratio([Entry("idle p50", "perdure")], [Entry("idle p50", peer) for peer in peers])
    drain = results.ratio([DRAIN], [Entry("drain", peer) for peer in peers])
    assert idle is not None
    assert drain is not None
    assert (idle.value, drain.value) == (2 / 3, 0.5)


def test_a_missed_target_fails_the_run_and_an_unmeasured_one_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    targets = (
        Target("met", (DRAIN,), (SLOW,), at_least=2.0),
        Target("missed", (DRAIN,), (SLOW,), at_most=2.0),
        Target("unknown", (DRAIN,), (Entry("drain", "nobody"),), at_least=1.0),
        Target("beside", (DRAIN,), (Entry("drain", "nobody"),)),
    )
    report = Report()
    judge(report, made_up(perdure=[100], huey=[20]), targets)
    assert report.status() == 1
    met, missed, rest, status = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (met["value"], met["target"], met["ok"], met["spread"]) == (5.0, 2.0, True, [5.0, 5.0])
    assert missed["ok"] is False
    assert rest == {"not_measured": ["unknown"]}
    assert status == {"missed": ["missed"]}


def test_no_two_targets_share_a_name() -> None:
    assert len({target.name for target in TARGETS}) == len(TARGETS)
