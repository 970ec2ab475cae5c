"""A secured broker, a server and five clients of different speeds, each a process of its own, on this machine.

    python examples/deployment/five_clients.py                    # mushrooms, half a minute
    python examples/deployment/five_clients.py --task cifar10     # needs the extra torch and the data

In the end it simulates the same recipe at the same speeds and shows both results side by side.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from qafel.config import load_recipe
from qafel.deployment.broker_folder import BrokerFolder
from qafel.deployment.local_broker import LocalBroker, free_port
from qafel.simulator import run

HERE = Path(__file__).parent
INTERVALS_S = {"mushrooms": (0.02, 0.022, 0.024, 0.027, 0.03), "cifar10": (0.0, 0.05, 0.1, 0.2, 0.3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=sorted(INTERVALS_S), default="mushrooms")
    parser.add_argument("--steps", type=int, help="server steps; the recipe's by default")
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
        server = qafel("server", recipe, *changed, "--credentials", keys / "server", "--out", folder / "deployed")
        clients = []
        for number, interval_s in enumerate(INTERVALS_S[options.task]):
            own = ("--credentials", keys / "clients" / str(number), "--state", folder / "clients" / str(number))
            clients.append(qafel("client", "--run", config.name, *own, "--min-interval", interval_s))
        codes = [process.wait() for process in (server, *clients)]
    if any(codes):
        sys.exit(f"a process failed: exit codes {codes}")

    deployed = json.loads((folder / "deployed" / "summary.json").read_text(encoding="utf-8"))
    simulated = run(load_recipe(str(recipe), [*settings, *same_speeds(options.task, folder)]), folder / "simulated")
    print(f"\n{'':24}{'deployed':>12}{'simulated':>12}")
    for key in ("server_steps", "uploads", "upload_bytes_mean", "staleness_mean", "metric_final"):
        print(
            f"{deployed['metric_name'] if key == 'metric_final' else key:24}{deployed[key]:12.4g}{simulated[key]:12.4g}"
        )
    print(f"\ncompare them: qafel report {folder / 'deployed'} {folder / 'simulated'}")


def same_speeds(task: str, folder: Path) -> list[str]:
    """Settings under which the simulated clients come as often as the real ones: who comes more often counts for more.

    CIFAR-10's clients spend their time training, not waiting, so they come equally often.
    """
    if task != "mushrooms":
        return []
    starts = ((count * s, number, s / 2) for number, s in enumerate(INTERVALS_S[task]) for count in range(10_000))
    lines = ["time,client,duration", *(f"{time},{client},{duration}" for time, client, duration in sorted(starts))]
    (folder / "speeds.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return ["timing.arrivals=trace", f"timing.trace={folder / 'speeds.csv'}"]


def qafel(command: str, *arguments: object) -> subprocess.Popen[bytes]:
    """A command as a user types it."""
    program = f"import typer; from qafel.cli.{command} import {command}; typer.run({command})"
    one_core = {**os.environ, "OMP_NUM_THREADS": "1"}  # six processes share this machine
    return subprocess.Popen([sys.executable, "-c", program, *map(str, arguments)], env=one_core)


if __name__ == "__main__":
    main()
