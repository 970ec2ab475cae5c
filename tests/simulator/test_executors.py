"""Same seed, same bits, whatever the executor and the number of workers; lost workers change nothing."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial
from multiprocessing.shared_memory import SharedMemory
from unittest import mock

import numpy as np
import pytest

from qafel.algorithm import ClientRule, HiddenState, Kept, method
from qafel.algorithm.catch_up import Snapshot
from qafel.errors import ConfigError, WorkerLost
from qafel.params import Layout
from qafel.rng import Stream
from qafel.runs.live import sha256
from qafel.simulator import Limits, Network, Rounds, Timing, simulate
from qafel.simulator.executors import processes
from qafel.simulator.executors.jobs import Job
from qafel.simulator.executors.processes import Processes
from qafel.simulator.simulation import Simulation
from qafel.tasks import Quadratic

TASK = Quadratic(30, 50)
ALGORITHM = method(
    "qafel", server_lr=0.5, client_lr=0.1, local_steps=3, client_quantizer="qsgd:4", server_quantizer="qsgd:4"
)
TIMING = Timing(network=Network(upload_rate=500.0))


def make_task():
    return Quadratic(30, 50)


def sha(executor, workers=None, **changes):
    return simulate(
        TASK, ALGORITHM, TIMING, limits=Limits(server_steps=40), executor=executor, workers=workers, **changes
    ).summary["model_sha256"]


@pytest.mark.parametrize("workers", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_processes_give_the_bits_that_one_thread_gives(workers):
    assert sha("processes", workers) == sha("inline")


def test_processes_draw_the_models_that_one_thread_draws():
    """With a model of its own for every start, the jobs of one version still share its vector."""
    direct = method(
        "fedbuff-direct", server_lr=0.5, client_lr=0.1, local_steps=3, server_quantizer="qsgd:4", catch_up="per-start"
    )
    found = [
        simulate(TASK, direct, TIMING, limits=Limits(server_steps=40), executor=executor, workers=2).summary
        for executor in ("inline", "processes")
    ]
    assert found[0]["model_sha256"] == found[1]["model_sha256"]


@pytest.mark.parametrize("executor", ["processes", pytest.param("ray", marks=pytest.mark.slow)])
def test_workers_are_handed_the_inexact_snapshots_that_clients_start_from(executor):
    """Clients that start from one version may start from x̂ and from an inexact snapshot of it."""
    if executor == "ray":
        pytest.importorskip("ray", reason="the extra ray is not installed")
    task = Quadratic(30, 400)
    inexact = method(
        *("qafel",), server_lr=0.5, client_lr=0.1, local_steps=3, buffer_size=20, client_quantizer="qsgd:4",
        server_quantizer="top_k:0.02", catch_up=Snapshot("qsgd:8"),
    )  # fmt: skip
    simulation = Simulation(task, inexact, TIMING, 0)
    simulation.begin()
    mixed = False
    while simulation.server.version < 40:
        simulation.advance()
        states = [event.start for *_, event in simulation.clock.entries() if isinstance(event, Job)]
        mixed |= len({state.version for state in states}) < len({(state.version, state.exact) for state in states})
    assert mixed
    limits = Limits(server_steps=40)
    found = simulate(task, inexact, TIMING, limits=limits, executor=executor, workers=2).summary
    assert found["model_sha256"] == sha256(simulation.server.model)
    assert found["received_bytes_total"] == simulation.traffic.received_bytes


def test_processes_are_handed_the_memories_that_uploads_are_relative_to():
    mcm = method(
        "mcm", server_lr=0.5, client_lr=0.1, local_steps=3, client_quantizer="qsgd:4", server_quantizer="qsgd:4"
    )
    found = [
        simulate(
            TASK, mcm, Timing(arrivals=Rounds()), limits=Limits(server_steps=40), executor=executor, workers=2
        ).summary
        for executor in ("inline", "processes")
    ]
    assert found[0]["model_sha256"] == found[1]["model_sha256"]


class Large:
    """A task whose training takes less time than sending a client's memory to a worker."""

    name, metric_name, metric_goal, clients = "large", "mean", "min", 12
    layout = Layout.flat(400_000)

    def samples(self, client):
        return 1

    def initial_model(self, stream):
        return np.ones(self.layout.size, np.float32)

    def train(self, client, start, local, stream):
        return start.vector * np.float32(0.99)

    def evaluate(self, model):
        return {"metric": float(model.mean())}


def test_large_memories_do_not_make_processes_wait_for_each_other():
    algorithm = method("error-feedback", client_quantizer="none", buffer_size=4)
    found = simulate(Large(), algorithm, server_steps=8, executor="processes", workers=2)
    assert found.summary["uploads"] == 32


