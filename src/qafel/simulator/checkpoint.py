"""Save a simulation between two events, and restore it.

Uploads of clients in flight are not saved, except those of jobs that trained early: after a resume, the other jobs are
trained again. Everything is checked before it is restored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, Literal, NamedTuple, Self, TypeAlias, final

import numpy as np
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from qafel.algorithm import Checkpoint, HiddenState, restore_server, save_server
from qafel.algorithm.catch_up import Link
from qafel.algorithm.messages import Kind, Message
from qafel.algorithm.state import Expected, Rows, inside, pack, require_arrays, require_vectors, restore_, state_of
from qafel.errors import DataError, MessageError
from qafel.runs.progress import Amount, Count, Progress, Traffic, fault_of
from qafel.simulator.executors.jobs import Job
from qafel.simulator.simulation import Arrive, Deliver, Dropout, Event, Simulation, Timeout, job_of

_SERVER, _JOB, _START, _UPLOAD = "server.", "job.", "start.", "start.upload"
_VECTOR, _MEMORY, _LINKS, _INITIAL = (f"{_START}{name}" for name in ("vector", "memory", "links", "initial"))
_NOT_SAVED = ("evaluation", "goal", "began")


@final
class _SavedJob(NamedTuple):
    """A client in flight: it trains, or its upload travels."""

    number: Count
    client: Count
    sequence: Count
    start: Count | None
    """The key of the hidden state that it started from. None: it has trained early, and its upload is saved."""
    version: Count
    """Of that hidden state."""
    weight: Amount
    steps: Count | None


_Fields: TypeAlias = _SavedJob | Arrive | Dropout | Timeout
_EVENTS: Mapping[str, TypeAdapter[Any]] = {
    "Job": TypeAdapter(_SavedJob),
    "Deliver": TypeAdapter(_SavedJob),
    "Arrive": TypeAdapter(Arrive),
    "Dropout": TypeAdapter(Dropout),
    "Timeout": TypeAdapter(Timeout),
}


class _Counters(BaseModel):
    """The counters of a simulation."""

    starts: Count
    arrivals: Count
    rounds: Count
    first_of_round: Count
    in_flight: Count
    turned_away: Count
    out_of_time: Count
    stopped: Count


class _Server(BaseModel):
    """The values of the server's own checkpoint, which `restore_server` checks."""

    model_config = ConfigDict(extra="allow")

    version: Count


class Saved(BaseModel):
    """The values of a simulation's checkpoint."""

    server: _Server
    now: Amount
    serial: Count
    events: list[
        tuple[Amount, Literal[0, 1], Count, Literal["Job", "Deliver", "Arrive", "Dropout", "Timeout"], list[Any]]
    ]
    """Time, priority, serial, kind and the fields of that kind."""
    counters: _Counters
    traffic: Traffic
    progress: dict[str, Any]

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Self:
        """The values of a checkpoint. Raises `DataError` if they are not sound."""
        try:
            return cls.model_validate(checkpoint.values)
        except ValidationError as error:
            raise _unfit(fault_of(error)) from None


class SavedRun(Saved):
    """The values of the checkpoint in a run directory."""

    config: str
    metrics_bytes: Count
    environments: list[dict[str, Any]]
    """The last one wrote the checkpoint."""
    executor: str
    task_digest: str
    """Of x⁰ and a client's first upload, with this executor in the last environment. Empty: unknown."""


_PROGRESS = TypeAdapter(Progress)


def save_simulation(simulation: Simulation, progress: Progress) -> Checkpoint:
    """Everything that the rest of a run depends on: the simulation between two events, and its progress."""
    server, (arrays, rows) = save_server(simulation.server), pack(state_of({"fleet": simulation.fleet}))
    arrays |= {f"{_SERVER}{name}": array for name, array in server.arrays.items()}
    rows |= {f"{_SERVER}{name}": table for name, table in server.rows.items()}
    tables = _VECTOR, _MEMORY, _UPLOAD, *(f"{_JOB}{name}" for name in simulation.fleet.new_memory)
    rows |= {name: Rows() for name in tables}
    if simulation.links is not None:
        arrays[_INITIAL] = simulation.links.initial.vector
        rows[_LINKS] = Rows({client: link.base for client, link in simulation.links.memory.items()}, np.float32)
    entries = []
    for time, priority, serial, event in simulation.clock.entries():
        job = job_of(event)
        if job is not None and simulation.is_stopped(job):
            continue
        entries.append([time, priority, serial, type(event).__name__, list(_fields_of(event, simulation))])
        if job is not None and job.start is None:
            made = event.made if isinstance(event, Deliver) else None
            rows[_UPLOAD][job.number] = simulation.uploads[job.number] if made is None else made.upload
        elif job is not None and (start := job.start) is not None:
            key = _key(start, job, simulation)
            rows[_VECTOR][key] = start.vector
            if start.memory is not start.vector:
                rows[_MEMORY][key] = start.memory
            for name, value in job.memory.items():  # the client's memory may have changed since
                rows[f"{_JOB}{name}"][job.number] = value
    kept = {entry.name: getattr(progress, entry.name) for entry in fields(progress) if entry.name not in _NOT_SAVED}
    training_s = progress.training_before_s + simulation.executor.training_s
    values = {
        "server": server.values,
        "now": simulation.clock.now,
        "serial": simulation.clock.serial,
        "events": entries,
        "counters": {name: getattr(simulation, name) for name in _Counters.model_fields},
        "traffic": asdict(simulation.traffic),
        "progress": {**kept, "wall_before_s": progress.wall_s, "training_before_s": training_s},
    }
    return Checkpoint(arrays, values, rows)


