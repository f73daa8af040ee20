"""Reading of safetensors: the tree has what the file states."""

from __future__ import annotations

import json
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import pytest
from huggingface_hub import save_torch_state_dict

from build import entry, safetensors, safetensors_of
from copying import FRAMEWORK, contents, copied, raw, spoken
from each import each
from lazy import save_file, torch
from weightctl import DType, open_weights
from weightctl.errors import ConversionError, EncodingError
from weightctl.plan.plan import Plan

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl import Weights

# Every dtype of the format: its bits, and our name for it.
DTYPES = {
    "BOOL": (8, DType.bool),
    "F4": (4, DType.float4_e2m1fn),
    "F8_E5M2": (8, DType.float8_e5m2),
    "F8_E4M3": (8, DType.float8_e4m3fn),
    "F8_E8M0": (8, DType.float8_e8m0fnu),
    "F8_E4M3FNUZ": (8, DType.float8_e4m3fnuz),
    "F8_E5M2FNUZ": (8, DType.float8_e5m2fnuz),
    "U8": (8, DType.uint8),
    "I8": (8, DType.int8),
    "I16": (16, DType.int16),
    "U16": (16, DType.uint16),
    "F16": (16, DType.float16),
    "BF16": (16, DType.bfloat16),
    "I32": (32, DType.int32),
    "U32": (32, DType.uint32),
    "F32": (32, DType.float32),
    "C64": (64, DType.complex64),
    "F64": (64, DType.float64),
    "I64": (64, DType.int64),
    "U64": (64, DType.uint64),
}


def opened(path: Path, content: bytes) -> Weights:
    path.write_bytes(content)
    return open_weights(path)


@each("name", DTYPES)
def test_every_dtype_is_read(name: str, tmp_path: Path) -> None:
    bits, dtype = DTYPES[name]
    content = bytes(number % 2 for number in range(bits))
    weights = opened(tmp_path / "a.safetensors", safetensors_of({"a": (name, (2, 4), content)}))
    data = weights.a.data()
    assert weights.a.info.encoding.name == name
    assert data.dtype is dtype
    assert data.to_numpy().shape == (2, 4)
    assert bytes(data.view()) == content


@pytest.mark.parametrize("name", ["F6_E2M3", "F6_E3M2"])
def test_six_bit_floats_are_listed_and_not_interpreted(name: str, tmp_path: Path) -> None:
    weights = opened(tmp_path / "a.safetensors", safetensors_of({"a": (name, (2, 4), b"abcdef")}))
    assert contents(weights) == {"a": (name, (2, 4), b"abcdef")}
    with pytest.raises(EncodingError, match=f"{name}, the encoding of `a`"):
        weights.a.data()


@pytest.mark.parametrize(
    "dtype",
    [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e8m0fnu, torch.complex64, torch.uint64],
    ids=str,
)
def test_what_the_reference_writes_is_read(dtype: torch.dtype, tmp_path: Path) -> None:
    tensor = torch.arange(1, 17, dtype=torch.uint8).reshape(2, 8).view(dtype)
    save_file({"a": tensor}, tmp_path / "a.safetensors")
    weights = open_weights(tmp_path / "a.safetensors")
    assert weights.a.info.shape == tuple(tensor.shape)
    assert weights.a.info.encoding.ids["pytorch"] == str(dtype).removeprefix("torch.")
    assert raw(weights, "a") == bytes(range(1, 17))


def test_a_scalar_has_no_dimensions(tmp_path: Path) -> None:
    weights = opened(tmp_path / "a.safetensors", safetensors_of({"a": ("U8", (), b"\7")}))
    assert weights.a.info.shape == ()
    assert weights.a.data().to_numpy() == 7


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 1 << 40), (1,) * 64])
def test_shapes_may_be_empty_and_of_64_dimensions(shape: tuple[int, ...], tmp_path: Path) -> None:
    content = bytes(prod(shape))
    weights = opened(tmp_path / "a.safetensors", safetensors_of({"a": ("U8", shape, content)}))
    assert weights.a.data().to_numpy().shape == shape


def test_empty_tensors_may_lie_anywhere(tmp_path: Path) -> None:
    header = {
        "full": entry("U8", [4], 0, 4),
        "first": entry("U8", [0], 0, 0),
        "last": entry("U8", [0], 4, 4),
    }
    weights = opened(tmp_path / "a.safetensors", safetensors(header, b"abcd"))
    assert list(weights.header.tensors) == ["full", "first", "last"]
    assert raw(weights, "full") == b"abcd"


def test_a_file_may_hold_nothing(tmp_path: Path) -> None:
    assert not opened(tmp_path / "a.safetensors", safetensors({})).header.tensors


def test_the_header_may_end_in_spaces(tmp_path: Path) -> None:
    header = json.dumps({"a": entry("U8", [1], 0, 1)}).encode() + b" " * 9
    assert raw(opened(tmp_path / "a.safetensors", safetensors(header, b"x")), "a") == b"x"


def test_data_that_starts_on_an_odd_byte_is_read(tmp_path: Path) -> None:
    header = json.dumps({"a": entry("F32", [2], 0, 8)}).encode()
    header += b" " * (1 - len(header) % 2)
    content = safetensors(header, np.array([1, 2], np.float32).tobytes())
    weights = opened(tmp_path / "a.safetensors", content)
    assert weights.header.alignment == 1
    assert weights.a.data().to_numpy().tolist() == [1, 2]


