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
    ("run", "RECIPE"),
    ("rum", "'run'"),
    ("run section.toml", "'algorithm'"),
    ("run key.toml", "'buffer_size'"),
    ("run broken.toml", "TOML"),
    ("run extends.toml", "'mushrooms-fedbuff'"),
    ("run number.toml", "section"),
    ("run RECIPE RECIPE", "sweep"),
    ("run RECIPE --seed x", "--seed"),
    ("run RECIPE --seed 9223372036854775808", "seed"),
    ("run RECIPE --workers 0", "--workers"),
    ("run RECIPE --executor processes --workers 1000000", "1,000,000"),
    ("run RECIPE --executor threads", "'processes'"),
    ("run RECIPE --set algorithm.client_lr=nan", "finite"),
    ("run RECIPE --set timing.scale=inf", "finite"),
    ("run RECIPE --set evaluation.target=nan", "finite"),
    ("run RECIPE --set stop.uploads=0", "stop.uploads"),
    ("run RECIPE --set task.clients=99999999999", "8124"),
    ("run RECIPE --set task.name=quadratic --set task.dimension=99999999999", "memory"),
    ("run RECIPE --set timing.arrivals=trace --set timing.trace=trace.csv", "line 2"),
    ("run RECIPE --out file", "File exists"),
    ("run RECIPE --out /proc/nope", "/proc/nope"),
    ("run RECIPE --out bad-config", "configuration"),
    ("run RECIPE --out bad-checkpoint --resume --set stop.server_steps=3", "damaged"),
    ("run RECIPE --out nowhere --resume", "checkpoint"),
    ("run RECIPE --out new --start-from gone", "gone"),
    ("run RECIPE --out new --start-from bad-model/model.safetensors", "safetensors"),
    ("sweep RECIPE --seeds 0", "--seeds"),
    ("sweep RECIPE --out new --workers 1000000", "1,000,000"),
    ("sweep RECIPE --out file", "File exists"),
    ("sweep RECIPE --out good", "run directory"),
    ("sweep RECIPE --set algorithm.client_lr=1,nan", "finite"),
    ("report gone", "run directory"),
    ("report bad-metrics", "line 1"),
    ("report bad-config", "config.toml"),
    ("report bad-summary", "summary.json"),
    ("report good --out /proc/x.html", "/proc/x.html"),
    ("plan", "RECIPE"),
    ("plan mushrooms-qafel-4bit", "--target"),
    ("plan mushrooms-mcm --byte-budget 1MB", "fedbuff"),
    ("watch", "--broker"),
    ("watch gone", "gone"),
    ("watch file", "folder"),
    ("watch good --port 99999", "--port"),
    ("watch good --address 203.0.113.9", "203.0.113.9"),
    ("tune RECIPE", "--target"),
    ("tune RECIPE --target 0.1 --out new --workers 1000000", "1,000,000"),
    ("tune RECIPE --target 0.1 --search algorithm.client_lr=2:1", "range"),
    ("recipes zzzz", "'zzzz'"),
    ("tasks show nope", "'nope'"),
    ("quantizers --size 0", "--size"),
    ("quantizers qsqd:4", "'qsgd'"),
    ("bench nope", "'nope'"),
    ("demo --out file", "File exists"),
]
DEPLOYED = [
    ("server RECIPE --out new NO_BROKER", "nats://127.0.0.1:9"),
    ("server RECIPE --credentials good --out new", "credentials"),
    ("server RECIPE --local-broker --out file", "file"),
    ("server RECIPE --local-broker --port TAKEN --out new", "port"),
    ("server mushrooms-fedavg --local-broker --port FREE --out new", "rounds"),
    ("server RECIPE --local-broker --port FREE --out new --start-from gone", "gone"),
    ("client --run x --client-id 1 --credentials gone", "credentials"),
    ("client --run x --client-id 1 --state file NO_BROKER", "File exists"),
    ("client --run x --client-id 1 --quiet NO_BROKER", "nats://127.0.0.1:9"),
    ("status --credentials gone", "credentials"),
    ("watch --credentials gone", "credentials"),
    ("watch --broker nats://127.0.0.1:9", "nats://127.0.0.1:9"),
    ("watch good --port TAKEN", "--port"),
    ("broker start good", "broker"),
    ("broker init file --clients 2", "file"),
    ("broker revoke gone --client 1", "gone"),
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
    assert "cifar10 needs PyTorch: pip install 'qafel[torch]'" in refused("run cifar10-fedbuff")


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
