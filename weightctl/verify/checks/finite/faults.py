"""Finds the faults of an unusual tensor: wrong values, wrong block scales, and swapped bytes."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from weightctl.codecs import transcode
from weightctl.dtype import ENCODINGS
from weightctl.verify.checks.finite.scales import ScaleSpread, clear_signs, form_of, read_codes
from weightctl.verify.checks.finite.survey import can_decode, decode_rows, read_runs

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8
    from weightctl.dtype import Encoding
    from weightctl.dtype.encodings import BlockScale
    from weightctl.system.threads import Memory
    from weightctl.verify.checks.finite.scales import Codes
    from weightctl.weights.derived import ReadableTensor


NONFINITE = "not finite"
_F64 = ENCODINGS["F64"]
_PLAIN = {"F64", "F32", "BF16", "F16"}
# The largest and the smallest number of values from which the spread of magnitudes is measured.
_SAMPLE, _LEAST = 1 << 14, 64
# The magnitudes of most weights span fewer powers of two than the first number. They span more than
# the second one if bytes of a significand are read as exponents.
_USUAL, _WIDE = 8.0, 14.0
# The percentiles that bound most values.
_MOST = (10, 90)


@dataclasses.dataclass(slots=True)
class Occurrences:
    """The number of occurrences of a fault, and the index and the value of the first one.

    `first` is an index into the flattened tensor, -1 if there is no occurrence.
    """

    count: int = 0
    first: int = -1
    value: float = 0.0

    def add(self, start: int, step: int, wrong: NDArray[np.bool_], values: NDArray[Any]) -> None:
        """Count the values for which `wrong` is true.

        Value i is that of the `step` elements from `start + i * step` on.
        """
        count = int(np.count_nonzero(wrong))
        if count and not self.count:
            index = int(wrong.argmax())
            self.first, self.value = start + index * step, float(values[index])
        self.count += count


@dataclasses.dataclass(slots=True)
class ScaleFault:
    """One kind of wrong block scales in a tensor.

    `field` is the scale's field in the block, `text` says what is wrong, and `usual` is the power
    of two of the median scale. `is_wrong` returns for each scale whether it has the fault.
    """

    field: BlockScale
    text: str
    usual: float
    is_wrong: Callable[[Codes, F32], NDArray[np.bool_]]
    found: Occurrences = dataclasses.field(default_factory=Occurrences)


def find_nonfinite(tensor: ReadableTensor, memory: Memory) -> tuple[Occurrences, Occurrences]:
    """Return the occurrences of NaN and of infinity in a tensor."""
    nan, infinite = Occurrences(), Occurrences()
    encoding = tensor.info.encoding
    if can_decode(encoding):
        for run in read_runs(tensor, 0, tensor.info.size, memory):
            numbers = decode_rows(run.raw, encoding, memory).reshape(-1)
            nan.add(run.start, 1, np.isnan(numbers), numbers)
            infinite.add(run.start, 1, np.isinf(numbers), numbers)
    return nan, infinite


def find_bad_scales(
    tensor: ReadableTensor, memory: Memory
) -> tuple[list[ScaleFault], list[ScaleSpread]]:
    """Return the faults of a tensor's block scales, and the distribution of each field's scales."""
    info = tensor.info
    fields = info.encoding.scales
    spreads = [ScaleSpread(each) for each in fields]
    for run in read_runs(tensor, 0, info.size, memory):
        for each, spread in zip(fields, spreads, strict=True):
            spread.add(read_codes(each, run.raw.reshape(-1), info.encoding.size))
    kinds = [kind for spread in spreads for kind in _list_kinds(spread)]
    if not kinds:
        return [], spreads
    for run in read_runs(tensor, 0, info.size, memory):
        for kind in kinds:
            codes = read_codes(kind.field, run.raw.reshape(-1), info.encoding.size).reshape(-1)
            values = form_of(kind.field).as_float32(codes)
            step = info.encoding.block // kind.field.width
            kind.found.add(run.start, step, kind.is_wrong(codes, values), values)
    return [kind for kind in kinds if kind.found.count], spreads


def _list_kinds(spread: ScaleSpread) -> list[ScaleFault]:
    """Return the kinds of faults that scales with this distribution may have."""
    each, usual = spread.field, spread.usual
    form, greatest, least = form_of(each), spread.greatest, spread.least
    kinds: list[ScaleFault] = []
    if spread.nonfinite:
        kinds.append(
            ScaleFault(
                each, NONFINITE, usual, lambda codes, _: clear_signs(each, codes) >= form.limit
            )
        )
    if spread.has_few_negative:
        kinds.append(
            ScaleFault(
                each, "negative", usual,
                lambda codes, _: (codes > form.sign) & (clear_signs(each, codes) < form.limit),
            )
        )  # fmt: skip
    if greatest < np.inf:
        kinds.append(
            ScaleFault(
                each, "implausibly large", usual,
                lambda codes, values: (np.abs(values) >= greatest)
                & (clear_signs(each, codes) < form.limit),
            )
        )  # fmt: skip
    if least > 0:
        kinds.append(
            ScaleFault(
                each,
                "implausibly small",
                usual,
                lambda _, values: _find_lone(np.abs(values), least),
            )
        )
    return kinds


def _find_lone(values: NDArray[Any], least: float) -> NDArray[np.bool_]:
    """Return whether each value is isolated: nonzero, below `least`, and its neighbors are not."""
    small = values < least
    beside = np.zeros_like(small)
    beside[1:] |= small[:-1]
    beside[:-1] |= small[1:]
    alone: NDArray[np.bool_] = small & ~beside & (values > 0)
    return alone


def has_swapped_bytes(tensor: ReadableTensor) -> bool:
    """Whether full-precision values have plausible magnitudes only with their bytes reversed."""
    info = tensor.info
    encoding = info.encoding
    if encoding.name not in _PLAIN or info.size < _LEAST:
        return False
    raw = bytearray(min(info.size, _SAMPLE) * encoding.size)
    tensor.read_into(0, memoryview(raw))
    given = np.frombuffer(raw, np.uint8)
    swapped = np.ascontiguousarray(given.reshape(-1, encoding.size)[:, ::-1]).reshape(-1)
    return _measure_spread(given, encoding) > _WIDE and _measure_spread(swapped, encoding) < _USUAL


def _measure_spread(raw: U8, encoding: Encoding) -> float:
    """Return the range of the magnitudes of most values (10th to 90th percentile), in log2."""
    with np.errstate(all="ignore"):  # misread bits may be NaN
        numbers = transcode(raw.reshape(1, -1), encoding, _F64).raw.reshape(-1).view(np.float64)
    sizes = np.abs(numbers[np.isfinite(numbers) & (numbers != 0)])
    if sizes.size < _LEAST:
        return 0.0
    low, high = np.percentile(np.log2(sizes), _MOST)
    return float(high - low)
