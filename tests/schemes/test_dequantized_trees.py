"""The tree after weights are dequantized, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lazy import torch
from packers import gptq, levels_of, numbers, opened, plain, same, scales_of, stream
from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError, WeightctlError
from weightctl.schemes.dequantize import dequantize_weights
from weightctl.weights import Extent, Header, TensorInfo
from weightctl.weights.metadata import MetadataValue
from weightctl.weights.source import Held
from weightctl.weights.tree import Checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl.weights.data import WeightData

FP8 = torch.float8_e4m3fn


def test_all_else_stays_as_it_is(tmp_path: Path) -> None:
    tensors = {
        "a.weight": torch.ones(3, dtype=torch.bfloat16),
        "l.bias": torch.arange(64.0),
        **gptq(levels_of(1, (64, 64), 4), torch.full((1, 64), 8), scales_of(2, (1, 64)), 4),
        "z.k_scale_of_mine": torch.ones(2),
    }
    weights = opened(tmp_path, tensors)
    tree = dequantize_weights(weights, in_blocks=False)
    assert set(tree.header.tensors) == {"a.weight", "l.bias", "l.weight", "z.k_scale_of_mine"}
    assert tree.metadata == weights.metadata
    assert tree.header.files == weights.header.files
    assert tree.a.weight.data().to_numpy().tobytes() == weights.a.weight.data().to_numpy().tobytes()
    assert tree.source.file_range("a.weight") == weights.source.file_range("a.weight")
    assert tree.source.file_range("l.weight") is None
    assert tree.header.notes == weights.header.notes


def test_scales_of_activations_are_left_out_with_a_note(tmp_path: Path) -> None:
    tensors = {
        "l.q.weight": torch.ones(4, 4).to(FP8), "l.q.weight_scale": torch.ones(1),
        "l.q.input_scale": torch.ones(1), "l.k_scale": torch.ones(1), "l.v_scale": torch.ones(1),
    }  # fmt: skip
    tree = plain(tmp_path, tensors)
    assert list(tree.header.tensors) == ["l.q.weight"]
    (note,) = tree.header.notes
    assert "2 scales of activations" in note
    assert "l.k_scale" in note


def test_it_says_what_it_is_made_of_and_how(tmp_path: Path) -> None:
    levels = levels_of(1, (64, 64), 4)
    tensors = gptq(levels, torch.full((1, 64), 8), scales_of(2, (1, 64)), 4)
    weights = opened(tmp_path, tensors)
    origins = [
        dequantize_weights(weights, in_blocks=wanted).header.origins["l.weight"]
        for wanted in (False, True)
    ]
    assert {each.name for each in origins[0].sources} == {"l.qweight", "l.scales", "l.qzeros"}
    assert [origin.steps for origin in origins] == [
        ("dequantized GPTQ 4-bit",), ("GPTQ 4-bit repacked as Q4_0",)
    ]  # fmt: skip


def test_names_of_tied_weights_stay(tmp_path: Path) -> None:
    weights = opened(
        tmp_path, {"l.weight": torch.ones(4, 4).to(FP8), "l.weight_scale": torch.full((1,), 2.0)}
    )
    aliases = {"m.weight": "l.weight", "m.weight_scale": "l.weight_scale"}

    class Tied(Held):
        @property
        def header(self) -> Header:
            return super().header._replace(aliases=aliases)

    data = {name: node.data() for name, node in weights.items()}
    tree = dequantize_weights(
        Checkpoint(Tied(data, {"a": MetadataValue("u8", 1)})), in_blocks=False
    )
    assert tree.header.aliases == {"m.weight": "l.weight"}
    assert tree.m.weight.data().to_numpy().tolist() == [[2.0] * 4] * 4


def test_very_long_rows_are_read_in_parts(tmp_path: Path) -> None:
    columns = (1 << 20) + 64
    words = levels_of(1, (2, columns // 8), 31).to(torch.int32)
    scales = scales_of(2, (2, columns // 32), torch.bfloat16)
    tensors = {
        "l.weight_packed": words, "l.weight_scale": scales,
        "l.weight_shape": torch.tensor([2, columns]),
    }  # fmt: skip
    levels = (words[..., None] >> torch.arange(0, 32, 4) & 15).reshape(2, columns)
    wanted = (levels - 8).float() * scales.float().repeat_interleave(32, dim=1)
    assert same(numbers(plain(tmp_path, tensors), "l.weight", 777_777), wanted)


@pytest.mark.parametrize(
    ("scheme", "tensors"),
    [
        ("EXL3", {"l.trellis": torch.zeros(2, 2, 64).short(), "l.suh": torch.zeros(32).half()}),
        (
            "GPTQ 6-bit",
            {
                "l.qweight": stream(levels_of(1, (32, 64), 6), 6).T,
                "l.qzeros": stream(levels_of(1, (1, 32), 6), 6),
                "l.scales": torch.ones(1, 32).half(),
            },
        ),
        (
            "NVFP4",
            {
                "l.weight": torch.zeros(4, 16).byte(), "l.weight_scale": torch.ones(4, 2).to(FP8),
                "l.weight_scale_2": torch.ones(3),
            },
        ),
        (
            "F8_E4M3",
            {
                "l._weight_qdata": torch.zeros(4, 16).to(FP8), "l._weight_scale": torch.ones(4, 1),
                "l._weight_act_pre_scale": torch.ones(16),
            },
        ),
        ("F8_E4M3", {"l.weight": torch.zeros(25, 4).to(FP8), "l.weight_scale": torch.ones(9, 1)}),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named(
    tmp_path: Path, scheme: str, tensors: dict[str, torch.Tensor]
) -> None:
    with pytest.raises(ConversionError, match=rf"`l\.weight`.*{scheme}"):
        plain(tmp_path, tensors)


def test_parts_that_do_not_fit_together_are_named(tmp_path: Path) -> None:
    tensors = {"l.weight": torch.zeros(4, 16).to(FP8), "l.weight_scale": torch.ones(7, 7)}
    with pytest.raises(ConversionError, match=r"`l\.weight(_scale)?` looks like a part"):
        plain(tmp_path, tensors)


class Endless:
    """A source of tensors of any size, whose bytes repeat `content`."""

    files = ()

    def __init__(self, header: Header, content: bytes) -> None:
        self.header = header
        self._content = np.frombuffer(content, np.uint8)

    def read_into(self, name: str, start: int, buffer: memoryview) -> None:
        assert start + len(buffer) <= self.header.tensors[name].nbytes
        assert len(buffer) <= 32 << 20
        places = np.arange(start, start + len(buffer)) % len(self._content)
        np.frombuffer(buffer, np.uint8)[:] = self._content[places]

    def file_range(self, _: str, /) -> None:
        return None

    def data(self, name: str) -> WeightData:
        raise AssertionError(name)

    def refuse_change(self) -> None:
        pass


EXAMPLES = (
    "l.qweight I32 8x32, l.scales F16 2x32, l.qzeros I32 2x4, l.g_idx I32 64",
    "l.qweight I32 64x4, l.scales F16 2x32, l.qzeros I32 2x4",
    "l.qweight I32 32x8, l.scales F16 32x8, l.qzeros I32 32x1",
    (
        "l.weight_packed I32 8x8, l.weight_scale BF16 8x2, l.weight_shape I64 2, "
        "l.weight_zero_point I32 1x2, l.weight_g_idx I32 64"
    ),
    "l.weight F8_E4M3 5x64, l.weight_scale_inv F32 1x1, l.input_scale F32 1",
    "l.weight I8 5x64, l.weight_scale F16 5x1, l.weight_zero_point I8 5x1",
    "l.weight U8 4x64, l.weight_scale F16 8x2, l.pre_quant_scale F16 64",
    "l.weight U8 4x32, l.weight_scale F8_E4M3 4x4, l.weight_scale_2 F32 1",
    "l.weight I8 4x32, l.scale F8_E8M0 4x2",
    "l.w_blocks U8 3x4x2x16, l.w_scales U8 3x4x2",
    "l.w U8 2x32x4, l.w_weight_scale F8_E4M3 2x4x4, l.w_weight_scale_2 F32 2",
    "l.weight I8 5x64, l.SCB F32 5, l.weight_format U8 1",
    "l.weight U32 4x8, l.scales F16 4x1, l.biases F16 4x1",
)
SHAPES = st.lists(st.sampled_from([0, 1, 2, 4, 5, 32, 64, 1 << 20]), max_size=3).map(tuple)
NUMBERS = [ENCODINGS[name] for name in ("I32", "U8", "I8", "F8_E4M3", "F16", "F32", "U32", "F4")]


def header_of(text: str) -> dict[str, TensorInfo]:
    made: dict[str, TensorInfo] = {}
    for entry in text.split(", "):
        name, encoding, shape = entry.split()
        made[name] = TensorInfo(name, tuple(map(int, shape.split("x"))), ENCODINGS[encoding])
    return made


@settings(deadline=None, max_examples=200)
@given(
    st.sampled_from(EXAMPLES).map(header_of),
    st.dictionaries(
        st.integers(0, 4), st.tuples(st.none() | SHAPES, st.none() | st.sampled_from(NUMBERS)),
        max_size=1,
    ),
    st.binary(min_size=1, max_size=24),
    st.booleans(),
)  # fmt: skip
def test_no_checkpoint_makes_it_fail_otherwise(
    tensors: dict[str, TensorInfo], changes: dict[int, Any], content: bytes, in_blocks: bool
) -> None:
    for place, (shape, encoding) in changes.items():
        name, info = list(tensors.items())[place % len(tensors)]
        changed = TensorInfo(
            name, info.shape if shape is None else shape, encoding or info.encoding
        )
        if changed.encoding.fits(changed.shape):
            tensors[name] = changed
    extents = {name: Extent(0, 0, info.nbytes) for name, info in tensors.items()}
    header = Header("safetensors", (), tensors, extents)
    try:
        tree = dequantize_weights(Checkpoint(Endless(header, content)), in_blocks=in_blocks)
        for name, info in tree.header.tensors.items():
            blocks = info.nbytes // info.encoding.size
            for first, count in ((0, 3), (blocks // 2, 40), (blocks - 1, 1)):
                run = min(count, blocks - first) * info.encoding.size
                if not blocks:
                    continue
                buffer = memoryview(bytearray(run))
                tree.source.read_into(name, first * info.encoding.size, buffer)
    except WeightctlError as error:
        assert error.message  # noqa: PT017
