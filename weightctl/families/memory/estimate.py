"""The memory that llama.cpp needs to run a model, and how much of the model fits into a memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.errors import ArchitectureError
from weightctl.families.compressed import CompressedConfig
from weightctl.families.encoder import EncoderConfig
from weightctl.families.memory.caches import list_caches
from weightctl.families.modules import at_layer
from weightctl.families.names import split_layer_number
from weightctl.families.per_layer import PerLayerConfig
from weightctl.families.rwkv6 import Rwkv6Config
from weightctl.families.rwkv7 import RwkvConfig
from weightctl.families.streams import StreamsConfig
from weightctl.text.wording import pluralize
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.families.checkpoint import RecognizedModel
    from weightctl.families.decoder import DecoderConfig
    from weightctl.families.memory.caches import CacheKind, LayerCache, MemoryOptions


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
    return 2 * config.count_heads(layer) * size


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


_EMBEDDINGS = ("embedding.weight", "layer_inputs.embedding.weight")
_OUTPUT = "output.weight"
# A share of the memory for what else a process stores there, such as the context of CUDA. It is
# limited, because that does not grow with the memory.
_OVERHEAD_PART, _MOST_OVERHEAD = 20, 512 << 20


class KindTotal(NamedTuple):
    """The caches of one kind: how many layers have it, its positions, and the bytes together."""

    kind: CacheKind
    layers: int
    tokens: int
    bytes: int


class FittingLayers(NamedTuple):
    """What of a model fits into a memory.

    `layers` is the number of layers, which are the last ones. `gpu_layers` is llama.cpp's
    `--n-gpu-layers`: it counts the output as a layer. `nbytes` is the memory that they take, with
    the overhead.
    """

    layers: int
    gpu_layers: int
    nbytes: int
    overhead: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """The memory that a model takes in llama.cpp, in bytes.

    - `options`: the context, the type of the KV cache, and the batch.
    - `layer_weights`: the weights of each layer.
    - `output`: the weights outside of the layers, without the embeddings. If the output uses the
      embedding, that counts, because llama.cpp copies it to the device.
    - `embedding`: the embeddings that llama.cpp keeps in main memory although all layers are on a
      device; 0 if the output uses them.
    - `caches`: the KV caches and states of the layers.
    - `compute`: the compute buffers.
    """

    options: MemoryOptions
    layer_weights: tuple[int, ...]
    output: int
    embedding: int
    caches: tuple[LayerCache, ...]
    compute: int

    @property
    def weights(self) -> int:
        return sum(self.layer_weights) + self.output + self.embedding

    @property
    def cache(self) -> int:
        """The bytes of the caches of all layers."""
        return sum(each.nbytes for each in self.caches)

    @property
    def total(self) -> int:
        """The bytes of all of it, which is what llama.cpp takes without a device."""
        return self.weights + self.cache + self.compute

    @property
    def kinds(self) -> list[KindTotal]:
        """The caches by kind, in the order in which the layers have them."""
        found: dict[CacheKind, list[LayerCache]] = {}
        for each in self.caches:
            found.setdefault(each.kind, []).append(each)
        return [
            KindTotal(kind, len(each), max(one.cells for one in each), sum(o.nbytes for o in each))
            for kind, each in found.items()
        ]

    def fit(self, memory: int) -> FittingLayers:
        """Return what fits into a memory, in the order in which llama.cpp offloads layers."""
        overhead = find_overhead(memory)
        used = self.compute + overhead
        fitting = FittingLayers(0, 0, 0, overhead)
        sizes = list(self.layer_weights)
        for each in self.caches:
            sizes[each.layer] += each.nbytes
        for count, nbytes in enumerate([self.output, *reversed(sizes)]):
            used += nbytes
            if used > memory:
                break
            fitting = FittingLayers(count, count + 1, used, overhead)
        return fitting

    def find_weights_limit(self, memory: int) -> int:
        """Return how many bytes of weights fit beside the rest; negative if that is too large."""
        return memory - find_overhead(memory) - self.cache - self.compute


def find_overhead(memory: int) -> int:
    """Return how many bytes of a memory are kept free: 5 % of it, but at most 512 MiB."""
    return min(memory // _OVERHEAD_PART, _MOST_OVERHEAD)


def estimate_memory(model: RecognizedModel, options: MemoryOptions) -> MemoryEstimate:
    """Return the memory that a model takes in llama.cpp, with its weights as they are stored.

    Only headers and the config are used. Raises `ArchitectureError` if tensors are missing, and the
    errors of `list_caches`.
    """
    if model.missing:
        raise ArchitectureError(
            f"the memory cannot be estimated: {pluralize(len(model.missing), 'tensor')} of the "
            f"model, such as `{model.missing[0]}`, cannot be found",
            hint="check that the checkpoint is complete",
        )
    header = header_of(model.tree)
    count = model.config.layers
    layers, outside = [0] * count, 0
    kept = {model.stored[name] for name in _EMBEDDINGS if name in model.stored}
    is_tied = _OUTPUT not in model.tensors or model.stored.get(_OUTPUT) in kept
    embedding = 0
    unused = set(model.beside)
    for name, extent in header.extents.items():
        if name in unused:
            continue
        layer = split_layer_number(name)[0]
        if name in kept and not (is_tied and name == model.stored[_EMBEDDINGS[0]]):
            embedding += extent.nbytes
        elif layer is None or layer >= count:
            outside += extent.nbytes
        else:
            layers[layer] += extent.nbytes
    caches = list_caches(model, options)
    return MemoryEstimate(
        options=options,
        layer_weights=tuple(layers),
        output=outside,
        embedding=embedding,
        caches=tuple(caches),
        compute=estimate_compute(model, options, caches),
    )
