"""Warns of queues that the database does not know. Most likely, their names are misspelled."""

from __future__ import annotations

import logging

from perdure.errors import PerdureError
from perdure.model.suggest import did_you_mean
from perdure.ops.queues import find_unknown
from perdure.store.store import Store
from perdure.worker.operations import Queues

_log = logging.getLogger("perdure.worker")


async def warn_of_unknown(store: Store, queues: Queues) -> None:
    """Warn of unknown queues. Called once the program's tasks are in the database. Errors are ignored."""
    if queues is None:
        return
    try:
        unknown, known = await store.aperform(find_unknown, list(queues))
    except PerdureError:
        return
    for name in unknown:
        _log.warning(
            "Queue %s is served, though no task goes there and nothing in it is due.%s",
            name,
            did_you_mean(name, known),
        )
