"""Products with quantized matrices, whose blocks are decoded a few rows at a time."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING

from weightctl.engine.forms import interpret_info
from weightctl.graph.ops.lowering import decode_blocks, torch_dtype

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from weightctl.engine.forms import WeightForm
    from weightctl.engine.stored import StoredWeight
    from weightctl.weights.info import TensorInfo

__all__ = ["BlockMatrix", "is_block_matrix", "multiply"]

# The bytes of values that a thread decodes at a time. They stay in the cache of a core until the
# product has read them; memory for the whole matrix would have to be allocated for each product.
_TILE = 2**21


class BlockMatrix:
    """A quantized weight as the right operand of a product, of shape (inputs, outputs).

    The weight is stored as (outputs, inputs). Nothing is read before `multiply`.
    """

    def __init__(self, stored: StoredWeight, form: WeightForm) -> None:
        self._stored = stored
        self._form = form
        self.shape = form.shape[::-1]

    def __str__(self) -> str:
        return f"{self._form.dtype.value}{list(self.shape)}"

    def multiply(self, left: Tensor) -> Tensor:
        """Return `left` @ this matrix, for `left` of shape (..., inputs)."""
        import torch

        inputs, outputs = self.shape
        rows = left.reshape(-1, inputs)
        dtype = torch_dtype(self._form.dtype)
        made = torch.empty((len(rows), outputs), dtype=dtype)
        if made.numel():
            encoding = interpret_info(self._stored.info, self._form).encoding
            blocks = self._stored.raw().reshape(outputs, -1)
            threads = torch.get_num_threads()
            part = max(1, _TILE // (inputs * dtype.itemsize))
            tile = torch.empty((min(part * threads, outputs), inputs), dtype=dtype)

            def decode(first: int, last: int, start: int) -> None:
                room = tile[first - start : last - start]
                decode_blocks(blocks[first:last], encoding, self._form.dtype, room)

            for start in range(0, outputs, len(tile)):
                stop = min(start + len(tile), outputs)
                _run_in_threads(decode, start, stop, part, threads)
                torch.mm(rows, tile[: stop - start].T, out=made[:, start:stop])
        return made.reshape(*left.shape[:-1], outputs)


def is_block_matrix(info: TensorInfo, form: WeightForm) -> bool:
    """Whether a weight is a transposed matrix on the CPU, of values that are stored as blocks."""
    is_decoded = interpret_info(info, form).encoding.dtype is None and form.blocks is None
    is_plain = form.read_as is None and form.device.kind == "cpu"
    return is_decoded and is_plain and form.is_transposed and all(form.shape)


def multiply(left: Tensor, right: BlockMatrix) -> Tensor:
    """Return the product of a tensor with a matrix of blocks."""
    return right.multiply(left)


def _run_in_threads(
    work: Callable[[int, int, int], None], start: int, stop: int, size: int, threads: int
) -> None:
    """Call `work(first, last, start)` for ranges of at most `size` from `start` to `stop`."""
    ranges = [(first, min(first + size, stop), start) for first in range(start, stop, size)]
    if len(ranges) == 1:
        work(*ranges[0])
        return
    tasks = [_pool(os.getpid(), threads).submit(work, *each) for each in ranges]
    for task in tasks:
        task.result()


@cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Return the threads of a process: those of its parent do not exist in a forked process."""
    del process
    return ThreadPoolExecutor(threads, thread_name_prefix="weightctl-decode")
