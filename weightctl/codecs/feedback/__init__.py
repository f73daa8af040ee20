"""Rounding with error feedback: the error of a column is passed on to those that are not rounded.

The inputs of a matrix are correlated, so other columns can undo most of a column's rounding error.
As in GPTQ (Frantar et al., 2022), columns are rounded one after another, and their errors are
passed on by a factor of the Hessian of the loss, the mean of `x x^T` over the inputs. Scales are
those that ggml's search finds, weighted by the diagonal. Afterwards scales are fitted to the codes,
and codes to the scales, by the same loss. The blocks have the layout of their type.

Sums have a fixed order, so that the bytes are the same on all processors.
"""

from __future__ import annotations

from math import fsum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.codecs.feedback.columns import (
    ABREAST,
    ROUNDS,
    Columns,
    FactoredScales,
    factor_hessian,
    refine_codes,
    round_columns,
)
from weightctl.codecs.feedback.parts import parts_of
from weightctl.kernels import error_feedback

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8, Codec
    from weightctl.codecs.feedback.parts import CodeValues
    from weightctl.dtype import Encoding

# What is added to each element of the diagonal: a share of itself and of the mean. With less of it,
# codes fit the texts and not the model; with more of it, less of the errors is passed on. In models
# whose largest inputs are in few columns, a large share of the mean would hide all other columns.
_DAMPING = np.float32(0.25)
_OF_MEAN = np.float32(1e-3)


class Curvature(NamedTuple):
    """How errors in the columns of a matrix matter together.

    `hessian` is damped, shape (n, n). `order` is that in which columns are rounded: blocks stay in
    order, and the columns of a block with the largest squares come first. `factor` is the unit
    lower factor `L` of the Hessian in this order, `L^T D L`.
    """

    hessian: F32
    factor: F32
    order: NDArray[np.intp]


def prepare_curvature(hessian: F32, block: int) -> Curvature:
    """Return the curvature for the mean of `x x^T` over the inputs `x` of a matrix, shape (n, n).

    Blocks have `block` columns. `hessian` is overwritten. Raises `ValueError` if it cannot be such
    a mean: it is 0, or not positive semidefinite.
    """
    squares = np.diag(hessian).copy()
    places = np.arange(len(squares))
    # The sum does not depend on its order, of which NumPy promises nothing.
    mean = np.float32(fsum(squares) / len(squares))
    with np.errstate(over="ignore"):
        hessian[places, places] += _DAMPING * squares + _OF_MEAN * mean
    within = np.argsort(-squares.reshape(-1, block), axis=1, kind="stable")
    order = (within + places[::block, None]).reshape(-1)
    factor = np.ascontiguousarray(hessian[np.ix_(order, order)])
    kernel = error_feedback()
    with np.errstate(all="ignore"):
        if kernel is None:
            factor_hessian(factor)
        else:
            kernel.factor(factor, len(factor))
    pivots = np.diag(factor)
    if not (np.isfinite(pivots).all() and pivots.min() > 0):
        raise ValueError("the damped products are not positive definite")
    return Curvature(hessian, factor, order)


