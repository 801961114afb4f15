"""``python -m tests.worker.serve '{"drain": 1}'``: run a worker of the mill, or of the app in the module in ``SERVE``.

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
    app = import_module(os.environ.get("SERVE", "tests.worker.mill")).app
    sys.exit(app.run_worker(**json.loads(sys.argv[1])))
