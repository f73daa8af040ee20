"""The weights of a checkpoint as they are meant, each with the tensors that it is stored as."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.dtype import ENCODINGS
from weightctl.formats.huggingface import config as config_beside
from weightctl.schemes.logical import find_quantized
from weightctl.schemes.logical import parts as parts_in
from weightctl.sharding.footprints import plain
from weightctl.weights.derived import Derived, DerivedTensor, StoredTensor
from weightctl.weights.tree import Checkpoint, source_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.dtype import Encoding
    from weightctl.sharding.footprints import WeightFootprint
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import TensorInfo
    from weightctl.weights.source import Source

__all__ = ["as_meant", "stored_weights"]

_ALONE = "it looks like a part of a quantized weight whose shape nothing says"


def stored_weights(source: Source) -> dict[str, WeightFootprint]:
    """Return the weights by name, in the order of their first tensors; each tensor is of one.

    Small tensors that say the shapes of others are read, and nothing else.
    """
    header = source.header
    together = parts_in(header)
    if not together:
        return {name: plain(info) for name, info in header.tensors.items()}
    # NumPy, which nothing else here needs.
    from weightctl.schemes.dequantize.parts import SchemeTensors
    from weightctl.schemes.dequantize.settings import Settings
    from weightctl.sharding.scales import make_footprint

    config = config_beside(header.files)
    settings = Settings(config)

    def read(name: str) -> bytes:
        made = bytearray(header.tensors[name].nbytes)
        source.read_into(name, 0, memoryview(made))
        return bytes(made)

    found = find_quantized(header, config, read)
    owner = {part: each for each in found.values() for part in each.parts}
    weights: dict[str, WeightFootprint] = {}
    for name, info in header.tensors.items():
        each = owner.get(name)
        if each is None:
            weight = plain(info)
            weights[name] = weight._replace(refusal=_ALONE) if name in together else weight
        elif each.name not in weights:
            tensors = tuple(StoredTensor(source, part) for part in each.parts)
            layer = settings.of(each.name.removesuffix(".weight"))
            parts = SchemeTensors(each.name, each.shape, each.scheme, tensors, layer)
            weights[each.name] = make_footprint(parts)
    return weights


def as_meant(weights: Checkpoint, stored: Mapping[str, WeightFootprint]) -> Checkpoint:
    """Return a tree whose tensors are the weights as they are meant; they cannot be read."""
    source = source_of(weights)
    tensors: dict[str, ReadableTensor] = {}
    is_other = False
    for name, each in stored.items():
        infos = [footprint.info for footprint in each.footprints]
        if infos[0].name == name and infos[0].shape == each.shape:
            tensors[name] = StoredTensor(source, name)
        else:
            inputs = [StoredTensor(source, info.name) for info in infos]
            tensors[name] = DerivedTensor(name, _Meant(each.shape), inputs)
        is_other = is_other or len(infos) > 1
    if not is_other:
        return weights
    header = source.header
    aliases = {alias: name for alias, name in header.aliases.items() if name in tensors}
    return Checkpoint(Derived(source, tensors, header.metadata, aliases))


class _Meant:
    """A weight of a shape, whatever it is stored in."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the shape, and F32."""
        del inputs
        return self._shape, ENCODINGS["F32"]

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        """Raise `NotImplementedError`: plans read no weights."""
        raise NotImplementedError
