"""Support for tests of user code: ``with app.testing() as t``."""

from perdure.testing.block import EnqueuedJob, Testing

__all__ = ["EnqueuedJob", "Testing"]
