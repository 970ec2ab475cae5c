"""Pretrain a small GPT on the characters of plays that are not clients, and save it in the folder base."""

import math
import time

import torch
from transformers import get_cosine_schedule_with_warmup

from qafel.tasks.neural.language import causal_model, language, logits, next_token_loss

CLIENTS = 50
"""The characters with the longest texts are the clients of the recipes."""
GPT = {
    **{"model_type": "gpt2", "n_layer": 4, "n_head": 4, "n_embd": 128, "n_positions": 64, "vocab_size": 256},
    **{"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0},
}


def pretrain(folder="base", steps=500, batch_size=32, lr=2e-3, model=GPT, text="shakespeare", skip=CLIENTS):
    """Train on random batches, and return the perplexity on the last tenth of these characters' texts."""
    torch.manual_seed(0)
    module = causal_model(model)
    task = language(model, text, skip=skip, length=model["n_positions"])
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
        if (step + 1) % 100 == 0:
            print(f"step {step + 1}: loss {loss.item():.3f}, {time.perf_counter() - begin:.0f} s", flush=True)
    module.eval()
    inputs, targets = (torch.from_numpy(part.copy()).long() for part in task.test_samples.batch(slice(None)))
    with torch.no_grad():
        perplexity = math.exp(next_token_loss(logits(module, inputs), targets))
    module.save_pretrained(folder)
    return perplexity


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(f"perplexity of other samples: {pretrain():.3f}. Saved in base")
