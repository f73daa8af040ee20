"""Torch's distributed checkpoints (DCP) as they are written: `.metadata` beside files of tensors.

They are opened as a whole, by `weightctl.formats.open.opening`, because none of the files can
be read without the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.errors import FormatError
from weightctl.formats.base import NO_METADATA

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.formats.base import Layout, Part
    from weightctl.storage.base import Reader
    from weightctl.weights.info import Header, TensorInfo
    from weightctl.weights.metadata import MetadataValue


def sniff(_: Reader) -> bool:
    """Return False: a file of a distributed checkpoint cannot be read alone."""
    return False


def read(file: Reader) -> Header:
    """Raise `FormatError`: a file of a distributed checkpoint cannot be read alone."""
    raise FormatError(
        file.path,
        None,
        "a file of a distributed checkpoint cannot be read alone",
        hint="use the path of the directory with .metadata",
    )


def unfit(tensors: Sequence[TensorInfo], _: Mapping[str, MetadataValue] = NO_METADATA) -> list[str]:
    """Return a sentence for each tensor that torch cannot store."""
    from weightctl.formats.pytorch import unfit as unfit_of_pytorch

    return unfit_of_pytorch(tensors)


def layout(
    tensors: Sequence[TensorInfo], metadata: Mapping[str, MetadataValue], part: Part | None = None
) -> Layout:
    """Describe a file with each tensor as a file of `torch.save`; the metadata are not stored."""
    from weightctl.formats.training import writing

    del metadata, part
    return writing.layout(tensors)
