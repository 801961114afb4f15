"""References to results inside payloads: a user's own values are never taken for one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import BadArguments
from perdure.model.reference import (
    MARK,
    Reference,
    ReferenceCodec,
    escaped,
    keys_in,
    references_in,
    refers,
    resolved,
)
from perdure.model.signature import Signature

KEYS = st.sampled_from([MARK, f"{MARK}~", f"{MARK}~~", "x", "perdure"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 10) | st.sampled_from([MARK, f'"{MARK}"', "y"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["a", "b"]), VALUES))
def test_what_is_no_reference_comes_back_as_it_was(values: dict[str, Any]) -> None:
    payload = escaped(json.dumps(values))
    assert keys_in(payload) == []
    assert json.loads(resolved(payload, lambda key: "forged") if refers(payload) else payload) == values


def put_in(value: Any, results: dict[str, Any]) -> Any:
    match value:
        case Reference(key=key):
            return results[key]
        case dict():
            return {key: put_in(part, results) for key, part in value.items()}
        case list():
            return [put_in(part, results) for part in value]
    return value


def function(a: Any = None, b: Any = None) -> None: ...


@given(
    st.dictionaries(
        st.sampled_from(["a", "b"]),
        st.recursive(
            st.sampled_from([Reference("one"), Reference("two")]) | st.integers(0, 9),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
            max_leaves=8,
        ),
    ),
    VALUES,
)
def test_each_reference_becomes_its_result(values: dict[str, Any], result: Any) -> None:
    payload, _ = ReferenceCodec(Signature.of(function, object())).encode(values)
    assert sorted(keys_in(payload)) == sorted(references_in(values))
    results = {"one": result, "two": {"perdure.result": "one"}}
    if references_in(values):
        arrived = json.loads(resolved(payload, lambda key: json.dumps(results[key])))
        assert arrived == put_in(values, results)


def test_the_arguments_beside_a_reference_are_checked() -> None:
    def typed(n: int, text: str) -> None: ...

    codec = ReferenceCodec(Signature.of(typed, object()))
    assert codec.encode({"n": Reference("a"), "text": "x"})[0] == '{"text":"x","n":{"perdure.result":"a"}}'
    with pytest.raises(BadArguments, match=r"\$\.text"):
        codec.encode({"n": Reference("a"), "text": 1})


def test_a_value_that_contains_itself_is_looked_through_once() -> None:
    circle: list[Any] = [Reference("one")]
    circle.append({"self": circle})
    assert references_in(circle) == ["one"]


@pytest.mark.parametrize(
    ("beside", "path", "reason"),
    [
        (object(), "$.a[1]", "a `object` like this cannot be stored"),
        (float("nan"), "$.a[1]", "is not a finite number"),
        (2**80, "$.a[1]", "is an integer of more than 64 bits"),
        ("half \ud800", "$.a[1]", "contains half of a surrogate pair"),
    ],
)
def test_what_stands_beside_a_reference_must_be_fit_to_be_stored(
    beside: object, path: str, reason: str
) -> None:
    codec = ReferenceCodec(Signature.of(function, ...))
    with pytest.raises(BadArguments) as refusal:
        codec.encode({"a": [Reference("one"), beside]})
    assert (refusal.value.path, str(refusal.value)) == (path, f"{path}: {reason}")


def test_what_contains_itself_and_a_reference_is_refused() -> None:
    circle: list[Any] = [Reference("one")]
    circle.append(circle)
    with pytest.raises(BadArguments, match="nested too deeply, or contains itself"):
        ReferenceCodec(Signature.of(function, ...)).encode({"a": circle})
