"""QAFeL and its relatives, as wiring: one method, one file. A new method is a `Preset` here and a name in `PRESETS`.

qafel      the paper's algorithm
fedbuff    fedbuff, fedbuff-direct
fedasync   fedasync, fedasync-direct, fedasync-hidden
fedavg     in rounds: fedavg, fedsgd
fedprox    in rounds
mcm        in rounds
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from qafel.algorithm.aggregation import PolynomialStaleness
from qafel.algorithm.methods.fedasync import FEDASYNC, FEDASYNC_DIRECT, FEDASYNC_HIDDEN
from qafel.algorithm.methods.fedavg import FEDAVG, FEDSGD
from qafel.algorithm.methods.fedbuff import FEDBUFF, FEDBUFF_DIRECT
from qafel.algorithm.methods.fedprox import FEDPROX
from qafel.algorithm.methods.mcm import MCM
from qafel.algorithm.methods.qafel import QAFEL
from qafel.algorithm.own import OWN_KINDS, QUANTIZER
from qafel.algorithm.wiring import Algorithm, LocalTraining, Preset
from qafel.errors import ConfigError
from qafel.params import Layout
from qafel.parts import is_path
from qafel.parts import make as make_part
from qafel.quantizers import as_quantizer, parse
from qafel.quantizers.spec import FAMILIES
from qafel.text import did_you_mean

PRESETS: Mapping[str, Preset] = {
    "qafel": QAFEL,
    "fedbuff": FEDBUFF,
    "fedasync": FEDASYNC,
    "fedbuff-direct": FEDBUFF_DIRECT,
    "fedasync-direct": FEDASYNC_DIRECT,
    "fedasync-hidden": FEDASYNC_HIDDEN,
    "fedavg": FEDAVG,
    "fedsgd": FEDSGD,
    "fedprox": FEDPROX,
    "mcm": MCM,
}
"""The methods by name: what `wire` and a recipe's `algorithm.preset` take."""

_LOCAL = {
    "client_lr": "lr",
    "local_steps": "steps",
    "local_epochs": "epochs",
    "batch_size": "batch_size",
    "weight_decay": "weight_decay",
    "clip_norm": "clip_norm",
    "proximal": "proximal",
}
DEFAULT_CLIENT_LR, DEFAULT_SERVER_LR, DEFAULT_LOCAL_STEPS = 2.0, 0.1, 10
_STALENESS = {"staleness_exponent": "exponent", "staleness_cutoff": "cutoff"}


def wire(preset: str, *, layout: Layout | None = None, **settings: Any) -> Algorithm:
    """The algorithm of the name `preset` with these settings, flat as in a recipe's [algorithm], with its defaults.

    `layout` is the model's, which some quantizers need. Quantizers are text specs or objects; local training may be an
    object too, and so may own parts of the server: `local=LocalTraining(…)`, `staleness=lambda tau: …`,
    `aggregation=` an object with `aggregate(updates, weights)`, `server_step=` one with `step(model, update)`.
    Own parts may also be named as in a recipe: "package.module:Name".

    >>> wire("qafel", server_lr=0.1, client_lr=2.0, local_steps=10, server_quantizer="qsgd:4").buffer_size
    10
    """
    if preset not in PRESETS:
        raise ConfigError(f"unknown algorithm {preset!r}{did_you_mean(str(preset), PRESETS)}")
    known = {entry.name for entry in fields(Algorithm)} - {"name"} | set(_LOCAL) | set(_STALENESS)
    if unknown := sorted(set(settings) - known):
        raise ConfigError(f"unknown setting {unknown[0]!r} of an algorithm{did_you_mean(unknown[0], known)}")
    if settings.get("server_step") is not None and "server_lr" in settings:
        raise ConfigError("an own server step has its own learning rate: leave server_lr out")
    if mixed := sorted(set(settings) & set(_LOCAL)) if "local" in settings else []:
        raise ConfigError(f"local training is given as an object: {mixed[0]} goes into local=LocalTraining(…)")
    if mixed := sorted(set(settings) & set(_STALENESS)) if "staleness" in settings else []:
        raise ConfigError(f"an own staleness law is in place of {mixed[0]}: leave one out")
    settings = {role: _own(role, value) for role, value in settings.items()}
    return assemble(preset, PRESETS[preset].resolve(preset, settings), layout)


def _own(role: str, value: Any) -> Any:
    """The value of a setting; where it names a user's own part, as in a recipe, that part."""
    table = value if isinstance(value, Mapping) else {"name": value}
    path = table.get("name")
    if role not in OWN_KINDS or not isinstance(path, str) or not is_path(path) or path.partition(":")[0] in FAMILIES:
        return value
    made = make_part(path, OWN_KINDS[role], table.get("arguments"))
    return as_quantizer(made, name=path) if OWN_KINDS[role] is QUANTIZER else made


def assemble(preset: str, settings: Mapping[str, Any], layout: Layout | None = None) -> Algorithm:
    """The algorithm from settings in which the preset's own are filled in; `layout` is the model's, for quantizers."""
    resolved = dict(settings)
    local = {name: resolved.pop(key) for key, name in _LOCAL.items() if key in resolved}
    law = {name: resolved.pop(key) for key, name in _STALENESS.items() if key in resolved}
    if "local" not in resolved:
        if local.get("steps") is None and local.get("epochs") is None:
            local["steps"] = DEFAULT_LOCAL_STEPS
        resolved["local"] = LocalTraining(**{"lr": DEFAULT_CLIENT_LR, **local})
    resolved.setdefault("staleness", PolynomialStaleness(**law))
    for role in ("client_quantizer", "server_quantizer", "snapshot_quantizer"):
        if isinstance(spec := resolved.get(role), str):
            resolved[role] = parse(spec, layout)
    return Algorithm(name=preset, **{"server_lr": DEFAULT_SERVER_LR, **resolved})
