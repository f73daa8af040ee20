"""A check that an output matrix equals the embedding, if the config ties them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.errors import ArchitectureError
from weightctl.families.matching import EMBEDDING_WEIGHT
from weightctl.weights.derived import DerivedTensor, tensor_of
from weightctl.weights.steps.numbers import AsFloat32
from weightctl.weights.tree import header_of, source_of

if TYPE_CHECKING:
    from weightctl.families import RecognizedModel
    from weightctl.weights.derived import ReadableTensor

# The number of blocks of both tensors that are read at a time.
_RUN = 1 << 18


def check_copies(checkpoint: RecognizedModel) -> None:
    """Raise `ArchitectureError` if a tied output is stored and differs from the embedding.

    Some programs then use the output, and others the embedding. Both tensors are read up to the
    first difference.
    """
    family, original = checkpoint.family, checkpoint.tensors.get(EMBEDDING_WEIGHT)
    if original is None:  # of a draft model
        return
    copies = {
        family.plain(name)
        for tensor in family.copies(checkpoint.config)
        if (name := tensor.name(checkpoint.convention)) is not None
    }
    for name in header_of(checkpoint.tree).tensors:
        if family.plain(name) in copies:
            copy = tensor_of(source_of(checkpoint.tree), name)
            if not is_same(copy, original):
                raise ArchitectureError(
                    f"`{name}` is stored separately and differs from the embedding, but "
                    f"{checkpoint.where} states that the output is tied to the embedding",
                    hint=f"if `{name}` is the output, set `tie_word_embeddings` to false in "
                    "the config; otherwise first write the checkpoint without it, with "
                    '--names keep --exclude (names="keep", exclude in Python)',
                )


def is_same(one: ReadableTensor, other: ReadableTensor) -> bool:
    """Whether two tensors have the same values; both are read up to the first difference."""
    if one.info.shape != other.info.shape:
        return False
    span = one.file_range()
    if span is not None and span == other.file_range():
        return True
    if one.info.encoding != other.info.encoding:
        one, other = (DerivedTensor(each.info.name, AsFloat32(), [each]) for each in (one, other))
    run = _RUN * one.info.encoding.size
    for start in range(0, one.info.nbytes, run):
        pieces = [bytearray(min(run, one.info.nbytes - start)) for _ in range(2)]
        for tensor, piece in zip((one, other), pieces, strict=True):
            tensor.read_into(start, memoryview(piece))
        if pieces[0] != pieces[1]:
            return False
    return True
