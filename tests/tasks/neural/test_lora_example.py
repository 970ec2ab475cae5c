"""examples/lora: pretraining writes a model that its recipes fine-tune."""

import runpy
from pathlib import Path

import pytest

from qafel.config import load_recipe
from qafel.simulator import simulate

pytestmark = pytest.mark.usefixtures("with_transformers")
EXAMPLE = Path(__file__).parents[3] / "examples" / "lora"
GPT = {
    **{"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 16, "vocab_size": 256},
    **{"bos_token_id": 0, "eos_token_id": 0},
}


def test_pretraining_reads_text_that_comes_with_python():
    texts = runpy.run_path(str(EXAMPLE / "pretrain.py"))["python_documentation"]("pickle.py")
    assert sum(map(len, texts.values())) > 300_000
    assert "statement" in texts["with"]  # a help topic
    assert "Pickle" in texts["pickle.py"]  # docstrings of a module


def test_every_recipe_fine_tunes_the_pretrained_model(tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    for name in ("Jaques", "Rosalind", "Orlando", "Celia"):
        (texts / f"{name}.txt").write_text(f"{name} says that all the world is a stage. " * 12, encoding="utf-8")
    base = tmp_path / "base"
    pretrain = runpy.run_path(str(EXAMPLE / "pretrain.py"))["pretrain"]
    before = pretrain(base, steps=1, batch_size=4, model=GPT, text=str(texts))
    after = pretrain(base, steps=40, batch_size=4, lr=0.01, model=GPT, text=str(texts))
    assert after < before
    settings = {"model": base, "text": texts, "clients": 4, "length": 16}
    changes = [f"task.arguments.{name}={value}" for name, value in settings.items()]
    sizes = {}
    for recipe in EXAMPLE.glob("*.toml"):
        loaded = load_recipe(str(recipe), [*changes, "algorithm.buffer_size=1", "stop.uploads=2"])
        result = simulate(**loaded.arguments())
        assert result.summary["uploads"] == 2
        assert result.history["metric"][0] == pytest.approx(after, rel=1e-3)
        assert result.history["metric"][-1] != result.history["metric"][0]
        sizes[recipe.stem] = result.summary["upload_bytes_total"]
    assert sizes["lora-qafel"] < sizes["lora-fedbuff"] < sizes["full-fedbuff"]
    assert sizes["lora-qafel"] < sizes["full-qafel"] < sizes["full-fedbuff"]
