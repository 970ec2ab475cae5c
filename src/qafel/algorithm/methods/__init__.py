"""QAFeL and its relatives: one method, one file. A new method is a file here, and a line in `METHODS`.

qafel           the paper's algorithm
fedbuff         fedbuff, fedbuff-direct
fedasync        fedasync, fedasync-direct, fedasync-hidden
fedavg          in rounds: fedavg, fedsgd
fedprox         in rounds
mcm             in rounds; memories both ways
cafe            clients send how their update differs from the last aggregate
fedadam         Adam at the server
ca2fl           a buffer calibrated by each client's last update
error_feedback  FedBuff with error feedback at the clients
ringmaster      late updates are discarded, and their training stops
ringleader      every step uses an update of every client
preset          what a method is by name: the settings that it fixes or suggests

Here: every setting of an algorithm, declared once, and how settings become an `Algorithm`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, model_validator

from qafel.algorithm.accumulators import Buckets, BufferedMean
from qafel.algorithm.admission import PolynomialStaleness
from qafel.algorithm.algorithm import ROLES, Algorithm, ClientWeights, LocalTraining, Schedule
from qafel.algorithm.catch_up import Auto, CatchUp, Exact, Linked, PerStart, Snapshot
from qafel.algorithm.hidden_state import DirectModel, HiddenStateDifference
from qafel.algorithm.methods.ca2fl import CA2FL, CachedUpdates
from qafel.algorithm.methods.cafe import CAFE, AggregateFeedback, FeedbackMean, KeptDifference
from qafel.algorithm.methods.error_feedback import ERROR_FEEDBACK, ErrorFeedback
from qafel.algorithm.methods.fedadam import FEDADAM, Adam
from qafel.algorithm.methods.fedasync import FEDASYNC, FEDASYNC_DIRECT, FEDASYNC_HIDDEN
from qafel.algorithm.methods.fedavg import FEDAVG, FEDSGD
from qafel.algorithm.methods.fedbuff import FEDBUFF, FEDBUFF_DIRECT
from qafel.algorithm.methods.fedprox import FEDPROX
from qafel.algorithm.methods.mcm import MCM, Memory, MemoryDifference, MemoryMean
from qafel.algorithm.methods.preset import Preset
from qafel.algorithm.methods.qafel import QAFEL
from qafel.algorithm.methods.ringleader import RINGLEADER, OneOfEach
from qafel.algorithm.methods.ringmaster import RINGMASTER, DelayLimit
from qafel.algorithm.parts import Model, Needs, Update
from qafel.algorithm.server_rules import SGD
from qafel.errors import ConfigError
from qafel.params import Layout
from qafel.parts import PartKind, PartName, PartTable, Section, custom_path, errors_of, make, one_of
from qafel.quantizers import make_quantizer, parse
from qafel.quantizers.spec import FAMILIES
from qafel.text import did_you_mean

METHODS: Mapping[str, Preset] = {
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
    "fedadam": FEDADAM,
    "ca2fl": CA2FL,
    "error-feedback": ERROR_FEEDBACK,
    "cafe": CAFE,
    "ringmaster": RINGMASTER,
    "ringleader": RINGLEADER,
}
"""The methods by name: what `method` and a recipe's `algorithm.method` take."""
PARTS: Mapping[str, Mapping[str, Any]] = {
    "client_rule": {
        "update": Update,
        "model": Model,
        "memory": Memory,
        "error-feedback": ErrorFeedback,
        "aggregate-feedback": AggregateFeedback,
    },
    "accumulator": {
        **{name: partial(BufferedMean, name) for name in ("mean", "sum", "weighted-mean")},
        **{name: partial(Buckets, name) for name in ("median", "trimmed-mean")},
        "memory-mean": MemoryMean,
        "cached": CachedUpdates,
        "one-of-each": OneOfEach,
        "feedback-mean": FeedbackMean,
    },
    "server_rule": {"sgd": SGD, "adam": Adam},
    "downlink": {
        "difference": HiddenStateDifference,
        "direct": DirectModel,
        "memory": MemoryDifference,
        "kept": KeptDifference,
    },
    "catch_up": {"exact": Exact, "snapshot": Snapshot, "link": Linked, "auto": Auto, "per-start": PerStart},
}
"""The parts that ship, by role and name."""
LAWS: Mapping[str, Any] = {"delay-limit": DelayLimit}
"""The staleness laws by name, beside the polynomial one."""
DEFAULT_CLIENT_LR, DEFAULT_SERVER_LR, DEFAULT_LOCAL_STEPS = 2.0, 0.1, 10
_KINDS = {role: PartKind(role.replace("_", " "), ("begin_",)) for role in PARTS}
_STALENESS = PartKind("staleness law", ("__call__",))
QUANTIZERS = ("client_quantizer", "server_quantizer")
SERVER_PARTS = ("accumulator", "server_rule", "staleness")
"""What only the server works with: a client imports no custom part in these places."""


def _part(role: str) -> Any:
    return Annotated[PartName, one_of(PARTS[role], role.replace("_", " "))]


