"""`language`: train a causal language model of Hugging Face, whole or with LoRA (the extra `transformers`)."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from qafel.errors import ConfigError
from qafel.lazy import require_installed
from qafel.parts import describe_error
from qafel.rng import Stream
from qafel.tasks.datasets.files import data_folder
from qafel.tasks.datasets.shakespeare import find_shakespeare, parse_shakespeare
from qafel.tasks.neural.task import TorchTask
from qafel.tasks.neural.trainer import Precision

require_installed("a language model", "transformers", "transformers", "peft")

Text: TypeAlias = Mapping[str, str] | Sequence[str] | str
"""The text of each client; or a file or folder of files, one client each; or "shakespeare"."""
_LORA = {"rank": 8, "alpha": 16, "target_modules": None, "dropout": 0.0}
_OPTIMIZERS = {"sgd": None, "adamw": torch.optim.AdamW}


class LanguageTask(TorchTask):
    """A `TorchTask` whose main metric is the perplexity, exp of the mean loss per token."""

    def combine(self, parts: Sequence[tuple[Any, ...]]) -> dict[str, float]:
        loss = super().combine(parts)["loss"]
        return {"metric": float(np.exp(loss)), "loss": loss}


def language(
    model: Mapping[str, Any] | str | os.PathLike[str],
    text: Text = "shakespeare",
    *,
    lora: Mapping[str, Any] | None = None,
    tokenizer: str | None = None,
    length: int = 64,
    clients: int | None = None,
    skip: int = 0,
    test_fraction: float = 0.1,
    max_samples: int | None = None,
    test_samples: int | None = 512,
    optimizer: Literal["sgd", "adamw"] = "sgd",
    seed: int = 0,
    data: str | os.PathLike[str] | None = None,
    device: str = "cpu",
    precision: Precision = "float32",
) -> LanguageTask:
    """Return a task that trains a causal language model on the texts of clients. The metric is the perplexity.

    model           a folder that `save_pretrained` wrote, or a configuration, such as {"model_type": "gpt2", "n_layer":
                    2}, for random weights. The weights of a folder are the same for every seed
    text            the text of each client; a folder with a .txt file for each client; or "shakespeare", where a
                    client is a speaking character of a play
    lora            train low-rank adapters only, such as {"rank": 8, "alpha": 16, "target_modules": ["c_attn"]}; None:
                    train all parameters
    tokenizer       a folder with a tokenizer; None: tokens are the bytes of the text, 0 to 255
    length          tokens per sample. A client's text is cut into samples; the rest is left out
    clients         the number of clients with the longest texts, after the first `skip` ones; None: all
    test_fraction   the last share of each client's samples, for testing
    max_samples     the most training samples of a client, chosen at random
    test_samples    the number of test samples, chosen at random; None: all
    optimizer       the clients' optimizer, "sgd" or "adamw"
    seed            decides the chosen samples, and has no effect on training
    data            the folder of datasets, for "shakespeare"
    """
    given = {**locals(), "model": model if isinstance(model, Mapping) else os.fspath(Path(model).absolute())}
    if optimizer not in _OPTIMIZERS:
        raise ConfigError(f"optimizer is one of {', '.join(_OPTIMIZERS)}; got {optimizer!r}")
    make = partial(causal_model, given["model"], None if lora is None else dict(lora))
    encode = _encoder(tokenizer)
    texts = sorted(client_texts(text, data), key=len, reverse=True)[skip:][:clients]
    cut = [_cut(encode(one), length) for one in texts]
    cut = [samples for samples in cut if len(samples) >= 2]
    if not cut or (clients is not None and len(cut) < clients):
        raise ConfigError(f"{clients or 1} clients need at least two samples of {length} tokens; {len(cut)} have them")
    train, test, held = [], [], []
    generator = Stream.named(seed, "samples").generator()
    first = 0
    for samples in cut:
        kept = len(samples) - max(1, round(test_fraction * len(samples)))
        test.append(samples[kept:])
        rows = np.arange(kept)
        if max_samples is not None and kept > max_samples:
            rows = np.sort(generator.permutation(kept)[:max_samples])
        train.append(samples[rows])
        held.append(np.arange(first, first + len(rows)))
        first += len(rows)
    tested = np.concatenate(test)
    if test_samples is not None and test_samples < len(tested):
        tested = tested[np.sort(generator.permutation(len(tested))[:test_samples])]
    task = LanguageTask(
        *("language", make, _pair(np.concatenate(train)), _pair(tested), held),
        forward=logits,
        loss=next_token_loss,
        metrics={},
        optimizer=_OPTIMIZERS[optimizer],
        buffers="hold",
        device=device,
        precision=precision,
        evaluation_batch=64,
        rebuild=partial(language, **given),
    )
    task.metric_name = "perplexity"
    return task


def causal_model(model: Mapping[str, Any] | str, lora: Mapping[str, Any] | None = None) -> nn.Module:
    """Return a causal language model from a folder or a configuration, with new adapters if `lora` is given."""
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415  (slow to import)

    try:
        if isinstance(model, str):
            made = AutoModelForCausalLM.from_pretrained(model, local_files_only=True)
        else:
            made = AutoModelForCausalLM.from_config(AutoConfig.for_model(**model))  # type: ignore[no-untyped-call]
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"model {model!r:.80} is not a folder of save_pretrained or a configuration with model_type: "
            f"{describe_error(error)}"
        ) from None
    return made if lora is None else _with_adapters(made, lora)


def _with_adapters(model: Any, lora: Mapping[str, Any]) -> nn.Module:
    from peft import LoraConfig, get_peft_model  # noqa: PLC0415

    if unknown := sorted(set(lora) - set(_LORA)):
        raise ConfigError(f"lora has the settings {', '.join(_LORA)}; got {', '.join(unknown)}")
    settings = {**_LORA, **lora}
    config = LoraConfig(
        r=settings["rank"],
        lora_alpha=settings["alpha"],
        target_modules=settings["target_modules"],
        lora_dropout=settings["dropout"],
        task_type="CAUSAL_LM",
    )
    try:
        with warnings.catch_warnings():  # peft corrects fan_in_fan_out for layers that store transposed weights
            warnings.simplefilter("ignore", UserWarning)
            return get_peft_model(model, config)
    except ValueError as error:
        raise ConfigError(f"lora does not fit the model: {describe_error(error)}") from None


def logits(module: nn.Module, tokens: Tensor) -> Tensor:
    """Return the scores of the next token at each position."""
    found: Tensor = module(input_ids=tokens.long(), use_cache=False).logits
    return found


def next_token_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy over all positions."""
    return cross_entropy(outputs.flatten(0, 1), targets.flatten())


