"""Run spirals.toml from Python, compare it with FedBuff, and plot both."""

from spirals.codec import PowersOfTwo
from spirals.server import HalfLife, TrimmedMean
from spirals.task import spirals

from qafel import method, simulate

TRAINING = {"buffer_size": 5, "client_lr": 0.2, "server_lr": 1.0, "local_steps": 10, "batch_size": 32}

custom = method(
    "qafel",
    client_quantizer=PowersOfTwo(),
    server_quantizer=PowersOfTwo(),
    staleness=HalfLife(steps=5),
    accumulator=TrimmedMean(trim=1),
    **TRAINING,
)


def run(algorithm, out):
    return simulate(spirals(clients=20), algorithm, server_steps=60, evaluate_every=5, target=0.9, out=out)


if __name__ == "__main__":
    result, plain = run(custom, "runs/custom"), run(method("fedbuff", **TRAINING), "runs/fedbuff")
    print(result)
    print(plain)
    result.plot(plain).save("runs/spirals.png")
