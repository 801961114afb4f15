"""Prints the output of commands. Every text from a job, a name or a message is made safe here.

Escape sequences could retitle or clear a terminal, or type into it. Direction marks could reverse a name. A line break
could forge a line of output.
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
    """Print a title above the next lines."""
    click.echo()
    click.secho(line(title), bold=True)


def exact(text: str, *, end: str = "\n") -> None:
    """Print text unchanged, for another program. Only for text that is safe: JSON in ASCII, and perdure's own SQL."""
    click.echo(text + end, nl=False)


def number(value: float) -> str:
    """A count or a rate for people: ``12,345``; fractions below 100 with three digits."""
    return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:.3g}"


def line(text: str) -> str:
    """The text with control characters and line breaks replaced."""
    return text if text.isprintable() else "".join(map(_harmless, text))


def one_line(text: str) -> str:
    """The text on one line, with one space for each run of white space."""
    return line(" ".join(text.split()))


def printable(text: str) -> str:
    """The text with control characters replaced, except line breaks and tabs."""
    if text.isprintable():
        return text
    return "".join(letter if letter in "\n\t" else _harmless(letter) for letter in text)


def indented(text: str) -> str:
    """The text with every line but the first indented, so that no line looks like another entry of a list or a log."""
    return text.replace("\n", "\n    ")


def _harmless(letter: str) -> str:
    # isprintable() is False for control characters, direction marks, separators, surrogates and unassigned characters.
    return letter if letter.isprintable() else REPLACEMENT
