"""Types that transformers lacks, or has no text model of, each as a type that computes the same.

A checkpoint of such a type is written from one of the other type, and read as one.
"""

from __future__ import annotations

import json
import re
import shutil
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import safetensors.numpy as stored

from family_dialects import DIALECTS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    Document = Mapping[str, Any]
    Tensors = Mapping[str, NDArray[Any]]

_TENSORS, _METADATA = "model.safetensors", {"format": "pt"}


class StandIn(NamedTuple):
    """The type of transformers that computes what a type does: its `model_type`.

    `config` returns the config.json of the other type for that of the type. `tensors` returns the
    tensors of the type for those of the other, and `back` the other way round; both get the type's
    config.json. `rename` returns a config.json with the type's names for those of the other type.
    """

    model_type: str
    class_name: str
    config: Callable[[Document], Document]
    tensors: Callable[[Tensors, Document], Tensors] = lambda tensors, _: tensors
    back: Callable[[Tensors, Document], Tensors] = lambda tensors, _: tensors
    rename: Callable[[Document], Document] = lambda document: document

    def write(self, directory: Path, document: Document) -> None:
        """Make a checkpoint of the type of one of the other type, in place."""
        path = directory / _TENSORS
        given = stored.load_file(path)
        stored.save_file(dict(self.tensors(given, document)), path, _METADATA)
        (directory / "config.json").write_text(json.dumps(document))

    def read(self, directory: Path, into: Path) -> Path:
        """Return a checkpoint of the other type, made of one of the type."""
        shutil.copytree(directory, into)
        document = json.loads((directory / "config.json").read_text())
        given = stored.load_file(directory / _TENSORS)
        stored.save_file(dict(self.back(given, document)), into / _TENSORS, _METADATA)
        (into / "config.json").write_text(json.dumps(self.config(document)))
        return into


