"""Puts the figures of a run into `docs/performance.md`, between markers, charts beside it: `make bench-table`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import charts, lines
from bench.charts import number
from bench.lines import Line
from bench.results import is_latency

BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"

RATES = {
    "singles": "one by one",
    "singles blocking": "one by one, blocking",
    "concurrent": "50 callers",
    "bulk": "1,000s",
    "drain": "drain",
    "drain by two": "drain by two",
    "threads": "drain in threads",
}
LATENCIES = {
    f"{workload} p{at}": f"{workload} p{at}" for workload in ("idle", "loaded") for at in (50, 95, 99)
} | {"cold start": "cold start"}
CHARTS = {
    "drain": "No-op jobs drained by one process",
    "drain by two": "No-op jobs drained by two processes",
    "singles": "Jobs enqueued one by one",
    "bulk": "Jobs enqueued in thousands",
    "idle p50": "Pick-up on an idle worker, p50",
}


def main(arguments: Sequence[str] | None = None) -> int:
    run, page = (Path(argument) for argument in (sys.argv[1:] if arguments is None else arguments))
    read = lines.read(run)
    page.write_text(between_markers(page.read_text(), markdown(read)))
    for workload, chart in draw(read).items():
        target = page.parent / "charts" / _file(workload)
        target.parent.mkdir(exist_ok=True)
        target.write_text(chart)
    return 0


def between_markers(page: str, text: str) -> str:
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"The page has no lines {BEGIN} and {END} to write between.")
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def markdown(read: Sequence[Line]) -> str:
    """All that the run has told, as tables."""
    parts = [
        _settings(read),
        _grid(read, "jobs/s, median (lowest to highest)", RATES),
        _grid(read, "ms, median (lowest to highest)", LATENCIES),
        _alone(read),
        _ratios(read),
        "\n".join(f"![{CHARTS[workload]}](charts/{_file(workload)})" for workload in draw(read)),
        _missing(read),
    ]
    return "\n\n".join(part for part in parts if part)


def draw(read: Sequence[Line]) -> dict[str, str]:
    """A chart for each workload that more than one contestant went through."""
    made = {}
    for workload, title in CHARTS.items():
        found = {
            line["contestant"]: line["value"]
            for line in read
            if line.get("workload") == workload and _told(line)
        }
        if len(found) > 1:
            latency = is_latency(workload)
            made[workload] = charts.bars(title, found, "ms" if latency else "jobs/s", less_is_better=latency)
    return made


def _file(workload: str) -> str:
    return f"{workload.replace(' ', '-')}.svg"


def _settings(read: Sequence[Line]) -> str:
    words = []
    for line in read:
        if not _told(line) and {"cores", "database", "server"} & line.keys() and "not_run" not in line:
            words.append(", ".join(f"{key} {_plain(value)}" for key, value in line.items()))
    versions = [
        f"{line['contestant']} ({', '.join(f'{name} {version}' for name, version in line['versions'].items())};"
        f" concurrency {line['concurrency']})"
        for line in read
        if "versions" in line
    ]
    rounds = {line["rounds"] for line in read if _told(line) and line.get("workload") in RATES}
    words += [f"rounds {max(rounds)}"] if rounds else []
    return "\n".join(f"- {word}" for word in [*words, ", ".join(versions)] if word)


def _grid(read: Sequence[Line], corner: str, titles: dict[str, str]) -> str:
    cells: dict[str, dict[str, str]] = {}
    for line in read:
        if _told(line) and line.get("workload") in titles:
            cells.setdefault(line["contestant"], {})[line["workload"]] = _cell(line)
    # As they were introduced, not as they came to a first figure.
    order = [line["contestant"] for line in read if "versions" in line]
    names = sorted(cells, key=lambda name: order.index(name) if name in order else len(order))
    columns = [workload for workload in titles if any(workload in row for row in cells.values())]
    if not columns:
        return ""
    heads = [corner, *(titles[workload] for workload in columns)]
    return _table(heads, [[name, *(cells[name].get(each, "-") for each in columns)] for name in names])


def _alone(read: Sequence[Line]) -> str:
    """Figures that are neither of a grid nor a ratio."""
    known = {*RATES, *LATENCIES}
    rows = [
        [line["figure"], f"{number(line['value'])} {line['unit']}"]
        for line in read
        if _told(line) and line["unit"] != "ratio" and line.get("workload") not in known
    ]
    return _table(["figure", "median"], rows) if rows else ""


def _ratios(read: Sequence[Line]) -> str:
    rows = [
        [
            line["figure"],
            _cell(line),
            "-" if line["target"] is None else number(line["target"]),
            _verdict(line["ok"]),
        ]
        for line in read
        if _told(line) and line["unit"] == "ratio"
    ]
    return _table(["ratio within a round", "median (lowest to highest)", "target", ""], rows) if rows else ""


def _missing(read: Sequence[Line]) -> str:
    """Who was not measured at what, each reason once."""
    reasons: dict[str, None] = {}
    for line in read:
        if "not_run" in line:
            who = line.get("peer") or line.get("server")
            at = f" ({line['workload']})" if "workload" in line else ""
            reasons[f"- not run: {who}{at}: {line['not_run']}"] = None
    return "\n".join(reasons)


def _told(line: Line) -> bool:
    return "figure" in line


def _cell(line: Line) -> str:
    if "spread" not in line or line["rounds"] == 1:
        return number(line["value"])
    low, high = line["spread"]
    return f"{number(line['value'])} ({number(low)} to {number(high)})"


def _verdict(ok: bool | None) -> str:
    return {None: "", True: "met", False: "missed"}[ok]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Numbers to the right."""
    shown = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in shown)


def _plain(value: Any) -> str:
    return (" ".join(value) or "none") if isinstance(value, list) else str(value)


if __name__ == "__main__":
    sys.exit(main())
