"""What a plan says: first what cannot be said, then why, in sentences; and all of it as plain values for programs."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from qafel.config import Config
from qafel.search.planning.pilot import BUFFER, CLIENT, SERVER
from qafel.search.planning.plan import Plan, Prediction, Range
from qafel.text import human_bytes, human_count, human_metric, human_seconds
from qafel.theory import Setting, estimate_constants, largest_client_lr, largest_server_lr, max_staleness

FAR = 1.5
"""A target that takes so many times the pilot's uploads is far beyond it."""
SMALL = 0.005
"""A cause that takes less than this share of the progress costs nothing that the pilot could see."""


def caveats(plan: Plan) -> list[str]:
    """What cannot be said, or not surely."""
    request, base, best = plan.request, plan.pilot.base, plan.recommended
    reached = float(base.level(base.knots[1][-1:])[0])
    said = _of_tiny_budgets(plan)
    if request.target is not None and not math.isfinite(plan.fedbuff.uploads.middle):
        said.append(
            f"nothing can be said of the target {request.target:g}: without quantizers the pilot came to "
            f"{human_metric(reached)} in {human_count(base.end)} uploads, and its course does not lead there"
        )
    elif not best.within and any(it.within for it in plan.others):
        said.append(
            "every pair that was checked fell short of what was foretold, and outside the limits; others that were not "
            "checked may lie within: check more, or name gentler quantizers"
        )
    elif not best.within:
        aim = "the budget" if request.target is None else f"{request.target:g} within the limits"
        said.append(f"no pair is expected to reach {aim}; this one comes nearest, to {human_metric(best.metric)}")
    last = float(base.knots[0][-1])
    if last < base.end / 2:
        said.append(
            f"the pilot made no more progress after about {human_count(last)} of its {human_count(base.end)} uploads: "
            "what is foretold beyond that, and what quantizers cost there, is a guess"
        )
    needed = plan.fedbuff.uploads.middle
    if request.target is None or not math.isfinite(needed):
        needed = best.forecast.uploads / best.slowdown
    if math.isfinite(needed) and needed > FAR * base.end:
        said.append(
            f"the pilot ended after {human_count(base.end)} uploads, and this looks {needed / base.end:.2g} times as "
            "far ahead: a longer pilot makes it surer"
        )
    return said


def _of_tiny_budgets(plan: Plan) -> list[str]:
    """That a budget ends before the first server step of what is recommended."""
    request, best = plan.request, plan.recommended
    spent = best.bytes_of(request.counted), best.forecast.duration_s
    beyond = [
        it > (math.inf if most is None else most)
        for it, most in zip(spent, (request.budget_bytes, request.budget_s), strict=True)
    ]
    if best.forecast.server_steps > 1 or not any(beyond):
        return []
    first = f"the first server step, which takes {best.pair.buffer_size} uploads"
    return [f"the budget ends before {first}: the figures are those of one step"]


def reasons(plan: Plan) -> list[str]:
    """What decided, and what it rests on."""
    return [*_of_causes(plan), *_of_checks(plan), *_of_step_sizes(plan), _of_cost(plan)]


def _of_causes(plan: Plan) -> list[str]:
    """What each part of the recommended pair costs, at the rate of progress where the pilot ended."""
    pilot, pair = plan.pilot, plan.recommended.pair
    strengths = pilot.errors.strengths(pair)
    names = {
        CLIENT: f"clients send {pair.client} (error ω = {strengths[CLIENT]:.3g} on the task's updates)",
        SERVER: f"the server sends {pair.server} (error {pilot.errors.servers[pair.server].nmse:.3g})",
        BUFFER: f"K = {pair.buffer_size}, with the recipe's step per upload",
    }
    said = []
    for name, text in names.items():
        if name == BUFFER and not strengths[name]:
            continue
        cost = pilot.costs[name]
        share = strengths[name] * (cost.proportional + cost.varying)
        lost = "nothing that the pilot could see" if share < SMALL else f"about {100 * share:.2g} % of the progress"
        said.append(f"{text}: it takes {lost}")
    return said


def _of_checks(plan: Plan) -> list[str]:
    return [
        f"check of {it.pair}: " + (
            "it diverged" if not math.isfinite(it.corrected) else f"{it.corrected:.2f} times the uploads foretold"
        )
        for it in plan.checked
        if it.corrected is not None
    ]  # fmt: skip


def _of_step_sizes(plan: Plan) -> list[str]:
    config, pair = plan.request.config, plan.recommended.pair
    scaled = config.algorithm.accumulator == "mean" and pair.buffer_size != config.algorithm.buffer_size
    how = f", η_g times {pair.buffer_size / config.algorithm.buffer_size:g} as K is" if scaled else ""
    return [f"step sizes are those of {config.name}{how}; `qafel tune` searches for better ones"]


