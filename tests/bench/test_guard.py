from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import guard
from bench.guard import Expected, compare, noise
from bench.results import Summary
from bench.targets import TARGETS

DRAIN, PICK_UP = "drain: perdure / PgQueuer", "pick-up idle p50: perdure / best PostgreSQL peer"


def about(value: float, *, spread: float = 0.0) -> Summary:
    return Summary(value, value - spread, value + spread, 3)


def run_of(path: Path, **values: float) -> Path:
    """The lines of a made-up run."""
    names = {"drain": DRAIN, "pick_up": PICK_UP}
    figures = [
        {"figure": names[name], "value": value, "unit": "ratio", "spread": [value, value], "rounds": 3}
        for name, value in values.items()
    ]
    others = [{"python": "3.11"}, {"figure": "drain: huey", "value": 3000.0, "unit": "jobs/s", "rounds": 3}]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in [*others, *figures]))
    return path


@pytest.mark.parametrize("value", [1.71, 2.0, 9.0])
def test_a_loss_within_the_noise_and_a_gain_are_let_pass(value: float) -> None:
    assert compare({DRAIN: Expected(2.0, 0.15)}, {DRAIN: about(value)}) == []


def test_a_loss_beyond_the_noise_is_told() -> None:
    (loss,) = compare({DRAIN: Expected(2.0, 0.15)}, {DRAIN: about(1.6)})
    assert loss == f"{DRAIN}: 1.6, 2 expected, 20% lost, 15% tolerated"


def test_a_latency_loses_by_growing() -> None:
    expected = {PICK_UP: Expected(0.8, 0.2)}
    assert compare(expected, {PICK_UP: about(0.4)}) == []
    assert len(compare(expected, {PICK_UP: about(1.0)})) == 1


def test_what_was_not_measured_counts_as_lost() -> None:
    (loss,) = compare({DRAIN: Expected(2.0, 0.15)}, {})
    assert "not measured" in loss


def test_noise_is_the_farthest_round_and_never_less_than_a_quarter() -> None:
    assert noise(about(2.0)) == 0.25
    assert noise(Summary(2.0, 1.9, 2.6, 3)) == 0.3


def test_the_guard_fails_once_a_ratio_that_was_written_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = tmp_path / "expected.json"
    good = run_of(tmp_path / "good", drain=2.0, pick_up=0.9)
    bad = run_of(tmp_path / "bad", drain=1.4, pick_up=0.9)

    def guarded(run: Path, *more: str) -> int:
        return guard.main(["--from", str(run), "--expected", str(expected), *more])

    assert guarded(good, "--write") == 0
    assert guarded(good) == 0
    capsys.readouterr()
    assert guarded(bad) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["guarded"] == [DRAIN, PICK_UP]
    assert [loss.partition(":")[0] for loss in told["losses"]] == ["drain"]


def test_a_file_that_expects_nothing_guards_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "expected.json"
    guard.write(empty, {})
    run = run_of(tmp_path / "run", drain=2.0)
    assert guard.main(["--from", str(run), "--expected", str(empty)]) == 1
    assert "--write" in capsys.readouterr().err


def test_the_file_of_the_project_can_be_read_and_names_ratios_of_the_contest() -> None:
    assert set(guard.load(guard.EXPECTED)) <= {target.name for target in TARGETS}
