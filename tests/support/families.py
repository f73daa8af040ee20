"""A small random checkpoint of every family, as transformers saves it, with a tokenizer of its own.

Made once for all tests of a run. Where the likeliest token is hardly likelier than the next, which
one follows is a matter of rounding; such a model would prove nothing, so another is drawn.
"""

from __future__ import annotations

import pickle
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import family_tokenizers as tokenizers
from lazy import torch, transformers
from once import once

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

PROMPT, GENERATED = 24, 32
LEAST_MARGIN = 0.05
_SEEDS = 20
_SIZES: dict[str, Any] = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
}  # fmt: skip
_EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "hidden_size": 256, "intermediate_size": 256}


@dataclass(frozen=True)
class Family:
    """A kind of checkpoint: its config, its tokenizer, and rows of the vocabulary beyond that's."""

    model_type: str
    tokenizer: Callable[[], Any]
    changes: dict[str, Any] = field(default_factory=dict)
    more_rows: int = 0
    text: str = tokenizers.COMPOSED  # that llama.cpp cuts as transformers does
    seed: int = 0  # the first to try: of one that was found to do
    context: int = 512  # for llama.cpp, which chooses among rope's factors by it

    def config(self, tokenizer: Any) -> Any:
        sizes = dict(_SIZES)
        if self.model_type == "gpt2":
            sizes = {"n_embd": 256, "n_layer": 2, "n_head": 4, "n_positions": 512}
        if self.model_type == "bert":
            del sizes["num_key_value_heads"]
        return transformers.AutoConfig.for_model(
            self.model_type,
            vocab_size=len(tokenizer) + self.more_rows,
            **{
                f"{name}_token_id": getattr(tokenizer, f"{name}_token_id")
                for name in ("bos", "eos", "pad")
            },
            **(sizes | self.changes),
        )


FAMILIES = {
    "llama": Family(
        "llama",
        tokenizers.llama3,
        {
            "rope_parameters": {
                "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0,
                "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
        seed=3,
    ),
    "llama-yarn": Family(
        "llama",
        tokenizers.llama2,
        {
            "tie_word_embeddings": True,
            "attention_bias": False,
            "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
                "original_max_position_embeddings": 128,
            },
        }),
    "mistral": Family("mistral", tokenizers.llama2, {"sliding_window": 256, "head_dim": 32}),
    "mixtral": Family("mixtral", tokenizers.llama2,
                      {"num_local_experts": 4, "sliding_window": None} | _EXPERTS),
    "qwen2": Family("qwen2", tokenizers.qwen, {"tie_word_embeddings": True}, more_rows=23, seed=1),
    "qwen3": Family("qwen3", tokenizers.qwen, {"head_dim": 64}),
    "qwen3moe": Family(
        "qwen3_moe",
        tokenizers.qwen,
        {"num_experts": 4, "moe_intermediate_size": 256, "head_dim": 32, "norm_topk_prob": True}
        | _EXPERTS,
        seed=3,
    ),
    "gemma2": Family("gemma2", tokenizers.gemma,
                     {"head_dim": 64, "sliding_window": 16, "query_pre_attn_scalar": 64}),
    "gemma3": Family(
        "gemma3_text",
        tokenizers.gemma,
        {
            "head_dim": 64, "sliding_window": 16, "num_hidden_layers": 7,
            "query_pre_attn_scalar": 64,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                "full_attention": {
                    "rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0
                },
            },
        }),
    "phi3": Family("phi3", tokenizers.phi3, {"sliding_window": 400}),
    "phi3-long": Family(
        "phi3",
        tokenizers.phi3,
        {
            "sliding_window": 400,
            "original_max_position_embeddings": 256,
            "rope_parameters": {
                "rope_type": "longrope", "rope_theta": 10000.0,
                "original_max_position_embeddings": 256,
                "short_factor": [1 + n / 64 for n in range(32)],
                "long_factor": [2 + n / 8 for n in range(32)],
            },
        },
        context=256,
    ),
    "gpt2": Family("gpt2", tokenizers.gpt2),
    "bert": Family("bert", tokenizers.bert, text=tokenizers.WHOLE),
}  # fmt: skip
CAUSAL = [name for name in FAMILIES if name != "bert"]


