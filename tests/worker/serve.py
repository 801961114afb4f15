"""``python -m tests.worker.serve '{"drain": 1}'``: run a worker of ``worker_app``, or of the app in ``SERVE``.

The log goes to standard error.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from importlib import import_module

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    app = import_module(os.environ.get("SERVE", "tests.worker.worker_app")).app
    sys.exit(app.run_worker(**json.loads(sys.argv[1])))
