"""The script that compares the trajectories of two versions runs its cases and finds a change."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts/trajectories.py"
pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="not in a source tree")


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("trajectories", SCRIPT)
    module = sys.modules["trajectories"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["trajectories"]


@pytest.mark.slow
def test_a_case_has_two_hashes_and_a_changed_one_is_found(script, tmp_path, capsys):
    one, file = ["--only", "^variant/median$", "--jobs", "1"], tmp_path / "base.txt"
    assert script.main([*one, "--out", str(file)]) == 0
    case, seed, model, hidden_state = file.read_text().split()
    assert (case, seed, len(model), len(hidden_state)) == ("variant/median", "0", 64, 64)
    file.write_text(f"{case} {seed} {model} {64 * '0'}\nvariant/momentum 0 {model} {model}\n")
    capsys.readouterr()
    assert script.main([*one, "--compare", str(file)]) == 1
    differing = [line for line in capsys.readouterr().out.splitlines() if line.startswith("differs")]
    assert len(differing) == 1  # momentum was not asked for
    assert "variant/median" in differing[0]
    assert "hidden state" in differing[0]
    assert "model" not in differing[0]


def test_a_case_that_gave_no_hashes_differs(script):
    assert script.difference("a b", None) == "missing"
    assert script.difference("a b", "a b") is None


def test_settings_have_the_names_of_the_version(script):
    renamed = {"algorithm.preset": "algorithm.method", "a.b=median": "a.part={{name='{}'}}"}
    version = script.Version("python", Path(), renamed)
    settings = {"algorithm.preset": "mcm", "a.b": "median", "a.c": 1}
    assert version.settings(settings) == ["algorithm.method=mcm", "a.part={name='median'}", "a.c=1"]
    assert script.Version("python", Path()).settings(settings)[0] == "algorithm.preset=mcm"


def test_a_recipe_that_a_version_lacks_is_composed(script):
    case = script.Case("x", "cifar10-qafel-c100", {"timing.arrivals": "rounds"})
    composed = script.Version("python", Path(), composed=script.COMPOSED).translated(case)
    assert composed.recipe == "cifar10-qafel"
    assert composed.settings == {"timing.rate": 125.0, "timing.arrivals": "rounds"}
    assert script.Version("python", Path()).translated(case) == case


@pytest.mark.slow
def test_a_recorded_deployment_gives_its_hashes_again_from_its_journal_and_from_its_uploads(script, tmp_path):
    pytest.importorskip("nats")
    only = ["--only", "^deployed-.*/qafel$"]
    assert script.main([*only, "--record", str(tmp_path / "deployments")]) == 0
    assert script.main([*only, "--deployments", str(tmp_path / "deployments"), "--out", str(tmp_path / "out")]) == 0
    summary = json.loads((tmp_path / "deployments/qafel/run/summary.json").read_text())
    hashes = f"{summary['model_sha256']} {summary['hidden_state_sha256']}"
    assert script.read_lines((tmp_path / "out").read_text()) == {
        "deployed-journal/qafel 0": hashes,
        "deployed-uploads/qafel 0": hashes,
    }
