"""What is released: wheel and source distribution hold what they should, run in a clean place, and all dates agree."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from qafel.version import __version__

ROOT = Path(__file__).parent.parent
CACHES = {".pyc", ".nbi", ".nbc"}
COPIED = ("CHANGELOG.md", "CITATION.cff", "LICENSE", "MANIFEST.in", "Makefile", "README.md", "pyproject.toml")
"""And the folders src, scripts and tests: enough to see what would be taken along by mistake."""

pytestmark = pytest.mark.skipif(not (ROOT / "pyproject.toml").exists(), reason="not in a source tree")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The source distribution of this tree, and the wheel that is built from it; without a network."""
    folder = tmp_path_factory.mktemp("release")
    tree = folder / "tree"
    for name in ("src", "scripts", "tests"):
        ignored = shutil.ignore_patterns("*.egg-info", "__pycache__", "*.nbi", "*.nbc")
        shutil.copytree(ROOT / name, tree / name, ignore=ignored)
    for name in COPIED:
        shutil.copy(ROOT / name, tree / name)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", tree]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    (wheel,), (source,) = (folder / "dist").glob("*.whl"), (folder / "dist").glob("*.tar.gz")
    return wheel, source


def package_files():
    """All files of the package, but for what Python and Numba keep."""
    files = (path for path in (ROOT / "src/qafel").rglob("*") if path.is_file() and path.suffix not in CACHES)
    return {f"qafel/{path.relative_to(ROOT / 'src/qafel').as_posix()}" for path in files}


def test_the_wheel_holds_the_package_with_its_data_and_nothing_else(built):
    wheel, _ = built
    names = set(zipfile.ZipFile(wheel).namelist())
    about = f"qafel-{__version__}.dist-info/"
    assert {name for name in names if not name.startswith(about)} == package_files()
    assert f"{about}licenses/LICENSE" in names
    for kind in ("recipes/*.toml", "tasks/data/*", "quantizers/kernels/*.json", "drawing/*.css", "drawing/*.js"):
        assert any(Path(name).match(f"qafel/{kind}") for name in names), kind


def test_the_source_distribution_holds_what_the_wheel_is_built_from(built):
    _, source = built
    top = f"qafel-{__version__}/"
    with tarfile.open(source) as archive:
        names = {member.name.removeprefix(top) for member in archive if member.isfile()}
    inside = {name.removeprefix("src/") for name in names if name.startswith("src/qafel/")}
    assert inside == package_files()
    beside = {name for name in names if not name.startswith("src/")}
    expected = {"CHANGELOG.md", "CITATION.cff", "LICENSE", "MANIFEST.in", "PKG-INFO", "README.md"}
    assert beside == expected | {"pyproject.toml", "setup.cfg"}


def test_the_metadata_names_every_python_that_the_workflow_tests(built):
    wheel, _ = built
    metadata = Parser().parsestr(zipfile.ZipFile(wheel).read(f"qafel-{__version__}.dist-info/METADATA").decode())
    found = {
        entry.rpartition(" ")[2]
        for entry in metadata.get_all("Classifier")
        if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", entry)
    }
    assert found == set(workflow()["jobs"]["test"]["strategy"]["matrix"]["python"])
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata["License-Expression"] == "Apache-2.0"


@pytest.mark.slow
def test_the_wheel_runs_the_demo_where_nothing_else_of_this_tree_is(built, tmp_path):
    """The packages that it needs are those of this environment; qafel itself is the wheel's."""
    wheel, _ = built
    # Nothing of Python's settings: a path to this tree would hide the wheel from pip, too.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    venv.create(tmp_path / "clean", with_pip=False)
    python = tmp_path / "clean/bin/python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index"]
    subprocess.run([*pip, wheel], check=True, env=environment)
    library = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "clean")}))
    # A folder in a .pth file is searched, its own .pth files are not read: so no editable qafel comes with it.
    (library / "present.pth").write_text(sysconfig.get_path("purelib") + "\n")
    place = "import qafel, numpy; print(qafel.__file__)"
    options = {"cwd": tmp_path, "env": environment, "text": True, "timeout": 280}
    assert Path(subprocess.check_output([python, "-c", place], **options).strip()).is_relative_to(library)
    shown = subprocess.check_output([tmp_path / "clean/bin/qafel", "demo", "--out", "demo"], **options)
    assert "QAFeL" in shown
    assert (tmp_path / "demo/report.html").exists()


def workflow():
    return yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())