def client_texts(text: Text, data: str | os.PathLike[str] | None = None) -> list[str]:
    """Return the text of each client."""
    if isinstance(text, Mapping):
        return list(text.values())
    if not isinstance(text, str):
        return list(text)
    if text == "shakespeare":
        (path,) = find_shakespeare(data_folder(data), source="official")
        return list(parse_shakespeare(path.read_text(encoding="utf-8-sig")).values())
    if found := sorted(Path(text).glob("*.txt")):
        return [path.read_text(encoding="utf-8") for path in found]
    raise ConfigError(f'text is "shakespeare", a folder with a .txt file per client, or a list of texts; got {text!r}')


def _encoder(tokenizer: str | None) -> Any:
    """Return a function from a text to its tokens."""
    if tokenizer is None:
        return lambda text: np.frombuffer(text.encode(), np.uint8)
    from transformers import AutoTokenizer  # noqa: PLC0415

    try:
        found = AutoTokenizer.from_pretrained(tokenizer, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{tokenizer!r} is not a folder with a tokenizer: {describe_error(error)}") from None
    return lambda text: np.array(found(text)["input_ids"], np.int64)


def _cut(tokens: NDArray[Any], length: int) -> NDArray[Any]:
    """Return consecutive samples of `length` + 1 tokens, which overlap by one."""
    count = max(0, (len(tokens) - 1) // length)
    samples: NDArray[Any] = tokens[np.arange(count)[:, None] * length + np.arange(length + 1)]
    return samples


def _pair(samples: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    return samples[:, :-1], samples[:, 1:]
