"""Small models of transformers, in float32, and written as other tools write them."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np

from arrays import rope_rows, weights_of
from lazy import torch, transformers
from tiny import SMALL
from weightctl import WeightData
from weightctl.families import recognize
from weightctl.weights.from_arrays import as_checkpoint
from weightctl.weights.metadata import MetadataValue

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from weightctl.families import RecognizedModel


# Small models created with transformers, and written as other tools write them.

Arrays = dict[str, "NDArray[Any]"]


def make(family: str, **changes: Any) -> Any:
    """Return the random model of transformers with a config of `tiny.SMALL`, in float32."""
    config = transformers.AutoConfig.for_model(**(SMALL[family] | changes))
    if family.startswith("gemma"):
        config._attn_implementation = "eager"
    kind = transformers.AutoModel if family == "bert" else transformers.AutoModelForCausalLM
    torch.manual_seed(6)
    model = kind.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Norms of ones and biases of zeros would hide swapped tensors.
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


llama, gpt2, bert, gemma2, gemma3 = (
    partial(make, family) for family in ("llama", "gpt2", "bert", "gemma2", "gemma3")
)
qwen2, qwen3, phi3, mixtral, qwen3moe = (
    partial(make, family) for family in ("qwen2", "qwen3", "phi3", "mixtral", "qwen3moe")
)


def arrays(model: Any) -> Arrays:
    """Return a model's tensors, each once, as transformers saves them."""
    tied = getattr(model, "_tied_weights_keys", None) or {}
    skipped = set(tied) if model.config.tie_word_embeddings else set()
    return {
        name: tensor.detach().float().numpy()
        for name, tensor in model.state_dict().items()
        if name not in skipped and not re.search(r"position_ids|\.attn\.(masked_)?bias$", name)
    }


def checkpoint(model: Any) -> RecognizedModel:
    """Return a model as transformers saves it, in memory and in float32."""
    return recognize(weights_of(arrays(model)), model.config.to_dict())


def tokens_below(vocabulary: int, *shape: int) -> NDArray[np.int64]:
    """Return random tokens, by default one sequence of 64."""
    return np.random.default_rng(6).integers(0, vocabulary, shape or (1, 64))


def logits(model: Any, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    with torch.inference_mode():
        return model(torch.from_numpy(tokens), use_cache=False).logits.float().numpy()


# By methods of gguf's writer, the attributes of configs whose values they write.
_KEYS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "head_count": "num_attention_heads",
    "head_count_kv": "num_key_value_heads",
    "key_length": "head_dim",
    "value_length": "head_dim",
    "layer_norm_rms_eps": "rms_norm_eps",
    "layer_norm_eps": "layer_norm_eps",
    "sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "expert_count": "num_local_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}
_ARCHITECTURES = {"mixtral": "llama", "qwen3_moe": "qwen3moe", "gemma3_text": "gemma3"}
_TYPES = {int: "u32", float: "f32", str: "string", list: "array[bool]"}


