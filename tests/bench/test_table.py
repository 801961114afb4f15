from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench import table
from bench.charts import bars, number


def figure(workload: str, contestant: str, value: float, **more: Any) -> dict[str, Any]:
    name = f"{workload}: {contestant}"
    told = {"unit": "jobs/s", "target": None, "ok": None, "spread": [value / 2, value * 2], "rounds": 3}
    return {
        "figure": name,
        "value": value,
        "workload": workload,
        "contestant": contestant,
        **told,
        **more,
    }


RATIO: dict[str, Any] = {"unit": "ratio", "spread": [1.5, 2.0], "rounds": 3}
RUN: list[dict[str, Any]] = [
    {"python": "3.11.7", "cores": 2, "file_system": "ext4"},
    {"server": "redis-stock", "version": "7.0", "options": []},
    {"contestant": "huey", "store": "sqlite", "concurrency": 1, "versions": {"huey": "3.5.4"}},
    {"peer": "chancy", "not_run": "pip failed"},
    {"peer": "rq", "workload": "concurrent", "round": 0, "not_run": "no async API"},
    {"peer": "rq", "workload": "concurrent", "round": 1, "not_run": "no async API"},
    {"run": "drain", "contestant": "huey", "round": 0, "value": 3000.0},
    figure("drain", "huey", 3000.0),
    figure("drain", "perdure", 21_234.0),
    figure("singles", "perdure", 1800.0),
    figure("bulk", "perdure", 40_000.0, rounds=1),
    figure("idle p50", "perdure", 2.5, unit="ms"),
    {"figure": "perdure: time per job", "value": 190.0, "unit": "µs", "target": None, "ok": None},
    {"figure": "drain: perdure / Huey", "value": 1.7, "target": 6.0, "ok": False, **RATIO},
    {"figure": "beside", "value": 1.7, "target": None, "ok": None, **RATIO},
]


def test_a_run_becomes_tables() -> None:
    text = table.markdown(RUN)
    assert "- python 3.11.7, cores 2, file_system ext4" in text
    assert "huey (huey 3.5.4; concurrency 1)" in text
    assert (
        "| jobs/s, median (lowest to highest) | one by one | 1,000s | drain |\n| --- | ---: | ---: | ---: |"
        in text
    )
    assert "| huey | - | - | 3,000 (1,500 to 6,000) |" in text
    assert "| perdure | 1,800 (900 to 3,600) | 40,000 | 21,200 (10,600 to 42,500) |" in text
    assert "- rounds 3\n" in text
    assert "| perdure | 2.5 (1.25 to 5) |" in text
    assert "| perdure: time per job | 190 µs |" in text
    assert "| drain: perdure / Huey | 1.7 (1.5 to 2) | 6 | missed |" in text
    assert "| beside | 1.7 (1.5 to 2) | - |  |" in text
    assert text.index("| huey |") < text.index("| perdure |")
    assert "![No-op jobs drained by one process](charts/drain.svg)" in text
    assert "- not run: chancy: pip failed" in text
    assert text.count("- not run: rq (concurrent): no async API") == 1


def test_the_tables_go_between_the_markers_and_leave_the_rest_alone(tmp_path: Path) -> None:
    run, page = tmp_path / "run.jsonl", tmp_path / "performance.md"
    run.write_text("".join(f"{json.dumps(line)}\n" for line in RUN))
    page.write_text(f"Before.\n\n{table.BEGIN}\nobsolete\n{table.END}\n\nAfter.\n")
    for _ in range(2):  # the second time changes nothing
        assert table.main([str(run), str(page)]) == 0
        written = page.read_text()
        assert written.startswith(f"Before.\n\n{table.BEGIN}\n- python")
        assert written.endswith(f"\n{table.END}\n\nAfter.\n")
        assert "obsolete" not in written
    assert [path.name for path in (tmp_path / "charts").iterdir()] == ["drain.svg"]


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(SystemExit, match="has no lines"):
        table.between_markers("nothing here", "text")


def test_a_chart_is_valid_and_has_the_best_first() -> None:
    svg = ElementTree.fromstring(bars("Fast & safe", {"huey": 3000.0, "perdure": 21_234.0}, "jobs/s"))
    texts = [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["Fast & safe (jobs/s)", "perdure", "21,200", "huey", "3,000"]
    less = ElementTree.fromstring(bars("Wait", {"huey": 50.0, "perdure": 2.5}, "ms", less_is_better=True))
    assert [element.text for element in less.iter("{http://www.w3.org/2000/svg}text")][1] == "perdure"


@pytest.mark.parametrize(
    ("value", "shown"), [(21_234.0, "21,200"), (99.96, "100"), (2.5, "2.5"), (0.0312, "0.0312")]
)
def test_a_number_has_three_digits(value: float, shown: str) -> None:
    assert number(value) == shown


def test_the_page_of_the_project_has_the_markers() -> None:
    page = Path(__file__).parents[2] / "docs" / "performance.md"
    assert table.between_markers(page.read_text(), "text")
