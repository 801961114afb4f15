"""``replay``."""

from __future__ import annotations

from perdure.model.lifecycle import Succeeded
from tests.cli.shop import NOBODY, Shop


def test_a_job_is_replayed_and_both_tell_of_it(shop: Shop) -> None:
    shop.serve()
    old = shop.end(Succeeded, result='"ann"')
    result = shop.run("replay", old.id, "--reason", "out of paper", "--actor", "ann")
    (new,) = result.stdout.split()
    assert (result.exit_code, result.stderr) == (0, "")
    assert shop.json("job", new)["replay_of"] == old.id
    assert f"replay of  {old.id}" in shop.run("job", new).stdout
    assert f"as {new}, reason out of paper, by ann" in shop.run("job", old.id).stdout


def test_a_request_key_is_asked_twice(shop: Shop) -> None:
    shop.serve()
    old = shop.end(Succeeded)
    first = shop.json("replay", old.id, "--request-key", "k")
    assert (first["created"], first["replay_of"], first["state"]) == (True, old.id, "ready")
    again = shop.run("replay", old.id, "--request-key", "k")
    assert (again.stdout, again.stderr) == (
        f"{first['id']}\n",
        "The job was already replayed with this key.\n",
    )


def test_who_replays_is_the_user_unless_told(shop: Shop) -> None:
    shop.serve()
    old = shop.end(Succeeded)
    shop.run("replay", old.id, env={"USER": "bob"})
    shop.run("replay", old.id, "--actor", "ann", env={"USER": "bob"})
    told = [entry.detail.get("by") for entry in shop.app.job_history(old.id) if entry.what == "replayed"]
    assert told == ["bob", "ann"]


def test_a_refusal_says_what_to_do(shop: Shop) -> None:
    job = shop.send.enqueue()
    refused = shop.run("replay", job.id)
    assert refused.exit_code == 1
    assert "this one is ready: it has not ended yet. [job.not_succeeded]" in refused.stderr
    assert shop.run("replay", NOBODY).exit_code == 1
