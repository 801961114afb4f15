"""What somebody may have meant who typed it."""

from __future__ import annotations

from perdure.model.suggest import did_you_mean

__all__ = ["did_you_mean"]
