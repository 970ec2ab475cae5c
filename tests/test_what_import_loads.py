"""`import qafel` loads nothing heavy: that loads when it is used. Asked of new processes, by module and not by time."""

import json
import subprocess
import sys

import pytest

HEAVY = {
    *("numba", "llvmlite", "scipy", "torch", "torchvision", "ray", "nats", "cryptography", "prometheus_client"),
    *("matplotlib", "plotly", "PIL", "pandas", "IPython", "rich", "typer", "tensorboard", "optuna", "pooch", "requests"),
}


def loaded_by(code):
    """The heavy packages that a new process holds once it has run `code`."""
    asked = f"import json, sys\n{code}\nprint(json.dumps(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True, timeout=120)
    return HEAVY & set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_the_package_loads_nothing_heavy():
    assert loaded_by("import qafel") == set()


def test_no_room_loads_numba_before_it_computes():
    rooms = ("quantizers", "algorithm", "tasks", "theory", "config", "planning", "runs", "simulator", "report", "sweeps")
    assert loaded_by("\n".join(f"import qafel.{room}" for room in rooms)) & {"numba", "torch"} == set()


@pytest.mark.parametrize(
    "use",
    [
        "qafel.quantizer('qsgd:4').payload_bytes(1000)",
        "qafel.wire('qafel', client_quantizer='top_k:0.1', server_quantizer='rotated:4')",
        "qafel.Mushrooms(clients=10)",
    ],
)
def test_what_computes_no_coordinate_needs_no_numba(use):
    assert "numba" not in loaded_by(f"import qafel\n{use}")


@pytest.mark.parametrize(
    "use",
    [
        "qafel.quantizer('qsgd:4').encode(numpy.ones(9, 'f4'), qafel.Stream.named(0, 'any'))",
        "qafel.Server(numpy.zeros(9, 'f4'), qafel.wire('fedbuff', client_lr=1, server_lr=1, local_steps=1), 0)",
        "qafel.Mushrooms(clients=10).evaluate(numpy.zeros(113, 'f4'))",
    ],
)
def test_numba_loads_when_a_kernel_is_used(use):
    assert "numba" in loaded_by(f"import numpy, qafel\n{use}")