def restore_simulation(checkpoint: Checkpoint, simulation: Simulation, progress: Progress) -> None:
    """Bring a new simulation and progress of the same configuration to the saved state."""
    saved, arrays, rows = Saved.of(checkpoint), checkpoint.arrays, checkpoint.rows
    simulation.server = restore_server(
        Checkpoint(inside(_SERVER, arrays), saved.server.model_dump(), inside(_SERVER, rows)),
        simulation.algorithm,
        simulation.seed,
        size=simulation.task.layout.size,
        clients=simulation.task.clients,
    )
    try:
        events = [
            (*place, kind, _EVENTS[kind].validate_python(own_fields)) for *place, kind, own_fields in saved.events
        ]
        kept = _restored_progress(saved, progress)
        jobs = [event for *_, event in events if isinstance(event, _SavedJob)]
        starts = _starts(rows, {job.start: job.version for job in jobs if job.start is not None}, simulation)
        uploads = _uploads(rows, [job for job in jobs if job.start is None], simulation)
        simulation.fleet.require_memories(in_flight := inside(_JOB, rows), {job.number for job in jobs})
        fleet = {name: array for name, array in arrays.items() if not name.startswith((_SERVER, _START))}
        tables = {name: table for name, table in rows.items() if not name.startswith((_SERVER, _JOB, _START))}
        restore_({"fleet": simulation.fleet}, fleet, tables)
        _restore_links(rows.get(_LINKS, Rows()), inside(_START, arrays), simulation)
    except ValidationError as error:
        raise _unfit(fault_of(error)) from None
    except DataError as error:
        raise _unfit(error) from None
    _require_consistent(saved, events, jobs, simulation)
    simulation.background.hidden_state = simulation.server.hidden_state  # at both ends the same, between two events
    for name, count in saved.counters:
        setattr(simulation, name, count)
    simulation.traffic, simulation.uploads = saved.traffic, uploads
    simulation.clock.restore(
        saved.now,
        saved.serial,
        [
            (time, priority, serial, _event(kind, event, starts, in_flight))
            for time, priority, serial, kind, event in events
        ],
    )
    for name, value in kept.items():
        setattr(progress, name, value)
    simulation.resume()


def _unfit(why: object) -> DataError:
    return DataError(f"the checkpoint does not fit this run ({why}): start again with `overwrite`")


def _key(state: HiddenState, job: Job, simulation: Simulation) -> int:
    """The number of a hidden state in the tables of starts. A version may have an exact and a quantized one.

    With linked starts, each job has its own inexact start.
    """
    own = simulation.links is not None and not state.exact
    return 2 * (job.number if own else state.version) + (not state.exact)


def _restore_links(table: Rows, arrays: Mapping[str, Any], simulation: Simulation) -> None:
    """Restore the start points that the server remembers, and x⁰: a resumed run may have made another."""
    clients, links = {client for client, held in enumerate(simulation.fleet.held) if held.linked}, simulation.links
    size = simulation.task.layout.size
    require_arrays(arrays, {} if links is None else {"initial": Expected(np.float32, (size,))})
    if links is None:
        if table or clients:
            raise DataError("the method keeps no start points")
        return
    require_vectors(table, links.initial.vector, "a start point")
    if not clients <= set(table) or not all(0 <= client < simulation.task.clients for client in table):
        raise DataError("the start points do not fit the clients")
    links.initial = HiddenState.of(arrays["initial"].copy())
    for client, row in table.items():
        links.memory[client] = Link(row, HiddenState.of(row).digest)


