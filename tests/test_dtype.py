from __future__ import annotations

import ctypes
import json
import pickle
import struct
from importlib.util import find_spec
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save as safetensors_bytes

from each import each
from lazy import torch
from weightctl import DType, QuantizationEncoding
from weightctl.codecs.scalar import numpy_dtype
from weightctl.dim import Dim
from weightctl.dtype import (
    ENCODINGS,
    Encoding,
    encoding_by_id,
    unknown_encoding,
)
from weightctl.dtype.types import parse_encoding
from weightctl.errors import EncodingError

every_encoding = each("encoding", ENCODINGS.values(), ids=str)
in_gguf = each("encoding", [e for e in ENCODINGS.values() if "gguf" in e.ids], ids=str)
in_torch = each("encoding", [e for e in ENCODINGS.values() if "pytorch" in e.ids], ids=str)


@pytest.fixture(scope="session")
def ggml() -> ctypes.CDLL:
    spec = find_spec("xllamacpp")
    assert spec is not None
    assert spec.origin is not None
    library = ctypes.CDLL(str(Path(spec.origin).with_name("xllamacpp.abi3.so")))
    library.ggml_type_size.restype = ctypes.c_size_t
    library.ggml_blck_size.restype = ctypes.c_int64
    library.ggml_type_name.restype = ctypes.c_char_p
    return library


@every_encoding
def test_the_layout_of_a_block_has_the_size_of_a_block(encoding: Encoding) -> None:
    assert struct.calcsize("<" + encoding.layout) == encoding.size


@every_encoding
def test_an_encoding_is_of_plain_numbers_or_of_blocks_or_never_interpreted(
    encoding: Encoding,
) -> None:
    kinds = (encoding.dtype is not None) + (encoding.quantization is not None)
    is_opaque = encoding.name.startswith(("F6_", "Q", "C32")) and "gguf" not in encoding.ids
    assert kinds == (0 if is_opaque else 1)


@every_encoding
def test_an_encoding_stands_in_the_table_under_its_name(encoding: Encoding) -> None:
    assert ENCODINGS[encoding.name] is encoding
    assert str(encoding) == encoding.name


@pytest.mark.parametrize("format_name", ["gguf", "safetensors", "pytorch"])
def test_each_id_of_a_format_belongs_to_one_encoding(format_name: str) -> None:
    named = [e for e in ENCODINGS.values() if format_name in e.ids]
    for encoding in named:
        assert encoding_by_id(format_name, encoding.ids[format_name]) is encoding
    assert len({e.ids[format_name] for e in named}) == len(named)


def test_an_id_that_no_encoding_has_is_none() -> None:
    assert encoding_by_id("gguf", 4) is None
    assert encoding_by_id("safetensors", "F128") is None


@in_gguf
def test_gguf_ids_and_sizes_are_those_of_ggml(encoding: Encoding, ggml: ctypes.CDLL) -> None:
    assert ggml.ggml_type_name(encoding.ids["gguf"]).decode().upper() == encoding.name
    assert ggml.ggml_blck_size(encoding.ids["gguf"]) == encoding.block
    assert ggml.ggml_type_size(encoding.ids["gguf"]) == encoding.size


def test_every_type_of_ggml_has_a_line(ggml: ctypes.CDLL) -> None:
    living = {number for number in range(43) if ggml.ggml_type_size(number)}
    assert living == {e.ids["gguf"] for e in ENCODINGS.values() if "gguf" in e.ids}


@each("kind", gguf.GGMLQuantizationType, ids=lambda kind: kind.name)
def test_every_type_of_the_gguf_package_has_a_line_with_its_sizes(
    kind: gguf.GGMLQuantizationType,
) -> None:
    encoding = ENCODINGS[kind.name]
    assert encoding.ids["gguf"] == kind.value
    if encoding.name != "Q8_1":  # where the package differs from ggml
        assert (encoding.block, encoding.size) == gguf.GGML_QUANT_SIZES[kind]


@in_torch
def test_torch_names_are_types_of_torch_of_that_size(encoding: Encoding) -> None:
    kind = getattr(torch, str(encoding.ids["pytorch"]))
    assert isinstance(kind, torch.dtype)
    assert kind.itemsize == encoding.size


@each(
    "encoding",
    [e for e in ENCODINGS.values() if {"pytorch", "safetensors"} <= e.ids.keys()],
    ids=str,
)
def test_safetensors_names_are_those_that_safetensors_writes(encoding: Encoding) -> None:
    tensor = torch.zeros(2, dtype=torch.uint8).repeat(encoding.size)
    raw = safetensors_bytes({"w": tensor.view(getattr(torch, str(encoding.ids["pytorch"])))})
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    assert header["w"]["dtype"] == encoding.ids["safetensors"]


@each("dtype", DType, ids=lambda dtype: dtype.value)
def test_every_dtype_has_a_line_of_its_size(dtype: DType) -> None:
    assert dtype.encoding.dtype is dtype
    bits = 4 if dtype is DType.float4_e2m1fn else numpy_dtype(dtype).itemsize * 8
    assert dtype.encoding.size * 8 == bits * dtype.encoding.block


@each("kind", QuantizationEncoding, ids=lambda kind: kind.value)
def test_every_quantization_encoding_has_a_line(kind: QuantizationEncoding) -> None:
    assert kind.encoding.quantization is kind
    assert kind.encoding.dtype is None


def test_dtypes_print_as_they_are_written() -> None:
    assert str(DType.float32) == repr(DType.float32) == "DType.float32"
    assert f"{QuantizationEncoding.Q4_K}" == "QuantizationEncoding.Q4_K"


