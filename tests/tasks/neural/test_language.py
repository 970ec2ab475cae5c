"""Language models of Hugging Face with a tiny GPT-2: LoRA, full training, clients' texts, perplexity."""

import math

import numpy as np
import pytest
import torch

from qafel.algorithm import HiddenState, LocalTraining, method
from qafel.config.tasks import CustomTask
from qafel.errors import ConfigError, DataError
from qafel.params import Layout
from qafel.rng import Stream
from qafel.simulator import simulate
from qafel.tasks.neural.language import causal_model, client_texts
from qafel.tasks.protocol import train_from
from tests.tasks.datasets.fake_data import write_shakespeare
from tests.tasks.neural.models import GPT2, LORA, TEXTS
from tests.tasks.neural.models import language_model as small

pytestmark = pytest.mark.usefixtures("with_transformers")
INIT, STREAM = Stream.named(1, "initial model"), Stream.named(1, "train", 2, 3)


def save(folder, seed):
    torch.manual_seed(seed)
    causal_model(GPT2).save_pretrained(folder)
    return str(folder)


def run(task, **settings):
    algorithm = method(
        "qafel", buffer_size=2, client_lr=0.01, local_epochs=1, batch_size=8,
        client_quantizer="rotated:4", server_quantizer="rotated:4",
    )  # fmt: skip
    return simulate(task, algorithm, server_steps=4, evaluate_every=2, **settings)


@pytest.mark.slow  # test_any_model.py trains both in processes in the fast tests
@pytest.mark.parametrize("lora", [LORA, None], ids=["lora", "full"])
@pytest.mark.parametrize("executor", ["processes", "ray"])
def test_every_executor_gives_equal_hashes(executor, lora):
    if executor == "ray":
        pytest.importorskip("ray", reason="the extra ray is not installed")
    task = small(lora=lora, optimizer="adamw")
    one, many = run(task), run(task, executor=executor, workers=2)
    assert one.summary["model_sha256"] == many.summary["model_sha256"]
    assert one.history["metric"].tolist() == many.history["metric"].tolist()
    assert one.history["metric"][-1] < one.history["metric"][0]


def test_with_lora_clients_upload_the_adapters_only():
    task, full = small(), small(lora=None)
    assert task.layers == (2 * 16, 3 * 16 * 2) * 2
    assert all("lora_" in name for name, _ in task.layout.tensors)
    assert full.layout.size == sum(p.numel() for p in causal_model(GPT2).parameters())
    trained = train_from(task, 0, task.initial_model(INIT), LocalTraining(0.1, steps=3, batch_size=4), STREAM)
    assert np.abs(trained - task.initial_model(INIT)).max() > 0


def test_perplexity_is_the_exponential_of_the_loss_that_transformers_computes():
    task = small(lora=None, test_samples=None)
    vector = task.initial_model(INIT)
    module = causal_model(GPT2).eval()
    views = Layout.of({name: tuple(p.shape) for name, p in module.named_parameters()}).split(vector)
    module.load_state_dict({name: torch.tensor(view) for name, view in views.items()}, strict=False)
    inputs, targets = task.test_samples.batch(np.arange(len(task.test_samples)))
    tokens = torch.tensor(np.concatenate([inputs, targets[:, -1:]], axis=1)).long()
    with torch.no_grad():
        loss = module(input_ids=tokens, labels=tokens).loss.item()
    found = task.evaluate(vector)
    assert found["metric"] == pytest.approx(math.exp(loss), rel=1e-4)
    assert (task.metric_name, task.metric_goal) == ("perplexity", "min")


def test_a_folder_gives_its_weights_to_every_seed_and_another_backbone_is_refused(tmp_path):
    first, second = save(tmp_path / "a", 1), save(tmp_path / "b", 2)
    full = small(first, lora=None)
    np.testing.assert_array_equal(full.initial_model(INIT), full.initial_model(STREAM))
    task = small(first)
    settings = {"text": TEXTS, "lora": LORA, "length": 16}
    path = "qafel.tasks.neural.language:language"
    assert CustomTask(name=path, arguments={"model": first, **settings}, digest=task.digest).make().clients == 4
    with pytest.raises(DataError, match="frozen parameters"):
        CustomTask(name=path, arguments={"model": second, **settings}, digest=task.digest).make()


def test_a_deployed_client_trains_as_the_simulated_one():
    task = small()
    start, local = task.initial_model(INIT), LocalTraining(0.1, steps=2, batch_size=4)
    found = small().training(2)(HiddenState.of(start.copy()), local, STREAM)
    np.testing.assert_array_equal(found, train_from(task, 2, start, local, STREAM))


def test_clients_are_texts_files_or_characters_of_plays(tmp_path):
    for number, text in enumerate(TEXTS):
        (tmp_path / f"{number}.txt").write_text(text, encoding="utf-8")
    assert client_texts(str(tmp_path)) == TEXTS == client_texts(dict(enumerate(TEXTS)))
    write_shakespeare(tmp_path)
    assert len(client_texts("shakespeare", tmp_path)) > 1
    task = small(clients=2, skip=1, max_samples=5, test_samples=3)
    assert task.partition.sizes.tolist() == [5, 5]
    assert len(task.test_samples) == 3
    inputs, targets = small(clients=1).train_samples.batch(np.array([0]))
    assert bytes(inputs[0]).decode() == max(TEXTS, key=len)[:16]
    assert bytes(targets[0]).decode() == max(TEXTS, key=len)[1:17]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model": "no-such-folder"}, "no-such-folder"),
        ({"model": {"model_type": "no-such-type"}}, "no-such-type"),
        ({"lora": {"ranks": 2}}, "ranks"),
        ({"lora": {"rank": 2, "target_modules": ["nothing"]}}, "nothing"),
        ({"optimizer": "lion"}, "lion"),
        ({"tokenizer": "no-such-folder"}, "tokenizer"),
        ({"clients": 9}, "9 clients"),
    ],
)
def test_a_mistake_is_refused_in_a_sentence(settings, words):
    with pytest.raises(ConfigError, match=words):
        small(**settings)
