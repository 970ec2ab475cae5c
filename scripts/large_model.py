"""Measure memory, bytes and time of a run with a large model, simulated or deployed on this machine (Linux).

    python scripts/large_model.py                   # 25 million parameters, 20 clients, five steps of QAFeL
    python scripts/large_model.py --deployed        # a server, a broker and one client

A vector is the model in float32, 4·d bytes. Memory is the peak of a process above its memory before the task exists.
The deployed figures are peaks of whole processes.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from torch import nn

from qafel import TorchTask, method, simulate
from qafel.text import human_bytes

CLIENTS, ROWS = 20, 8
RECIPE = """
name = "large"
[task]
name = "large_model:make"
arguments = {{ width = {width} }}
[algorithm]
method = "{method}"
{quantizers}
buffer_size = {buffer}
client_lr = 0.01
server_lr = 1.0
local_steps = 1
batch_size = 8
[evaluation]
every = 1000
[stop]
server_steps = {steps}
"""


def network(width):
    return nn.Sequential(
        nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)
    )


def make(width=1024):
    """Return the task: 24·width² parameters."""
    generator = np.random.default_rng(0)
    count = ROWS * CLIENTS
    data = generator.normal(size=(count, width)).astype(np.float32), generator.integers(0, width, count)
    clients = [range(ROWS * client, ROWS * (client + 1)) for client in range(CLIENTS)]
    return TorchTask("large", lambda: network(width), data, tuple(part[:16] for part in data), clients)


def resident(field):
    """Return bytes of memory of this process: "VmRSS" now, "VmHWM" at most."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(status.partition(f"{field}:")[2].split()[0])


def algorithm(given, **settings):
    both = {} if given.method == "fedbuff" else dict.fromkeys(("client_quantizer", "server_quantizer"), given.quantizer)
    return method(given.method, buffer_size=10, client_lr=0.01, local_steps=1, batch_size=8, **both, **settings)


def simulated(given):
    simulate(make(8), algorithm(given), server_steps=1)  # loads and compiles
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets VmHWM
    before, began = resident("VmRSS"), time.perf_counter()
    task = make(given.width)
    size, made = task.layout.size, time.perf_counter()
    summary = simulate(task, algorithm(given), server_steps=given.steps, evaluate_every=1000, check=False).summary
    peak = resident("VmHWM") - before
    print(f"{given.method}: {size:,} parameters, {CLIENTS} clients, {summary['uploads']} uploads, {given.steps} steps")
    print(f"  peak memory    {human_bytes(peak)}, {peak / (4 * size):.1f} vectors")
    print(f"  per upload     {human_bytes(summary['upload_bytes_mean'])}")
    print(f"  time           {time.perf_counter() - made:.0f} s, and {made - began:.0f} s for the task")


def deployed(given):
    size = sum(parameter.numel() for parameter in network(given.width).parameters())
    quantizers = "" if given.method == "fedbuff" else "\n".join(
        f'{end}_quantizer = "{given.quantizer}"' for end in ("client", "server")
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        text = RECIPE.format(width=given.width, method=given.method, quantizers=quantizers, buffer=2, steps=given.steps)
        Path(folder, "large.toml").write_text(text, encoding="utf-8")
        path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        qafel = [sys.executable, "-m", "qafel"]
        commands = {
            "server": [*qafel, "server", "large.toml", "--local-broker", "--out", "out"],
            "client": [*qafel, "client", "--run", "large", "--client-id", "0", "--part", "large_model:make"],
        }
        began, processes = time.perf_counter(), {}
        for name, command in commands.items():
            if name == "client":  # a client waits for the server only a minute
                while processes["server"].poll() is None and "step" not in Path(folder, "server.log").read_text(
                    "utf-8"
                ):
                    time.sleep(1)
            with Path(folder, f"{name}.log").open("w", encoding="utf-8") as log:
                processes[name] = subprocess.Popen(
                    command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, stdout=log, stderr=log
                )
        print(f"{given.method}, deployed: {size:,} parameters, {2 * given.steps} uploads, {given.steps} steps")
        for name, process in processes.items():
            _, code, usage = os.wait4(process.pid, 0)
            peak = 1024 * usage.ru_maxrss
            print(f"  {name}    peak {human_bytes(peak)}, {peak / (4 * size):.1f} vectors; exit code {code >> 8}")
            if code:
                print(Path(folder, f"{name}.log").read_text(encoding="utf-8")[-2000:])
        print(f"  time      {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=1024, help="24·width² parameters; 2048 gives 100 million")
    parser.add_argument("--steps", type=int, default=5, help="server steps")
    parser.add_argument("--method", choices=["qafel", "fedbuff"], default="qafel")
    parser.add_argument("--quantizer", default="trellis:2", help="of clients and server, for qafel")
    parser.add_argument("--deployed", action="store_true")
    chosen = parser.parse_args()
    (deployed if chosen.deployed else simulated)(chosen)
