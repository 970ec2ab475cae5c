"""Print hashes of the model and the hidden state after many kinds of runs, to compare two versions of the code.

    python scripts/trajectories.py --source BASE --record deployments
    python scripts/trajectories.py --source BASE --deployments deployments --out base.txt
    python scripts/trajectories.py --source HEAD --deployments deployments --compare base.txt

A line reads `case seed model_sha256 hidden_state_sha256`. Hashes depend on the machine and its libraries: run both
versions on one machine. The script uses the command line, so one copy of it runs both versions: `RENAMED` and
`COMPOSED` translate settings and recipes. Two places call Python and are marked below. `--record` runs servers and
clients over a real broker and keeps their journals and their uploads. Both are the input of the cases `deployed-…`.

Cases: `mushrooms/`, `quadratic/`, `logistic/`, `cifar10/`, `variant/`, `resumed/`, `killed/`, `processes/`,
`deployed-journal/`, `deployed-uploads/`. The fast ones are `--only '^(?!cifar10)'`.
`deployed-journal/` needs a recording by a version with the same journal format; `deployed-uploads/` does not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

# --- Names that depend on the version. Cases below use the oldest version's names. ---

OLD_MARK = 'preset = "'
"""`qafel recipes show` prints this in old versions. `RENAMED` applies to all others."""
RENAMED = {
    "algorithm.preset": "algorithm.method",
    "algorithm.direct_draw=start": "algorithm.catch_up=per-start",
    "algorithm.upload": "algorithm.client_rule",
    "algorithm.aggregation=mean": "algorithm.accumulator=memory-mean",
    "algorithm.aggregation": "algorithm.accumulator.name",
    "algorithm.buckets": "algorithm.accumulator.buckets",
    "algorithm.memory_rate": 'algorithm.downlink={{name="memory",rate={}}}',
    "algorithm.memory_rate=from-omega": "algorithm.downlink=memory",
    "algorithm.uplink_memory_rate": 'algorithm.client_rule={{name="memory",rate={}}}',
}
"""From `setting` or `setting=value` to its later name, with `{}` for the value where the form changes too."""
COMPOSED: dict[str, tuple[str, dict[str, object]]] = {
    **{
        f"cifar10-{name}-c100": (f"cifar10-{name}", {"timing.rate": 125.0}) for name in ("qafel", "fedbuff", "fedasync")
    },
    "cifar10-qafel-c100-trellis": (
        "cifar10-qafel",
        {
            "timing.rate": 125.0,
            "algorithm.client_quantizer": "trellis:0.75",
            "algorithm.server_quantizer": "trellis:1",
        },
    ),
}
"""From a recipe of the oldest version to a later recipe with settings, in versions without the old one."""
STEPS, UPLOADS, EVERY = "stop.server_steps", "stop.uploads", "evaluation.every"
METHOD, CLIENT_Q, SERVER_Q = "algorithm.preset", "algorithm.client_quantizer", "algorithm.server_quantizer"
SUMMARY, CHECKPOINT, HASHES = (
    "summary.json",
    "checkpoint/checkpoint.safetensors",
    ("model_sha256", "hidden_state_sha256"),
)
RUN = ("--track", "none", "--quiet")
SERVER = (*RUN, "--local-broker", "--keep-journal")
NO_DEFENCE = ("--max-norm-ratio", "0", "--max-norm", "0", "--max-weight", "0", "--max-share", "0")
"""Uploads then count as they were sent, and feeding them to a core server gives the same bits."""
STATE, STATE_CHECKPOINTS = "state", "state/checkpoint-*"
READ_JOURNAL = """
import sys
from pathlib import Path
from qafel.deployment.server.journal import read_journal
for frame in read_journal(Path(sys.argv[1])):
    print(frame.hex())
"""
"""Python, used by `--record` alone: prints the frames of the accepted uploads in order."""
FEED_UPLOADS = """
import hashlib, json, sys
from qafel.algorithm import Message, Server
from qafel.config import load_recipe
recipe, seed, uploads, *settings = sys.argv[1:]
config = load_recipe(recipe, settings, int(seed))
task = config.task.make()
compose = getattr(config.algorithm, "compose", None) or config.algorithm.wire
server = Server(config.initial_model(task), compose(task.layout), config.seed)
for line in open(uploads):
    accepted = server.receive(Message.from_bytes(bytes.fromhex(line)))
    if getattr(accepted, "batch", None) is not None:
        server.step(accepted.batch)
