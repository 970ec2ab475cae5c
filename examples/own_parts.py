"""Your own task, quantizer, staleness law, aggregation, server step and arrival law: plain objects."""

from collections.abc import Iterator

import numpy as np

from qafel import Constant, Evaluation, Layout, Limits, LocalTraining, Stream, Timing, Vector, simulate, wire


class TemperatureOfEachRoom:
    """Every client holds a few noisy readings of the same eight rooms; the model is their estimate."""

    name, clients, layout = "rooms", 50, Layout.flat(8)
    metric_name, metric_goal = "distance from the truth", "min"
    truth = np.linspace(18, 25, 8, dtype=np.float32)

    def samples(self, client: int) -> int:
        return 5

    def initial_model(self, stream: Stream) -> Vector:
        return np.full(8, 20, np.float32)

    def train(self, client: int, start: Vector, local: LocalTraining, stream: Stream) -> Vector:
        readings = self.truth + Stream.named(0, "readings", client).generator().normal(scale=0.5, size=(5, 8))
        y = start.astype(np.float64)
        for _ in range(local.steps or 1):
            y -= local.lr * (y - readings.mean(axis=0))
        return y.astype(np.float32)

    def evaluate(self, model: Vector) -> dict[str, float]:
        return {"metric": float(np.linalg.norm(model - self.truth))}


class HalfPrecision:
    """A quantizer: sixteen bits a coordinate, NumPy's float16."""

    def encode(self, vector: Vector, stream: Stream) -> bytes:
        return vector.astype(np.float16).tobytes()

    def decode(self, payload: bytes, size: int) -> Vector:
        return np.frombuffer(payload, np.float16, size).astype(np.float32)


class Median:
    """An aggregation: the median of the buffer, coordinate by coordinate, whatever the updates weigh."""

    def aggregate(self, updates: Vector, weights: Vector) -> Vector:
        return np.median(updates, axis=0)


class Momentum:
    """A server step with state, which it saves and restores, so that runs can be resumed."""

    def __init__(self) -> None:
        self.velocity = np.zeros(8, np.float32)

    def step(self, model: Vector, update: Vector) -> Vector:
        self.velocity = 0.5 * self.velocity + update
        return model - 0.1 * self.velocity

    def state(self) -> dict[str, Vector]:
        return {"velocity": self.velocity}

    def restore(self, state: dict[str, Vector]) -> None:
        self.velocity = state["velocity"]


def only_fresh(staleness: int) -> float:
    """A staleness law: updates older than three steps count a tenth."""
    return 1.0 if staleness <= 3 else 0.1


def office_hours() -> Iterator[tuple[float, int]]:
    """An arrival law: twenty clients in a burst every hour."""
    for hour in range(100):
        for client in range(20):
            yield hour + client / 1000, (hour * 20 + client) % 50


algorithm = wire(
    "qafel",
    buffer_size=5,
    client_lr=0.3,
    local_steps=4,
    staleness=only_fresh,
    aggregation=Median(),
    server_step=Momentum(),
    client_quantizer=HalfPrecision(),
    server_quantizer=HalfPrecision(),
)
result = simulate(
    TemperatureOfEachRoom(),
    algorithm,
    Timing(Constant(0.2), office_hours()),
    limits=Limits(server_steps=200),
    evaluation=Evaluation(every=50),
)
for row in result.history.rows:
    print(f"step {row['version']:3d}  distance {row['metric']:5.2f}  staleness {row['staleness_mean']:.1f}")
print(f"{result.summary['upload_bytes_mean']:.0f} bytes per upload")
