"""A simulation between two events as arrays and plain values, and back.

What clients in flight will report is not saved: it follows from their jobs, and is trained again after a resume. All
that is restored is checked first: values against their record, arrays against the layout that follows from them.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, Literal, NamedTuple, Self, TypeAlias, final

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from qafel.algorithm import Checkpoint, HiddenState, restore_server, save_server
from qafel.algorithm.state import Expected, require_arrays
from qafel.errors import DataError
from qafel.runs.progress import Progress, Traffic
from qafel.runs.records import Amount, Count, fault_of
from qafel.simulator.executors.jobs import Job
from qafel.simulator.simulation import HOLDS, NEVER, Arrive, Deliver, Event, Gone, Simulation, Timeout

_SERVER = "server."
_NOT_SAVED = ("evaluation", "goal", "began")


@final
class _SavedJob(NamedTuple):
    """A client in flight, be it in training or with its upload on the way."""

    number: Count
    client: Count
    sequence: Count
    start: str
    """The name of the array that it started from."""
    weight: Amount
    steps: Count | None
    memory: bool
    """Whether its upload is relative to a memory, in an array of its own."""


_Fields: TypeAlias = _SavedJob | Arrive | Gone | Timeout
_EVENTS: Mapping[str, TypeAdapter[Any]] = {
    "Job": TypeAdapter(_SavedJob),
    "Deliver": TypeAdapter(_SavedJob),
    "Arrive": TypeAdapter(Arrive),
    "Gone": TypeAdapter(Gone),
    "Timeout": TypeAdapter(Timeout),
}


class _Counters(BaseModel):
    """What a simulation counts."""

    starts: Count
    arrivals: Count
    rounds: Count
    in_flight: Count
    turned_away: Count
    out_of_time: Count
    whole_bytes: Count


class _Server(BaseModel):
    """The values of the server's own checkpoint, which `restore_server` checks."""

    model_config = ConfigDict(extra="allow")

    version: Count


class Saved(BaseModel):
    """The values of a simulation's checkpoint."""

    server: _Server
    clients_hidden_state: str
    """The name of its array."""
    now: Amount
    serial: Count
    events: list[tuple[Amount, Literal[0, 1], Count, Literal["Job", "Deliver", "Arrive", "Gone", "Timeout"], list[Any]]]
    """Time, priority, serial, kind and the fields of that kind."""
    counters: _Counters
    traffic: Traffic
    progress: dict[str, Any]

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Self:
        """The values, if they are sound; else `DataError`."""
        try:
            return cls.model_validate(checkpoint.values)
        except ValidationError as error:
            raise _unfit(fault_of(error)) from None


class SavedRun(Saved):
    """The values of the checkpoint in a run directory."""

    config: str
    metrics_bytes: Count
    environments: list[dict[str, Any]]


_PROGRESS = TypeAdapter(Progress)


def save_simulation(simulation: Simulation, progress: Progress) -> Checkpoint:
    """Everything that the rest of a run depends on: the simulation between two events, and its progress."""
    server = save_server(simulation.server)
    arrays: dict[str, NDArray[Any]] = {f"{_SERVER}{name}": array for name, array in server.arrays.items()}
    arrays["sequences"] = np.array(simulation.sequences, np.uint32)
    arrays["held"] = np.array(simulation.held)
    if simulation.algorithm.snapshot_quantizer is not None:
        arrays["overpaid"] = np.array(simulation.overpaid)
    if simulation.algorithm.uplink_memory_rate:
        memories, size = simulation.memories, simulation.server.model.size
        arrays["memories.clients"] = np.fromiter(memories, np.int64, len(memories))
        arrays["memories"] = np.array(list(memories.values()), np.float32).reshape(len(memories), size)
    states = {_name(simulation.clients_hidden_state): simulation.clients_hidden_state}
    entries = []
    for time, priority, serial, event in simulation.clock.entries():
        entries.append([time, priority, serial, type(event).__name__, list(_fields_of(event))])
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
        "clients_hidden_state": _name(simulation.clients_hidden_state),
        "now": simulation.clock.now,
        "serial": simulation.clock.serial,
        "events": entries,
        "counters": {name: getattr(simulation, name) for name in _Counters.model_fields},
        "traffic": asdict(simulation.traffic),
        "progress": _dump(progress, simulation),
    }
    return Checkpoint(arrays, values)


