"""A simulation between two events as arrays and plain values, and back.

What clients in flight will report is not saved: it follows from their jobs, and is trained again after a resume.
"""

from __future__ import annotations

from array import array
from dataclasses import asdict, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qafel.algorithm import Checkpoint, HiddenState, restore_server, save_server
from qafel.errors import DataError
from qafel.runs.progress import Progress, Traffic
from qafel.simulator.executors.jobs import Job
from qafel.simulator.simulation import Arrive, Deliver, Event, Gone, Simulation, Timeout

_COUNTERS = ("starts", "arrivals", "rounds", "in_flight", "turned_away", "out_of_time", "whole_bytes")


def save_simulation(simulation: Simulation, progress: Progress) -> Checkpoint:
    """Everything that the rest of a run depends on: the simulation between two events, and its progress."""
    server = save_server(simulation.server)
    arrays: dict[str, NDArray[Any]] = {f"server.{name}": array for name, array in server.arrays.items()}
    arrays["sequences"] = np.array(simulation.sequences, np.uint32)
    arrays["held"] = np.array(simulation.held)
    if simulation.algorithm.snapshot_quantizer is not None:
        arrays["overpaid"] = np.array(simulation.overpaid)
    if simulation.memories:
        arrays["memories.clients"] = np.fromiter(simulation.memories, np.int64)
        arrays["memories"] = np.stack(list(simulation.memories.values()))
    states = {_name(simulation.clients_hidden_state): simulation.clients_hidden_state}
    entries = []
    for time, priority, serial, event in simulation.clock.entries():
        entries.append([time, priority, serial, *_pack(event)])
        if (job := _job_of(event)) is not None:
            states[_name(job.hidden_state)] = job.hidden_state
            if job.memory is not None:  # its client's may have moved on since
                arrays[f"job_memory.{job.number}"] = job.memory
    for name, state in states.items():
        arrays[name] = state.vector
        if state.memory is not state.vector:
            arrays[f"memory.{state.version}"] = state.memory
    values = {
        "server": server.values,
        "clients_hidden_state": simulation.clients_hidden_state.version,
        "now": simulation.clock.now,
        "serial": simulation.clock.serial,
        "events": entries,
        "counters": {name: getattr(simulation, name) for name in _COUNTERS},
        "traffic": asdict(simulation.traffic),
        "progress": _dump(progress, simulation),
    }
    return Checkpoint(arrays, values)


def restore_simulation(checkpoint: Checkpoint, simulation: Simulation, progress: Progress) -> None:
    """Bring a new simulation and progress of the same configuration to the state that was saved."""
    arrays, values = checkpoint.arrays, checkpoint.values
    try:
        prefix = "server."
        inner = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
        simulation.server = restore_server(
            Checkpoint(inner, values["server"]),
            simulation.algorithm,
            simulation.seed,
            log_capacity=0,
            clients=simulation.task.clients,
        )
        states = _states(arrays)
        simulation.clients_hidden_state = states[f"version.{values['clients_hidden_state']}"]
        simulation.sequences = arrays["sequences"].tolist()
        simulation.held = array("q", arrays["held"].tobytes())
        if simulation.algorithm.snapshot_quantizer is not None:
            simulation.overpaid = array("q", arrays["overpaid"].tobytes())
        for name in _COUNTERS:
            setattr(simulation, name, values["counters"][name])
        simulation.traffic = Traffic(**values["traffic"])
        simulation.clock.restore(
            values["now"],
            values["serial"],
            [
                (time, priority, serial, _unpack(event, states, arrays))
                for time, priority, serial, *event in values["events"]
            ],
        )
        if "memories" in arrays:
            clients: list[int] = arrays["memories.clients"].tolist()
            simulation.memories = dict(zip(clients, arrays["memories"], strict=True))
        for name, value in values["progress"].items():
            setattr(progress, name, value)
    except KeyError as missing:
        raise DataError(f"an older qafel wrote the checkpoint (no {missing}): begin anew with `overwrite`") from None
    except (ValueError, TypeError) as error:
        raise DataError(f"the checkpoint does not fit this run: {error!r}") from None
    for time, _, _, event in sorted(simulation.clock.entries()):
        if isinstance(event, Job):
            simulation.train_ahead_of(time, event)
    simulation.follow_arrivals()


def _name(state: HiddenState) -> str:
    """The name of a hidden state's array; an inexact one (Q_snap(x̂)) may stand beside the exact one of its version."""
    return f"{'version' if state.exact else 'inexact'}.{state.version}"


def _states(arrays: dict[str, NDArray[Any]]) -> dict[str, HiddenState]:
    """The hidden states of a checkpoint, by the names of their arrays."""
    found = {}
    for name, vector in arrays.items():
        kind, _, version = name.partition(".")
        if kind == "version":
            found[name] = HiddenState.of(vector, int(version), arrays.get(f"memory.{version}"))
        elif kind == "inexact":
            found[name] = HiddenState.of(vector, int(version), exact=False)
    return found


def _dump(progress: Progress, simulation: Simulation) -> dict[str, Any]:
    kept = {entry.name: getattr(progress, entry.name) for entry in fields(progress)}
    for name in ("evaluation", "goal", "began"):
        del kept[name]
    training_s = progress.training_before_s + simulation.executor.training_s
    return {**kept, "wall_before_s": progress.wall_s, "training_before_s": training_s}


def _job_of(event: Event) -> Job | None:
    return event if isinstance(event, Job) else event.job if isinstance(event, Deliver) else None


def _pack(event: Event) -> list[Any]:
    name = type(event).__name__
    if (job := _job_of(event)) is None:
        return [name, *event]
    start = job.hidden_state
    packed = [name, job.number, job.client, job.sequence, start.version, job.weight, job.steps]
    return packed if start.exact else [*packed, "inexact"]


def _unpack(packed: list[Any], states: dict[str, HiddenState], arrays: dict[str, NDArray[Any]]) -> Event:
    name, *rest = packed
    if name not in ("Job", "Deliver"):
        other: Event = {"Arrive": Arrive, "Gone": Gone, "Timeout": Timeout}[name](*rest)
        return other
    number, client, sequence, version, weight, steps, *inexact = rest
    start = states[f"{inexact[0] if inexact else 'version'}.{version}"]
    job = Job(number, client, sequence, start, weight, steps, arrays.get(f"job_memory.{number}"))
    return job if name == "Job" else Deliver(job, None)
