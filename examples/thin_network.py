"""Compare the time to a target of three methods on a slow network."""

from qafel import Mushrooms, Network, Timing, method, simulate

TARGET = 0.01
LOCAL = {"client_lr": 2.0, "local_steps": 10, "buffer_size": 10}
METHODS = {
    "QAFeL, 4 bits": (
        method("qafel", server_lr=0.1, client_quantizer="qsgd:4", server_quantizer="qsgd:4", **LOCAL),
        "always-training",
    ),
    "FedBuff": (method("fedbuff", server_lr=0.1, **LOCAL), "always-training"),
    "FedAvg": (method("fedavg", **LOCAL), "rounds"),
}

task = Mushrooms(clients=100)
# An unquantized upload takes about one unit of time. Training takes 0.8 units on average.
network = Network(upload_rate=500.0, download_rate=2000.0, latency=0.05, spread=0.5)
print(f"time and traffic until f(x) − f* ≤ {TARGET}")
print(f"{'method':<15}{'time':>8}{'uploads':>10}{'kB up':>9}{'kB broadcast':>14}")
for name, (algorithm, arrivals) in METHODS.items():
    summary = simulate(
        task,
        algorithm,
        Timing(arrivals=arrivals, network=network),
        server_steps=20_000,
        at_target=True,
        evaluate_every=10,
        target=TARGET,
    ).summary
    print(
        f"{name:<15}{summary['virtual_time_to_target']:>8.0f}{summary['uploads_to_target']:>10,}"
        f"{summary['upload_bytes_total'] / 1000:>9,.0f}{summary['broadcast_bytes_total'] / 1000:>14,.0f}"
    )
