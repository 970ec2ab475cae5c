"""Plausible mistakes of a user's, over all commands: each is one sentence on stderr and exit code 2."""

import shutil
import socket
from importlib.util import find_spec

import pytest

from qafel import Limits, Quadratic, Timing, method, simulate
from qafel.errors import UserError
from tests.command import qafel_here

FEDBUFF = "mushrooms-fedbuff"
SHORT = ["--set", "stop.server_steps=3", "--quiet"]


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A folder with a finished run, damaged copies of it, and files that are not what they should be."""
    folder = tmp_path_factory.mktemp("a user's Ordner ü")
    qafel_here("run", FEDBUFF, *SHORT, "--out", folder / "good")
    damages = {
        "metrics.jsonl": b"{not json\n{}\n",
        "config.toml": b"[[[",
        "summary.json": b"{",
        "model.safetensors": b"short",
        "checkpoint/checkpoint.safetensors": b"xx",
    }
    for file, content in damages.items():
        copy = folder / f"bad-{file.split('.')[0].split('/')[0]}"
        shutil.copytree(folder / "good", copy)
        (copy / file).write_bytes(content)
    (folder / "file").write_text("x")
    texts = {
        "section.toml": "[algoritm]\nbuffer_size = 3\n",
        "key.toml": "[algorithm]\nbufer_size = 3\n",
        "broken.toml": "a = = 3\n",
        "extends.toml": 'extends = "mushroms-fedbuff"\n',
        "number.toml": "algorithm = 3\n",
        "trace.csv": "time,client\nx,y\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def here(template, monkeypatch):
    monkeypatch.chdir(template)
    return template


NO_BROKER = ["--broker", "nats://127.0.0.1:9", "--patience", "0.1"]
MISTAKES = [
    ("run", "missing argument 'RECIPE'."),
    ("rum", "no such command 'rum'. Did you mean 'run'?"),
    ("run section.toml", "unknown key 'algoritm'; did you mean 'algorithm'?"),
    ("run key.toml", "unknown key 'algorithm.bufer_size'; did you mean 'buffer_size'?"),
    ("run broken.toml", "broken.toml is not valid TOML"),
    ("run extends.toml", "extends the unknown recipe 'mushroms-fedbuff'; did you mean 'mushrooms-fedbuff'?"),
    ("run number.toml", "algorithm is a section with settings of its own, found 3"),
    ("run RECIPE RECIPE", "qafel run makes one run; several are: qafel sweep"),
    ("run RECIPE --seed x", "invalid value for '--seed'"),
    ("run RECIPE --seed 9223372036854775808", "seed: input should be less than"),
    ("run RECIPE --workers 0", "invalid value for '--workers'"),
    ("run RECIPE --executor processes --workers 1000000", "1,000,000 workers are too many: this machine has"),
    ("run RECIPE --executor threads", "'threads' is not one of 'inline', 'processes', 'ray'"),
    ("run RECIPE --set algorithm.client_lr=nan", "algorithm.client_lr: input should be a finite number, found nan"),
    ("run RECIPE --set timing.scale=inf", "timing.scale: input should be a finite number, found inf"),
    ("run RECIPE --set evaluation.target=nan", "evaluation.target: input should be a finite number"),
    ("run RECIPE --set stop.uploads=0", "stop.uploads: input should be greater than or equal to 1, found 0"),
    ("run RECIPE --set task.clients=99999999999", "between 1 and 8124 clients"),
    ("run RECIPE --set task.name=quadratic --set task.dimension=99999999999", "this needs more memory than there is"),
    ("run RECIPE --set timing.arrivals=trace --set timing.trace=trace.csv", "trace.csv, line 2: expected time,client"),
    ("run RECIPE --out file", "cannot write results to file: File exists"),
    ("run RECIPE --out /proc/nope", "cannot write to /proc/nope"),
    ("run RECIPE --out bad-config", "holds a run of another configuration"),
    ("run RECIPE --out bad-checkpoint --resume --set stop.server_steps=3", "checkpoint.safetensors is damaged"),
    ("run RECIPE --out nowhere --resume", "there is no checkpoint at nowhere"),
    ("run RECIPE --out new --start-from gone", "cannot read the model to start from, gone"),
    ("run RECIPE --out new --start-from bad-model/model.safetensors", "is not a whole safetensors file"),
    ("sweep RECIPE --seeds 0", "--seeds are 1 or more"),
    ("sweep RECIPE --out new --workers 1000000", "1,000,000 workers are too many"),
    ("sweep RECIPE --out file", "cannot write results to file: File exists"),
    ("sweep RECIPE --out good", "good is a run directory, and a sweep needs a folder of its own"),
    ("sweep RECIPE --set algorithm.client_lr=1,nan", "input should be a finite number, found nan (at "),
    ("report gone", "gone is not a run directory"),
    ("report bad-metrics", "metrics.jsonl is damaged in line 1"),
    ("report bad-config", "config.toml is damaged"),
    ("report bad-summary", "summary.json is damaged"),
    ("report good --out /proc/x.html", "cannot write /proc/x.html"),
    ("plan", "nothing can be predicted without a measurement"),
    ("plan mushrooms-qafel-4bit", "a plan needs an aim"),
    ("plan mushrooms-mcm --byte-budget 1MB", "it needs a recipe of qafel or fedbuff"),
    ("watch", "say what to watch: run directories or folders of them, or a broker with --broker"),
    ("watch gone", "gone does not exist: make it if runs will begin there, or name another"),
    ("watch file", "file is not a folder"),
    ("watch good --port 99999", "invalid value for '--port'"),
    ("watch good --address 203.0.113.9", "cannot serve the page at 203.0.113.9:8765"),
    ("tune RECIPE", "uploads until when? Give a --target"),
    ("tune RECIPE --target 0.1 --out new --workers 1000000", "1,000,000 workers are too many"),
    ("tune RECIPE --target 0.1 --search algorithm.client_lr=2:1", "a range goes from a number to a larger one"),
    ("recipes zzzz", "no recipe has 'zzzz'"),
    ("tasks show nope", "unknown task 'nope'"),
    ("quantizers --size 0", "invalid value for '--size'"),
    ("quantizers qsqd:4", "did you mean 'qsgd'?"),
    ("paper nope", "the paper has no entry 'nope'"),
    ("bench nope", "no such command 'nope'"),
    ("demo --out file", "cannot write file: File exists"),
]
DEPLOYED = [
    ("server RECIPE --out new NO_BROKER", "no broker at nats://127.0.0.1:9"),
    ("server RECIPE --credentials good --out new", "good does not hold credentials"),
    ("server RECIPE --local-broker --out file", "cannot write the local broker's store to"),
    ("server RECIPE --local-broker --port TAKEN --out new", "nats-server did not start at port"),
    ("server mushrooms-fedavg --local-broker --port FREE --out new", "fedavg needs clients that start in rounds"),
    ("server RECIPE --local-broker --port FREE --out new --start-from gone", "cannot read the model to start from"),
    ("client --run x --client-id 1 --credentials gone", "gone does not hold credentials"),
    ("client --run x --client-id 1 --state file NO_BROKER", "cannot write to file: File exists"),
    ("client --run x --client-id 1 --quiet NO_BROKER", "no broker at nats://127.0.0.1:9"),
    ("status --credentials gone", "gone does not hold credentials"),
    ("watch --credentials gone", "gone does not hold credentials"),
    ("watch --broker nats://127.0.0.1:9", "no broker at nats://127.0.0.1:9"),
    ("watch good --port TAKEN", "(address already in use): choose another --port"),
    ("broker start good", "good is not a broker's folder"),
    ("broker init file --clients 2", "cannot write file"),
    ("broker revoke gone --client 1", "gone is not a broker's folder"),
]


def refused(command, **names):
    """What a command says on stderr: one sentence. The folder holds afterwards what it held before."""
    words = command.replace("RECIPE", FEDBUFF).split()
    arguments = [part for word in words for part in (names.get(word, [word]))]
    shown, complaint = qafel_here(*arguments, expect=2)
    assert not shown
    assert complaint.count("\n") == 1, complaint
    assert complaint.startswith("qafel: ")
    return complaint


@pytest.mark.parametrize(("command", "words"), MISTAKES, ids=[command for command, _ in MISTAKES])
def test_a_mistake_is_one_sentence_and_exit_code_2(command, words, here):
    assert words in refused(command)


@pytest.mark.skipif(find_spec("nats") is None, reason="the extra nats is not installed")
@pytest.mark.parametrize(("command", "words"), DEPLOYED, ids=[command for command, _ in DEPLOYED])
def test_a_mistake_in_a_deployment_is_one_sentence_and_leaves_no_broker_behind(command, words, here):
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as free:
        ports = {"TAKEN": [taken.getsockname()[1]], "FREE": [free.getsockname()[1]]}
        free.close()
        assert words in refused(command, NO_BROKER=NO_BROKER, **ports)
    assert not (here / "new/broker").exists()
    shutil.rmtree(here / "new", ignore_errors=True)


def test_a_neural_task_without_torch_is_one_sentence(here, monkeypatch):
    """As on a machine with the light core alone."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: None if name == "torch" else find_spec(name))
    assert "cifar10 needs PyTorch: pip install 'qafel[torch]'" in refused("run cifar10-fedbuff-c100")


def test_a_live_page_without_its_libraries_is_one_sentence(here, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: None if name == "plotly" else find_spec(name))
    assert "the live page needs Plotly: pip install 'qafel[watch]'" in refused("watch good")


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (lambda: method("qafel", client_quantiser="qsgd:4"), "client_quantizer"),
        (lambda: method("qafl"), "did you mean 'qafel'?"),
        (lambda: method("qafel", client_quantizer="qsqd:4"), "qsgd"),
        (Limits, "set at least one of"),
        (lambda: simulate(Quadratic(), method("fedbuff"), Timing(), start_from="gone"), "cannot read the model"),
    ],
)
def test_a_mistake_in_python_is_one_sentence(mistake, words):
    with pytest.raises(UserError) as told:
        mistake()
    assert words in str(told.value)
    assert "\n" not in str(told.value)