class FeedbackCodec:
    """The codec of an encoding that rounds the values of one matrix with error feedback.

    `codec` is the one that rounds each value alone; it finds the scales.
    """

    def __init__(self, encoding: Encoding, codec: Codec, curvature: Curvature) -> None:
        self._size, self._parts = encoding.size, parts_of(encoding)
        self._codec, self._curvature = codec, curvature

    def encode(self, rows: F32, importance: F32 | None, out: U8) -> None:
        """Fill `out`, shape (r, n // block * size), with the blocks of `rows`, shape (r, n).

        `importance`, shape (n,), weights the search for scales.
        """
        dtype, grid, scales, pack = self._parts
        blocks, step = out.view(dtype), grid.block
        with np.errstate(all="ignore"):
            chosen = _ChosenRows(rows, grid, self._curvature)
            for first in range(0, rows.shape[1], step):
                part = np.empty((len(rows), self._size), np.uint8)
                columns = None if importance is None else importance[first : first + step]
                self._codec.encode(chosen.read_corrected(first), columns, part)
                block = part.view(dtype)[:, 0]
                blocks[:, first // step] = block
                chosen.round_block(first, *scales.read(block))
            chosen.refine()
            for first in range(0, rows.shape[1], step):
                block = blocks[:, first // step].copy()
                scales.write(block, *chosen.read_scales(first))
                pack(grid.find_indices(chosen.read_codes(first)), block)
                blocks[:, first // step] = block

    def decode(self, blocks: U8, out: F32) -> None:
        """Fill `out` with the values of `blocks`."""
        self._codec.decode(blocks, out)


def choose_codes(rows: F32, scales: F32, lows: F32, grid: CodeValues, curvature: Curvature) -> U8:
    """Return the places of the codes of `rows`, shape (r, n), at fixed scales and mins.

    `scales` and `lows` are those of the sub-blocks, shape (r, n // shared).
    """
    made = np.empty(rows.shape, np.uint8)
    with np.errstate(all="ignore"):
        chosen = _ChosenRows(rows, grid, curvature)
        ones = np.ones((2, len(rows)), np.float32)
        for first in range(0, rows.shape[1], grid.block):
            groups = slice(first // grid.shared, (first + grid.block) // grid.shared)
            chosen.round_block(first, ones, np.stack([scales[:, groups].T, lows[:, groups].T]))
        chosen.refine()
        for first in range(0, rows.shape[1], grid.block):
            made[:, first : first + grid.block] = grid.find_indices(chosen.read_codes(first))
    return made


class _ChosenRows:
    """Rows whose codes are chosen."""

    def __init__(self, rows: F32, grid: CodeValues, curvature: Curvature) -> None:
        self._grid, self._curvature, self._count = grid, curvature, len(rows)
        self._own = _to_lanes(rows)
        ordered = np.ascontiguousarray(self._own[:, curvature.order])
        self._columns = Columns(ordered, ordered.copy(), np.empty_like(ordered))
        self._codes = ordered  # in the order of the matrix, after `refine` began
        tiles, n = ordered.shape[:2]
        kinds = 2 if grid.has_mins else 1
        self._scales = FactoredScales(
            np.empty((kinds, tiles, n // grid.block, ABREAST), np.float32),
            np.empty((kinds, tiles, n // grid.shared, ABREAST), np.float32),
        )

    def read_corrected(self, first: int) -> F32:
        """Return the values of a block of columns, after the feedback so far, (r, block)."""
        step = self._grid.block
        made = np.empty((self._count, step), np.float32)
        made[:, self._place(first)] = _to_rows(
            self._columns.wanted[:, first : first + step], self._count
        )
        return made

    def _place(self, first: int) -> NDArray[np.intp]:
        return self._curvature.order[first : first + self._grid.block] - first

    def round_block(self, first: int, of_blocks: F32, of_groups: F32) -> None:
        """Choose the codes of a block of columns at given scales, and pass on their errors."""
        grid, groups = self._grid, self._groups(first)
        for kind in range(len(self._scales.of_blocks)):
            block = _to_lanes(of_blocks[kind][:, None])[:, 0]
            self._scales.of_blocks[kind, :, first // grid.block] = block
            self._scales.of_groups[kind, :, groups] = _to_lanes(of_groups[kind].T)
        made = self._scales.multiply(first, first + grid.block, grid)[:, :, self._place(first)]
        kernel = error_feedback()
        if kernel is None:
            round_columns(self._curvature.factor, first, self._columns, made, grid)
        else:
            n = len(self._curvature.factor)
            scales = np.ascontiguousarray(made[0]), np.ascontiguousarray(made[1])
            kernel.round_columns(
                (self._curvature.factor, n, first), self._columns, scales, _list_facts(grid)
            )

    def _groups(self, first: int) -> slice:
        shared = self._grid.shared
        return slice(first // shared, (first + self._grid.block) // shared)

    def refine(self) -> None:
        """Fit the scales to the codes, unless they are fixed, and the codes to the scales."""
        self._codes = codes = np.empty_like(self._own)
        codes[:, self._curvature.order] = self._columns.codes
        kernel, hessian = error_feedback(), self._curvature.hessian
        if kernel is None:
            refine_codes(hessian, self._own, codes, self._scales, self._grid)
        else:
            blocks, groups = self._scales
            has_mins = self._grid.has_mins
            kernel.refine(
                (hessian, len(hessian), ROUNDS), (self._own, codes),
                (blocks[0], groups[0], blocks[1] if has_mins else None,
                 groups[1] if has_mins else None),
                _list_facts(self._grid),
            )  # fmt: skip

    def read_scales(self, first: int) -> tuple[F32, F32]:
        """Return the scales of a block as `ScaleFields.read` does."""
        block, count = first // self._grid.block, self._count
        blocks = [_to_rows(each[:, block, None], count)[:, 0] for each in self._scales.of_blocks]
        groups = [
            _to_rows(each[:, self._groups(first)], count).T for each in self._scales.of_groups
        ]
        return np.stack(blocks), np.stack(groups)

    def read_codes(self, first: int) -> F32:
        """Return the codes of a block, (r, block)."""
        return _to_rows(self._codes[:, first : first + self._grid.block], self._count)


def _to_lanes(rows: F32) -> F32:
    """Return rows (r, n) as tiles (t, n, ABREAST); the last one is filled with zeros."""
    count, n = rows.shape
    padded = np.zeros((-(-count // ABREAST) * ABREAST, n), np.float32)
    padded[:count] = rows
    return np.ascontiguousarray(padded.reshape(-1, ABREAST, n).transpose(0, 2, 1))


def _to_rows(tiles: F32, count: int) -> F32:
    """Return `count` rows (r, n) of tiles (t, n, ABREAST)."""
    return np.ascontiguousarray(tiles.transpose(0, 2, 1)).reshape(-1, tiles.shape[1])[:count]


def _list_facts(grid: CodeValues) -> tuple[object, ...]:
    """Return what kernels know of a type."""
    least, most = grid.factors or (0, 0)
    return (
        grid.block, grid.shared, grid.least, grid.most, grid.levels,
        grid.is_fixed, grid.factors is not None, least, most,
    )  # fmt: skip
