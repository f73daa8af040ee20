"""The compute buffers of llama.cpp: activations, attention masks and logits.

llama.cpp reserves them for a batch of tokens. llama-server computes the logits of one token of each
sequence in it (`n_outputs_max`); other programs may reserve those of all tokens. The allocator
gives the memory of a tensor that is no longer needed to later ones, so that the size follows from
the part of the model that needs the most. The numbers of vectors below are what llama.cpp's
`sched_reserve` printed for small models in which one width was large.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.families.compressed import CompressedConfig
from weightctl.families.encoder import EncoderConfig
from weightctl.families.parts import at_layer
from weightctl.families.per_layer import PerLayerConfig
from weightctl.families.rwkv6 import Rwkv6Config
from weightctl.families.rwkv7 import RwkvConfig
from weightctl.families.streams import StreamsConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.families.checkpoint import RecognizedModel
    from weightctl.families.decoder import DecoderConfig
    from weightctl.families.memory.caches import LayerCache, MemoryOptions

_FLOAT, _HALF = 4, 2
# How many vectors of the hidden size are stored beside the widest part.
_BESIDE_PART = 5
# RWKV mixes each token with the one before it, in six ways.
_RWKV_VECTORS = 15


def estimate_compute(
    model: RecognizedModel, options: MemoryOptions, caches: Sequence[LayerCache]
) -> int:
    """Return the bytes of the compute buffers, with flash attention, as llama.cpp uses it."""
    config: Any = model.config
    tokens = options.tokens
    hidden: int = config.hidden
    if isinstance(config, StreamsConfig | CompressedConfig):
        hidden *= config.streams
    inputs: int = 2 * config.layer_inputs if isinstance(config, PerLayerConfig) else 0
    widest = max(_find_widest(config, layer) for layer in range(config.layers))
    logits: int = 0 if isinstance(config, EncoderConfig) else config.vocabulary
    scores = max((each.cells for each in caches if each.kind == "indexer"), default=0)
    # Each part alone, beside the vectors that are always stored.
    parts = (tokens * widest, tokens * scores, options.outputs * (hidden + logits))
    elements = tokens * (_BESIDE_PART * hidden + inputs) + max(parts)
    # Layers with the same kind of cache share a mask.
    masks = {each.kind: each.cells for each in caches}
    if isinstance(config, EncoderConfig):
        masks = {"gqa": tokens}
    return elements * _FLOAT + tokens * sum(masks.values()) * _HALF


def _find_widest(config: DecoderConfig, layer: int) -> int:
    """Return how many elements per token the widest part of a layer stores at one time."""
    return max(_size_attention(config, layer), _size_state(config, layer), _size_mlp(config, layer))


def _size_attention(config: DecoderConfig, layer: int) -> int:
    if not at_layer(config, "attention_layers", layer):
        return 0
    size: int = at_layer(config, "head_dim", layer)
    if config.latent_rank:
        # Queries are multiplied by the matrix that computes keys from the latent vector.
        return config.heads * (size + 2 * (config.latent_rank + config.rope_dimensions))
    return 2 * config.heads * size


def _size_state(config: DecoderConfig, layer: int) -> int:
    if isinstance(config, RwkvConfig | Rwkv6Config):
        return _RWKV_VECTORS * config.hidden
    if at_layer(config, "ssm_layers", layer):
        groups = config.ssm_groups if config.ssm_version == 2 else 0
        channels = config.ssm_inner + 2 * groups * config.ssm_state
        return 2 * (config.ssm_inner + channels + config.ssm_heads) + channels
    if at_layer(config, "delta_layers", layer):
        keys = config.delta_key_heads * config.delta_key_size
        values = config.delta_heads * config.delta_value_size
        return 2 * (values + 2 * keys) + values + keys
    if at_layer(config, "convolution_layers", layer):
        return 3 * config.hidden
    return 2 * config.lru_width if at_layer(config, "lru_layers", layer) else 0


def _size_mlp(config: DecoderConfig, layer: int) -> int:
    parts = 3 if config.gated else 1
    if config.is_sparse(layer):
        used = config.experts_used * config.expert_intermediate
        return parts * max(used, config.shared_intermediate)
    width: int = at_layer(config, "intermediate", layer)
    return parts * width if at_layer(config, "mlp_layers", layer) else 0
