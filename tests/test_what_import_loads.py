"""`import qafel` loads nothing heavy: that loads when it is used. Asked of new processes, by module and not by time."""

import json
import subprocess
import sys

import pytest

COMPUTING = {"numba", "llvmlite", "scipy", "torch", "ray", "optuna"}
SHOWING = {"matplotlib", "plotly", "PIL", "pandas", "IPython", "tensorboard"}
OTHERS = {"rich", "typer", "nats", "cryptography", "prometheus_client", "pooch", "requests"}
METHOD = "qafel.method('qafel', client_quantizer='top_k:0.1', server_quantizer='rotated:4')"

STEP = "s.server_rule.step_(s.model, qafel.Direction(numpy.ones(9, 'f4')))"


def loaded_by(code):
    """The packages that a new process holds once it has run `code`."""
    asked = f"import json, sys\n{code}\nprint(json.dumps(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True, timeout=550)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_the_package_loads_nothing_heavy():
    assert loaded_by("import qafel") & (COMPUTING | SHOWING | OTHERS) == set()


def test_no_room_computes_or_draws_before_it_is_asked_to():
    rooms = [
        "theory",
        "report",
        "watch",
        "simulator",
        "deployment",
        "search",
        "bench",
        "cli",
    ]
    assert loaded_by("\n".join(f"import qafel.{room}" for room in rooms)) & (COMPUTING | SHOWING) == set()


def test_what_touches_no_coordinate_needs_no_numba():
    uses = ["import qafel", "qafel.quantizer('qsgd:4').payload_bytes(1000)", METHOD, "qafel.Mushrooms(clients=10)"]
    assert "numba" not in loaded_by("\n".join(uses))


@pytest.mark.parametrize(
    "use",
    [
        "qafel.quantizer('qsgd:4').encode(numpy.ones(9, 'f4'), qafel.Stream.named(0, 'any'))",
        f"s = qafel.Server(numpy.zeros(9, 'f4'), {METHOD}, 0)\n{STEP}",
        "qafel.Mushrooms(clients=10).evaluate(numpy.zeros(113, 'f4'))",
    ],
)
def test_numba_loads_when_a_kernel_is_used(use):
    assert "numba" in loaded_by(f"import numpy, qafel\n{use}")


def test_partitions_and_samples_are_public_without_torch_and_torch_loads_with_its_task():
    assert "torch" not in loaded_by("from qafel import *\nArraySamples, Partition, split('iid', [0, 1, 0, 1], 2)")
    assert "torch" in loaded_by("from qafel import TorchTask")


WITHOUT_TORCH = """
import sys, qafel
sys.modules["torch"] = None
try:
    qafel.TorchTask
except qafel.errors.ConfigError as error:
    print(error)
"""


def test_without_torch_its_task_is_refused_in_a_sentence():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=True, timeout=550
    )
    assert done.stdout == "a neural task needs PyTorch: pip install 'qafel[torch]'\n"
