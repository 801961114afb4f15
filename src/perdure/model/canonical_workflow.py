"""Canonical requests of workflows and appends that have a key, as text that can be compared. See ``canonical``.

The order of steps and of their parents does not matter. A step without a tenant has its workflow's tenant. A field
that an older format did not record counts as not set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from perdure.errors import InternalError
from perdure.model.canonical import Request, asked_of, differing_field, read_json, same

VERSION = 1

_PARENTS = ("after", "after_done")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRequest:
    """One step as requested. A gate has no job request; its ``timeout`` is in microseconds."""

    key: str
    after: Sequence[str] = ()
    after_done: Sequence[str] = ()
    task: str | None = None
    tenant: str | None = None
    request: Request | None = None
    timeout: int | None = None
    on_timeout: str | None = None


def canonical_workflow(
    steps: Sequence[StepRequest], *, tenant: str | None, result: str | None, unique_key: str | None
) -> str:
    """The text to store with a workflow's key."""
    asked = _given({"result": result, "unique_key": unique_key})
    return _encode({"v": VERSION, **asked, "steps": _steps(steps, tenant)})


def canonical_append(steps: Sequence[StepRequest], *, tenant: str | None, window: str | None = None) -> str:
    """The text to store with an append's key. An append by a running step has no window."""
    return _encode({"v": VERSION, **_given({"window": window}), "steps": _steps(steps, tenant)})


def workflow_difference(stored: str, asked: str, *, tenant: str | None) -> str | None:
    """The first field in which two workflow requests differ, such as ``result`` or ``steps.fetch.queue``."""
    before, now = _read(stored, tenant), _read(asked, tenant)
    for name in ("result", "unique_key"):
        if before.get(name) != now.get(name):
            return name
    return _differing_step(before["steps"], now["steps"])


def append_difference(stored: str, asked: str, *, tenant: str | None) -> str | None:
    """The first field in which two appends differ. A request stored without a window matches any window."""
    before, now = _read(stored, tenant), _read(asked, tenant)
    if before.get("window") not in (None, now.get("window")):
        return "window"
    return _differing_step(before["steps"], now["steps"])


def appended_again(stored: Iterable[str], asked: str, *, tenant: str | None) -> tuple[set[str], str | None]:
    """The keys of the requested steps that earlier appends added, and the first field in which such a step differs."""
    before = {key: step for one in stored for key, step in _read(one, tenant)["steps"].items()}
    now = {key: step for key, step in _read(asked, tenant)["steps"].items() if key in before}
    return {*now}, _differing_step({key: before[key] for key in now}, now)


def _steps(steps: Sequence[StepRequest], tenant: str | None) -> list[dict[str, Any]]:
    return [_step(step, tenant) for step in sorted(steps, key=lambda step: step.key)]


def _step(step: StepRequest, tenant: str | None) -> dict[str, Any]:
    asked: dict[str, Any] = {"key": step.key}
    if step.request is None:
        asked |= {"gate": True, **_given({"timeout": step.timeout, "on_timeout": step.on_timeout})}
    else:
        asked |= {"task": step.task, **asked_of(step.request)}
    asked |= _given({"tenant": step.tenant or tenant})
    return asked | {"after": sorted(step.after), "after_done": sorted(step.after_done)}


def _given(fields: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}


def _encode(request: Mapping[str, object]) -> str:
    return msgspec.json.encode(request).decode()


def _read(snapshot: str, tenant: str | None) -> dict[str, Any]:
    """Read a request of this or an older format, and return it in this format."""
    request: Any = read_json(snapshot)
    match request:
        case {"steps": list(steps)} if _is_version(request.get("v", VERSION)):
            if all(isinstance(step, dict) and isinstance(step.get("key"), str) for step in steps):
                return {**request, "steps": {step["key"]: _normal(step, tenant) for step in steps}}
    raise InternalError(
        f"a canonical request is damaged, or its version is newer than {VERSION}",
        code="workflow.bad_snapshot",
    )


def _is_version(value: object) -> bool:
    return type(value) is int and value <= VERSION


def _normal(step: Mapping[str, Any], tenant: str | None) -> dict[str, Any]:
    parents = {name: sorted(step.get(name) or ()) for name in _PARENTS}
    scope = step.get("tenant") or tenant
    rest = {name: value for name, value in step.items() if value is not None and name != "key"}
    return {**rest, **parents} | ({"tenant": scope} if scope else {})


def _differing_step(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    for key in dict.fromkeys((*now, *before)):
        if key not in before or key not in now:
            return f"steps.{key}"
        if not same(before[key], now[key]):
            return f"steps.{key}.{differing_field(before[key], now[key])}"
    return None