vectors = {"model": server.model, "hidden_state": server.hidden_state.vector}
print(json.dumps({name + "_sha256": hashlib.sha256(vector.tobytes()).hexdigest() for name, vector in vectors.items()}))
"""
"""Python: feeds recorded frames to a core server and prints its hashes."""

# --- Cases ---

MUSHROOMS = (
    "direct-qsgd", "direct-topk", "fedasync-direct", "fedasync-hidden", "fedasync", "fedavg", "fedbuff", "fedprox",
    "fedsgd", "mcm", "qafel-4bit", "qafel-qsgd", "qafel-topk",
)  # fmt: skip
QAFEL, FEDASYNC, DIRECT, FEDPROX, MCM = (
    f"mushrooms-{name}" for name in ("qafel-4bit", "fedasync", "direct-qsgd", "fedprox", "mcm")
)
UNQUANTIZED: dict[str, object] = {CLIENT_Q: "none", SERVER_Q: "none"}
ROUNDS: dict[str, object] = {"timing.arrivals": "rounds"}
METHODS: dict[str, dict[str, object]] = {
    "qafel": {},
    "fedbuff": UNQUANTIZED,
    "fedbuff-direct": {},
    "fedasync": {**UNQUANTIZED, "algorithm.buffer_size": 1},
    "fedasync-direct": {"algorithm.buffer_size": 1},
    "fedasync-hidden": {"algorithm.buffer_size": 1},
    "fedavg": {**UNQUANTIZED, **ROUNDS},
    "fedsgd": {**UNQUANTIZED, **ROUNDS},
    "fedprox": {**UNQUANTIZED, **ROUNDS, "timing.round_timeout": 1.5},
    "mcm": {CLIENT_Q: "qsgd:4", SERVER_Q: "qsgd:4", **ROUNDS},
}
"""What a recipe of QAFeL must also say to run each method."""
CIFAR10: dict[str, tuple[str, dict[str, object]]] = {
    **{name: ("cifar10-qafel-c100", {METHOD: name, **settings}) for name, settings in METHODS.items()},
    "fedasync": ("cifar10-fedasync-c100", {}),
    "fedasync-mixing": (
        "cifar10-fedbuff-c100",
        {METHOD: "fedasync", "algorithm.buffer_size": 1, "algorithm.server_lr": 0.02},
    ),
    "fedsgd": ('[task]\nname = "cifar10"\n', {METHOD: "fedsgd", **ROUNDS, "algorithm.client_lr": 0.1}),
    "mcm": (
        "cifar10-qafel-c100",
        {METHOD: "mcm", **METHODS["mcm"], "algorithm.aggregation": "mean", "algorithm.client_weights": "equal"},
    ),
    "trellis": ("cifar10-qafel-c100-trellis", {}),
}
VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    "snapshot-quantizer": (QAFEL, {"algorithm.catch_up": '{name="snapshot",quantizer="qsgd:4"}'}),
    "direct-drawn-at-start": (DIRECT, {"algorithm.direct_draw": "start"}),
    "fedasync-drawn-at-start": ("mushrooms-fedasync-direct", {"algorithm.direct_draw": "start"}),
    "median": (QAFEL, {"algorithm.aggregation": "median"}),
    "mixed-models": (QAFEL, {"algorithm.upload": "model"}),
    "median-of-models": (QAFEL, {"algorithm.upload": "model", "algorithm.aggregation": "median"}),
    "trimmed-mean": (QAFEL, {"algorithm.aggregation": "trimmed-mean", "algorithm.buckets": 5}),
    "weighted-mean": (QAFEL, {"algorithm.aggregation": "weighted-mean", "algorithm.client_weights": "samples"}),
    "weighted-by-staleness": (
        QAFEL,
        {
            "algorithm.aggregation": "weighted-mean",
            "algorithm.client_weights": "samples",
            "algorithm.staleness_exponent": 0.5,
        },
    ),
    "sum": (QAFEL, {"algorithm.aggregation": "sum", "algorithm.server_lr": 0.01}),
    "momentum": (QAFEL, {"algorithm.server_momentum": 0.9, "algorithm.server_lr": 0.01}),
    "momentum-of-median": (
        QAFEL,
        {"algorithm.server_momentum": 0.5, "algorithm.aggregation": "median", "algorithm.staleness_exponent": 0.5},
    ),
    "staleness-exponent": (QAFEL, {"algorithm.staleness_exponent": 0.5}),
    "staleness-cutoff": (QAFEL, {"algorithm.staleness_exponent": 1.0, "algorithm.staleness_cutoff": 5}),
    "max-staleness": (QAFEL, {"algorithm.max_staleness": 5}),
    "memory-rate": (MCM, {"algorithm.memory_rate": 0.5, "algorithm.uplink_memory_rate": 0.25}),
    "only-downlink-memory": (QAFEL, {"algorithm.memory_rate": "from-omega"}),
    "clip-and-decay": (QAFEL, {"algorithm.clip_norm": 0.05, "algorithm.weight_decay": 0.01, "algorithm.proximal": 0.1}),
    "trellis": (QAFEL, {CLIENT_Q: "trellis:1", SERVER_Q: "trellis:2,scale=least"}),
    "dropout": (QAFEL, {"timing.dropout": 0.2}),
    "poisson": (QAFEL, {"timing.arrivals": "poisson", "timing.max_concurrency": 40, "timing.speed_spread": 0.5}),
    "network": (
        QAFEL,
        {"timing.network.upload_rate": 500, "timing.network.download_rate": 2000, "timing.network.latency": 0.1},
    ),
    "network-and-snapshots": (
        QAFEL,
        {
            "timing.network.download_rate": 500,
            "algorithm.catch_up": '{name="snapshot",quantizer="qsgd:4"}',
            "timing.network.spread": 0.5,
        },
    ),
    "rounds-with-dropout": (
        "mushrooms-fedavg",
        {"timing.dropout": 0.2, "timing.over_selection": 0.5, "timing.round_timeout": 2},
    ),
    "rounds-with-partial-work": (FEDPROX, {"timing.round_timeout": 0.5, "timing.dropout": 0.2}),
    "mcm-with-timeout": (MCM, {"timing.round_timeout": 1.0, "timing.over_selection": 0.2}),
}
RESUMED = (
    "snapshot-quantizer", "direct-drawn-at-start", "median", "momentum", "memory-rate", "dropout",
    "network-and-snapshots", "rounds-with-partial-work",
)  # fmt: skip
HALF_UPLOADS = 1503
"""Half of a resumed run, with three updates in the buffer of ten."""
PROCESSES = ("snapshot-quantizer", "direct-drawn-at-start", "median", "memory-rate", "rounds-with-partial-work")
DEPLOYED: dict[str, tuple[str, dict[str, object]]] = {
    "qafel": (QAFEL, {"algorithm.server_momentum": 0.5, "algorithm.staleness_exponent": 0.5}),
    "median": (QAFEL, {"algorithm.aggregation": "median"}),
    "direct": (DIRECT, {}),
    "fedasync": (FEDASYNC, {"algorithm.buffer_size": 1}),
}
DEPLOYED_CLIENTS, UPLOADS_EACH, DEPLOYED_NAME = 4, 15, "trajectories"
NEVER = 1_000_000


@dataclass(frozen=True)
class Case:
    """One run."""

    name: str
    recipe: str
    """A recipe's name, or the text of one."""
    settings: Mapping[str, object] = field(default_factory=dict)
    seed: int = 0
    options: tuple[str, ...] = ()
    how: str = "whole"
    """`whole`, `resumed` after half of the uploads, `killed` and resumed, `journal` or `uploads` of a deployed run."""


