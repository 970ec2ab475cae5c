"""The published configurations are those of the stored and published runs, setting by setting."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from qafel.config import load_recipe, recipes
from reproduction.published import PUBLISHED, RATES, load_published

HASHES = json.loads((Path(__file__).parent / "published.json").read_text(encoding="utf-8"))
"""Of each configuration when it was a recipe file of its own."""


def digest(config) -> str:
    """The hash of a resolved configuration: its name and all settings, without the description."""
    settings = config.model_dump(mode="json", exclude={"description"}, exclude_none=True)
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def test_a_composed_configuration_is_the_former_recipe():
    assert {name: digest(load_published(name)) for name in HASHES} == HASHES


def test_every_published_name_has_a_hash():
    others = {name for name in recipes() if name.startswith(("quadratic", "logistic"))}
    assert set(PUBLISHED) | others == set(HASHES)


def test_a_published_rate_is_a_rounded_concurrency():
    for concurrency, rate in RATES.items():
        exact = load_recipe("cifar10-fedbuff", [f"timing.concurrency={concurrency}"]).timing.rate
        assert rate == pytest.approx(exact, rel=3e-3)
        assert rate != exact


def test_there_are_few_recipes():
    assert len(recipes()) <= 25
