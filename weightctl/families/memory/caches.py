"""What llama.cpp stores of earlier tokens in each layer: KV caches and recurrent states.

Source: llama.cpp's `llama-kv-cache.cpp`, `llama-kv-cache-iswa.cpp`, `llama-kv-cache-dsa.cpp`,
`llama-kv-cache-dsv4.cpp`, `llama-memory-recurrent.cpp`, and `n_embd_r` and `n_embd_s` of
`llama-hparams.cpp`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from weightctl.dtype import ENCODINGS
from weightctl.dtype.types import parse_encoding
from weightctl.errors import EncodingError, WeightctlError
from weightctl.families.compressed import HEAVY, OVERLAPPING, CompressedConfig
from weightctl.families.encoder import EncoderConfig, EncoderDecoderConfig
from weightctl.families.modules import at_layer
from weightctl.families.per_layer import PerLayerConfig
from weightctl.families.rwkv6 import Rwkv6Config
from weightctl.families.rwkv7 import RwkvConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightctl.dtype import Encoding
    from weightctl.families.checkpoint import RecognizedModel
    from weightctl.families.decoder import DecoderConfig
    from weightctl.families.family import Family

CacheKind: TypeAlias = Literal["gqa", "mla", "window", "indexer", "compressed", "recurrent"]

# How the kinds are described to users.
CACHE_KINDS: dict[CacheKind, str] = {
    "gqa": "full attention",
    "mla": "latent attention (MLA)",
    "window": "sliding window",
    "indexer": "indexer keys (DSA)",
    "compressed": "compressed keys",
    "recurrent": "recurrent state",
}

# The types that llama.cpp supports for the cache (`kv_cache_types` in common/arg.cpp).
_KV_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "IQ4_NL", "Q5_0", "Q5_1")
# llama.cpp rounds the size of a context and of a sliding window up to a multiple of this.
_PADDING = 256
_MOST_TOKENS = 1 << 31
_FLOAT = 4
# The matrices with which llama.cpp computes attention on latent vectors. In models without them, it
# stores the keys and values of all heads.
_KEYS_OF_LATENT = "blk.{}.attn_k_b"
# How many vectors of the position before an RWKV layer keeps (`token_shift_count`).
_SHIFTED = 2


class MemoryOptions(NamedTuple):
    """How a model is run: the context in tokens, the type of the KV cache, and the batch.

    `batch` is the number of tokens that are computed at a time: llama.cpp's `--ubatch-size`.
    `outputs` is the number of these tokens that get logits.
    """

    context: int
    kv_type: Encoding = ENCODINGS["F16"]
    batch: int = 512
    outputs: int = 1

    @classmethod
    def of(cls, context: int, kv_type: str = "F16") -> MemoryOptions:
        """Return the options for a context and the name of a type.

        Raises `WeightctlError` for an invalid context, or for a type that llama.cpp does not
        support in its cache.
        """
        if not 0 < context < _MOST_TOKENS:
            raise WeightctlError(
                f"a context of {context} tokens is not possible", hint="for example --context 8192"
            )
        known = ", ".join(_KV_TYPES).lower()
        try:
            encoding = parse_encoding(kv_type)
        except EncodingError as error:
            raise WeightctlError(error.message, hint=f"llama.cpp supports {known}") from error
        if encoding.name not in _KV_TYPES:
            raise WeightctlError(
                f"llama.cpp has no KV cache of type {encoding}", hint=f"it supports {known}"
            )
        return cls(context, encoding)

    @property
    def cells(self) -> int:
        """The number of positions that the cache of a layer with full attention has."""
        return _pad(self.context)

    @property
    def tokens(self) -> int:
        """The number of tokens that are computed at a time."""
        return min(self.batch, self.cells)

    def window_cells(self, window: int) -> int:
        """Return the number of positions that the cache of a layer with a sliding window has."""
        return _pad(min(self.cells, window + self.batch))


class LayerCache(NamedTuple):
    """What a layer stores: its kind, the number of positions (0 for a state), and the bytes."""

    layer: int
    kind: CacheKind
    cells: int
    nbytes: int


def list_caches(model: RecognizedModel, options: MemoryOptions) -> list[LayerCache]:
    """Return the caches of all layers, in the order of the layers.

    Encoders have none. Raises `WeightctlError` for a type of the cache whose blocks do not fit the
    heads, and for models with an encoder and a decoder, whose memory is not estimated.
    """
    config: Any = model.config
    if isinstance(config, EncoderDecoderConfig):
        raise WeightctlError(
            "the memory of models with an encoder and a decoder is not estimated",
            hint="leave out --fit",
        )
    if isinstance(config, EncoderConfig):
        return []
    return [
        each
        for layer in range(config.layers)
        for each in _list_of_layer(model.family, config, layer, options)
    ]


def _list_of_layer(
    family: Family, config: DecoderConfig, layer: int, options: MemoryOptions
) -> Iterator[LayerCache]:
    if isinstance(config, CompressedConfig):
        yield from _list_compressed(config, layer, options)
        return
    state = _count_state(config, layer)
    if state:
        yield LayerCache(layer, "recurrent", 0, state * _FLOAT)
    if isinstance(config, RwkvConfig | Rwkv6Config):
        return
    shares = isinstance(config, PerLayerConfig) and not at_layer(config, "own_keys", layer)
    if shares or not at_layer(config, "attention_layers", layer):
        return
    if config.latent_rank and any(each.gguf == _KEYS_OF_LATENT for each in family.names):
        row = _row(options, config.latent_rank + config.rope_dimensions)
        yield LayerCache(layer, "mla", options.cells, options.cells * row)
        if config.indexer_heads and at_layer(config, "indexer_layers", layer):
            row = _row(options, config.indexer_size)
            yield LayerCache(layer, "indexer", options.cells, options.cells * row)
        return
    heads = config.heads if config.latent_rank else config.count_kv_heads(layer)
    key: int = at_layer(config, "head_dim", layer)
    value = config.value_dimensions or key
    row = heads * (_row(options, key) + _row(options, value))
    window = config.chunk(layer) or (config.window(layer) if family.keeps_window else None)
    cells = options.cells if window is None else options.window_cells(window)
    yield LayerCache(layer, "gqa" if window is None else "window", cells, cells * row)


def _row(options: MemoryOptions, size: int) -> int:
    """Return the bytes of `size` elements in the type of the cache."""
    encoding = options.kv_type
    if size % encoding.block:
        raise WeightctlError(
            f"llama.cpp cannot store heads of {size} elements in a KV cache of type {encoding}, "
            f"which has blocks of {encoding.block}",
            hint="use --kv-type f16",
        )
    return size // encoding.block * encoding.size


def _count_state(config: DecoderConfig, layer: int) -> int:
    """Return the number of elements of the recurrent state of a layer; they are float32."""
    if isinstance(config, RwkvConfig | Rwkv6Config):
        size: int = at_layer(config, "head_dim", layer)
        return config.hidden * (_SHIFTED + size)
    before = max(config.convolution_length - 1, 0)
    if at_layer(config, "ssm_layers", layer):
        groups = config.ssm_groups if config.ssm_version == 2 else 0
        channels = config.ssm_inner + 2 * groups * config.ssm_state
        return (config.ssm_length - 1) * channels + config.ssm_state * config.ssm_inner
    if at_layer(config, "delta_layers", layer):
        keys = config.delta_key_heads * config.delta_key_size
        values = config.delta_heads * config.delta_value_size
        return before * (values + 2 * keys) + config.delta_key_size * values
    if at_layer(config, "convolution_layers", layer):
        return before * config.hidden
    if at_layer(config, "lru_layers", layer):
        return (before + 1) * config.lru_width
    return 0


def _list_compressed(
    config: CompressedConfig, layer: int, options: MemoryOptions
) -> Iterator[LayerCache]:
    """Yield what a layer of DeepSeek-V4 stores: keys of a window, and compressed keys.

    The tokens that are not compressed yet are in states: two float32 tensors.
    """
    size: int = at_layer(config, "head_dim", layer)
    row = _row(options, size)
    cells = options.window_cells(config.sliding_window or 0)
    yield LayerCache(layer, "window", cells, cells * row)
    ratio = config.compress_ratios[layer]
    if not ratio:
        return
    cells = _pad(-(-options.cells // ratio))
    yield LayerCache(layer, "compressed", cells, cells * row)
    if ratio == HEAVY:
        yield LayerCache(layer, "recurrent", 0, 2 * ratio * size * _FLOAT)
    elif ratio == OVERLAPPING:
        yield LayerCache(layer, "indexer", cells, cells * _row(options, config.indexer_size))
        elements = 2 * ratio * 2 * (size + config.indexer_size)
        yield LayerCache(layer, "recurrent", 0, 2 * elements * _FLOAT)


def _pad(count: int) -> int:
    return -(-count // _PADDING) * _PADDING
