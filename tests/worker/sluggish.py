"""The press, in processes that load it only once the file is there that ``SLUGGISH`` names."""

from __future__ import annotations

import os

from tests.worker import press
from tests.worker.mill import note

note(f"{os.environ['SLUGGISH']}.pids", f"{os.getpid()}")
press.wait_for(os.environ["SLUGGISH"])

app = press.app
