"""Where results come from: command, seeds, versions, machine and time."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from qafel.config import Config
from qafel.experiments.measured import Measured
from qafel.results.report_numbers import human_seconds
from qafel.results.report_tables import flatten
from qafel.version import __version__

_APART = ("name", "description", "seed")
_DEFAULTS = flatten(Config().model_dump())


@final
@dataclass(frozen=True, slots=True)
class Provenance:
    """What it takes to repeat an entry, and what it took."""

    command: str
    seeds: tuple[int, ...]
    versions: dict[str, str]
    hardware: str
    runs: int
    wall_s: float
    """Of all runs together, as each recorded its own."""
    common: dict[str, str]
    """Settings that all runs share, but for defaults."""
    differing: dict[str, dict[str, str]]
    """Settings that differ, by method; several values are listed."""

    def sentence(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return (
            f"{self.runs} runs, seeds {_listed([str(seed) for seed in self.seeds])}; {human_seconds(self.wall_s)} of "
            f"run time in all; {versions}; {self.hardware}."
        )


def provenance(measured: Measured, command: str) -> Provenance:
    """All that is known of how the runs came to be."""
    runs = [run for _, run in measured.pairs]
    common, differing = settings(measured)
    return Provenance(
        command,
        tuple(measured.seeds),
        versions(with_torch=any(not planned.cheap for planned, _ in measured.pairs)),
        hardware(),
        len(runs),
        sum(run.number("wall_s") for run in runs),
        common,
        differing,
    )


def settings(measured: Measured) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """What all runs have in common beyond the defaults, and for each method what not."""
    flat = [
        (planned.method, flatten(planned.config.model_dump(exclude=set(_APART), exclude_none=True)))
        for planned, _ in measured.pairs
    ]
    keys = list(dict.fromkeys(key for _, config in flat for key in config))
    everywhere = {key: {config.get(key) for _, config in flat} for key in keys}
    shared = {key: str(found.pop()) for key, found in everywhere.items() if len(found) == 1 and None not in found}
    common = {key: value for key, value in shared.items() if key.startswith("task.") or _DEFAULTS.get(key) != value}
    differing = {
        method: {
            key: _listed(list(values))
            for key in keys
            if key not in shared and (values := _values(key, [config for name, config in flat if name == method]))
        }
        for method in measured.methods
    }
    return common, differing


def versions(with_torch: bool) -> dict[str, str]:
    packages = ("numpy", "numba", "torch") if with_torch else ("numpy", "numba")
    found = {"qafel": __version__, "Python": platform.python_version()}
    return found | {name: importlib.metadata.version(name) for name in packages}


def hardware() -> str:
    """Cores and kind of processor."""
    cores = os.cpu_count() or 1
    return f"{cores} {'core' if cores == 1 else 'cores'}, {_processor()}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()


def _values(key: str, configs: Sequence[dict[str, str]]) -> dict[str, None]:
    return dict.fromkeys(config[key] for config in configs if key in config)


def _listed(values: Sequence[str]) -> str:
    return ", ".join(values) if len(values) <= 12 else f"{', '.join(values[:5])}, … {values[-1]}"
