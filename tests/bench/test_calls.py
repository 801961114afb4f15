from __future__ import annotations

import time
from pathlib import Path

import pytest

from bench import measures
from bench.calls import Failed, Process, Program, ask, workers
from bench.contestants import CONTESTANTS, QUICK, quick
from bench.measures import MEASURES, drain, idle, loaded, singles
from tests.bench.shelf import TOY, Shelf, setting


@pytest.fixture
def toy(tmp_path: Path) -> Program:
    return Shelf(tmp_path).fresh(TOY)


@pytest.mark.parametrize("options", [(), ("--blocking",)])
def test_a_contestant_answers(toy: Program, options: tuple[str, ...]) -> None:
    toy = toy._replace(options=options)
    assert ask(toy, "version", key="versions") == {"pytest": pytest.__version__}
    assert ask(toy, "enqueue-singles", 30, key="seconds") > 0
    assert ask(toy, "remaining", key="remaining") == 50  # with the 20 that warm up
    assert ask(toy, "enqueue-many", 2000, key="seconds") > 0
    assert ask(toy, "remaining", key="remaining") == 2051
    concurrent = ask(toy, "enqueue-concurrent", 100, 10, key="seconds")
    assert (concurrent is None) is (options == ("--blocking",))
    assert len(ask(toy, "enqueue-paced", 500, 0.2, key="asked")) == 100


def test_workers_tell_what_began_and_end_when_asked(toy: Program) -> None:
    with workers(toy, 10, count=2) as running:
        before = time.monotonic_ns()
        asked = ask(toy, "enqueue-tagged", 4, 0.01, key="asked")
        running.begun(4, timeout=60)
        assert before < running.first() < time.monotonic_ns()
        began = running.stop()
    assert sorted(began) == [0, 1, 2, 3]
    assert all(began[tag] > at for tag, at in enumerate(asked))


def test_one_that_breaks_is_told_with_its_last_words(toy: Program) -> None:
    with (
        workers(toy._replace(options=("--kind", "dead")), 1) as running,
        pytest.raises(Failed, match="toy is broken"),
    ):
        running.first(timeout=60)


def test_one_that_is_late_is_told(toy: Program) -> None:
    with (
        workers(toy, 1) as running,
        pytest.raises(Failed, match="not 3 handlers have begun within 0 s, but 0"),
    ):
        running.begun(3, timeout=0.2)


def test_what_a_library_prints_is_not_taken_for_an_answer(toy: Program) -> None:
    with workers(toy._replace(options=("--kind", "chatty")), 1) as running:
        ask(toy, "fill", 1, key="ready")
        running.begun(1, timeout=60)


def test_a_watch_tells_when_the_store_is_empty(toy: Program) -> None:
    ask(toy, "fill", 30, key="ready")
    with Process(toy, "watch") as watch:
        watch.answer("ready", timeout=60)
        watch.say()
        with workers(toy, 10) as running:
            empty = watch.answer("empty", timeout=60)
            assert empty > running.first()


def test_the_measures_measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "KEEPS_UP", 0.01)  # other tests may keep the machine busy
    where = setting(tmp_path)
    assert singles(where, TOY)["singles"] > 0
    assert 10 < drain(where, TOY)["drain"] < 1_000_000
    for name, value in {**idle(where, TOY), **loaded(where._replace(rate=200.0), TOY)}.items():
        assert 0 < value < 10_000, name


def test_one_that_cannot_keep_up_has_no_latency_under_load(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="does not keep up"):
        loaded(setting(tmp_path, rate=1e6), TOY)


def test_every_contestant_has_known_workloads_and_a_name_of_its_own() -> None:
    assert {workload for each in CONTESTANTS for workload in each.workloads} <= set(MEASURES)
    assert len({each.name for each in CONTESTANTS}) == len(CONTESTANTS)
    assert {each.name for each in quick()} == set(QUICK)
