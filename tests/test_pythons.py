"""`make test-pythons`: which interpreters it finds, and what it says of each."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests import pythons

OWN = "{}.{}".format(*sys.version_info[:2])

# Says that it is Python 9.9, makes environments that hold itself, and runs a suite that ends as it is told.
FAKE = """#!/bin/sh
case "$*" in
    "-c "*) echo 9.9 ;;
    "-m venv"*) mkdir -p "$4/bin" && cp "$0" "$4/bin/python" ;;
    "-m pytest"*) exit {status} ;;
esac
"""


def executable(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script)
    path.chmod(0o755)
    return path


def link(path: Path) -> Path:
    """This interpreter, under another path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.realpath(sys.executable))
    return path


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any Python."""
    monkeypatch.setenv("PATH", f"{tmp_path}/shims:{tmp_path}/bin")
    monkeypatch.setenv("PYENV_ROOT", f"{tmp_path}/pyenv")
    monkeypatch.setattr(pythons, "BUILD", tmp_path / "build")
    return tmp_path


def test_a_python_on_the_path_is_found_behind_one_that_does_not_run(machine: Path) -> None:
    executable(machine / f"shims/python{OWN}", "#!/bin/sh\nexit 127\n")
    assert pythons.find(OWN) is None
    link(machine / f"bin/python{OWN}")
    assert pythons.find(OWN) == f"{machine}/bin/python{OWN}"


def test_a_python_that_is_of_another_version_than_its_name_is_not_taken(machine: Path) -> None:
    link(machine / "bin/python9.9")
    assert pythons.find("9.9") is None


def test_the_newest_release_that_pyenv_has_is_found(machine: Path) -> None:
    for release in (f"{OWN}.9", f"{OWN}.10", f"{OWN}.1"):
        link(machine / f"pyenv/versions/{release}/bin/python{OWN}")
    assert pythons.find(OWN) == f"{machine}/pyenv/versions/{OWN}.10/bin/python{OWN}"


def test_a_python_of_uv_is_found(machine: Path) -> None:
    python = link(machine / "uv/python")
    executable(machine / "bin/uv", f'#!/bin/sh\ntest "$4" = {OWN} && echo {python}\n')
    assert pythons.find(OWN) == str(python)
    assert pythons.find("9.9") is None


def test_without_any_python_it_fails_and_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert pythons.main(["9.8", "/nowhere/python3"]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("Python 9.8: not run (not found")
    assert second.startswith("/nowhere/python3: not run (not found")
    assert "make test-pythons PYTHONS=" in first


@pytest.mark.parametrize(("status", "exit_code", "said"), [(0, 0, "passed"), (1, 1, "failed")])
def test_each_python_that_is_there_runs_the_suite(
    machine: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    status: int,
    exit_code: int,
    said: str,
) -> None:
    monkeypatch.setenv("PATH", os.defpath)
    good, other = executable(machine / "good", FAKE.format(status=0)), machine / "other"
    executable(other, FAKE.format(status=status))
    assert pythons.main([str(good), "9.8", str(other)]) == exit_code
    last = capfd.readouterr().out.splitlines()[-3:]
    assert last == [f"{good}: passed", f"Python 9.8: {pythons.NOT_FOUND}", f"{other}: {said}"]
    assert (machine / "build/python-9.9/bin/python").exists()
