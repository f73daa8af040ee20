"""Codecs that use compiled kernels; each gives the same bytes as its NumPy definition."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightctl.codecs.exact import is_exact
from weightctl.codecs.loss import Loss
from weightctl.errors import NonFiniteError

if TYPE_CHECKING:
    from weightctl.codecs.base import F32, U8, Codec
    from weightctl.dtype import Encoding
    from weightctl.kernels import Kernel, Transcoder


class CompiledCodec:
    """A codec's definition, and the kernel that replaces as much of it as possible."""

    def __init__(self, definition: Codec, kernel: Kernel) -> None:
        self._definition = definition
        self._kernel = kernel

    def encode(self, rows: F32, importance: F32 | None, out: U8) -> None:
        """Fill `out` with the blocks of `rows`, as the definition does."""
        kernel = self._kernel
        if not (kernel.encodes if importance is None else kernel.encodes_weighted):
            self._definition.encode(rows, importance, out)
            return
        if not rows.size:
            return
        weights = None if importance is None else np.ascontiguousarray(importance, np.float32)
        blocks = out if out.flags.c_contiguous else np.empty(out.shape, np.uint8)
        kernel.encode(np.ascontiguousarray(rows), rows.shape[1], weights, blocks)
        if blocks is not out:
            out[...] = blocks

    def decode(self, blocks: U8, out: F32) -> None:
        """Fill `out` with the values of `blocks`, as the definition does."""
        if not self._kernel.decodes:
            self._definition.decode(blocks, out)
            return
        numbers = out if out.flags.c_contiguous else np.empty(out.shape, np.float32)
        self._kernel.decode(np.ascontiguousarray(blocks), numbers)
        if numbers is not out:
            out[...] = numbers


def transcode_in_one_pass(
    transcoder: Transcoder,
    raw: U8,
    source: Encoding,
    target: Encoding,
    importance: F32 | None,
    *,
    out: U8 | None,
    measure: bool,
    zero_nonfinite: bool,
) -> tuple[U8, Loss | None]:
    """Return the result of `transcode_arrays` for rows that are not empty, in `out` if given.

    Raises `NonFiniteError` in the same cases.
    """
    rows, width = raw.shape
    columns = width // source.size * source.block
    if out is None:
        out = np.empty((rows, columns // target.block * target.size), np.uint8)
    loses = not is_exact(source, target)
    outcome = transcoder.transcode(
        raw if raw.flags.c_contiguous else np.ascontiguousarray(raw),
        columns,
        None if importance is None else np.ascontiguousarray(importance, np.float32),
        out,
        counts=loses,
        measures=loses and measure,
        zero_nonfinite=zero_nonfinite,
    )
    if outcome.refused >= 0:
        raise NonFiniteError(outcome.refused, outcome.number, target.name)
    if not loses:
        return out, None
    count, overflows, nonfinite = rows * columns, outcome.overflows, outcome.nonfinite
    if not measure:
        return out, Loss.from_counts(count, overflows, nonfinite)
    sums = outcome.squares, outcome.squared_error
    return out, Loss(count, overflows, outcome.underflows, *sums, nonfinite)