def write_gguf(
    path: Path, kind: str, config: Any, tensors: Arrays, *, is_stacked: bool = True,
    of_matrices: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
) -> None:  # fmt: skip
    """Write tensors as llama.cpp's script does, by the names and keys of gguf.

    `kind` is the architecture in GGUF, and `of_matrices` the type of matrices. Without
    `is_stacked`, each expert is a tensor.
    """
    writer = _writer(path, kind, config)
    for name, array in _for_gguf(kind, config, tensors).items():
        parts = {name: array} if is_stacked else _apart(name, array)
        for part, values in parts.items():
            own = of_matrices if values.ndim > 1 else gguf.GGMLQuantizationType.F32
            raw = gguf.quants.quantize(np.ascontiguousarray(values), own)
            writer.add_tensor(part, raw, raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write(path: Path, model: Any, *, is_stacked: bool = True) -> Path:
    """Write a whole model; the options are those of `write_gguf`."""
    kind = _architecture(model)
    write_gguf(path, kind, model.config, arrays(model), is_stacked=is_stacked)
    return path


def in_gguf(model: Any, *, tensors: Arrays | None = None, **more: Any) -> RecognizedModel:
    """Return in memory what `write` writes.

    `tensors` are added, by GGUF's names, and `more` are other keys, without the architecture and
    with `__` for a dot.
    """
    kind = _architecture(model)
    values = {
        key: value.value for key, value in _writer(None, kind, model.config).kv_data[0].items()
    } | {f"{kind}.{name.replace('__', '.')}": value for name, value in more.items()}
    metadata = {key: MetadataValue(_TYPES[type(value)], value) for key, value in values.items()}
    found = _for_gguf(kind, model.config, arrays(model)) | (tensors or {})
    data = {name: WeightData.from_numpy(array, name) for name, array in found.items()}
    return recognize(as_checkpoint(data, metadata))


def _architecture(model: Any) -> str:
    kind = model.config.model_type
    return _ARCHITECTURES.get(kind, kind)


def _writer(path: Path | None, kind: str, config: Any) -> gguf.GGUFWriter:
    """Return a writer that has the keys of a model."""
    writer = gguf.GGUFWriter(path, kind)
    keys = {key: getattr(config, attribute, None) for key, attribute in _KEYS.items()}
    if kind == "gpt2":
        keys["feed_forward_length"] = config.n_inner or 4 * config.n_embd
        keys["layer_norm_eps"] = config.layer_norm_epsilon
    elif kind == "bert":
        keys["causal_attention"] = False
    elif kind == "llama":
        heads = config.head_dim or config.hidden_size // config.num_attention_heads
        keys |= {"vocab_size": config.vocab_size, "rope_dimension_count": heads}
    for key, value in keys.items():
        if value is not None:
            rounded = float(np.float32(value)) if isinstance(value, float) else value
            getattr(writer, f"add_{key}")(rounded)
    if kind not in {"gpt2", "bert", "gemma2"}:
        rope = config.rope_parameters
        _add_rope(writer, rope.get("full_attention", rope))
    return writer


def _add_rope(writer: gguf.GGUFWriter, rope: dict[str, Any]) -> None:
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] in {"linear", "yarn"}:
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def _for_gguf(kind: str, config: Any, tensors: Arrays) -> Arrays:
    """Return tensors by the names of gguf, and in the order of rows of llama.cpp's script."""
    number = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == kind)
    table = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    made: Arrays = {}
    for name, array in _stacked(tensors).items():
        if name.startswith("pooler"):
            continue
        renamed = table.get_name(name, try_suffixes=(".weight", ".bias"))
        assert renamed is not None
        made[renamed] = _change(kind, name, array, config)
    if kind == "llama" and config.rope_parameters["rope_type"] == "llama3":
        made["rope_freqs.weight"] = _llama3_factors(config)
    return made


def _change(kind: str, name: str, array: NDArray[Any], config: Any) -> NDArray[Any]:
    if kind == "llama" and ".q_proj." in name:
        return rope_rows(array, config.num_attention_heads)
    if kind == "llama" and ".k_proj." in name:
        return rope_rows(array, config.num_key_value_heads)
    if re.search(r"\.c_(attn|proj|fc)\.weight$", name):
        return array.T
    return array + 1 if kind.startswith("gemma") and name.endswith("norm.weight") else array


def _llama3_factors(config: Any) -> NDArray[Any]:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    exponents = torch.arange(0, config.head_dim, 2) / config.head_dim
    stretched, _ = ROPE_INIT_FUNCTIONS["llama3"](config)
    return (config.rope_parameters["rope_theta"] ** -exponents / stretched).numpy()


def _stacked(tensors: Arrays) -> Arrays:
    found: Arrays = {}
    for name, array in tensors.items():
        stem = name.removesuffix("gate_up_proj")
        if stem != name:
            gate, up = np.split(array, 2, 1)
            found |= {f"{stem}gate_proj.weight": gate, f"{stem}up_proj.weight": up}
        else:
            found[name.replace("experts.down_proj", "experts.down_proj.weight")] = array
    return found


def _apart(name: str, array: Any) -> Arrays:
    stem = name.removesuffix("_exps.weight")
    if stem == name:
        return {name: array}
    return {f"{stem}.{number}.weight": expert for number, expert in enumerate(array)}
