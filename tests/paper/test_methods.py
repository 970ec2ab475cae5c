"""All methods on a network: targets that were made before, and claims from runs made up to pass or to fail them."""

from __future__ import annotations

from pathlib import Path

import pytest

from qafel.paper import ENTRIES
from qafel.paper.entry import Extent
from qafel.paper.kept import take_back
from qafel.paper.methods import METHODS, PILOTS, made_target
from qafel.runs.reading import Run

RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.parametrize("family", PILOTS)
def test_a_parts_target_is_what_fedbuff_reached_with_another_seed_less_a_point(family, tmp_path):
    pilot = next(run for run in ENTRIES["targets"].plan(Extent()) if run.method == family)
    take_back([pilot], tmp_path, RESULTS)
    runs = ENTRIES["methods"].plan(Extent(family=family))
    assert {run.config.evaluation.target for run in runs} == {made_target(Run.load(tmp_path / pilot.folder))}
    assert pilot.config.seed not in {run.config.seed for run in runs}
    assert {run.method for run in runs} == set(METHODS)
