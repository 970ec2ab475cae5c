"""What is to be planned for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

from qafel.errors import ConfigError
from qafel.params import Layout
from qafel.quantizers.checks import check_size
from qafel.tasks.synthetic import Constants
from qafel.theory.candidates import CLIENT_SPECS, SERVER_SPECS, buffer_sizes_up_to
from qafel.theory.checks import require_positive
from qafel.theory.fleet import Fleet


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """A model, a fleet, the problem's constants, a budget, and what may be chosen."""

    size: int
    """Parameters of the model."""
    fleet: Fleet
    constants: Constants
    local_steps: int = 10
    batch_size: int | None = None
    """Of a local step; None: all that a client has."""
    budget_bytes: float | None = None
    """Uploaded, and broadcast once; or received, with every copy."""
    every_copy: bool = False
    budget_s: float | None = None
    max_staleness: int | None = None
    """τ_max,1, in updates; None: as the durations say."""
    client_specs: Sequence[str] = CLIENT_SPECS
    server_specs: Sequence[str] = SERVER_SPECS
    buffer_sizes: Sequence[int] | None = None
    """None: 1, 2, 5, 10, … up to the number of clients."""
    layout: Layout | None = None
    measured: Mapping[str, int | None] = field(default_factory=dict)
    """The constants that were measured rather than given, each with how many clients were sampled (None: none were)."""

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(f"a model has at least one parameter, got {self.size}")
        try:
            check_size(self.size)
        except ValueError as error:
            raise ConfigError(f"no quantizer takes a model of this size: {error}") from None
        if self.budget_bytes is None and self.budget_s is None:
            raise ConfigError("a plan needs a budget: of bytes, of time, or both")
        for name, value in (("byte budget", self.budget_bytes), ("time budget", self.budget_s)):
            if value is not None:
                require_positive(name, value)

    @property
    def searched(self) -> tuple[int, ...]:
        """The buffer sizes to try, ascending. One that more than all clients must fill has to be asked for."""
        if self.buffer_sizes is None:
            return buffer_sizes_up_to(self.fleet.clients)
        asked = tuple(sorted(set(self.buffer_sizes)))
        return tuple(size for size in asked if size <= self.fleet.clients) or asked[:1]
