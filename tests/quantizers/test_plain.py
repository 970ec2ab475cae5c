"""The kernels in NumPy give the bits of the compiled ones, to encode and to decode, and refuse what those refuse."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from qafel.algorithm.server_rules import step_in_numpy, step_kernel
from qafel.errors import ConfigError, MalformedPayload, NonFiniteVector
from qafel.params import Vector
from qafel.quantizers import Quantizer, kernels, parse, plain, threads
from qafel.quantizers.plain import levels, rotated
from tests.quantizers.specs import CELEBA, every_spec, same_bits, stream, vectors

ROOT = Path(__file__).parents[2]
PLAIN = {"levels": levels, "rotated": rotated, "shared": plain, "sparse": levels, "windows": rotated}
SIZES = (1, 3, 33, 511, 513, 1100)


def take_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module in PLAIN.items():
        monkeypatch.setattr(kernels, name, module)


def added(quantizer: Quantizer, payload: bytes, size: int, weight: float) -> Vector:
    target = vectors(size)["gaussian"]
    quantizer.add_decoded_(target, payload, weight)
    return target


@every_spec
@pytest.mark.filterwarnings("error")
def test_numpy_encodes_and_decodes_to_the_bits_of_the_compiled_kernels(
    spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [(vector, size) for size in SIZES for vector in vectors(size).values()]
    cases += [(vectors(9000)[name], 9000) for name in ("gaussian", "mixed scales")]
    cases.append((vectors(CELEBA.size)["gaussian"], CELEBA.size))
    require_equal_bits(spec, cases, monkeypatch)


@pytest.mark.slow
@every_spec
@pytest.mark.filterwarnings("error")
def test_numpy_gives_these_bits_for_long_vectors_of_every_kind(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    require_equal_bits(spec, [(vector, 9000) for vector in vectors(9000).values()], monkeypatch)


def require_equal_bits(spec: str, cases: list[tuple[Vector, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for vector, size in cases:
        quantizer = parse(spec, CELEBA if size == CELEBA.size else None)
        payload = bytes(quantizer.encode(vector, stream()))
        found = (
            quantizer.decode(payload, size),
            added(quantizer, payload, size, 1.0),
            added(quantizer, payload, size, 0.3),
        )
        made.append((quantizer, payload, found))
    take_plain(monkeypatch)
    for (vector, size), (quantizer, payload, found) in zip(cases, made, strict=True):
        assert bytes(quantizer.encode(vector, stream())) == payload
        again = (
            quantizer.decode(payload, size),
            added(quantizer, payload, size, 1.0),
            added(quantizer, payload, size, 0.3),
        )
        assert all(map(same_bits, found, again)), (spec, size)


def test_the_sign_of_a_zero_is_the_same_in_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [np.array(zeros, np.float32) for zeros in ((0.0, -0.0), (-0.0, 0.0), (0.0, -0.0, -0.0))]
    found = [parse("affine:4").encode(zeros, stream()) for zeros in cases]
    take_plain(monkeypatch)
    assert [parse("affine:4").encode(zeros, stream()) for zeros in cases] == found


@pytest.mark.parametrize("spec", ["qsgd:4", "qsgd:5", "sign", "dithered:4", "rotated:3", "none"])
def test_a_large_vector_on_threads_gives_the_same_bits_in_numpy(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    size, quantizer = (1 << 19) + 777, parse(spec)
    vector = vectors(size)["gaussian"]
    payload = bytes(quantizer.encode(vector, stream()))
    decoded = quantizer.decode(payload, size)
    take_plain(monkeypatch)
    with threads(2):
        assert bytes(quantizer.encode(vector, stream())) == payload
        assert same_bits(quantizer.decode(payload, size), decoded)


def refused(quantizer: Quantizer, payload: bytes, size: int) -> bool:
    target = np.ones(size, np.float32)
    try:
        quantizer.add_decoded_(target, payload)
    except MalformedPayload:
        assert (target == 1).all()
        return True
    return False


@pytest.mark.parametrize("spec", ["qsgd:4", "qsgd:3", "qsgd:levels=100,bucket=32", "sign", "dithered:4", "rotated:4",
                                  "affine:3", "top_k:0.1", "top_k:0.5", "rand_k:0.1", "none"])  # fmt: skip
def test_numpy_refuses_exactly_what_the_compiled_kernels_refuse(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quantizer, size, generator = parse(spec), 333, np.random.default_rng(5)
    payload = bytes(quantizer.encode(vectors(size)["gaussian"], stream()))
    damaged = []
    for _ in range(300):
        mutant = bytearray(payload)
        for _ in range(generator.integers(1, 4)):
            mutant[generator.integers(len(mutant))] = generator.choice([0, 255, 127, generator.integers(256)])
        damaged.append(bytes(mutant))
    found = [refused(quantizer, mutant, size) for mutant in damaged]
    take_plain(monkeypatch)
    assert [refused(quantizer, mutant, size) for mutant in damaged] == found
    for bad in (np.nan, np.inf):
        with pytest.raises(NonFiniteVector):
            quantizer.encode(np.full(size, bad, np.float32), stream())


@pytest.mark.parametrize("kept", [(0, 0, 0), (500, 0, 0), (500, 500, 0), (0, 0, 500), (500, 500, 500)])
def test_the_servers_step_has_the_same_bits_in_numpy(kept: tuple[int, int, int]) -> None:
    generator = np.random.default_rng(1)
    vectors = [generator.standard_normal(n, dtype=np.float32) for n in (500, 500, *kept)]
    model, total, memory, velocity, rounded = vectors
    for mixed in (0.0, 3.0):
        found = []
        for one in (step_kernel(), step_in_numpy):
            following, moved, lost = np.empty(500, np.float32), velocity.copy(), rounded * np.float32(1e-8)
            numbers = np.float32(mixed), np.float32(7.0)
            one(following, model, total, *numbers, memory, moved, np.float32(0.9), np.float32(0.1), lost)
            found.append((following, moved, lost))
        assert all(map(same_bits, *found)), mixed


WITHOUT = """
import sys
import numpy as np
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numba", "llvmlite", "matplotlib", "plotly"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hidden())
"""


def test_without_numba_every_quantizer_and_a_server_work_and_golden_frames_hold() -> None:
    code = (
        WITHOUT + "from tests.quantizers.golden import faults, read\nprint(sum(len(faults(each)) for each in read()))"
    )
    code += "\nimport qafel\nqafel.Server(np.zeros(9, 'f4'), qafel.method('qafel'), 0)\nprint('numba' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.stdout.split() == ["0", "False"], done.stderr


def test_the_environment_chooses_the_kernels_or_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kernels.CHOICE, "numpy")
    assert not kernels.are_compiled()
    monkeypatch.setenv(kernels.CHOICE, "numba")
    assert kernels.are_compiled()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="Numba"):
        kernels.are_compiled()
    monkeypatch.setenv(kernels.CHOICE, "fortran")
    with pytest.raises(ConfigError, match="fortran"):
        kernels.are_compiled()
