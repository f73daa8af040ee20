"""Products with weights.

Weights that are stored in another encoding are decoded a part at a time: within a kernel if the
product is in float32. Left operands can be observed: their squares are summed by column, and the
products of two columns by pair.

Optionally, left operands are rounded to bfloat16 for weights that are stored in it, as llama.cpp
rounds them. Processors with AVX512_BF16 then multiply twice as fast.
"""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING
from weakref import ref

from weightctl.dtype import DType
from weightctl.engine.weight_forms import interpret_info
from weightctl.errors import EngineError
from weightctl.graph.ops.lowering import decode_blocks, torch_dtype
from weightctl.kernels import multiplies_bf16, multiply_bf16, row_multiplier

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from weightctl.engine.stored_weights import StoredWeight
    from weightctl.engine.weight_forms import WeightForm
    from weightctl.weights.info import TensorInfo

# The bytes of values that a thread decodes at a time. They stay in the cache of a core until the
# product has read them; memory for the whole matrix would have to be allocated for each product.
_TILE = 2**21
# The values whose squares are computed at a time.
_SQUARED = 2**18
# The rows of a triangle of products that are computed at a time. Fewer of them make the products
# slower, and more of them compute more below the diagonal.
_STRIP = 256
# The operands' rows that are multiplied at a time: sums of more products are less exact.
_SUMMED = 1024


