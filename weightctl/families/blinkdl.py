"""The original layout of RWKV-6 and RWKV-7: `.pth` files by BlinkDL, without a config.json.

Their tensors get the names and shapes of Hugging Face's convention, and the config follows from
the shapes. Names: the package `rwkv`, and what llama.cpp's `conversion/rwkv.py` renames.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from weightctl.errors import ArchitectureError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.weights.derived import ReadableTensor, Step
    from weightctl.weights.info import Header, TensorInfo
    from weightctl.weights.tree import Checkpoint

_EMBEDDING, _HEAD = "emb.weight", "head.weight"
# A tensor of the first layer that only this version has.
_MARKS = {"rwkv6": "blocks.0.att.time_maa_w1", "rwkv7": "blocks.0.att.x_r"}
_BLOCK = re.compile(r"blocks\.(\d{1,6})\.(.+)")
# Projections in two steps of RWKV-7, by their letter; the offset is the bias of the second one.
_TWO_STEPS = re.compile(r"att\.([wavg])([012])")
_STEPS = {"0": "2.bias", "1": "0.weight", "2": "2.weight"}
_RWKV6 = {"att": "attention", "ffn": "feed_forward", "ln0": "pre_ln"}
_RWKV7 = {
    "ln0": "pre_norm", "ln1": "attn_norm", "ln2": "ffn_norm", "att.ln_x": "attn.g_norm",
    "att.receptance": "attn.r_proj", "att.key": "attn.k_proj", "att.value": "attn.v_proj",
    "att.output": "attn.o_proj",
}  # fmt: skip
_VECTORS = re.compile(r"att\.([wav]0|k_k|k_a)|ffn\.x_k")


def find_blinkdl(header: Header) -> str | None:
    """Return the family of a checkpoint in this layout, None for any other one."""
    tensors = header.tensors
    if _EMBEDDING not in tensors or _HEAD not in tensors:
        return None
    return next((family for family, mark in _MARKS.items() if mark in tensors), None)


def restate_blinkdl(weights: Checkpoint) -> tuple[Checkpoint, Mapping[str, Any]] | None:
    """Return a checkpoint in Hugging Face's layout, and its config; None for any other one.

    Raises `ArchitectureError` if a tensor that the config follows from is missing, or has too few
    dimensions.
    """
    from weightctl.weights.derived import Derived, DerivedTensor, tensor_of
    from weightctl.weights.tree import Checkpoint as Tree
    from weightctl.weights.tree import header_of, source_of

    family = find_blinkdl(header_of(weights))
    if family is None:
        return None
    source = source_of(weights)
    stored: dict[str, ReadableTensor] = {}
    for name, info in source.header.tensors.items():
        tensor: ReadableTensor = tensor_of(source, name)
        step = _find_step(name, info) if family == "rwkv7" else None
        made = _rename(name, family)
        stored[made] = tensor if step is None else DerivedTensor(made, step, [tensor])
    tree = Tree(Derived(source, stored, source.header.metadata))
    return tree, _make_config(source.header.tensors, family)


def _rename(name: str, family: str) -> str:
    """Return the name of a tensor in Hugging Face's convention."""
    is_6 = family == "rwkv6"
    found = _BLOCK.fullmatch(name)
    if found is not None:
        layer, part = found.groups()
        return f"{'rwkv.blocks' if is_6 else 'model.layers'}.{layer}." + (
            _rename_part_of_6(part) if is_6 else _rename_part_of_7(part)
        )
    if name == _HEAD:
        return name if is_6 else f"lm_{name}"
    name = re.sub("^emb", "embeddings", name)
    return f"rwkv.{name}" if is_6 else f"model.{re.sub('^ln_out', 'norm', name)}"


def _rename_part_of_6(part: str) -> str:
    for old, new in _RWKV6.items():
        part = re.sub(f"^{old}", new, part)
    return part


def _rename_part_of_7(part: str) -> str:
    if (steps := _TWO_STEPS.fullmatch(part)) is not None:
        letter, step = steps.groups()
        return f"attn.{letter}_lora.lora.{_STEPS[step]}"
    for old, new in _RWKV7.items():
        if part.startswith(f"{old}."):
            return new + part.removeprefix(old)
    return re.sub("^att", "attn", part)


def _find_step(name: str, info: TensorInfo) -> Step | None:
    """Return the step to the shape that flash-linear-attention has, None if it is the same."""
    from weightctl.weights.steps.reshaped import InShape
    from weightctl.weights.steps.transposed import Transposed

    found = _BLOCK.fullmatch(name)
    if found is None:
        return None
    if _VECTORS.fullmatch(found[2]):
        return InShape((max(info.shape, default=1),))
    return Transposed() if _TWO_STEPS.fullmatch(found[2]) else None


def _make_config(tensors: Mapping[str, TensorInfo], family: str) -> Mapping[str, Any]:
    def size(name: str, axis: int) -> int:
        info = tensors.get(name)
        if info is None or len(info.shape) <= axis:
            raise ArchitectureError(
                f"this is {family} in BlinkDL's layout, but `{name}` is missing or damaged",
                hint="download the file again",
            )
        return info.shape[axis]

    numbers = {int(found[1]) for name in tensors if (found := _BLOCK.fullmatch(name))}
    layers = max(numbers) + 1
    shared = {
        "model_type": family,
        "vocab_size": size(_EMBEDDING, 0),
        "hidden_size": size(_EMBEDDING, 1),
        "num_hidden_layers": layers,
        "intermediate_size": size("blocks.0.ffn.key.weight", 0),
        "tie_word_embeddings": False,
    }
    if family == "rwkv6":
        return {**shared, "head_size": size("blocks.0.att.time_faaaa", 1)}
    ranks = {
        f"{part}_low_rank_dim": size(f"blocks.{layer}.att.{letter}1", 1)
        for part, letter, layer in (
            ("decay", "w", 0), ("a", "a", 0), ("v", "v", layers - 1), ("gate", "g", 0)
        )
        if part != "v" or layers > 1
    }  # fmt: skip
    return {**shared, **ranks, "head_dim": size("blocks.0.att.r_k", 1)}
