"""The tensors of a model as mlx_lm.convert writes them, from those of Hugging Face.

Written from the functions `sanitize` in mlx-lm 0.32's `mlx_lm/models/`. MLX itself runs on Linux,
too, but is not needed here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]

_EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(\w+)\.(weight|scales|biases)")
_FUSED = re.compile(r"(.+)\.(input_linear|gate_up_proj)(\.weight)?")
_PARTS = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
_NORMS = (
    ".input_layernorm.weight", ".post_attention_layernorm.weight", "model.norm.weight",
    ".q_norm.weight", ".k_norm.weight",
)  # fmt: skip
# Models whose experts keep their prefix, and models whose layers have experts in two matrices.
_UNNAMED, _TWO = {"afmoe", "dots1"}, {"nemotron_h": {"up_proj": "fc1", "down_proj": "fc2"}}
_LATENT = {"deepseek_v3", "deepseek_v32", "glm_moe_dsa", "kimi_linear", "mistral4"}
_NEXT = {"qwen3_next", "qwen3_5", "qwen3_5_moe"}
_KIMI = {
    "block_sparse_moe.gate.e_score_correction_bias": "mlp.e_score_correction_bias",
    "block_sparse_moe.": "mlp.", "_conv1d.weight": "_conv.conv.weight",
}  # fmt: skip
_RENAMED = {
    "bailing_moe": {".mlp.gate.weight": ".mlp.gate.gate_proj.weight"},
    "exaone_moe": {"mlp.e_score_correction_bias": "mlp.gate.e_score_correction_bias"},
    "kimi_linear": _KIMI,
    "lfm2_moe": {f".{old}.": f".{new}." for old, new in _PARTS.items()},
}


def as_mlx(tensors: Mapping[str, NDArray[Any]], config: Mapping[str, Any]) -> Arrays:
    """Return the tensors of a model with this config.json; experts may be quantized."""
    kind = str(config["model_type"]).removesuffix("_text")
    text = config.get("text_config", config)
    made = dict(tensors)
    if text.get("tie_word_embeddings"):
        made.pop("lm_head.weight", None)
    steps: tuple[Callable[[str, Mapping[str, Any], Arrays], Iterator[tuple[str, Any]]], ...]
    steps = (_stack_experts, _split_fused, _split_heads, _change_values, _rename)
    for step in steps:
        made = dict(step(kind, text, made))
    return made


def _stack_experts(
    kind: str, _: Mapping[str, Any], tensors: Arrays
) -> Iterator[tuple[str, NDArray[Any]]]:
    experts: dict[tuple[str, str, str], dict[int, NDArray[Any]]] = {}
    for name, values in tensors.items():
        if found := _EXPERT.fullmatch(name):
            experts.setdefault((found[1], found[3], found[4]), {})[int(found[2])] = values
        else:
            yield name, values
    for (block, part, end), numbered in experts.items():
        above = block if kind in _UNNAMED else block.replace(".experts", ".switch_mlp")
        name = _TWO.get(kind, _PARTS).get(part, part)
        yield f"{above}.{name}.{end}", np.stack([numbered[number] for number in sorted(numbered)])


def _split_fused(
    _: str, config: Mapping[str, Any], tensors: Arrays
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the gates and ups apart that Granite's and others' tensors contain together."""
    for name, values in tensors.items():
        down = re.fullmatch(r"(.+)\.(output_linear\.weight|experts\.down_proj)", name)
        fused = _FUSED.fullmatch(name)
        block = (down or fused or [""] * 2)[1].removesuffix(".experts")
        is_kept = block.endswith("shared_mlp") and config.get("num_local_experts")
        if not block or is_kept or (".experts." not in name and "linear" not in name):
            yield name, values
            continue
        above = f"{block}.switch_mlp" if values.ndim == 3 else block.replace("shared_mlp", "mlp")
        if down:
            yield f"{above}.down_proj.weight", values
        else:
            gate, up = np.split(values, 2, axis=-2)
            yield f"{above}.gate_proj.weight", gate
            yield f"{above}.up_proj.weight", up


def _split_heads(
    kind: str, config: Mapping[str, Any], tensors: Arrays
) -> Iterator[tuple[str, NDArray[Any]]]:
    for name, values in tensors.items():
        above = name.removesuffix("kv_b_proj.weight")
        if above == name or kind not in _LATENT:
            yield name, values
            continue
        heads = values.reshape(config["num_attention_heads"], -1, values.shape[-1])
        plain = config["qk_nope_head_dim"]
        yield f"{above}embed_q.weight", heads[:, :plain].swapaxes(1, 2)
        yield f"{above}unembed_out.weight", heads[:, plain:]


def _change_values(
    kind: str, config: Mapping[str, Any], tensors: Arrays
) -> Iterator[tuple[str, NDArray[Any]]]:
    for name, values in tensors.items():
        if re.search(r"conv(_?1d)?\.weight$", name):
            yield name, np.moveaxis(values, 2, 1)
        elif kind in _NEXT and name.endswith(_NORMS):
            yield name, values + values.dtype.type(1)
        elif kind == "rwkv7" and re.search(r"k_k|k_a|g_norm", name):
            yield name, values.reshape(-1, config["head_dim"])
        elif kind == "apertus" and re.search(r"alpha_[pn]$", name):
            yield name, values.squeeze()
        else:
            yield name, values


def _rename(kind: str, _: Mapping[str, Any], tensors: Arrays) -> Iterator[tuple[str, NDArray[Any]]]:
    is_outer = kind.startswith("qwen3_5")
    for name, values in tensors.items():
        made = name.replace("model.language_model.", "model.") if is_outer else name
        for old, new in _RENAMED.get(kind, {}).items():
            made = made.replace(old, new)
        yield (f"language_model.{made}" if is_outer else made), values.copy()
