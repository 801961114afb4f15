"""Bar charts as SVG, by hand: a benchmark needs no library for rectangles."""

from __future__ import annotations

from collections.abc import Mapping
from xml.sax.saxutils import escape

WIDTH, LABELS, NUMBERS, BAR, GAP, TOP = 720, 170, 90, 20, 8, 40
OURS, LIMIT, OTHERS = "#2a6f97", "#b8c4cc", "#e09f3e"


def bars(title: str, values: Mapping[str, float], unit: str, *, less_is_better: bool = False) -> str:
    """One bar for each name, the best first."""
    order = sorted(values.items(), key=lambda item: item[1], reverse=not less_is_better)
    longest = max(values.values())
    height = TOP + len(order) * (BAR + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
        ' font-family="system-ui, sans-serif" font-size="13">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="8" y="24" font-weight="bold" fill="#222">{escape(title)} ({escape(unit)})</text>',
    ]
    for row, (name, value) in enumerate(order):
        parts += _bar(name, value, top=TOP + row * (BAR + GAP), length=value / longest)
    return "\n".join([*parts, "</svg>", ""])


def _bar(name: str, value: float, *, top: int, length: float) -> list[str]:
    width = max(1.0, length * (WIDTH - LABELS - NUMBERS))
    text = top + BAR - 5
    return [
        f'<text x="{LABELS - 8}" y="{text}" text-anchor="end" fill="#222">{escape(name)}</text>',
        f'<rect x="{LABELS}" y="{top}" width="{width:.1f}" height="{BAR}" fill="{_colour(name)}"/>',
        f'<text x="{LABELS + width + 6:.1f}" y="{text}" fill="#222">{number(value)}</text>',
    ]


def number(value: float) -> str:
    """Three digits, and thousands apart."""
    short = float(f"{value:.3g}")
    return f"{short:,.0f}" if short >= 100 else f"{short:g}"


def _colour(name: str) -> str:
    if name.startswith("perdure"):
        return OURS
    return LIMIT if name.startswith("bare") else OTHERS
