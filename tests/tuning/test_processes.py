"""Worker processes: a job that kills its workers has failed, and the others are run."""

import os
from dataclasses import replace

import pytest

from qafel.errors import QafelError
from qafel.tuning import workers as processes
from qafel.tuning.workers import Elsewhere
from tests.tuning.test_failures import job


class Bomb:
    """Whoever unpickles it is gone."""

    def __reduce__(self):
        return os._exit, (9,)


def die(connection, threads):
    os._exit(3)


def test_a_job_that_kills_two_workers_has_failed_and_the_next_one_is_run(tmp_path):
    with Elsewhere(1) as crew:
        crew.start(replace(job(tmp_path), settings=Bomb()))
        done = crew.next_done()
        assert done.outcome.state == "failed"
        assert "died 2 times (last exit code 9)" in done.outcome.error
        assert isinstance(done.error, QafelError)
        assert (crew.room, crew.busy) == (1, 0)
        crew.start(job(tmp_path))
        assert crew.next_done().outcome.state == "reached"


def test_workers_that_never_begin_are_not_hired_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "_serve", die)
    with Elsewhere(1) as crew:
        crew.start(job(tmp_path))
        with pytest.raises(QafelError, match="end before they begin .exit code 3"):
            crew.next_done()
