"""How the command begins and how it fails: help, typos, exit codes, one line on stderr."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from perdure import App
from perdure.cli import COMMANDS
from perdure.cli.suggest import OTHER_TOOLS
from perdure.store.store import open_store
from tests.cli.shop import NOBODY, Shop, run, send
from tests.harness.processes import run_cli

HEAVY = {"asyncio", "sqlite3", "psycopg", "rich", "msgspec", "perdure.app", "logging"}


@pytest.mark.parametrize("args", [["--help"], *([verb, "--help"] for verb in COMMANDS)], ids=" ".join)
def test_help_is_there_before_anything_heavy_is_loaded(args: list[str]) -> None:
    program = (
        f"import atexit, sys; from perdure.cli import main; sys.argv = ['perdure', *{args!r}];"
        "atexit.register(lambda: print('loaded', *sorted(sys.modules), file=sys.stderr)); main()"
    )
    ran = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    loaded = set(ran.stderr.split())
    assert "perdure.cli.target" in loaded
    assert HEAVY & loaded == set()


def test_the_help_tells_verbs_exit_codes_and_completion() -> None:
    told = run("--help").stdout
    assert re.findall(r"^  ([\w-]+) +(\S.*\.)$", told.partition("Commands:")[2], re.MULTILINE) == [
        (verb, does) for verb, (_, does) in COMMANDS.items()
    ]
    assert "4  the database's schema is missing" in told
    assert 'eval "$(_PERDURE_COMPLETE=bash_source perdure)"' in told


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_verb_has_examples(verb: str) -> None:
    result = run(verb, "--help")
    assert result.exit_code == 0
    assert COMMANDS[verb][1] in result.stdout, "as the list of verbs has it"
    examples = result.stdout.partition("Examples:\n")[2].partition("\n\n")[0].splitlines()
    assert len(examples) >= 2
    assert all(f" {verb}" in line for line in examples)
    assert "--json" in result.stdout or verb in ("worker", "demo")


def test_the_completion_that_the_help_shows_works(tmp_path: Path) -> None:
    script = run_cli(cwd=tmp_path, _PERDURE_COMPLETE="bash_source")
    assert "COMP_WORDS" in script.stdout
    words = run_cli(
        cwd=tmp_path, _PERDURE_COMPLETE="bash_complete", COMP_WORDS="perdure wor", COMP_CWORD="1"
    ).stdout
    assert words.split() == ["plain,worker", "plain,workflows", "plain,workflow", "plain,workers"]


def test_the_page_about_the_command_line_names_every_verb_and_option_of_the_worker() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    assert re.findall(r"^\| `perdure ([\w-]+)", page, re.MULTILINE) == list(COMMANDS)
    told = run("worker", "--help").stdout
    names = set(re.findall(r"(--[a-z-]+|PERDURE_[A-Z_]+)", told)) - {"--help"}
    assert len(names) > 12
    assert {name for name in names if name not in page} == set()


def test_a_slip_of_the_pen_gets_a_suggestion() -> None:
    result = run("jbos")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == "Error: No such command 'jbos'. Did you mean 'jobs'?"
    assert run("xyzzy").stderr.splitlines()[-1] == "Error: No such command 'xyzzy'."


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("retry", "perdure requeue starts a new run of jobs that failed or were canceled; "
         "perdure run-now makes retrying jobs due now."),
        ("prune", "perdure delete --state succeeded --finished-before 30d deletes old jobs."),
        ("Purge", "perdure delete --state succeeded --finished-before 30d deletes old jobs."),
        ("start", "perdure worker MODULE:APP runs jobs."),
        ("status", "perdure stats shows queues, workers and the database; perdure job ID shows one job."),
    ],
)  # fmt: skip
def test_a_command_of_another_queue_gets_the_one_of_ours(word: str, said: str) -> None:
    result = run(word, "01990c5e")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == f"Error: No such command {word!r}. {said}"


def test_every_suggested_command_exists() -> None:
    for sentence in set(OTHER_TOOLS.values()):
        words = re.findall(r"perdure ([\w-]+)", sentence)
        assert words
        assert set(words) <= COMMANDS.keys()
    assert not OTHER_TOOLS.keys() & COMMANDS.keys()


def test_the_target_may_stand_before_the_verb_or_behind_it(shop: Shop) -> None:
    job = shop.send.enqueue()
    for args in (["--url", shop.url, "jobs"], ["jobs", "--url", shop.url]):
        assert job.id in run(*args).stdout


def test_the_environment_names_the_database(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    job = shop.send.enqueue()
    monkeypatch.setenv("PERDURE_URL", shop.url)
    assert job.id in run("jobs").stdout


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["job", NOBODY], 1, "There is no job with this id. [job.not_found]"),
        (["job", "no id"], 1, "There is no job with this id. [job.not_found]"),
        (["explain", NOBODY], 1, "There is no job with this id. [job.not_found]"),
        (["jobs", "--limit", "0"], 2, "Invalid value for '--limit': 0 is not in the range 1<=x<=1000."),
        (["jobs", "--queue", " "], 2, "queue must not be blank. [job.invalid_option]"),
    ],
)
def test_a_failure_is_one_line_and_an_exit_code(shop: Shop, args: list[str], code: int, said: str) -> None:
    result = shop.run(*args)
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.splitlines()[-1] == f"Error: {said}"


@pytest.mark.parametrize(
    ("url", "code", "said"),
    [
        ("mysql://x/y", 2, "[config.invalid]"),
        ("", 2, "[config.invalid]"),
        (
            "sqlite:///no/such/directory/jobs.db",
            4,
            "Neither the database file nor its directory exists; create the directory, then run perdure migrate. "
            "Looked at sqlite:///{here}/no/such/directory/jobs.db. [schema.missing]",
        ),
        (
            "sqlite:///typo.db",
            4,
            "There is no such database file; call app.migrate() or run perdure migrate to create it. "
            "Looked at sqlite:///{here}/typo.db. [schema.missing]",
        ),
    ],
)
def test_a_wrong_url_is_told_and_leaves_nothing_behind(
    url: str, code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    one = (["job", NOBODY], ["explain", NOBODY], ["enqueue", "x"])
    for verb in (*one, ["jobs"], ["queues"], ["workers"], ["stats"], ["check"]):
        result = run(*verb, "--url", url)
        assert result.exit_code == code
        assert result.stdout == ""
        assert result.stderr.startswith("Error: ")
        assert result.stderr.endswith(f"{said.format(here=tmp_path.resolve())}\n")
        assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_database_without_our_tables_is_told(postgres_server: str) -> None:
    result = run("jobs", "--url", postgres_server, "--schema", "nobody's")
    assert result.exit_code == 4
    address = open_store(postgres_server, schema="nobody's").address
    assert result.stderr.endswith(f"run perdure migrate. Looked at {address}. [schema.missing]\n")


def test_a_database_that_is_away_is_told_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.cli.target.PATIENCE", 0.1)
    result = run("jobs", "--url", "postgresql://localhost:1/x")
    assert result.exit_code == 3
    assert result.stderr == "Error: The database cannot be reached (localhost:1). [store.away]\n"


def test_a_process_exits_so_too(tmp_path: Path) -> None:
    ran = run_cli("jobs", cwd=tmp_path)
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (4, "", 1)
    assert ran.stderr == (
        "Error: Which database? --app, --url and $PERDURE_URL are not set, and "
        f"sqlite:///{tmp_path.resolve()}/perdure.db has no tables of perdure; "
        "perdure migrate creates them there. [schema.missing]\n"
    )
    ran = run_cli("migrate", cwd=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    ran = run_cli("jobs", cwd=tmp_path)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "No jobs.\n")
    assert (tmp_path / "perdure.db").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has it")
@pytest.mark.parametrize("args", [["jobs"], ["jobs", "--json"], ["stats"], ["sql"], ["--help"]], ids=" ".join)
def test_an_output_that_cannot_be_written_is_one_line(sqlite_url: str, args: list[str]) -> None:
    """Whether it fails at once, or only what was kept back does."""
    with App(sqlite_url) as app:
        app.task(name="mail.send")(send).enqueue()
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [sys.executable, "-W", "error", "-m", "perdure", "--url", sqlite_url, *args],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert ran.returncode == 1
    assert ran.stderr == "Error: The output cannot be written: No space left on device.\n"


def test_the_installed_command_is_this_program(tmp_path: Path) -> None:
    command = Path(sys.executable).with_name("perdure")
    ran = subprocess.run([command, "--version"], check=True, capture_output=True, text=True, cwd=tmp_path)
    assert ran.stdout.startswith("perdure, version 0.")
