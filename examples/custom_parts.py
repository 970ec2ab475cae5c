"""A custom task, quantizer, staleness law, accumulator, server rule and arrival law."""

from collections.abc import Iterator

import numpy as np

from qafel import (
    Algorithm,
    Constant,
    Direction,
    HiddenState,
    Kept,
    Layout,
    LocalTraining,
    ServerRule,
    Stream,
    Timing,
    Upload,
    Vector,
    method,
    simulate,
)


class TemperatureOfEachRoom:
    """Clients hold noisy readings of the same eight rooms. The model is their estimate."""

    name, clients, layout = "rooms", 50, Layout.flat(8)
    metric_name, metric_goal = "distance from the truth", "min"
    truth = np.linspace(18, 25, 8, dtype=np.float32)

    def samples(self, client: int) -> int:
        return 5

    def initial_model(self, stream: Stream) -> Vector:
        return np.full(8, 20, np.float32)

    def train(self, client: int, start: HiddenState, local: LocalTraining, stream: Stream) -> Vector:
        readings = self.truth + Stream.named(0, "readings", client).generator().normal(scale=0.5, size=(5, 8))
        y = start.vector.astype(np.float64)
        for _ in range(local.steps or 1):
            y -= local.lr * (y - readings.mean(axis=0))
        return y.astype(np.float32)

    def evaluate(self, model: Vector) -> dict[str, float]:
        return {"metric": float(np.linalg.norm(model - self.truth))}


class HalfPrecision:
    """A quantizer: NumPy's float16."""

    def encode(self, vector: Vector, stream: Stream) -> bytes:
        return vector.astype(np.float16).tobytes()

    def decode(self, payload: bytes, size: int) -> Vector:
        return np.frombuffer(payload, np.float16, size).astype(np.float32)


class Median(Kept):
    """An accumulator: the median of each coordinate. It ignores weights."""

    def combine(self, uploads: list[Upload], updates: Vector, weights: Vector) -> Vector:
        return np.median(updates, axis=0)


class Momentum(ServerRule):
    """A server rule. Checkpoints save its attributes that are arrays or numbers."""

    def begin_(self, algorithm: Algorithm, size: int, clients: int | None) -> None:
        self.velocity = np.zeros(size, np.float32)

    def step_(self, model: Vector, direction: Direction) -> Vector:
        self.velocity = 0.5 * self.velocity + direction.update(model)
        return model - 0.1 * self.velocity


def only_fresh(staleness: int) -> float:
    """A staleness law: updates older than three steps have weight 0.1."""
    return 1.0 if staleness <= 3 else 0.1


def office_hours() -> Iterator[tuple[float, int]]:
    """An arrival law: a burst of twenty clients every hour."""
    for hour in range(100):
        for client in range(20):
            yield hour + client / 1000, (hour * 20 + client) % 50


algorithm = method(
    "qafel",
    buffer_size=5,
    client_lr=0.3,
    local_steps=4,
    staleness=only_fresh,
    accumulator=Median(),
    server_rule=Momentum(),
    client_quantizer=HalfPrecision(),
    server_quantizer=HalfPrecision(),
)
result = simulate(
    TemperatureOfEachRoom(),
    algorithm,
    Timing(duration=Constant(0.2), arrivals=office_hours),
    server_steps=200,
    evaluate_every=50,
)
for row in result.history.rows:
    print(f"step {row['version']:3d}  distance {row['metric']:5.2f}  staleness {row['staleness_mean']:.1f}")
print(f"{result.summary['upload_bytes_mean']:.0f} bytes per upload")