class ReadsStart(ClientRule):
    """Reads all of the hidden state that a client starts from."""

    def vector(self, start, trained, memory):
        share = np.float32(1 if start.exact else 0.5)
        return share * (start.vector - trained.model) + np.float32(0.1) * (start.vector - start.memory)


@pytest.mark.parametrize(
    "settings",
    [{"downlink": "memory"}, {"catch_up": Snapshot("qsgd:4")}, {"catch_up": "link"}],
    ids=["memory", "snapshot", "link"],
)
@pytest.mark.parametrize("executor", ["processes", pytest.param("ray", marks=pytest.mark.slow)])
def test_a_client_rule_reads_the_same_start_on_every_executor(executor, settings):
    if executor == "ray":
        pytest.importorskip("ray", reason="the extra ray is not installed")
    algorithm = method(
        "qafel",
        client_rule=ReadsStart(),
        server_lr=0.3,
        client_lr=0.1,
        buffer_size=3,
        server_quantizer="qsgd:4",
        **settings,
    )
    timing = Timing(arrivals="poisson", rate=5.0)
    found = [
        simulate(TASK, algorithm, timing, server_steps=20, executor=name, workers=1).summary["model_sha256"]
        for name in ("inline", executor)
    ]
    assert found[0] == found[1]


def test_the_share_of_overhead_is_per_worker():
    found = simulate(TASK, ALGORITHM, TIMING, limits=Limits(server_steps=40), executor="processes", workers=2).summary
    worked_s = found["training_s"] / 2 + found["evaluation_s"]
    assert found["overhead_share"] == pytest.approx(max(0.0, 1 - worked_s / found["wall_s"]))


@pytest.mark.slow
def test_ray_gives_the_bits_that_one_thread_gives():
    pytest.importorskip("ray", reason="the extra ray is not installed")
    assert sha("ray", 2) == sha("inline")


def test_a_killed_worker_changes_nothing():
    with Processes(2, make_task, ALGORITHM, 0, 50) as pool:
        from qafel.config import Evaluation
        from qafel.runs.progress import Progress
        from qafel.simulator.run import drive

        simulation = Simulation(TASK, ALGORITHM, TIMING, 0, pool)
        for row in drive(simulation, Progress(Evaluation(), "min"), Limits(server_steps=40)):
            if row.version in (5, 20, 21):
                os.kill(pool._pool._workers[row.version % 2].process.pid, signal.SIGKILL)
        assert sha256(simulation.server.model) == sha("inline")


class Deadly:
    """A task at which workers die."""

    name, clients, layout = "deadly", 4, TASK.layout
    metric_name, metric_goal = "none", "min"

    def samples(self, client):
        return 1

    def initial_model(self, stream):
        return TASK.initial_model(stream)

    def train(self, client, start, local, stream):
        os._exit(7)

    def evaluate(self, model):
        return {"metric": 0.0}


def test_workers_that_die_again_and_again_are_reported():
    with pytest.raises(WorkerLost, match="exit code 7.* at the update of client"):
        simulate(Deadly(), ALGORITHM, Timing(), limits=Limits(uploads=1), executor="processes", workers=1)


class Diverging(Deadly):
    def train(self, client, start, local, stream):
        return start.vector * np.float32(np.nan)


def test_an_error_in_a_worker_reaches_the_run():
    run = {"uploads": 1, "executor": "processes", "workers": 1, "check": False}
    result = simulate(Diverging(), ALGORITHM, **run)
    assert result.summary["status"] == "diverged"
    assert result.summary["uploads"] == 0


def job_of(number, client, sequence, state):
    return Job(number, client, sequence, state.version, 1.0, None, {}, state)


class Patient(Deadly):
    """Its client 0 trains until a file appears, the others for a moment."""

    def __init__(self, until):
        self.until = until

    def train(self, client, start, local, stream):
        time.sleep(0.05)
        while client == 0 and not self.until.exists():
            time.sleep(0.01)
        return start.vector


def test_nobody_waits_behind_a_client_that_trains_for_long(tmp_path):
    """With a queue for each worker, every second of the others would wait for a file that comes after them."""
    task, state = Patient(tmp_path / "go"), HiddenState.of(TASK.initial_model(Stream.named(0, "start")))
    jobs = [job_of(number, number, 0, state) for number in range(9)]
    with Processes(2, partial(Patient, task.until), ALGORITHM, 0, 50) as pool:
        for job in jobs:
            pool.submit(job)
        uploads = [pool.result(job) for job in jobs[1:]]
        task.until.touch()
        uploads.append(pool.result(jobs[0]))
    assert len({made.upload for made in uploads}) == len(jobs)


