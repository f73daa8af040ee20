"""Dequantization of weights that are stored in several tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.schemes.matching import list_layers, list_scheme_tensors
from weightctl.schemes.settings import Settings, read_settings
from weightctl.weights.tree import header_of, source_of

if TYPE_CHECKING:
    from weightctl.weights.tree import Checkpoint


def dequantize_weights(
    weights: Checkpoint, *, in_blocks: bool, keeps_shapes: bool = False
) -> Checkpoint:
    """Return the tree in which each weight that is stored in several tensors is a single tensor.

    The weights are float32, with the values that their own libraries compute. They are computed
    when they are read. With `in_blocks`, a weight is in ggml's blocks (MXFP4, Q4_0, Q4_1 or Q8_0)
    if these hold the same values exactly; scales are read to determine this. Scales of activations
    are omitted, with a note. Other tensors are unchanged; if no weight is stored in several
    tensors, the same tree is returned.

    For gpt-oss's experts, rows are the inputs of the layer, as in transformers; in blocks, rows are
    the outputs, as they are stored and as in ggml. With `keeps_shapes`, they are float32 then too.

    Raises `ConversionError` if the packing of a weight is not supported, if its tensors do not
    match, or if a setting of its quantization is not known.
    """
    header = header_of(weights)
    # A config.json beside a GGUF file describes another one.
    settings = Settings({}) if header.format == "gguf" else read_settings(header)
    settings.assign(list_layers(header.tensors))
    notes = settings.refuse_unknown(list_layers(header.tensors)) if settings else ()
    if not list_scheme_tensors(header):
        return weights
    # A tree without quantized weights needs no NumPy.
    from weightctl.schemes.arrays.trees import merge_scheme_tensors

    return merge_scheme_tensors(
        source_of(weights), settings, notes, in_blocks=in_blocks, keeps_shapes=keeps_shapes
    )
