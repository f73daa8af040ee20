"""Train a small model on the texts of `fixtures/make_tiny_llama.py`, for benches of quantization.

Run with `python tests/bench/quality_model.py`; it needs `npm`, and takes about ten minutes on two
cores. The model is a Qwen3, or an OLMo 2 with `--family olmo2`. It has the tokenizer of
`fixtures/tiny-llama`, and rows of 256 and 512 values. It is written to the cache of the tests, or
to the folder that is given. Seeds are fixed.
"""

from __future__ import annotations

import argparse
import math
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import torch

FIXTURES = Path(__file__).parents[2] / "fixtures"
sys.path.insert(0, str(FIXTURES.parent / "tests" / "support"))

from real_files import CACHE  # noqa: E402

FAMILIES = {"qwen3": "Qwen3", "olmo2": "Olmo2"}
FOLDERS = {name: CACHE / f"quality-{name}" for name in FAMILIES}
SIZES: dict[str, Any] = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 512, "max_position_embeddings": 512,
    "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
WARMUP, PEAK_RATE = 50, 3e-3


def train(family: str, folder: Path, steps: int) -> None:
    """Train a model, and write it in bfloat16."""
    import transformers
    from tokenizers import Tokenizer

    sys.path.insert(0, str(FIXTURES))
    import make_tiny_llama as maker

    documents, _ = maker.collect_text()
    tokenizer = Tokenizer.from_file(str(FIXTURES / "tiny-llama" / "tokenizer.json"))
    stream = torch.tensor([
        token
        for each in tokenizer.encode_batch(documents, add_special_tokens=False)
        for token in each.ids
    ])  # fmt: skip
    torch.manual_seed(1)
    config = getattr(transformers, f"{FAMILIES[family]}Config")(**SIZES)
    model: Any = getattr(transformers, f"{FAMILIES[family]}ForCausalLM")(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.1)
    for step, tokens in enumerate(islice(maker.batches(stream), steps)):
        share = (1 + math.cos(math.pi * step / steps)) / 2
        for group in optimizer.param_groups:
            group["lr"] = PEAK_RATE * min(1, (step + 1) / WARMUP) * share
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1)
        optimizer.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step}: {loss.item():.3f} nats", flush=True)
    model.to(torch.bfloat16).save_pretrained(folder)


def main() -> None:
    """Train and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--family", choices=FAMILIES, default="qwen3")
    parser.add_argument("--steps", type=int, default=700)
    arguments = parser.parse_args()
    folder = arguments.folder or FOLDERS[arguments.family]
    train(arguments.family, folder, arguments.steps)


if __name__ == "__main__":
    main()
