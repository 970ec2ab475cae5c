"""Search settings of a recipe for the least cost of reaching its target."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

from qafel.config import Config
from qafel.errors import ConfigError
from qafel.simulator import Row
from qafel.simulator.executor_choice import ExecutorName
from qafel.tuning.folder import SearchFolder
from qafel.tuning.loop import Loop, Plan
from qafel.tuning.objective import OBJECTIVES, Objective, ObjectiveName
from qafel.tuning.processes import Elsewhere
from qafel.tuning.result import Save, Tuning, Watch
from qafel.tuning.search import Search, check_search, default_search, own_settings
from qafel.tuning.workers import Here, Workers


def tune(
    config: Config,
    search: Search | None = None,
    *,
    objective: ObjectiveName = "uploads",
    target: float | None = None,
    trials: int = 30,
    seconds: float | None = None,
    seeds: int = 1,
    check: int = 5,
    out: Path | None = None,
    workers: int = 1,
    executor: ExecutorName = "inline",
    watch: Watch | None = None,
    progress: Callable[[Row], None] | None = None,
    save: Save | None = None,
) -> Tuning:
    """Run trials in `out` until there are `trials`, or no new one after so many seconds; go on from what is there.

    The first trial is the configuration as it is, where the search holds it. Every trial runs the same `seeds` seeds,
    from the configuration's own on, which also seeds the search. At the end the best trials are run again with the
    `check` seeds that follow, however long that takes.

    A trial that raises an error has failed, and the search goes on; unless it is the configuration itself, or all
    fail. `save` is called with what there is every so often, and when the search ends, however it ends.
    """
    require_optuna()
    from qafel.tuning.study import Study  # noqa: PLC0415  (an optional extra)

    search = default_search(config) if search is None else search
    check_search(config, search)
    config, sought = _aim(config, objective, target)
    out = out or Path("tune") / config.name
    setup = {
        "config": config.model_dump(exclude_none=True),
        "search": {path: str(dimension) for path, dimension in search.items()},
        "objective": objective,
        "target": sought.target,
        "seeds": seeds,
    }
    plan = Plan(config, search, sought, trials, seconds, seeds, check, workers, executor)
    with SearchFolder(out, setup) as folder, _workers(workers, progress) as crew:
        study = Study(folder, search, own_settings(config, search), config.seed)
        return Loop(plan, folder, study, crew, watch, save).run()


def require_optuna() -> None:
    """The search's library is an extra: say so, where it is missing."""
    if not importlib.util.find_spec("optuna"):
        raise ConfigError("a search needs Optuna: pip install 'qafel[tune]'")


def _aim(config: Config, name: ObjectiveName, target: float | None) -> tuple[Config, Objective]:
    """The configuration with its target, and what is to be small."""
    if name not in OBJECTIVES:
        raise ConfigError(f"unknown objective {name!r}; choose from {', '.join(OBJECTIVES)}")
    if name == "metric":
        if target is not None:
            raise ConfigError(
                "the metric at a run's end has no target: leave out --target, or choose another objective"
            )
    elif (target := config.evaluation.target if target is None else target) is None:
        raise ConfigError(f"{name} until when? Give --target, for the recipe has no evaluation.target")
    else:
        aimed = config.model_dump(exclude_none=True)
        aimed["evaluation"]["target"] = float(target)
        config = Config.from_dict(aimed)
    task = config.task.make()
    return config, Objective(name, target, task.metric_goal, task.metric_name)


def _workers(count: int, progress: Callable[[Row], None] | None) -> Workers:
    return Here(progress) if count == 1 else Elsewhere(count)
