"""Another floating-point mode gives another x̂, and is refused in a sentence instead."""

from __future__ import annotations

import ctypes
import ctypes.util
import subprocess
import sys

import numpy as np
import pytest

from qafel.algorithm import HiddenState
from qafel.errors import FloatingPointMode
from qafel.params import check_arithmetic

FLUSH = """
import sys
import numpy as np
import torch

x = np.full(8, 3e-39, np.float32)
assert (x * np.float32(0.5)).any()
if not torch.set_flush_denormal(True):
    sys.exit(77)
assert not (x * np.float32(0.5)).any(), "the mode that was asked for"
"""


REFUSED = """
from qafel.algorithm import HiddenState
from qafel.cli import main
from qafel.errors import FloatingPointMode

try:
    HiddenState.of(x)
except FloatingPointMode as error:
    print(error)
sys.argv = ["qafel", "run", "mushrooms-qafel-topk"]
main()
"""


@pytest.fixture(scope="module")
def flushed(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """A process that makes a hidden state and a run after subnormal numbers are flushed to zero."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("flushed")
    finished = subprocess.run(
        [sys.executable, "-c", FLUSH + REFUSED], cwd=folder, capture_output=True, text=True, timeout=550, check=False
    )
    if finished.returncode == 77:
        pytest.skip("this CPU cannot flush subnormal numbers")
    return finished


def test_flushing_subnormal_numbers_is_refused_where_a_hidden_state_is_made(
    flushed: subprocess.CompletedProcess[str],
) -> None:
    assert "this process flushes subnormal numbers to zero" in flushed.stdout


def test_a_run_ends_with_one_sentence(flushed: subprocess.CompletedProcess[str]) -> None:
    assert flushed.returncode == 2
    assert "flushes subnormal numbers" in " ".join(flushed.stderr.split())
    assert "Traceback" not in flushed.stderr


def test_the_default_mode_passes() -> None:
    check_arithmetic()
    assert HiddenState.of(np.full(4, 3e-39, np.float32)).version == 0


@pytest.mark.skipif(sys.platform != "linux", reason="the constants of fesetround are those of x86-64 and glibc")
@pytest.mark.parametrize("mode", [0x400, 0x800, 0xC00])
def test_another_rounding_mode_is_refused(mode: int) -> None:
    libm = ctypes.CDLL(ctypes.util.find_library("m"))
    if libm.fesetround(mode) != 0:
        pytest.skip("this CPU has no such rounding mode")
    try:
        with pytest.raises(FloatingPointMode, match="round to the nearest"):
            check_arithmetic()
    finally:
        libm.fesetround(0)
