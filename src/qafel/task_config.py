"""The settings of each task, and how they become one. `name` says which."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from qafel.tasks import Mushrooms, Quadratic, SyntheticLogistic, Task


class Section(BaseModel):
    """A table of settings: frozen, strict, and closed to unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class MushroomsConfig(Section):
    """logistic regression on LIBSVM's mushrooms, 113 parameters; the data ships with the package"""

    name: Literal["mushrooms"] = "mushrooms"
    clients: int = Field(100, ge=1)

    def make(self) -> Task:
        return Mushrooms(self.clients)


class QuadraticConfig(Section):
    """a quadratic of any size with known optimum, L, σ and B; data made from the client's number"""

    name: Literal["quadratic"]
    clients: int = Field(100, ge=1)
    dimension: int = Field(100, ge=1)
    heterogeneity: float = Field(1.0, ge=0)
    noise: float = Field(1.0, ge=0)
    smoothness: float = Field(1.0, gt=0)
    strong_convexity: float = Field(0.1, gt=0)
    data_seed: int = 0

    def make(self) -> Task:
        return Quadratic(
            self.clients,
            self.dimension,
            heterogeneity=self.heterogeneity,
            noise=self.noise,
            smoothness=self.smoothness,
            strong_convexity=self.strong_convexity,
            seed=self.data_seed,
        )


class LogisticConfig(Section):
    """logistic regression of any size with known optimum; data made from the client's number"""

    name: Literal["logistic"]
    clients: int = Field(100, ge=1)
    dimension: int = Field(100, ge=1)
    rows: int = Field(20, ge=1)
    heterogeneity: float = Field(0.01, ge=0)
    noise: float = Field(0.0, ge=0)
    l2: float = Field(0.01, gt=0)
    data_seed: int = 0

    def make(self) -> Task:
        return SyntheticLogistic(
            self.clients,
            self.dimension,
            rows=self.rows,
            heterogeneity=self.heterogeneity,
            noise=self.noise,
            l2=self.l2,
            seed=self.data_seed,
        )


TaskConfig: TypeAlias = Annotated[MushroomsConfig | QuadraticConfig | LogisticConfig, Field(discriminator="name")]

TASKS: dict[str, type[Section]] = {
    "mushrooms": MushroomsConfig,
    "quadratic": QuadraticConfig,
    "logistic": LogisticConfig,
}
"""Each task's settings by its name; the docstring is its summary."""
