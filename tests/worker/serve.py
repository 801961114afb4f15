"""``python -m tests.worker.serve '{"drain": 1}'``: run a worker of the mill; the log goes to standard error."""

from __future__ import annotations

import json
import logging
import sys

from tests.worker.mill import app

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    sys.exit(app.run_worker(**json.loads(sys.argv[1])))
