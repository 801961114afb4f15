"""The benchmarks of one worker among much else: what they count is what happened."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench import deep, pinned
from bench.drain import drain, enqueue
from bench.pages import Pages
from bench.pinned import Claims, Look
from bench.report import Report
from perdure import App
from perdure.store.statements import load


def test_a_drain_leaves_nothing_and_times_only_its_own_jobs(url: str) -> None:
    first = drain(url, 1000)
    assert first > 0
    assert drain(url, 1000, task="mail") > first / 20, "the jobs of the first would count as hours"
    with App(url) as app:
        assert app.count_jobs() == {"default": {"succeeded": 2000}}


def test_pages_are_counted_and_what_was_done_is_taken_back(postgres_url: str) -> None:
    enqueue(postgres_url, 1000)
    with closing(Pages(postgres_url, ["nothing"])) as pages:
        one, many = pages.of_a_cycle(1), pages.of_a_cycle(500)
    assert (one.claimed, many.claimed) == (1, 500)
    assert 0 < one.claim.pages < many.claim.pages
    assert (one.finish.visited, many.finish.visited) == (1, 500)
    with App(postgres_url) as app:
        assert app.count_jobs() == {"default": {"ready": 1000}}


def test_a_disk_that_is_too_small_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**9))
    deep._refuse_small_disk(tmp_path, 0.01)
    with pytest.raises(SystemExit, match="1 GB are free"):
        deep._refuse_small_disk(tmp_path, 1.0)


def test_the_claims_that_are_counted_are_those_of_a_worker() -> None:
    marks = {name: text for name, text in load("postgres").items() if "claimed AS (" in text}
    assert {name: text.startswith("WITH RECURSIVE") for name, text in marks.items()} == {
        "claim_window": False,
        "claim_jobs": True,
    }


def test_a_claim_that_walks_past_more_and_more_misses_its_target(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report()
    looks = [Look(0.0, 0, Claims(), Claims(), 0)]
    for minute, pages in enumerate((10, 20, 30), 1):
        _, begun, front, whole, touched = looks[-1]
        front = Claims(front.calls + 5, front.pages + 30 * pages)
        whole = Claims(whole.calls + 1, whole.pages + 20 * pages)
        looks.append(Look(60.0 * minute, begun + 50, front, whole, touched + 1000))
    pinned._tell(report, "with a pinned snapshot", looks, 800.0, target=True)
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (told[-1]["value"], told[-1]["ok"], told[-1]["pages"]) == (3.0, False, [10, 20, 30])
    assert report.status() == 1
