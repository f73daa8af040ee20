"""Checks that refuse tensors which can be listed but not read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.errors import EncodingError
from weightctl.text.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from weightctl.weights.data import Source
    from weightctl.weights.info import TensorInfo

# The limit for the total size of the tensors, as a multiple of the size of their files: strides of
# 0 repeat elements, and views of one storage can overlap. Below `_ALWAYS` bytes, which any machine
# can handle, there is no limit.
_TIMES = 16
_ALWAYS = 1 << 30


def refuse_unknown(tensors: Iterable[TensorInfo]) -> None:
    """Raise `EncodingError` for a tensor whose encoding is not supported."""
    for info in tensors:
        if not info.encoding.is_known:
            raise EncodingError(
                f"weightctl cannot read {info.encoding.name}, the encoding of `{info.name}`",
                hint="leave the tensor out with --exclude (exclude in Python); the file is "
                "damaged, or a newer tool wrote it",
            )


def refuse_expanded(source: Source, tensors: Sequence[TensorInfo]) -> None:
    """Raise `EncodingError` if stored tensors are far larger than the files that contain them."""
    if not source.files:
        return
    total, held = sum(info.nbytes for info in tensors), sum(file.size for file in source.files)
    if total <= max(_TIMES * held, _ALWAYS):
        return
    largest = max(tensors, key=lambda info: info.nbytes)
    raise EncodingError(
        f"`{largest.name}` of shape {list(largest.shape)} needs {format_size(largest.nbytes)}"
        + (f", and all tensors need {format_size(total)}" if total > largest.nbytes else "")
        + f", but the files have only {format_size(held)}: the tensors share the same elements",
        hint="the file is damaged or malicious; leave the tensors out with --exclude (exclude "
        "in Python)",
    )
