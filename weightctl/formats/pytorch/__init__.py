"""PyTorch checkpoints: zip files, the older streams and tar files, and other pickles.

Nothing in them is executed: see `weightctl.formats.pickles.machine`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.formats.base import NO_METADATA

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.formats.base import Layout, Part
    from weightctl.storage.base import Reader
    from weightctl.weights.info import Header, TensorInfo
    from weightctl.weights.metadata import MetadataValue

__all__ = ["layout", "read", "sniff", "unfit"]

# Imports are within functions, because every file of a directory is sniffed.

_HEAD = 512
_ZIP = b"PK\3\4"
# The bytes that pickles can begin with; from protocol 2, only the first.
_PICKLES = b"\x80(]})cIL"


def sniff(file: Reader) -> bool:
    """Whether a file is written by torch, or is a pickle of Python."""
    head = file.read(0, _HEAD)
    if not head or not (head[0] in _PICKLES or head.startswith(_ZIP) or head[257:262] == b"ustar"):
        return False
    from weightctl.formats.pytorch.reading import is_checkpoint

    return is_checkpoint(file, head)


def read(file: Reader) -> Header:
    """Parse the header of a PyTorch checkpoint; raises `FormatError` if it is invalid."""
    from weightctl.formats.pytorch import reading

    return reading.read(file)


def unfit(tensors: Sequence[TensorInfo], _: Mapping[str, MetadataValue] = NO_METADATA) -> list[str]:
    """Return a sentence for each tensor that PyTorch cannot store."""
    from weightctl.formats.pytorch import writing

    return writing.unfit(tensors)


def layout(
    tensors: Sequence[TensorInfo], metadata: Mapping[str, MetadataValue], part: Part | None = None
) -> Layout:
    """Describe a PyTorch zip file as `torch.save` writes it."""
    from weightctl.formats.pytorch import writing

    return writing.layout(tensors, metadata, part)