def test_the_workflow_runs_targets_that_the_makefile_has():
    makefile = (ROOT / "Makefile").read_text()
    steps = [step["run"] for job in workflow()["jobs"].values() for step in job["steps"] if "run" in step]
    asked = [found for step in steps for found in re.findall(r"\bmake ([a-z-]+)", step)]
    assert {"check", "test", "test-slow", "release-check", "notes"} == set(asked)
    for target in asked:
        assert re.search(rf"^{target}:.*##", makefile, re.MULTILINE), target


def test_every_action_is_pinned_by_commit_with_its_version_beside_it():
    used = re.findall(r"uses: (\S+)(.*)", (ROOT / ".github/workflows/ci.yml").read_text())
    assert used
    for action, comment in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), action


def test_a_release_attests_its_files_before_they_are_published():
    release = workflow()["jobs"]["release"]
    assert release["permissions"] == {"contents": "write", "id-token": "write", "attestations": "write"}
    steps = [step.get("uses", "") + step.get("run", "") for step in release["steps"]]
    attested = [number for number, step in enumerate(steps) if step.startswith("actions/attest-build-provenance@")]
    published = [number for number, step in enumerate(steps) if step.startswith("gh release create")]
    assert len(attested) == len(published) == 1
    assert attested < published
    assert release["steps"][attested[0]]["with"]["subject-path"] == "dist/*"


def pinned():
    """Name and version of each constraint."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found = dict(line.split("==") for line in lines if not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in found.items()}


def test_nothing_is_installed_without_the_constraints():
    asked = subprocess.check_output(
        ["make", "-n", "-B", "install", "demo", "docs", "release-check"], cwd=ROOT, text=True
    )
    installing = [line for line in asked.splitlines() if re.search(r"-m (pip|build)\b", line)]
    assert len(installing) == 6
    for line in installing:
        assert re.search(r" (-c|--dependency-constraints-txt) constraints\.txt", line), line
    assert {"build", "twine", "setuptools"} <= set(pinned())


def test_constraints_are_within_the_ranges_of_the_package_and_torch_has_a_range():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    asked = [Requirement(one) for one in [*project["dependencies"], *(one for extra in extras for one in extra)]]
    for requirement in asked:
        if requirement.name != "qafel":
            assert pinned()[canonicalize_name(requirement.name)] in requirement.specifier, requirement
    (torch,) = (requirement for requirement in asked if requirement.name == "torch")
    assert "2.12.1" in torch.specifier
    assert pinned()["torch"] == "2.13.0"


def test_what_comes_with_an_extra_has_no_known_hole():
    """MLflow brings Starlette, which we do not use: CVE-2026-54282 and 54283 are fixed in 1.3.1."""
    assert Version(pinned()["starlette"]) >= Version("1.3.1")


@pytest.mark.parametrize(
    ("schema", "file"),
    [
        ("vendor.github-workflows", ".github/workflows/ci.yml"),
        ("vendor.dependabot", ".github/dependabot.yml"),
        ("vendor.citation-file-format", "CITATION.cff"),
    ],
)
def test_files_that_only_others_read_follow_their_schemas(schema, file):
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, ROOT / file]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_every_hook_before_a_commit_is_a_program_of_this_environment():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    hooks = [hook for repository in config["repos"] for hook in repository["hooks"]]
    assert {repository["repo"] for repository in config["repos"]} == {"local"}  # nothing is downloaded
    for hook in hooks:
        program = hook["entry"].split()[0]
        assert program.startswith(".venv/bin/")
        assert (Path(sys.executable).parent / Path(program).name).exists(), program


def test_version_citation_and_changelog_agree():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    heading = r"^## (\d\S*) (?:– (\d{4}-\d\d-\d\d)|- unreleased)$"
    newest = re.search(heading, (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == citation["version"] == __version__
    assert newest[2] == (str(citation["date-released"]) if "date-released" in citation else None)


@pytest.fixture
def notes():
    spec = importlib.util.spec_from_file_location("release_notes", ROOT / "scripts/release_notes.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_release_notes_are_the_changelogs_section_with_lines_joined(notes):
    changelog = "## Unreleased\n\n## 1.2.0 – 2026-01-02\n\n### Added\n- one\n  line\n- two\n\n## 1.1.0 – 2025-01-02\n"
    assert notes.notes(changelog, "1.2.0") == "### Added\n- one line\n- two\n"
    with pytest.raises(SystemExit, match="has no section `## 1.3.0"):
        notes.notes(changelog, "1.3.0")
    assert notes.own_version() == __version__


def test_make_install_brings_every_extra():
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    asked = re.search(r"-e '\.\[([a-z,]*torch[a-z,]*)\]'", (ROOT / "Makefile").read_text())
    assert asked is not None
    assert set(asked[1].split(",")) >= extras - {"fast", "draw"}  # which `simulate` has
