"""A plan in words, as a table and as plain values."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from typing import Any

from qafel.config import Config
from qafel.search.courses import Course
from qafel.search.planning import BudgetPlan, Prediction
from qafel.tasks.protocol import Task
from qafel.text import human_bytes, human_count, human_metric, human_seconds
from qafel.theory import Setting, estimate_constants, largest_client_lr, largest_server_lr, max_staleness


def caveats(plan: BudgetPlan) -> list[str]:
    """The limits of the plan."""
    request, best, reference = plan.request, plan.recommended, plan.reference
    said = []
    if _budget_is_tiny(plan):
        said.append(
            f"The budget ends before the first server step of {best.pair.buffer_size} uploads. The figures are for one "
            "step."
        )
    if request.target is not None and not best.measured:
        reached = human_metric(reference.scale.metric(reference.height_at(reference.end)))
        text = f"The pilot did not reach the target {request.target:g}. FedBuff came to {reached} in "
        text += f"{human_count(reference.end)} uploads."
        if math.isfinite(best.uploads.middle):
            laws = " and ".join(law.name for law in _course(plan, best).laws)
            times = best.uploads.middle / request.pilot_uploads
            text += f" The prediction extrapolates {times:.2g} times as far; its range spans the laws {laws}."
        else:
            text += " The course does not lead there: no prediction of uploads."
        said.append(text + " Increase `pilot_uploads` to measure more.")
    elif request.target is None and best.run_uploads > 1.5 * request.pilot_uploads:
        times = best.run_uploads / request.pilot_uploads
        said.append(f"The budget lasts {times:.2g} times as long as the pilot. The metric at its end is extrapolated.")
    if not best.within and (request.target is None or math.isfinite(best.uploads.middle)):
        aim = "the allowed uploads" if request.target is None else f"{request.target:g} within the limits"
        said.append(f"No finalist is expected to reach {aim}. The recommended one comes nearest.")
    return said


def _budget_is_tiny(plan: BudgetPlan) -> bool:
    request, best = plan.request, plan.recommended
    spent = best.spent.bytes_of(request.counted), best.spent.time
    limits = (request.budget_bytes or math.inf, request.budget_s or math.inf)
    one_step = best.run_uploads <= best.pair.buffer_size
    return one_step and any(it > 1.000001 * most for it, most in zip(spent, limits, strict=True))


def _course(plan: BudgetPlan, prediction: Prediction) -> Course:
    return next(it.course for it in plan.rounds[-1].ranked if it.pair == prediction.pair)


def reasons(plan: BudgetPlan) -> list[str]:
    """The measurements behind the plan."""
    request, best, last = plan.request, plan.recommended, plan.rounds[-1]
    said = [
        f"{len(it.ranked)} candidates ran for {human_count(it.uploads)} uploads and were compared at the metric "
        f"{human_metric(it.level)}"
        for it in plan.rounds
    ]
    said[-1] += f", with {request.seeds} seeds each"
    said.append(
        f"to {human_metric(last.level)} the recommended pair takes {best.slowdown:.2f} times the uploads of FedBuff"
    )
    config, pair = request.config, best.pair
    scaled = config.algorithm.accumulator == "mean" and pair.buffer_size != config.algorithm.buffer_size
    how = f", η_g times {pair.buffer_size / config.algorithm.buffer_size:g} as K is" if scaled else ""
    said.append(f"step sizes are those of {config.name}{how}; `qafel tune` searches for better ones")
    return said


def theory(config: Config, task: Task, prediction: Prediction) -> str:
    """The step sizes that Theorem 3.1 admits for a pair. They hold for the worst problem, so they are far lower."""
    constants = estimate_constants(task, seed=config.seed, initial_gap=1.0, batch_size=config.algorithm.batch_size)
    algorithm, pair, size = config.algorithm, prediction.pair, task.layout.size
    wired = algorithm.model_copy(update={"client_quantizer": pair.client, "server_quantizer": pair.server}).compose(
        task.layout
    )
    steps = max(1, round(prediction.run_uploads / pair.buffer_size))
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
    return (
        f"theory: with L ≈ {constants.smoothness:.3g}, σ_ℓ ≈ {constants.gradient_noise:.3g} and B ≈ "
        f"{constants.heterogeneity:.3g} at x⁰, Theorem 3.1 admits η_ℓ up to {client:.3g} and η_g up to {server:.3g}. "
        f"The recipe has {algorithm.client_lr:.3g} and {algorithm.server_lr:.3g}. The plan does not use the theorem."
    )


def plan_json(plan: BudgetPlan) -> dict[str, Any]:
    """A plan as plain values."""
    request = plan.request
    aims = {"target": request.target, "byte_budget": request.budget_bytes, "time_budget": request.budget_s}
    words = {"recipe": request.config.name, "caveats": caveats(plan), "why": reasons(plan)}
    found = {"recommended": plan.recommended, "fedbuff": plan.fedbuff, "others": plan.others, "rounds": plan.rounds}
    return {**words, **aims, "counted": request.counted, "back_test": plan.reference.back_test, **_plain(found)}


def _plain(value: Any) -> Any:
    """A value without tuples and dataclasses, and with None in place of infinity and NaN."""
    if isinstance(value, Course):
        return {"uploads": _plain(value.end), "diverged": value.diverged}
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def column(it: Prediction) -> dict[str, str]:
    """A prediction's figures for people."""
    low, middle, high = map(human_count, it.uploads)
    worst, metric, best = map(human_metric, it.metric)
    aimed = {}
    if not math.isfinite(it.uploads.middle):
        aimed = {"uploads to the target": "no prediction"}
    elif it.uploads.low != it.uploads.high:
        aimed = {"uploads to the target": f"{middle} ({low} to {high})"}
    return {
        "clients send": it.pair.client,
        "the server sends": it.pair.server,
        "buffer size K": f"{it.pair.buffer_size:,}",
        **aimed,
        "times FedBuff's uploads": f"{it.slowdown:.2f}" if math.isfinite(it.slowdown) else "∞",
        "uploads of the run": human_count(it.run_uploads),
        "bytes up": human_bytes(it.spent.upload_bytes),
        "bytes broadcast": human_bytes(it.spent.broadcast_bytes),
        "bytes received": human_bytes(it.spent.received_bytes),
        "time": human_seconds(it.spent.time),
        "metric at the end": metric if worst == best else f"{metric} ({worst} to {best})",
    }
