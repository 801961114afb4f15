"""An app whose handler, in a process of its own, tells its config."""

from __future__ import annotations

from typing import Any

from perdure import CONTEXT, App, Context

TARGET = "tests.worker.config_app:app"


def tell(*, ctx: Context = CONTEXT) -> dict[str, Any]:
    return {**ctx.config}


app = App()
app.task(name="tell", run_in="process")(tell)
