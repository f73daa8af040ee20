"""Conversion to float32 from any encoding, and addition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from weightctl.dtype import Encoding
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import TensorInfo

# The number of values that are decoded at a time.
_RUN = 1 << 20


@dataclass(frozen=True, slots=True)
class AsFloat32:
    """Values as float32; blocks are dequantized."""

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the same shape, and F32."""
        (info,) = inputs
        dtype = info.encoding.dtype
        is_number = info.encoding.quantization is not None or (dtype is not None and dtype.is_float)
        if not is_number:
            raise ConversionError(
                f"`{info.name}` is stored as {info.encoding}, which is not a floating-point type"
            )
        return info.shape, ENCODINGS["F32"]

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        import numpy as np

        made = np.frombuffer(buffer, np.float32)
        for first in range(0, len(made), _RUN):
            piece = made[first : first + _RUN]
            piece[:] = read_floats(inputs[0], start // 4 + first, len(piece))

    def __str__(self) -> str:
        return ""


class OnFloat32:
    """Common to steps that compute each value in float32, whatever the encoding of the input."""

    __slots__ = ()

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the same shape, and F32."""
        return AsFloat32().infer(inputs)

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        """Decode the requested range, and compute."""
        import numpy as np

        AsFloat32().read_into(inputs, start, buffer)
        with np.errstate(all="ignore"):  # NaN and infinity stay
            self._compute(np.frombuffer(buffer, np.float32))

    def _compute(self, values: NDArray[np.float32]) -> None:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Plus(OnFloat32):
    """Each value plus `value`, in float32."""

    value: float

    def _compute(self, values: NDArray[np.float32]) -> None:
        import numpy as np

        values += np.float32(self.value)

    def __str__(self) -> str:
        return f"{self.value:+g}"


@dataclass(frozen=True, slots=True)
class Multiplied(OnFloat32):
    """Each value plus `offset`, times `factor`, in float32."""

    factor: float
    offset: float = 0.0

    def _compute(self, values: NDArray[np.float32]) -> None:
        import numpy as np

        if self.offset:
            values += np.float32(self.offset)
        values *= np.float32(self.factor)

    def __str__(self) -> str:
        return f"{f'{self.offset:+g}, ' if self.offset else ''}times {self.factor:.6g}"


@dataclass(frozen=True, slots=True)
class UnitRows(OnFloat32):
    """Each row divided by its length, in float32. A row of zeros stays."""

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        """Decode the rows that contain the requested range, and divide them."""
        import numpy as np

        width = inputs[0].info.shape[-1]
        first, end = start // 4, (start + len(buffer)) // 4
        rows = -(-end // width) - first // width
        made = np.frombuffer(buffer, np.float32)
        step = max(_RUN // width, 1)
        for row in range(0, rows, step):
            count = min(step, rows - row)
            at = (first // width + row) * width
            values = read_floats(inputs[0], at, count * width).reshape(count, width)
            lengths = np.sqrt(np.square(values).sum(-1, keepdims=True))
            values = (values / np.maximum(lengths, np.float32(1e-12))).ravel()
            low, high = max(first - at, 0), min(end - at, count * width)
            made[at + low - first : at + high - first] = values[low:high]

    def __str__(self) -> str:
        return "rows of length 1"


@dataclass(frozen=True, slots=True)
class Doubled:
    """Each value times 2 to the power of `times`, which may be negative.

    The result has the type BF16 if the input has it, and F32 otherwise.
    """

    times: int

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the same shape, and BF16 or F32."""
        (info,) = inputs
        return (info.shape, info.encoding) if _is_bf16(info) else AsFloat32().infer(inputs)

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        """Decode the requested range, and compute."""
        import numpy as np

        if not _is_bf16(inputs[0].info):
            Multiplied(2.0**self.times).read_into(inputs, start, buffer)
            return
        words = np.frombuffer(buffer, np.uint16)
        wide = np.empty(len(words), np.uint32)
        Multiplied(2.0**self.times).read_into(inputs, 2 * start, wide.data.cast("B"))
        # To the nearest value, to an even one if two are equally near.
        wide += np.uint32(0x7FFF) + (wide >> np.uint32(16) & np.uint32(1))
        words[:] = wide >> np.uint32(16)

    def __str__(self) -> str:
        return f"times {2.0**self.times:g}"


def _is_bf16(info: TensorInfo) -> bool:
    return info.encoding.name == "BF16"


@dataclass(frozen=True, slots=True)
class MultipliedRows:
    """A matrix in float32 whose rows are multiplied: `runs` has numbers of rows and factors."""

    runs: tuple[tuple[int, float], ...]

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the same shape, and F32."""
        (info,) = inputs
        rows = sum(count for count, _ in self.runs)
        if not info.shape or info.shape[0] != rows:
            raise ConversionError(
                f"`{info.name}` has shape {list(info.shape)}, but {rows} rows are expected",
                hint="check that the config belongs to this checkpoint",
            )
        return AsFloat32().infer(inputs)

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        """Decode the requested range, and multiply."""
        import numpy as np

        AsFloat32().read_into(inputs, start, buffer)
        values = np.frombuffer(buffer, np.float32)
        shape = inputs[0].info.shape
        columns = int(np.prod(shape[1:], dtype=np.int64))
        first = start // 4
        end = 0
        with np.errstate(all="ignore"):  # NaN and infinity stay
            for count, factor in self.runs:
                begin, end = end, end + count * columns
                values[max(begin - first, 0) : max(end - first, 0)] *= np.float32(factor)

    def __str__(self) -> str:
        return f"rows times {', '.join(f'{factor:.6g}' for _, factor in self.runs)}"


@dataclass(frozen=True, slots=True)
class Exp(OnFloat32):
    """`exp(x)` of each number, in float32, with a `sign` of 1 or -1."""

    sign: int = 1

    def _compute(self, values: NDArray[np.float32]) -> None:
        import numpy as np

        values[:] = self.sign * np.exp(values.astype(np.float64))

    def __str__(self) -> str:
        return "exp(x)" if self.sign > 0 else "-exp(x)"


@dataclass(frozen=True, slots=True)
class Log(OnFloat32):
    """The inverse of `Exp`, in float32. NaN for a number with the other sign."""

    sign: int = 1

    def _compute(self, values: NDArray[np.float32]) -> None:
        import numpy as np

        values[:] = np.log(self.sign * values.astype(np.float64))

    def __str__(self) -> str:
        return "log(x)" if self.sign > 0 else "log(-x)"


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """Float32 values that are not in a checkpoint; `text` describes where they are from."""

    numbers: NDArray[np.float32]
    text: str

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the shape of the values, and F32."""
        del inputs
        return self.numbers.shape, ENCODINGS["F32"]

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        del inputs
        raw = memoryview(self.numbers.astype("<f4").tobytes())
        buffer[:] = raw[start : start + len(buffer)]

    def __str__(self) -> str:
        return self.text


def numbers_of(tensor: ReadableTensor) -> NDArray[np.float32]:
    """Return all values of a small tensor, as float32 and in its shape."""
    return read_floats(tensor, 0, tensor.info.size).reshape(tensor.info.shape)


def read_blocks(tensor: ReadableTensor, first: int, count: int) -> NDArray[np.uint8]:
    """Return the bytes of the blocks that contain `count` values from number `first` on."""
    import numpy as np

    block, size = tensor.info.encoding.block, tensor.info.encoding.size
    begin, end = first // block, -(-(first + count) // block)
    raw = np.empty((end - begin) * size, np.uint8)
    tensor.read_into(begin * size, raw.data)
    return raw


def read_floats(tensor: ReadableTensor, first: int, count: int) -> NDArray[np.float32]:
    """Return `count` values from number `first` on, decoded from the blocks that contain them."""
    import numpy as np

    from weightctl.codecs import transcode

    encoding = tensor.info.encoding
    blocks = read_blocks(tensor, first, count).reshape(1, -1)
    numbers = transcode(blocks, encoding, ENCODINGS["F32"]).raw.reshape(-1).view(np.float32)
    skipped = first % encoding.block
    return numbers[skipped : skipped + count]
