"""Values that are redacted are found in any text, at a bounded cost."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from functools import partial
from time import process_time
from urllib.parse import quote, quote_plus

import pytest

from perdure.model.redact import HIDDEN, HIDDEN_WHOLE, MOST_VALUES, MOST_WORK, Redactor, redacted

SECRET = 'hünter2 "\\'
"""With what repr, JSON and a terminal each spell in another way."""

KEY = "-----BEGIN KEY-----\nMIIEvQIBADANBg\n  kqhkiG9w0BAQ\r\nEF'AASC\n-----END KEY-----\n"
LINES = ["MIIEvQIBADANBg", "kqhkiG9w0BAQ", "EF'AASC"]


def hide(text: str, password: object) -> str:
    return Redactor(json.dumps({"password": password, "user": "ann"}), {"password"}).hide(text)


def test_keys_of_that_name_are_hidden_wherever_they_stand() -> None:
    payload = '{"users":[{"name":"ann","password":"hunter2"}],"password":{"old":"swordfish","pin":[123456,true,12]}}'
    shown = redacted(payload, {"password"})
    assert json.loads(shown) == {"users": [{"name": "ann", "password": HIDDEN}], "password": HIDDEN}
    said = "ann: hunter2, swordfish, 123456, True, 12"
    assert Redactor(payload, {"password"}).hide(said) == f"ann: {HIDDEN}, {HIDDEN}, {HIDDEN}, True, 12"


@pytest.mark.parametrize("spell", [str, repr, ascii, json.dumps])
def test_a_value_is_hidden_however_it_is_spelled(spell: Callable[[object], str]) -> None:
    for secret in (SECRET, "swördfish"):
        assert hide(spell(secret), {SECRET: "swördfish"}).strip("'\"") == HIDDEN
        assert hide(spell({secret: 1}), {SECRET: "swördfish"}).count(HIDDEN) == 1


@pytest.mark.parametrize("spell", [quote, quote_plus, partial(quote, safe="")])
@pytest.mark.parametrize("secret", ["pass word/+@", "swördfish", "plain"])
def test_a_value_in_a_url_is_hidden(spell: Callable[[str], str], secret: str) -> None:
    url = f"postgresql://ann:{spell(secret)}@db.example/shop"
    assert hide(url, [secret]) == f"postgresql://ann:{HIDDEN}@db.example/shop"


@pytest.mark.parametrize("outer", [repr, ascii, json.dumps])
@pytest.mark.parametrize("inner", [repr, ascii, json.dumps])
def test_a_value_is_hidden_that_was_quoted_twice(
    outer: Callable[[object], str], inner: Callable[[object], str]
) -> None:
    """As ``KeyError(repr(value))`` shows it."""
    for secret in (SECRET, "it's\ta \x00 'key'", "swördfish\n"):
        for text in (outer(inner(secret)), outer(f"no {inner(secret)}, nor {inner([secret])}")):
            shown = hide(text, secret)
            assert HIDDEN in shown
            assert shown.replace(HIDDEN, "").strip("'\"\\no ,r[]") == ""


def test_a_value_that_is_part_of_another_leaves_no_rest() -> None:
    assert hide("swordfish sword", ["swordfish", "sword"]) == f"{HIDDEN} {HIDDEN}"


def test_values_that_overlap_leave_no_rest() -> None:
    assert hide("<abcdefghijkl>", ["abcdefgh", "efghijkl", "ghij"]) == f"<{HIDDEN}>"


@pytest.mark.parametrize("part", ["redacted", "[redacted]", "dact"])
def test_a_value_that_is_part_of_the_mark_is_hidden_once(part: str) -> None:
    assert hide(f"{part} hunter2", [part, "hunter2"]) == f"{HIDDEN} {HIDDEN}"


def test_lines_of_a_value_are_hidden_where_a_traceback_indents_them() -> None:
    try:
        raise ExceptionGroup("deep", [ExceptionGroup("deeper", [ValueError(f"with {KEY}")])])
    except ExceptionGroup as error:
        told = hide("".join(traceback.format_exception(error)), KEY)
    assert "deeper" in told
    assert told.count(HIDDEN) == 5
    for line in LINES:
        assert line not in told


@pytest.mark.parametrize("indent", ["", "    ", "> ", "\t# "])
def test_lines_of_a_value_are_hidden_where_a_text_indents_them(indent: str) -> None:
    told = hide("\n".join(f"{indent}{line}" for line in KEY.splitlines()), KEY)
    assert not any(line in told for line in LINES)


def test_a_value_below_many_levels_is_found() -> None:
    deep: object = "hunter2"
    for _ in range(900):
        deep = [deep]
    assert hide("hunter2", deep) == HIDDEN


def test_a_text_that_slices_itself_is_searched_as_it_is() -> None:
    class Sly(str):
        __slots__ = ()

        def __getitem__(self, _: object) -> str:
            return "xxxx"

        def __len__(self) -> int:
            return 0

    assert hide(Sly("hunter2"), "hunter2") == HIDDEN


@pytest.mark.parametrize("payload", ["{not json", "NaN", "[" * 5000, '"\ud800"'])
def test_arguments_that_cannot_be_read_are_hidden_whole(payload: str) -> None:
    assert redacted(payload, {"password"}) == f'"{HIDDEN}"'
    assert Redactor(payload, {"password"}).hide("said") == "said"
    assert redacted(payload, frozenset()) == payload


def test_with_more_values_than_are_searched_for_the_whole_text_is_hidden() -> None:
    values = [f"value {number}" for number in range(MOST_VALUES)]
    assert hide("a value 99 here", values) == f"a {HIDDEN} here"
    assert hide("nothing of it", [*values, "one more"]) == HIDDEN_WHOLE
    assert hide("nothing of it", "\n".join([*values, "one more"])) == HIDDEN_WHOLE


def test_a_text_longer_than_is_searched_is_hidden_whole() -> None:
    assert hide("x" * MOST_WORK, "hunter2") == "x" * MOST_WORK
    assert hide("x" * (MOST_WORK + 1), "hunter2") == HIDDEN_WHOLE
    assert hide("x" * MOST_WORK, 12) == "x" * MOST_WORK, "there is nothing to look for"


def test_a_large_value_hides_no_text_that_is_shorter() -> None:
    document = "lorem ipsum " * 16_000
    said = "lorem ipsum is what it says"
    assert hide(said, document) == said
    assert hide(f"it says {document}", document) == f"it says {HIDDEN}"


COSTLY: dict[str, Callable[[int], tuple[str, object]]] = {
    "many values": lambda size: ("value 7 or not " * (2 * size), [f"välue {each}" for each in range(size)]),
    "values with one beginning": lambda size: ("value 7 or " * (3 * size), [f"value {each}" for each in range(size)]),
    "values of every length": lambda size: ("a" * size, ["a" * length for length in range(size // 8)]),
    "values that nearly fit": lambda size: ("a" * size, ["a" * length + "b" for length in range(size // 8)]),
    "many lines": lambda size: ("x" * size, "lüne\n" * size),
    "values below many levels": lambda size: ("x" * size, _nested([*range(10_000, 10_000 + size)])),
}  # fmt: skip


def _nested(value: object) -> object:
    for _ in range(500):
        value = [value]
    return value


@pytest.mark.parametrize("costly", COSTLY)
def test_the_cost_grows_with_the_size_and_no_faster(costly: str) -> None:
    """Eight times the size takes about eight times as long; a search for each value took 64 times."""

    def cost(size: int) -> float:
        text, password = COSTLY[costly](size)
        payload = json.dumps({"password": password})
        times = []
        for _ in range(3):
            began = process_time()
            Redactor(payload, {"password"}).hide(text)
            times.append(process_time() - began)
        return min(times)

    assert cost(8_000) < 30 * max(cost(1_000), 0.000_2)
