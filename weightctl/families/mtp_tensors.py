"""The tensors of multi-token prediction (MTP) in a checkpoint of any family, found by their names.

Names: `mtp.*`, as in Qwen3-Next, K-EXAONE, MiMo-V2 and ERNIE 4.5, or those of a layer after the
last one that the config counts, as in DeepSeek-V3, GLM-4.5 and llama.cpp. No tensor is read.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.families.model import ARCHITECTURE
from weightctl.text.untyped import is_object

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from weightctl.weights.info import Header, TensorInfo
    from weightctl.weights.metadata import MetadataValue

# No published model has more than three.
MOST_LAYERS = 16
# GGUF's keys for the number of all layers, and for how many of these are for MTP.
BLOCK_COUNT, MTP_COUNT = "{arch}.block_count", "{arch}.nextn_predict_layers"
# The keys of config.json with the number of layers for MTP, which `num_hidden_layers` excludes.
COUNT_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")

_OWN_NAME = re.compile(r"(?:\w+\.)*?mtp(?:_\w+)?\.(?:layers\.)?(?:(\d{1,9})\.)?")
# In Nemotron-H, each layer is attention or experts alone, so two of them predict a token.
_HALF = re.compile(r"mtp\.layers\.\d{1,9}\.mixer\.")
_LAYER = re.compile(r"(?:blk|(?:(?:model|language_model|text_model)\.)*layers)\.(\d{1,9})\.(.*)")
# What only a layer for MTP has: the projection of an embedding and a state, and their norms.
_MARKER = re.compile(r"(?:nextn\.)?(?:eh_proj|enorm|hnorm)\.")
# If the config states no such layers, a checkpoint that has them has names with one of these.
_HINTS = ("mtp", "eh_proj", "enorm", "hnorm")


class MtpTensors(NamedTuple):
    """The tensors of the layers for MTP, by the number of the layer, from 0.

    `layers` is the number of these layers, 0 if the checkpoint has none of their tensors. `stated`
    is the number that its config states, 0 if it does not state one.
    """

    names: Mapping[str, int]
    layers: int
    stated: int

    @property
    def is_lost(self) -> bool:
        """Whether the config states layers, but the checkpoint has none of their tensors."""
        return self.stated > 0 and not self.layers

    @classmethod
    def among(cls, names: Iterable[str], layers: int, stated: int) -> MtpTensors:
        """Find the tensors of a model with `layers` layers without those for MTP.

        A layer counts if it follows the others and has a tensor that only layers for MTP have. If
        one of the layers that the config states is found, all of them count.
        """
        found: dict[str, int] = {}
        certain: set[int] = set()
        names = [*names]
        if not stated and not any(hint in name for name in names for hint in _HINTS):
            return cls(found, 0, 0)
        for name, number, is_certain in _list_numbers(names, layers):
            found[name] = number
            if is_certain:
                certain.add(number)
        count = 0
        while count in certain and count < MOST_LAYERS:
            count += 1
        if min(certain, default=stated) < stated:
            count = max(count, min(stated, MOST_LAYERS))
        kept = {name: number for name, number in found.items() if number < count}
        return cls(kept, count, stated)


def _list_numbers(names: Iterable[str], layers: int) -> Iterator[tuple[str, int, bool]]:
    """Yield names that may be of layers for MTP, the number of the layer, and whether they are."""
    names = [*names]
    parts = 2 if any(map(_HALF.match, names)) else 1
    for name in names:
        if (own := _OWN_NAME.match(name)) is not None:
            yield name, int(own[1] or 0) // parts, True
        elif (numbered := _LAYER.match(name)) is not None and int(numbered[1]) >= layers:
            yield name, int(numbered[1]) - layers, _MARKER.match(numbered[2]) is not None


def is_marker(name: str) -> bool:
    """Whether a tensor is of a numbered layer and only layers for MTP have it."""
    numbered = _LAYER.match(name)
    return numbered is not None and _MARKER.match(numbered[2]) is not None


def find_mtp(header: Header, document: Mapping[str, Any]) -> MtpTensors:
    """Find the tensors of a checkpoint by its metadata, or by the config.json beside it."""
    names = (*header.tensors, *header.aliases)
    if ARCHITECTURE in header.metadata:
        arch = header.metadata[ARCHITECTURE].content
        blocks, stated = (
            _count(header.metadata, key.format(arch=arch)) for key in (BLOCK_COUNT, MTP_COUNT)
        )
        return MtpTensors.among(names, max(blocks - stated, 1), stated)
    config = find_text_config(document)
    layers: Any = config.get("num_hidden_layers")
    counts = (config.get(key) for key in COUNT_KEYS)
    stated = next((count for count in counts if type(count) is int and count > 0), 0)
    count = layers if type(layers) is int and layers > 0 else len(names)
    return MtpTensors.among(names, count, stated)


def show_in_first_layer(tensors: Mapping[str, TensorInfo]) -> Mapping[str, TensorInfo]:
    """Return the tensors of a GGUF file, in which layer 0 shows what all layers have.

    In a file with the layers for MTP alone, the first of these shows it.
    """
    layers = {int(found[1]) for name in tensors if (found := _LAYER.match(name))}
    if not layers or 0 in layers:
        return tensors
    first = f"blk.{min(layers)}."
    return {name.replace(first, "blk.0.", 1): info for name, info in tensors.items()}


def find_text_config(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config of the language model, which multimodal models have in a part of theirs."""
    text: Any = document.get("text_config")
    return text if is_object(text) else document


def _count(metadata: Mapping[str, MetadataValue], key: str) -> int:
    content = metadata[key].content if key in metadata else 0
    return content if type(content) is int and content > 0 else 0
