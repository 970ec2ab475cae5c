"""What a method is: settings of the shared parts, some fixed by definition, some only suggested."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from qafel.errors import ConfigError

HIDDEN_STATE = {"broadcast": "difference"}
DIRECT = {"broadcast": "model"}
ONE_UPDATE_A_STEP = {"buffer_size": 1}
UNQUANTIZED = {"client_quantizer": "none", "server_quantizer": "none"}
ROUNDS = {"broadcast": "difference", "max_staleness": 0}
"""A cohort of K clients starts from one version; what comes late is not taken."""
AVERAGE = {"aggregation": "weighted-mean", "client_weights": "samples", "server_lr": 1.0}
"""x ← Σ nₖyₖ / Σ nₖ, with nₖ the samples of client k."""


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
