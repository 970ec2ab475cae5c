"""Where clients train.

jobs: a client's training as a value; the base of executors; training in this process.
processes: worker processes on this machine.
ray_cluster: workers on a Ray cluster.
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
    name: ExecutorName, workers: int | None, task: Task, make_task: Callable[[], Task], algorithm: Algorithm, seed: int
) -> Executor:
    """Make an executor by name. It is a context manager.

    `workers`: how many train in parallel; by default one per core. `make_task`: makes the task in another process; it
    is pickled.
    """
    count = worker_count(workers, elsewhere=name == "ray")
    match name:
        case "inline":
            return Inline(Trainer(task, algorithm, seed))
        case "processes":
            return Processes(count, make_task, algorithm.at_client(), seed, task.layout.size)
        case "ray":
            return RayCluster(count, make_task, algorithm.at_client(), seed)
    raise ConfigError(f"unknown executor {name!r}: use inline, processes or ray")
