"""Where results come from: command, seeds, settings, versions, machines and time, as the runs recorded them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, final

from qafel.experiments.measured import Measured
from qafel.experiments.plan import Planned
from qafel.results.report_numbers import human_seconds
from qafel.results.report_tables import flatten
from qafel.results.runs import Run
from qafel.simulator.summary import environment
from qafel.version import __version__

_APART = ("name", "description", "seed")
_TORCH = "torch"


@final
@dataclass(frozen=True, slots=True)
class Environment:
    """Versions and machine of a process."""

    versions: tuple[tuple[str, str], ...]
    hardware: str | None
    """None for runs of before it was recorded: of these only qafel's version is known."""

    @classmethod
    def of(cls, summary: Mapping[str, Any], with_torch: bool) -> Self:
        """What a summary says of it. PyTorch may be loaded where it has no part."""
        found, machine = summary.get("versions"), summary.get("hardware")
        versions = {"qafel": summary.get("qafel_version", "unknown")} | (found if isinstance(found, dict) else {})
        listed = tuple((name, str(value)) for name, value in versions.items() if with_torch or name != _TORCH)
        return cls(listed, _machine(machine) if isinstance(machine, dict) else None)

    @property
    def qafel(self) -> str:
        return dict(self.versions)["qafel"]

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.versions)
        return f"{versions} {f'on {self.hardware}' if self.hardware else '(machine and other versions not recorded)'}"

    def to_json(self) -> dict[str, Any]:
        return {"versions": dict(self.versions), "hardware": self.hardware}


@final
@dataclass(frozen=True, slots=True)
class Provenance:
    """What it takes to repeat an entry, and what it took."""

    command: str
    seeds: tuple[int, ...]
    each: tuple[int, int]
    """The fewest and the most seeds of a method at a place in the sweep."""
    made_with: dict[Environment, int]
    """How many runs each made, or made a part of."""
    written_with: Environment
    runs: int
    wall_s: float
    """Of all runs together, as each recorded its own."""
    common: dict[str, str]
    """Settings that all runs share."""
    differing: dict[str, dict[str, str]]
    """Settings that differ, by method; several values are listed."""

    def sentence(self) -> str:
        fewest, most = self.each
        each = f" ({fewest} to {most} for each point)" if fewest != most else ""
        several = len(self.made_with) > 1
        made = "; ".join(f"{f'{count} ' if several else ''}with {place}" for place, count in self.made_with.items())
        parts = [
            f"{self.runs} runs, seeds {_listed([str(seed) for seed in self.seeds])}{each}; "
            f"{human_seconds(self.wall_s)} of run time in all; made {made}.",
            "" if self._is_written_where_made() else f"Results written with {self.written_with}.",
            self.of_other_versions(),
        ]
        return " ".join(part for part in parts if part)

    def of_other_versions(self) -> str:
        """A word of warning where runs were made by another version than the present one."""
        others = {place.qafel: 0 for place in self.made_with if place.qafel != __version__}
        for place, count in self.made_with.items():
            if place.qafel in others:
                others[place.qafel] += count
        found = ", ".join(f"{count} by qafel {version}" for version, count in others.items())
        return f"Not made by the present qafel {__version__}: {found}; another --out makes them anew." if found else ""

    def seeds_each(self) -> str:
        """How many seeds a figure's points and curves stand for."""
        fewest, most = self.each
        if most == 1:
            return "1 seed" if len(self.seeds) == 1 else f"{len(self.seeds)} seeds, one a curve"
        return f"{most if fewest == most else f'{fewest} to {most}'} seeds: mean and range"

    def qafel(self) -> str:
        """The versions of qafel that made the runs."""
        return " and ".join(dict.fromkeys(place.qafel for place in self.made_with))

    def _is_written_where_made(self) -> bool:
        """Torch aside, which writing does not need."""
        made = {Environment(tuple(v for v in e.versions if v[0] != _TORCH), e.hardware) for e in self.made_with}
        return made == {self.written_with}


def provenance(measured: Measured, command: str) -> Provenance:
    """All that is known of how the runs came to be."""
    common, differing = settings(measured)
    each = Counter((planned.method, *sorted(planned.at.items())) for planned, _ in measured.pairs)
    return Provenance(
        command,
        tuple(measured.seeds),
        (min(each.values()), max(each.values())),
        dict(Counter(place for pair in measured.pairs for place in _environments(*pair))),
        Environment.of(environment(), with_torch=False),
        len(measured.pairs),
        sum(run.number("wall_s") for _, run in measured.pairs),
        common,
        differing,
    )


def settings(measured: Measured) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """What all runs have in common, and for each method what not."""
    flat = [
        (planned.method, flatten(planned.config.model_dump(exclude=set(_APART), exclude_none=True)))
        for planned, _ in measured.pairs
    ]
    keys = list(dict.fromkeys(key for _, config in flat for key in config))
    everywhere = {key: {config.get(key) for _, config in flat} for key in keys}
    common = {key: str(found.pop()) for key, found in everywhere.items() if len(found) == 1 and None not in found}
    differing = {
        method: {
            key: _listed(list(values))
            for key in keys
            if key not in common and (values := _values(key, [config for name, config in flat if name == method]))
        }
        for method in measured.methods
    }
    return common, differing


def _environments(planned: Planned, run: Run) -> list[Environment]:
    """Where a run was made: several places where it was interrupted and went on elsewhere."""
    before = run.summary.get("resumed_from")
    places = [run.summary, *(before if isinstance(before, list) else ())]
    return list(dict.fromkeys(Environment.of(place, not planned.cheap) for place in places))


def _machine(hardware: Mapping[str, Any]) -> str:
    """Cores and kind of processor."""
    cores = hardware.get("cores")
    return f"{cores} {'core' if cores == 1 else 'cores'}, {hardware.get('processor')}"


def _values(key: str, configs: Sequence[dict[str, str]]) -> dict[str, None]:
    return dict.fromkeys(config[key] for config in configs if key in config)


def _listed(values: Sequence[str]) -> str:
    return ", ".join(values) if len(values) <= 12 else f"{', '.join(values[:5])}, … {values[-1]}"