def restore_simulation(checkpoint: Checkpoint, simulation: Simulation, progress: Progress) -> None:
    """Bring a new simulation and progress of the same configuration to the state that was saved."""
    saved, arrays = Saved.of(checkpoint), checkpoint.arrays
    own = {name: array for name, array in arrays.items() if not name.startswith(_SERVER)}
    inner = {name.removeprefix(_SERVER): array for name, array in arrays.items() if name not in own}
    simulation.server = restore_server(
        Checkpoint(inner, saved.server.model_dump()),
        simulation.algorithm,
        simulation.seed,
        size=simulation.task.layout.size,
        log_capacity=0,
        clients=simulation.task.clients,
    )
    try:
        events = [
            (*place, kind, _EVENTS[kind].validate_python(own_fields)) for *place, kind, own_fields in saved.events
        ]
        kept = _restored_progress(saved, progress)
    except ValidationError as error:
        raise _unfit(fault_of(error)) from None
    jobs = [event for *_, event in events if isinstance(event, _SavedJob)]
    try:
        require_arrays(own, _layout(saved, jobs, simulation))
    except DataError as error:
        raise _unfit(error) from None
    sequences: list[int] = own["sequences"].tolist()
    _require_consistent(saved, events, jobs, sequences, simulation)
    states = {name: _state(name, own) for name in {saved.clients_hidden_state, *(job.start for job in jobs)}}
    simulation.clients_hidden_state = states[saved.clients_hidden_state]
    _require_shared(simulation)
    simulation.sequences = sequences
    simulation.held = array("q", own["held"].tobytes())
    if "overpaid" in own:
        simulation.overpaid = array("q", own["overpaid"].tobytes())
    for name, count in saved.counters:
        setattr(simulation, name, count)
    simulation.traffic = saved.traffic
    simulation.clock.restore(
        saved.now,
        saved.serial,
        [(time, priority, serial, _event(kind, event, states, own)) for time, priority, serial, kind, event in events],
    )
    if "memories" in own:
        clients: list[int] = own["memories.clients"].tolist()
        simulation.memories = dict(zip(clients, own["memories"], strict=True))
    for name, value in kept.items():
        setattr(progress, name, value)
    for time, _, _, event in sorted(simulation.clock.entries()):
        if isinstance(event, Job):
            simulation.train_ahead_of(time, event)
    simulation.follow_arrivals()


def _unfit(why: object) -> DataError:
    return DataError(f"the checkpoint does not fit this run ({why}): begin anew with `overwrite`")


def _layout(saved: Saved, jobs: list[_SavedJob], simulation: Simulation) -> dict[str, Expected]:
    """The arrays that belong to these values, but for those of the server."""
    algorithm, clients, size = simulation.algorithm, simulation.task.clients, simulation.task.layout.size
    vector, sent = Expected(np.float32, (size,)), saved.traffic.broadcast_bytes
    layout = {
        "sequences": Expected(np.uint32, (clients,)),
        "held": Expected(np.int64, (clients,), NEVER, sent),
    }
    if algorithm.snapshot_quantizer is not None:
        layout["overpaid"] = Expected(np.int64, (clients,), HOLDS)
    if algorithm.uplink_memory_rate:
        layout["memories.clients"] = Expected(np.int64, ("remembering",), 0, clients - 1, distinct=True)
        layout["memories"] = Expected(np.float32, ("remembering", size))
    with_memories = algorithm.downlink_rate(size) != 1 and algorithm.direct_draw != "start"
    for name in (saved.clients_hidden_state, *(job.start for job in jobs)):
        exact, version = _parsed(name)
        if version > simulation.server.version or (not exact and algorithm.snapshot_quantizer is None):
            raise DataError(f"no client starts from {name}")
        layout[name] = vector
        if with_memories and version:
            layout[f"memory.{version}"] = vector
    return layout | {f"job_memory.{job.number}": vector for job in jobs if job.memory}