def test_results_that_nobody_has_asked_for_take_room():
    """Else they would pile up: one for every client in flight."""
    state = HiddenState.of(TASK.initial_model(Stream.named(0, "start")))
    jobs = [job_of(number, number % 8, number // 8, state) for number in range(128)]
    with Processes(1, make_task, ALGORITHM, 0, 50) as pool:
        assert pool.room == 8
        for kept, asked_for in zip(jobs[::2], jobs[1::2], strict=True):
            assert pool.room == min(8, 64 - kept.number // 2)
            pool.submit(kept)
            pool.submit(asked_for)
            pool.result(asked_for)  # the one worker has done both
        assert pool.room == 0
        for job in jobs[::2]:
            pool.result(job)
        assert pool.room == 8


def test_a_script_without_a_main_guard_gets_a_clear_error(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        from qafel.algorithm import method
        from qafel.simulator import HalfNormal, Limits, Timing, simulate
        from qafel.tasks import Mushrooms  # more than a pipe holds
        algorithm = method("fedbuff", server_lr=1.0, client_lr=0.1, local_steps=1)
        timing = Timing()
        simulate(Mushrooms(5), algorithm, timing, limits=Limits(uploads=5), executor="processes", workers=1)
        """)
    )
    finished = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=550, check=False)
    assert finished.returncode != 0
    assert 'under `if __name__ == "__main__":`' in finished.stderr


def test_impossible_executors_are_refused():
    with pytest.raises(ConfigError, match="threads"):
        sha("threads")
    with pytest.raises(ConfigError, match="workers"):
        sha("processes", 0)


class OwnTask(Quadratic):
    """Of a class at module level, so that it travels."""


def unpicklable(kind):
    """A task that cannot be sent to another process: of a local class, with a lambda, or with a lock."""
    if kind == "local class":

        class Local(Quadratic):
            pass

        return Local(30, 50)
    task = OwnTask(30, 50)
    task.extra = threading.Lock() if kind == "lock" else lambda: 0
    return task


@contextlib.contextmanager
def no_shared_memory_is_left():
    """Others on this machine have shared memory, too: only that which this process makes is looked for."""
    made = []

    def make(*arguments, **options):
        memory = SharedMemory(*arguments, **options)
        made.append(memory.name)
        assert memory.name in os.listdir("/dev/shm")
        return memory

    with mock.patch.object(processes, "SharedMemory", make):
        yield
    assert made
    assert not set(made) & set(os.listdir("/dev/shm"))


@pytest.mark.parametrize("kind", ["local class", "lambda", "lock"])
def test_what_cannot_be_pickled_is_one_sentence_and_leaves_no_shared_memory(kind):
    with no_shared_memory_is_left(), pytest.raises(ConfigError, match="module level"):
        simulate(unpicklable(kind), ALGORITHM, TIMING, executor="processes", workers=1)


def test_what_another_process_cannot_find_is_one_sentence_and_leaves_no_shared_memory():
    """As in a notebook, whose classes no other process has."""
    script = """
        from qafel.errors import ConfigError
        from tests.simulator.test_executors import ALGORITHM, OwnTask, TIMING, no_shared_memory_is_left, simulate

        class Mine(OwnTask):
            pass

        with no_shared_memory_is_left():
            try:
                simulate(Mine(30, 50), ALGORITHM, TIMING, executor="processes", workers=1)
            except ConfigError as error:
                print(error)
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=550, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert "module level" in run.stdout
    assert run.stdout.count("\n") == 1


def test_ray_says_it_in_the_same_sentence():
    pytest.importorskip("ray", reason="the extra ray is not installed")
    with pytest.raises(ConfigError, match="another process"):
        simulate(unpicklable("lock"), ALGORITHM, TIMING, executor="ray", workers=1)


def test_the_servers_own_parts_stay_where_the_server_is():
    """Neither a law nor an accumulator that cannot be pickled keeps clients from training in other processes."""

    class Mean(Kept):
        def combine(self, uploads, updates, weights):
            return updates.mean(axis=0)

    own = {"staleness": lambda staleness: 0.5**staleness, "accumulator": Mean()}
    algorithm = method("qafel", server_lr=0.5, client_lr=0.1, local_steps=3, client_quantizer="qsgd:4", **own)
    found = [
        simulate(TASK, algorithm, TIMING, limits=Limits(server_steps=10), executor=executor, workers=1).summary
        for executor in ("inline", "processes")
    ]
    assert found[0]["model_sha256"] == found[1]["model_sha256"]
