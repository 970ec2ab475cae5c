"""What is exported exists, and what packages say they hold is there."""

import importlib

import pytest

PACKAGES = [
    "qafel",
    "qafel.algorithm",
    "qafel.quantizers",
    "qafel.simulator",
    "qafel.tasks",
    "qafel.theory",
    "qafel.tuning",
]


@pytest.mark.parametrize("name", PACKAGES)
def test_all_names_exist_and_are_sorted(name):
    package = importlib.import_module(name)
    assert all(getattr(package, exported) is not None for exported in package.__all__)
    assert len(set(package.__all__)) == len(package.__all__)


@pytest.mark.parametrize("name", PACKAGES[1:])
def test_a_package_says_what_lives_in_it(name):
    assert len((importlib.import_module(name).__doc__ or "").splitlines()) > 3
