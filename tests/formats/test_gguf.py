"""Reading of GGUF: the tree has what the file states."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest

from build import BF16, F16, F32, F64, I8, I16, I32, I64, Q4_K, Q6_K, Q8_0, Gguf, Tensor
from copying import contents, raw, spoken
from weightctl import DType, QuantizationEncoding, open_weights
from weightctl.errors import ConversionError, EncodingError
from weightctl.formats.gguf_values import PackedArray
from weightctl.plan.plan import Plan

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl import Weights

VALUES: dict[str, tuple[str, Any]] = {
    "u8": ("u8", 255),
    "i8": ("i8", -128),
    "u16": ("u16", 65535),
    "i16": ("i16", -32768),
    "u32": ("u32", 4294967295),
    "i32": ("i32", -2147483648),
    "u64": ("u64", (1 << 64) - 1),
    "i64": ("i64", -(1 << 63)),
    "f32": ("f32", 0.5),
    "f64": ("f64", 0.1),
    "infinite": ("f32", float("-inf")),
    "no number": ("f64", float("nan")),
    "yes": ("bool", True),
    "no": ("bool", False),
    "string": ("string", "Größe 大"),
    "empty string": ("string", ""),
    "no UTF-8": ("string", "a\udcffb"),
    **{
        f"several {kind}": (f"array[{kind}]", [0, 1, 7])
        for kind in ("u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64")
    },
    "several f32": ("array[f32]", [0.5, -0.0, float("inf")]),
    "several f64": ("array[f64]", [0.1, float("nan")]),
    "several bool": ("array[bool]", [True, False]),
    "several strings": ("array[string]", ["a", "", "大", "\udc80"]),
    "none": ("array[i32]", []),
    "no strings": ("array[string]", []),
    "nested": ("array[array[u16]]", [[1, 2], [], [3]]),
    "deep": ("array[array[array[string]]]", [[["a"], []], [["b", "c"]]]),
    "nothing nested": ("array[array[u8]]", []),
}
VERSIONS = [Gguf(1), Gguf(2), Gguf(3), Gguf(2, ">"), Gguf(3, ">")]
EACH_VERSION = pytest.mark.parametrize(
    "form", VERSIONS, ids=lambda form: f"v{form.version}{'-big' if form.order == '>' else ''}"
)


def opened(path: Path, content: bytes) -> Weights:
    path.write_bytes(content)
    return open_weights(path)


def as_stated(values: dict[str, tuple[str, Any]]) -> dict[str, tuple[str, Any]]:
    def plain(content: Any) -> Any:
        return [plain(each) for each in content] if isinstance(content, list) else repr(content)

    return {key: (kind, plain(content)) for key, (kind, content) in values.items()}


@EACH_VERSION
def test_every_metadata_value_keeps_its_type(form: Gguf, tmp_path: Path) -> None:
    weights = opened(tmp_path / "a.gguf", form.file([], VALUES))
    assert spoken(weights.metadata) == as_stated(VALUES)


@EACH_VERSION
def test_tensors_have_their_names_shapes_and_bytes(form: Gguf, tmp_path: Path) -> None:
    tensors = [Tensor("token_embd.weight", (3, 2), I8, b"abcdef"), Tensor("b", (4,), I8, b"wxyz")]
    weights = opened(tmp_path / "a.gguf", form.file(tensors))
    assert contents(weights) == {
        "token_embd.weight": ("I8", (3, 2), b"abcdef"),
        "b": ("I8", (4,), b"wxyz"),
    }


BLOCKS = np.random.default_rng(1).integers(0, 256, 420, np.uint8).tobytes()
# The bytes of two blocks (or four values) in each byte order.
NATIVE = {
    "F32": (F32, (4,), "<4f", ">4f", (1.0, -2.5, 3e-8, 1e30)),
    "F16": (F16, (4,), "<4e", ">4e", (1.0, -2.5, 6e-8, 65504.0)),
    "BF16": (BF16, (4,), "<4H", ">4H", (0x3F80, 0xC020, 1, 0x7F80)),
    "F64": (F64, (4,), "<4d", ">4d", (1.0, -2.5, 5e-324, 1e300)),
    "I16": (I16, (4,), "<4h", ">4h", (1, -2, 3, -32768)),
    "I32": (I32, (4,), "<4i", ">4i", (1, -2, 3, -(1 << 31))),
    "I64": (I64, (4,), "<4q", ">4q", (1, -2, 3, -(1 << 63))),
    "Q8_0": (Q8_0, (2, 32), "<H32sH32s", ">H32sH32s", (1, BLOCKS[:32], 0x3C00, BLOCKS[32:64])),
    "Q4_K": (
        *(Q4_K, (2, 256), "<HH140sHH140s", ">HH140sHH140s"),
        (1, 0x3C00, BLOCKS[:140], 0x2E66, 2, BLOCKS[140:280]),
    ),
    "Q6_K": (
        *(Q6_K, (2, 256), "<208sH208sH", ">208sH208sH"),
        (BLOCKS[:208], 0x3C00, BLOCKS[208:416], 1),
    ),
}


@pytest.mark.parametrize("name", NATIVE)
def test_a_big_endian_file_gives_the_same_values(name: str, tmp_path: Path) -> None:
    kind, shape, little, big, numbers = NATIVE[name]
    small = Tensor("a", shape, kind, struct.pack(little, *numbers))
    swapped = Tensor("a", shape, kind, struct.pack(big, *numbers))
    one = opened(tmp_path / "little.gguf", Gguf().file([small]))
    other = opened(tmp_path / "big.gguf", Gguf(3, ">").file([swapped]))
    assert other.header.big_endian
    assert bytes(other.a.data().view()) == bytes(one.a.data().view()) == small.data
    assert np.array_equal(np.asarray(other.a.data()), np.asarray(one.a.data()))
    assert raw(other, "a") == small.data


def test_writing_into_the_data_of_a_big_endian_file_leaves_the_file_alone(tmp_path: Path) -> None:
    tensor = Tensor("a", (2,), I32, struct.pack(">2i", 1, 2))
    weights = opened(tmp_path / "a.gguf", Gguf(3, ">").file([tensor]))
    weights.a.data().to_numpy()[0] = 9
    assert weights.a.data().to_numpy().tolist() == [1, 2]


@pytest.mark.parametrize("alignment", [1, 2, 8, 16, 64, 4096])
def test_tensors_start_on_any_alignment(alignment: int, tmp_path: Path) -> None:
    tensors = [Tensor("a", (3,), I8, b"abc"), Tensor("b", (2,), I8, b"de")]
    values = {"general.alignment": ("u32", alignment)}
    weights = opened(tmp_path / "a.gguf", Gguf().file(tensors, values, alignment))
    assert weights.header.alignment == alignment
    assert [raw(weights, name) for name in "ab"] == [b"abc", b"de"]


def test_tensors_start_on_32_bytes_where_no_alignment_is_given(tmp_path: Path) -> None:
    assert opened(tmp_path / "a.gguf", Gguf().file()).header.alignment == 32


def test_the_last_tensor_needs_no_padding(tmp_path: Path) -> None:
    content = Gguf().file([Tensor("a", (3,), I8, b"abc")])
    assert raw(opened(tmp_path / "a.gguf", content[:-29]), "a") == b"abc"


def test_bytes_behind_the_last_tensor_are_noted(tmp_path: Path) -> None:
    weights = opened(tmp_path / "a.gguf", Gguf().file([Tensor("a", (3,), I8, b"abc")]) + b"more")
    assert weights.header.notes == ("4 bytes after the last tensor are not used",)


def test_a_table_out_of_order_is_read_by_its_offsets(tmp_path: Path) -> None:
    table = [Tensor("b", (32,), I8, b"b" * 32, 32), Tensor("a", (32,), I8, b"a" * 32, 0)]
    content = Gguf().file(table)
    weights = opened(tmp_path / "a.gguf", content[:-64] + b"a" * 32 + b"b" * 32)
    assert [raw(weights, name) for name in "ab"] == [b"a" * 32, b"b" * 32]


def test_a_scalar_has_no_dimensions(tmp_path: Path) -> None:
    weights = opened(tmp_path / "a.gguf", Gguf().file([Tensor("a", (), F16, b"\0\x3c")]))
    assert weights.a.info.shape == ()
    assert weights.a.data().to_numpy() == np.float16(1)


@pytest.mark.parametrize(("shape", "kind"), [((0,), F32), ((3, 0), F32), ((0, 256), Q4_K)])
def test_a_tensor_may_be_empty(shape: tuple[int, ...], kind: int, tmp_path: Path) -> None:
    tensors = [Tensor("a", shape, kind), Tensor("b", (1,), I8, b"b")]
    weights = opened(tmp_path / "a.gguf", Gguf().file(tensors))
    assert weights.a.data().to_numpy().size == 0
    assert raw(weights, "b") == b"b"


def test_a_quantized_tensor_is_rows_of_bytes(tmp_path: Path) -> None:
    tensor = Tensor("a", (2, 3, 64), Q8_0, bytes(range(68)) * 6)
    data = opened(tmp_path / "a.gguf", Gguf().file([tensor])).a.data()
    assert data.shape.sizes == (6, 68)
    assert data.dtype is DType.uint8
    assert data.quantization_encoding is QuantizationEncoding.Q8_0
    assert data.info.shape == (2, 3, 64)


@pytest.mark.parametrize("name", ["größe.重み.🦙", " ", "..", "a.0.b.10", "x" * 200])
def test_names_are_any_text(name: str, tmp_path: Path) -> None:
    weights = opened(tmp_path / "a.gguf", Gguf().file([Tensor(name, (1,), I8, b"a")]))
    assert [found for found, _ in weights.items()] == [name]
    assert weights[name].data().to_numpy().tolist() == [97]


@pytest.fixture
def unknown(tmp_path: Path) -> Weights:
    """A file with a tensor of an unknown type between two others."""
    tensors = [
        Tensor("a", (4,), I8, b"abcd"),
        Tensor("new", (2, 50), 77, b"n" * 70),
        Tensor("b", (4,), I8, b"wxyz"),
    ]
    return opened(tmp_path / "a.gguf", Gguf().file(tensors))


def test_a_tensor_of_an_unknown_type_is_listed(unknown: Weights) -> None:
    assert list(unknown.header.tensors) == ["a", "new", "b"]
    assert unknown.new.info.shape == (2, 50)
    assert unknown.new.info.encoding.name == "gguf type 77"
    assert not unknown.new.info.encoding.is_known


def test_the_others_are_read_around_it(unknown: Weights) -> None:
    assert bytes(unknown.b.data().view()) == b"wxyz"


def test_only_its_data_is_an_error(unknown: Weights) -> None:
    with pytest.raises(
        EncodingError, match="weightctl does not support gguf type 77, the encoding of `new`"
    ):
        unknown.new.data()


@pytest.mark.parametrize("format_name", ["gguf", "safetensors"])
def test_converting_it_is_an_error_that_names_the_type(unknown: Weights, format_name: str) -> None:
    with pytest.raises(ConversionError, match="`new` is stored as gguf type 77, which"):
        Plan.copy(unknown, format_name).layouts()


def test_a_large_array_is_decoded_when_it_is_asked_for(tmp_path: Path) -> None:
    tokens = [f"token {number}" for number in range(200_000)]
    weights = opened(tmp_path / "a.gguf", Gguf().file([], {"tokens": ("array[string]", tokens)}))
    value = weights.metadata["tokens"].content
    assert isinstance(value, PackedArray)
    assert len(value) == 200_000
    assert value._list is None
    assert value[123_456] == "token 123456"
    assert list(value) == tokens


@pytest.mark.parametrize("order", [gguf.GGUFEndian.LITTLE, gguf.GGUFEndian.BIG])
def test_what_gguf_py_writes_is_read(order: gguf.GGUFEndian, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    writer = gguf.GGUFWriter(path, "llama", endianess=order)
    writer.add_uint32("llama.block_count", 2)
    writer.add_array("list", [1, 2, 3])
    writer.add_tensor("w", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    weights = open_weights(path)
    assert spoken(weights.metadata) == {
        "general.architecture": ("string", "'llama'"),
        "llama.block_count": ("u32", "2"),
        "list": ("array[i32]", ["1", "2", "3"]),
    }
    assert weights.w.data().to_numpy().tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    "bounds", [(0, 3), (None, 2), (1, 3), (2, None), (-2, None), (3, 1), (0, 99)]
)
def test_a_slice_of_an_array_is_that_of_a_list(
    bounds: tuple[int | None, int | None], tmp_path: Path
) -> None:
    words = ["a", "", "größe", "d", "e"]
    raw = Gguf().file([], {"words": ("array[string]", words)})
    content = opened(tmp_path / "a.gguf", raw).metadata["words"].content
    assert content[slice(*bounds)] == words[slice(*bounds)]
    assert content[:2] == words[:2]
    assert list(content) == words
