"""pytest fixtures for users' tests. pytest loads this in every project, so it imports perdure only when used."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from perdure.app import App
    from perdure.testing import Testing


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("perdure_app", "module:app, the app that the fixture perdure_testing tests.", default="")


@pytest.fixture
def perdure_app(request: pytest.FixtureRequest) -> App:
    """The app under test. Define a fixture of this name to use another app."""
    target: str = request.config.getini("perdure_app")
    module, _, name = target.partition(":")
    if not module:
        raise pytest.UsageError(
            'perdure does not know your app: set perdure_app = "module:app" in the pytest configuration, '
            "or define a fixture named perdure_app that returns it."
        )
    app: object = import_module(module)
    for part in (name or "app").split("."):
        app = getattr(app, part, None)
    from perdure.app import App

    if not isinstance(app, App):
        raise pytest.UsageError(f"perdure_app: {target} is not a perdure App.")
    return app


@pytest.fixture
def perdure_testing(perdure_app: App) -> Iterator[Testing]:
    """``app.testing()`` for one test, synchronous or async: the app on a throw-away database."""
    with perdure_app.testing() as testing:
        yield testing
