"""The kit with which users test their own code: ``with app.testing() as t``."""

from perdure.testing.block import EnqueuedJob, Testing

__all__ = ["EnqueuedJob", "Testing"]
