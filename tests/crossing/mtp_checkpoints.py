"""Checkpoints with layers of multi-token prediction, which transformers neither has nor saves.

The tensors are written beside those of a case's model, with the names and shapes of the published
checkpoints: a layer is like another one of the model, with a projection and norms.
"""

from __future__ import annotations

import json
from shutil import copytree
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from safetensors.numpy import load_file, save_file

from family_cases import make_checkpoint
from once import once

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["FORMS", "MtpCase", "make_mtp_checkpoint"]

_COUNT = "num_nextn_predict_layers"


class MtpCase(NamedTuple):
    """What the layers of a family look like.

    `case` is the model. A layer `{}` has the attention of the layer `attention` of the model and
    the MLP of the layer `mlp`. `renamed` are parts with other names. `more` maps names to shapes of
    its other tensors, in units of the hidden size; -1 is the size of the vocabulary. `own` is what
    the names of the layers of the model begin with. If each of these is attention or an MLP alone,
    the names of the MLP for MTP begin with `second`.
    """

    case: str
    prefix: str
    attention: int
    mlp: int
    layers: int
    more: dict[str, tuple[int, ...]]
    renamed: tuple[str, str] = ("", "")
    own: str = "model.layers.{}."
    second: str = ""


_USUAL: dict[str, tuple[int, ...]] = {
    "model.layers.{}.eh_proj": (1, 2),
    "model.layers.{}.enorm": (1,),
    "model.layers.{}.hnorm": (1,),
    "model.layers.{}.embed_tokens": (-1, 1),
    "model.layers.{}.shared_head.norm": (1,),
    "model.layers.{}.shared_head.head": (-1, 1),
}
_SHARED = {name: shape for name, shape in _USUAL.items() if len(shape) == 1 or shape == (1, 2)}
_QWEN: dict[str, tuple[int, ...]] = {
    "mtp.fc": (1, 2), "mtp.pre_fc_norm_embedding": (1,), "mtp.pre_fc_norm_hidden": (1,),
    "mtp.norm": (1,),
}  # fmt: skip
FORMS = {
    "qwen35": MtpCase("qwen35", "mtp.layers.{}.", 2, 2, 1, _QWEN),
    "qwen35moe": MtpCase("qwen35moe", "mtp.layers.{}.", 1, 1, 1, _QWEN),
    "qwen3next": MtpCase("qwen3next", "mtp.layers.{}.", 1, 1, 1, _QWEN),
    "deepseek_v3": MtpCase("deepseek_v3", "model.layers.{}.", 2, 2, 1, _USUAL),
    "deepseek_v32": MtpCase("deepseek_v32", "model.layers.{}.", 2, 2, 1, _USUAL),
    "glm_moe_dsa": MtpCase("glm_moe_dsa", "model.layers.{}.", 2, 2, 1, _SHARED),
    "glm4_moe": MtpCase("glm4_moe-normed", "model.layers.{}.", 2, 2, 1, _USUAL),
    "glm4_moe-shared": MtpCase("glm4_moe", "model.layers.{}.", 2, 2, 2, _SHARED),
    "glm4v": MtpCase("glm4v-ocr", "model.layers.{}.", 2, 2, 1, _USUAL),
    "exaone_moe": MtpCase("exaone_moe", "mtp.layers.{}.", 3, 0, 1, _QWEN),
    **{
        name: MtpCase(
            name, "model.layers.{}.", 2, 2, 1,
            {f"model.layers.{{}}.{name}": (1, 2) if name == "eh_proj" else (1,)
             for name in ("eh_proj", "enorm", "hnorm", "final_layernorm")},
        )
        for name in ("hy_v3", "bailing_hybrid")
    },
    "step35": MtpCase(
        "step35", "model.layers.{}.", 1, 0, 2,
        {"model.layers.{}.eh_proj": (1, 2), "model.layers.{}.enorm": (1,),
         "model.layers.{}.hnorm": (1,), "model.layers.{}.transformer.shared_head.norm": (1,),
         "model.layers.{}.transformer.shared_head.output": (-1, 1)},
    ),
    "mimo2": MtpCase(
        "mimo2", "model.mtp.layers.{}.", 1, 0, 3,
        {f"model.mtp.layers.{{}}.{name}": (1, 2) if name == "eh_proj" else (1,)
         for name in ("eh_proj", "enorm", "hnorm", "final_layernorm")},
        ("post_attention_layernorm", "pre_mlp_layernorm"),
    ),
    "nemotron_h_moe": MtpCase(
        "nemotron_h_moe-latent", "mtp.layers.0.", 2, 1, 1,
        {"mtp.layers.0.eh_proj": (1, 2), "mtp.layers.0.enorm": (1,), "mtp.layers.0.hnorm": (1,),
         "mtp.layers.1.final_layernorm": (1,)},
        own="backbone.layers.{}.", second="mtp.layers.1.",
    ),
}  # fmt: skip

# Those that GGUF has no place for.
_ONLY_HUGGING_FACE = {
    "ernie4_5_moe": MtpCase(
        "ernie4_5_moe", "model.mtp_block.{}.", 0, 0, 1,
        {"model.mtp_linear_proj.{}": (1, 2), "model.mtp_emb_norm.{}": (1,),
         "model.mtp_hidden_norm.{}": (1,)},
    ),
}  # fmt: skip


def make_mtp_checkpoint(name: str, directory: Path) -> Path:
    """Return a directory with a model of a form and its layers for MTP, which only exists once."""
    form = {**FORMS, **_ONLY_HUGGING_FACE}[name]
    return once(directory / "mtp" / name, lambda half: _make(form, directory, half))


def _make(form: MtpCase, directory: Path, into: Path) -> None:
    copytree(make_checkpoint(form.case, directory).path, into)
    tensors, config = into / "model.safetensors", into / "config.json"
    stored, document = load_file(tensors), json.loads(config.read_text())
    draw = np.random.default_rng(7)
    layers = document.get("num_hidden_layers", 0)
    first = layers if form.prefix.startswith("model.layers") else 0
    for number in range(first, first + form.layers):
        for each, shape in _list_shapes(form, stored, number).items():
            stored[each] = draw.normal(0, 0.1, shape).astype(np.float32)
    save_file(stored, tensors, {"format": "pt"})
    document.pop(_COUNT, None)
    if form.case.startswith("qwen35"):
        document["mtp_num_hidden_layers"] = form.layers
    elif form.case not in {"mimo2", "qwen3next"}:
        document[_COUNT] = form.layers
    config.write_text(json.dumps(document))


def _list_shapes(
    form: MtpCase, stored: dict[str, NDArray[np.float32]], number: int
) -> dict[str, tuple[int, ...]]:
    rows, hidden = next(each.shape for name, each in stored.items() if "embed" in name)
    found: dict[str, tuple[int, ...]] = {}
    for layer, is_mlp in ((form.attention, False), (form.mlp, True)):
        begin = form.own.format(layer)
        prefix = form.second if is_mlp and form.second else form.prefix
        for name, values in stored.items():
            rest = name.removeprefix(begin).replace(*form.renamed) if name.startswith(begin) else ""
            if rest and (form.second or rest.startswith("mlp.") == is_mlp):
                found[prefix.format(number) + rest] = values.shape
    for name, shape in form.more.items():
        sizes = tuple(rows if size < 0 else size * hidden for size in shape)
        found[f"{name}.weight".format(number)] = sizes
    return found
