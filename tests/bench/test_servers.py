from __future__ import annotations

import shutil
import sys
import venv
from pathlib import Path

import pytest

from bench import venvs
from bench.peers.requirements import REQUIREMENTS
from bench.redis_server import NoRedis, redis
from bench.venvs import NotInstalled, python_of


def test_an_environment_that_is_there_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def install(directory: Path, python: Path, requirements: tuple[str, ...]) -> None:
        made.append(requirements)
        python.parent.mkdir(parents=True, exist_ok=True)
        python.touch()

    monkeypatch.setattr(venvs, "_install", install)
    assert python_of("huey", place=tmp_path) == python_of("huey", place=tmp_path)
    assert made == [REQUIREMENTS["huey"]]
    monkeypatch.setitem(REQUIREMENTS, "huey", ("huey==0",))
    python_of("huey", place=tmp_path)
    assert made[1:] == [("huey==0",)]


def test_an_environment_that_cannot_be_made_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(directory: Path, **_: object) -> None:
        """As good as an environment, for a package that is not there."""
        (directory / "bin").mkdir(parents=True)
        (directory / "bin" / "python").symlink_to(sys.executable)

    monkeypatch.setattr(venv, "create", link)
    monkeypatch.setenv(
        "PIP_BREAK_SYSTEM_PACKAGES", "1"
    )  # the link leads to a Python that may refuse otherwise
    monkeypatch.setitem(REQUIREMENTS, "huey", ("./there/is/no/such/package",))
    with pytest.raises(NotInstalled, match="no/such/package"):
        python_of("huey", place=tmp_path)
    assert not (tmp_path / "huey" / "installed").exists()


def test_a_missing_redis_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(NoRedis, match="PATH"), redis(tmp_path, "stock"):
        pass


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="there is no redis-server")
@pytest.mark.parametrize(("mode", "shown"), [("stock", "no"), ("durable", "yes")])
def test_a_redis_is_there_for_the_block_and_gone_after_it(tmp_path: Path, mode: str, shown: str) -> None:
    with redis(tmp_path, mode) as server:
        assert server.call("SET a 1") == "+OK"
        server.flush()
        assert server.call("DBSIZE") == ":0"
        assert server.version().count(".") == 2
        assert server.config("appendonly") == shown
    with pytest.raises(ConnectionRefusedError):
        server.call("PING")
