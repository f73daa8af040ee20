"""PyTorch checkpoints that weightctl writes: torch loads them, and they are valid zip files."""

from __future__ import annotations

import io
import subprocess
import zipfile
from collections import OrderedDict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from torch.utils import serialization

from each import each
from lazy import torch
from strategies import metadata as any_metadata
from strategies import tensors as any_tensors
from weightctl.dtype import ENCODINGS, Encoding, unknown_encoding
from weightctl.errors import ConversionError
from weightctl.formats.base import ALIGNMENT_KEY, Part, write_in_order
from weightctl.formats.pytorch.nesting import LEVELS_KEY, levels_value
from weightctl.formats.pytorch.writing import RECORD, layout, unfit
from weightctl.weights import TensorInfo
from weightctl.weights.metadata import MetadataValue, from_json, text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Tensors = dict[str, tuple[Encoding, tuple[int, ...], bytes]]
F32, I8 = ENCODINGS["F32"], ENCODINGS["I8"]
WRITTEN = [
    e for e in ENCODINGS.values() if "pytorch" in e.ids and not e.name.startswith(("Q", "NV"))
]
EXAMPLES = settings(max_examples=60, deadline=None, derandomize=True, database=None)
pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")


def described(tensors: Tensors) -> list[TensorInfo]:
    return [TensorInfo(name, shape, encoding) for name, (encoding, shape, _) in tensors.items()]


def written(
    tensors: Tensors, metadata: Mapping[str, MetadataValue] | None = None, part: Part | None = None
) -> bytes:
    """Return the file, after checking that it matches its layout."""
    planned = layout(described(tensors), metadata or {}, part)
    sink = io.BytesIO()
    write_in_order(planned, sink, lambda info: [tensors[info.name][2]])
    content = sink.getvalue()
    assert len(content) == planned.nbytes
    assert [info.name for info in planned.tensors] == list(tensors)
    for (_, _, raw), offset in zip(tensors.values(), planned.offsets, strict=True):
        assert content[offset : offset + len(raw)] == raw
    assert zipfile.ZipFile(io.BytesIO(content)).testzip() is None
    return content


def loaded(content: bytes, path: Path) -> Any:
    """Return what torch loads from a file, which must be the same with and without mmap."""
    path.write_bytes(content)
    first = torch.load(path, weights_only=True, mmap=True)
    again = torch.load(path, weights_only=True, mmap=False)
    assert spoken(first) == spoken(again)
    return first


def spoken(value: Any) -> Any:
    """Return a comparable form of a value, with the bytes of tensors and types of containers."""
    if isinstance(value, torch.Tensor):
        raw = bytes(value.untyped_storage())
        return ("tensor", value.dtype, tuple(value.shape), value.stride(), raw)
    if isinstance(value, dict):
        attributes = spoken(vars(value)) if isinstance(value, OrderedDict) else None
        return type(value), [(key, spoken(each)) for key, each in value.items()], attributes
    if isinstance(value, list | tuple):
        return type(value), [spoken(each) for each in value]
    return repr(value)


def record(content: bytes) -> dict[str, MetadataValue]:
    archive = zipfile.ZipFile(io.BytesIO(content))
    name = f"archive/{RECORD}"
    return from_json(archive.read(name).decode()) if name in archive.namelist() else {}


def tensor(*values: float) -> tuple[Encoding, tuple[int, ...], bytes]:
    made = torch.tensor(values, dtype=torch.float32)
    return F32, tuple(made.shape), bytes(made.untyped_storage())


SHAPES = [(), (4,), (2, 6), (0,), (2, 0, 4), (1, 3, 2, 2)]


