"""Estimates how many directions of a matrix carry its squared values, in one pass."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from weightctl.values.measure import decode_floats, split_range

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from weightctl.weights.derived import ReadableTensor

    F32 = NDArray[np.float32]

# Matrices with at most this number of columns are computed exactly.
_EXACT = 512
# The numbers of random vectors that find the largest directions, and that measure the others.
_VECTORS = 64
_PROBES = 32
# The bytes that are read and decoded at once.
_TILE = 1 << 22
# Eigenvalues below this share of the largest are rounding errors of float32.
_LEAST = 1e-6


def has_rank(tensor: ReadableTensor) -> bool:
    """Whether a tensor is a matrix or a stack of matrices, in whole blocks per row."""
    info = tensor.info
    return len(info.shape) >= 2 and min(info.shape) > 0 and not info.shape[-1] % info.encoding.block


def estimate_rank(tensor: ReadableTensor, progress: Callable[[int], object] | None = None) -> float:
    """Return the effective rank of a matrix: (sum of s**2)**2 / sum of s**4 of singular values s.

    This is the participation ratio of the squared singular values. It is the rank if all singular
    values that are not 0 are equal, and smaller otherwise. A stack of matrices, such as experts,
    gets the mean of its matrices. Values that are not finite count as 0. `has_rank` must be true.
    `progress` gets the number of bytes that were read.

    Rows of up to 512 columns are computed exactly. Otherwise the sum of s**4, the squared Frobenius
    norm of G = W'W, is estimated from products of G with random vectors, which need one pass over
    the rows: a Nyström approximation has the largest directions, and Hutchinson's estimator the
    remainder (as in Meyer et al., "Hutch++", 2021). Raises `FormatError` if a file cannot be read.
    """
    shape = tensor.info.shape
    count, rows = prod(shape[:-2]), shape[-2]
    found = [
        _estimate(tensor, range(rows * number, rows * (number + 1)), progress)
        for number in range(count)
    ]
    return float(np.mean(found))


def _estimate(
    tensor: ReadableTensor, rows: range, progress: Callable[[int], object] | None
) -> float:
    columns = tensor.info.shape[-1]
    tiles = _read_rows(tensor, rows, progress)
    if columns <= _EXACT:
        gram = np.zeros((columns, columns))
        for tile in tiles:
            gram += tile.T @ tile
        total, fourth = float(np.trace(gram)), float((gram * gram).sum())
    else:
        total, fourth = _sketch(tiles, columns)
    if not total > 0:
        return 0.0
    return min(max(total * total / fourth, 1.0), len(rows), columns)


def _sketch(tiles: Iterator[F32], columns: int) -> tuple[float, float]:
    """Return the trace of G, and an estimate of the trace of its square."""
    random = np.random.default_rng(0)
    vectors = random.standard_normal((columns, _VECTORS + _PROBES), np.float32)
    products, total = np.zeros(vectors.shape), 0.0
    for tile in tiles:
        products += tile.T @ (tile @ vectors)
        total += float(np.vdot(tile, tile))
    exact = vectors.astype(np.float64)
    core = exact[:, :_VECTORS].T @ products[:, :_VECTORS]
    values, directions = np.linalg.eigh((core + core.T) / 2)
    is_kept = values > _LEAST * max(values[-1], 0)
    basis = products[:, :_VECTORS] @ (directions[:, is_kept] / np.sqrt(values[is_kept]))
    approximated = basis @ (basis.T @ exact[:, _VECTORS:])
    remainder = products[:, _VECTORS:] - approximated
    inner = basis.T @ basis
    crossed, squared = np.vdot(approximated, remainder), np.vdot(remainder, remainder)
    return total, float((inner * inner).sum() + (2 * crossed + squared) / _PROBES)


def _read_rows(
    tensor: ReadableTensor, rows: range, progress: Callable[[int], object] | None
) -> Iterator[F32]:
    """Yield the values of rows in float32, some at a time."""
    encoding, columns = tensor.info.encoding, tensor.info.shape[-1]
    row = columns // encoding.block * encoding.size
    for start, stop in split_range(row * rows.start, row * rows.stop, _TILE, row):
        room = memoryview(bytearray(stop - start))
        tensor.read_into(start, room)
        values = decode_floats(np.frombuffer(room, np.uint8), encoding).reshape(-1, columns)
        if not np.isfinite(values).all():
            values = np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
        yield values
        if progress is not None:
            progress(stop - start)
