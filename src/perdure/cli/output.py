"""All that a command prints. What comes from a job, a name or a message is made harmless here.

Escape sequences could retitle, clear or type into a terminal, marks of writing direction turn a name around, and a line
break forge a line of ours.
"""

from __future__ import annotations

import click

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def say(sentence: str = "", *, err: bool = False, end: str = "\n") -> None:
    """Print one line for people."""
    click.echo(line(sentence) + end, err=err, nl=False)


def say_lines(text: str) -> None:
    """Print several lines for people."""
    click.echo(printable(text))


def headline(title: str) -> None:
    """Print what the next lines are about."""
    click.echo()
    click.secho(line(title), bold=True)


def exact(text: str, *, end: str = "\n") -> None:
    """Print what another program reads, unchanged: only JSON in ASCII, and SQL of ours."""
    click.echo(text + end, nl=False)


def number(value: float) -> str:
    """A count or a rate for people: ``12,345``, and three digits of what is smaller than 100."""
    return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:.3g}"


def line(text: str) -> str:
    """Without control characters and line breaks."""
    return text if text.isprintable() else "".join(map(_harmless, text))


def one_line(text: str) -> str:
    """The same, with one space for any white space."""
    return line(" ".join(text.split()))


def printable(text: str) -> str:
    """Without control characters, apart from line breaks and tabs."""
    if text.isprintable():
        return text
    return "".join(letter if letter in "\n\t" else _harmless(letter) for letter in text)


def indented(text: str) -> str:
    """With all lines but the first one set off, so that none of them looks like another entry of a list or a log."""
    return text.replace("\n", "\n    ")


def _harmless(letter: str) -> str:
    # That leaves out controls, formats such as marks of direction, separators, surrogates and what is unassigned.
    return letter if letter.isprintable() else REPLACEMENT
