"""The form in which Meta and Mistral AI release models: params.json and `consolidated` files.

Their tensors get the names of Hugging Face's convention, and config.json's keys follow from those
of params.json and from the shapes. Names: `model.py` of Meta's llama-models and `transformer.py` of
mistral-inference; transformers' `convert_llama_weights_to_hf.py` has what params.json leaves out.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from weightctl.errors import ArchitectureError, FormatError
from weightctl.text.untyped import is_object
from weightctl.text.wording import join_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import Header, TensorInfo
    from weightctl.weights.tree import Checkpoint

PARAMS = "params.json"
_EMBEDDING, _OUTPUT = "tok_embeddings.weight", "output.weight"
# The names of parts, and of those in layers.
_OUTER = {
    "tok_embeddings.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_INNER = {
    "attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attention.wq": "self_attn.q_proj", "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj", "attention.wo": "self_attn.o_proj",
    "feed_forward.w1": "mlp.gate_proj", "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj", "feed_forward.gate": "block_sparse_moe.gate",
}  # fmt: skip
_LAYER = re.compile(r"layers\.(\d{1,6})\.(.+)\.weight")
_EXPERT = re.compile(r"feed_forward\.experts\.(\d{1,6})\.(w[123])")
# The frequencies of RoPE, which some files have.
_UNUSED = "rope.freqs"
# Keys of params.json, and what they are in config.json.
_KEYS = {
    "dim": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads", "head_dim": "head_dim", "norm_eps": "rms_norm_eps",
    "rope_theta": "rope_theta", "sliding_window": "sliding_window",
    "tied_embeddings": "tie_word_embeddings", "max_position_embeddings": "max_position_embeddings",
    "max_seq_len": "max_position_embeddings",
}  # fmt: skip
# Keys that shapes say, or that have no effect on a model of these types.
_IMPLIED = frozenset({
    "causal", "ffn_dim_multiplier", "hidden_dim", "max_batch_size", "model_type", "moe",
    "multiple_of", "use_scaled_rope", "vocab_size",
})  # fmt: skip
_MAX_SIZE = 1_000_000
_SCALING = {
    "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
# The widest models of Llama 3.2 with text only, whose factor is another one.
_SMALL = 3072


def restate_params_form(weights: Checkpoint) -> tuple[Checkpoint, Mapping[str, Any]]:
    """Return a checkpoint of this form in Hugging Face's form, and its config.

    Raises `ArchitectureError` if params.json is missing, invalid or of an unsupported model.
    """
    from weightctl.families.steps import half_split_order
    from weightctl.weights.derived import Derived, DerivedTensor, tensor_of
    from weightctl.weights.steps.rows import RowOrder
    from weightctl.weights.tree import Checkpoint as Tree
    from weightctl.weights.tree import header_of, source_of

    header = header_of(weights)
    path, params = _read_params(header)
    try:
        config = _make_config(params, header.tensors)
        sizes = {name: _count_heads(name, config) for name in ("wq", "wk")}
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ArchitectureError(
            f"{path}: {error if isinstance(error, ValueError) else f'{error} is missing'}",
            hint="check that params.json belongs to these files",
        ) from error
    source = source_of(weights)
    stored: dict[str, ReadableTensor] = {}
    for name in source.header.tensors:
        if name.startswith(_UNUSED):
            continue
        tensor: ReadableTensor = tensor_of(source, name)
        made, part = _rename(name), name.split(".")[-2]
        if part in sizes and ".attention." in name:
            heads = sizes[part]
            rows = tensor.info.shape[0]
            order = half_split_order(heads, rows // heads)
            tensor = DerivedTensor(made, RowOrder(order, "rows of a half-split RoPE"), [tensor])
        stored[made] = tensor
    return Tree(Derived(source, stored, source.header.metadata)), config


def _read_params(header: Header) -> tuple[str, Mapping[str, Any]]:
    from weightctl.formats.huggingface import model_directory
    from weightctl.storage.files import open_reader
    from weightctl.weights.json_file import read_json

    path = os.path.join(model_directory(header) or "", PARAMS)
    try:
        document = read_json(open_reader(path), _MAX_SIZE)
    except FormatError as error:
        raise ArchitectureError(
            f"{path}: {error.reason}; the names of the tensors are those of models that have "
            f"{PARAMS} in place of config.json",
            hint=f"put {PARAMS} beside the weights",
        ) from error
    if not is_object(document):
        raise ArchitectureError(f"{path}: the file is not a JSON object", hint="download it again")
    return path, document


def _make_config(params: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> dict[str, Any]:
    """Return config.json; raises `ValueError` or `KeyError` for params that do not fit."""
    if unknown := [name for name, value in params.items() if _changes(name, value)]:
        raise ValueError(
            f"models with {join_names([f'`{name}`' for name in unknown], 4)} are not supported"
        )
    found: dict[str, Any] = {
        new: params[old] for old, new in _KEYS.items() if params.get(old) is not None
    }
    for key in ("hidden_size", "num_attention_heads", "num_hidden_layers", "rms_norm_eps"):
        if key not in found:
            raise KeyError(next(old for old, new in _KEYS.items() if new == key))
    vocabulary = tensors[_EMBEDDING].shape[0]
    is_scaled = bool(params.get("use_scaled_rope"))
    config: dict[str, Any] = {
        "model_type": "mistral" if "head_dim" in params else "llama",
        "vocab_size": vocabulary,
        "max_position_embeddings": _find_context(vocabulary, is_scaled=is_scaled),
        "tie_word_embeddings": _OUTPUT not in tensors,
        "sliding_window": None,
        **found,
    }
    # mistral-inference assumes the larger value for models without a window.
    is_of_mistral = "head_dim" in params and config["sliding_window"] is None
    config.setdefault("rope_theta", 1e6 if is_of_mistral else 1e4)
    moe = params.get("moe")
    if moe is not None:
        config |= {
            "model_type": "mixtral",
            "num_local_experts": moe["num_experts"],
            "num_experts_per_tok": moe["num_experts_per_tok"],
        }
    config["architectures"] = [f"{config['model_type'].capitalize()}ForCausalLM"]
    part = "feed_forward.experts.0" if moe is not None else "feed_forward"
    config["intermediate_size"] = tensors[f"layers.0.{part}.w1.weight"].shape[0]
    if is_scaled:
        factor = 32.0 if config["hidden_size"] <= _SMALL else 8.0
        config["rope_scaling"] = {**_SCALING, "factor": factor}
    return config


def _changes(name: str, value: Any) -> bool:
    """Whether a key of params.json has an effect that is not supported."""
    if name == "causal":
        return value is False
    return name not in _KEYS.keys() | _IMPLIED and bool(value)


def _find_context(vocabulary: int, *, is_scaled: bool) -> int:
    """Return the number of positions, which Meta's params.json leaves out."""
    if is_scaled:
        return 131072
    return 8192 if vocabulary > 100_000 else 4096


def _count_heads(part: str, config: Mapping[str, Any]) -> int:
    heads: int = config["num_attention_heads"]
    shared: int = config.get("num_key_value_heads", heads)
    found = heads if part == "wq" else shared
    if type(found) is not int or found < 1:
        raise ValueError("the numbers of heads must be positive integers")
    return found


def _rename(name: str) -> str:
    """Return the name of a tensor in Hugging Face's convention; others stay."""
    found = _LAYER.fullmatch(name)
    if found is None:
        return _OUTER.get(name, name)
    layer, part = found.groups()
    expert = _EXPERT.fullmatch(part)
    made = _INNER.get(part, part)
    if expert is not None:
        made = f"block_sparse_moe.experts.{expert[1]}.{expert[2]}"
    return f"model.layers.{layer}.{made}.weight"
