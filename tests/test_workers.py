"""Worker processes: work is handed out again when one dies, and none outlives its parent."""

import os
import signal
import struct
import subprocess
import sys
import textwrap
import time
from functools import partial
from pathlib import Path

import pytest

from qafel.errors import ConfigError, WorkerLost
from qafel.parts import find
from qafel.workers import WORKER, Died, Report, Workers, pack, thread_limits, unpack


def perform(work, tell):
    """Answer with the work itself, or do what it says."""
    match work:
        case ("exit", code):
            os._exit(code)
        case ("exit until", path, times):
            with Path(path).open("a") as file:
                file.write("x")
            if Path(path).stat().st_size < times:
                os._exit(5)
        case ("half a message",):
            (connection,) = (end for end in os.listdir("/proc/self/fd") if _is_socket(end))
            os.write(int(connection), struct.pack("!i", 100) + b"abc")
            os._exit(3)
        case ("tell", *news):
            for one in news:
                tell(one)
        case ("environment", name):
            return os.environ.get(name)
        case ("pid",):
            return os.getpid()
        case ("sleep", seconds):
            time.sleep(seconds)
    return work


def _is_socket(descriptor):
    return (
        os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket")
        if os.path.exists(f"/proc/self/fd/{descriptor}")
        else False
    )


def begin():
    return perform


def die(code):
    os._exit(code)


def workers(count=1, tries=2, **options):
    return Workers(count, begin, tries=tries, **options)


def pids(pool):
    return [worker.process.pid for worker in pool._workers]


def answers(pool, count):
    return [pool.next() for _ in range(count)]


def test_work_goes_to_the_least_busy_and_no_further_than_allowed():
    with workers(2) as pool:
        assert [pool.give(("pid",), at_most=2) for _ in range(5)] == [True, True, True, True, False]
        found = [report.value for report in answers(pool, 4)]
        assert sorted(map(found.count, pids(pool))) == [2, 2]


def test_each_worker_gets_its_piece():
    with workers(2) as pool:
        pool.give_each([("pid",), ("pid",)])
        assert {report.value for report in answers(pool, 2)} == set(pids(pool))


def test_news_come_before_the_answer_and_do_not_end_the_work():
    with workers() as pool:
        for work in (("tell", 1, 2), ("tell", 3)):
            assert pool.give(work, at_most=2)
        assert answers(pool, 5) == [
            Report(("tell", 1, 2), 1),
            Report(("tell", 1, 2), 2),
            Report(("tell", 1, 2), ("tell", 1, 2)),
            Report(("tell", 3), 3),
            Report(("tell", 3), ("tell", 3)),
        ]


def test_work_at_which_workers_die_is_given_up_and_what_waited_behind_it_is_done():
    with workers(tries=2) as pool:
        for work in ("first", ("exit", 7), "last"):
            pool.give(work, at_most=3)
        assert answers(pool, 3) == [
            Report("first", "first"),
            Report(("exit", 7), Died(2, 7)),
            Report("last", "last"),
        ]


def test_work_that_succeeds_in_another_worker_is_answered(tmp_path):
    work = ("exit until", str(tmp_path / "tries"), 3)
    with workers(tries=3) as pool:
        pool.give(work)
        assert pool.next() == Report(work, work)


def test_a_worker_that_dies_idle_is_replaced_and_its_next_work_kept():
    with workers(tries=1) as pool:
        pool.give(("pid",))
        os.kill(pool.next().value, signal.SIGKILL)
        pool._workers[0].process.join()
        pool.give("more")
        assert pool.next() == Report("more", "more")


def test_a_message_cut_off_in_the_middle_counts_as_a_death():
    with workers(tries=1) as pool:
        for work in (("half a message",), "more"):
            pool.give(work, at_most=2)
        assert answers(pool, 2) == [Report(("half a message",), Died(1, 3)), Report("more", "more")]


def test_workers_that_end_before_they_are_ready_are_not_started_for_ever():
    with Workers(1, partial(die, 3), tries=9) as pool:
        pool.give("anything")
        with pytest.raises(WorkerLost, match="__main__"):
            pool.next()


def test_an_object_of_a_module_in_the_current_folder_is_read_in_another_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = [*sys.path]
    monkeypatch.setattr(sys, "path", [*path])
    (tmp_path / "of_this_folder.py").write_text("class Own: size = 3")
    packed = pack(find("of_this_folder:Own")())
    del sys.modules["of_this_folder"]  # as in another process
    monkeypatch.setattr(sys, "path", path)
    assert unpack(packed).size == 3


def test_what_cannot_be_sent_is_refused_before_anything_starts():
    with pytest.raises(ConfigError, match="module level"):
        Workers(1, lambda: perform, tries=1)


def test_the_environment_is_the_workers_alone(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with workers(environment=thread_limits(3)) as pool:
        assert "OMP_NUM_THREADS" not in os.environ
        pool.give(("environment", "OMP_NUM_THREADS"))
        assert pool.next().value == "3"


def test_an_interrupt_is_the_parents_business():
    with workers() as pool:
        os.kill(pids(pool)[0], signal.SIGINT)  # perhaps before it is ready
        pool.give("work")
        assert pool.next().value == "work"
        os.kill(pids(pool)[0], signal.SIGINT)
        pool.give("more")
        assert pool.next().value == "more"


def test_closing_does_not_wait_for_work_under_way():
    with workers() as pool:
        pool.give("ready")
        pool.next()
        pool.give(("sleep", 10**6))
        (worker,) = pids(pool)
    assert not os.path.exists(f"/proc/{worker}")


def test_workers_leave_with_a_parent_that_is_killed(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import time
        from tests.test_workers import pids, workers
        if __name__ == "__main__":
            with workers() as pool:
                pool.give(("pid",))
                pool.next()
                pool.give(("sleep", 10**6))
                print(pids(pool)[0], flush=True)
                time.sleep(10**6)
        """)
    )
    root = str(Path(__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, *sys.path])}
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, env=environment) as parent:
        worker = int(parent.stdout.readline())
        parent.kill()
    while os.path.exists(f"/proc/{worker}"):
        time.sleep(0.05)


def test_each_worker_has_a_number_which_its_replacement_takes_over():
    with Workers(2, begin, tries=1) as workers:
        workers.give_each([("environment", WORKER)] * 2)
        assert sorted(workers.next().value for _ in range(2)) == ["0", "1"]
        workers.give_each([("sleep", 0), ("exit", 3)])
        assert {type(workers.next().value) for _ in range(2)} == {tuple, Died}
        workers.give_each([("environment", WORKER)] * 2)
        assert sorted(workers.next().value for _ in range(2)) == ["0", "1"]
    assert WORKER not in os.environ
