"""Roles and layers of tensors, derived from their names, and which tensors are weight matrices.

Roles and layers are read from GGUF's names; the modules of the families map Hugging Face's names to
these.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from weightctl.schemes.buffers import is_buffer

if TYPE_CHECKING:
    from weightctl.weights.info import TensorInfo

_WHOLE = {
    "output.weight": "output",
    "token_embd.weight": "token_embd",
    "per_layer_token_embd.weight": "token_embd",
}
# The first of these parts in a name decides. Fused projections, and those of latent attention that
# compute keys and values together, count as value projections (llama.cpp, src/llama-quant.cpp,
# `category_is_attn_v`). Parts without `.weight` also match experts: `ffn_down_exps`.
_PARTS = (
    ("attn_qkv.weight", "attn_v"),
    ("attn_kv_b.weight", "attn_v"),
    ("attn_v.weight", "attn_v"),
    ("attn_k.weight", "attn_k"),
    ("attn_q.weight", "attn_q"),
    ("attn_output.weight", "attn_output"),
    ("ffn_up", "ffn_up"),
    ("ffn_gate", "ffn_gate"),
    ("ffn_down", "ffn_down"),
)
_LAYER = re.compile(r"blk\.(\d{1,9})(?!\d)")
_NUMBERED = re.compile(r"(?:^|(?<=\.))([0-9]{1,9})\.")
# Numbers between dots, which do not occur in the patterns below.
_NUMBERS = re.compile(r"(?<=\.)[0-9]+(?=\.)")

# Matrices that llama.cpp never quantizes (src/llama-quant.cpp, `tensor_allows_quantization`):
# norms, routers, positions, token types, convolutions and the small ones of recurrent models, as
# GGUF and as Hugging Face call them.
_KEPT = re.compile(
    r"_norm\.weight|ffn_gate_inp\.weight|ffn_gate_tid2eid\.weight|altup|laurel|per_layer_model_proj|"
    r"^position_embd\.weight$|^token_types\.weight$|ssm_conv1d|shortconv\.conv\.weight|"
    r"indexer\.[kq]_proj\.weight|"
    r"time_mix_(first|[wva][012]|g[12]|decay_w[12]|lerp_fused)\.weight|attn_rel_b\.weight|"
    r"\.position_embd|sam\.(pos_embd|neck\.|net_)|\.rel_pos|\.patch_(embd|merger)|"
    r"a\.rvq\.codebook|mm\.a\.code_embd|^mm\.input_projection\.weight$|"
    r"norm\.weight$|layernorm|layer_norm|\.(router|gate|shared_expert_gate)\.weight$|"
    r"position_embedding|embed_positions|\bwpe\b|token_type_embeddings|conv1d|"
    r"relative_attention_bias|patch_embed|\bconv\.conv\.|_lora\.lora\.|mixer\.[qk]_weight$|"
    r"\.time_(maa|decay|faaaa)",
    re.IGNORECASE,
)

# Embeddings and output projections, which low-bit formats for inference engines do not quantize,
# and the projections of layers for MTP, which vLLM's `deepseek_mtp.py` and `ernie_mtp.py` have
# only unquantized.
_LOOKED_UP = re.compile(
    r"embed|shared_head|eh_proj|mtp_linear_proj|^mtp\.fc\.|\bwte\b|word_emb|lm_head|(^|\.)(shared|output|classifier|score)\.weight$",
    re.IGNORECASE,
)

# Encoders of images and sound beside a text model, and what projects their outputs. Engines and
# their tools quantize only the text model.
_OF_TOWERS = re.compile(
    r"(^|\.)(vision_tower|vision_model|vision_encoder|visual|audio_tower|audio_model|embed_vision|"
    r"embed_audio|multi_modal_projector|vision_language_adapter|patch_merger|connector)\."
)

# What vLLM and SGLang have only unquantized: the factors of an indexer's heads, and the compressors
# and hyper-connections of DeepSeek-V4 (vLLM's `deepseek_v2.py` and `deepseek_v4`).
_UNQUANTIZED = re.compile(
    r"indexer\.weights_proj\.|compressor\.w(kv|gate)\.|compressor[._]ape\b|(^|[._])hc_"
)

# Matrices of a layer that inference engines join into one, by Hugging Face's names.
_JOINED = {
    module: joined
    for joined, modules in {
        "qkv_proj": ("q_proj", "k_proj", "v_proj"),
        "gate_up_proj": ("gate_proj", "up_proj"),
        "w13": ("w1", "w3"),
        "fused_qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa"),
    }.items()
    for module in modules
}


def joined_name(name: str) -> str:
    """Return the name of the joined matrix that contains this one in engines, or its own name."""
    layer, _, ending = name.rpartition(".")
    above, _, module = layer.rpartition(".")
    return f"{above}.{_JOINED[module]}.{ending}" if module in _JOINED else name


def role(name: str) -> str | None:
    """Return the role of a tensor by its GGUF name: `output`, `attn_v`, `ffn_down` ...

    None for other tensors, and for names of other naming conventions.
    """
    whole = _WHOLE.get(name)
    return whole or next((role for part, role in _PARTS if part in name), None)


def layer(name: str) -> int | None:
    """Return the layer number that a GGUF name begins with, None if it does not have one."""
    found = _LAYER.match(name)
    return int(found[1]) if found else None


def split_layer_number(name: str) -> tuple[int | None, str]:
    """Return the first number between the dots of a name, and what follows it.

    This is the layer and the part of the layer if the family is not known. Without a number, return
    None and the name.
    """
    found = _NUMBERED.search(name)
    return (None, name) if found is None else (int(found[1]), name[found.end() :])


def is_matrix_weight(info: TensorInfo) -> bool:
    """Whether llama.cpp would quantize a tensor: a matrix, except norms and routers.

    llama.cpp treats a matrix with one row as a vector.
    """
    return (
        any(size > 1 for size in info.shape[:-1])
        and info.name.endswith(("weight", "_proj"))
        and not _has_kept_name(_NUMBERS.sub("", info.name))
    )


def is_projection(info: TensorInfo) -> bool:
    """Whether a tensor is a matrix of a layer, except norms, routers, biases and embeddings.

    The layers of towers do not count.
    """
    name = info.name
    return (
        any(size > 1 for size in info.shape[:-1])
        and not name.endswith("bias")
        and _OF_TOWERS.search(name) is None
        and not is_buffer(info)
        and role(name) not in {"token_embd", "output"}
        and not _has_kept_name(plain := _NUMBERS.sub("", name))
        and not _is_looked_up(plain)
        and not _is_unquantized(plain)
    )


# A hundred thousand names differ only in layer and expert numbers, and the patterns are slow.
@lru_cache(maxsize=4096)
def _has_kept_name(plain: str) -> bool:
    return _KEPT.search(plain) is not None


@lru_cache(maxsize=4096)
def _is_looked_up(plain: str) -> bool:
    return _LOOKED_UP.search(plain) is not None


@lru_cache(maxsize=4096)
def _is_unquantized(plain: str) -> bool:
    return _UNQUANTIZED.search(plain) is not None
