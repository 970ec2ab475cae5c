"""QAFeL and its relatives, as wiring: the same parts, some of them fixed.

qafel             the paper's algorithm: K updates a step, both ways quantized, hidden state
fedbuff           Nguyen et al., AISTATS 2022: QAFeL with identity quantizers
fedasync          Xie et al., 2019: one update a step, models mixed, x ← (1 − α_τ)x + α_τ y, α_τ = η_g s(τ)
fedbuff-direct    FedBuff whose server sends Q_s(x): no hidden state ("Naive" in the paper)
fedasync-direct   the same with one update a step
fedasync-hidden   QAFeL with one update a step
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from qafel.algorithm.wiring import Algorithm
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

    def resolve(self, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings with this preset's parts filled in; a setting that contradicts a fixed part is an error."""
        for key, value in self.fixed.items():
            if settings.get(key, value) != value:
                raise ConfigError(
                    f"{name} has {key} = {value!r} by definition, the configuration says {settings[key]!r}"
                )
        return {**self.default, **settings, **self.fixed}


_UNQUANTIZED = {"client_quantizer": "none", "server_quantizer": "none"}

PRESETS: Mapping[str, Preset] = {
    "qafel": Preset("K updates a step, quantized both ways, hidden state", {"broadcast": "difference"}),
    "fedbuff": Preset("QAFeL with identity quantizers", {"broadcast": "difference", **_UNQUANTIZED}),
    "fedasync": Preset(
        "one update a step, models mixed",
        {"broadcast": "difference", "buffer_size": 1, **_UNQUANTIZED},
        {"upload": "model"},
    ),
    "fedbuff-direct": Preset("the server sends its quantized model, no hidden state", {"broadcast": "model"}),
    "fedasync-direct": Preset("one update a step, no hidden state", {"broadcast": "model", "buffer_size": 1}),
    "fedasync-hidden": Preset("one update a step, hidden state", {"broadcast": "difference", "buffer_size": 1}),
}


def wire(preset: str, *, layout: Layout | None = None, **settings: Any) -> Algorithm:
    """The algorithm of that name with these settings. Quantizers may be text specs or objects.

    >>> wire("qafel", server_lr=0.1, local=LocalTraining(2.0, 10), server_quantizer="qsgd:4").buffer_size
    10
    """
    if preset not in PRESETS:
        raise ConfigError(f"unknown algorithm {preset!r}; choose from {', '.join(PRESETS)}")
    resolved = PRESETS[preset].resolve(preset, settings)
    for role in ("client_quantizer", "server_quantizer"):
        if isinstance(spec := resolved.get(role), str):
            resolved[role] = parse(spec, layout)
    return Algorithm(name=preset, **resolved)
