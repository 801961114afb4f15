"""The results of a step's parents, as its handler sees them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from perdure.errors import ResultMissing
from perdure.model.stored import read_json
from perdure.ops.results import ParentResult
from perdure.worker.handler import Handler


class Results(Mapping[str, Any]):
    """By the keys of the parents that succeeded. Asking for another says why there is none."""

    def __init__(self, parents: Sequence[ParentResult], handlers: Mapping[str, Handler]) -> None:
        self._parents = {parent.key: parent for parent in parents}
        self._handlers = handlers

    def __getitem__(self, key: str) -> Any:
        parent = self._parents.get(key)
        if parent is None:
            raise ResultMissing(
                f"{key} is no direct parent of this step, or it has over a thousand: ask ctx.result_of(...)."
            )
        return result_in(parent, self._handlers)

    def __iter__(self) -> Iterator[str]:
        return (key for key, parent in self._parents.items() if parent.state == "succeeded")

    def __len__(self) -> int:
        return sum(1 for _ in self)


def result_in(found: ParentResult, handlers: Mapping[str, Handler]) -> Any:
    """What a step returned, typed as its task says where that is known here."""
    if found.state != "succeeded" or found.dropped:
        raise missing(found.key, found)
    if found.result is None:
        return None
    handler = handlers.get(found.task)
    return read_json(found.result) if handler is None else handler.results.decode(found.result)


def missing(key: str, found: ParentResult | None) -> ResultMissing:
    if found is None:
        return ResultMissing(f"{key} is none of this step's ancestors, so that it has no result for it.")
    ended = {
        "failed": "it failed",
        "canceled": "it was canceled",
        "succeeded": f"it was not kept ({found.reason})",
    }.get(found.state, f"it is {found.state}")
    return ResultMissing(f"The step {key} has no result: {ended}.")
