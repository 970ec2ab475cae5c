"""examples/lora: pretraining writes a model that its recipes fine-tune."""

import runpy
from pathlib import Path

import pytest

from qafel.config import load_recipe
from qafel.simulator import simulate
from tests.tasks.neural.test_language import GPT, TEXTS

pytestmark = pytest.mark.usefixtures("with_transformers")
EXAMPLE = Path(__file__).parents[3] / "examples" / "lora"


@pytest.mark.parametrize("recipe", sorted(EXAMPLE.glob("*.toml")), ids=lambda path: path.stem)
def test_a_recipe_fine_tunes_the_pretrained_model(recipe, tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    for number, text in enumerate(TEXTS):
        (texts / f"{number}.txt").write_text(text, encoding="utf-8")
    base = tmp_path / "base"
    pretrain = runpy.run_path(str(EXAMPLE / "pretrain.py"))["pretrain"]
    model = {**GPT, "n_positions": 16}
    before = pretrain(base, steps=1, batch_size=4, model=model, text=str(texts), skip=0)
    after = pretrain(base, steps=40, batch_size=4, lr=0.01, model=model, text=str(texts), skip=0)
    assert after < before
    settings = {"model": base, "text": texts, "clients": 4, "length": 16}
    changes = [f"task.arguments.{name}={value}" for name, value in settings.items()]
    result = simulate(**load_recipe(str(recipe), [*changes, "algorithm.buffer_size=1", "stop.uploads=2"]).arguments())
    assert result.summary["uploads"] == 2
    assert result.history["metric"][0] == pytest.approx(after, rel=1e-3)
    assert result.history["metric"][-1] != result.history["metric"][0]
