"""Tiny checkpoints of any family, made from its table in either naming convention.

The names, shapes and keys are those of `weightctl.families`, so that neither transformers nor torch
is needed. A case is one of `tests/crossing/cases`: a family, or a variant of one.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from weightctl import WeightData
from weightctl.families import FAMILIES, RecognizedModel, recognize
from weightctl.families.config_values import Exactly
from weightctl.families.configs import from_hugging_face
from weightctl.families.modules import shape_of
from weightctl.families.steps import INT32
from weightctl.plan.plan import Plan
from weightctl.translate import translate
from weightctl.translate.tensors import translate_tensors
from weightctl.weights.derived import Derived, StoredTensor
from weightctl.weights.from_arrays import as_checkpoint
from weightctl.weights.tree import Checkpoint, source_of
from weightctl.write.save import save

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from weightctl.families.config_keys import Config
    from weightctl.families.family import Family
    from weightctl.families.modules import TensorNames

_CASES = Path(__file__).parents[1] / "crossing" / "cases"
# What most configs call their sizes: of these a config gets those that its family has.
SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model"), 256),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner", "d_ff"), 512),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 3),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    "num_key_value_heads": 2,
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), 512),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size",
                     "shared_intermediate_size"), 256),
    **dict.fromkeys(("n_shared_experts", "num_shared_experts"), 1),
}  # fmt: skip
TOKEN_SIZES, _TOKENS = {"vocab_size", "vocab_size_per_layer_input"}, 320
# The configs of `make_small`, which `small_models` makes in transformers, too.
_SMALL: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
}  # fmt: skip
_EXPERTS = {"num_hidden_layers": 2, "num_experts_per_tok": 2}
_GEMMA = {
    "head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 8, "num_hidden_layers": 4,
}  # fmt: skip
_GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 50000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
}
SMALL: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **_SMALL},
    "gpt2": {"model_type": "gpt2", "vocab_size": 96, "n_embd": 64, "n_layer": 2, "n_head": 4,
             "n_positions": 64, "bos_token_id": 1, "eos_token_id": 2},
    "bert": {"model_type": "bert", **_SMALL, "max_position_embeddings": 64},
    # The soft caps and windows have an effect, and the fourth layer has global attention.
    "gemma2": {"model_type": "gemma2", **_SMALL, **_GEMMA, "attn_logit_softcapping": 2.0,
               "final_logit_softcapping": 3.0},
    "gemma3": {"model_type": "gemma3_text", **_SMALL, **_GEMMA, "rope_parameters": _GEMMA3_ROPE,
               "sliding_window_pattern": 4},
    "qwen2": {"model_type": "qwen2", **_SMALL, "num_hidden_layers": 3},
    "qwen3": {"model_type": "qwen3", **_SMALL, "num_hidden_layers": 3, "head_dim": 32},
    "phi3": {"model_type": "phi3", **_SMALL, "num_hidden_layers": 3, "bos_token_id": 1,
             "eos_token_id": 2, "pad_token_id": 0},
    "mixtral": {"model_type": "mixtral", **_SMALL, **_EXPERTS, "num_local_experts": 4},
    "qwen3moe": {"model_type": "qwen3_moe", **_SMALL, **_EXPERTS, "num_experts": 4, "head_dim": 32,
                 "moe_intermediate_size": 32, "norm_topk_prob": True},
}  # fmt: skip
del SMALL["bert"]["num_key_value_heads"]


@cache
def read_cases() -> dict[str, dict[str, Any]]:
    """Return what the files state about each case, by its name."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(_CASES.glob("*.json")):
        for case in json.loads(path.read_text()):
            name = f"{path.stem}-{case['name']}" if case.get("name") else path.stem
            found[name] = {"family": path.stem, **case}
    return found


def make_config(name: str, **changes: Any) -> dict[str, Any]:
    """Return the config.json of a case, with other values where there are `changes`."""
    case = read_cases()[name]
    keys = FAMILIES[case["family"]].load().keys
    known = {key.hugging_face for key in keys if not isinstance(key.kind, Exactly)}
    all_sizes = SIZES | dict.fromkeys(TOKEN_SIZES, _TOKENS)
    sizes = {key: size for key, size in all_sizes.items() if key in known}
    return {"model_type": case["model_type"]} | sizes | case.get("config", {}) | changes