def all_cases() -> Iterator[Case]:
    """Every case in the order of the output."""
    short = {STEPS: 300, EVERY: NEVER}
    for name in MUSHROOMS:
        for seed in (0, 1):
            yield Case(f"mushrooms/{name}", f"mushrooms-{name}", short, seed)
    for task in ("quadratic", "logistic"):
        for method in ("qafel", "fedbuff", "fedasync-direct", "fedprox", "mcm"):
            yield Case(f"{task}/{method}", f"{task}-qafel", short | {METHOD: method} | METHODS[method])
    for name, (recipe, settings) in VARIANTS.items():
        yield Case(f"variant/{name}", recipe, short | settings)
    for name in RESUMED:
        recipe, settings = VARIANTS[name]
        yield Case(f"resumed/{name}", recipe, short | settings, how="resumed")
    large = {STEPS: 150, EVERY: NEVER, "task.dimension": 20_000, "algorithm.server_momentum": 0.5}
    yield Case("killed/quadratic", "quadratic-qafel", large, how="killed")
    workers = ("--executor", "processes", "--workers", "2")
    for name in PROCESSES:
        recipe, settings = VARIANTS[name]
        yield Case(f"processes/{name}", recipe, short | settings, options=workers)
    for name, (recipe, settings) in DEPLOYED.items():
        for how in ("journal", "uploads"):
            yield Case(f"deployed-{how}/{name}", recipe, deployed_settings(settings), how=how)
    network = {UPLOADS: 200, EVERY: NEVER}
    for name, (recipe, settings) in CIFAR10.items():
        yield Case(f"cifar10/{name}", recipe, network | settings)
    yield Case("cifar10/processes", "cifar10-qafel-c100-trellis", network, options=workers)


