"""A checkpoint that is written as several files is read as one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from gguf import GGUFReader
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from build import F32, Q8_0, Gguf, Tensor, safetensors_of
from copying import contents, copied, held, spoken
from llama_cpp import generate
from strategies import INTERPRETED, metadata, tensors
from weightctl import Plan, WeightData, Weights, open_weights
from weightctl.dtype import Encoding
from weightctl.errors import ConversionError, FormatError
from weightctl.formats import FORMATS, format_module
from weightctl.plan.arrangement import align, split
from weightctl.weights import TensorInfo
from weightctl.weights.from_arrays import as_checkpoint
from weightctl.weights.metadata import text
from weightctl.write.save import save
from weightctl.write.targets import target

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl.weights.metadata import MetadataValue

Tensors = dict[str, tuple[Encoding, tuple[int, ...], bytes]]
EXAMPLES = settings(max_examples=20, deadline=None, derandomize=True, database=None)


def fit(name: str) -> list[Encoding]:
    unfit = format_module(name).unfit
    return [e for e in INTERPRETED if not unfit([TensorInfo("a", (e.block,), e)])]


def divided(weights: Weights, path: Path, most: int) -> list[Path]:
    """Write a tree as files of limited size; return their paths, the one to open first."""
    where = target(str(path))
    saved = save(split(Plan.copy(weights, where.format), most), where)
    return [path.parent / name.rpartition("/")[2] for name in saved.paths]


def layers(count: int, rows: int = 64) -> Weights:
    numbers = np.random.default_rng(1)
    return as_checkpoint(
        {
            f"layers.{i}.weight": WeightData.from_numpy(
                numbers.standard_normal((rows, 256), np.float32), f"layers.{i}.weight"
            )
            for i in range(count)
        }
    )


@pytest.mark.parametrize("name", FORMATS)
def test_split_and_merged_is_the_file_that_was_there(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    @EXAMPLES
    @given(
        tensors(fit(name)), metadata(), st.integers(1, 2000), st.sampled_from([None, 8, 64, 4096])
    )
    def holds(
        drawn: Tensors, values: dict[str, MetadataValue], most: int, alignment: int | None
    ) -> None:
        folder = tmp_path_factory.mktemp("split")
        first = folder / f"a{FORMATS[name].suffix}"
        weights = copied(held(drawn, values), first, alignment)
        parts = divided(weights, folder / f"parts{FORMATS[name].suffix}", most)
        copied(open_weights(parts[0]), folder / f"b{FORMATS[name].suffix}")
        assert (folder / f"b{FORMATS[name].suffix}").read_bytes() == first.read_bytes()

    holds()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("most", [70_000, 200_000, 333_333])
def test_no_file_is_larger_than_asked(name: str, most: int, tmp_path: Path) -> None:
    paths = divided(layers(10), tmp_path / f"a{FORMATS[name].suffix}", most)
    parts = [path for path in paths if path.suffix != ".json"]
    assert len(parts) == {70_000: 10, 200_000: 4, 333_333: 2}[most]
    assert all(path.stat().st_size <= most for path in parts)


@pytest.mark.parametrize("name", FORMATS)
def test_a_tensor_larger_than_a_file_has_one_of_its_own(name: str, tmp_path: Path) -> None:
    paths = divided(layers(3), tmp_path / f"a{FORMATS[name].suffix}", 10)
    assert len([path for path in paths if path.suffix != ".json"]) == 3
    assert contents(open_weights(paths[0])) == contents(layers(3))


@pytest.mark.parametrize("name", FORMATS)
def test_what_fits_into_one_file_is_one(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{FORMATS[name].suffix}"
    assert divided(layers(3), path, 1 << 30) == [path]
    assert list(tmp_path.iterdir()) == [path]


def test_parts_are_named_as_the_field_names_them(tmp_path: Path) -> None:
    for name, line in FORMATS.items():
        divided(layers(3), tmp_path / f"{name}{line.suffix}", 70_000)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "gguf-00001-of-00003.gguf",
        "gguf-00002-of-00003.gguf",
        "gguf-00003-of-00003.gguf",
        "pytorch-00001-of-00003.bin",
        "pytorch-00002-of-00003.bin",
        "pytorch-00003-of-00003.bin",
        "pytorch.bin.index.json",
        "safetensors-00001-of-00003.safetensors",
        "safetensors-00002-of-00003.safetensors",
        "safetensors-00003-of-00003.safetensors",
        "safetensors.safetensors.index.json",
    ]


def test_the_index_has_the_total_size_the_parts_and_the_tied_names(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(
        safetensors_of(
            {"embed": ("F32", (4, 4), bytes(64)), "norm": ("F32", (4,), bytes(16))},
            {"format": "pt", "head": "embed", "made by": "hand"},
        )
    )
    index, *_ = divided(open_weights(tmp_path / "a.safetensors"), tmp_path / "b.safetensors", 200)
    assert json.loads(index.read_text()) == {
        "metadata": {"head": "embed", "total_size": 80},
        "weight_map": {
            "embed": "b-00001-of-00002.safetensors",
            "norm": "b-00002-of-00002.safetensors",
        },
    }
    back = open_weights(index)
    assert back.header.aliases == {"head": "embed"}
    assert list(back.metadata) == ["format", "head", "made by"]


def test_every_part_of_safetensors_is_a_file_of_its_own(tmp_path: Path) -> None:
    _, *parts = divided(layers(3), tmp_path / "a.safetensors", 70_000)
    for number, part in enumerate(parts):
        with safe_open(part, "np") as file:
            assert file.metadata() == {"format": "pt"}
            assert list(file.keys()) == [f"layers.{number}.weight"]


def test_the_parts_of_gguf_say_their_place_as_llama_cpp_does(tmp_path: Path) -> None:
    weights = as_checkpoint(
        {name: node.data() for name, node in layers(3).items()}, {"general.name": text("x")}
    )
    for number, path in enumerate(divided(weights, tmp_path / "a.gguf", 70_000)):
        fields = GGUFReader(path).fields
        place = {
            key: (f.types[0].name, f.contents()) for key, f in fields.items() if "split" in key
        }
        assert place == {
            "split.no": ("UINT16", number),
            "split.count": ("UINT16", 3),
            "split.tensors.count": ("INT32", 3),
        }
        assert ("safetensors.general.name" in fields) == (number == 0)


@pytest.mark.parametrize("alignment", [64, 4096])
def test_every_part_of_gguf_says_how_it_is_aligned(alignment: int, tmp_path: Path) -> None:
    plan = split(align(Plan.copy(layers(3), "gguf"), alignment), 80_000)
    for path in save(plan, tmp_path / "a.gguf").paths:
        reader = GGUFReader(path)
        assert reader.alignment == alignment
        assert all(tensor.data_offset % alignment == 0 for tensor in reader.tensors)


def test_files_that_others_wrote_come_back_equal(tmp_path: Path) -> None:
    raw = bytes(range(256)) * 17
    (tmp_path / "a.gguf").write_bytes(
        Gguf(version=2).file(
            [
                Tensor("z", (2, 32), Q8_0, raw[:68]),
                Tensor("a", (3, 5), F32, raw[:60]),
                Tensor("b", (), F32, raw[9:13]),
            ],
            {"general.alignment": ("u32", 64), "n": ("array[string]", ["1", "2"])},
            alignment=64,
        )
    )
    (tmp_path / "a.safetensors").write_bytes(
        safetensors_of(
            {"z": ("BOOL", (3,), b"\0\1\0"), "a": ("F64", (2,), raw[:16]), "b": ("F32", (0,), b"")},
            {"source": "elsewhere"},
        )
    )
    for suffix in (".gguf", ".safetensors"):
        weights = open_weights(tmp_path / f"a{suffix}")
        parts = divided(weights, tmp_path / f"parts{suffix}", 1)
        back = copied(open_weights(parts[0]), tmp_path / f"b{suffix}")
        assert contents(back) == contents(weights)
        values = spoken(back.metadata)
        assert {key: values[key] for key in weights.metadata} == spoken(weights.metadata)


def test_a_set_of_parts_is_split_anew(tmp_path: Path) -> None:
    parts = divided(layers(6), tmp_path / "a.gguf", 70_000)
    again = divided(open_weights(parts[3]), tmp_path / "b.gguf", 140_000)
    assert (len(parts), len(again)) == (6, 3)
    assert contents(open_weights(again[0])) == contents(layers(6))


def test_parts_that_are_cut_off_are_not_merged(tmp_path: Path) -> None:
    for suffix in (".gguf", ".safetensors"):
        *_, last = divided(layers(3), tmp_path / f"a{suffix}", 70_000)
        last.write_bytes(last.read_bytes()[:-1000])
        with pytest.raises(
            FormatError, match="ends 1000 bytes after the end of the file: the file has"
        ):
            open_weights(last)


@pytest.mark.long
def test_more_parts_than_names_can_count_are_refused() -> None:
    tensor = WeightData.from_numpy(np.zeros(1, np.uint8), "a")
    weights = as_checkpoint({str(number): tensor for number in range(65_536)})
    with pytest.raises(ConversionError, match="would be 65,536 files of at most 1 bytes"):
        split(Plan.copy(weights, "safetensors"), 1)


@pytest.mark.long
@pytest.mark.real
def test_llama_cpp_generates_the_same_from_the_parts(smollm2: Path, tmp_path: Path) -> None:
    prompt = "The capital of France is"
    plan = split(align(Plan.copy(open_weights(smollm2), "gguf"), 64), 30_000_000)
    first, *others = save(plan, tmp_path / "model.gguf").paths
    assert len(others) > 2
    whole = generate(smollm2, prompt, 8, tmp_path)
    assert generate(tmp_path / first.rpartition("/")[2], prompt, 8, tmp_path) == whole