def _minicpm(document: Document) -> Document:
    own = ("scale_emb", "scale_depth", "dim_model_base")
    hidden, layers = document["hidden_size"], document["num_hidden_layers"]
    heads = document["num_attention_heads"]
    return {key: value for key, value in document.items() if key not in own} | {
        "model_type": "granite",
        "embedding_multiplier": document["scale_emb"],
        "residual_multiplier": document["scale_depth"] / layers**0.5,
        "logits_scaling": hidden / document["dim_model_base"],
        "attention_multiplier": (hidden // heads) ** -0.5,
    }


def _bailing(document: Document) -> Document:
    if document["use_bias"]:
        raise ValueError("a qwen2_moe has no bias of its attention output")
    own = ("use_qkv_bias", "use_bias", "num_shared_experts", "first_k_dense_replace")
    width = document["num_shared_experts"] * document["moe_intermediate_size"]
    kept = {key: value for key, value in document.items() if key not in own}
    return {"rms_norm_eps": 1e-5} | kept | {
        "model_type": "qwen2_moe",
        "qkv_bias": document["use_qkv_bias"],
        "shared_expert_intermediate_size": width,
    }  # fmt: skip


# What is called otherwise there, in this order.
_BAILING = (
    ("model.embed_tokens.", "model.word_embeddings."),
    (".self_attn.o_proj.", ".attention.dense."),
    (".mlp.shared_expert.", ".mlp.shared_experts."),
)
_JOINED = ".attention.query_key_value."


def _to_bailing(tensors: Tensors, _: Document) -> Tensors:
    """Return tensors whose queries, keys and values are joined, without the shared MLP's gate.

    Of a gate of zeros the sigmoid is a half.
    """
    made: dict[str, NDArray[Any]] = {}
    for name, array in tensors.items():
        if name.endswith("shared_expert_gate.weight") or re.search(r"\.[kv]_proj\.", name):
            continue
        if ".q_proj." in name:
            parts = [tensors[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            made[name.replace(".self_attn.q_proj.", _JOINED)] = np.concatenate(parts)
            continue
        half = 0.5 if ".shared_expert.down_proj." in name else 1
        for theirs, own in _BAILING:
            name = name.replace(theirs, own)  # noqa: PLW2901  # the next name of one tensor
        made[name] = np.asarray(array * half, array.dtype)
    return made


def _from_bailing(tensors: Tensors, document: Document) -> Tensors:
    hidden, heads = document["hidden_size"], document["num_attention_heads"]
    rows = [hidden, hidden // heads * document["num_key_value_heads"]]
    made: dict[str, NDArray[Any]] = {}
    for name, array in tensors.items():
        if _JOINED in name:
            parts = np.split(array, np.cumsum([rows[0], rows[1]]))
            for part, values in zip("qkv", parts, strict=True):
                given = name.replace(_JOINED, f".self_attn.{part}_proj.")
                made[given] = np.ascontiguousarray(values)
            continue
        double = 2 if ".shared_experts.down_proj." in name else 1
        for theirs, own in _BAILING:
            name = name.replace(own, theirs)  # noqa: PLW2901  # the next name of one tensor
        made[name] = np.asarray(array * double, array.dtype)
        if ".mlp.gate." in name:
            gate = name.replace(".mlp.gate.", ".mlp.shared_expert_gate.")
            made[gate] = np.zeros((1, hidden), array.dtype)
    return made


def _of_text(model_type: str, document: Document) -> dict[str, Any]:
    """Return the config of a multimodal model's text as that of a text model.

    In texts, all sections of RoPE have the same positions.
    """
    rope = {
        key: value
        for key, value in document["rope_parameters"].items()
        if key not in {"mrope_section", "mrope_interleaved"}
    }
    # Of the types with experts, only the one without images needs the key.
    return {
        **document, "model_type": model_type, "rope_parameters": rope, "norm_topk_prob": True
    }  # fmt: skip


def _paddleocr(document: Document) -> Document:
    """Return the config of PaddleOCR-VL's text as that of a llama, which states biases apart."""
    text = _of_text("llama", document)
    bias = text.pop("use_bias", False)
    return {**text, "attention_bias": bias, "mlp_bias": bias}


def _glm4v(has_bias: bool, document: Document) -> Document:
    text = _of_text("glm4", document)
    return {
        "head_dim": text["hidden_size"] // text["num_attention_heads"],
        **text,
        "rope_parameters": {"partial_rotary_factor": 1.0, **text["rope_parameters"]},
        "attention_bias": has_bias,
    }


def _to_stacked(tensors: Tensors, document: Document) -> Tensors:
    """Return tensors in which the experts of a layer are stacked, with inputs as rows."""
    made = {name: array for name, array in tensors.items() if ".experts." not in name}
    for layer in range(document["num_hidden_layers"]):
        prefix = f"model.layers.{layer}.mlp.experts."
        gate, up, down = (
            np.stack([
                tensors[f"{prefix}{expert}.{part}_proj.weight"].T
                for expert in range(document["num_experts"])
            ])
            for part in ("gate", "up", "down")
        )  # fmt: skip
        made[f"{prefix}gate_up_proj"] = np.concatenate([gate, up], -1)
        made[f"{prefix}down_proj"] = down
    return made


def _from_stacked(tensors: Tensors, document: Document) -> Tensors:
    made: dict[str, NDArray[Any]] = {}
    for name, array in tensors.items():
        if not name.endswith((".gate_up_proj", ".down_proj")):
            made[name] = array
            continue
        prefix, _, part = name.rpartition(".")
        halves = [array] if part == "down_proj" else np.split(array, 2, -1)
        names = ["down"] if part == "down_proj" else ["gate", "up"]
        for half, each in zip(halves, names, strict=True):
            for expert in range(document["num_experts"]):
                made[f"{prefix}.{expert}.{each}_proj.weight"] = np.ascontiguousarray(half[expert].T)
    return made


# The names in the releases of Step 3.5, by those of transformers' modules.
_STEP = (
    (".mlp.gate.e_score_correction_bias", ".moe.router_bias"),
    (".mlp.gate.weight", ".moe.gate.weight"),
    (".mlp.experts.down_proj", ".moe.down_proj.weight"),
    (".mlp.shared_experts.", ".share_expert."),
)
_STEP_PARTS = (".moe.gate_proj.weight", ".moe.up_proj.weight")
_STEP_JOINED = ".mlp.experts.gate_up_proj"


def _to_step(tensors: Tensors, _: Document) -> Tensors:
    made: dict[str, NDArray[Any]] = {}
    for name, array in tensors.items():
        if name.endswith(_STEP_JOINED):
            for part, half in zip(_STEP_PARTS, np.split(array, 2, 1), strict=True):
                made[name.replace(_STEP_JOINED, part)] = np.ascontiguousarray(half)
            continue
        for theirs, own in _STEP:
            name = name.replace(theirs, own)  # noqa: PLW2901  # the next name of one tensor
        made[name] = array
    return made


def _from_step(tensors: Tensors, _: Document) -> Tensors:
    made: dict[str, NDArray[Any]] = {}
    for name, array in tensors.items():
        if name.endswith(_STEP_PARTS[0]):
            parts = [tensors[name.replace(_STEP_PARTS[0], part)] for part in _STEP_PARTS]
            made[name.replace(_STEP_PARTS[0], _STEP_JOINED)] = np.concatenate(parts, 1)
        if name.endswith(_STEP_PARTS):
            continue
        for theirs, own in _STEP:
            name = name.replace(own, theirs)  # noqa: PLW2901  # the next name of one tensor
        made[name] = array
    return made


# transformers rotates halves in Hunyuan 4, where the releases have pairs of neighbors, and saves
# other names than it reads.
_HY4 = (
    (".hc_pre.hc_attn_layer.hc_", ".hc_attn_layer.hc_pre.hc_"),
    (".hc_pre.hc_mlp_layer.hc_", ".hc_mlp_layer.hc_pre.hc_"),
    ("model.hc_pre.hc_head.", "model.hc_head."),
    (".mlp.linear_gate.", ".mlp.gate_proj."),
    (".shared_experts.linear_gate.", ".shared_experts.gate_proj."),
)


def _list_hy4_heads(name: str, document: Document) -> int:
    """Return the number of heads in a tensor whose last rows of each are rotated, 0 for others."""
    if re.search(r"kv_a_proj_with_mqa|indexer\.(wk|k_norm)\.", name):
        return 1
    if "indexer.wq_b." in name:
        return int(document["index_n_heads"])
    return int(document["num_attention_heads"]) if ".q_b_proj." in name else 0


def _turn_hy4(tensors: Tensors, document: Document, *, back: bool) -> Tensors:
    made: dict[str, NDArray[Any]] = {}
    rotated = document["qk_rope_head_dim"]
    order = np.arange(rotated).reshape(2, -1).T.ravel()
    order = np.argsort(order) if back else order
    for name, array in tensors.items():
        if heads := _list_hy4_heads(name, document):
            parts = array.reshape(heads, -1, *array.shape[1:]).copy()
            parts[:, -rotated:] = parts[:, -rotated:][:, order]
            array = parts.reshape(array.shape)  # noqa: PLW2901  # the same tensor, turned
        for theirs, own in () if back else _HY4:
            name = name.replace(theirs, own)  # noqa: PLW2901  # the next name of one tensor
        made[name] = array
    return made


def _plm(document: Document) -> Document:
    # As it loads the other type, transformers fills the row of a padding token with zeros.
    given = {"model_type": "youtu", "hidden_act": "relu", "pad_token_id": None}
    return {"q_lora_rank": None, **document, **given}


def _to_plm(tensors: Tensors, _: Document) -> Tensors:
    return {name: array for name, array in tensors.items() if ".gate_proj." not in name}


def _from_plm(tensors: Tensors, _: Document) -> Tensors:
    """Return tensors whose gates are the same as what they multiply: the square of a ReLU."""
    gates = {
        name.replace(".up_proj.", ".gate_proj."): array
        for name, array in tensors.items()
        if ".up_proj." in name
    }
    return {**tensors, **gates}


STAND_INS: Mapping[str, StandIn] = {
    "hy_v4": StandIn("hy_v4", "HYV4ForCausalLM", dict, partial(_turn_hy4, back=False),
                     partial(_turn_hy4, back=True)),
    "step3p5": StandIn("step3p5", "Step3p5ForCausalLM", dict, _to_step, _from_step),
    "bailing_moe": StandIn("qwen2_moe", "BailingMoeForCausalLM", _bailing, _to_bailing,
                           _from_bailing),
    "glm4v_text": StandIn("glm4", "Glm4vForConditionalGeneration", partial(_glm4v, True)),
    "glm_ocr_text": StandIn("glm4", "GlmOcrForConditionalGeneration", partial(_glm4v, False)),
    "glm4v_moe_text": StandIn("glm4_moe", "Glm4vMoeForConditionalGeneration",
                         partial(_of_text, "glm4_moe")),
    "minicpm": StandIn("granite", "MiniCPMForCausalLM", _minicpm),
    "paddleocr_vl": StandIn("llama", "PaddleOCRVLForConditionalGeneration", _paddleocr),
    "plm": StandIn("youtu", "PLMForCausalLM", _plm, _to_plm, _from_plm),
    "qwen2_5_vl_text": StandIn("qwen2", "Qwen2_5_VLForConditionalGeneration",
                               partial(_of_text, "qwen2")),
    "qwen3_vl_text": StandIn("qwen3", "Qwen3VLForConditionalGeneration",
                             partial(_of_text, "qwen3")),
    "qwen3_vl_moe_text": StandIn("qwen3_moe", "Qwen3VLMoeForConditionalGeneration",
                                 partial(_of_text, "qwen3_moe"), _to_stacked, _from_stacked),
    **{
        kind: StandIn(
            other, name, partial(names.config, other), names.tensors, names.back, names.rename
        )
        for kind, (other, name, names) in DIALECTS.items()
    },
}  # fmt: skip
# The types of `own_models`, which registers them with transformers when it is imported.
OWN_TYPES = {"own_bert", "own_llama", "plamo2", "rwkv6", "rwkv7"}