@dataclass(frozen=True)
class Made:
    """A checkpoint in a directory of its own, and what transformers says of it in float32.

    `prompt` and `follows` are tokens, `expected` the logarithms of their probabilities,
    [tokens, vocabulary]; for an encoder what it makes of the prompt, [tokens, hidden].
    """

    path: Path
    bf16: Path
    prompt: list[int]
    follows: list[int]
    expected: NDArray[np.float32]

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.follows


@dataclass(frozen=True)
class Said:
    """What llama.cpp says of a checkpoint: the tokens that follow, logits, and of the text tokens.

    `numbers` are logits [tokens, vocabulary]; of an encoder the embeddings, [tokens, hidden].
    """

    follows: list[int]
    numbers: NDArray[np.float32]
    tokens: list[int]
    plain_tokens: list[int]


def made(name: str, directory: Path) -> Made:
    """Return a family's checkpoint, made in a directory where it is not there yet."""
    path = once(directory / "families" / name, lambda half: _make(FAMILIES[name], half))
    outcome = pickle.loads((path / "said.pickle").read_bytes())
    return Made(path / "f32", path / "bf16", *outcome)


def _make(family: Family, into: Path) -> None:
    transformers.utils.logging.disable_progress_bar()
    tokenizer = family.tokenizer()
    model, outcome = _drawn(family, tokenizer)
    for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
        model.to(dtype).save_pretrained(into / name)
        tokenizer.save_pretrained(into / name)
    (into / "said.pickle").write_bytes(pickle.dumps(outcome))


def _drawn(family: Family, tokenizer: Any) -> tuple[Any, Any]:
    config = family.config(tokenizer)
    for seed in range(family.seed, family.seed + _SEEDS):
        torch.manual_seed(seed)
        kind = transformers.AutoModel if family.model_type == "bert" else None
        model = (kind or transformers.AutoModelForCausalLM).from_config(
            config, dtype=torch.float32, attn_implementation="eager"
        )
        draw(model.eval())
        prompt = torch.randint(16, len(tokenizer) - 16, (PROMPT,)).tolist()
        with torch.inference_mode():
            if kind is not None:
                outcome = model(torch.tensor([prompt])).last_hidden_state[0].numpy()
                return model, (prompt, [], outcome)
        with suppress(NotSureError):
            follows = greedy(model, prompt)
            return model, (prompt, follows, log_probabilities(model, prompt + follows))
    raise AssertionError(f"no seed makes a {family.model_type} that is sure of what follows")


def draw(model: Any) -> None:
    """Fill a model with numbers of which a lost or a misplaced one would be seen.

    Those of norms and biases are not ones and zeros. Each layer changes much, or a tied output
    would only say again what it was told; what the output says is made loud.
    """
    is_tied = getattr(model.config, "tie_word_embeddings", False)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                is_word = re.search(r"embed_tokens|wte|lm_head", name)
                parameter.normal_(0, (0.008 if is_tied else 0.8) if is_word else 0.08)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            if is_tied and re.search(r"^(model\.norm|transformer\.ln_f)\.weight", name):
                parameter.add_(80)
            # Exact in bfloat16, so that both forms of the checkpoint are one model.
            parameter.copy_(parameter.bfloat16().float())


class NotSureError(AssertionError):
    """Two tokens are about as likely."""


def greedy(model: Any, prompt: list[int]) -> list[int]:
    """Return what follows, the likeliest each time.

    Raises `NotSureError` where a choice is close.
    """
    tokens, fed, cache = list(prompt), prompt, None
    with torch.inference_mode():
        for _ in range(GENERATED):
            outcome = model(torch.tensor([fed]), past_key_values=cache, use_cache=True)
            best = outcome.logits[0, -1].float().topk(2)
            if best.values[0] - best.values[1] <= LEAST_MARGIN:
                raise NotSureError
            fed, cache = [int(best.indices[0])], outcome.past_key_values
            tokens += fed
    return tokens[len(prompt) :]


def log_probabilities(model: Any, tokens: list[int]) -> NDArray[np.float32]:
    """Return what a model of transformers says after each token, [tokens, vocabulary].

    Nothing is cached: the whole model is run on all tokens at once.
    """
    with torch.inference_mode():
        logits = model(torch.tensor([tokens]), use_cache=False).logits[0]
        return logits.float().log_softmax(-1).numpy()
