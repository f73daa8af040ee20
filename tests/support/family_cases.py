"""Tiny checkpoints of every family, as transformers saves them: one or more in a file of each.

`tests/crossing/cases/FAMILY.json` has a list of cases. A case has a `model_type`, what of its
config is not usual (`config`), and may have a `name`, a kind of `tokenizer`, whether it is in the
usual run of the tests (`usual`, else only with `-m long`), why a judge cannot run it
(`no_llama_cpp`), and by how much judges may differ on quantized weights: where a rounding decides
which groups of experts are used, or where gates multiply rounded activations (`most_divergence`).
`lost` are the keys of its config that GGUF cannot say. `flash` states that llama.cpp computes the
model right only with flash attention. Types that transformers lacks are made and
read as others (`family_stand_ins`), or have a model in the tests (`own_models`).
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

import family_tokenizers
from family_stand_ins import OWN_TYPES, STAND_INS
from lazy import torch, transformers
from once import once
from tiny import SIZES, TOKEN_SIZES, read_cases
from weightctl.families import FAMILIES

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = [
    "CASES",
    "FamilyCase",
    "FamilyCheckpoint",
    "for_transformers",
    "make_checkpoint",
    "model_class",
    "run_transformers",
    "untie_output",
]

_TOKENS, _SPREAD = 80, 2.5
# The types whose norms add 1 to their weights.
_LESS_ONE = {"gemma", "gemma2", "gemma3_text", "plamo2", "recurrent_gemma"}
# The types that do not divide attention scores by the root of a head's size: their norms do.
_UNDIVIDED = {"gemma3n_text", "gemma4_text"}


@dataclass(frozen=True)
class FamilyCase:
    """A tiny model of a family; its fields are those of the file."""

    family: str
    model_type: str
    config: dict[str, Any] = field(default_factory=dict[str, Any])
    name: str = ""
    tokenizer: str = "gpt2"
    usual: bool = False
    no_llama_cpp: str = ""
    most_divergence: float = 0.0
    lost: tuple[str, ...] = ()
    flash: bool = False

    @property
    def kind(self) -> str:
        """The key of its stand-in: its type, or the family if others have the type, too."""
        return self.family if self.family in STAND_INS else self.model_type

    @property
    def id(self) -> str:
        return f"{self.family}-{self.name}" if self.name else self.family


CASES = {name: FamilyCase(**case) for name, case in read_cases().items()}


@dataclass(frozen=True)
class FamilyCheckpoint:
    """A checkpoint in a directory, and what transformers computes of some tokens.

    `expected` are logits [tokens, vocabulary], or the states of an encoder [tokens, hidden].
    """

    case: FamilyCase
    path: Path
    tokens: list[int]
    expected: NDArray[np.float32]
    is_encoder: bool


def make_checkpoint(name: str, directory: Path) -> FamilyCheckpoint:
    """Return a case's checkpoint, made in a directory where it is not there yet."""
    import own_models  # noqa: F401

    case = CASES[name]
    path = once(directory / "cases" / name, lambda half: _make(case, half))
    expected = np.load(path / "expected.npy")
    about = json.loads((path / "about.json").read_text())
    return FamilyCheckpoint(case, path / "hf", about["tokens"], expected, about["is_encoder"])


def _make(case: FamilyCase, into: Path) -> None:
    transformers.utils.logging.disable_progress_bar()
    tokenizer = _tokenizer(case.tokenizer)
    config = _config(case, tokenizer)
    is_encoder = FAMILIES[case.family].load().config.endswith("EncoderConfig")
    kind = model_class(case)
    torch.manual_seed(0)
    # Classes of models themselves have this of the `Auto` ones by another name.
    make = getattr(kind, "from_config", None) or kind._from_config
    model = make(config, dtype=torch.float32, attn_implementation="eager").eval()
    tokens = torch.randint(8, len(tokenizer) - 8, (_TOKENS,)).tolist()
    _draw(model, tokens)
    model.save_pretrained(into / "hf")
    if (stand_in := STAND_INS.get(case.kind)) is not None:
        stand_in.write(into / "hf", _document(case, tokenizer))
        readable = stand_in.read(into / "hf", into / "readable")
        model = kind.from_pretrained(readable, dtype=torch.float32, attn_implementation="eager")
    tokenizer.save_pretrained(into / "hf")
    np.save(into / "expected.npy", run_transformers(model, tokens))
    (into / "about.json").write_text(json.dumps({"tokens": tokens, "is_encoder": is_encoder}))


