"""Writing loses nothing, other readers accept the files, and problems are reported beforehand."""

from __future__ import annotations

import struct
from math import prod
from typing import TYPE_CHECKING, Any

import gguf
import pytest
from safetensors import safe_open

from build import F16, F32, I32, Gguf, Tensor, safetensors_of
from copying import FRAMEWORK, contents, copied, held, spoken
from each import each
from weightctl import open_weights
from weightctl.dtype import ENCODINGS, Encoding
from weightctl.errors import ConversionError
from weightctl.plan.plan import Plan
from weightctl.weights.metadata import MetadataValue
from weightctl.write.save import save
from weightctl.write.targets import target

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl import Weights

SHARED = ["F64", "F32", "F16", "BF16", "I8", "I16", "I32", "I64"]
# gguf-py 0.19 does not support the first, and reads blocks of the second with 40 instead of 36
# bytes.
MISREAD = {"Q2_0", "Q8_1"}
BLOCKS = [encoding.name for encoding in ENCODINGS.values() if encoding.quantization is not None]
METADATA = {
    "general.architecture": MetadataValue("string", "llama"),
    "unicode größe": MetadataValue("string", "大 🦙"),
    "no UTF-8": MetadataValue("string", "a\udcff"),
    "nan": MetadataValue("f32", float("nan")),
    "infinite": MetadataValue("f64", float("-inf")),
    "minus zero": MetadataValue("f32", -0.0),
    "largest": MetadataValue("u64", (1 << 64) - 1),
    "least": MetadataValue("i64", -(1 << 63)),
    "yes": MetadataValue("bool", True),
    "flags": MetadataValue("array[bool]", [True, False]),
    "none": MetadataValue("array[f32]", []),
    "no strings": MetadataValue("array[string]", []),
    "floats": MetadataValue("array[f64]", [float("nan"), float("inf"), -0.0, 5e-324]),
    "nested": MetadataValue("array[array[u8]]", [[1, 2], []]),
    "tokens": MetadataValue("array[string]", ["a", "", "\udc80", "大"]),
}


def sample(names: list[str], metadata: dict[str, MetadataValue] | None = None) -> Weights:
    """One tensor of each of these encodings, with different bytes."""
    tensors: dict[str, tuple[Encoding, tuple[int, ...], bytes]] = {}
    for number, name in enumerate(names):
        encoding = ENCODINGS[name]
        shape = (3, encoding.block)
        raw = bytes((number + place) % 251 for place in range(encoding.nbytes(shape)))
        tensors[f"layer.{number}.größe"] = (encoding, shape, raw)
    tensors["scalar"] = (ENCODINGS["F32"], (), b"1234")
    tensors["empty"] = (ENCODINGS["F32"], (0, 4), b"")
    return held(tensors, metadata)


def without_framework(weights: Weights) -> dict[str, Any]:
    return {
        key: reported
        for key, reported in spoken(weights.metadata).items()
        if (key, reported) != FRAMEWORK
    }


@pytest.mark.parametrize("alignment", [None, 8, 64, 4096])
def test_gguf_py_reads_what_is_written(alignment: int | None, tmp_path: Path) -> None:
    weights = sample([*SHARED, *(name for name in BLOCKS if name not in MISREAD)])
    copied(weights, tmp_path / "a.gguf", alignment)
    read = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "a.gguf").tensors}
    for name, (encoding, shape, raw) in contents(weights).items():
        assert read[name].tensor_type.name == encoding
        assert tuple(read[name].shape[::-1]) == shape
        assert read[name].data.tobytes() == raw
        assert read[name].data_offset % (alignment or 32) == 0


def test_gguf_py_reads_the_metadata_that_is_written(tmp_path: Path) -> None:
    metadata = {key: value for key, value in METADATA.items() if "array[array" not in value.type}
    copied(sample([], metadata), tmp_path / "a.gguf")
    fields = gguf.GGUFReader(tmp_path / "a.gguf").fields
    assert fields["largest"].contents() == (1 << 64) - 1
    assert fields["minus zero"].contents().hex() == "-0x0.0p+0"
    assert fields["flags"].contents() == [True, False]
    assert fields["unicode größe"].contents() == "大 🦙"
    assert fields["nan"].types == [gguf.GGUFValueType.FLOAT32]