@each(
    ("encoding", "shape"),
    [(each, shape) for each in WRITTEN for shape in SHAPES if each.fits(shape)],
    ids=str,
)
def test_torch_loads_every_dtype_and_shape(
    encoding: Encoding, shape: tuple[int, ...], tmp_path: Path
) -> None:
    raw = bytes(range(1, 1 + encoding.nbytes(shape)))
    if encoding.name == "BOOL":
        raw = bytes(byte % 2 for byte in raw)
    back = loaded(written({"a": (encoding, shape, raw), "b": tensor(1.0)}), tmp_path / "a.pt")
    assert list(back) == ["a", "b"]
    stored = (*shape[:-1], shape[-1] // 2) if encoding.block > 1 else shape
    assert back["a"].dtype == getattr(torch, str(encoding.ids["pytorch"]))
    assert tuple(back["a"].shape) == stored
    assert back["a"].is_contiguous()
    assert back["a"].stride() == torch.empty(stored).stride()
    assert bytes(back["a"].untyped_storage()) == raw
    assert back["b"].tolist() == [1.0]


def test_the_table_of_what_is_written_is_that_of_torch() -> None:
    quantized = {torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4}
    known = {*torch.storage._dtype_to_storage_type_map(), *torch.storage._new_dtypes()} - quantized
    bits = {dtype for dtype in known if str(dtype).startswith("torch.bits")}
    assert {getattr(torch, str(e.ids["pytorch"])) for e in WRITTEN} == known - bits


@each("encoding", WRITTEN, ids=str)
def test_the_pickle_names_what_that_of_torch_names(encoding: Encoding, tmp_path: Path) -> None:
    raw = bytes(encoding.nbytes((2, 4)))
    ours, theirs = tmp_path / "ours.pt", tmp_path / "theirs.pt"
    ours.write_bytes(written({"a": (encoding, (2, 4), raw)}))
    torch.save(torch.load(ours, weights_only=True), theirs)
    named = [torch.serialization.get_unsafe_globals_in_checkpoint(path) for path in (ours, theirs)]
    assert named == [[], []]
    globals_in = torch._weights_only_unpickler.get_globals_in_pkl
    assert globals_in(pickle_of(ours, "archive")) == globals_in(pickle_of(theirs, "theirs"))


def pickle_of(path: Path, folder: str) -> io.BytesIO:
    with zipfile.ZipFile(path) as archive:
        return io.BytesIO(archive.read(f"{folder}/data.pkl"))


@EXAMPLES
@given(any_tensors([e for e in WRITTEN if e.name != "BOOL"]), any_metadata())
def test_any_checkpoint_is_sound(drawn: Tensors, values: dict[str, MetadataValue]) -> None:
    drawn = {
        name: each for name, each in drawn.items() if not unfit([TensorInfo(name, *each[1::-1])])
    }
    content = written(drawn, values)
    back = torch.load(io.BytesIO(content), weights_only=True)
    tied = {name: value.content for name, value in values.items()
            if value.type == "text" and value.content in drawn and name not in drawn}  # fmt: skip
    assert set(back) == {*drawn, *tied}
    for name, (_, _, raw) in drawn.items():
        assert bytes(back[name].untyped_storage()) == raw
    kept = {key: value for key, value in values.items() if key not in tied}
    assert repr(record(content)) == repr(from_json_of(kept))


def from_json_of(values: Mapping[str, MetadataValue]) -> dict[str, MetadataValue]:
    return {key: MetadataValue(value.type, plain(value.content)) for key, value in values.items()}


def plain(content: Any) -> Any:
    return [plain(each) for each in content] if isinstance(content, list) else content


def test_an_empty_checkpoint_is_one() -> None:
    content = written({})
    assert torch.load(io.BytesIO(content), weights_only=True) == {}
    assert members(content) == ["data.pkl", "byteorder", "version"]


def members(content: bytes) -> list[str]:
    names = zipfile.ZipFile(io.BytesIO(content)).namelist()
    assert all(name.startswith("archive/") for name in names)
    return [name.removeprefix("archive/") for name in names]


def test_the_members_are_those_of_torch_and_the_record() -> None:
    tensors = {"b": tensor(1.0), "a": tensor(2.0, 3.0)}
    assert members(written(tensors)) == ["data.pkl", "byteorder", "data/0", "data/1", "version"]
    content = written(tensors, {"note": text("größe"), "n": MetadataValue("u8", 7)})
    assert members(content)[2] == RECORD
    assert record(content) == {"note": text("größe"), "n": MetadataValue("u8", 7)}
    archive = zipfile.ZipFile(io.BytesIO(content))
    assert archive.read("archive/byteorder") == b"little"
    assert archive.read("archive/version") == b"3\n"
    assert archive.read("archive/data/1") == tensors["a"][2]
    for info in archive.infolist():
        assert info.compress_type == zipfile.ZIP_STORED
        assert info.date_time == (1980, 1, 1, 0, 0, 0)


def test_the_same_is_written_twice() -> None:
    tensors = {"a": tensor(1.0), "b": tensor(2.0)}
    assert written(tensors, {"note": text("x")}) == written(tensors, {"note": text("x")})


def test_info_zip_finds_no_fault(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(written({"a": tensor(1.0), "b": (F32, (0,), b"")}))
    try:
        done = subprocess.run(["unzip", "-t", tmp_path / "a.zip"], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unzip here")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("alignment", [None, 8, 64, 4096, 1 << 15, 1 << 16, 1 << 20])
def test_data_starts_on_the_alignment(alignment: int | None, tmp_path: Path) -> None:
    tensors: Tensors = {
        f"t{n}": (I8, (n,), bytes(range(n))) for n in (0, 1, 3, 62, 63, 64, 65, 100)
    }
    metadata = {} if alignment is None else {ALIGNMENT_KEY: MetadataValue("u32", alignment)}
    boundary = max(64, alignment or 0)
    offsets = layout(described(tensors), metadata).offsets
    assert all(offset % boundary == 0 for offset in offsets)
    assert max(b - a for a, b in pairwise(offsets)) < 200 + 2 * boundary
    content = written(tensors, metadata)
    assert record(content) == metadata
    back = loaded(content, tmp_path / "a.pt")
    assert {name: each.tolist() for name, each in back.items()} == {
        name: list(raw) for name, (_, _, raw) in tensors.items()
    }


def test_every_distance_to_the_alignment_is_bridged() -> None:
    for length in range(130):
        written({"a": (I8, (length,), bytes(length)), "b": (I8, (1,), b"x")})
        planned = layout([TensorInfo("a" * (1 + length), (1,), I8)], {})
        assert planned.offsets[0] % 64 == 0


@pytest.mark.parametrize(
    "value", [MetadataValue("u32", 7), MetadataValue("i64", 4096), text("4096")]
)
def test_an_alignment_that_cannot_be_is_only_kept(value: MetadataValue) -> None:
    content = written({"a": tensor(1.0)}, {ALIGNMENT_KEY: value})
    assert record(content) == {ALIGNMENT_KEY: value}


def test_an_alignment_that_would_take_all_memory_is_refused() -> None:
    with pytest.raises(ConversionError, match="bytes is too large for a PyTorch file"):
        layout([], {ALIGNMENT_KEY: MetadataValue("u32", 1 << 31)})


def test_tied_names_are_the_same_tensor(tmp_path: Path) -> None:
    tensors = {"embed": tensor(1.0, 2.0)}
    content = written(tensors, {"head": text("embed"), "note": text("a text")})
    back = loaded(content, tmp_path / "a.pt")
    assert list(back) == ["embed", "head"]
    assert back["head"].data_ptr() == back["embed"].data_ptr()
    assert record(content) == {"note": text("a text")}
    assert members(content).count("data/0") == 1
    assert "data/1" not in members(content)


def test_a_text_that_is_a_value_of_the_checkpoint_ties_nothing(tmp_path: Path) -> None:
    metadata = {"best": text("embed"), LEVELS_KEY: levels_value({"best": "str"})}
    back = loaded(written({"embed": tensor(1.0)}, metadata), tmp_path / "a.pt")
    assert back["best"] == "embed"


def training() -> tuple[Tensors, dict[str, MetadataValue]]:
    """A checkpoint as a training loop saves it: its tensors, and its other content as metadata."""
    levels = {
        "epoch": "int", "model": "dict", "model._metadata": "_metadata", "opt": "dict",
        "opt.state": "dict[int]", "opt.state.0": "dict", "opt.param_groups": "list",
        "opt.param_groups.0": "dict", "opt.param_groups.0.lr": "float",
        "opt.param_groups.0.betas": "tuple", "opt.param_groups.0.foreach": "None",
        "opt.param_groups.0.params": "list", "opt.param_groups.0.amsgrad": "bool",
        "shape": "torch.Size", "dtype": "torch.dtype", "name": "str", "phase": "complex",
        "seed": "int", "rng": "tuple",
    }  # fmt: skip
    metadata = {
        "epoch": MetadataValue("i64", 7),
        "model._metadata": text('{"":{"version":1}}'),
        "opt.param_groups.0.lr": MetadataValue("f64", 0.001),
        "opt.param_groups.0.betas": MetadataValue("array[f64]", [0.9, 0.999]),
        "opt.param_groups.0.params": MetadataValue("array[i64]", [0, 1]),
        "opt.param_groups.0.amsgrad": MetadataValue("bool", False),
        "opt.param_groups.0.foreach": MetadataValue("string", "None"),
        "shape": MetadataValue("array[i64]", [2, 3]),
        "dtype": MetadataValue("string", "torch.bfloat16"),
        "name": MetadataValue("string", "größe"),
        "phase": MetadataValue("array[f64]", [0.5, -1.0]),
        "seed": text(str(1 << 70)),
        LEVELS_KEY: levels_value(levels),
        "note": text("of weightctl only"),
    }
    tensors = {
        "model.layer.weight": tensor(1.0),
        "opt.state.0.exp_avg": tensor(2.0),
        "rng.1": tensor(4.0),
        "rng.0": tensor(3.0),
    }
    return tensors, metadata


def test_a_training_checkpoint_is_nested_again(tmp_path: Path) -> None:
    content = written(*training())
    model = OrderedDict({"layer.weight": torch.tensor([1.0])})
    model._metadata = OrderedDict({"": {"version": 1}})  # type: ignore[attr-defined]
    group = {
        "lr": 0.001, "betas": (0.9, 0.999), "foreach": None, "params": [0, 1], "amsgrad": False,
    }  # fmt: skip
    assert spoken(loaded(content, tmp_path / "a.pt")) == spoken(
        {
            "epoch": 7,
            "model": model,
            "opt": {"state": {0: {"exp_avg": torch.tensor([2.0])}}, "param_groups": [group]},
            "shape": torch.Size([2, 3]),
            "dtype": torch.bfloat16,
            "name": "größe",
            "phase": 0.5 - 1j,
            "seed": 1 << 70,
            "rng": (torch.tensor([3.0]), torch.tensor([4.0])),
        }
    )
    assert record(content) == {"note": text("of weightctl only")}


def test_a_tensor_by_itself_and_a_list_of_them(tmp_path: Path) -> None:
    bare = written({"": tensor(1.0)}, {LEVELS_KEY: levels_value({"": "tensor"})})
    assert loaded(bare, tmp_path / "a.pt").tolist() == [1.0]
    many = {str(number): tensor(float(number)) for number in range(12)}
    back = loaded(written(many, {LEVELS_KEY: levels_value({"": "list"})}), tmp_path / "b.pt")
    assert [each.item() for each in back] == list(range(12))
    assert not record(bare)


def test_parts_are_flat_and_the_first_keeps_the_metadata_of_the_whole(tmp_path: Path) -> None:
    tensors, metadata = training()
    metadata["tied.first"], metadata["tied.last"] = text("model.layer.weight"), text("rng.0")
    names = list(tensors)
    parts = [{name: tensors[name] for name in half} for half in (names[:2], names[2:])]
    first, last = (
        written(part, metadata, Part(number, 2, len(tensors))) for number, part in enumerate(parts)
    )
    assert list(loaded(first, tmp_path / "a.pt")) == [*names[:2], "tied.first"]
    assert list(loaded(last, tmp_path / "b.pt")) == [*names[2:], "tied.last"]
    assert record(first) == {key: metadata[key] for key in metadata if key != "tied.first"}
    assert RECORD not in members(last)


def test_what_cannot_be_held_is_reported() -> None:
    shapes = {"Q4_K": (256,), "F6_E2M3": (4,), "QINT8": (1,), "QUINT2X4": (4,), "F4": (2, 3)}
    tensors = [TensorInfo(name.lower(), shape, ENCODINGS[name]) for name, shape in shapes.items()]
    tensors.append(TensorInfo("new", (1,), unknown_encoding("gguf", 99, 1, 4)))
    assert unfit([*tensors, TensorInfo("fine", (3, 2), ENCODINGS["F4"])]) == [
        "`q4_k` is stored as Q4_K, which PyTorch does not support",
        "`f6_e2m3` is stored as F6_E2M3, which PyTorch does not support",
        "`qint8` is stored as quantized values with a scale, which weightctl cannot write",
        "`quint2x4` is stored as quantized values with a scale, which weightctl cannot write",
        "`f4` is stored as F4 with rows of 3 elements; PyTorch stores these elements in pairs",
        "`new` is stored as gguf type 99, which weightctl cannot write",
    ]


@pytest.mark.parametrize("name", ["", "größe", "a\udcff", "\ud800", "a\nb", "a.b..", "x" * 70_000])
def test_any_name_can_be(name: str, tmp_path: Path) -> None:
    assert not unfit([TensorInfo(name, (1,), F32)])
    assert list(loaded(written({name: tensor(1.0)}), tmp_path / "a.pt")) == [name]


def test_torch_computes_the_offsets_that_are_there(tmp_path: Path) -> None:
    """With this setting, torch does not read local headers, which requires torch's own layout."""
    (tmp_path / "a.pt").write_bytes(written({"a": tensor(1.0), "b": tensor(2.0, 3.0)}))
    with serialization.config.patch({"load.calculate_storage_offsets": True}):
        back = torch.load(tmp_path / "a.pt", weights_only=True, mmap=True)
    assert [each.tolist() for each in back.values()] == [[1.0], [2.0, 3.0]]
