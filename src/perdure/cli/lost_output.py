"""The end of a command whose answer cannot be written: the disk that its output goes to is full, say."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress

from perdure.cli.output import say

_OF_WRITES = frozenset((errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EDQUOT, errno.EBADF))


def tell_lost_output(error: OSError) -> bool:
    """Say so in a line, if it was a write to stdout that failed. A pipe that was closed is click's to end with."""
    # A stream does not say which it is, but whoever opens a file says which. The database's errors are ours by now.
    if error.filename is not None or error.errno not in _OF_WRITES:
        return False
    # What is still to be written would fail again when Python ends, with lines of its own.
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    with suppress(OSError):
        say(f"Error: The output cannot be written: {error.strerror}.", err=True)
    return True
