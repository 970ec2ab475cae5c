"""[task]: the settings of each task, which make the task and check that its data is there."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypeAlias, final, get_args

from pydantic import Discriminator, Field, Tag

from qafel import parts
from qafel.errors import ConfigError, DataError
from qafel.lazy import require_installed
from qafel.parts import Arguments, PartKind, PartTable, Section, is_path
from qafel.tasks import Mushrooms, Quadratic, SyntheticLogistic, Task
from qafel.tasks.datasets.celeba import find_celeba
from qafel.tasks.datasets.cifar10 import find_cifar10
from qafel.tasks.datasets.files import data_folder
from qafel.tasks.datasets.shakespeare import find_shakespeare
from qafel.tasks.protocol import require_digest

TASK = PartKind(
    "task",
    (
        *("name", "clients", "layout", "metric_name", "metric_goal"),
        *("samples", "initial_model", "train", "evaluate"),
    ),
)
Seed: TypeAlias = Annotated[int, Field(ge=-(2**63), lt=2**63)]
"""A 64-bit number."""


class _TaskSection(Section):
    """Settings of a task are arguments of its constructor. `data_seed` becomes its `seed`."""

    name: str

    def make(self) -> Task:
        """Make the task. Neural tasks import torch here."""
        self._require_torch()
        settings = self.model_dump(exclude={"name"})
        if "data_seed" in settings:
            settings["seed"] = settings.pop("data_seed")
        make = _CONVEX.get(self.name) or getattr(importlib.import_module("qafel.tasks.neural"), self.name)
        task: Task = make(**settings)
        return task

    def missing(self, fetch: bool = False) -> str | None:
        """Why the task cannot be made here, such as missing data; None if it can.

        `fetch` first downloads data that is not there, if its authors allow that.
        """
        try:
            self._require_torch()
            if self.name in _FIND:
                _FIND[self.name](data_folder(), fetch)
        except (ConfigError, DataError) as error:
            return str(error)
        return None

    def _require_torch(self) -> None:
        if self.name in _FIND:
            require_installed(self.name, "torch", torch="PyTorch", numba="Numba")


class MushroomsConfig(_TaskSection):
    """logistic regression on LIBSVM's mushrooms, 113 parameters; the data ships with the package"""

    name: Literal["mushrooms"] = "mushrooms"
    clients: int = Field(100, ge=1, description="number of clients")


class QuadraticConfig(_TaskSection):
    """a quadratic of any size with known optimum, L, σ and B; data made from the client's number"""

    name: Literal["quadratic"]
    clients: int = Field(100, ge=1, description="number of clients")
    dimension: int = Field(100, ge=1, description="number of parameters")
    heterogeneity: float = Field(1.0, ge=0, description="B, how much the clients' gradients differ")
    noise: float = Field(1.0, ge=0, description="σ_ℓ, the gradient noise")
    smoothness: float = Field(1.0, gt=0, description="L, the largest curvature")
    strong_convexity: float = Field(0.1, gt=0, description="the smallest curvature")
    data_seed: Seed = Field(0, description="seed of data, partition and held-out users")


class LogisticConfig(_TaskSection):
    """logistic regression of any size with known optimum; data made from the client's number"""

    name: Literal["logistic"]
    clients: int = Field(100, ge=1, description="number of clients")
    dimension: int = Field(100, ge=1, description="number of parameters")
    rows: int = Field(20, ge=1, description="samples per client")
    heterogeneity: float = Field(0.01, ge=0, description="B, how much the clients' gradients differ")
    noise: float = Field(0.0, ge=0, description="σ_ℓ, the gradient noise")
    l2: float = Field(0.01, gt=0, description="weight of the ℓ₂ regularization")
    data_seed: Seed = Field(0, description="seed of data, partition and held-out users")


class _NeuralSection(_TaskSection):
    """Settings that neural tasks share."""

    clients: int | None = Field(None, ge=1, description="number of clients; none: all users of the dataset")
    partition: str = Field("user", description="how samples are divided among clients, such as `dirichlet:0.1`")
    max_samples: int | None = Field(None, ge=1, description="largest number of training samples per client")
    test_samples: int | None = Field(None, ge=1, description="number of test samples; none: all")
    data_seed: Seed = Field(0, description="seed of data, partition and held-out users")
    device: str = Field("cpu", description="cpu, cuda (GPU) or auto")


class Cifar10Config(_NeuralSection):
    """CIFAR-10 and the four-layer network, 31,594 parameters; needs the extra torch and the data"""

    name: Literal["cifar10"]
    clients: int = Field(5000, ge=1, description="number of clients")
    partition: str = Field("power:0.1", description="how samples are divided among clients, such as `dirichlet:0.1`")
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout rate of the network")


class CelebaConfig(_NeuralSection):
    """CelebA, smiling or not, and the four-layer network, 29,282 parameters; needs the extra torch and the data"""

    name: Literal["celeba"]
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout rate of the network")


class ShakespeareConfig(_NeuralSection):
    """Shakespeare's next character and the two-layer LSTM, 819,920 parameters; needs the extra torch and the data"""

    name: Literal["shakespeare"]
    test_samples: int | None = Field(10_000, ge=1, description="number of test samples; none: all")
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="number format of training; auto: bfloat16 if the processor supports it"
    )


@final
class CustomTask(Section):
    """a custom task, by its import path"""

    name: str
    arguments: Arguments = Field(default_factory=dict)
    digest: str | None = Field(
        None,
        pattern="^[0-9a-f]{64}$",
        description="SHA-256 of the frozen parameters; none: any. A run directory states it",
    )

    def make(self) -> Task:
        """Import and make the task. Raises `DataError` if its frozen parameters have another digest."""
        part = PartTable.model_validate({**self.arguments, "name": self.name})
        task: Task = parts.make(part, TASK, known=dict.fromkeys(TASKS))
        if self.digest is not None:
            require_digest(task, self.digest)
        return task

    def missing(self, fetch: bool = False) -> str | None:
        """Why the task cannot be imported here; None if it can."""
        return parts.missing(self.name)


_ShippedTask: TypeAlias = (
    MushroomsConfig | QuadraticConfig | LogisticConfig | Cifar10Config | CelebaConfig | ShakespeareConfig
)
TASKS: dict[str, type[Section]] = {
    get_args(section.model_fields["name"].annotation)[0]: section for section in get_args(_ShippedTask)
}
"""Settings of each task by name. The docstring is a summary."""


def _origin(task: Any) -> str:
    name = task.get("name") if isinstance(task, Mapping) else getattr(task, "name", None)
    return CUSTOM if isinstance(name, str) and name not in TASKS and is_path(name) else SHIPPED


SHIPPED, CUSTOM = "shipped", "custom"
TaskConfig: TypeAlias = Annotated[
    Annotated[_ShippedTask, Field(discriminator="name"), Tag(SHIPPED)] | Annotated[CustomTask, Tag(CUSTOM)],
    Discriminator(_origin),
]
_CONVEX: dict[str, Callable[..., Task]] = {task.name: task for task in (Mushrooms, Quadratic, SyntheticLogistic)}
_FIND = {"cifar10": find_cifar10, "celeba": find_celeba, "shakespeare": find_shakespeare}
