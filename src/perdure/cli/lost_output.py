"""Ends a command whose output cannot be written, for example because the disk is full."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress

from perdure.cli.output import say

_OF_WRITES = frozenset((errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EDQUOT, errno.EBADF))


def report_lost_output(error: OSError) -> bool:
    """If a write to stdout failed, print one line and return True. click itself handles a closed pipe."""
    # Errors of files that were opened by name have a filename. Errors of stdout have no filename. Errors of the
    # database were converted to PerdureErrors before.
    if error.filename is not None or error.errno not in _OF_WRITES:
        return False
    # Redirect stdout. Otherwise Python writes the rest of the buffer at exit, fails again and prints its own error.
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    with suppress(OSError):
        say(f"Error: The output cannot be written: {error.strerror}.", err=True)
    return True
