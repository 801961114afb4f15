"""An app whose jobs burn processor time in processes; ``SERVE=tests.worker.cpu_app`` lets workers serve it."""

from __future__ import annotations

import os
import time

from perdure import App


def burn(seconds: float) -> int:
    """The processor's seconds, not the clock's. In which process it was."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        sum(n * n for n in range(1_000))
    return os.getpid()


def make(url: str | None = None) -> App:
    app = App(url, synchronous="normal")
    app.task(name="burn", run_in="process", max_attempts=1)(burn)
    return app


app = make()