def _of_cost(plan: Plan) -> str:
    runs = plan.pilot.runs
    wall = sum(run.number("wall_s") for run in runs)
    uploads = sum(run.number("uploads") for run in runs)
    seconds = f", {human_seconds(wall)} of computing" if math.isfinite(wall) else ""
    return (
        f"the pilot was {len(runs)} runs of {human_count(uploads)} uploads in all{seconds}; the checks were "
        f"{len(plan.checked)} more such runs"
    )


def theory(config: Config, prediction: Prediction) -> list[str]:
    """What Theorem 3.1 admits of step sizes for this pair: true for every problem of such constants, so far lower."""
    task = config.task.make()
    constants = estimate_constants(task, seed=config.seed, initial_gap=1.0, batch_size=config.algorithm.batch_size)
    algorithm, pair, size = config.algorithm, prediction.pair, task.layout.size
    wired = algorithm.model_copy(update={"client_quantizer": pair.client, "server_quantizer": pair.server}).compose(
        task.layout
    )
    steps = max(1, prediction.forecast.server_steps)
    setting = Setting(
        local_steps=algorithm.local_steps or 1,
        buffer_size=pair.buffer_size,
        server_steps=steps,
        max_staleness=max_staleness(task.clients, pair.buffer_size),
        client_delta=wired.client_quantizer.delta(size),
        server_delta=wired.server_quantizer.delta(size),
    ).of_length(steps)
    client = largest_client_lr(constants, setting)
    server = largest_server_lr(constants, setting, client)
    return [
        f"in theory: L ≈ {constants.smoothness:.3g}, σ_ℓ ≈ {constants.gradient_noise:.3g}, B ≈ "
        f"{constants.heterogeneity:.3g} at x⁰; Theorem 3.1 admits η_ℓ up to {client:.3g} and with it η_g up to "
        f"{server:.3g} (the recipe has {algorithm.client_lr:.3g} and {algorithm.server_lr:.3g}): it holds for the "
        "worst problem of such constants, and no step size is taken from it"
    ]


def plan_json(plan: Plan) -> dict[str, Any]:
    """A plan as plain values, for files and other programs."""
    request, pilot = plan.request, plan.pilot
    return {
        "recipe": request.config.name,
        "target": request.target,
        "byte_budget": request.budget_bytes,
        "time_budget": request.budget_s,
        "counted": request.counted,
        "caveats": caveats(plan),
        "recommended": prediction_json(plan.recommended),
        "fedbuff": prediction_json(plan.fedbuff),
        "others": [prediction_json(it) for it in plan.others],
        "why": reasons(plan),
        "pilot": {
            "uploads": request.pilot_uploads,
            "seed": request.seed,
            "runs": [run.name for run in pilot.runs],
            "costs": {name: asdict(cost) for name, cost in pilot.costs.items()},
        },
    }


def prediction_json(it: Prediction) -> dict[str, Any]:
    """A prediction as plain values."""
    return {
        "client_quantizer": it.pair.client,
        "server_quantizer": it.pair.server,
        "buffer_size": it.pair.buffer_size,
        "uploads": _range(it.uploads),
        "slowdown": _finite(it.slowdown),
        "metric": _finite(it.metric),
        "within": it.within,
        "upload_message_bytes": it.sizes.upload_bytes,
        "broadcast_message_bytes": it.sizes.broadcast_bytes,
        "upload_bytes": it.forecast.upload_bytes,
        "broadcast_bytes": it.forecast.broadcast_bytes,
        "received_bytes": it.received_bytes,
        "time": it.forecast.duration_s,
        "check": _finite(it.corrected),
    }


def _range(it: Range) -> dict[str, float | None]:
    return {name: _finite(value) for name, value in asdict(it).items()}


def _finite(value: float | None) -> float | None:
    return value if value is None or math.isfinite(value) else None


def column(it: Prediction) -> dict[str, str]:
    """A prediction's figures for people: those of the target, then what is spent, which the budget may end earlier."""
    low, middle, high = (human_count(value) for value in (it.uploads.low, it.uploads.middle, it.uploads.high))
    aimed = {}
    if not math.isfinite(it.uploads.middle):
        aimed = {"uploads to the target": "not reached"}
    elif it.uploads.low != it.uploads.high:
        aimed = {"uploads to the target": f"{middle} ({low} to {high})"}
    return {
        "clients send": it.pair.client,
        "the server sends": it.pair.server,
        "buffer size K": f"{it.pair.buffer_size:,}",
        **aimed,
        "of FedBuff's to a level": f"{it.slowdown:.2f}×" if math.isfinite(it.slowdown) else "∞",
        "uploads": human_count(it.forecast.uploads),
        "bytes up": human_bytes(it.forecast.upload_bytes),
        "bytes broadcast": human_bytes(it.forecast.broadcast_bytes),
        "received by starts": human_bytes(it.received_bytes),
        "time": human_seconds(it.forecast.duration_s),
        "metric then, smooth": human_metric(it.metric),
    }