def _starts(rows: Mapping[str, Rows], keys: Mapping[int, int], simulation: Simulation) -> dict[int, HiddenState]:
    """The hidden states that jobs in flight started from, by key; `keys` gives their versions."""
    algorithm, size = simulation.algorithm, simulation.task.layout.size
    inexact = algorithm.needs.quantized_starts or algorithm.needs.own_starts
    apart = algorithm.downlink.keeps_memory(algorithm.server_quantizer, size)
    with_memory = {key for key in keys if apart and key >= 2 and not key % 2}
    if not rows.keys() >= {_VECTOR, _MEMORY} or (set(rows[_VECTOR]), set(rows[_MEMORY])) != (set(keys), with_memory):
        raise DataError("the starts of clients in flight do not fit their jobs")
    for table in (rows[_VECTOR], rows[_MEMORY]):
        require_vectors(table, simulation.server.model, "a start")
    for key, version in keys.items():
        own = key % 2 and simulation.links is not None
        if version > simulation.server.version or (key % 2 and not inexact) or (not own and version != key // 2):
            raise DataError("a client in flight started from a hidden state that the run does not have")
    return {
        key: HiddenState.of(rows[_VECTOR][key], version, rows[_MEMORY].get(key), exact=not key % 2)
        for key, version in keys.items()
    }


def _uploads(rows: Mapping[str, Rows], jobs: list[_SavedJob], simulation: Simulation) -> dict[int, bytes]:
    """The uploads of jobs that trained early, by number."""
    table, quantizer = rows.get(_UPLOAD), simulation.algorithm.client_quantizer
    if table is None or set(table) != {job.number for job in jobs}:
        raise DataError("the uploads of clients in flight do not fit their jobs")
    for job in jobs:
        try:
            message = Message.from_bytes(table[job.number])
            message.check(Kind.UPLOAD, simulation.task.layout.size, quantizer)
        except (MessageError, TypeError) as error:
            raise DataError(f"an upload of a client in flight is damaged ({error})") from None
        if (message.sender, message.sequence, message.version) != (job.client, job.sequence, job.version):
            raise DataError("an upload of a client in flight is another client's")
    return {number: bytes(upload) for number, upload in table.items()}


def _require_consistent(saved: Saved, events: list[Any], jobs: list[_SavedJob], simulation: Simulation) -> None:
    """Raise `DataError` if events name unknown clients, or counts contradict each other."""
    clients, counters, sequences = simulation.task.clients, saved.counters, simulation.fleet.sequences
    serials = {serial for _, _, serial, _, _ in events}
    in_flight = sum(not isinstance(event, Arrive | Timeout) for *_, event in events)
    sound = {
        "clients": all(event.client < clients for *_, event in events if not isinstance(event, Timeout)),
        "serials": len(serials) == len(events) and max(serials, default=-1) < saved.serial,
        "starts": counters.starts == sum(sequences) and all(job.number < counters.starts for job in jobs),
        "rounds": counters.first_of_round <= counters.starts,
        "jobs": len({job.number for job in jobs}) == len(jobs)
        and all(job.sequence < sequences[job.client] and job.steps != 0 for job in jobs if job.client < clients),
        "clients in flight": counters.in_flight == in_flight,
        "arrivals": counters.arrivals <= counters.starts + counters.turned_away + 1,
        "updates": sum(saved.traffic.staleness_counts) == saved.traffic.uploads,
    }
    if wrong := [name for name, fits in sound.items() if not fits]:
        raise _unfit(f"its {wrong[0]} contradict other values")


def _restored_progress(saved: Saved, progress: Progress) -> dict[str, Any]:
    names = [entry.name for entry in fields(Progress) if entry.name not in _NOT_SAVED]
    if saved.progress.keys() != set(names):
        raise _unfit(f"progress has {', '.join(map(str, saved.progress)) or 'nothing'}, expected {', '.join(names)}")
    sound = _PROGRESS.validate_python({**saved.progress, **{name: getattr(progress, name) for name in _NOT_SAVED}})
    return {name: getattr(sound, name) for name in names}


def _fields_of(event: Event, simulation: Simulation) -> _Fields:
    if isinstance(event, Job | Deliver):
        job = event if isinstance(event, Job) else event.job
        key = None if job.start is None else _key(job.start, job, simulation)
        return _SavedJob(job.number, job.client, job.sequence, key, job.version, job.weight, job.steps)
    return event


def _event(kind: str, saved: _Fields, starts: Mapping[int, HiddenState], memories: Mapping[str, Rows]) -> Event:
    if not isinstance(saved, _SavedJob):
        return saved
    number, client, sequence, start, version, weight, steps = saved
    state = None if start is None else starts[start]
    memory = {name: rows[number] for name, rows in memories.items()}
    job = Job(number, client, sequence, version, weight, steps, memory, state)
    return job if kind == "Job" else Deliver(job, None)
