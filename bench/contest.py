"""Perdure, the bare limit and the queues a user would pick instead, in one run on one server: `make bench`.

Round after round all contestants go through all workloads in turns. `--quick` takes perdure, the limit, PgQueuer and
Huey through the most telling ones in less than three minutes.
"""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from contextlib import ExitStack
from math import inf
from pathlib import Path
from time import monotonic, perf_counter

from bench import alone
from bench.arena import Arena, arena
from bench.calls import Failed
from bench.contestants import CONTESTANTS, Contestant, quick
from bench.measures import MEASURES, QUICK_SIZES, Setting, Sizes
from bench.report import Report
from bench.results import Entry, Results, is_latency
from bench.servers import databases
from bench.targets import judge
from bench.venvs import NotInstalled

ROUNDS, QUICK_ROUNDS = 5, 5
QUICK_SECONDS = 170.0
"""No round is begun that would end later than this, unless so many were asked for."""
WEATHER = json.dumps({"to": "user@example.com", "numbers": list(range(20))})
LOAD = 0.5
"""Of what PgQueuer drains in the same round."""


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _parse(arguments)
    contestants = quick() if asked.quick else CONTESTANTS
    if asked.only:
        contestants = tuple(each for each in contestants if each.name in asked.only.split(","))
        if not contestants:
            raise SystemExit(f"Nobody is called {asked.only}.")
    contestants = tuple(each._replace(drain=max(1, int(each.drain * asked.scale))) for each in contestants)
    with ExitStack() as stack:
        copy = None
        if asked.save is not None:
            asked.save.parent.mkdir(parents=True, exist_ok=True)
            copy = stack.enter_context(asked.save.open("w"))
        report = Report(copy)
        sizes = (QUICK_SIZES if asked.quick else Sizes()).scaled(asked.scale)
        compete(report, contestants, sizes, quick=asked.quick, rounds=asked.rounds)
        return report.status()


def compete(
    report: Report,
    contestants: tuple[Contestant, ...],
    sizes: Sizes,
    *,
    quick: bool,
    rounds: int | None = None,
) -> Results:
    """Run the contest and tell its figures."""
    start = monotonic()
    results = Results()
    with databases(report) as made, arena(report, made, contestants) as ready:
        able = tuple(each for each in contestants if _prepare(report, ready, each))
        most = rounds or (QUICK_ROUNDS if quick else ROUNDS)
        until = start + QUICK_SECONDS if quick and rounds is None else inf
        for number in range(most):
            begun = monotonic()
            play_round(report, results, Setting(ready, sizes), able, number)
            ready.sweep()
            if number + 1 < most and 2 * monotonic() - begun > until:
                report.fact(rounds=number + 1, instead_of=most, because="another would take too long")
                break
        if not quick:
            alone.measure(report, Setting(ready, sizes), able)
        tell(report, results)
        judge(report, results)
    return results


def _prepare(report: Report, ready: Arena, contestant: Contestant) -> bool:
    try:
        versions = ready.prepare(contestant)
    except (Failed, NotInstalled) as error:
        _tell_failure(report, contestant, not_run=str(error))
        return False
    report.fact(
        contestant=contestant.name,
        store=contestant.store,
        concurrency=contestant.concurrency,
        versions=versions,
        options=[*contestant.options, *contestant.worker_options],
    )
    return True


def play_round(
    report: Report, results: Results, setting: Setting, contestants: tuple[Contestant, ...], number: int
) -> None:
    """All contestants through all workloads, in turns."""
    _tell_weather(report, number)
    # Nobody always comes after the same neighbour.
    order = contestants[number % len(contestants) :] + contestants[: number % len(contestants)]
    for workload, measure in MEASURES.items():
        if workload == "loaded":
            drained = results.get(number, Entry("drain", "pgqueuer"))
            setting = setting._replace(rate=drained and LOAD * drained)
        for contestant in order:
            if workload not in contestant.workloads:
                continue
            try:
                if workload == "loaded" and setting.rate is None:
                    raise Failed("the rate is a part of what PgQueuer drains, and it has drained nothing")
                values = measure(setting, contestant)
            except Failed as error:
                _tell_failure(report, contestant, workload=workload, round=number, not_run=str(error))
                continue
            for name, value in values.items():
                results.add(number, Entry(name, contestant.name), value)
                report.fact(run=name, contestant=contestant.name, round=number, value=value)


def _tell_failure(report: Report, contestant: Contestant, **facts: object) -> None:
    """A peer may be unable to do something; perdure may not."""
    if contestant.name.startswith("perdure"):
        report.failure(f"{contestant.name} did not run", peer=contestant.name, **facts)
    else:
        report.fact(peer=contestant.name, **facts)


def _tell_weather(report: Report, number: int) -> None:
    """How busy and how quick the machine is: the same one may be half as fast a minute later."""
    start, times = perf_counter(), 0
    while perf_counter() - start < 0.1:
        json.loads(WEATHER)
        times += 1
    rate = times / (perf_counter() - start)
    report.fact(round=number, load_average=round(os.getloadavg()[0], 2), json_loads_a_second=rate)


def tell(report: Report, results: Results) -> None:
    """The median of each contestant at each workload."""
    for entry in sorted(results.entries()):
        summary = results.summary(entry)
        assert summary is not None
        report.figure(
            f"{entry.workload}: {entry.contestant}",
            summary.value,
            "ms" if is_latency(entry.workload) else "jobs/s",
            workload=entry.workload,
            contestant=entry.contestant,
            spread=summary.spread,
            rounds=summary.rounds,
        )


def _parse(arguments: Sequence[str] | None) -> _Asked:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="perdure, the limit, PgQueuer and Huey")
    parser.add_argument("--rounds", type=int, help="how many times everything is measured")
    parser.add_argument("--save", type=Path, help="a file for all that is printed")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="part of the jobs: to try the harness itself"
    )
    parser.add_argument("--only", default="", help="contestants, by name, with commas between")
    return parser.parse_args(arguments, namespace=_Asked())


class _Asked:
    quick: bool
    rounds: int | None
    only: str
    scale: float
    save: Path | None


if __name__ == "__main__":
    sys.exit(main())
