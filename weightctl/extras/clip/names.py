"""The tensor names of CLIP models, by OpenAI and OpenCLIP, and by Hugging Face.

Sources: OpenAI's `clip/model.py`, OpenCLIP's `open_clip/model.py` and `transformer.py`, and
transformers' `modeling_clip.py`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# How the tensors of Hugging Face make one of OpenAI's: alone, transposed, or one after the other.
ClipForm: TypeAlias = Literal["same", "transposed", "joined"]

# The sizes that OpenAI's own archives have as tensors.
JIT_SIZES = frozenset({"input_resolution", "context_length", "vocab_size"})
# Constants beside the weights, in either convention.
IGNORED = JIT_SIZES | {
    "attn_mask", "text_model.embeddings.position_ids", "vision_model.embeddings.position_ids",
}  # fmt: skip

_KINDS = ("weight", "bias")
_LAYER = re.compile(r"(visual\.)?transformer\.resblocks\.(\d{1,3})\.")
_HF_LAYER = re.compile(r"(text|vision)_model\.encoder\.layers\.(\d{1,3})\.")
# The prefix of a tower's names: OpenAI's, and Hugging Face's.
_TOWERS = (("", "text_model."), ("visual.", "vision_model."))
_BLOCK = (
    ("ln_1", "layer_norm1"), ("ln_2", "layer_norm2"), ("mlp.c_fc", "mlp.fc1"),
    ("mlp.c_proj", "mlp.fc2"), ("attn.out_proj", "self_attn.out_proj"),
)  # fmt: skip
_NORMS = (
    ("ln_final", "text_model.final_layer_norm"),
    ("visual.ln_pre", "vision_model.pre_layrnorm"),
    ("visual.ln_post", "vision_model.post_layernorm"),
)
_OTHERS = (
    ("logit_scale", "logit_scale"),
    ("token_embedding.weight", "text_model.embeddings.token_embedding.weight"),
    ("positional_embedding", "text_model.embeddings.position_embedding.weight"),
    ("visual.class_embedding", "vision_model.embeddings.class_embedding"),
    ("visual.positional_embedding", "vision_model.embeddings.position_embedding.weight"),
    ("visual.conv1.weight", "vision_model.embeddings.patch_embedding.weight"),
)
_PROJECTIONS = (
    ("text_projection", "text_projection.weight"),
    ("visual.proj", "visual_projection.weight"),
)


class ClipPair(NamedTuple):
    """A tensor of OpenAI's, and the tensors of Hugging Face with the same values."""

    openai: str
    hugging_face: tuple[str, ...]
    form: ClipForm = "same"


def list_clip_pairs(names: Iterable[str]) -> list[ClipPair]:
    """Return the tensors of the CLIP model that has as many layers as these names count.

    Each of its encoders has at least one layer.
    """
    layers = {prefix: 1 for prefix, _ in _TOWERS}
    for name in names:
        if (found := _LAYER.match(name)) is not None:
            prefix = found[1] or ""
        elif (found := _HF_LAYER.match(name)) is not None:
            prefix = "" if found[1] == "text" else "visual."
        else:
            continue
        layers[prefix] = max(layers[prefix], int(found[2]) + 1)
    return [*_list_whole(), *_list_layers(layers)]


def _list_whole() -> Iterator[ClipPair]:
    for openai, own in _OTHERS:
        yield ClipPair(openai, (own,))
    for openai, own in _NORMS:
        for kind in _KINDS:
            yield ClipPair(f"{openai}.{kind}", (f"{own}.{kind}",))
    for openai, own in _PROJECTIONS:
        yield ClipPair(openai, (own,), "transposed")


def _list_layers(layers: dict[str, int]) -> Iterator[ClipPair]:
    for prefix, tower in _TOWERS:
        for layer in range(layers[prefix]):
            block = f"{prefix}transformer.resblocks.{layer}."
            own = f"{tower}encoder.layers.{layer}."
            for kind in _KINDS:
                parts = tuple(f"{own}self_attn.{part}_proj.{kind}" for part in "qkv")
                yield ClipPair(f"{block}attn.in_proj_{kind}", parts, "joined")
                for one, other in _BLOCK:
                    yield ClipPair(f"{block}{one}.{kind}", (f"{own}{other}.{kind}",))
