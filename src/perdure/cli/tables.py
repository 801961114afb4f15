"""Tables that fit the terminal: unimportant columns are left out, then long cells are cut.

A terminal gets colours if rich is installed. Output to a pipe is complete: no colours, nothing cut or wrapped.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from perdure.cli.output import one_line, say

GAP = 2
"""Spaces between two columns."""

_STYLES = {
    "running": "cyan",
    "ready": "yellow",
    "open": "yellow",
    "retrying": "magenta",
    "held": "red",
    "succeeded": "green",
    "live": "green",
    "failed": "red",
    "silent": "red",
    "canceled": "dim",
    "paused": "yellow",
}


class Column(NamedTuple):
    """A column of a table.

    ``rank``: columns with a higher rank are left out first; a column with rank 0 always stays. ``least``: cells may be
    cut to this width; if it is None, they are never cut. ``keep_end``: cut the start of a cell, because names such as
    ``shop.orders.mail.send`` differ at their ends.
    """

    title: str
    rank: int = 0
    least: int | None = None
    right: bool = False
    keep_end: bool = False


class Shown(NamedTuple):
    """The index and the width of a column that is shown."""

    place: int
    width: int


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print a table, or nothing if there are no rows."""
    if not rows:
        return
    rows = [[one_line(cell) for cell in row] for row in rows]
    shown = layout(columns, rows, terminal_width())
    if terminal_width() is not None and _has_rich():
        _draw_with_rich(columns, rows, shown)
    else:
        for line in draw(columns, rows, shown):
            say(line)


def facts(pairs: Sequence[tuple[str, str | None]]) -> None:
    """Print names and values, one pair per line; pairs with the value None are left out."""
    widest = max((len(name) for name, value in pairs if value is not None), default=0)
    for name, value in pairs:
        if value is not None:
            say(f"{name:{widest}}  {one_line(value)}")


def layout(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> list[Shown]:
    """Choose the columns to show and their widths. ``width``: the terminal's width; None shows everything."""
    widths = [max(map(cells, (column.title, *texts))) for column, *texts in zip(columns, *rows, strict=True)]
    shown = list(range(len(columns)))
    if width is None:
        return [Shown(place, widths[place]) for place in shown]
    # A column that may be cut is at most as wide as the terminal.
    widths = [min(w, max(width, c.least)) if c.least else w for c, w in zip(columns, widths, strict=True)]
    least = [min(widths[place], columns[place].least or widths[place]) for place in shown]
    while _total(least[place] for place in shown) > width:
        last = max(shown, key=lambda place: columns[place].rank)
        if columns[last].rank == 0:
            break
        shown.remove(last)
    while _total(widths[place] for place in shown) > width:
        widest = max(shown, key=lambda place: widths[place] - least[place])
        if widths[widest] == least[widest]:
            break
        widths[widest] -= 1
    return [Shown(place, widths[place]) for place in shown]


def draw(columns: Sequence[Column], rows: Sequence[Sequence[str]], shown: Sequence[Shown]) -> list[str]:
    """The lines of a table as text without colours."""
    titles = [column.title for column in columns]
    return [
        (" " * GAP).join(_fit(row[place], width, columns[place]) for place, width in shown).rstrip()
        for row in (titles, *rows)
    ]


def terminal_width() -> int | None:
    """The width of the terminal; None if stdout is not a terminal."""
    if not sys.stdout.isatty():
        return None
    from shutil import get_terminal_size

    return get_terminal_size().columns


def cells(text: str) -> int:
    """The number of terminal cells that a text takes."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(letter) else 2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def _total(widths: Iterable[int]) -> int:
    each = list(widths)
    return sum(each) + GAP * (len(each) - 1)


def _fit(text: str, width: int, column: Column) -> str:
    text = _cut(text, width, keep_end=column.keep_end)
    space = " " * (width - cells(text))
    return space + text if column.right else text + space


def _cut(text: str, width: int, *, keep_end: bool) -> str:
    if cells(text) <= width:
        return text
    text = text[1 - width :] if keep_end and width > 1 else text[: width - 1]
    while cells(text) >= width:
        text = text[1:] if keep_end else text[:-1]
    return f"…{text}" if keep_end else f"{text}…"


def _has_rich() -> bool:
    try:
        import rich.table  # noqa: F401
    except ImportError:
        return False
    return True


def _draw_with_rich(columns: Sequence[Column], rows: Sequence[Sequence[str]], shown: Sequence[Shown]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for place, width in shown:
        title, right = columns[place].title, columns[place].right
        drawn.add_column(
            title, width=width, no_wrap=True, overflow="ellipsis", justify="right" if right else "left"
        )
    for row in rows:
        drawn.add_row(
            *(
                Text(
                    _cut(row[place], width, keep_end=columns[place].keep_end),
                    style=_STYLES.get(row[place], ""),
                )
                for place, width in shown
            )
        )
    # The width must be at least the width of the table. Otherwise rich would cut columns that must not be cut.
    needed = _total(width for _, width in shown)
    console = Console(highlight=False)
    console.print(drawn, width=max(needed, console.width), crop=False, overflow="ignore")
