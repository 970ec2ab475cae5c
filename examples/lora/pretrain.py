"""Pretrain a small GPT on the documentation of Python, and save it in the folder base."""

import ast
import math
import sysconfig
import time
from pathlib import Path
from pydoc_data.topics import topics

import torch
from transformers import get_cosine_schedule_with_warmup

from qafel.tasks.neural.language import causal_model, language, logits, next_token_loss

GPT = {
    **{"model_type": "gpt2", "n_layer": 4, "n_head": 4, "n_embd": 128, "n_positions": 64, "vocab_size": 256},
    **{"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0},
}


def python_documentation(modules="*.py"):
    """Return English text that every machine with Python has: help topics, and docstrings of the standard library."""
    texts = dict(topics)
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob(modules)):
        nodes = ast.walk(ast.parse(path.read_bytes()))
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        docstrings = (ast.get_docstring(node) for node in nodes if isinstance(node, documented))
        texts[path.name] = "\n\n".join(filter(None, docstrings))
    return texts


def pretrain(folder="base", steps=2400, batch_size=8, lr=2e-3, model=GPT, text=None):
    """Train on random batches, and return the perplexity on samples of the last tenth of each text."""
    torch.manual_seed(0)
    module = causal_model(model)
    task = language(model, python_documentation() if text is None else text, length=model["n_positions"])
    inputs, targets = (torch.from_numpy(part.copy()).long() for part in task.train_samples.batch(slice(None)))
    optimizer = torch.optim.AdamW(module.parameters(), lr=lr)
    schedule = get_cosine_schedule_with_warmup(optimizer, steps // 20, steps)
    begin = time.perf_counter()
    for step in range(steps):
        rows = torch.randint(0, len(inputs), (batch_size,))
        loss = next_token_loss(logits(module, inputs[rows]), targets[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if (step + 1) % 200 == 0:
            print(f"step {step + 1}: loss {loss.item():.3f}, {time.perf_counter() - begin:.0f} s", flush=True)
    module.eval()
    inputs, targets = (torch.from_numpy(part.copy()).long() for part in task.test_samples.batch(slice(None)))
    with torch.no_grad():
        perplexity = math.exp(next_token_loss(logits(module, inputs), targets))
    module.save_pretrained(folder)
    return perplexity


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(f"perplexity on held-out documentation: {pretrain():.3f}. Saved in base")
