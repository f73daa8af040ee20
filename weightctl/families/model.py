"""The properties of a model that decide the quantization types of its tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from weightctl.families.names import layer
from weightctl.text.untyped import is_sequence

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from weightctl.weights.metadata import MetadataValue

ARCHITECTURE = "general.architecture"
# The `model_type` of the source, where the rest of the metadata would lead to another one.
SOURCE_TYPE = "weightctl.model_type"
# The value of `ARCHITECTURE` in the file of every tower, which is not a whole model.
CLIP = "clip"
# The object in the config.json of a draft model of speculators that has the keys of its layer.
DRAFT_LAYER = "transformer_layer_config"

# The number of layers by which llama.cpp takes a model for one of 70 billion parameters, by
# architecture (`LLM_TYPE_70B`, set by its `load_arch_hparams`).
_LAYERS_OF_70B = {
    "llama": 80, "llama-embed": 80, "deci": 80, "olmo": 80, "qwen2": 80, "jais2": 68,
}  # fmt: skip
# The architectures for which it does so only with grouped-query attention; otherwise it takes the
# model for one of 65 billion.
_GROUPED_70B = {"llama", "llama-embed"}


class DescribedModel(NamedTuple):
    """A model as GGUF's metadata describe it.

    - `architecture`: the value of `general.architecture`.
    - `layers`: the number of layers.
    - `experts`: the number of experts, 0 without experts.
    - `group`: how many query heads share a KV head in the first layer, 0 if not stated.
    - `is_70b`: whether llama.cpp takes the model for one of 70 billion parameters.
    """

    architecture: str
    layers: int
    experts: int
    group: int
    is_70b: bool

    @classmethod
    def of(cls, metadata: Mapping[str, MetadataValue], names: Iterable[str]) -> DescribedModel:
        """Describe a model by its metadata; layers that these do not count are counted by name."""
        architecture = str(metadata[ARCHITECTURE].content)
        layers = _number(metadata, f"{architecture}.block_count")
        if layers is None:
            layers = 1 + max((layer(name) or 0 for name in names), default=0)
        heads = _number(metadata, f"{architecture}.attention.head_count") or 0
        shared = _number(metadata, f"{architecture}.attention.head_count_kv")
        shared = heads if shared is None else shared
        is_large = layers == _LAYERS_OF_70B.get(architecture)
        return cls(
            architecture,
            layers,
            _number(metadata, f"{architecture}.expert_count") or 0,
            heads // shared if shared else 0,
            is_large and (heads != shared or architecture not in _GROUPED_70B),
        )


def _number(metadata: Mapping[str, MetadataValue], key: str) -> int | None:
    """Return a count, the one of the first layer if each layer has its own."""
    content = metadata[key].content if key in metadata else None
    if is_sequence(content) and content:
        content = content[0]
    return content if isinstance(content, int) and content >= 0 else None
