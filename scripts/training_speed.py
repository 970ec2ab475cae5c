"""Compare `TorchTask.train` with a bare PyTorch loop: MLP, ResNet-20, GPT, and GPT with LoRA.

    python scripts/training_speed.py [--turns 9] [mlp resnet20 gpt lora]

An update is five steps of SGD. The bare loop takes the same batches from the same arrays and keeps one optimizer. Both
use one thread, and take turns. A ratio is the median of the turns' ratios of processor time; above 1, qafel is faster.
"""

import argparse
import runpy
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from qafel import TorchTask
from qafel.algorithm import HiddenState, LocalTraining
from qafel.bench import take_turns, timed
from qafel.rng import Stream
from qafel.tasks.neural.trainer import batches, keep_freed_memory, one_thread

STEPS, SIZE, CLIENT_ROWS = 5, 32, 256
GPT2 = {
    **{"model_type": "gpt2", "n_layer": 4, "n_head": 4, "n_embd": 128, "n_positions": 64, "vocab_size": 256},
    **{"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0},
}
LORA = {"rank": 8, "alpha": 16, "target_modules": ["c_attn"]}


def mlp():
    return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


def task_of(name):
    """Return the task of one client with random samples, and the function from module and inputs to outputs."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 10, CLIENT_ROWS)
    if name in ("gpt", "lora"):
        from qafel.tasks.neural.language import causal_model, logits, next_token_loss  # noqa: PLC0415  (an extra)

        tokens = generator.integers(0, 256, (CLIENT_ROWS, GPT2["n_positions"] + 1))
        data = tokens[:, :-1], tokens[:, 1:]
        model = partial(causal_model, GPT2, LORA if name == "lora" else None)
        settings = {"forward": logits, "loss": next_token_loss, "metrics": {}}
    elif name == "resnet20":
        example = Path(__file__).parents[1] / "examples" / "resnet" / "resnet20.py"
        model, settings = runpy.run_path(str(example))["ResNet20"], {"buffers": "batch"}
        data = generator.normal(size=(CLIENT_ROWS, 3, 32, 32)).astype(np.float32), labels
    else:
        model, settings = mlp, {}
        data = generator.normal(size=(CLIENT_ROWS, 784)).astype(np.float32), labels
    return TorchTask(name, model, data, data, [range(CLIENT_ROWS)], **settings), data, settings


def works(name):
    """Return one update of the task and one of the bare loop."""
    task, data, settings = task_of(name)
    local = LocalTraining(0.01, steps=STEPS, batch_size=SIZE)
    start = HiddenState.of(task.initial_model(Stream.named(0, "initial model")))
    module, (inputs, targets) = task._make().train(), map(torch.from_numpy, data)
    forward, loss_of = settings.get("forward", lambda module, x: module(x)), settings.get("loss", cross_entropy)
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.01)

    def ours(number):
        task.train(0, start, local, Stream.named(0, "train", 0, number))

    def bare(number):
        generator = Stream.named(0, "train", 0, number).generator()
        for rows in batches(task.partition.rows(0), local, generator):
            optimizer.zero_grad()
            loss_of(forward(module, inputs[rows]), targets[rows]).backward()
            optimizer.step()

    return ours, bare


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["mlp", "resnet20", "gpt", "lora"])
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0, help="the least time of a turn")
    given = parser.parse_args()
    keep_freed_memory()
    print(f"{'model':10} {'updates/s':>10} {'bare':>10} {'ratio':>7}  least, largest ratio", flush=True)
    with one_thread():
        for name in given.models:
            trainers = [timed(work) for work in works(name)]
            times = max(1, round(given.seconds / trainers[1](2)))
            ours, bare = take_turns(trainers, given.turns, times)
            ratios = [theirs / mine for mine, theirs in zip(ours, bare, strict=True)]
            print(
                f"{name:10} {1 / median(ours):10.1f} {1 / median(bare):10.1f} {median(ratios):7.3f}  "
                f"{min(ratios):.3f}, {max(ratios):.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
