"""A crafted checkpoint is refused in a sentence: every array and every value of it, for every method."""

from __future__ import annotations

import copy
import json
from collections import deque
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from qafel import algorithm
from qafel.algorithm import Checkpoint
from qafel.errors import ConfigError, DataError, NonFiniteVector
from qafel.runs.checkpoints import read_checkpoint, write_checkpoint
from qafel.runs.directory import CHECKPOINT
from qafel.runs.progress import Evaluation, Progress
from qafel.simulator import ConstantRate, Network, Rounds, Simulation, Timing
from qafel.simulator import simulation as simulation_module
from qafel.simulator.checkpoint import restore_simulation, save_simulation
from qafel.simulator.simulation import job_of
from qafel.tasks import Quadratic
from tests.command import qafel_here
from tests.crafted import other_arrays, other_values, with_array, with_value

CLIENTS, SIZE, EVENTS = 12, 7, 61
BITS = {"client_quantizer": "qsgd:4", "server_quantizer": "qsgd:4"}
METHODS: dict[str, dict[str, Any]] = {
    "fedbuff": {"method": "fedbuff"},
    "qafel": {"method": "qafel", **BITS},
    "momentum": {"method": "qafel", **BITS, "server_momentum": 0.9},
    "fedasync": {"method": "fedasync", "buffer_size": 1},
    "direct": {"method": "fedbuff-direct", **BITS},
    "direct draws": {"method": "fedbuff-direct", **BITS, "catch_up": "per-start"},
    "weighted": {"method": "qafel", **BITS, "accumulator": "weighted-mean", "client_weights": "samples"},
    "median": {"method": "qafel", **BITS, "accumulator": "median"},
    "trimmed mean": {"method": "qafel", **BITS, "accumulator": {"name": "trimmed-mean", "buckets": 3}},
    "link": {"method": "qafel", **BITS, "catch_up": "link"},
    "auto": {"method": "qafel", **BITS, "catch_up": "auto"},
    "snapshots": {"method": "qafel", **BITS, "catch_up": {"name": "snapshot", "quantizer": "qsgd:4"}},
    "mcm": {"method": "mcm", **BITS},
    "fedadam": {"method": "fedadam", **BITS},
    "ca2fl": {"method": "ca2fl", **BITS},
    "error feedback": {"method": "error-feedback"},
    "fedavg": {"method": "fedavg"},
    "cafe": {"method": "cafe", "client_quantizer": "sign", "max_staleness": 6},
    "early": {"method": "qafel", **BITS},
}
IN_ROUNDS = {"mcm", "fedavg"}
EARLY = {"early"}
"""Clients train when they start, as those of large models do."""
ALL_VALUES = {"qafel", "link", "fedavg", "early"}
"""The values of events, counters and traffic do not depend on the method otherwise."""


def new(method: str, seed: int = 3) -> Simulation:
    settings = {"server_lr": 0.1, "client_lr": 0.05, "local_steps": 2, "buffer_size": 5, **METHODS[method]}
    arrivals = Rounds(timeout=3.0) if method in IN_ROUNDS else ConstantRate(rate=12.0)
    network = Network(upload_rate=1e4, download_rate=1e4)
    timing = Timing(arrivals=arrivals, dropout=0.1, network=network)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation_module, "LARGE_BYTES", -(10**9) if method in EARLY else 1 << 24)
        return Simulation(Quadratic(CLIENTS, SIZE), algorithm.method(settings.pop("method"), **settings), timing, seed)


def progress() -> Progress:
    return Progress(Evaluation(), "min")


def saved(method: str) -> Checkpoint:
    """A run between two steps, with updates in the buffer and on their way."""
    simulation = new(method)
    simulation.begin()
    for _ in range(EVENTS):
        simulation.advance()
    made = save_simulation(simulation, progress())
    return made._replace(values=json.loads(json.dumps(made.values)))


def go_on(checkpoint: Checkpoint, method: str, events: int = 60) -> Simulation:
    """Restore a run, and let it go on."""
    simulation = new(method)
    restore_simulation(copy.deepcopy(checkpoint), simulation, progress())
    for _ in range(events):
        simulation.advance()
    return simulation


KINDS = ("qafel", "auto", "mcm", "ca2fl", "trimmed mean")
"""One method of each kind of state. The slow tests damage the checkpoints of all methods."""


@pytest.fixture(scope="module", params=METHODS)
def made(request) -> tuple[str, Checkpoint]:
    return request.param, saved(request.param)


@pytest.fixture(
    scope="module",
    params=[*KINDS, *(pytest.param(name, marks=pytest.mark.slow) for name in METHODS if name not in KINDS)],
)
def damaged(request) -> tuple[str, Checkpoint]:
    return request.param, saved(request.param)


def test_an_untouched_one_goes_on_to_the_same_bits(made) -> None:
    method, checkpoint = made
    uninterrupted = new(method)
    uninterrupted.begin()
    for _ in range(EVENTS + 60):
        uninterrupted.advance()
    found = go_on(checkpoint, method)
    assert found.server.model.tobytes() == uninterrupted.server.model.tobytes()
    assert found.traffic == uninterrupted.traffic


