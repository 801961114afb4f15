"""What the command line advises can be typed as it stands."""

from __future__ import annotations

import copy
import re
import shlex
from typing import Any

from perdure import Workflow
from perdure.cli import COMMANDS
from perdure.model.advice import ACTIONS, ADVICE, advise
from perdure.model.lifecycle import Failed, Succeeded
from tests.cli.shop import Shop

COMMAND = re.compile(r"perdure (.+?) (?:makes|lets|starts|resolves|asks|shows|and|ends)\b")


def advised(said: str) -> list[str]:
    found = COMMAND.search(said)
    assert found, said
    return shlex.split(found[1])


def follow(shop: Shop, said: str) -> Any:
    result = shop.run(*advised(said))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_every_verb_is_a_command_where_there_is_one() -> None:
    commands = [shell.split()[1] for _, shell in ACTIONS.values() if shell.startswith("perdure ")]
    assert {*commands} < {*COMMANDS}
    assert "job" in commands


def test_advice_quotes_its_arguments_in_either_language_and_nothing_else() -> None:
    told = advise("Of {queue} and {step}: {resume_queue}", queue="it's {id}", step="{resume_queue}")
    assert told == """Of it's {id} and {resume_queue}: resume_queue("it's {id}")"""
    assert told.shell == """Of it's {id} and {resume_queue}: perdure resume 'it'"'"'s {id}'"""
    assert copy.deepcopy(told).shell == told.shell
    assert advise("{resume_queue}", queue=None).shell == "perdure resume None", "a row that others wrote"


def test_explain_names_commands_that_do_what_it_says(shop: Shop) -> None:
    shop.serve()
    later = shop.send.using(delay=7200, queue="slow lane").enqueue()
    shop.app.pause_queue("slow lane")
    first, second, *_ = shop.run("explain", later.id).stdout.splitlines()
    assert advised(first) == ["run-now", later.id]
    follow(shop, first)
    assert advised(second) == ["resume", "slow lane"]
    follow(shop, second)
    claimed = shop.claim()
    assert claimed.id == later.id
    assert advised(shop.json("explain", later.id)["advice"]) == ["cancel", later.id]
    shop.app.operations.finish([Succeeded(claimed.lease)])
    assert advised(follow(shop, f"perdure explain {later.id} shows")) == ["replay", later.id]
    shop.app.cancel_jobs(all=True)
    failed = shop.end(Failed, "fatal")
    assert "requeued" in follow(shop, shop.run("explain", failed.id).stdout)


def test_explain_names_commands_of_workflows(shop: Shop) -> None:
    flow = Workflow("ask")
    flow.step("after", shop.send.job(), after=[flow.gate("may it?")])
    started = shop.app.start_workflow(flow)
    steps = {step.key: step.id for step in started.steps()}
    first = shop.run("explain", steps["after"]).stdout
    assert advised(first) == ["explain", steps["may it?"]]
    told = follow(shop, first)
    assert told.endswith("--approve resolves it, or --reject.\n")
    follow(shop, told)
    shop.run("cancel", steps["after"])
    for command in ("explain", "requeue"):
        said = shop.run(command, steps["after"]).output
        assert advised(said) == ["workflow", started.id, "requeue"]
    assert follow(shop, said) == "The workflow runs again.\n"


def test_refusals_name_commands(shop: Shop) -> None:
    shop.serve()
    failed = shop.end(Failed, "fatal")
    refused = shop.run("replay", failed.id).stderr
    assert advised(refused) == ["requeue", failed.id]
    unknown = shop.run("enqueue", "mail.sned").stderr
    assert "start a worker of the program that has it." in unknown
    assert "app.save_tasks" not in unknown


def test_no_advice_for_the_shell_names_a_verb_of_python() -> None:
    known = dict.fromkeys(("id", "queue", "task", "workflow", "step", "holder", "parent", "limit"), "x")
    for name, template in ADVICE.items():
        told = advise(template, **known).shell.replace("In Python, app.set_task(name, enabled=True)", "")
        assert not re.search(r"[a-z]+_[a-z]+", told), name
