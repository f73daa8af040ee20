"""Weights that are stored in several tensors, packed numbers and scales, as ordinary tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.schemes.matching import list_scheme_tensors
from weightctl.weights.tree import header_of, source_of

if TYPE_CHECKING:
    from weightctl.weights.tree import Checkpoint

__all__ = ["dequantize_weights"]


def dequantize_weights(weights: Checkpoint, *, in_blocks: bool) -> Checkpoint:
    """Return the tree with each weight that is stored in several tensors as a single one.

    It is float32, the values that its own library computes, made where they are read. With
    `in_blocks` it is in ggml's blocks where these hold exactly the same numbers: MXFP4, Q4_0, Q4_1
    or Q8_0; small tensors of scales are read for that. What was only for activations is left out,
    with a note. All else stays; where nothing is stored so, it is the same tree.

    gpt-oss's experts have the inputs of their layer as rows, as transformers has them, but in
    blocks the outputs, as they are stored and as ggml has them.

    Raises `ConversionError` if a weight is packed in a way that cannot be read, or its tensors do
    not fit together.
    """
    if not list_scheme_tensors(header_of(weights)):
        return weights
    # A tree without any needs no NumPy.
    from weightctl.schemes.decoding.trees import merge_scheme_tensors

    return merge_scheme_tensors(source_of(weights), in_blocks=in_blocks)
