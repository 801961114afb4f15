from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.contest import play_round, tell
from bench.report import Report
from bench.results import Entry, Results
from tests.bench.shelf import TOY, setting

BROKEN = TOY._replace(workloads=("singles", "drain"), options=("--kind", "dead"))


def told(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_round_takes_each_contestant_through_its_workloads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, report, place = Results(), Report(), setting(tmp_path)
    able = TOY._replace(workloads=("singles", "bulk", "drain", "idle"))
    other = TOY._replace(name="other", workloads=("drain",))
    for number in range(2):
        play_round(report, results, place, (able, other), number)
    runs = [(line["run"], line["contestant"], line["round"]) for line in told(capsys) if "run" in line]
    drains = [run for run in runs if run[0] == "drain"]
    assert drains == [("drain", "toy", 0), ("drain", "other", 0), ("drain", "other", 1), ("drain", "toy", 1)]
    assert {run[0] for run in runs} >= {"singles", "bulk", "cold start", "idle p50", "idle p99"}
    tell(report, results)
    (figure,) = (line for line in told(capsys) if line["figure"] == "drain: other")
    assert (figure["workload"], figure["contestant"], figure["rounds"]) == ("drain", "other", 2)
    low, high = figure["spread"]
    assert low <= figure["value"] <= high


def test_a_peer_that_fails_is_reported_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, report = Results(), Report()
    able = TOY._replace(name="able", workloads=("drain",))
    play_round(report, results, setting(tmp_path), (BROKEN, able), 0)
    (failure,) = (line for line in told(capsys) if "not_run" in line)
    assert (failure["peer"], failure["workload"], failure["round"]) == ("toy", "drain", 0)
    assert "the toy is broken" in failure["not_run"]
    assert results.get(0, Entry("drain", "able"))
    assert report.status() == 0


def test_perdure_that_fails_fails_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = Report()
    play_round(report, Results(), setting(tmp_path), (BROKEN._replace(name="perdure"),), 0)
    assert report.status() == 1
    assert told(capsys)[-1] == {"missed": ["perdure did not run"]}


def test_without_pgqueuer_there_is_no_rate_to_load_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = Report()
    play_round(report, Results(), setting(tmp_path), (TOY._replace(workloads=("loaded",)),), 0)
    assert "PgQueuer" in told(capsys)[-1]["not_run"]
