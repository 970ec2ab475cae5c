"""Whether a quantizer can do the job it is given, in sentences that say why not and what instead."""

from __future__ import annotations

from typing import Literal

from qafel.quantizers.protocol import Quantizer
from qafel.quantizers.qsgd import Qsgd

Role = Literal["client", "server"]


def fitness(quantizer: Quantizer, size: int, role: Role) -> list[str]:
    """Why this quantizer does not suit the role at this size, each with a remedy; empty when it does.

    The server's Q_s must contract (δ > 0, or the hidden state may run away from the model); the clients' Q_c must be
    unbiased (or the errors of the K buffered updates do not average out). Section II-A of the paper.
    """
    if role == "client":
        return [] if quantizer.unbiased else [_biased(quantizer)]
    return [] if quantizer.delta(size) > 0 else [_expanding(quantizer, size)]


def _biased(quantizer: Quantizer) -> str:
    return (
        f"client quantizer {quantizer.spec!r} is biased: its errors add up over the buffered updates instead of "
        "averaging out; use an unbiased one, such as qsgd:4, dithered:4, rotated:4 or rand_k"
    )


def _expanding(quantizer: Quantizer, size: int) -> str:
    start = (
        f"server quantizer {quantizer.spec!r} has no δ > 0 at {size} coordinates: its error can exceed what it sends "
        f"(ω = {quantizer.omega(size):.3g} in the worst case), so the hidden state may run away from the model; "
    )
    return start + _remedy(quantizer, size)


def _remedy(quantizer: Quantizer, size: int) -> str:
    choices = []
    if isinstance(quantizer, Qsgd):
        if quantizer.norm == "l2":
            choices.append("scale by the largest magnitude (norm=max)")
        bucket = _largest_fit_bucket(quantizer, size)
        if bucket:
            choices.append(f"use buckets ({Qsgd(quantizer.bits, quantizer.levels, 'max', bucket).spec})")
        else:
            choices.append("use more bits")
    if quantizer.unbiased and not quantizer.spec.startswith("scaled:"):
        choices.append(f"divide by 1 + ω (scaled:{quantizer.spec}, a contraction with δ = 1/(1+ω))")
    return ", or ".join(choices) or "use one with δ > 0, as `qafel quantizers` lists them"


def _largest_fit_bucket(quantizer: Qsgd, size: int) -> int | None:
    """The largest power of two, from 16 to 512, at which max-abs QSGD with these levels contracts."""
    for bucket in (512, 256, 128, 64, 32, 16):
        if Qsgd(quantizer.bits, quantizer.levels, "max", bucket).delta(size) > 0:
            return bucket
    return None
