"""``enqueue`` with the app: the JSON that is typed is read by the task's annotations, as a worker reads it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from perdure import App
from perdure.client.task import Task
from tests.cli.shop import Shop

CODE = """
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from uuid import UUID
from perdure import App

app = App()

class Colour(Enum):
    RED = "red"

@dataclass
class Line:
    sku: str
    price: Decimal
    due: date | None = None

def charge(
    order: int,
    amount: Decimal = Decimal(0),
    day: date | None = None,
    at: datetime | None = None,
    hour: time | None = None,
    ref: UUID | None = None,
    colour: Colour | None = None,
    lines: list[Line] = [],
    tags: set[str] = set(),
    pair: tuple[int, str] | None = None,
    raw: bytes | None = None,
    span: timedelta | None = None,
    names: dict[int, str] = {},
    ratio: float = 1.0,
): ...

app.task(name="shop.charge")(charge)
"""
ID = "0198a1b2-0000-7000-8000-000000000001"
TYPED = {
    "amount": ('"1.50"', "Decimal('1.50')"),
    "day": ('"2026-03-01"', "date(2026, 3, 1)"),
    "at": ('"2026-03-01T12:00:00+01:00"', "datetime.fromisoformat('2026-03-01T12:00:00+01:00')"),
    "hour": ('"08:30:00"', "time(8, 30)"),
    "ref": (f'"{ID}"', f"UUID('{ID}')"),
    "colour": ('"red"', "Colour.RED"),
    "lines": (
        '[{"sku": "a", "price": "0.10", "due": "2026-03-01"}]',
        "[Line('a', Decimal('0.10'), date(2026, 3, 1))]",
    ),
    "tags": ('["a", "b"]', "{'a', 'b'}"),
    "pair": ('[1, "x"]', "(1, 'x')"),
    "raw": ('"aGk="', "b'hi'"),
    "span": ('"PT90S"', "timedelta(seconds=90)"),
    "names": ('{"7": "seven"}', "{7: 'seven'}"),
    "ratio": ("2", "2"),
}


class Typed:
    """An app in a module of its own on the shop's database, and a twin of it to compare with."""

    def __init__(self, shop: Shop, directory: Path) -> None:
        self._shop = shop
        self.name = f"typed_{directory.name.replace('-', '_')}"
        (directory / f"{self.name}.py").write_text(CODE)
        sys.path.insert(0, str(directory))
        self.code: Any = import_module(self.name)
        self.twin = App(shop.url)
        self.charge: Task[..., Any] = self.twin.task(name="shop.charge")(self.code.charge)

    def close(self) -> None:
        self.twin.close()
        sys.path.remove(str(Path(str(self.code.__file__)).parent))
        del sys.modules[self.name]

    def value(self, code: str) -> object:
        return eval(code, vars(self.code))

    def enqueue(self, arguments: str, *options: str) -> Result:
        # The verb closes the app that it used.
        self.code.app = App()
        self.code.app.task(name="shop.charge")(self.code.charge)
        return self._shop.run("enqueue", "shop.charge", arguments, *options, "--app", self.name)

    def payload(self, id: str) -> str:
        row = self.twin.get_job(id.strip()).row
        assert row is not None
        return row.payload


@pytest.fixture
def typed(shop: Shop, tmp_path: Path) -> Iterator[Typed]:
    typed = Typed(shop, tmp_path)
    yield typed
    typed.close()


def test_every_kind_of_argument_can_be_typed(typed: Typed) -> None:
    for name, (written, code) in TYPED.items():
        result = typed.enqueue(f'{{"order": 1, "{name}": {written}}}')
        assert (result.exit_code, result.stderr) == (0, ""), name
        arrived = typed.charge.arguments.decode(typed.payload(result.stdout))
        expected = typed.value(code)
        assert (arrived, type(arrived[name])) == ({"order": 1, name: expected}, type(expected))
        by_hand = typed.charge.enqueue(1, **{name: expected})
        if name != "tags":  # a set has no order
            assert typed.payload(result.stdout) == typed.payload(by_hand.id)


def test_a_number_is_read_as_it_was_written(typed: Typed) -> None:
    """By way of a float it would be another one."""
    result = typed.enqueue('{"order": 1, "amount": 1.10}')
    assert (result.exit_code, result.stderr) == (0, "")
    arrived = typed.charge.arguments.decode(typed.payload(result.stdout))["amount"]
    assert str(arrived) == "1.10"


def test_a_key_means_the_same_request_from_the_command_line_and_from_python(typed: Typed) -> None:
    whole = {name: written for name, (written, _) in TYPED.items()}
    text = "{" + ", ".join(['"order": 1', *(f'"{name}": {text}' for name, text in whole.items())]) + "}"
    result = typed.enqueue(text, "--key", "k")
    assert (result.exit_code, result.stderr) == (0, "")
    values = {name: typed.value(code) for name, (_, code) in TYPED.items()}
    again = typed.charge.using(idempotency_key="k").enqueue(1, **values)
    assert (again.id, again.created) == (result.stdout.strip(), False)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"order": 1, "amount": "much"}, "$.amount: Invalid decimal string"),
        ({"order": 1, "day": "tomorrow"}, "$.day: Invalid RFC3339 encoded date"),
        ({"order": 1, "at": "2026-03-01T12:00:00"}, "$.at: is a datetime without a time zone"),
        (
            {"order": 1, "lines": [{"sku": "a", "price": "1"}, {"sku": "b"}]},
            "$.lines[1].price: is missing",
        ),
        ({"order": 1, "colour": "secret"}, "$.colour: does not fit its annotation"),
        ({"order": "secret"}, "$.order: expected `int`, got `str`"),
        ({"amount": "1"}, "$.order: is missing"),
        ({"order": 1, "colur": "red"}, "$.colur: is not known to the task"),
    ],
)
def test_a_bad_one_is_refused_with_its_path(typed: Typed, arguments: dict[str, object], said: str) -> None:
    result = typed.enqueue(json.dumps(arguments))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"Error: {said} [job.bad_arguments]\n"
    assert typed.twin.list_jobs() == []


def test_what_python_alone_takes_for_json_is_refused(typed: Typed) -> None:
    result = typed.enqueue('{"order": 1, "ratio": NaN}')
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1].endswith("this is not JSON: NaN is not a JSON number.")


def test_python_itself_still_gives_values_of_the_right_type(typed: Typed) -> None:
    from perdure.errors import BadArguments

    with pytest.raises(BadArguments, match=r"\$\.amount: expected `Decimal`, got `str`"):
        typed.twin.enqueue("shop.charge", {"order": 1, "amount": "1.50"})