def test_a_resumed_run_ends_at_the_same_time_although_the_law_stopped_jobs() -> None:
    """An event of a stopped job moves no clock: a checkpoint does not have it."""
    task = Quadratic(8, 5)
    stopping = algorithm.method("ringmaster", staleness={"name": "delay-limit", "limit": 2}, local_steps=1)
    timing = Timing(duration="log-normal", spread=1.5)

    def ended(simulation: Simulation, virtual_time: float) -> tuple[float, int, bytes]:
        while simulation.clock.now < virtual_time:
            simulation.advance()
        return simulation.clock.now, simulation.server.version, simulation.server.model.tobytes()

    simulation = Simulation(task, stopping, timing, seed=4)
    simulation.begin()
    for virtual_time in (3.0, 4.0, 5.0, 6.0):
        resumed = Simulation(task, stopping, timing, seed=4)
        restore_simulation(save_simulation(simulation, progress()), resumed, progress())
        assert ended(resumed, virtual_time) == ended(simulation, virtual_time)
    assert simulation.stopped > 100


def test_clients_of_large_models_train_early_to_equal_bits_and_keep_no_start() -> None:
    early, late = new("early"), new("qafel")
    early.begin()
    late.begin()
    for _ in range(EVENTS + 60):
        assert early.advance() == late.advance()
    assert early.server.model.tobytes() == late.server.model.tobytes()
    assert early.traffic == late.traffic
    jobs = [job for event in early.clock.events() if (job := job_of(event)) is not None]
    assert jobs
    assert all(job.start is None for job in jobs)
    assert early.uploads.keys() <= {job.number for job in jobs}


class Failing(Quadratic):
    """The training of the client that starts as number 40 fails."""

    def train(self, client, start, local, stream):
        self.trained = getattr(self, "trained", 0) + 1
        return super().train(client, start, local, stream) * (np.inf if self.trained >= 40 else 1)


def test_an_update_that_fails_early_is_reported_when_it_is_due(monkeypatch) -> None:
    """A run that ends before an update is due does not fail by it."""
    monkeypatch.setattr(simulation_module, "LARGE_BYTES", -(10**9))
    made = algorithm.method("qafel", **BITS, server_lr=0.1, client_lr=0.05, local_steps=2, buffer_size=5)
    failing = Simulation(Failing(CLIENTS, SIZE), made, Timing(arrivals=ConstantRate(rate=12.0)), 3)
    failing.begin()
    while failing.starts < 40:
        failing.advance()
    uploads = failing.traffic.uploads
    with pytest.raises(NonFiniteVector):
        deque(iter(failing.advance, None))
    assert failing.traffic.uploads > uploads


EXTRA = ("extra", "server.extra", "start.vector", "job.h", "server.memory")


def test_no_array_of_another_name_shape_or_type_is_restored(damaged) -> None:
    method, checkpoint = damaged
    taken = []
    for word, mutant in other_arrays(checkpoint, EXTRA):
        with suppress(DataError):
            restore_simulation(copy.deepcopy(mutant), new(method), progress())
            taken.append(word)
    assert taken == []


TWICE = -99
"""The value of another entry."""
INDICES = {
    "fleet.sequences": (1_000_000, -1),
    "fleet.positions": (-(2**63), -2),
    "fleet.overpaid": (-2, -(2**63)),
    "server.accumulator.counts": (-1, 2**40),
    "server.accumulator.places": (-1, 10, 2**40),
    "server.seen.sender": (TWICE,),
    "server.seen.highest": (-2, 2**62),
}


def test_no_index_or_count_out_of_range_is_restored(damaged) -> None:
    method, checkpoint = damaged
    taken = []
    for name, values in INDICES.items():
        array = checkpoint.arrays.get(name)
        for value in values if array is not None and array.size > 1 else ():
            other = array.copy()
            other[-1] = other[0] if value == TWICE else value
            with suppress(DataError):
                restore_simulation(with_array(checkpoint, name, other), new(method), progress())
                taken.append((name, value))
    for name, table in checkpoint.rows.items():
        for key in (-1, 2**61, 2**62) if name.startswith(("fleet.", "start.", "job.")) and table else ():
            other = table.copy()
            other._rows[key] = next(iter(table.values()))
            with suppress(DataError):
                restore_simulation(checkpoint._replace(rows={**checkpoint.rows, name: other}), new(method), progress())
                taken.append((name, key))
    assert taken == []


def test_an_odd_value_is_refused_or_does_no_harm(damaged) -> None:
    """Never an error that is not raised on purpose, then or later."""
    method, checkpoint = damaged
    for word, mutant in other_values(checkpoint, None if method in ALL_VALUES else ("server",)):
        try:
            with suppress(DataError, ConfigError, NonFiniteVector):
                go_on(mutant, method, events=15)
        except Exception as error:
            raise AssertionError(word) from error


def test_a_value_that_is_missing_is_named(made) -> None:
    method, checkpoint = made
    for name in ("server", "events", "traffic", "progress"):
        with pytest.raises(DataError, match=name):
            go_on(with_value(checkpoint, (name,), None, remove=True), method)


def test_a_shrunk_memory_ends_resume_with_a_sentence(tmp_path) -> None:
    command = ["run", "mushrooms-mcm", "--out", tmp_path / "run", "--quiet", "--set"]
    qafel_here(*command, "stop.server_steps=3")
    checkpoint = read_checkpoint(tmp_path / "run" / CHECKPOINT)
    name = "server.accumulator.memory"
    checkpoint.arrays[name] = checkpoint.arrays[name][:1]
    write_checkpoint(tmp_path / "run" / CHECKPOINT, checkpoint)
    _, complaint = qafel_here(*command, "stop.server_steps=6", "--resume", expect=2)
    assert "accumulator.memory" in complaint
    assert complaint.count("\n") == 1
