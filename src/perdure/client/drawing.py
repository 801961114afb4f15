"""Drawings of workflows, for Markdown and for terminals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from perdure.model.graph import Shape

SHOWN = 3
"""The most parents that a line names; further parents are only counted."""


def mermaid(steps: Sequence[Shape], title: str) -> str:
    """A Mermaid flowchart. Gates are hexagons; dotted arrows are ``after_done``."""
    names = {step.key: f"s{number}" for number, step in enumerate(steps)}
    lines = ["---", f"title: {_quoted(title)}", "---", "flowchart TD"]
    for step in steps:
        left, right = ("{{", "}}") if step.gate else ("[", "]")
        lines.append(f"    {names[step.key]}{left}{_quoted(step.key)}{right}")
    for step in steps:
        lines += [f"    {names[parent]} --> {names[step.key]}" for parent in step.after]
        lines += [f"    {names[parent]} -.-> {names[step.key]}" for parent in step.after_done]
    return "\n".join(lines) + "\n"


def tree(steps: Sequence[Shape], label: Callable[[Shape], str] = lambda step: "") -> list[str]:
    """The lines of a tree. Each step is drawn below the last of its parents, so all its parents are above it."""
    place = {step.key: number for number, step in enumerate(steps)}
    children: dict[str | None, list[Shape]] = {}
    for step in steps:
        above = max(step.parents, key=lambda parent: place[parent], default=None)
        children.setdefault(above, []).append(step)
    lines: list[str] = []
    # A loop, not a recursive function: a chain may have thousands of steps.
    front = [*_below(children.get(None, []), "")]
    while front:
        step, before, own, below = front.pop()
        lines.append(f"{before}{own}{_line(step, label(step))}")
        front += _below(children.get(step.key, []), before + below)
    return lines


def _below(steps: Sequence[Shape], indent: str) -> Iterator[tuple[Shape, str, str, str]]:
    """The children of a step, last first, because the caller takes them from the end.

    With each child come the indent, its own branch, and the indent to add for its children. An only child is not
    indented, so that a long chain does not become too wide.
    """
    if len(steps) == 1:
        yield steps[0], indent, "", ""
        return
    for number, step in reversed([*enumerate(steps, 1)]):
        end = number == len(steps)
        yield step, indent, "└─ " if end else "├─ ", "   " if end else "│  "


def _line(step: Shape, label: str) -> str:
    shown = f"<{step.key}>" if step.gate else step.key
    waits = [*step.after, *(f"{parent} (done)" for parent in step.after_done)]
    told = ", ".join(waits[:SHOWN]) + (f" and {len(waits) - SHOWN} more" if len(waits) > SHOWN else "")
    return shown + (f"  {label}" if label else "") + (f"  ← {told}" if told else "")


def _quoted(text: str) -> str:
    return '"' + text.replace("&", "&amp;").replace('"', "&quot;").replace("\n", " ") + '"'
