"""x̂ is the same on every CPU: golden frames, read by kernels for other CPUs and by an independent decoder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from llvmlite import binding

from qafel.algorithm import Message
from qafel.quantizers.spec import _BY_ID
from tests.quantizers import decoder
from tests.quantizers.golden import WEIGHT, cases, digest, faults, make, read, vector

ROOT = Path(__file__).parents[2]
GOLDEN = read()
HOST = binding.get_host_cpu_features()

_X86_64 = "+sse,+sse2,+cx8,+fxsr"
CPUS = {
    "generic": ("generic", ""),
    "with FMA": ("generic", f"{_X86_64},+avx,+avx2,+fma"),
}


def test_every_codec_has_golden_frames() -> None:
    assert [(golden.spec, golden.values, golden.size) for golden in GOLDEN] == list(cases())
    assert {Message.from_bytes(golden.frame).codec[0] for golden in GOLDEN} == set(_BY_ID)


def test_kernels_for_this_cpu_make_what_the_golden_frames_say() -> None:
    assert [fault for golden in GOLDEN for fault in faults(golden)] == []


def test_an_independent_decoder_makes_what_the_golden_frames_say() -> None:
    for golden in GOLDEN:
        message = Message.from_bytes(golden.frame)
        codec, payload, shapes = message.codec, bytes(message.payload), golden.shapes
        assert digest(decoder.decode(codec, payload, golden.size, shapes)) == golden.decoded, golden
        target = vector("mixed", golden.size, key=2)
        assert digest(decoder.added(target, codec, payload, 1.0, shapes)) == golden.added, golden
        assert digest(decoder.added(target, codec, payload, WEIGHT, shapes)) == golden.weighted, golden


def test_golden_frames_would_notice_a_fused_multiply_and_add() -> None:
    """x̂ + 0.3·q with one rounding instead of two is another x̂."""
    for spec in ("qsgd:4", "dithered:4", "rotated:4", "affine:4", "rand_k:0.7", "none"):
        golden = next(g for g in GOLDEN if (g.spec, g.values, g.size) == (spec, "mixed", 520))
        message = Message.from_bytes(golden.frame)
        values = decoder.decode(message.codec, bytes(message.payload), golden.size).astype(np.float64)
        fused = vector("mixed", golden.size, key=2) + np.float64(np.float32(WEIGHT)) * values
        assert digest(fused.astype(np.float32)) != golden.weighted, spec


def test_golden_frames_would_notice_flushed_subnormal_numbers() -> None:
    for golden in (g for g in GOLDEN if g.values == "subnormal"):
        message = Message.from_bytes(golden.frame)
        values = decoder.decode(message.codec, bytes(message.payload), golden.size)
        subnormal = (values != 0) & (np.abs(values) < np.finfo(np.float32).tiny)
        assert subnormal.any(), golden.spec


def test_a_golden_frame_that_differs_is_found() -> None:
    golden = make("qsgd:4", "mixed", 113)
    assert faults(golden) == []
    assert faults(golden._replace(decoded="0" * 16)) == ["qsgd:4, mixed, 113: decoded differs"]
    assert faults(golden._replace(values="subnormal")) == ["qsgd:4, subnormal, 113: encoded differs"]


@pytest.mark.slow
@pytest.mark.parametrize("cpu", CPUS)
def test_kernels_for_another_cpu_make_what_the_golden_frames_say(cpu: str, tmp_path: Path) -> None:
    """Compiles again for that CPU, with an empty cache: some 20 s."""
    if "FMA" in cpu and not HOST.get("fma"):
        pytest.skip("this CPU has no FMA to turn on or off")
    name, features = CPUS[cpu]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
        "NUMBA_CPU_NAME": name,
        "NUMBA_CPU_FEATURES": features,
        "NUMBA_CACHE_DIR": str(tmp_path),
    }
    command = [sys.executable, "-m", "tests.quantizers.golden"]
    finished = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert any(tmp_path.rglob("*.nbi")), "nothing was compiled for that CPU"
