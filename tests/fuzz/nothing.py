"""An app without tasks, for the command line to load."""

from __future__ import annotations

from perdure import App

app = App()