def deployed_settings(settings: Mapping[str, object]) -> dict[str, object]:
    """Settings of a deployed run, which ends when each client has sent its share."""
    few = {UPLOADS: DEPLOYED_CLIENTS * UPLOADS_EACH, EVERY: NEVER, "name": DEPLOYED_NAME}
    return {"algorithm.buffer_size": 3, **few, **settings}


# --- Running them ---


class CaseError(Exception):
    """A case did not give hashes."""


@dataclass(frozen=True)
class Version:
    """A version of the code: the interpreter and the tree that it imports from."""

    python: str
    source: Path
    renamed: Mapping[str, str] = field(default_factory=dict)
    composed: Mapping[str, tuple[str, dict[str, object]]] = field(default_factory=dict)

    @staticmethod
    def find(python: str, source: Path) -> Version:
        """The version in the tree `source`, with the names that apply there."""
        version = Version(python, source)
        imported = version.call("-c", "import qafel; print(qafel.__file__)").strip()
        if not Path(imported).is_relative_to(source):
            raise CaseError(f"{python} imports {imported}, not the code in {source}: give another --python")
        shown = version.call("-m", "qafel", "recipes", "show", QAFEL)
        known = {recipe["name"] for recipe in json.loads(version.call("-m", "qafel", "recipes", "--json"))}
        composed = {name: parts for name, parts in COMPOSED.items() if name not in known}
        return replace(version, renamed={} if OLD_MARK in shown else RENAMED, composed=composed)

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.source / "src")}

    def call(self, *arguments: str, timeout_s: float | None = None) -> str:
        """Run Python and return its output; a failure is a `CaseError` with the last line that it wrote."""
        try:
            done = subprocess.run(
                (self.python, *arguments),
                env=self.environment(), capture_output=True, text=True, timeout=timeout_s, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise CaseError(f"the command did not end within {timeout_s} s") from None
        if done.returncode:
            raise CaseError(" ".join(done.stderr.split())[-500:] or f"exit code {done.returncode}")
        return done.stdout

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        quiet = subprocess.DEVNULL
        return subprocess.Popen(
            (self.python, "-m", "qafel", *arguments), env=self.environment(), stdout=quiet, stderr=quiet
        )

    def translated(self, case: Case) -> Case:
        """The case with a recipe of this version."""
        recipe, settings = self.composed.get(case.recipe, (case.recipe, {}))
        return replace(case, recipe=recipe, settings={**settings, **case.settings})

    def settings(self, settings: Mapping[str, object]) -> list[str]:
        """The settings as `name=value`, with the names of this version."""
        return [self._setting(name, value) for name, value in settings.items()]

    def _setting(self, name: str, value: object) -> str:
        new = self.renamed.get(f"{name}={value}") or self.renamed.get(name, name)
        return new.format(value) if "=" in new else f"{new}={value}"

    def command(self, name: str, case: Case, out: Path, settings: Mapping[str, object]) -> list[str]:
        """The arguments of `qafel run` or `qafel server` for a case."""
        sets = [part for setting in self.settings(settings) for part in ("--set", setting)]
        return [name, case.recipe, *sets, "--seed", str(case.seed), "--out", str(out), *case.options]


def hashes(version: Version, case: Case, deployments: Path | None) -> tuple[str, str]:
    """Run a case; return the SHA-256 of its model and of its hidden state."""
    case = version.translated(case)
    with tempfile.TemporaryDirectory(prefix="trajectories-") as folder:
        out = Path(folder) / "run"
        if "\n" in case.recipe:
            (file := Path(folder) / "recipe.toml").write_text(case.recipe, encoding="utf-8")
            case = replace(case, recipe=str(file))
        if case.how == "uploads":
            uploads = recorded(deployments, case) / "uploads.hex"
            feed = (case.recipe, str(case.seed), str(uploads), *version.settings(case.settings))
            return of_summary(json.loads(version.call("-c", FEED_UPLOADS, *feed)))
        if case.how == "journal":
            replay_journal(version, case, recorded(deployments, case), out)
        else:
            simulate(version, case, out)
        return of_summary(json.loads((out / SUMMARY).read_text(encoding="utf-8")))


def of_summary(summary: Mapping[str, object]) -> tuple[str, str]:
    if summary.get("status", "finished") != "finished":
        raise CaseError(f"the run ended as {summary['status']}: choose settings that let it learn")
    model, hidden_state = (str(summary[name]) for name in HASHES)
    return model, hidden_state


def simulate(version: Version, case: Case, out: Path) -> None:
    """Run a simulated case to its end."""
    whole = [*version.command("run", case, out, case.settings), *RUN]
    if case.how == "killed":
        kill_after_checkpoint(version.start(*whole, "--checkpoint-every", "0"), out / CHECKPOINT)
    elif case.how == "resumed":
        half = {**case.settings, UPLOADS: HALF_UPLOADS}
        version.call("-m", "qafel", *version.command("run", case, out, half), *RUN)
    version.call("-m", "qafel", *whole, *(["--resume"] if case.how != "whole" else []))


def kill_after_checkpoint(process: subprocess.Popen[bytes], checkpoint: Path) -> None:
    while not checkpoint.exists():
        if process.poll() is not None:
            raise CaseError("the run ended before it was killed: give it more work")
        time.sleep(0.01)
    process.kill()
    if process.wait() == 0:
        raise CaseError("the run ended before it was killed: give it more work")


def recorded(deployments: Path | None, case: Case) -> Path:
    """The folder of a case's recorded deployment."""
    assert deployments is not None
    folder = deployments / case.name.partition("/")[2]
    if not folder.is_dir():
        raise CaseError(f"{folder} is missing: make it with --record")
    return folder


def replay_journal(version: Version, case: Case, folder: Path, out: Path) -> None:
    """Start a server on a copy of the recorded journal, without checkpoints; the server counts all records again."""
    shutil.copytree(folder / "run", out)
    (out / SUMMARY).unlink()
    for checkpoint in out.glob(STATE_CHECKPOINTS):
        checkpoint.unlink()
    command = version.command("server", case, out, case.settings)
    version.call("-m", "qafel", *command, *SERVER, *NO_DEFENCE, "--port", str(free_port()), timeout_s=300)


def record(version: Version, case: Case, folder: Path) -> None:
    """Run a server and clients over a broker; keep the server's folder and the accepted uploads in their order."""
    with tempfile.TemporaryDirectory(prefix="trajectories-") as temporary, contextlib.ExitStack() as stack:
        port, out = str(free_port()), Path(temporary) / "run"
        command = version.command("server", case, out, case.settings)
        server = version.start(*command, *SERVER, *NO_DEFENCE, "--port", port)
        clients = [
            version.start(
                "client", "--run", DEPLOYED_NAME, "--broker", f"nats://127.0.0.1:{port}", "--client-id", str(number),
                "--state", str(Path(temporary) / str(number)), "--max-updates", str(UPLOADS_EACH), "--quiet",
            )
            for number in range(DEPLOYED_CLIENTS)
        ]  # fmt: skip
        for process in (server, *clients):
            stack.callback(end, process)
        while server.poll() is None:  # the server ends when it has all uploads
            if any(client.poll() for client in clients):
                raise CaseError("a client failed")
            time.sleep(0.1)
        if server.returncode:
            raise CaseError("the server failed")
        folder.mkdir(parents=True)
        shutil.copytree(out, folder / "run", ignore=shutil.ignore_patterns("broker", "lock"))
        frames = version.call("-c", READ_JOURNAL, str(folder / "run" / STATE))
        (folder / "uploads.hex").write_text(frames, encoding="utf-8")


def end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


# --- Command line ---


def difference(wanted: str | None, found: str | None) -> str | None:
    """The difference between two values `model hidden_state` of a case; None if there is none."""
    if found is None:
        return "missing"
    if wanted is None:
        return "new: the file does not have it"
    pairs = zip(("model", "hidden state"), wanted.split(), found.split(), strict=True)
    changed = [f"{name} {old[:12]} is now {new[:12]}" for name, old, new in pairs if old != new]
    return ", ".join(changed) or None


def read_lines(text: str) -> dict[str, str]:
    """Hashes by `case seed`."""
    rows = [line.split() for line in text.splitlines() if line]
    return {f"{case} {seed}": f"{model} {hidden_state}" for case, seed, model, hidden_state in rows}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def selected(only: str, deployments: Path | None) -> list[Case]:
    """The cases that match the pattern and can be run here; says which ones cannot."""
    cases = [case for case in all_cases() if re.search(only, case.name)]
    data = Path(os.environ.get("QAFEL_DATA", Path.home() / ".cache/qafel")) / "cifar-10-batches-bin"
    if not data.is_dir() and any(case.name.startswith("cifar10/") for case in cases):
        say(f"The cases cifar10/ are skipped: {data} is missing. Set QAFEL_DATA to the folder that has CIFAR-10.")
        cases = [case for case in cases if not case.name.startswith("cifar10/")]
    if deployments is None and any(case.name.startswith("deployed-") for case in cases):
        say("The cases deployed- are skipped: give --deployments, a folder that --record wrote.")
        cases = [case for case in cases if not case.name.startswith("deployed-")]
    return cases


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="PATTERN", help="regular expression: run the cases it matches")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the lines to this file")
    parser.add_argument("--python", default=sys.executable, metavar="PATH", help="interpreter with the dependencies")
    parser.add_argument("--source", type=Path, default=Path(__file__).parent.parent, help="tree with the code, in src/")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="print cases that differ from FILE, and exit 1")
    parser.add_argument("--deployments", type=Path, metavar="FOLDER", help="recorded deployed runs")
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="record deployed runs into FOLDER, and exit")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="cases that run at the same time")
    parser.add_argument("--list", action="store_true", help="print the names of the cases, and exit")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(arguments)
    if options.list:
        print("\n".join(dict.fromkeys(case.name for case in all_cases() if re.search(options.only, case.name))))
        return 0
    wanted = read_lines(options.compare.read_text(encoding="utf-8")) if options.compare else {}
    wanted = {key: value for key, value in wanted.items() if re.search(options.only, key.partition(" ")[0])}
    version = Version.find(options.python, options.source.resolve())
    if options.record:
        for name, (recipe, settings) in DEPLOYED.items():
            if re.search(options.only, f"deployed-journal/{name}"):
                record(version, Case(name, recipe, deployed_settings(settings)), options.record / name)
                say(f"recorded {options.record / name}")
        return 0
    began, found, failed = time.monotonic(), dict[str, str](), 0
    with ThreadPoolExecutor(options.jobs) as pool:
        cases = selected(options.only, options.deployments)
        running = [pool.submit(hashes, version, case, options.deployments) for case in cases]
        for case, future in zip(cases, running, strict=True):
            try:
                found[key := f"{case.name} {case.seed}"] = " ".join(future.result())
                print(key, found[key], flush=True)
            except CaseError as error:
                failed += 1
                say(f"{case.name} {case.seed} failed: {error}")
    if options.out:
        options.out.write_text("".join(f"{key} {value}\n" for key, value in found.items()), encoding="utf-8")
    say(f"{len(found)} cases in {time.monotonic() - began:.0f} s, {failed} failed")
    differing = 0
    for key in dict.fromkeys((*wanted, *found)) if options.compare else ():
        if (changed := difference(wanted.get(key), found.get(key))) is not None:
            differing += 1
            print(f"differs: {key}: {changed}")
    return 1 if failed or differing or not found else 0


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except CaseError as problem:
        raise SystemExit(f"trajectories: {problem}") from None
