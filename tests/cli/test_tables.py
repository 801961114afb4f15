"""Tables fit the terminal, and a pipe gets everything."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from perdure import App
from perdure.cli.output import number, one_line, printable
from perdure.cli.tables import Column, Shown, cells, draw, layout
from tests.harness.processes import run_cli

COLUMNS = [
    Column("ID"),
    Column("TASK", least=4),
    Column("N", rank=1, right=True),
    Column("NOTE", rank=2, least=6),
]
ROWS = [["a-long-id", "mail.send", "12", "a note that goes on"], ["b", "x", "3", ""]]


def drawn(width: int | None) -> list[str]:
    return draw(COLUMNS, ROWS, layout(COLUMNS, ROWS, width))


def test_without_a_terminal_nothing_is_cut() -> None:
    assert drawn(None) == [
        "ID         TASK        N  NOTE",
        "a-long-id  mail.send  12  a note that goes on",
        "b          x           3",
    ]
    assert drawn(45) == drawn(None)


def test_long_cells_are_cut_first() -> None:
    assert drawn(40)[1] == "a-long-id  mail.send  12  a note that g…"
    assert drawn(30)[1] == "a-long-id  mail…  12  a note …"


def test_a_name_keeps_its_end() -> None:
    columns = [Column("ID"), Column("TASK", least=4, keep_end=True)]
    rows = [["a", "shop.orders.mail.send"], ["b", "shop.orders.日本語"]]
    assert draw(columns, rows, layout(columns, rows, 14)) == ["ID  TASK", "a   …mail.send", "b   …rs.日本語"]
    assert draw(columns, rows, layout(columns, rows, None))[1] == "a   shop.orders.mail.send"
    for width in range(4, 30):
        shown = draw(columns, rows, [Shown(0, 2), Shown(1, width - 4 or 1)])
        assert max(map(cells, shown[1:])) <= max(width, 5)


def test_then_columns_go_by_rank() -> None:
    assert drawn(26) == ["ID         TASK        N", "a-long-id  mail.send  12", "b          x           3"]
    assert drawn(17)[1] == "a-long-id  mail.…"


def test_what_is_never_cut_stays_whatever_the_width() -> None:
    assert drawn(1)[1] == "a-long-id  mai…"


@pytest.mark.parametrize("width", range(15, 60))
def test_no_line_is_longer_than_the_terminal(width: int) -> None:
    assert max(map(cells, drawn(width))) <= width


def test_wide_letters_count_twice_and_marks_not_at_all() -> None:
    assert [cells(text) for text in ("ab", "日本", "e\u0301")] == [2, 4, 1]
    rows = [["日本語", "x"], ["a", "y"]]
    columns = [Column("A"), Column("B")]
    assert draw(columns, rows, layout(columns, rows, None))[1:] == ["日本語  x", "a       y"]


def test_a_terminal_obeys_nothing_a_job_wrote() -> None:
    assert one_line(" a\n\tb\x1b[2J\x07\x9b ") == "a b�[2J��"
    assert printable("a\n\tb\x1b") == "a\n\tb�"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (7.0, "7"),
        (999, "999"),
        (12_345, "12,345"),
        (12_345.6, "12,346"),
        (3.14159, "3.14"),
        (0.00012, "0.00012"),
    ],
)
def test_a_number_is_written_alike_everywhere(value: float, shown: str) -> None:
    assert number(value) == shown


@pytest.fixture
def home(tmp_path: Path) -> Path:
    app = App(f"sqlite:///{tmp_path / 'perdure.db'}")
    app.task(name="mail.send", queue="a-queue-with-a-long-name")(lambda: None)
    app.enqueue("mail.send")
    app.close()
    return tmp_path


def in_terminal(home: Path, columns: int, *, rich: bool = True) -> str:
    """What ``perdure jobs`` writes into a terminal so wide."""
    mine, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    hidden = "" if rich else "sys.modules['rich'] = None; "
    program = f"import sys; {hidden}sys.argv = ['perdure', 'jobs']; from perdure.cli import main; main()"
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=its,
        stdout=its,
        stderr=its,
        cwd=home,
        env=env | {"TERM": "xterm"},
    ) as process:
        os.close(its)
        written = b""
        try:
            while part := os.read(mine, 4096):
                written += part
        except OSError:
            # How Linux tells that nobody has the other end open.
            pass
    os.close(mine)
    assert process.returncode == 0
    return written.decode()


@pytest.mark.parametrize("rich", [True, False])
@pytest.mark.parametrize("columns", [60, 80, 200])
def test_a_terminal_gets_what_fits(home: Path, columns: int, rich: bool) -> None:
    written = in_terminal(home, columns, rich=rich)
    assert ("\x1b[" in written) is rich, "colours come from rich"
    lines = re.sub(r"\x1b\[[\d;]*m", "", written).splitlines()
    assert max(map(len, lines)) <= columns
    assert len(lines) == 2, "nothing is wrapped"
    assert re.match(r"[0-9a-f-]{36}  ready", lines[1])
    assert ("a-queue-with-a-long-name" in lines[1]) is (columns == 200)
    assert ("ATTEMPT" in lines[0]) is (columns == 200)
    assert "NOTE" in lines[0], "why something failed is wanted before all that"


@pytest.mark.parametrize("rich", [True, False])
def test_a_terminal_gets_the_end_of_a_long_name(tmp_path: Path, rich: bool) -> None:
    app = App(f"sqlite:///{tmp_path / 'perdure.db'}")
    app.task(name="shop.customers.orders.mail.send")(lambda: None)
    app.enqueue("shop.customers.orders.mail.send")
    app.close()
    last = re.sub(r"\x1b\[[\d;]*m", "", in_terminal(tmp_path, 60, rich=rich)).splitlines()[-1]
    assert re.search(r" …[a-z.]*mail\.send *$", last)
    assert "shop" not in last


def test_a_pipe_gets_everything_and_no_colours(home: Path) -> None:
    ran = run_cli("jobs", cwd=home, COLUMNS="20", FORCE_COLOR="1")
    assert ran.returncode == 0
    assert "\x1b" not in ran.stdout
    assert "a-queue-with-a-long-name" in ran.stdout
    assert len(ran.stdout.splitlines()) == 2
