"""Copies of checkpoints by weightctl, and their comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from weightctl import Weights, open_weights
from weightctl.plan.arrangement import align
from weightctl.plan.plan import Plan
from weightctl.weights import TensorInfo, WeightData
from weightctl.weights.from_arrays import as_checkpoint
from weightctl.write.save import save
from weightctl.write.targets import target

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from weightctl.dtype import Encoding
    from weightctl.weights.metadata import MetadataValue

# Every safetensors file gets this entry, and no GGUF file.
FRAMEWORK = ("format", ("text", "'pt'"))


def copied(weights: Weights, path: Path, alignment: int | None = None) -> Weights:
    """Write every tensor unchanged in the format of a suffix, and open the result."""
    where = target(str(path))
    plan = Plan.copy(weights, where.format)
    save(plan if alignment is None else align(plan, alignment), where, force=True)
    return open_weights(path)


def held(
    tensors: Mapping[str, tuple[Encoding, tuple[int, ...], bytes]],
    metadata: Mapping[str, MetadataValue] | None = None,
) -> Weights:
    """Return a tree of tensors in memory from their bytes."""
    data = {
        name: WeightData.stored(TensorInfo(name, shape, encoding), memoryview(bytearray(raw)))
        for name, (encoding, shape, raw) in tensors.items()
    }
    return as_checkpoint(data, metadata)


def raw(weights: Weights, name: str) -> bytes:
    """Return a tensor's bytes, also for an unknown encoding."""
    buffer = bytearray(weights.header.extents[name].nbytes)
    weights.source.read_into(name, 0, memoryview(buffer))
    return bytes(buffer)


def contents(weights: Weights) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Return encoding, shape and bytes of every tensor, in the order of the file."""
    return {
        name: (info.encoding.name, info.shape, raw(weights, name))
        for name, info in weights.header.tensors.items()
    }


def spoken(metadata: Mapping[str, MetadataValue]) -> dict[str, tuple[str, Any]]:
    """Return comparable metadata: NaN equals NaN, 0.0 is not -0.0, and 1 is not True."""
    return {key: (value.type, _spoken(value.content)) for key, value in metadata.items()}


def _spoken(content: Any) -> Any:
    if isinstance(content, Sequence) and not isinstance(content, str):
        return [_spoken(element) for element in content]
    return repr(content)