@cache
def _tokenizer(name: str) -> Any:
    return getattr(family_tokenizers, name)()


def _config(case: FamilyCase, tokenizer: Any) -> Any:
    if (stand_in := STAND_INS.get(case.kind)) is not None:
        given = dict(stand_in.config(_document(case, tokenizer)))
        return transformers.CONFIG_MAPPING[given.pop("model_type")](**given)
    return transformers.CONFIG_MAPPING[case.model_type](**_document(case, tokenizer))


def _document(case: FamilyCase, tokenizer: Any) -> dict[str, Any]:
    """Return what a case's config.json states, of a type that transformers lacks all of it."""
    stand_in = STAND_INS.get(case.kind)
    kind = transformers.CONFIG_MAPPING[stand_in.model_type if stand_in else case.model_type]
    known = set(kind().to_dict()) | set(getattr(kind, "attribute_map", {}))
    # A size may have two names, of which the class has one.
    aliases = getattr(kind, "attribute_map", {})
    sizes = {key: value for key, value in SIZES.items() if key in known and key not in aliases}
    ids = {
        f"{each}_token_id": getattr(tokenizer, f"{each}_token_id") for each in ("bos", "eos", "pad")
    }
    named = {} if stand_in is None else {
        "model_type": case.model_type, "architectures": [stand_in.class_name]
    }  # fmt: skip
    tokens = {key: len(tokenizer) for key in ("vocab_size", *TOKEN_SIZES & known)}
    usual = sizes | tokens | ids
    return (usual if stand_in is None else dict(stand_in.rename(usual))) | case.config | named


def model_class(case: FamilyCase) -> Any:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    import own_models  # noqa: F401

    family = FAMILIES[case.family].load()
    if family.config.endswith("EncoderConfig"):
        return transformers.AutoModel
    if case.kind in {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *STAND_INS, *OWN_TYPES}:
        return transformers.AutoModelForCausalLM
    return getattr(transformers, family.model_types[case.model_type].class_name)


def for_transformers(case: FamilyCase, path: Path, into: Path) -> Path:
    """Return a checkpoint of a case that transformers reads, made in `into` if it is not that."""
    stand_in = STAND_INS.get(case.kind)
    return path if stand_in is None else stand_in.read(path, into)


def run_transformers(model: Any, tokens: list[int]) -> NDArray[np.float32]:
    """Return the logits of a model of transformers, or an encoder's states, of one text."""
    ids = torch.tensor([tokens])
    # A decoder reads the same tokens as the encoder.
    more = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    with torch.inference_mode():
        out = model(ids, **more)
    found: Any = getattr(out, "logits", None)
    return (out.last_hidden_state if found is None else found)[0].float().numpy()


