"""A plan as plain values, for files and other programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from qafel.theory.forecast import Forecast
from qafel.theory.plan import Choice, Plan
from qafel.theory.reasons import reasons
from qafel.theory.theorem import trivial_bound


def plan_json(plan: Plan) -> dict[str, Any]:
    """Everything that the plan says; `algorithm` is a recipe's section."""
    size = plan.demand.size
    return {
        "size": size,
        "clients": plan.demand.fleet.clients,
        "constants": asdict(plan.demand.constants),
        "recommended": _choice(plan.recommended, size),
        "fedbuff": _choice(plan.fedbuff, size),
        "fedbuff_fits_the_budget": plan.fedbuff_fits,
        "to_reach_fedbuffs_bound": _forecast(plan.matching),
        "trivial_bound": trivial_bound(plan.demand.constants),
        "why": reasons(plan),
        "alternatives": [_choice(choice, size) for choice in plan.alternatives],
    }


def _choice(choice: Choice, size: int) -> dict[str, Any]:
    setting = choice.setting
    return {
        "algorithm": {
            "preset": "qafel" if choice.quantized else "fedbuff",
            "client_quantizer": choice.client.spec,
            "server_quantizer": choice.server.spec,
            "buffer_size": setting.buffer_size,
            "local_steps": setting.local_steps,
            "client_lr": choice.step_sizes.client_lr,
            "server_lr": choice.step_sizes.server_lr,
        },
        "client_delta": setting.client_delta,
        "server_delta": setting.server_delta,
        "client_bits_per_coordinate": choice.client.bits_per_coordinate(size),
        "server_bits_per_coordinate": choice.server.bits_per_coordinate(size),
        "max_staleness": setting.max_staleness,
        "upload_message_bytes": choice.exchange.upload_bytes,
        "broadcast_message_bytes": choice.exchange.broadcast_bytes,
        "forecast": _forecast(choice.forecast),
        "bound": {**asdict(choice.bound), "total": choice.bound.total},
    }


def _forecast(forecast: Forecast) -> dict[str, Any]:
    return {**asdict(forecast), "traffic_bytes": forecast.traffic_bytes}
