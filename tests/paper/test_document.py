"""The document is made of finished runs, and says first what is missing."""

from __future__ import annotations

import re

import pytest

from qafel.errors import DataError
from qafel.paper import ENTRIES, Request, document
from qafel.paper.document import EXPERIMENTS, write_document
from qafel.search.runner import perform

QUICK = Request(seeds=1, quick=True, only=("*-p[48]-*",))


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A document of two experiments, of which one has a run of its two, and the other none."""
    monkeypatch.setattr(document, "EXPERIMENTS", (("local-steps", QUICK), ("methods", Request(family="celeba-part"))))
    run = QUICK.all_runs({"local-steps": ENTRIES["local-steps"]})[0]
    perform(run.config, tmp_path / "out/runs" / run.folder)
    found = write_document(ENTRIES, tmp_path / "out", tmp_path / "docs/reproduction.md")
    return found, (tmp_path / "docs/reproduction.md").read_text(encoding="utf-8"), tmp_path / "docs"


def test_what_is_missing_stands_above_all_verdicts(made):
    _, text, _ = made
    gaps = text.index("**What is missing.**")
    assert gaps < text.index("## Claims") < text.index("## The number of local steps P")
    assert "--only '*-p[48]-*'`: 1 of 2 runs" in text
    assert "`qafel paper methods --family celeba-part`: 15 of 15 runs" in text
    assert "Not run: none of its 15 runs is finished." in text


def test_every_claim_is_in_the_first_table_with_its_verdict(made):
    found, text, _ = made
    rows = re.findall(r"^\| (.+) \| .+ \| \[.+\]\(#([\w-]+)\): \*\*(.+)\*\* \|$", text, re.MULTILINE)
    claims = [(claim.text, one.name) for one in found for claim in one.entry.claims]
    assert [(claim, place) for claim, place, _ in rows] == claims
    assert [result for *_, result in rows] == ["not comparable"] * 2 + ["not run"] * 6
    assert "Verdicts: 6 not run, 2 not comparable." in text
    for one in found:
        assert f'<a id="{one.name}"></a>' in text


def test_a_claim_of_several_experiments_is_one_row(tmp_path, monkeypatch):
    families = ("celeba-part", "shakespeare-small")
    methods = [("methods", Request(family=family)) for family in families]
    monkeypatch.setattr(document, "EXPERIMENTS", (("local-steps", QUICK), *methods))
    run = QUICK.all_runs({"local-steps": ENTRIES["local-steps"]})[0]
    perform(run.config, tmp_path / "out/runs" / run.folder)
    write_document(ENTRIES, tmp_path / "out", tmp_path / "reproduction.md")
    text = (tmp_path / "reproduction.md").read_text(encoding="utf-8")
    both = ", ".join(f"[methods-{family}](#methods-{family}): **not run**" for family in families)
    assert text.count(f"| {both} |") == len(ENTRIES["methods"].claims)


def test_a_damaged_run_is_named_and_what_is_written_stays(made, tmp_path):
    _, text, folder = made
    rows = next((tmp_path / "out/runs").glob("*/metrics.jsonl"))
    rows.write_bytes(rows.read_bytes()[:-40] + b"{\n")
    with pytest.raises(DataError, match=r"metrics\.jsonl is damaged"):
        write_document(ENTRIES, tmp_path / "out", folder / "reproduction.md")
    with pytest.raises(DataError, match="no run is finished"):
        write_document(ENTRIES, tmp_path / "elsewhere", folder / "reproduction.md")
    assert (folder / "reproduction.md").read_text(encoding="utf-8") == text


def test_a_script_gets_every_experiment_with_its_verdicts(made):
    first, second = (one.listed() for one in made[0])
    assert (first["name"], first["runs"], first["missing"]) == ("local-steps-quick", 2, 1)
    assert (second["command"], second["missing"]) == ("qafel paper methods --family celeba-part", 15)
    assert [claim["verdict"] for claim in second["verdicts"]] == ["not run"] * len(ENTRIES["methods"].claims)


def test_versions_and_machines_stand_once_at_the_top(made):
    _, text, folder = made
    assert text.count("with qafel ") == 1
    assert text.index("**Made with.** 1 runs: 1 with qafel ") < text.index("## Claims")
    assert "Made with qafel " in (folder / "reproduction/local-steps-quick.md").read_text(encoding="utf-8")


def test_links_lead_to_figures_and_settings(made):
    _, text, folder = made
    linked = re.findall(r"\]\(((?:images|reproduction)/[^)]+)\)", text)
    assert linked == ["images/paper/local-steps-quick.png", "reproduction/local-steps-quick.md"]
    assert all((folder / name).stat().st_size for name in linked)
    assert "local_steps = 4" in (folder / linked[1]).read_text(encoding="utf-8")
    assert "<details>" not in text


def test_the_document_is_about_every_entry():
    assert {name for name, _ in EXPERIMENTS} == set(ENTRIES)
