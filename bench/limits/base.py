"""Unlimited jobs, by this checkout and by an earlier commit."""

from __future__ import annotations

import subprocess
import tarfile
import tempfile
from functools import partial
from pathlib import Path

from bench.limits.drains import ROOT, Bench
from bench.limits.program import Jobs
from bench.limits.rounds import Bounds, Rounds
from bench.limits.sizes import Sizes
from bench.report import Report

COST = Bounds(at_most=1.05)


def measure(report: Report, bench: Bench, sizes: Sizes, commit: str) -> None:
    with tempfile.TemporaryDirectory(prefix="perdure-base-") as directory:
        source = _check_out(commit, Path(directory))
        jobs = Jobs("free", sizes.jobs)
        before = bench.prepare(jobs, source=source)
        sides = {commit: partial(bench.drain, before), "now": partial(bench.drain, bench.prepare(jobs))}
        rounds = Rounds(report, f"{bench.kind}: unlimited jobs", sides, sizes.rounds)
    rounds.figures()
    rounds.costs("now", commit, COST)
    rounds.rates("now", commit)


def _check_out(commit: str, directory: Path) -> Path:
    """The package as it was at this commit."""
    archive = directory / "src.tar"
    subprocess.run(["git", "archive", "--output", archive, commit, "src"], cwd=ROOT, check=True)
    with tarfile.open(archive) as files:
        files.extractall(directory, filter="data")
    return directory
