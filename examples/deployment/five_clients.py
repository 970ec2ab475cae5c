"""Run a secured broker, a server and five clients of different speeds on this machine.

    python examples/deployment/five_clients.py                    # mushrooms, a minute
    python examples/deployment/five_clients.py --task cifar10     # needs the extra torch and the data

Then simulate the same recipe in the recorded order of uploads (equal bits), in that order with other seeds, and with
the recipe's timing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from qafel.algorithm import Message
from qafel.config import load_recipe
from qafel.deployment.broker import BrokerFolder, LocalBroker, free_port
from qafel.deployment.server.journal import read_journal
from qafel.simulator import simulate

HERE = Path(__file__).parent
INTERVALS_S = {"mushrooms": (0.02, 0.022, 0.024, 0.027, 0.03), "cifar10": (0.0, 0.05, 0.1, 0.2, 0.3)}
SEEDS = {"mushrooms": 10, "cifar10": 2}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=sorted(INTERVALS_S), default="mushrooms")
    parser.add_argument("--steps", type=int, help="server steps; the recipe's by default")
    parser.add_argument("--seeds", type=int, help=f"simulated runs of either kind to compare with; by default {SEEDS}")
    parser.add_argument("--folder", type=Path, help="where everything is written; a temporary folder by default")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="qafel-five-"))
    recipe = HERE / f"{options.task}.toml"
    settings = [f"stop.server_steps={options.steps}"] if options.steps else []
    config = load_recipe(str(recipe), settings)

    port = free_port()
    broker = BrokerFolder.init(folder / "broker", clients=5, port=port)  # keys and certificates for all
    with LocalBroker(broker.path, port=port):
        print(f"a broker with TLS and a key per client, at {port}; everything is in {folder}")
        keys = broker.path
        changed = [part for setting in settings for part in ("--set", setting)]
        serve = ("server", recipe, *changed, "--credentials", keys / "server", "--out", folder / "deployed")
        processes = [qafel(*serve, "--keep-journal")]
        patient = ("--patience", 300)  # the server may have to load its data first
        for number, interval_s in enumerate(INTERVALS_S[options.task]):
            own = ("--credentials", keys / "clients" / str(number), "--state", folder / "clients" / str(number))
            processes.append(qafel("client", "--run", config.name, *own, "--min-interval", interval_s, *patient))
        try:
            codes = wait(processes)
        finally:
            for process in processes:
                process.terminate()
    if any(codes):
        sys.exit(f"a process failed: exit codes {codes}")

    deployed = json.loads((folder / "deployed" / "summary.json").read_text(encoding="utf-8"))
    order = recorded_order(folder, config.algorithm.buffer_size)
    seeds = range(1, (options.seeds or SEEDS[options.task]) + 1)

    def simulated_runs(name: str, settings: Sequence[str], seeds: Sequence[int]) -> list[Mapping[str, Any]]:
        recipes = {seed: load_recipe(str(recipe), settings, seed) for seed in seeds}
        return [simulate(**found.arguments(), out=folder / f"{name}-{seed}").summary for seed, found in recipes.items()]

    replayed, *others = simulated_runs("replayed", [*settings, *order], (0, *seeds))
    simulated = simulated_runs("simulated", settings, seeds)
    print(f"\n{'':20}{'deployed':>12}{'same order':>12}{'and other seeds':>24}{'the recipe as it is':>24}")
    for key in ("server_steps", "uploads", "upload_bytes_mean", "staleness_mean", "metric_final"):
        label = deployed["metric_name"] if key == "metric_final" else key
        spreads = f"{spread(others, key):>24}{spread(simulated, key):>24}"
        print(f"{label:20}{deployed[key]:12.4g}{replayed[key]:12.4g}{spreads}")
    same = deployed["model_sha256"] == replayed["model_sha256"]
    print(f"\nsimulated in the recorded order, the model is {'bit-identical' if same else 'NOT the same'}")
    print(f"compare them: qafel report {folder / 'deployed'} {folder / 'replayed-1'} {folder / 'simulated-1'}")


def spread(summaries: Sequence[Mapping[str, Any]], key: str) -> str:
    """Mean and standard deviation over the seeds."""
    values = [summary[key] for summary in summaries]
    return f"{fmean(values):.4g} ± {stdev(values) if len(values) > 1 else 0:.2g}"


def recorded_order(folder: Path, buffer_size: int) -> list[str]:
    """Settings under which the simulated uploads come in the order of the server's journal, from the same versions.

    The i-th upload arrives at time i + 1, so version v is there from time K·v on: just after that, whoever based an
    update on it starts.
    """
    journal = [Message.from_bytes(frame) for frame in read_journal(folder / "deployed" / "state")]
    by_start = sorted(enumerate(journal), key=lambda one: (one[1].version, one[1].sequence))
    lines = ["time,client,duration"]
    for place, (arrival, upload) in enumerate(by_start):
        start = buffer_size * upload.version + 0.25 + 0.5 * place / len(journal)
        lines.append(f"{start!r},{upload.sender},{arrival + 1 - start!r}")
    (folder / "order.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return ["timing.arrivals=trace", f"timing.trace={folder / 'order.csv'}"]


def wait(processes: list[subprocess.Popen[bytes]]) -> list[int]:
    """Until all have ended, or one has failed."""
    while any(process.poll() is None for process in processes) and not any(process.returncode for process in processes):
        time.sleep(0.1)
    return [process.returncode or 0 for process in processes]


def qafel(command: str, *arguments: object) -> subprocess.Popen[bytes]:
    """A command as a user types it."""
    one_core = {**os.environ, "OMP_NUM_THREADS": "1"}  # six processes share this machine
    return subprocess.Popen([sys.executable, "-m", "qafel", command, *map(str, arguments)], env=one_core)


if __name__ == "__main__":
    main()
