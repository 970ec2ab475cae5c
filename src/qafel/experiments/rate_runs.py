"""Corollary 3.2 on the quadratic: which runs, and the mean of ‖∇f(xᵗ)‖² over t < T that each gives.

Step sizes are the corollary's, η_ℓ = a K⁻¹P^(−1/2)T^(−1/3) and η_g = b K T^(−1/6). Every effect is the difference of
two means from the same seeds: with and without a quantizer, or staleness. Noise is made to dominate: from far away, lag
and staleness would act like momentum and help.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from qafel.config import Config
from qafel.experiments.measured import Measured, Spread, paired
from qafel.experiments.plan import Planned, Scale
from qafel.results.runs import Run
from qafel.theory import Setting, corollary_step_sizes

HORIZONS = (128, 256, 512, 1024, 2048, 4096, 8192)
QUICK_HORIZONS = (64, 128, 256)
AT = 512
BUFFERS = (1, 2, 5, 10, 20, 50)
CLIENT_SPECS = ("rand_k:0.9", "rand_k:0.75", "rand_k:0.5", "rand_k:0.25", "rand_k:0.1")
SERVER_SPECS = tuple(f"scaled:{spec}" for spec in ("rand_k:0.75", "rand_k:0.5", "rand_k:0.35", "rand_k:0.2"))
"""Random coordinates: their error is what δ says for every vector, not only for the worst."""
CONCURRENCIES = (10, 20, 40, 80)
SIZE, CLIENTS, LOCAL_STEPS, BUFFER = 64, 100, 2, 10
FACTOR = math.sqrt(2)
"""a = b."""
TASK = {
    "name": "quadratic",
    "clients": CLIENTS,
    "dimension": SIZE,
    "heterogeneity": 4.0,
    "noise": 2.0,
    "smoothness": 1.0,
    "strong_convexity": 0.2,
}
STALE = 40
"""Clients in flight of the runs with staleness: about four steps of ten updates."""


@final
@dataclass(frozen=True, slots=True)
class Kind:
    """What a run is, apart from its T and its seed."""

    client: str = "none"
    server: str = "none"
    concurrency: int = 0
    buffer: int = BUFFER

    @property
    def tag(self) -> str:
        specs = (spec.replace(":", "") for spec in (self.client, self.server))
        return f"{'-'.join(specs)}-c{self.concurrency}-k{self.buffer}"

    def plain(self) -> Kind:
        """The same without quantizers."""
        return Kind(concurrency=self.concurrency, buffer=self.buffer)


REFERENCE = Kind()
FEDBUFF = Kind(concurrency=STALE)
QAFEL = Kind("qsgd:4", "top_k:0.1", STALE)
CLIENT, SERVER = Kind(client="rand_k:0.5"), Kind(server="scaled:rand_k:0.5")
NAMES = {
    FEDBUFF: "FedBuff",
    QAFEL: "QAFeL (qsgd:4 up, top 10 % down)",
    CLIENT: "client quantizer alone (a random half)",
    SERVER: "server quantizer alone (a random half)",
    REFERENCE: "neither quantizers nor staleness",
}


def plan(scale: Scale) -> list[Planned]:
    """The grid of T for five kinds of run, and at one T the sweeps of K, quantizers and staleness."""
    horizons = QUICK_HORIZONS if scale.quick else HORIZONS
    at = varied_at(scale.quick)
    runs = {}
    for horizon in horizons:
        for kind in NAMES:
            runs.update(_repeated(kind, horizon, scale))
    for kind in _sweeps():
        runs.update(_repeated(kind, at, scale))
    return list(runs.values())


def varied_at(quick: bool) -> int:
    """The T where K, the quantizers and the staleness are varied."""
    return QUICK_HORIZONS[1] if quick else AT


def _sweeps() -> Iterator[Kind]:
    for buffer in BUFFERS:
        yield Kind(buffer=buffer)
        yield Kind(client=CLIENT.client, buffer=buffer)
    for spec in CLIENT_SPECS:
        yield Kind(client=spec)
    for spec in SERVER_SPECS:
        yield Kind(server=spec)
    for concurrency in CONCURRENCIES:
        yield Kind(concurrency=concurrency)


def _repeated(kind: Kind, horizon: int, scale: Scale) -> dict[str, Planned]:
    """Short runs are noisier and cheaper: up to four times as many of them."""
    count = len(scale.seeds) * (1 if scale.quick else max(1, min(4, 1024 // horizon)))
    at: dict[str, float | str] = {"T": float(horizon), "kind": kind.tag}
    found = [Planned(NAMES.get(kind, kind.tag), configuration(kind, horizon, seed), at) for seed in range(count)]
    return {run.folder: run for run in found}


def configuration(kind: Kind, horizon: int, seed: int) -> Config:
    """A client starts every unit of time; with durations next to nothing none is stale."""
    setting = Setting(local_steps=LOCAL_STEPS, buffer_size=kind.buffer, server_steps=horizon)
    sizes = corollary_step_sizes(setting, FACTOR, FACTOR)
    return Config.from_dict(
        {
            "name": f"rate-T{horizon}-{kind.tag}",
            "description": "Corollary 3.2 on the quadratic",
            "seed": seed,
            "task": TASK,
            "algorithm": {
                "preset": "qafel",
                "client_quantizer": kind.client,
                "server_quantizer": kind.server,
                "buffer_size": kind.buffer,
                "local_steps": LOCAL_STEPS,
                "client_lr": sizes.client_lr,
                "server_lr": sizes.server_lr,
            },
            "timing": {
                "arrivals": "constant",
                "rate": 1.0,
                "scale": max(1e-6, kind.concurrency / math.sqrt(2 / math.pi)),
            },
            "stop": {"server_steps": horizon},
        }
    )


def ergodic(run: Run) -> float:
    """(1/T) Σ ‖∇f(xᵗ)‖² over t = 0 … T − 1; infinite where the run diverged."""
    norms, versions = run.column("gradient_norm_squared"), run.column("version")
    if run.summary.get("status") == "diverged":
        return math.inf
    return float(norms[versions < versions[-1]].mean())


def effect(measured: Measured, kind: Kind, against: Kind, horizon: float) -> Spread:
    """By how much one kind of run lies above another, seed by seed."""
    return Spread.of(ours - theirs for ours, theirs in _paired(measured, kind, against, horizon))


def ratio(measured: Measured, kind: Kind, against: Kind, horizon: float) -> Spread:
    """One kind of run over another, seed by seed."""
    return Spread.of(ours / theirs for ours, theirs in _paired(measured, kind, against, horizon))


def _paired(measured: Measured, kind: Kind, against: Kind, horizon: float) -> list[tuple[float, float]]:
    ours, theirs = (measured.planned(T=horizon, kind=one.tag) for one in (kind, against))
    return paired(ergodic, ours, theirs)


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Of the straight line through log y against log x; NaN where a value is not positive."""
    values = np.array(y, dtype=np.float64)
    if len(values) < 2 or not (np.isfinite(values) & (values > 0)).all():
        return math.nan
    return float(np.polyfit(np.log(np.array(x, dtype=np.float64)), np.log(values), 1)[0])
