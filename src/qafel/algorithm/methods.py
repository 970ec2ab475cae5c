"""QAFeL and its relatives, as wiring: the same parts, some of them fixed.

Asynchronous:

    qafel             the paper's algorithm: K updates a step, both ways quantized, hidden state
    fedbuff           Nguyen et al., AISTATS 2022: QAFeL with identity quantizers
    fedasync          Xie et al., 2019: one update a step, models mixed, x ← (1 − α_τ)x + α_τ y, α_τ = η_g s(τ)
    fedbuff-direct    FedBuff whose server sends Q_s(x): no hidden state ("Naive" in the paper)
    fedasync-direct   the same with one update a step
    fedasync-hidden   QAFeL with one update a step

Synchronous: rounds of a cohort of K clients that all start from one version; what comes late is not taken.

    fedavg            McMahan et al., AISTATS 2017: x ← Σ nₖyₖ / Σ nₖ
    fedsgd            the same with one local step on all of a client's data
    fedprox           Li et al., MLSys 2020: μ/2·‖y − y₀‖² in the local loss, partial work taken
    mcm               Philippenko & Dieuleveut, NeurIPS 2021: quantized both ways, the downlink against a memory
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, final

from qafel.algorithm.aggregation import PolynomialStaleness
from qafel.algorithm.wiring import Algorithm, LocalTraining
from qafel.errors import ConfigError
from qafel.params import Layout
from qafel.quantizers import parse


@final
@dataclass(frozen=True, slots=True)
class Preset:
    """What a method fixes, and what it only suggests."""

    summary: str
    fixed: Mapping[str, Any] = field(default_factory=dict)
    default: Mapping[str, Any] = field(default_factory=dict)
    synchronous: bool = False

    def resolve(self, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings with this preset's parts filled in; a setting that contradicts a fixed part is an error."""
        for key, value in self.fixed.items():
            if settings.get(key, value) != value:
                raise ConfigError(
                    f"{name} has {key} = {value!r} by definition, the configuration says {settings[key]!r}"
                )
        return {**self.default, **settings, **self.fixed}


_HIDDEN = {"broadcast": "difference"}


_DIRECT = {"broadcast": "model"}


_ONE = {"buffer_size": 1}


_UNQUANTIZED = {"client_quantizer": "none", "server_quantizer": "none"}


_ROUNDS = {"broadcast": "difference", "max_staleness": 0}


_AVERAGE = {"aggregation": "weighted-mean", "client_weights": "samples", "server_lr": 1.0}


PRESETS: Mapping[str, Preset] = {
    "qafel": Preset("K updates a step, quantized both ways, hidden state", _HIDDEN),
    "fedbuff": Preset("QAFeL with identity quantizers", {**_HIDDEN, **_UNQUANTIZED}),
    "fedasync": Preset("one update a step, models mixed", {**_HIDDEN, **_UNQUANTIZED, **_ONE}, {"upload": "model"}),
    "fedbuff-direct": Preset("the server sends its quantized model, no hidden state", _DIRECT),
    "fedasync-direct": Preset("one update a step, no hidden state", {**_DIRECT, **_ONE}),
    "fedasync-hidden": Preset("one update a step, hidden state", {**_HIDDEN, **_ONE}),
    "fedavg": Preset("rounds; the average of the cohort's models", {**_ROUNDS, **_UNQUANTIZED}, _AVERAGE, True),
    "fedsgd": Preset(
        "rounds; one step on all local data",
        {**_ROUNDS, **_UNQUANTIZED, "local_steps": 1, "local_epochs": None, "batch_size": None},
        _AVERAGE,
        True,
    ),
    "fedprox": Preset(
        "rounds; a proximal term, partial work",
        {**_ROUNDS, **_UNQUANTIZED, "partial_work": True},
        {**_AVERAGE, "proximal": 0.1},
        True,
    ),
    "mcm": Preset("rounds; quantized both ways, a memory on the downlink", _ROUNDS, {"memory_rate": 0.5}, True),
}


_LOCAL = {
    "client_lr": "lr",
    "local_steps": "steps",
    "local_epochs": "epochs",
    "batch_size": "batch_size",
    "weight_decay": "weight_decay",
    "clip_norm": "clip_norm",
    "proximal": "proximal",
}


_STALENESS = {"staleness_exponent": "exponent", "staleness_cutoff": "cutoff"}


def wire(preset: str, *, layout: Layout | None = None, **settings: Any) -> Algorithm:
    """The algorithm of that name with these settings, flat as in a recipe.

    Quantizers are text specs or objects; local training and the staleness law may be given as objects, too:
    `local=LocalTraining(…)`, `staleness=lambda tau: …`.

    >>> wire("qafel", server_lr=0.1, client_lr=2.0, local_steps=10, server_quantizer="qsgd:4").buffer_size
    10
    """
    if preset not in PRESETS:
        raise ConfigError(f"unknown algorithm {preset!r}; choose from {', '.join(PRESETS)}")
    return assemble(preset, PRESETS[preset].resolve(preset, settings), layout)


def assemble(preset: str, settings: Mapping[str, Any], layout: Layout | None = None) -> Algorithm:
    """The algorithm from settings in which the preset's own are filled in; `layout` is the model's, for quantizers."""
    resolved = dict(settings)
    local = {name: resolved.pop(key) for key, name in _LOCAL.items() if key in resolved}
    law = {name: resolved.pop(key) for key, name in _STALENESS.items() if key in resolved}
    if "local" not in resolved:
        if "lr" not in local:
            raise ConfigError(f"{preset} needs client_lr, the clients' learning rate")
        resolved["local"] = LocalTraining(**local)
    resolved.setdefault("staleness", PolynomialStaleness(**law))
    for role in ("client_quantizer", "server_quantizer"):
        if isinstance(spec := resolved.get(role), str):
            resolved[role] = parse(spec, layout)
    known = {entry.name for entry in fields(Algorithm)}
    if unknown := sorted(set(resolved) - known):
        raise ConfigError(
            f"unknown setting {unknown[0]!r} of an algorithm; known are {', '.join(sorted(known | set(_LOCAL)))}"
        )
    if "server_lr" not in resolved:
        raise ConfigError(f"{preset} needs server_lr, the server's learning rate")
    return Algorithm(name=preset, **resolved)
