"""A plan as plain values, for files and other programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from qafel.theory.demand import Demand
from qafel.theory.forecast import Forecast
from qafel.theory.plan import Choice, Plan
from qafel.theory.reasons import reasons
from qafel.theory.theorem import trivial_bound


def plan_json(plan: Plan) -> dict[str, Any]:
    """Everything that the plan says; `algorithm` is a recipe's section."""
    demand = plan.demand
    return {
        "size": demand.size,
        "clients": demand.fleet.clients,
        "inputs": _inputs(demand),
        "constants": asdict(demand.constants),
        "measured": list(demand.measured),
        "measured_on_clients": {name: clients for name, clients in demand.measured.items() if clients is not None},
        "recommended": _choice(plan.recommended, demand),
        "fedbuff": _choice(plan.fedbuff, demand),
        "fedbuff_fits_the_budget": plan.fedbuff_fits,
        "to_reach_fedbuffs_bound": None if plan.matching is None else _forecast(plan.matching),
        "trivial_bound": trivial_bound(demand.constants),
        "why": reasons(plan),
        "alternatives": [_choice(choice, demand) for choice in plan.alternatives],
    }


def _inputs(demand: Demand) -> dict[str, Any]:
    """What was asked for, as it was understood."""
    fleet = demand.fleet
    return {
        "duration": str(fleet.durations),
        "upload_rate": fleet.upload_rate,
        "download_rate": fleet.download_rate,
        "latency_s": fleet.latency,
        "arrival_rate": fleet.arrival_rate,
        "byte_budget": demand.budget_bytes,
        "every_copy": demand.every_copy,
        "time_budget_s": demand.budget_s,
        "max_staleness_updates": demand.max_staleness,
        "batch_size": demand.batch_size,
    }


def _choice(choice: Choice, demand: Demand) -> dict[str, Any]:
    setting, size = choice.setting, demand.size
    return {
        "algorithm": _algorithm(choice, demand),
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


def _algorithm(choice: Choice, demand: Demand) -> dict[str, Any]:
    batch = {} if demand.batch_size is None else {"batch_size": demand.batch_size}
    return {
        "preset": "qafel" if choice.quantized else "fedbuff",
        "client_quantizer": choice.client.spec,
        "server_quantizer": choice.server.spec,
        "buffer_size": choice.setting.buffer_size,
        "local_steps": choice.setting.local_steps,
        **batch,
        "client_lr": choice.step_sizes.client_lr,
        "server_lr": choice.step_sizes.server_lr,
    }


def _forecast(forecast: Forecast) -> dict[str, Any]:
    return {
        **asdict(forecast),
        "traffic_bytes": forecast.traffic_bytes,
        "crossing_bytes": forecast.crossing_bytes,
    }
