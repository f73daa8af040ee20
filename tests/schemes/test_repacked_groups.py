"""Blocks of GGUF as groups with zero points, and as larger groups, where the numbers agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weightctl
from lazy import load_file, torch
from packers import NAME, gguf_with, plan_of
from weightctl.dtype import ENCODINGS
from weightctl.schemes.arrays.blocks import can_repack, repack
from weightctl.schemes.arrays.rounding import Affine, Biased, Symmetric
from weightctl.weights.derived import DerivedTensor
from written_models import convert, values_in

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from weightctl.dtype import Encoding

ROWS, COLUMNS = 64, 256
WITH_ZEROS = ("W4A16:group={},symmetric=no", "GPTQ:group={},symmetric=no", "AWQ:group={}")
# Scales, and products of these with the zero points of a group, that float16 holds or not.
SCALES = st.sampled_from([0.0, 0.5, -0.25, 2.0**-20, 0.0999755859375, 600.0])
MINS = st.sampled_from([0.0, -0.0, -4.0, 2.0, -0.5, -0.7, 2.0**-19, -9000.0])


@dataclass(frozen=True)
class BlocksInMemory:
    """A step without inputs that has the bytes of Q4_1 blocks."""

    raw: NDArray[np.uint8]

    def infer(self, _: Any, /) -> tuple[tuple[int, ...], Encoding]:
        return (len(self.raw), self.raw.shape[1] // 20 * 32), ENCODINGS["Q4_1"]

    def read_into(self, _: Any, start: int, buffer: memoryview, /) -> None:
        buffer[:] = self.raw.tobytes()[start : start + len(buffer)]


def blocks_of(
    kind: str, scales: NDArray[np.float16], mins: NDArray[np.float16], group: int
) -> NDArray[np.uint8]:
    """Return rows of blocks with any codes, whose scales are those of groups, shape (r, groups)."""
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]
    each = np.repeat(np.stack([scales, mins], axis=-1), group // 32, axis=1).astype(np.float16)
    generator = np.random.default_rng(group)
    blocks = generator.integers(0, 256, (*each.shape[:2], size), np.uint8)
    width = 4 if kind == "Q4_1" else 2
    blocks[..., :width] = np.ascontiguousarray(each).view(np.uint8)[..., :width]
    return blocks.reshape(len(blocks), -1)


def groups_with_zeros(group: int) -> tuple[NDArray[np.float16], NDArray[np.float16]]:
    """Return scales and minima of groups that have zero points from 0 to 15."""
    generator = np.random.default_rng(group)
    shape = (ROWS, COLUMNS // group)
    # The products have at most 11 bits.
    scales = np.ldexp(generator.integers(-127, 128, shape), generator.integers(-18, -4, shape))
    zeros = generator.integers(0, 16, shape)
    scales[0, 0] = 0
    return scales.astype(np.float16), (0 - scales * zeros).astype(np.float16)


def expected(raw: NDArray[np.uint8], kind: str) -> NDArray[np.float32]:
    found: NDArray[np.float32] = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
    return found


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("case", [*WITH_ZEROS, "MLX-4bit:group={}"])
def test_minima_that_are_zero_points_are_repacked_both_ways(
    tmp_path: Path, case: str, group: int
) -> None:
    raw = blocks_of("Q4_1", *groups_with_zeros(group), group)
    source = gguf_with(tmp_path / "in", {NAME: ("Q4_1", raw)})
    convert(source, tmp_path / "out", case.format(group), exact=True)
    assert np.array_equal(values_in(tmp_path / "out")[NAME].numpy(), expected(raw, "Q4_1"))
    weightctl.convert(tmp_path / "out", tmp_path / "back.gguf")
    (back,) = gguf.GGUFReader(tmp_path / "back.gguf").tensors
    assert back.tensor_type.name == "Q4_1"
    assert np.array_equal(back.data.reshape(raw.shape), raw)
    (tmp_path / "config.json").write_text('{"torch_dtype": "float16"}')
    convert(tmp_path / "back.gguf", tmp_path / "again", case.format(group), exact=True)
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("out", "again"))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(("kind", "bits"), [("Q4_0", 4), ("Q8_0", 8)])
@pytest.mark.parametrize("group", [64, 128])
def test_blocks_with_one_scale_become_a_group(
    tmp_path: Path, kind: str, bits: int, group: int
) -> None:
    scales = groups_with_zeros(group)[0]
    raw = blocks_of(kind, scales, scales, group)
    source = gguf_with(tmp_path / "in", {NAME: (kind, raw)})
    for case in (f"W{bits}A16", "GPTQ" if bits == 4 else "GPTQ-8bit", f"MLX-{bits}bit"):
        out = tmp_path / case
        convert(source, out, f"{case}:group={group}", exact=True)
        assert np.array_equal(values_in(out)[NAME].numpy(), expected(raw, kind))
        weightctl.convert(out, tmp_path / f"{case}.gguf")
        (back,) = gguf.GGUFReader(tmp_path / f"{case}.gguf").tensors
        assert back.tensor_type.name == kind
        assert np.array_equal(back.data.reshape(raw.shape), raw)


@pytest.mark.parametrize("case", WITH_ZEROS)
@pytest.mark.parametrize("key", [0, 1])
def test_one_block_with_another_scale_or_minimum_makes_the_weight_rounded(
    tmp_path: Path, case: str, key: int
) -> None:
    for group in (32, 128):
        raw = blocks_of("Q4_1", *groups_with_zeros(group), group)
        last = raw[-1].reshape(-1, 20)[-1, :4].view(np.float16)
        last[key] = np.float16(0.7001)
        source = gguf_with(tmp_path / f"in-{group}", {NAME: ("Q4_1", raw)})
        items = plan_of(source, case.format(group), allow_requantize=True).items
        assert not any(item.is_exact for item in items)


@given(scales=st.lists(SCALES, min_size=2, max_size=2), mins=st.lists(MINS, min_size=2, max_size=2))
def test_blocks_are_repacked_exactly_where_some_zero_point_gives_their_values(
    scales: list[float], mins: list[float]
) -> None:
    held = np.array([scales], np.float16), np.array([mins], np.float16)
    raw = blocks_of("Q4_1", *held, 32)
    wanted = expected(raw, "Q4_1")
    roundings: list[tuple[Affine | Symmetric | Biased, Any]] = [
        (Affine(4, 32, "F16"), range(16)), (Symmetric(4, 32, "F16"), (8,)),
        (Affine(4, 64, "F16"), range(16)), (Biased(4, 64, "F16"), None),
    ]  # fmt: skip
    tensor = DerivedTensor("w", BlocksInMemory(raw), [])
    for rounding, zeros in roundings:
        are_same = all(each[0, 0].tobytes() == each[0, 1].tobytes() for each in held)
        possible = rounding.columns == 32 or are_same
        if zeros is not None:
            pairs = zip(*(each[0].astype(np.float64) for each in held), strict=True)
            possible &= all(any(-scale * zero == low for zero in zeros) for scale, low in pairs)
        assert can_repack(tensor, rounding) == possible
        if possible:
            made = rounding.restore(repack(raw, ENCODINGS["Q4_1"], rounding), np.float32(0))
            assert np.array_equal(made, wanted)