def make(name: str, convention: str = "hugging_face", **options: Any) -> RecognizedModel:
    """Return a tiny model of a case in memory; the options are those of `make_model`."""
    changes = {key: options.pop(key) for key in [*options] if key != "seed"}
    family = FAMILIES[read_cases()[name]["family"]].load()
    return make_model(make_config(name, **changes), convention, family, **options)


def make_small(family: str, convention: str = "hugging_face", **changes: Any) -> RecognizedModel:
    """Return one of the ten models of `SMALL` in memory, with these changes of its config."""
    return make_model(SMALL[family] | changes, convention)


def make_model(
    document: Mapping[str, Any],
    convention: str = "hugging_face",
    family: Family | None = None,
    *,
    seed: int = 0,
) -> RecognizedModel:
    """Return the model that a config.json describes, with random values in float32.

    `family` is needed where several families have the `model_type`.
    """
    lines = (line for line in FAMILIES.values() if document["model_type"] in line.model_types)
    family = family or next(lines).load()
    read = from_hugging_face(family, document, "config.json")
    random = np.random.default_rng(seed)
    data = {
        names.module: WeightData.from_numpy(_draw(random, names, read.config), names.module)
        for names in family.tensors(read.config)
    }
    source = source_of(as_checkpoint(data))
    parts = RecognizedModel(
        tree=Checkpoint(source),
        where="config.json",
        family=family,
        convention="hugging_face",
        config=read.config,
        fields=read.fields,
        document=document,
        tensors={name: StoredTensor(source, name) for name in data},
        missing=[],
        unexpected=[],
        beside=[],
        stored={},
    )
    # The names of Hugging Face, of which one can stand for several parts of a model.
    tensors = translate_tensors(parts, "hugging_face")
    made = recognize(Checkpoint(Derived(source, tensors, {})), document)
    return made if convention == "hugging_face" else as_gguf(made)


def as_gguf(model: RecognizedModel) -> RecognizedModel:
    return recognize(translate(model, "gguf").weights)


def changed(model: RecognizedModel, **keys: Any) -> RecognizedModel:
    """Return a model with other values in its config.json."""
    return recognize(model.tree, {**model.document, **keys})


def arrays_of(model: RecognizedModel) -> dict[str, NDArray[Any]]:
    """Return the tensors of a model by their names in its convention."""
    return {name: node.data().to_numpy().copy() for name, node in model.tree.items()}


def write(
    path: Path,
    name: str,
    *,
    tokenizer: str | None = None,
    fault: str | None = None,
    **options: Any,
) -> Path:
    """Write a tiny model: a GGUF file if the suffix says so, else a directory.

    `tokenizer` is a kind of `family_tokenizers`, which is saved beside a directory. `fault` is the
    name of a row of `faults.FAULTS`.
    """
    convention = "gguf" if path.suffix == ".gguf" else "hugging_face"
    with TemporaryDirectory(dir=path.parent) as folder:
        whole = path if fault is None else Path(folder) / path.name
        made = make(name, convention, **options)
        save_model(made, whole)
        if tokenizer is not None:
            import family_tokenizers

            getattr(family_tokenizers, tokenizer)().save_pretrained(whole)
        if fault is not None:
            import faults

            faults.inject(whole, path, fault)
    return path


def save_model(made: RecognizedModel, path: Path) -> Path:
    """Write a model in its naming convention; return the path."""
    is_directory = made.convention == "hugging_face"
    weights = path / "model.safetensors" if is_directory else path
    if is_directory:
        path.mkdir(parents=True)
        (path / "config.json").write_text(json.dumps(made.document))
    save(Plan.copy(made.tree, "safetensors" if is_directory else "gguf"), weights)
    return path


def _draw(random: np.random.Generator, names: TensorNames, config: Config) -> NDArray[Any]:
    shape = shape_of(names, config)
    if names.change is INT32:  # a table of experts by tokens
        return random.integers(0, 2, shape, np.int32)
    drawn = random.standard_normal(shape, np.float32)
    if len(shape) > 1:
        return drawn / np.float32(shape[-1] ** 0.5)
    is_norm = re.search(r"norm.*weight$", names.module) is not None
    return np.float32(0.1) * drawn + np.float32(is_norm)