class EncodedMatrix:
    """A weight in its stored encoding as the right operand of a product, [inputs, outputs].

    The weight is stored as (outputs, inputs). Nothing is read before `multiply`. With
    `rounds_bf16`, left operands of weights in bfloat16 are rounded to bfloat16.
    """

    def __init__(
        self, stored: StoredWeight, form: WeightForm, *, rounds_bf16: bool = False
    ) -> None:
        self._stored = stored
        self._dtype = form.dtype if form.read_as is None else form.read_as
        self._encoding = interpret_info(stored.info, form).encoding
        self._kernel = row_multiplier(self._encoding.name)
        self._rounds = rounds_bf16 and self._encoding.dtype is DType.bfloat16
        self.shape = form.shape[::-1]

    def __str__(self) -> str:
        return f"{self._dtype.value}{list(self.shape)}"

    def multiply(self, left: Tensor) -> Tensor:
        """Return `left` @ this matrix, for `left` of shape (..., inputs)."""
        import torch

        inputs, outputs = self.shape
        rows = left.reshape(-1, inputs)
        made = torch.empty((len(rows), outputs), dtype=torch_dtype(self._dtype))
        if made.numel():
            # A registry may have the bytes on a GPU.
            blocks, kernel = self._stored.raw().cpu().reshape(outputs, -1), self._kernel
            threads = torch.get_num_threads()
            if self._rounds and inputs % 2 == 0 and multiplies_bf16():
                vectors = rows.contiguous().numpy()
                multiply_bf16(blocks.numpy(), inputs, vectors, made.numpy(), threads=threads)
                return made.reshape(*left.shape[:-1], outputs)
            if self._rounds:
                rows = rows.bfloat16().float()
            if kernel is not None and self._dtype is DType.float32:
                vectors = rows.contiguous().numpy()
                kernel.multiply(blocks.numpy(), inputs, vectors, 0, made.numpy(), threads=threads)
            else:
                self._multiply_tiles(rows, blocks, made)
        return made.reshape(*left.shape[:-1], outputs)

    def _multiply_tiles(self, rows: Tensor, blocks: Tensor, made: Tensor) -> None:
        """Fill `made` with products with tiles of decoded values."""
        import torch

        inputs, outputs = self.shape
        threads = torch.get_num_threads()
        part = max(1, _TILE // (inputs * made.dtype.itemsize))
        tile = torch.empty((min(part * threads, outputs), inputs), dtype=made.dtype)

        def decode(first: int, last: int) -> None:
            room = tile[first - start : last - start]
            decode_blocks(blocks[first:last], self._encoding, self._dtype, room)

        for start in range(0, outputs, len(tile)):
            stop = min(start + len(tile), outputs)
            _run_in_threads(decode, start, stop, part)
            torch.mm(rows, tile[: stop - start].T, out=made[:, start:stop])


class SquaresObserver:
    """Sums the squares of the left operands of products with the weights `wanted`.

    `add` is called with the name of the weight, the sums by column, float64[columns], and the
    number of rows. `products` adds the products of columns too.
    """

    def __init__(
        self,
        wanted: Container[str],
        add: Callable[[str, NDArray[np.float64], int], None],
        products: ProductSums | None = None,
    ) -> None:
        self._wanted = wanted
        self._add = add
        self._products = products
        # Several weights in a row often read the same values, such as queries, keys and values.
        # The values are not kept in memory for it.
        self._last: tuple[ref[Tensor], NDArray[np.float64]] | None = None

    def __call__(self, name: str, left: Tensor) -> None:
        """Add a left operand, shape (..., columns)."""
        if name not in self._wanted:
            return
        rows = left.reshape(-1, left.shape[-1])
        if self._last is None or self._last[0]() is not left:
            self._last = ref(left), _sum_squares(rows)
        self._add(name, self._last[1], len(rows))
        if self._products is not None:
            self._products.add(name, left)


class ProductSums:
    """Sums over rows of the products of two columns of left operands, x^T x, in float32.

    `orders` has the weights, and the order of the columns for each of them; None if it is that of
    the operand. Weights that read the same values in the same order share their sums. Only the
    upper triangles are in memory, on the device of the operands.
    """

    def __init__(self, orders: Mapping[str, Sequence[int] | None]) -> None:
        self._orders = orders
        self._clear()

    def _clear(self) -> None:
        # By the name of a weight: the first weight that reads the same values, and the rows so far.
        self._first: dict[str, str] = {}
        self._rows = Counter[str]()
        # By the name of the first weight.
        self._last: dict[str, ref[Tensor]] = {}
        self._strips: dict[str, list[Tensor]] = {}

    def add(self, name: str, left: Tensor) -> None:
        """Add the products of a left operand, shape (..., columns), if the weight is wanted."""
        if name not in self._orders:
            return
        if name not in self._first:
            self._first[name] = self._find_first(name, left)
        rows = left.reshape(-1, left.shape[-1])
        self._rows[name] += len(rows)
        first = self._first[name]
        if first == name:
            self._last[name] = ref(left)
            self._add_rows(name, rows)
        elif self._last[first]() is not left:
            raise _not_shared(name, first)

    def _find_first(self, name: str, left: Tensor) -> str:
        for first, last in self._last.items():
            if last() is left and self._orders[first] == self._orders[name]:
                return first
        return name

    def _add_rows(self, name: str, rows: Tensor) -> None:
        import torch

        columns, order = rows.shape[1], self._orders[name]
        starts = range(0, columns, _STRIP)
        if name not in self._strips:
            self._strips[name] = [
                torch.zeros((min(_STRIP, columns - at), columns - at), device=rows.device)
                for at in starts
            ]
        for start in range(0, len(rows), _SUMMED):
            part = rows[start : start + _SUMMED].float()
            x = part if order is None else part[:, list(order)]
            for at, strip in zip(starts, self._strips[name], strict=True):
                strip.addmm_(x[:, at : at + _STRIP].T, x[:, at:])

    def take(self) -> Iterator[tuple[list[str], Iterator[NDArray[np.float32]]]]:
        """Yield the weights that share sums, with the parts of the triangle row by row.

        The sums begin with none again. Raises `EngineError` if weights did not always read the same
        values, or if a sum is not finite.
        """
        first, rows, strips = self._first, self._rows, self._strips
        self._clear()
        while strips:
            name = next(iter(strips))
            sharing = [each for each in first if first[each] == name]
            for each in sharing:
                if rows[each] != rows[name]:
                    raise _not_shared(each, name)
            yield sharing, _list_parts(name, strips.pop(name))


def _list_parts(name: str, strips: list[Tensor]) -> Iterator[NDArray[np.float32]]:
    """Yield the upper triangle of strips, and release them."""
    import numpy as np

    while strips:
        strip = strips.pop(0).cpu().numpy()
        part = np.concatenate([row[start:] for start, row in enumerate(strip)])
        if not np.isfinite(part).all():
            raise EngineError(
                f"the products of the inputs of `{name}` are NaN or too large",
                hint="the model or the file is damaged; check it with `weightctl verify`",
            )
        yield part


def _not_shared(name: str, first: str) -> EngineError:
    return EngineError(
        f"`{name}` read the same values as `{first}` in one run of a layer, but not in another",
        hint="measure without --hessian (hessian), and report this model",
    )


def _sum_squares(rows: Tensor) -> NDArray[np.float64]:
    """Return the sums of the squares of each column, in blocks that stay in the cache."""
    import torch

    columns = rows.shape[1]
    made = torch.zeros(columns, dtype=torch.float64, device=rows.device)
    step = max(1, _SQUARED // max(1, columns))
    for start in range(0, len(rows), step):
        made += rows[start : start + step].float().square().sum(0)
    return made.cpu().numpy()


def is_encoded_matrix(info: TensorInfo, form: WeightForm) -> bool:
    """Whether a weight is a transposed matrix on the CPU whose stored values are exact in its form.

    They are blocks or plain values of another dtype.
    """
    if form.blocks is not None or not form.is_transposed or form.device.kind != "cpu":
        return False
    stored = interpret_info(info, form).encoding.dtype
    if stored is None:
        return form.read_as is None and all(form.shape)
    is_short = stored in {DType.bfloat16, DType.float16}
    is_exact = form.read_as is None or stored is form.dtype
    wanted = form.dtype if form.read_as is None else form.read_as
    return is_short and is_exact and wanted is DType.float32 and all(form.shape)


def _run_in_threads(work: Callable[[int, int], None], start: int, stop: int, size: int) -> None:
    """Call `work(first, last)` for ranges of at most `size`, the first one in this thread."""
    own, *others = ((first, min(first + size, stop)) for first in range(start, stop, size))
    tasks = [_pool(os.getpid()).submit(work, *each) for each in others]
    try:
        work(*own)
    finally:
        for task in tasks:
            task.result()


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """Return the threads of a process: those of its parent do not exist in a forked process."""
    del process
    return ThreadPoolExecutor(thread_name_prefix="weightctl-products")