def _draw(model: Any, tokens: list[int]) -> None:
    """Fill a model with values of which a lost or a misplaced one would be seen.

    Norms and biases are not ones and zeros. The logits are spread, so that the likeliest token is
    neither certain nor a matter of rounding.
    """
    is_tied = _is_tied(model.config)
    embedding_scale = _find_embedding_scale(model.config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            if parameter.dim() > 1:
                scale = _deviation(name, parameter.shape, is_tied=is_tied)
                if "embed_tokens." in name:
                    scale /= embedding_scale
                parameter.copy_(noise * scale)
            elif re.search(r"norm|ln_|layernorm", name) and name.endswith("weight"):
                _draw_norm(model.config.model_type, name, parameter, noise)
            else:
                parameter.copy_(0.2 * noise)
        for name, buffer in model.named_buffers():
            if not buffer.is_floating_point():
                _draw_table(name, buffer, model.config)
            elif name in model.state_dict():  # what is added to the scores of experts
                noise = 0.2 * torch.randn_like(buffer)
                buffer.copy_(1 + noise if name.endswith("layer_scalar") else noise)
    model.tie_weights()
    head = untie_output(model) if hasattr(model, "get_output_embeddings") else None
    if head is None:
        return
    for _ in range(2):
        times = _SPREAD / max(float(run_transformers(model, tokens).std(-1).mean()), 1e-6)
        with torch.no_grad():
            _amplify(model, head, times, is_tied=is_tied)


def _draw_table(name: str, table: Any, config: Any) -> None:
    """Fill a table with the numbers of different experts for each token, if it is one."""
    if name.endswith("tid2eid"):
        order = torch.rand(len(table), config.n_routed_experts).argsort(-1)
        table.copy_(order[:, : table.shape[1]])


def _draw_norm(model_type: str, name: str, parameter: Any, noise: Any) -> None:
    parameter.add_(0.25 * noise)
    if model_type in _UNDIVIDED and re.search(r"\.[qk]_norm", name):
        parameter.mul_(len(parameter) ** -0.25)
    if "word_embeddings_layernorm" in name:  # or the output only repeats its input
        parameter.mul_(0.1)


def _is_tied(config: Any) -> bool:
    """Whether the output is the embedding.

    transformers' `T5Config` says so of all models, and by another key that T5 v1.1 has both.
    """
    stated = getattr(config, "scale_decoder_outputs", True)
    return bool(getattr(config, "tie_word_embeddings", False) and stated)


def untie_output(model: Any) -> Any:
    """Return the output of a model, with weights of its own if its checkpoints have them."""
    head = model.get_output_embeddings()
    if getattr(model.config, "tie_word_embeddings", False) and not _is_tied(model.config):
        drawn = torch.randn_like(head.weight) * _deviation(
            "lm_head", head.weight.shape, is_tied=False
        )
        head.weight = torch.nn.Parameter(drawn)
    return head


def _find_embedding_scale(config: Any) -> float:
    """Return what a model multiplies the embedding by, where it is tied to the output."""
    if "gemma" in config.model_type or getattr(config, "mup_enabled", False):
        return math.sqrt(config.hidden_size)
    if not getattr(config, "tie_word_embeddings", False):
        return 1.0
    return float(getattr(config, "embedding_multiplier", getattr(config, "scale_emb", 1.0)))


def _deviation(name: str, shape: Any, *, is_tied: bool) -> float:
    if "embed_tokens_per_layer" in name:
        return 0.1
    if re.search(r"embed|wte|wpe|lm_head|^shared\.", name) and len(shape) == 2:
        if re.search(r"position|wpe|token_type", name):
            return 0.3
        return _SPREAD / math.sqrt(shape[-1]) if is_tied or "head" in name else 1.0
    # The inputs of these stand first.
    is_turned = re.search(r"c_(attn|proj|fc)\.weight", name) is not None
    # T5 does not divide scores by the root of a head's size.
    extra = 8 if re.search(r"(Self|EncDec)Attention\.q\.", name) else 1
    return 1 / math.sqrt(shape[-2 if is_turned else -1]) / extra


def _amplify(model: Any, head: Any, times: float, *, is_tied: bool) -> None:
    if not is_tied:
        head.weight.mul_(times)
        if head.bias is not None:
            head.bias.mul_(times)
        return
    last = re.compile(
        r"(^|\.)(norm|ln_f|final_layernorm|final_layer_norm|norm_f|final_norm)\.(weight|bias)$"
    )
    for name, parameter in model.named_parameters():
        inside = (".layers.", ".h.", "encoder.")
        if last.search(name) and not any(each in name for each in inside):
            is_less_one = model.config.model_type in _LESS_ONE and name.endswith("weight")
            parameter.copy_((1 + parameter) * times - 1 if is_less_one else parameter * times)
