"""The document is made of finished runs, and says first what is missing."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from qafel.errors import DataError
from qafel.search import perform
from reproduction import document
from reproduction.comparison import EntryRuns
from reproduction.document import EXPERIMENTS, write_document
from reproduction.entries import ENTRIES
from reproduction.entry import Request
from reproduction.store import Store

QUICK = Request(seeds=1, quick=True, only=("*-p[48]-*",))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Pages about two experiments: one of two runs of the first is finished, and none of the second."""
    folder = tmp_path_factory.mktemp("made")
    experiments = (("local-steps", QUICK), ("methods", Request(family="celeba-part")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(document, "EXPERIMENTS", experiments)
        run = QUICK.all_runs({"local-steps": ENTRIES["local-steps"]})[0]
        perform(run.config, folder / "out/runs" / run.folder)
        found = write_document(ENTRIES, folder / "out", Store(folder / "out/runs"), folder / "docs/reproduction.md")
        yield found, folder / "docs"


def read(folder, name):
    return (folder / name).read_text(encoding="utf-8")


def test_the_summary_lists_missing_runs(made):
    text = read(made[1], "reproduction.md")
    assert "--only '*-p[48]-*'`: 1 of 2 runs" in text
    assert "`python -m reproduction methods --family celeba-part`: 15 of 15 runs" in text
    assert "none of its 15 runs is finished" in read(made[1], "reproduction-details.md")


def test_the_summary_has_the_key_claims_and_the_verdicts_of_each_experiment(made):
    found, folder = made
    text = read(folder, "reproduction.md")
    rows = re.findall(r"^\| (.+) \| .+ \| \[.+\]\(reproduction-details.md#([\w-]+)\): \*\*(.+)\*\* \|$", text, re.M)
    key = [(claim.text, one.name) for one in found for claim in one.entry.claims if claim.key]
    assert [(claim, place) for claim, place, _ in rows] == key
    assert [result for *_, result in rows] == ["not comparable"] * 2 + ["not run"] * 3
    assert "| all |  | 0 | 0 | 0 | 0 | 2 | 6 |" in text


def test_the_details_have_every_claim_that_was_judged(made):
    found, folder = made
    text = read(folder, "reproduction-details.md")
    for one in found:
        assert f'<a id="{one.name}"></a>' in text
    for claim in found[0].entry.claims:
        assert f"| {claim.text} ({claim.where}) | **not comparable** |" in text


def test_a_claim_of_several_experiments_is_one_row(tmp_path, monkeypatch):
    families = ("celeba-part", "shakespeare-small")
    methods = [("methods", Request(family=family)) for family in families]
    monkeypatch.setattr(document, "EXPERIMENTS", (("local-steps", QUICK), *methods))
    run = QUICK.all_runs({"local-steps": ENTRIES["local-steps"]})[0]
    perform(run.config, tmp_path / "runs" / run.folder)
    write_document(ENTRIES, tmp_path, Store(tmp_path / "runs"), tmp_path / "reproduction.md")
    link = "[methods-{0}](reproduction-details.md#methods-{0}): **not run**"
    both = "<br>".join(link.format(family) for family in families)
    key = [claim for claim in ENTRIES["methods"].claims if claim.key]
    assert read(tmp_path, "reproduction.md").count(f"| {both} |") == len(key) > 0


def test_a_damaged_run_is_named_and_nothing_is_written(made, tmp_path):
    text = read(made[1], "reproduction.md")
    store = Store(shutil.copytree(made[1].parent / "out/runs", tmp_path / "out/runs"))
    rows = next(store.runs.glob("*/metrics.jsonl"))
    rows.write_bytes(rows.read_bytes()[:-40] + b"{\n")
    with pytest.raises(DataError, match="damaged"):
        write_document(ENTRIES, tmp_path / "out", store, made[1] / "reproduction.md")
    with pytest.raises(DataError, match="finished"):
        write_document(ENTRIES, tmp_path, Store(tmp_path / "elsewhere"), made[1] / "reproduction.md")
    assert read(made[1], "reproduction.md") == text


def test_a_script_gets_every_experiment_with_its_verdicts(made):
    first, second = (one.to_json() for one in made[0])
    assert (first["name"], first["runs"], first["missing"]) == ("local-steps-quick", 2, 1)
    assert (second["command"], second["missing"]) == ("python -m reproduction methods --family celeba-part", 15)
    assert [claim["verdict"] for claim in second["verdicts"]] == ["not run"] * len(ENTRIES["methods"].claims)


def test_versions_figures_and_settings_are_in_the_details(made):
    text = read(made[1], "reproduction-details.md")
    assert "| 1 | qafel " in text
    linked = re.findall(r"\]\((images/[^)]+)\)", text)
    assert linked == ["images/paper/local-steps-quick.png"]
    assert (made[1] / linked[0]).stat().st_size
    assert "local_steps = 4" in text


def test_the_document_is_about_every_entry():
    assert {name for name, _ in EXPERIMENTS} == set(ENTRIES)


def test_the_committed_pages_are_those_of_the_stored_runs():
    """Without the runs of `rate`, which are not stored: their sections are left out of the comparison."""
    root = Path(__file__).parents[2]
    store = Store(root / "nowhere", root / "reproduction/results")
    text = read(root, "docs/reproduction-details.md")
    for name, request in EXPERIMENTS:
        planned = request.all_runs({name: ENTRIES[name]})
        if name != "rate" and (pairs := store.load(planned)):
            found = EntryRuns(tuple(pairs), cut=request.uploads is not None)
            for claim in ENTRIES[name].claims:
                verdict = claim.verdict(found)
                assert f"| {claim.text} ({claim.where}) | **{verdict.result}** | {verdict.because} |" in text
