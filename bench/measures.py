"""What is measured of every contestant: each function takes one of them through one workload, once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median, quantiles
from typing import NamedTuple

from bench.arena import Arena
from bench.calls import Failed, Process, Program, ask, workers
from bench.contestants import Contestant
from bench.perdure_contestant import SILENT

CALLERS = 50
TURNS = 3
KEEPS_UP = 0.95
"""Part of the asked rate that must have been reached for a latency at that rate to mean anything."""


class Sizes(NamedTuple):
    singles: int = 2000
    concurrent: int = 5000
    bulk: int = 20_000
    idle: int = 200
    pause: float = 0.05
    loaded: float = 5.0
    """Seconds."""
    alone: float = 1.0
    """Part of the jobs that only perdure is given."""

    def scaled(self, part: float) -> Sizes:
        return Sizes(
            singles=max(100, int(self.singles * part)),
            concurrent=max(10 * CALLERS, int(self.concurrent * part)),
            bulk=max(1000, int(self.bulk * part)),
            idle=max(3, int(self.idle * part)),
            pause=self.pause,
            loaded=max(1.0, self.loaded * part),
            alone=part,
        )


QUICK_SIZES = Sizes(singles=500, concurrent=3000, bulk=10_000, idle=40, pause=0.03)

Values = dict[str, float]
"""Figures by the name of what was measured."""


class Setting(NamedTuple):
    arena: Arena
    sizes: Sizes
    rate: float | None = None
    """Jobs a second for the pick-up under load."""


def singles(setting: Setting, contestant: Contestant) -> Values:
    return {"singles": _singles(setting, contestant)}


def singles_blocking(setting: Setting, contestant: Contestant) -> Values:
    return {"singles blocking": _singles(setting, contestant, "--blocking")}


def _singles(setting: Setting, contestant: Contestant, *options: str) -> float:
    program = _with(setting.arena.fresh(contestant), *options)
    return _rate(ask(program, "enqueue-singles", setting.sizes.singles, key="seconds"), setting.sizes.singles)


def concurrent(setting: Setting, contestant: Contestant) -> Values:
    return {"concurrent": _concurrent(setting, setting.arena.fresh(contestant))}


def silent(setting: Setting, contestant: Contestant) -> Values:
    """Concurrent enqueues that wake nobody, side by side with those that do: the difference is small."""
    rates: dict[str, list[float]] = {"concurrent with NOTIFY": [], "concurrent without NOTIFY": []}
    for turn in range(TURNS):
        for name in list(rates)[:: -1 if turn % 2 else 1]:
            program = setting.arena.fresh(contestant)
            if "without" in name:
                program = program._replace(environment=((SILENT, "1"),))
            rates[name].append(_concurrent(setting, program))
    return {name: median(found) for name, found in rates.items()}


def _concurrent(setting: Setting, program: Program) -> float:
    n = setting.sizes.concurrent
    return _rate(ask(program, "enqueue-concurrent", n, CALLERS, key="seconds"), n, "no async API")


def bulk(setting: Setting, contestant: Contestant) -> Values:
    program = setting.arena.fresh(contestant)
    n = setting.sizes.bulk
    return {"bulk": _rate(ask(program, "enqueue-many", n, key="seconds"), n, "no bulk call")}


def drain(setting: Setting, contestant: Contestant) -> Values:
    seconds, start = drained(setting, contestant, contestant.drain)
    return {"drain": contestant.drain / seconds, "cold start": start * 1000}


def drain_by_two(setting: Setting, contestant: Contestant) -> Values:
    n = 2 * contestant.drain  # they do not start at the same moment: that should not count for much
    seconds, _ = drained(setting, contestant, n, count=2)
    return {"drain by two": n / seconds}


def threads(setting: Setting, contestant: Contestant) -> Values:
    """Jobs of plain functions."""
    blocking = contestant._replace(options=(*contestant.options, "--kind", "sync"))
    n = contestant.drain // 3
    seconds, _ = drained(setting, blocking, n)
    return {"threads": n / seconds}


def drained(
    setting: Setting,
    contestant: Contestant,
    n: int,
    *,
    count: int = 1,
    during: Callable[[int, int], None] | None = None,
) -> tuple[float, float]:
    """Seconds from the first handler's first line until the store shows nothing unfinished; and to that line.

    ``during`` is called meanwhile, as in ``Workers.begun``.
    """
    program = setting.arena.fresh(contestant)
    ask(program, "fill", n, key="ready", timeout=600)
    setting.arena.tidy(program)
    worker = _with(program, *contestant.worker_options)
    with Process(program, "watch") as watch:
        watch.answer("ready", timeout=60)
        with workers(worker, contestant.concurrency, count=count) as running:
            first = running.first()
            running.begun(n, timeout=120 + n / 1000, during=during)
            watch.say()
            empty = watch.answer("empty", timeout=120)
            return (empty - first) / 1e9, (first - running.processes[0].started) / 1e9


def idle(setting: Setting, contestant: Contestant) -> Values:
    """From the call that enqueues to the first line of the handler, when the worker has nothing else to do."""
    program = setting.arena.fresh(contestant)
    n = setting.sizes.idle
    with workers(_with(program, *contestant.worker_options), contestant.concurrency) as running:
        # The first job shows that it runs and takes what only a first one costs.
        ask(program, "fill", 1, key="ready")
        running.first()
        asked = ask(program, "enqueue-tagged", n, setting.sizes.pause, key="asked")
        running.begun(n + 1, timeout=30)
        return _percentiles("idle", asked, running.stop())


def loaded(setting: Setting, contestant: Contestant) -> Values:
    """The same while jobs come at a fixed rate; a contestant that cannot keep up has no such latency."""
    assert setting.rate is not None
    program = setting.arena.fresh(contestant)
    seconds = setting.sizes.loaded
    with workers(_with(program, *contestant.worker_options), contestant.concurrency) as running:
        ask(program, "fill", 1, key="ready")
        running.first()
        asked = ask(program, "enqueue-paced", setting.rate, seconds, key="asked", timeout=seconds * 5 + 60)
        if asked is None:
            raise Failed("no bulk call to reach the rate with")
        reached = (len(asked) - 1) / (asked[-1] - asked[0]) * 1e9
        if reached < KEEPS_UP * setting.rate:
            raise Failed(
                f"does not keep up: it enqueues {reached:.0f} jobs/s where {setting.rate:.0f} were asked"
            )
        running.begun(len(asked) + 1, timeout=max(5.0, seconds))
        began = running.stop()
    if (late := (max(began.values()) - asked[-1]) / 1e9) > 1:
        raise Failed(f"does not keep up: it ran the last job {late:.1f} s after its enqueue")
    return _percentiles("loaded", asked, began)


def _percentiles(name: str, asked: Sequence[int], began: dict[int, int]) -> Values:
    if len(began) < len(asked):
        raise Failed(f"{len(asked) - len(began)} of {len(asked)} jobs were not seen to begin")
    waits = [(began[tag] - at) / 1e6 for tag, at in enumerate(asked)]
    points = quantiles(waits, n=100, method="inclusive")
    return {f"{name} p{at}": points[at - 1] for at in (50, 95, 99)}


def _with(program: Program, *options: str) -> Program:
    return program._replace(options=(*program.options, *options))


def _rate(seconds: float | None, n: int, failure: str = "") -> float:
    if seconds is None:
        raise Failed(failure)
    return n / seconds


MEASURES: dict[str, Callable[[Setting, Contestant], Values]] = {
    "singles": singles,
    "singles blocking": singles_blocking,
    "concurrent": concurrent,
    "silent": silent,
    "bulk": bulk,
    "drain": drain,
    "drain by two": drain_by_two,
    "threads": threads,
    "idle": idle,
    "loaded": loaded,
}
"""In the order of a round: the rate of the last comes from a drain before it."""
