"""``process_app``, in processes that load it only once the file is there that ``SLOW_LOADING`` names."""

from __future__ import annotations

import os

from tests.worker import process_app
from tests.worker.worker_app import note

note(f"{os.environ['SLOW_LOADING']}.pids", f"{os.getpid()}")
process_app.wait_for(os.environ["SLOW_LOADING"])

app = process_app.app