def test_safe_open_reads_what_is_written(tmp_path: Path) -> None:
    weights = sample([*SHARED, "BOOL", "U8", "U16", "U32", "U64", "C64", "F8_E4M3", "F8_E8M0"])
    copied(weights, tmp_path / "a.safetensors")
    with safe_open(tmp_path / "a.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
        for name, (encoding, shape, raw) in contents(weights).items():
            tensor = file.get_tensor(name)
            assert str(tensor.dtype) == f"torch.{ENCODINGS[encoding].ids['pytorch']}"
            assert tuple(tensor.shape) == shape
            assert bytes(tensor.flatten().view(-1).untyped_storage())[: len(raw)] == raw


def test_safe_open_reads_the_header_of_every_dtype(tmp_path: Path) -> None:
    names = [e.name for e in ENCODINGS.values() if "safetensors" in e.ids and e.dtype]
    copied(sample(names), tmp_path / "a.safetensors")
    with safe_open(tmp_path / "a.safetensors", "np") as file:
        dtypes = {file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    assert dtypes == set(names)


@pytest.mark.parametrize("alignment", [None, 8, 64, 4096])
def test_safetensors_data_starts_on_the_alignment(alignment: int | None, tmp_path: Path) -> None:
    weights = copied(sample(["I8", "F16", "F32", "F64"]), tmp_path / "a.safetensors", alignment)
    extents = weights.header.extents.values()
    assert min(extent.offset for extent in extents) % (alignment or 8) == 0
    assert weights.header.alignment % (alignment or 8) == 0


def test_every_tensor_in_safetensors_starts_on_its_element_size(tmp_path: Path) -> None:
    weights = copied(sample(["I8", "F64", "F16", "U8", "F32", "BOOL"]), tmp_path / "a.safetensors")
    for name, extent in weights.header.extents.items():
        assert extent.offset % weights[name].info.encoding.size == 0


def test_an_alignment_larger_than_a_header_may_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="bytes, but safetensors allows at most 100 MB"):
        copied(sample([]), tmp_path / "a.safetensors", 1 << 30)


def test_gguf_keeps_the_alignment_it_was_given(tmp_path: Path) -> None:
    weights = copied(sample(["I8", "F64"]), tmp_path / "a.gguf", 64)
    again = copied(weights, tmp_path / "b.gguf")
    assert again.header.alignment == weights.header.alignment == 64
    assert all(extent.offset % 64 == 0 for extent in again.header.extents.values())


@pytest.mark.parametrize(
    "route",
    [
        ["b.gguf", "c.safetensors"],
        ["b.safetensors", "c.gguf"],
        ["b.gguf", "c.gguf"],
        ["b.safetensors", "c.safetensors"],
        ["b.gguf", "c.safetensors", "d.gguf", "e.safetensors"],
    ],
    ids=" ".join,
)
def test_a_way_through_the_formats_loses_nothing(route: list[str], tmp_path: Path) -> None:
    metadata = METADATA | {
        "note": MetadataValue("text", "plain größe"),
        "gguf": MetadataValue("text", "mine"),
    }
    first = weights = sample(SHARED, metadata)
    for name in route:
        weights = copied(weights, tmp_path / name)
    assert contents(weights) == contents(first)
    assert without_framework(weights) == without_framework(first)


def test_arrays_are_copied_between_gguf_files_without_being_decoded(tmp_path: Path) -> None:
    tokens = ["a", "größe", "\udc80"]
    (tmp_path / "a.gguf").write_bytes(Gguf().file([], {"tokens": ("array[string]", tokens)}))
    weights = open_weights(tmp_path / "a.gguf")
    back = copied(weights, tmp_path / "b.gguf")
    assert weights.metadata["tokens"].content._list is None
    assert list(back.metadata["tokens"].content) == tokens


def test_quantized_tensors_are_copied_between_gguf_files_bit_for_bit(tmp_path: Path) -> None:
    weights = sample(BLOCKS)
    assert contents(copied(weights, tmp_path / "a.gguf")) == contents(weights)


@pytest.mark.parametrize("form", [Gguf(1), Gguf(2), Gguf(3, ">")], ids=str)
def test_older_and_big_endian_files_become_version_3(form: Gguf, tmp_path: Path) -> None:
    values = {key: tuple(value) for key, value in METADATA.items()}
    data = struct.pack(f"{form.order}6i", *range(6))
    (tmp_path / "a.gguf").write_bytes(form.file([Tensor("a", (2, 3), I32, data)], values))
    weights = copied(open_weights(tmp_path / "a.gguf"), tmp_path / "b.gguf")
    assert (tmp_path / "b.gguf").read_bytes()[:8] == b"GGUF\3\0\0\0"
    assert contents(weights) == {"a": ("I32", (2, 3), struct.pack("<6i", *range(6)))}
    assert spoken(weights.metadata) == spoken(METADATA)


def test_a_text_whose_name_a_gguf_value_has_too_is_kept_beside_it(tmp_path: Path) -> None:
    values = {"note": ("u8", 1), "safetensors.note": ("string", "a text")}
    (tmp_path / "a.gguf").write_bytes(Gguf().file([], values))
    weights = copied(open_weights(tmp_path / "a.gguf"), tmp_path / "b.safetensors")
    back = copied(weights, tmp_path / "c.gguf")
    assert spoken(back.metadata) == {
        "note": ("u8", "1"),
        "safetensors.note": ("string", "'a text'"),
    }


def test_what_is_not_utf8_cannot_become_a_text_and_stays_what_it_is(tmp_path: Path) -> None:
    values = {"safetensors.note": ("string", "a\udcff")}
    (tmp_path / "a.gguf").write_bytes(Gguf().file([], values))
    weights = copied(open_weights(tmp_path / "a.gguf"), tmp_path / "b.safetensors")
    back = copied(weights, tmp_path / "c.gguf")
    assert spoken(back.metadata) == {"safetensors.note": ("string", repr("a\udcff"))}


def test_a_gguf_value_called_format_comes_back(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(Gguf().file([], {"format": ("u8", 1)}))
    weights = copied(open_weights(tmp_path / "a.gguf"), tmp_path / "b.safetensors")
    assert spoken(copied(weights, tmp_path / "c.gguf").metadata) == {"format": ("u8", "1")}


def test_another_framework_is_kept(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(safetensors_of({}, {"format": "mlx"}))
    weights = copied(open_weights(tmp_path / "a.safetensors"), tmp_path / "b.gguf")
    back = copied(weights, tmp_path / "c.safetensors")
    assert spoken(back.metadata) == {"format": ("text", "'mlx'")}


def test_tied_names_survive_the_way_through_gguf(tmp_path: Path) -> None:
    content = safetensors_of({"embed": ("F32", (1,), b"1234")}, {"format": "pt", "head": "embed"})
    (tmp_path / "a.safetensors").write_bytes(content)
    weights = copied(open_weights(tmp_path / "a.safetensors"), tmp_path / "b.gguf")
    assert copied(weights, tmp_path / "c.safetensors").header.aliases == {"head": "embed"}


def refusal(weights: Weights, path: Path) -> str:
    """Return the error for a copy that is impossible, after checking that nothing was written."""
    where = target(str(path))
    with pytest.raises(ConversionError) as caught:
        save(Plan.copy(weights, where.format), where)
    assert not list(path.parent.iterdir())
    return str(caught.value)


UNHELD = ["BOOL", "U8", "U16", "U32", "U64", "C64", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F4"]


@pytest.mark.parametrize("name", UNHELD)
def test_gguf_refuses_what_it_has_no_type_for(name: str, tmp_path: Path) -> None:
    message = refusal(sample([name]), tmp_path / "a.gguf")
    assert f"`layer.0.größe` is stored as {name}, which GGUF does not support" in message


@each("name", BLOCKS)
def test_safetensors_refuses_blocks_and_says_what_to_do(name: str, tmp_path: Path) -> None:
    message = refusal(sample([name]), tmp_path / "a.safetensors")
    assert f"`layer.0.größe` is stored as {name}, which safetensors does not support" in message
    assert "hint: to dequantize, use --dtype bf16, f16 or f32" in message


def test_gguf_refuses_five_dimensions_long_names_and_no_unicode_at_once(tmp_path: Path) -> None:
    encoding = ENCODINGS["I8"]
    shapes = {"deep": (1, 1, 1, 1, 1), "x" * 64: (1,), "ö" * 32: (1,), "y" * 63: (1, 1, 1, 1)}
    weights = held({name: (encoding, shape, bytes(prod(shape))) for name, shape in shapes.items()})
    message = refusal(weights, tmp_path / "a.gguf")
    assert "`deep` has 5 dimensions" in message
    assert f"the name `{'x' * 64}` has 64 bytes" in message
    assert f"the name `{'ö' * 32}` has 64 bytes" in message
    assert "y" * 63 not in message


def test_safetensors_refuses_the_name_of_its_metadata(tmp_path: Path) -> None:
    content = Gguf().file([Tensor("__metadata__", (4,), F32, bytes(16))])
    (tmp_path / "a.gguf").write_bytes(content)
    weights = open_weights(tmp_path / "a.gguf")
    (tmp_path / "out").mkdir()
    assert "safetensors does not allow a tensor named `__metadata__`" in refusal(
        weights, tmp_path / "out" / "a.safetensors"
    )


def test_many_refusals_are_one_error_that_counts_them(tmp_path: Path) -> None:
    message = refusal(sample(["BOOL"] * 9), tmp_path / "a.gguf")
    assert message.count("as BOOL") == 5
    assert "and 4 more" in message


def test_a_copy_of_half_precision_changes_no_bit_of_nan(tmp_path: Path) -> None:
    odd = b"\x01\x7c\xff\xff\x01\xfe"  # signalling and negative NaNs
    (tmp_path / "a.gguf").write_bytes(Gguf().file([Tensor("a", (3,), F16, odd)]))
    weights = copied(open_weights(tmp_path / "a.gguf"), tmp_path / "b.safetensors")
    assert contents(weights)["a"] == ("F16", (3,), odd)
