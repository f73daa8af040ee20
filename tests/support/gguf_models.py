"""Small models as GGUF has them whose rotations are not interleaved, in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gguf
import numpy as np

import small_models
from weightctl import WeightData
from weightctl.families import recognize
from weightctl.weights.from_arrays import as_checkpoint
from weightctl.weights.metadata import MetadataValue

if TYPE_CHECKING:
    from weightctl.families import RecognizedModel

_TYPES = {int: "u32", float: "f32", str: "string", list: "array[bool]"}


def in_gguf(model: Any, *, tensors: dict[str, Any] | None = None, **more: Any) -> RecognizedModel:
    """Return a model of transformers' by the names and keys of llama.cpp's script.

    `tensors` are others, by GGUF's names, and `more` other keys, without the architecture and with
    `__` for a dot.
    """
    config = model.config
    kind, count = config.model_type, config.num_hidden_layers
    values = {
        "block_count": count,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": float(np.float32(config.rms_norm_eps)),
        "rope.freq_base": config.rope_parameters["rope_theta"],
    } | {name.replace("__", "."): value for name, value in more.items()}
    metadata = {f"{kind}.{name}": MetadataValue(_TYPES[type(v)], v) for name, v in values.items()}
    metadata["general.architecture"] = MetadataValue("string", kind)
    arch = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == kind)
    table = gguf.get_tensor_name_map(arch, count)
    arrays = {
        table.get_name(name, (".weight", ".bias")) or "": array
        for name, array in small_models.arrays(model).items()
    } | (tensors or {})
    data = {name: WeightData.from_numpy(array, name) for name, array in arrays.items()}
    return recognize(as_checkpoint(data, metadata))
