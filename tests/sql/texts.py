"""The statements in their files, and the names that operations use."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import perdure
from perdure.store.statements import Dialect, repeat

PACKAGE = Path(perdure.__file__).parent
SQL = PACKAGE / "store" / "sql"
OPS = PACKAGE / "ops"

ABSENT: dict[Dialect, dict[str, str]] = {
    "sqlite": {
        "claim_window": "Starting a statement costs nothing, so a worker always runs claim_jobs.",
        "claim_skipping_locked": "There is one writer at a time, so claim_jobs never meets a locked row.",
        "succeed_steps": "There are no round trips to save, so a worker uses the general path.",
        "show_isolation": "The only writer sees everything that is committed: for servers only.",
        "lock_workflows_skipping_locked": "There are no row locks: for servers only.",
    },
    "postgres": {"count_down": "release_steps does both: for embedded stores only."},
}
"""The statements that a dialect does not have, with the reason."""

ASKS = {"Query", "ask", "ask_last"}


class Text(NamedTuple):
    """One named statement: its comments above, what is left without any, and that with its fragments filled in."""

    name: str
    heading: str
    raw: str
    body: str

    @property
    def normal(self) -> str:
        """The same for two texts that only look different."""
        return " ".join(self.body.lower().split())

    @property
    def params(self) -> set[str]:
        return set(re.findall(r"(?<![:\w]):([a-z_]+)", self.body))


def read(file: str) -> list[Text]:
    """Every statement of a file, in order."""
    # A shared statement takes the same parameters on both: its fragments are those of either.
    files = dict.fromkeys(("shared.sql", "postgres.sql", file))
    fragments = {part.name: part.raw for each in files for kind, part in _parts(each) if kind == "fragment"}
    return [part._replace(body=_fill(part.raw, fragments)) for kind, part in _parts(file) if kind == "name"]


def fragments(file: str) -> list[str]:
    """The names of a file's fragments, in order."""
    return [part.name for kind, part in _parts(file) if kind == "fragment"]


def asked() -> dict[str, set[str]]:
    """The statements that operations ask for, each with the modules that do."""
    found: dict[str, set[str]] = {}
    for module in sorted(OPS.glob("*.py")):
        if module.name != "op.py":
            for name in names_in(module.read_text(), module.name):
                found.setdefault(name, set()).add(module.name)
    return found


def names_in(source: str, module: str) -> set[str]:
    names = _Names(module)
    names.visit(ast.parse(source))
    return names.found


class _Names(ast.NodeVisitor):
    """Reads ``Query("name", ...)`` and its kin, also where a comprehension runs over several names."""

    def __init__(self, module: str) -> None:
        self.found: set[str] = set()
        self._module = module
        self._loops: list[dict[str, set[str]]] = []

    def visit_GeneratorExp(self, node: ast.GeneratorExp | ast.ListComp) -> None:
        self._loops.append({name: values for loop in node.generators for name, values in _literals(loop)})
        self.generic_visit(node)
        self._loops.pop()

    visit_ListComp = visit_GeneratorExp

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Name(id=function), args=[name, *_]) if function in ASKS:
                self._read(name)
            case ast.Call(
                func=ast.Attribute(attr="_replace"), keywords=[ast.keyword(arg="name", value=name)]
            ):
                self._read(name)

    def _read(self, name: ast.expr) -> None:
        match name:
            case ast.Constant(value=str(text)):
                self.found.add(text)
            case ast.Name(id=variable) if any(variable in loop for loop in self._loops):
                self.found.update(*(loop.get(variable, ()) for loop in self._loops))
            case _:
                raise AssertionError(f"{self._module}:{name.lineno}: a statement's name must be written out")


def _literals(loop: ast.comprehension) -> Iterator[tuple[str, set[str]]]:
    match loop:
        case ast.comprehension(target=ast.Name(id=name), iter=ast.Tuple(elts=values)):
            yield name, {str(value.value) for value in values if isinstance(value, ast.Constant)}


def _parts(file: str) -> Iterator[tuple[str, Text]]:
    parts = re.split(r"^-- (name|fragment): (\w+)$", (SQL / file).read_text(), flags=re.MULTILINE)
    for kind, name, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        yield kind, _text(name, text)


def _fill(text: str, fragments: dict[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: _fill(fragments[found[1]], fragments), text)


def _text(name: str, text: str) -> Text:
    lines = text.strip().splitlines()
    comments = [line for line in lines if line.lstrip().startswith("--")]
    code = [line for line in lines if not line.lstrip().startswith("--")]
    return Text(name, "\n".join(comments), repeat("\n".join(code)), "")