class AlgorithmSettings(Section):
    """A method and its settings. A method may change a default or fix a setting.

    method              the federated learning method
    client_quantizer    Q_c, for uploads. If not set: `trellis:4` for the method `qafel`, `top_k:0.1` for
                        `error-feedback` and `cafe`, `none` (float32) for others
    server_quantizer    Q_s, for broadcasts. If not set: `trellis:4` for the methods `qafel` and `cafe`, `none`
                        (float32) for others
    buffer_size         K, the updates per server step
    server_lr           η_g, the server's learning rate
    server_momentum     β, heavy-ball momentum of the rule `sgd`: v ← βv + Δ̄, x ← x − η_g v
    client_lr           η_ℓ, the clients' learning rate; in Python also a function of the version
    client_lr_schedule  lowers client_lr by the version: {cosine = 1000} or {step = 100}, with factor = 0.1
    local_steps         P, local steps per update; 10 unless local_epochs is set
    local_epochs        passes over the client's data, instead of local_steps
    batch_size          samples per local step; none: all of the client's samples
    weight_decay        weight decay of local training
    clip_norm           largest gradient norm in local training; none: no clipping
    proximal            FedProx's μ: adds μ/2·‖y − y₀‖² to the local loss
    partial             upload the steps done when a round's deadline ends local training
    client_weights      weight updates equally or by the client's number of samples
    client_rule         what a client sends
    accumulator         how the server combines updates
    server_rule         how the server steps
    downlink            what the server broadcasts
    catch_up            what a starting client downloads. `exact`: the missed broadcasts, or the whole x̂ if shorter.
                        `snapshot`: the missed broadcasts, or a quantized copy of x̂ if shorter. `link`: the quantized
                        difference to its last start point. `auto`: the shortest of broadcasts, link and copy.
                        `per-start`: Q_s(x) drawn for this start, with downlink `direct`. Settings: quantizer
                        (snapshot); quantizer, first (link); link, first, snapshot (auto)
    staleness           staleness law, instead of staleness_exponent and staleness_cutoff
    staleness_exponent  weight of an update of staleness τ: (1 + τ)^−exponent
    staleness_cutoff    staleness up to which an update has full weight
    max_staleness       reject updates of greater staleness; none: no limit
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    method: str = "qafel"
    client_quantizer: PartName = "none"
    server_quantizer: PartName = "none"
    buffer_size: int = Field(10, ge=1)
    server_lr: float = Field(DEFAULT_SERVER_LR, gt=0)
    server_momentum: float = Field(0.0, ge=0, lt=1)
    client_lr: float = Field(DEFAULT_CLIENT_LR, gt=0)
    client_lr_schedule: Any = None
    local_steps: int | None = Field(None, ge=1)
    local_epochs: int | None = Field(None, ge=1)
    batch_size: int | None = Field(None, ge=1)
    weight_decay: float = Field(0.0, ge=0)
    clip_norm: float | None = Field(None, gt=0)
    proximal: float = Field(0.0, ge=0)
    partial: bool = False
    client_weights: ClientWeights = "equal"
    client_rule: _part("client_rule") = "update"  # type: ignore[valid-type]
    accumulator: _part("accumulator") = "mean"  # type: ignore[valid-type]
    server_rule: _part("server_rule") = "sgd"  # type: ignore[valid-type]
    downlink: _part("downlink") = "difference"  # type: ignore[valid-type]
    catch_up: _part("catch_up") = "exact"  # type: ignore[valid-type]
    staleness: Annotated[PartName, one_of(LAWS, "staleness law")] = None
    staleness_exponent: float = Field(0.0, ge=0)
    staleness_cutoff: int = Field(0, ge=0)
    max_staleness: int | None = Field(None, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _fill_in_method(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or not isinstance(name := data.get("method", "qafel"), str):
            return data
        if name not in METHODS:
            raise ValueError(f"unknown method {name!r}{did_you_mean(name, METHODS)}")
        if isinstance(data.get("client_lr"), Mapping):
            raise ValueError("client_lr is the first rate: give the schedule to client_lr_schedule")
        resolved = METHODS[name].resolve(name, data)
        if resolved.get("local_steps") is None and resolved.get("local_epochs") is None:
            resolved["local_steps"] = DEFAULT_LOCAL_STEPS
        return resolved

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for quantizer in (getattr(self, role) for role in QUANTIZERS):
            if isinstance(quantizer, str | PartTable) and custom_path(quantizer, FAMILIES) is None:
                parse(str(quantizer))
        self._local()
        if self.staleness is not None and (self._differs("staleness_exponent") or self._differs("staleness_cutoff")):
            raise ValueError("a custom staleness law is in place of staleness_exponent and staleness_cutoff")
        return self

    def custom_parts_at_client(self) -> dict[str, str]:
        """The import paths of the custom parts that clients work with, by their roles."""
        roles = [role for role in (*QUANTIZERS, *PARTS) if role not in SERVER_PARTS]
        found = {role: custom_path(getattr(self, role), FAMILIES) for role in roles}
        for role in roles:  # a part's own quantizers
            for name, value in getattr(getattr(self, role), "arguments", {}).items():
                found[f"{role}.{name}"] = custom_path(value, FAMILIES)
        return {role: path for role, path in found.items() if path is not None}

    def compose(
        self, layout: Layout | None = None, *, local: LocalTraining | None = None, at_client: bool = False
    ) -> Algorithm:
        """The algorithm of these settings.

        layout     the model's, which some quantizers need
        local      in place of the settings of local training
        at_client  leave out custom parts that only the server works with, so that a client imports none of them
        """
        quantizers: dict[str, Any] = {
            role: make_quantizer(getattr(self, role), layout) for role in QUANTIZERS if getattr(self, role) is not None
        }
        offered = {"lr": self.server_lr, "momentum": self.server_momentum, **quantizers}
        roles = {role: self._made(role, offered, at_client) for role in PARTS}
        law = self._made("staleness", {}, at_client)
        if isinstance(catch_up := roles["catch_up"], CatchUp):  # `Algorithm` refuses another object
            roles["catch_up"] = catch_up.fitted(layout)
        return Algorithm(
            name=self.method,
            local=local or self._local(),
            buffer_size=self.buffer_size,
            staleness=law or PolynomialStaleness(self.staleness_exponent, self.staleness_cutoff),
            max_staleness=self.max_staleness,
            client_weights=self.client_weights,
            own_needs=Needs(rounds=METHODS[self.method].rounds),
            **quantizers,
            **roles,
        )

    def _local(self) -> LocalTraining:
        schedule = self.client_lr_schedule
        if schedule is not None and not callable(schedule):
            if not isinstance(schedule, Mapping) or not schedule.keys() <= {"cosine", "step", "factor"}:
                raise ValueError(f"client_lr_schedule is {{cosine = 1000}} or {{step = 100}}, found {schedule!r}")
            schedule = Schedule(self.client_lr, **schedule)
        return LocalTraining(
            self.client_lr, self.local_steps, self.local_epochs, self.batch_size, self.weight_decay, self.clip_norm,
            self.proximal, self.partial, schedule=schedule,
        )  # fmt: skip

    def _made(self, role: str, offered: Mapping[str, Any], at_client: bool) -> Any:
        """The part in this role: made if it is named, itself if it is an object."""
        part = getattr(self, role)
        if part is None or (at_client and role in SERVER_PARTS):
            return None
        if not isinstance(part, str) and not hasattr(part, "arguments"):
            made = part
        else:
            made = make(part, _KINDS.get(role, _STALENESS), offered=offered, known=PARTS.get(role, LAWS))
        if role == "server_rule":
            self._require_taken(made, part)
        return made

    def _require_taken(self, rule: Any, part: Any) -> None:
        """Raise `ConfigError` if a server rule ignores server_lr or server_momentum."""
        given = part.arguments if isinstance(part, PartTable) else {}
        for name in ("server_lr", "server_momentum"):
            argument, value = name.removeprefix("server_"), getattr(self, name)
            takes = hasattr(rule, argument) or argument in inspect.signature(type(rule)).parameters
            if self._differs(name) and (rule is part or not takes):
                raise ConfigError(f"{type(rule).__name__} takes no {name}: leave it out")
            if self._differs(name) and given.get(argument, value) != value:
                raise ConfigError(f"{name} is {value}, and server_rule has {argument} = {given[argument]}: state one")

    def _differs(self, name: str) -> bool:
        """Whether a setting is not the default. A resolved configuration states the defaults too."""
        default = METHODS[self.method].default.get(name, type(self).model_fields[name].default)
        return bool(getattr(self, name) != default)


def method(
    name: str = "qafel", *, layout: Layout | None = None, local: LocalTraining | None = None, **settings: Any
) -> Algorithm:
    """A method by name, with its settings, flat as in a recipe's [algorithm].

    name      one of `METHODS`
    layout    the model's, which some quantizers need
    local     local training as an object, instead of client_lr, local_steps and so on
    settings  quantizers are text such as "qsgd:4" or objects. Parts (client_rule, accumulator, server_rule, downlink,
              catch_up, staleness) are names, import paths, tables, or objects.

    >>> method("qafel", server_lr=0.1, client_lr=2.0, local_steps=10, server_quantizer="qsgd:4").buffer_size
    10
    """
    if local is not None and (mixed := sorted(set(settings) & _LOCAL)):
        raise ConfigError(f"local training is given as an object: {mixed[0]} goes into local=LocalTraining(…)")
    if callable(rate := settings.get("client_lr")):
        with errors_of("client_lr"):
            settings = {**settings, "client_lr": float(rate(0)), "client_lr_schedule": rate}
    return AlgorithmSettings(method=name, **settings).compose(layout, local=local)


_LOCAL = {
    "client_lr", "client_lr_schedule", "local_steps", "local_epochs", "batch_size", "weight_decay", "clip_norm",
    "proximal", "partial",
}  # fmt: skip


assert set(PARTS) == set(ROLES)
__all__ = ["METHODS", "PARTS", "AlgorithmSettings", "CatchUp", "Preset", "method"]
