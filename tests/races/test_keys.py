"""Processes that use one key at the same moment get one job."""

from __future__ import annotations

from pathlib import Path

from tests.races.journal import Journals
from tests.races.processes import spawning, starting_line
from tests.races.roles import prepare, race_for_keys

PAYLOADS = [0, 0, 1, 1]
KEYS = [f"key-{i}" for i in range(20)]


def test_one_process_creates_the_job_of_a_key_and_the_others_get_it(url: str, tmp_path: Path) -> None:
    prepare(url).store.close()
    journals, start = Journals(tmp_path / "journals"), starting_line(len(PAYLOADS))
    with spawning() as processes:
        for payload in PAYLOADS:
            processes.start(race_for_keys, url, journals.directory, start, KEYS, payload)
        processes.join()
    for key in KEYS:
        check_idempotency_key(journals, key)
        check_unique_key(journals, key)


def check_idempotency_key(journals: Journals, key: str) -> None:
    """One process creates the job, the same request gets it, a different request is refused."""
    answers = [answer for asked, *answer in journals.all("answered") if asked == key]
    ((winner, id),) = [(payload, id) for payload, id, created in answers if created]
    assert sorted(answers) == [[winner, id, False], [winner, id, True]]
    refused = [refusal for asked, *refusal in journals.all("refused") if asked == key]
    assert refused == [[1 - winner, "arguments.payload"]] * 2


def check_unique_key(journals: Journals, key: str) -> None:
    """One process creates the job and all get it, whatever they requested."""
    answers = [answer for asked, *answer in journals.all("unique") if asked == key]
    (id,) = [id for id, created in answers if created]
    assert sorted(answers) == [[id, False]] * 3 + [[id, True]]