def _require_consistent(
    saved: Saved, events: list[Any], jobs: list[_SavedJob], sequences: list[int], simulation: Simulation
) -> None:
    """Raise `DataError` if events name clients that there are not, or counts contradict each other."""
    clients, counters, algorithm = simulation.task.clients, saved.counters, simulation.algorithm
    serials = {serial for _, _, serial, _, _ in events}
    in_flight = sum(not isinstance(event, Arrive | Timeout) for *_, event in events)
    sound = {
        "clients": all(event.client < clients for *_, event in events if not isinstance(event, Timeout)),
        "serials": len(serials) == len(events) and max(serials, default=-1) < saved.serial,
        "starts": counters.starts == sum(sequences) and all(job.number < counters.starts for job in jobs),
        "jobs": len({job.number for job in jobs}) == len(jobs)
        and all(job.sequence < sequences[job.client] and job.steps != 0 for job in jobs if job.client < clients),
        "memories": bool(algorithm.uplink_memory_rate) or not any(job.memory for job in jobs),
        "clients in flight": counters.in_flight == in_flight,
        "arrivals": counters.arrivals <= counters.starts + counters.turned_away + 1,
        "updates": sum(saved.traffic.staleness_counts) == saved.traffic.uploads,
    }
    if wrong := [name for name, fits in sound.items() if not fits]:
        raise _unfit(f"its {wrong[0]} contradict other values")


def _require_shared(simulation: Simulation) -> None:
    """Raise `DataError` unless clients and server hold the same hidden state."""
    clients, server = simulation.clients_hidden_state, simulation.server.hidden_state
    own_draws = simulation.algorithm.direct_draw == "start"
    if clients.version != server.version or not clients.exact or not (own_draws or clients.digest == server.digest):
        raise _unfit("its clients hold another hidden state than its server")


def _restored_progress(saved: Saved, progress: Progress) -> dict[str, Any]:
    names = [entry.name for entry in fields(Progress) if entry.name not in _NOT_SAVED]
    if saved.progress.keys() != set(names):
        raise _unfit(f"progress has {', '.join(map(str, saved.progress)) or 'nothing'}, expected {', '.join(names)}")
    sound = _PROGRESS.validate_python({**saved.progress, **{name: getattr(progress, name) for name in _NOT_SAVED}})
    return {name: getattr(sound, name) for name in names}


def _name(state: HiddenState) -> str:
    """The name of a hidden state's array; an inexact one (Q_snap(x̂)) may stand beside the exact one of its version."""
    return f"{'version' if state.exact else 'inexact'}.{state.version}"


def _parsed(name: str) -> tuple[bool, int]:
    """Whether a hidden state of this name is exact, and its version."""
    kind, _, version = name.partition(".")
    if kind not in ("version", "inexact") or not version.isdecimal() or len(version) > 18:
        raise DataError(f"{name[:40]!r} names no hidden state")
    return kind == "version", int(version)


def _state(name: str, arrays: Mapping[str, NDArray[Any]]) -> HiddenState:
    exact, version = _parsed(name)
    return HiddenState.of(arrays[name], version, arrays.get(f"memory.{version}") if exact else None, exact=exact)


def _dump(progress: Progress, simulation: Simulation) -> dict[str, Any]:
    kept = {entry.name: getattr(progress, entry.name) for entry in fields(progress) if entry.name not in _NOT_SAVED}
    training_s = progress.training_before_s + simulation.executor.training_s
    return {**kept, "wall_before_s": progress.wall_s, "training_before_s": training_s}


def _job_of(event: Event) -> Job | None:
    return event if isinstance(event, Job) else event.job if isinstance(event, Deliver) else None


def _fields_of(event: Event) -> _Fields:
    if isinstance(event, Job | Deliver):
        job = event if isinstance(event, Job) else event.job
        start, memory = _name(job.hidden_state), job.memory is not None
        return _SavedJob(job.number, job.client, job.sequence, start, job.weight, job.steps, memory)
    return event


def _event(kind: str, saved: _Fields, states: Mapping[str, HiddenState], arrays: Mapping[str, NDArray[Any]]) -> Event:
    if not isinstance(saved, _SavedJob):
        return saved
    number, client, sequence, start, weight, steps, memory = saved
    own = arrays[f"job_memory.{number}"] if memory else None
    job = Job(number, client, sequence, states[start], weight, steps, own)
    return job if kind == "Job" else Deliver(job, None)
