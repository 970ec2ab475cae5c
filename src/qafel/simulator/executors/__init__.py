"""Where clients train; here, an executor by its name.

jobs           what a client will report, as a job; jobs run at once, in this process
processes      jobs in worker processes on this machine
ray_cluster    jobs on a Ray cluster
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from qafel.algorithm import Algorithm
from qafel.errors import ConfigError
from qafel.simulator.executors.jobs import Executor, Inline, Trainer
from qafel.simulator.executors.processes import Processes
from qafel.simulator.executors.ray_cluster import RayCluster
from qafel.tasks.protocol import Task
from qafel.workers import worker_count

ExecutorName: TypeAlias = Literal["inline", "processes", "ray"]


def make_executor(
    name: ExecutorName,
    workers: int | None,
    task: Task,
    make_task: Callable[[], Task],
    algorithm: Algorithm,
    seed: int,
) -> Executor:
    """Make an executor; it is a context manager.

    name        "inline", "processes" or "ray"
    workers     how many train at once; one per core by default
    task        what is trained in this process
    make_task   makes the task again in another process: it and what it needs travel there
    algorithm   the method
    seed        the run's
    """
    count = worker_count(workers, elsewhere=name == "ray")
    if name == "inline":
        return Inline(Trainer(task, algorithm, seed))
    travelling = algorithm.at_client()  # parts of the server may not travel to another process
    match name:
        case "processes":
            return Processes(count, make_task, travelling, seed, task.layout.size)
        case "ray":
            return RayCluster(count, make_task, travelling, seed)
        case _:
            raise ConfigError(f"unknown executor {name!r}; choose from inline, processes, ray")
