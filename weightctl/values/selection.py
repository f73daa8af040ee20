"""Selections of a tensor's elements, as in NumPy (`0:4, :8`), read without the rest."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from weightctl.errors import WeightctlError
from weightctl.text.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from weightctl.weights.derived import ReadableTensor

_INTEGER = r"[+-]?\d{1,18}"
_SLICE = re.compile(rf"({_INTEGER})?:({_INTEGER})?(?::({_INTEGER})?)?")
_HINT = "use indices as in NumPy: '0', '0:4', '0:4, :8', '..., -1'"
# The number of values that are read at once, and the limit for the size of a selection.
_READ = 1 << 20
_MOST_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class Selection:
    """The selected range of each axis, and which axes remain in the result."""

    ranges: tuple[range, ...]
    kept: tuple[bool, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the selected elements."""
        pairs = zip(self.ranges, self.kept, strict=True)
        return tuple(len(each) for each, is_kept in pairs if is_kept)


def parse_selection(text: str, shape: tuple[int, ...]) -> Selection:
    """Return the selection that a text like `0:4, :8` describes; an empty text selects all.

    Raises `WeightctlError` for a text that is not an index, too many indices, or an index that is
    out of range.
    """
    parts = [part.strip() for part in text.strip().removeprefix("[").removesuffix("]").split(",")]
    parts = [part for part in parts if part]
    if parts.count("...") > 1:
        raise WeightctlError(f"`{text}` has more than one `...`", hint=_HINT)
    given = len(parts) - parts.count("...")
    if given > len(shape):
        raise WeightctlError(
            f"`{text}` has {given} indices, but the tensor has {len(shape)} axes", hint=_HINT
        )
    if "..." not in parts:
        parts.append("...")
    place = parts.index("...")
    parts[place : place + 1] = [":"] * (len(shape) - given)
    ranges = [
        _parse_index(part, size, axis, text)
        for axis, (part, size) in enumerate(zip(parts, shape, strict=True))
    ]
    return Selection(tuple(ranges), tuple(":" in part for part in parts))


def _parse_index(part: str, size: int, axis: int, text: str) -> range:
    if re.fullmatch(_INTEGER, part):
        index = int(part)
        if not -size <= index < size:
            raise WeightctlError(
                f"index {index} of `{text}` is out of range: axis {axis} has {size} elements",
                hint=_HINT,
            )
        return range(index % size, index % size + 1)
    found = _SLICE.fullmatch(part.replace(" ", ""))
    if found is None or (found[3] is not None and int(found[3]) == 0):
        raise WeightctlError(f"`{part}` is not an index or a slice", hint=_HINT)
    return range(size)[slice(*(None if each is None else int(each) for each in found.groups()))]


def read_selection(tensor: ReadableTensor, selection: Selection) -> NDArray[Any]:
    """Return the selected elements; only the ranges of the first axis that they are in are read.

    Quantized weights are decoded, and types that NumPy does not have become float32. Raises
    `WeightctlError` if the selection is too large for the memory, and `FormatError` if the file
    cannot be read.
    """
    import numpy as np

    first, *others = selection.ranges or (range(1),)
    row = prod(tensor.info.shape[1:])
    inner: tuple[Any, ...] = np.ix_(*(np.array(each, np.int64) for each in others))
    kind = _kind_of(tensor)
    size = len(first) * prod(map(len, others)) * kind.itemsize
    if size > _MOST_BYTES:
        raise WeightctlError(
            f"the selection has {format_size(size)}, which is more than {format_size(_MOST_BYTES)}",
            hint="select fewer elements: " + _HINT,
        )
    made = np.empty((len(first), *map(len, others)), kind)
    for at, start, stop in _list_runs(first, max(_READ // max(row, 1), 1)):
        values = _read(tensor, kind, start * row, (stop - start) * row)
        rows = values.reshape(stop - start, *tensor.info.shape[1:])[:: abs(first.step)]
        rows = rows[::-1] if first.step < 0 else rows
        made[at : at + len(rows)] = rows[:, *inner] if others else rows
    return made.reshape(selection.shape)


def _list_runs(rows: range, most: int) -> Iterator[tuple[int, int, int]]:
    """Yield places in `rows`, and the contiguous rows that have this and the following ones."""
    count = max(most // abs(rows.step), 1)
    for at in range(0, len(rows), count):
        part = rows[at : at + count]
        yield at, min(part[0], part[-1]), max(part[0], part[-1]) + 1


def _kind_of(tensor: ReadableTensor) -> np.dtype[Any]:
    """Return NumPy's type for the elements; float32 if it has none."""
    import numpy as np

    from weightctl.codecs.scalar import numpy_dtype

    dtype = tensor.info.encoding.dtype
    if dtype is None or (dtype.is_float and dtype.value not in ("float16", "float64")):
        return np.dtype(np.float32)
    return numpy_dtype(dtype)


def _read(tensor: ReadableTensor, kind: np.dtype[Any], first: int, count: int) -> NDArray[Any]:
    import numpy as np

    from weightctl.codecs.scalar import unpack
    from weightctl.weights.steps.numbers import read_floats

    dtype = tensor.info.encoding.dtype
    if kind == np.float32 or dtype is None:
        return read_floats(tensor, first, count)
    size = tensor.info.encoding.size
    raw = bytearray(count * size)
    tensor.read_into(first * size, memoryview(raw))
    return unpack(np.frombuffer(raw, np.uint8), dtype)
