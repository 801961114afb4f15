"""Refuses to run with green threads: the heartbeat needs a thread that runs while the event loop is blocked."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from perdure.errors import InvalidConfig

_PATCHED: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "gevent": ("gevent.monkey", lambda monkey: bool(monkey.is_module_patched("threading"))),
    "eventlet": ("eventlet.patcher", lambda patcher: bool(patcher.is_monkey_patched("thread"))),
}


def refuse_green_threads() -> None:
    """Raise InvalidConfig if gevent or eventlet has replaced threads in this process."""
    for name, (module, patched) in _PATCHED.items():
        loaded = sys.modules.get(module)
        if loaded is not None and patched(loaded):
            raise InvalidConfig(
                f"{name} has replaced threads in this process, and a worker's heartbeat would not run: start the "
                "worker in a process of its own that does not call monkey patching, such as perdure worker."
            )
