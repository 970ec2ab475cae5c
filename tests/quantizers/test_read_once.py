"""The text of a quantizer is read once in a command, though several of its steps need the quantizer."""

from unittest import mock

import pytest

from qafel.params import Layout
from qafel.quantizers import Affine, Zstd, parse, spec
from tests.command import qafel_here

QUICK = ("--quiet", "--set", "stop.server_steps=2")


@pytest.mark.parametrize(
    "command",
    [
        ("run", "mushrooms-qafel-4bit", *QUICK),
        pytest.param(("sweep", "mushrooms-qafel-4bit", *QUICK, "--seeds", "1", "--workers", 1), marks=pytest.mark.slow),
    ],
)
def test_a_command_reads_the_text_of_each_quantizer_once(command, tmp_path):
    spec._read.cache_clear()
    read = []

    def arguments(family, rest, original=spec._arguments):
        read.append(f"{family.NAME}:{rest}")
        return original(family, rest)

    with mock.patch.object(spec, "_arguments", arguments):
        qafel_here(*command, "--set", "algorithm.client_quantizer=qsgd:3", "--out", tmp_path / "out")
    assert read.count("qsgd:3") == 1
    assert len(read) == len(set(read))


def test_a_text_that_was_read_before_takes_the_layout_of_another_model():
    layout = Layout.of({"weight": (4, 3), "bias": (4,)})
    assert parse("affine:4") == Affine(4)
    assert parse("affine:4", layout) == Affine(4, layout)
    assert parse("affine:4+zstd", layout) == Zstd(Affine(4, layout))
    assert parse("affine:4+zstd") == Zstd(Affine(4))
