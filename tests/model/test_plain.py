"""The fast path from a call to JSON gives the same result as the slow path, or leaves the call to it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from perdure.errors import BadArguments, PayloadTooLarge
from perdure.model.codec import MAX_PAYLOAD, ArgumentCodec
from perdure.model.fast_json import shortcut
from perdure.model.signature import PLAIN, Signature


def mail(to: str, copies: int, *, share: float = 1.0, note: str | None = None) -> None: ...


def awkward(type: str, str: str, encode: int, kinds: bool, is_plain: Any, *, values: float) -> None: ...


def ours(perdure_type: str, perdure_encode: int) -> None: ...


def nothing() -> None: ...


def by_position(a: str, /, b: int) -> None: ...


def codec(function: Callable[..., object]) -> ArgumentCodec:
    return ArgumentCodec(Signature.of(function, object()))


@pytest.mark.parametrize(
    ("function", "args", "kwargs"),
    [
        (mail, ("ann", 3), {"share": 0.5, "note": None}),
        (mail, ("ann",), {"note": "é\n\0", "copies": 2**63, "share": 2}),
        (mail, ("ann", 3), {}),
        (mail, (), {"copies": -1, "to": ""}),
        (awkward, ("a", "b", 1, True, None), {"values": 1e16}),
        (ours, ("a", 1), {}),
        (nothing, (), {}),
        (by_position, ("a", 1), {}),
    ],
)
def test_a_call_is_written_as_its_values_are(
    function: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    values = Signature.of(function, object()).bind(args, kwargs)
    told = codec(function).encode_call(args, kwargs)
    assert json.loads(told) == json.loads(codec(function).encode(values))
    assert codec(function).decode(told) == values


@pytest.mark.parametrize(
    ("args", "kwargs", "place"),
    [
        (("ann", 2**64), {"share": 1.0, "note": ""}, "$.copies"),
        (("ann", True), {"share": 1.0, "note": ""}, "$.copies"),
        (("ann", 1), {"share": float("nan"), "note": ""}, "$.share"),
        (("\ud800", 1), {"share": 1.0, "note": ""}, "$.to"),
        (("ann", 1), {"share": 1.0, "copies": 2}, "$.copies"),
        (("ann", 1), {"share": 1.0, "color": "red"}, "$.color"),
        (("ann", 1, 1.0, ""), {}, "$"),
    ],
)
def test_what_is_wrong_with_a_call_is_told(args: tuple[Any, ...], kwargs: dict[str, Any], place: str) -> None:
    with pytest.raises(BadArguments) as refused:
        codec(mail).encode_call(args, kwargs)
    assert refused.value.path == place


def test_a_call_that_is_too_large_is_refused() -> None:
    with pytest.raises(PayloadTooLarge):
        codec(mail).encode_call(("x" * MAX_PAYLOAD, 1), {"share": 1.0, "note": ""})


def test_only_plain_values_take_the_short_way() -> None:
    def late(at: datetime) -> None: ...

    noon = datetime(2030, 1, 1, 12, tzinfo=UTC)
    told = codec(late).encode_call((noon,), {})
    assert codec(late).decode(told) == {"at": noon}

    parameters = Signature.of(mail, object()).parameters
    quick = shortcut(parameters, {each.name: PLAIN for each in parameters}, lambda values: b"encoded")
    assert quick("ann", 1, share=1.0, note=None) == b"encoded"
    assert quick("ann", 1, share=[1.0], note=None) is None
    assert quick("ann", 2**64, share=1.0, note=None) is None
