"""What a plan chooses from: quantizers that suit their role, and buffer sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from qafel.errors import ConfigError
from qafel.params import Layout
from qafel.quantizers import fitness, parse
from qafel.quantizers.fitness import Role
from qafel.quantizers.protocol import Quantizer

CLIENT_SPECS = (
    *("none", "qsgd:8", "qsgd:6", "qsgd:4,bucket=128", "dithered:8", "dithered:6", "dithered:4"),
    *("rotated:6", "rotated:5", "rotated:4", "rotated:3"),
)
SERVER_SPECS = (*CLIENT_SPECS, "scaled:rotated:2", "top_k:0.1", "top_k:0.01", "sign")


def buffer_sizes_up_to(clients: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, 50, … and the number of clients."""
    sizes, power = [], 1
    while power <= clients:
        sizes += [factor * power for factor in (1, 2, 5) if factor * power <= clients]
        power *= 10
    return tuple(sorted({*sizes, clients}))


def fit(specs: Sequence[str], size: int, role: Role, layout: Layout | None) -> list[Quantizer]:
    """The quantizers that suit the role at this size; one that was asked for and does not is an error."""
    suitable = []
    for spec in specs:
        quantizer = parse(spec, layout)
        unfit = fitness(quantizer, size, role)
        if not unfit and math.isinf(quantizer.omega(size)):
            unfit = [f"{role} quantizer {spec!r} has no bound on its error: the theorem cannot take it"]
        if not unfit:
            suitable.append(quantizer)
        elif specs not in (CLIENT_SPECS, SERVER_SPECS):
            raise ConfigError(unfit[0])
    return suitable


def efficient(quantizers: Sequence[Quantizer], size: int) -> list[Quantizer]:
    """Those that no other one beats in bytes and δ: the bound falls with δ and with every byte saved."""
    ordered = sorted(quantizers, key=lambda it: (it.max_payload_bytes(size), -it.delta(size)))
    kept: list[Quantizer] = []
    for it in ordered:
        if not kept or it.delta(size) > kept[-1].delta(size):
            kept.append(it)
    return kept
