"""What to make of a plan: what it rests on, and what it leaves out."""

from __future__ import annotations

from qafel.theory.plan import Plan
from qafel.theory.theorem import trivial_bound

SYMBOLS = {"smoothness": "L", "gradient_noise": "σ_ℓ", "heterogeneity": "B", "initial_gap": "f(x⁰) − f*"}


def caveats(plan: Plan) -> list[str]:
    """In sentences: staleness, measured constants, batches, bytes, and the bound itself."""
    return [_of_staleness(plan), *_of_constants(plan), *_of_payloads(plan), *_of_bound(plan)]


def _of_staleness(plan: Plan) -> str:
    stale, steps = plan.recommended.setting.max_staleness, plan.recommended.setting.server_steps
    if stale == steps - 1:
        return f"τ = {stale}: no update can be staler in {steps} steps"
    if plan.demand.max_staleness is not None:
        return f"τ = {stale} steps, from the {plan.demand.max_staleness} updates given"
    return f"τ = {stale} steps is what one cycle of the run exceeds on average, not the largest there can be"


def _of_constants(plan: Plan) -> list[str]:
    said, measured = [], plan.demand.measured
    sampled = {name: clients for name, clients in measured.items() if clients is not None}
    if sampled:
        listed = ", ".join(f"{SYMBOLS[name]} on {clients}" for name, clients in sampled.items())
        said.append(
            f"{listed} of {plan.demand.fleet.clients:,} clients were measured, at x⁰ alone: estimates, from below for "
            "L and B, where the theorem asks for the largest of any x"
        )
    if measured and plan.demand.batch_size is None:
        said.append("a gradient is that of all of a client's data (full batch), as no batch size was given")
    return said


def _of_payloads(plan: Plan) -> list[str]:
    zipped = [spec for spec in plan.recommended.pair if spec.endswith("+zstd")]
    said = [f"{spec} is counted with its longest payload; it sends less" for spec in dict.fromkeys(zipped)]
    return [*said, "bytes are those of updates and broadcasts: the initial model and the transport's own come on top"]


def _of_bound(plan: Plan) -> list[str]:
    trivial, total = trivial_bound(plan.demand.constants), plan.recommended.bound.total
    said = [
        "the bound is for the worst case of such constants: real runs do better, with larger step sizes than the "
        "theorem allows"
    ]
    if total >= trivial:
        said.append(
            f"the bound, {total:.3g}, is above 2L(f(x⁰) − f*) = {trivial:.3g}, which holds without any "
            "training: for this budget the theory promises nothing, and only the comparison is of use"
        )
    return said
