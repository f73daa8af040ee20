"""Statistics of values are those that NumPy computes, for all kinds of encodings."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from each import each
from weightctl.codecs import transcode
from weightctl.dtype import ENCODINGS
from weightctl.kernels import active
from weightctl.values import Statistics, can_measure, measure, measure_counts
from weightctl.weights.info import Origin, TensorInfo

Floats = NDArray[np.float32]

RANDOM = np.random.default_rng(5)
VALUES = {
    "normal": (RANDOM.standard_normal(40_000) * 0.02).astype(np.float32),
    "with outliers": np.concatenate(
        [RANDOM.standard_normal(9_984) * 1e-3, np.full(16, 3.0)]
    ).astype(np.float32),
    "zeros": np.zeros(512, np.float32),
    "one value": np.full(512, -2.5, np.float32),
    "tiny": (RANDOM.standard_normal(1024) * 1e-39).astype(np.float32),
}
PLAIN = ("F32", "F64", "F16", "BF16", "F8_E4M3", "F8_E5M2")


class Held:
    """A tensor in memory."""

    def __init__(self, values: Floats, encoding: str) -> None:
        made = ENCODINGS[encoding]
        self.raw = transcode(values.reshape(1, -1).view(np.uint8), ENCODINGS["F32"], made).raw
        self.info = TensorInfo("held", (values.size,), made)
        self.origin = Origin((self.info,), ())

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Copy bytes."""
        buffer[:] = self.raw.reshape(-1)[start : start + len(buffer)].tobytes()

    def file_range(self) -> None:
        """There is no file."""

    def decoded(self) -> Floats:
        """Return the values that are stored."""
        return transcode(self.raw, self.info.encoding, ENCODINGS["F32"]).raw.view(np.float32)[0]


def statistics_of(held: Held) -> Statistics:
    (counts,) = measure_counts([held])
    return counts.statistics()


@each("encoding", [*PLAIN, "Q8_0", "Q4_K"])
@each("name", VALUES)
def test_statistics_are_those_of_the_stored_values(name: str, encoding: str) -> None:
    values = VALUES[name][: VALUES[name].size // 256 * 256]
    held = Held(values, encoding)
    found, exact = statistics_of(held), held.decoded().astype(np.float64)
    magnitudes = np.sort(np.abs(exact))
    percentiles = [magnitudes[int(np.ceil(exact.size * each)) - 1] for each in (0.5, 0.99, 0.999)]
    # float32 values are counted by their upper halves, with seven bits of the mantissa.
    is_exact = encoding in {"F16", "BF16"}
    assert found.size == exact.size
    assert (found.least, found.most) == (exact.min(), exact.max())
    assert found.mean == pytest.approx(exact.mean(), rel=1e-9, abs=1e-15)
    assert found.std == pytest.approx(exact.std(), rel=1e-5, abs=1e-9)
    assert found.zeros == np.count_nonzero(exact == 0)
    assert found.percentiles == pytest.approx(percentiles, rel=0 if is_exact else 2**-8, abs=1e-40)
    if is_exact:
        far = np.abs(exact - exact.mean()) > 6 * exact.std()
        assert found.outliers == pytest.approx(far.mean() if exact.std() > 1e-12 else 0)
    assert (found.nans, found.infinities) == (0, 0)


@pytest.mark.parametrize("encoding", ["F32", "F16", "BF16", "F64"])
def test_values_that_are_not_finite_are_counted_and_left_out(encoding: str) -> None:
    values = np.array([np.nan, np.inf, -np.inf, np.inf, 1, -3, 0, 0.5], np.float32)
    found = statistics_of(Held(values, encoding))
    assert (found.size, found.nans, found.infinities, found.zeros) == (8, 1, 3, 1)
    assert (found.least, found.most, found.mean) == (-3, 1, -0.375)


def test_a_nan_with_bits_only_in_the_lower_half_is_not_infinite() -> None:
    values = np.array([0x7F800001, 0x3F800000], np.uint32).view(np.float32)
    found = statistics_of(Held(values, "F32"))
    assert (found.nans, found.infinities) == (1, 0)


def test_there_may_be_no_finite_value() -> None:
    (counts,) = measure_counts([Held(np.full(4, np.nan, np.float32), "BF16")])
    found = counts.statistics()
    assert np.isnan([found.least, found.most, found.mean, found.std, *found.percentiles]).all()
    assert counts.histogram(4)[0].tolist() == [0, 0, 0, 0]


def test_counts_do_not_depend_on_pieces_threads_or_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [Held(VALUES["normal"], each) for each in ("BF16", "F32", "Q8_0")]
    expected = [each.words.tolist() for each in measure_counts(tensors)]
    monkeypatch.setattr(measure, "_PIECE", 4096)
    monkeypatch.setattr(measure, "_READ", 1024)
    assert [each.words.tolist() for each in measure_counts(tensors, threads=3)] == expected
    if active() is not None:
        monkeypatch.setattr(measure, "active", lambda: None)
        assert [each.words.tolist() for each in measure_counts(tensors)] == expected


def test_a_histogram_has_all_values_with_zero_in_the_middle() -> None:
    (counts,) = measure_counts([Held(VALUES["normal"], "F16")])
    bins, limit = counts.histogram(8)
    assert bins.sum() == VALUES["normal"].size
    assert limit == pytest.approx(0.08, rel=0.05)
    held = VALUES["normal"].astype(np.float16).astype(np.float64)
    assert bins[:4].sum() == np.count_nonzero(held < 0)


def test_integers_are_not_measured() -> None:
    assert not can_measure(ENCODINGS["I64"])
    assert not can_measure(ENCODINGS["BOOL"])
    assert can_measure(ENCODINGS["Q6_K"])


def test_the_kernel_refuses_buffers_that_do_not_fit() -> None:
    if active() is None:
        pytest.skip("there are no kernels")
    from weightctl.kernels import _native

    counts = np.zeros(1 << 16, np.uint32)
    for words, step, held in (
        (bytes(3), 1, counts),
        (bytes(6), 2, counts),
        (bytes(4), 0, counts),
        (bytes(4), 1, counts[:-1]),
        (bytes(4), 1, counts.view(np.uint8)[1:-3]),
    ):
        with pytest.raises(ValueError, match="do not fit"):
            _native.count_words(words, step, held)
    assert not counts.any()
