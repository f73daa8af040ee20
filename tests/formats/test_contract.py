"""Requirements that every format in the table meets."""

from __future__ import annotations

import json
import struct
from itertools import product
from typing import TYPE_CHECKING

import gguf
import pytest
import safetensors
from hypothesis import given, settings

from build import Gguf, Tensor
from copying import FRAMEWORK, contents, copied, held, spoken
from each import each, few_or_many
from lazy import torch
from strategies import INTERPRETED, metadata, tensors
from weightctl import open_weights
from weightctl.dtype import ENCODINGS, Encoding, encoding_by_id
from weightctl.errors import ConversionError
from weightctl.formats import FORMATS, format_module
from weightctl.weights import TensorInfo
from weightctl.weights.metadata import INTEGERS, MetadataValue

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from weightctl import Weights

Tensors = dict[str, tuple[Encoding, tuple[int, ...], bytes]]
Contents = dict[str, tuple[str, tuple[int, ...], bytes]]
EXAMPLES = settings(deadline=None, derandomize=True, database=None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("contract")


def fit(name: str) -> list[Encoding]:
    """Return the encodings that a format can store."""
    unfit = format_module(name).unfit
    return [e for e in INTERPRETED if not unfit([TensorInfo("a", (e.block,), e)])]


def without_framework(values: Mapping[str, MetadataValue]) -> dict[str, object]:
    return {key: value for key, value in spoken(values).items() if (key, value) != FRAMEWORK}


@pytest.mark.parametrize("name", FORMATS)
@few_or_many("count", 15, 60)
def test_what_is_written_reads_back_equal(name: str, count: int, folder: Path) -> None:
    @settings(EXAMPLES, max_examples=count)
    @given(tensors(fit(name)), metadata())
    def holds(drawn: Tensors, values: dict[str, MetadataValue]) -> None:
        weights = held(drawn, values)
        back = copied(weights, folder / f"any{FORMATS[name].suffix}")
        assert back.header.format == name
        assert contents(back) == contents(weights)
        assert list(back.header.tensors) == list(drawn)
        assert without_framework(back.metadata) == without_framework(values)

    holds()


@pytest.mark.parametrize("way", list(product(FORMATS, FORMATS)), ids=" ".join)
@few_or_many("count", 8, 60)
def test_a_way_through_two_formats_and_back_loses_nothing(
    way: tuple[str, str], count: int, folder: Path
) -> None:
    shared = [encoding for encoding in fit(way[0]) if encoding in fit(way[1])]

    @settings(EXAMPLES, max_examples=count)
    @given(tensors(shared), metadata())
    def holds(drawn: Tensors, values: dict[str, MetadataValue]) -> None:
        first = weights = held(drawn, values)
        for number, name in enumerate((*way, way[0])):
            weights = copied(weights, folder / f"{number}{FORMATS[name].suffix}")
        assert contents(weights) == contents(first)
        assert without_framework(weights.metadata) == without_framework(values)

    holds()


# Readers of other projects; add one for a new format if it exists. Each returns for a file what
# `contents` returns for a tree.


def read_by_gguf(path: Path) -> Contents:
    return {
        tensor.name: (
            tensor.tensor_type.name,
            tuple(int(size) for size in tensor.shape[::-1]),
            tensor.data.tobytes(),
        )
        for tensor in gguf.GGUFReader(path).tensors
    }


def read_by_safetensors(path: Path) -> Contents:
    stored = dict(safetensors.deserialize(path.read_bytes()))
    with safetensors.safe_open(path, "np") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
    assert stored.keys() == slices.keys()
    return {
        name: (each.get_dtype(), tuple(each.get_shape()), bytes(stored[name]["data"]))
        for name, each in slices.items()
    }


def read_by_torch(path: Path) -> Contents:
    found = torch.load(path, weights_only=True, mmap=True)
    return {name: seen_by_torch(tensor) for name, tensor in found.items()}


def seen_by_torch(tensor: torch.Tensor) -> tuple[str, tuple[int, ...], bytes]:
    encoding = encoding_by_id("pytorch", str(tensor.dtype).removeprefix("torch."))
    assert encoding is not None
    shape = tuple(tensor.shape)
    if encoding.block > 1:  # torch counts bytes
        shape = (*shape[:-1], shape[-1] * encoding.block)
    stored = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    return encoding.name, shape, stored[: encoding.nbytes(shape)].numpy().tobytes()


READERS: dict[str, Callable[[Path], Contents]] = {
    "gguf": read_by_gguf,
    "safetensors": read_by_safetensors,
    "pytorch": read_by_torch,
}
# gguf-py 0.19 does not support the first, and reads blocks of the second with 40 instead of 36
# bytes.
MISREAD = {"gguf": {"Q2_0", "Q8_1"}}
# gguf-py treats BF16 as a block type, and a scalar does not have a row of blocks.
MISREAD_SCALARS = {"gguf": {"BF16"}}


def written(name: str, weights: Weights, directory: Path) -> Weights:
    """Write a tree, compare what other readers read, and return what weightctl reads."""
    path = directory / f"a{FORMATS[name].suffix}"
    back = copied(weights, path)
    if name in READERS:
        assert READERS[name](path) == contents(weights)
    return back


def filled(encoding: Encoding, shape: tuple[int, ...]) -> bytes:
    """Return bytes for a tensor; nearby bytes are different."""
    length = encoding.nbytes(shape)
    return (bytes(range(1, 252)) * (length // 251 + 1))[:length]


SHAPES: dict[str, Callable[[int], tuple[int, ...]]] = {
    "one block": lambda block: (block,),
    "one row": lambda block: (1, 3 * block),
    "one column": lambda block: (5, block),
    "matrix": lambda block: (3, 2 * block),
    "four dimensions": lambda block: (2, 1, 3, block),
    "only ones": lambda block: (1, 1, 1, block),
    "no rows": lambda block: (0, block),
    "nothing at all": lambda _: (0,),
    "no columns": lambda _: (3, 0),
    "nothing in the middle": lambda block: (2, 0, block),
}


@each("name", FORMATS)
@each("shape", SHAPES)
def test_every_encoding_in_every_shape_reads_back_equal(
    name: str, shape: str, tmp_path: Path
) -> None:
    tensors = {
        encoding.name: (encoding, sizes, filled(encoding, sizes))
        for encoding in fit(name)
        for sizes in [SHAPES[shape](encoding.block)]
    }
    weights = held(tensors)
    assert contents(copied(weights, tmp_path / f"all{FORMATS[name].suffix}")) == contents(weights)
    weights = held({key: tensors[key] for key in tensors.keys() - MISREAD.get(name, set())})
    assert contents(written(name, weights, tmp_path)) == contents(weights)


@pytest.mark.parametrize("name", FORMATS)
def test_a_scalar_of_every_dtype_reads_back_equal(name: str, tmp_path: Path) -> None:
    scalars = {e.name: (e, (), filled(e, ())) for e in fit(name) if e.block == 1}
    weights = held(scalars)
    back = copied(weights, tmp_path / f"all{FORMATS[name].suffix}")
    assert contents(back) == contents(weights)
    assert {node.data().to_numpy().shape for _, node in back.items()} == {()}
    others = scalars.keys() - MISREAD_SCALARS.get(name, set())
    written(name, held({key: scalars[key] for key in others}), tmp_path)


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_may_hold_nothing(name: str, tmp_path: Path) -> None:
    back = written(name, held({}), tmp_path)
    assert contents(back) == {}
    assert without_framework(back.metadata) == {}


METADATA = {
    "general.architecture": MetadataValue("string", "llama"),
    "größe 大": MetadataValue("string", "🦙\n\0"),
    **{kind: MetadataValue(kind, INTEGERS[kind][1]) for kind in INTEGERS},
    "f32": MetadataValue("f32", 0.5),
    "f64": MetadataValue("f64", 0.1),
    "bool": MetadataValue("bool", True),
    **{f"several {kind}": MetadataValue(f"array[{kind}]", [*INTEGERS[kind]]) for kind in INTEGERS},
    "several f32": MetadataValue("array[f32]", [0.5, float("inf")]),
    "several f64": MetadataValue("array[f64]", [0.1, -0.0]),
    "several bool": MetadataValue("array[bool]", [True, False]),
    "several strings": MetadataValue("array[string]", ["", "a", "大"]),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_may_hold_metadata_only(name: str, tmp_path: Path) -> None:
    back = written(name, held({}, METADATA), tmp_path)
    assert contents(back) == {}
    assert without_framework(back.metadata) == spoken(METADATA)


def test_gguf_py_reads_a_file_of_metadata_only(tmp_path: Path) -> None:
    copied(held({}, METADATA), tmp_path / "a.gguf")
    fields = gguf.GGUFReader(tmp_path / "a.gguf").fields
    assert {key: fields[key].contents() for key in METADATA} == {
        key: value.content for key, value in METADATA.items()
    }


def test_safe_open_reads_a_file_of_metadata_only(tmp_path: Path) -> None:
    copied(
        held({}, METADATA | {"note": MetadataValue("text", "größe")}), tmp_path / "a.safetensors"
    )
    with safetensors.safe_open(tmp_path / "a.safetensors", "np") as file:
        found = file.metadata()
    assert {key: found[key] for key in ("format", "note")} == {"format": "pt", "note": "größe"}
    assert json.loads(found["gguf"])["u64"] == {"type": "u64", "value": (1 << 64) - 1}


NAMES = [
    "model.layers.0.weight",
    "größe",
    "大模型.层.0",
    "🦙",
    "e\u0301",  # the same letter as two characters, and below as one
    "\u00e9",
    "\u202eright to left",
    "\u2028line\u2029paragraph",
    "with blanks ",
    " ",
    "tab\tline\nreturn\r",
    "null\0inside",
    "\x1b[31mred",
    'quotes " and \\ slashes',
    "../../etc/passwd",
    "a..b.",
    "__class__",
    "",
]


@pytest.mark.parametrize("name", FORMATS)
def test_any_text_is_a_name(name: str, tmp_path: Path) -> None:
    encoding = ENCODINGS["I8"]
    weights = held({each: (encoding, (1,), bytes([n])) for n, each in enumerate(NAMES)})
    back = written(name, weights, tmp_path)
    assert contents(back) == contents(weights)
    assert list(back.header.tensors) == NAMES


# The longest name that is tested, and one that is too long. safetensors only limits the size of the
# whole header.
LENGTHS = {"gguf": (63, 64), "safetensors": (1_000_000, 100_000_000), "pytorch": (1_000_000, None)}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("letter", ["x", "ö", "大"])
def test_a_long_name_reads_back_equal(name: str, letter: str, tmp_path: Path) -> None:
    longest = letter * (LENGTHS[name][0] // len(letter.encode()))
    weights = held({longest: (ENCODINGS["I8"], (2,), b"ab")})
    assert contents(written(name, weights, tmp_path)) == contents(weights)


@pytest.mark.parametrize("name", [name for name in FORMATS if LENGTHS[name][1]])
def test_a_name_that_is_too_long_is_refused_before_anything_is_written(
    name: str, tmp_path: Path
) -> None:
    weights = held({"x" * LENGTHS[name][1]: (ENCODINGS["I8"], (2,), b"ab")})
    with pytest.raises(ConversionError, match=r"at most 63|at most 100 MB"):
        copied(weights, tmp_path / f"a{FORMATS[name].suffix}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", FORMATS)
@few_or_many("count", 500, 20_000)
def test_many_tensors_read_back_equal(name: str, count: int, tmp_path: Path) -> None:
    encoding = ENCODINGS["F16"]
    weights = held(
        {
            f"model.layers.{number // 9}.experts.{number}.weight": (
                *(encoding, (2,), number.to_bytes(4, "little")),
            )
            for number in range(count)
        }
    )
    back = written(name, weights, tmp_path)
    assert contents(back) == contents(weights)
    assert list(back.header.tensors) == list(weights.header.tensors)


# The fields of one block, as ggml's code reads them on a machine of the other byte order
# (ggml-common.h and ggml-quants.c): bytes that are read as a wider integer are one. IQ2_XXS is
# missing, because ggml's code reads and writes it with different widths.
FIELDS = {
    "F64": "Q", "F32": "I", "F16": "H", "BF16": "H", "I8": "B", "I16": "H", "I32": "I", "I64": "Q",
    "Q1_0": "H16s", "Q2_0": "H16s", "Q4_0": "H16s", "Q4_1": "HH16s", "Q5_0": "HI16s",
    "Q5_1": "HHI16s", "Q8_0": "H32s", "Q8_1": "HH32s", "Q2_K": "16s64sHH", "Q3_K": "32s64s12sH",
    "Q4_K": "HH12s128s", "Q5_K": "HH12s32s128s", "Q6_K": "128s64s16sH", "Q8_K": "I256s16H",
    "IQ1_S": "H32s8H", "IQ1_M": "32s16s4H", "IQ2_XS": "H32H8s", "IQ2_S": "H64s8s8s",
    "IQ3_XXS": "H64s8I", "IQ3_S": "H64s8s32s4s", "IQ4_NL": "H16s", "IQ4_XS": "HH4s128s",
    "TQ1_0": "48s4sH", "TQ2_0": "64sH", "MXFP4": "B16s", "NVFP4": "4s32s",
}  # fmt: skip


def test_every_type_of_gguf_has_its_fields_said() -> None:
    assert FIELDS.keys() | {"IQ2_XXS"} == {encoding.name for encoding in fit("gguf")}


@each(
    ("name", "kind"),
    [(name, kind) for name in FORMATS for kind in FIELDS if ENCODINGS[kind] in fit(name)],
)
def test_a_big_endian_file_has_the_values_of_a_little_endian_one(
    name: str, kind: str, tmp_path: Path
) -> None:
    encoding = ENCODINGS[kind]
    shape = (3, 2 * encoding.block)
    little = filled(encoding, shape)
    big = b"".join(
        struct.pack(">" + FIELDS[kind], *numbers)
        for numbers in struct.iter_unpack("<" + FIELDS[kind], little)
    )
    values = {key: tuple(value) for key, value in METADATA.items()}
    tensor = Tensor("a", shape, int(encoding.ids.get("gguf", 0)), big)
    (tmp_path / "big.gguf").write_bytes(Gguf(order=">").file([tensor], values))
    back = copied(open_weights(tmp_path / "big.gguf"), tmp_path / f"a{FORMATS[name].suffix}")
    assert contents(back) == {"a": (kind, shape, little)}
    assert without_framework(back.metadata) == spoken(METADATA)
    assert not back.header.big_endian
    if name in READERS and kind not in MISREAD.get(name, set()):
        assert READERS[name](tmp_path / f"a{FORMATS[name].suffix}") == contents(back)