@pytest.mark.parametrize("name", ["größe.重み.🦙", "", "..", "a\nb", "x" * 300])
def test_names_are_any_text(name: str, tmp_path: Path) -> None:
    weights = opened(tmp_path / "a.safetensors", safetensors_of({name: ("U8", (1,), b"a")}))
    assert [found for found, _ in weights.items()] == [name]
    assert bytes(next(weights.items())[1].data().view()) == b"a"


def test_metadata_is_plain_text(tmp_path: Path) -> None:
    content = safetensors_of({}, {"format": "pt", "": "", "größe": "7"})
    weights = opened(tmp_path / "a.safetensors", content)
    assert spoken(weights.metadata) == {
        "format": ("text", "'pt'"),
        "": ("text", "''"),
        "größe": ("text", "'7'"),
    }


@pytest.mark.parametrize(
    "strange",
    [
        "no JSON",
        "[]",
        "7",
        "{}",
        '{"a": 1}',
        '{"a": {"type": "u8", "value": 256}}',
        '{"a": {"type": "u8", "value": true}}',
        '{"a": {"type": "f32", "value": 1e39}}',
        '{"a": {"type": "f64", "value": ' + "9" * 400 + "}}",
        '{"a": {"type": "string", "value": "\\ud800"}}',
        '{"a": {"type": "array[nothing]", "value": []}}',
        '{"a": {"type": "nothing", "value": 1}}',
        '{"a": {"type": 7, "value": 1}}',
        '{"": {"type": "u8", "value": 1}}',
        '{"\\ud800": {"type": "u8", "value": 1}}',
        '{"a": {"type": "' + "array[" * 40 + "u8" + "]" * 40 + '", "value": ' + "[" * 40 + "]" * 40
        + "}}",
        "[" * 20_000,
    ],
    ids=lambda text: text[:50],
)  # fmt: skip
def test_a_gguf_key_of_somebody_else_stays_text(strange: str, tmp_path: Path) -> None:
    weights = opened(tmp_path / "a.safetensors", safetensors_of({}, {"gguf": strange}))
    assert spoken(weights.metadata) == {"gguf": ("text", repr(strange))}
    assert Plan.copy(weights, "gguf").layouts()[0].nbytes


@pytest.mark.parametrize(
    "alignment", [("u32", 3), ("u32", 0), ("u64", 48), ("string", "32"), ("array[u32]", [32])]
)
def test_an_alignment_that_cannot_be_is_refused_when_written(
    alignment: tuple[str, object], tmp_path: Path
) -> None:
    kind, value = alignment
    typed = json.dumps({"general.alignment": {"type": kind, "value": value}})
    weights = opened(tmp_path / "a.safetensors", safetensors_of({}, {"gguf": typed}))
    with pytest.raises(
        ConversionError, match="a GGUF alignment must be a power of two below 4 GiB"
    ):
        Plan.copy(weights, "gguf").layouts()


def test_what_safetensors_calls_split_says_nothing_of_parts(tmp_path: Path) -> None:
    weights = opened(tmp_path / "a.safetensors", safetensors_of({}, {"split.no": "train"}))
    back = copied(copied(weights, tmp_path / "b.gguf"), tmp_path / "c.safetensors")
    assert back.metadata["split.no"].content == "train"


def test_an_unknown_dtype_is_listed_and_not_interpreted(tmp_path: Path) -> None:
    content = safetensors_of({"a": ("F3", (8,), b"abc"), "b": ("U8", (1,), b"x")})
    weights = opened(tmp_path / "a.safetensors", content)
    assert weights.a.info.encoding.name == 'unknown dtype "F3"'
    assert weights.header.extents["a"].nbytes == 3
    assert raw(weights, "b") == b"x"
    with pytest.raises(
        EncodingError, match='weightctl does not support unknown dtype "F3", the encoding of `a`'
    ):
        weights.a.data()
    with pytest.raises(ConversionError, match='`a` is stored as unknown dtype "F3"'):
        Plan.copy(weights, "safetensors").layouts()


def test_the_name_that_huggingface_records_as_tied_is_an_alias(tmp_path: Path) -> None:
    metadata = {"format": "pt", "lm_head.weight": "embed.weight"}
    content = safetensors_of({"embed.weight": ("U8", (1,), b"x")}, metadata)
    weights = opened(tmp_path / "a.safetensors", content)
    assert weights.header.aliases == {"lm_head.weight": "embed.weight"}
    assert [name for name, _ in weights.items()] == ["embed.weight", "lm_head.weight"]
    assert bytes(weights.lm_head.weight.data().view()) == b"x"
    assert weights.lm_head.weight.data().name == "lm_head.weight"


def test_what_huggingface_hub_writes_of_tied_weights_is_read(tmp_path: Path) -> None:
    tied = torch.ones(4)
    save_torch_state_dict({"embed.weight": tied, "lm_head.weight": tied}, tmp_path)
    weights = open_weights(tmp_path)
    assert len(weights.header.tensors) == 1
    assert {name for name, _ in weights.items()} == {"embed.weight", "lm_head.weight"}


def test_writing_into_the_data_leaves_the_file_alone(tmp_path: Path) -> None:
    weights = opened(tmp_path / "a.safetensors", safetensors_of({"a": ("U8", (2,), b"ab")}))
    weights.a.data().to_numpy()[0] = 7
    assert weights.a.data().to_numpy().tolist() == [97, 98]


def test_the_framework_is_written_where_there_was_none(tmp_path: Path) -> None:
    weights = opened(tmp_path / "a.safetensors", safetensors_of({}))
    assert not weights.metadata
    header = Plan.copy(weights, "safetensors").layouts()[0].header
    key, (_, value) = FRAMEWORK
    assert json.loads(header[8:])["__metadata__"] == {key: value.strip("'")}