@each("dtype", DType, ids=lambda dtype: dtype.value)
def test_a_dtype_is_float_or_integer_as_its_numbers_are(dtype: DType) -> None:
    assert dtype.is_integer == (numpy_dtype(dtype).kind in "iu")
    assert dtype.is_float == (numpy_dtype(dtype).kind in "fV")


@each(
    ("text", "name"),
    [
        ("bf16", "BF16"), ("bfloat16", "BF16"), ("BF16", "BF16"), (" Bf16\n", "BF16"),
        ("f32", "F32"), ("fp32", "F32"), ("float32", "F32"), ("float", "F32"), ("F32", "F32"),
        ("f16", "F16"), ("fp16", "F16"), ("half", "F16"), ("float16", "F16"),
        ("f64", "F64"), ("double", "F64"), ("fp64", "F64"),
        ("f8_e4m3", "F8_E4M3"), ("f8_e4m3fn", "F8_E4M3"), ("float8_e4m3fn", "F8_E4M3"),
        ("F8-E4M3", "F8_E4M3"), ("fp8", "F8_E4M3"), ("float8_e5m2", "F8_E5M2"),
        ("fp8_e5m2", "F8_E5M2"), ("float8_e8m0fnu", "F8_E8M0"), ("float4_e2m1fn", "F4"),
        ("i8", "I8"), ("int8", "I8"), ("U16", "U16"), ("uint64", "U64"), ("bool", "BOOL"),
        ("complex64", "C64"), ("c64", "C64"), ("q4_k", "Q4_K"), ("Q4_K", "Q4_K"),
        ("q4-k", "Q4_K"), ("q8_0", "Q8_0"), ("iq2_xxs", "IQ2_XXS"), ("mxfp4", "MXFP4"),
    ],
)  # fmt: skip
def test_a_type_is_known_in_any_spelling(text: str, name: str) -> None:
    assert parse_encoding(text) is ENCODINGS[name]


@every_encoding
def test_every_encoding_is_known_by_its_name_in_any_case(encoding: Encoding) -> None:
    assert parse_encoding(encoding.name) is encoding
    assert parse_encoding(encoding.name.lower()) is encoding


def test_an_unknown_spelling_gets_the_nearest_known_ones() -> None:
    with pytest.raises(EncodingError, match="`bloat16` is not a type") as caught:
        parse_encoding("bloat16")
    assert "did you mean" in caught.value.hint
    assert "bfloat16" in caught.value.hint


def test_a_spelling_near_to_none_gets_examples() -> None:
    with pytest.raises(EncodingError) as caught:
        parse_encoding("%%%")
    assert caught.value.hint == "for example f32, bf16, q8_0 or q4_k"


@given(st.text())
def test_any_other_text_is_an_encoding_error(text: str) -> None:
    try:
        assert parse_encoding(text) in ENCODINGS.values()
    except EncodingError as error:
        assert error.hint  # noqa: PT017  # most texts raise, some do not


def test_an_encoding_that_the_table_lacks_says_what_the_file_calls_it() -> None:
    made = unknown_encoding("gguf", 99, 640, 330)
    assert made.name == "gguf type 99"
    assert made.nbytes((20, 32)) == made.size == 330
    assert (made.dtype, made.quantization, made.is_known) == (None, None, False)
    assert struct.calcsize("<" + made.layout) == 330


def test_an_empty_tensor_of_an_unknown_encoding_takes_no_bytes() -> None:
    assert unknown_encoding("gguf", 99, 0, 0).nbytes((3, 0)) == 0


@every_encoding
def test_an_encoding_of_the_table_is_known_also_after_pickling(encoding: Encoding) -> None:
    assert encoding.is_known
    assert pickle.loads(pickle.dumps(encoding)).is_known


@every_encoding
def test_bytes_of_a_shape_are_those_of_its_blocks(encoding: Encoding) -> None:
    shape = (3, 5, 2 * encoding.block)
    assert encoding.fits(shape)
    assert encoding.nbytes(shape) == 3 * 5 * 2 * encoding.size
    assert encoding.nbytes((0, encoding.block)) == 0


@each("encoding", [k.encoding for k in QuantizationEncoding], ids=str)
def test_blocks_of_ggml_never_cross_rows(encoding: Encoding) -> None:
    half = encoding.block // 2
    assert not encoding.fits((2, half))
    assert not encoding.fits(())
    problem = f"multiple of the {encoding} block size, {encoding.block}"
    with pytest.raises(EncodingError, match=problem):
        encoding.nbytes((2, half))


def test_pairs_of_float4_may_cross_rows() -> None:
    encoding = DType.float4_e2m1fn.encoding
    assert encoding.nbytes((2, 3)) == 3
    assert not encoding.fits((3, 3))


@each("dtype", [d for d in DType if d.encoding.block == 1], ids=str)
def test_plain_numbers_fit_any_shape(dtype: DType) -> None:
    assert dtype.encoding.fits(())
    assert dtype.encoding.nbytes(()) == np.zeros((), numpy_dtype(dtype)).nbytes


@each("encoding", ENCODINGS.values(), ids=str)
def test_bytes_of_a_row_and_its_elements_say_the_same(encoding: Encoding) -> None:
    elements = 6 * encoding.block
    assert encoding.row_bytes(elements) == 6 * encoding.size == encoding.nbytes([elements])
    assert encoding.elements_of(6 * encoding.size) == elements
    rows = Dim("blocks") * encoding.block
    assert encoding.elements_of(encoding.row_bytes(rows)) == rows


def test_messages_call_an_encoding_by_its_dtype_or_its_blocks() -> None:
    assert ENCODINGS["BF16"].called == "bfloat16"
    assert ENCODINGS["Q4_K"].called == "Q4_K"
    assert ENCODINGS["F6_E2M3"].called == "F6_E2M3"
