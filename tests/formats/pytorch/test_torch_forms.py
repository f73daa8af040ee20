"""Checkpoints in every form that torch has written are read as torch reads them."""

from __future__ import annotations

import io
import pickle
import struct
import tarfile
import zipfile
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn

from torch_checkpoints import FORMS, assert_same, content_of, contents_of, saved
from weightctl import open_weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
    pytest.mark.filterwarnings("ignore:`torch.jit"),
    pytest.mark.filterwarnings("ignore:.*quantize.*deprecated"),
]
PROTOCOLS = range(6)


def state() -> dict[str, Any]:
    """Return a state dict with all that a form could get wrong."""
    matrix = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    return OrderedDict(
        {
            "weight": matrix,
            "tied": matrix,
            "turned": matrix.t(),
            "part": matrix[1:3, 1],
            "half": torch.arange(7, dtype=torch.float16),
            "flags": torch.tensor([True, False, True]),
            "count": torch.tensor(12345678901234),
            "none": torch.zeros(0, 3),
            "ünïcode": torch.arange(3, dtype=torch.uint8),
        }
    )


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("form", FORMS)
def test_every_protocol_in_every_form(tmp_path: Path, form: str, protocol: int) -> None:
    path = tmp_path / "state.pt"
    weights = saved(path, state(), form, pickle_protocol=protocol)
    assert_same(weights, torch.load(path, weights_only=False) if protocol else state())
    assert weights.header.aliases == {"tied": "weight"}
    assert weights.header.notes == ()


def test_the_zip_is_the_one_that_torch_takes_only_weights_from(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    assert_same(saved(path, state()), torch.load(path, weights_only=True, mmap=True))


@pytest.mark.parametrize("alignment", [64, 4096])
def test_storages_are_found_whatever_they_are_aligned_to(tmp_path: Path, alignment: int) -> None:
    from torch.utils.serialization import config

    with config.patch("save.storage_alignment", alignment):
        weights = saved(tmp_path / "state.pt", state())
    assert_same(weights, state())
    assert weights.header.extents["weight"].offset % alignment == 0


def test_a_zip_that_another_tool_wrote_again_is_read(tmp_path: Path) -> None:
    saved(tmp_path / "state.pt", state())
    with (
        zipfile.ZipFile(tmp_path / "state.pt") as source,
        zipfile.ZipFile(tmp_path / "again.pt", "w", zipfile.ZIP_STORED) as target,
    ):
        for name in sorted(source.namelist(), reverse=True):
            target.writestr(name.replace("state/", "any name/"), source.read(name))
    assert_same(open_weights(tmp_path / "again.pt"), state())


@pytest.mark.parametrize("order", ["big", "little", None])
def test_numbers_are_in_the_byte_order_that_the_zip_says(tmp_path: Path, order: str | None) -> None:
    tensors = {
        "f32": torch.randn(3, 5),
        "turned": torch.randn(4, 6).t(),
        "f64": torch.randn(3).double(),
        "bf16": torch.randn(9).bfloat16(),
        "u8": torch.arange(5, dtype=torch.uint8),
        "i64": torch.arange(4),
        "c64": torch.randn(3, dtype=torch.complex64),
    }
    path, swapped = tmp_path / "little.pt", tmp_path / "other.pt"
    arrays = {"array": np.arange(5.0), "big array": np.arange(5, dtype=">i4")}
    torch.save({**tensors, **arrays}, path)
    widths = {
        str(number): tensor.dtype.itemsize // (2 if tensor.is_complex() else 1)
        for number, tensor in enumerate(tensors.values())
    }
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(swapped, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name.endswith("/byteorder"):
                if order is None:
                    continue
                content = order.encode()
            if "/data/" in name and order == "big":
                width = widths[name.rpartition("/")[2]]
                content = np.frombuffer(content, f"u{width}").byteswap().tobytes()
            target.writestr(name, content)
    expected = torch.load(swapped, weights_only=False)
    numbers = {
        name: torch.from_numpy(array.astype(array.dtype.newbyteorder("=")))
        for name, array in arrays.items()
    }
    assert all(torch.equal(expected[name], tensor) for name, tensor in tensors.items())
    weights = open_weights(swapped)
    assert_same(weights, {**tensors, **numbers})
    assert weights.header.big_endian == (order == "big")


# Streams.


def test_numbers_of_a_stream_are_where_it_says_however_many_storages_there_are(
    tmp_path: Path,
) -> None:
    tensors = {str(n): torch.full((n % 7,), n, dtype=torch.int16) for n in range(300)}
    assert_same(saved(tmp_path / "many.pt", tensors, "stream"), tensors)


def test_a_stream_with_views_of_storages_as_torch_0_3_wrote_them_is_read(tmp_path: Path) -> None:
    """A storage that is a part of another was written with its place in that."""
    whole = torch.arange(10.0)
    stream = io.BytesIO()
    pickle.dump(0x1950A86A20F9469CFC6C, stream, 2)
    pickle.dump(1001, stream, 2)
    pickle.dump({"little_endian": True}, stream, 2)

    class View:
        def __init__(self, count: int, view: Any) -> None:
            self.identity = ("storage", torch.FloatStorage, "77", "cpu", 10, view)
            self.count = count

        def __reduce__(self) -> Any:
            arguments = (Stored(self.identity), 0, (self.count,), (1,), False, OrderedDict())
            return torch._utils._rebuild_tensor_v2, arguments

    class Stored:
        def __init__(self, identity: Any) -> None:
            self.identity = identity

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> Any:
            return value.identity if isinstance(value, Stored) else None

    Pickler(stream, 2).dump({"whole": View(10, None), "part": View(4, ("78", 3, 4))})
    pickle.dump(["77"], stream, 2)
    stream.write(struct.pack("<q", 10) + whole.numpy().tobytes())
    (tmp_path / "old.pt").write_bytes(stream.getvalue())
    expected = torch.load(tmp_path / "old.pt", weights_only=True)
    assert torch.equal(expected["part"], whole[3:7])
    assert_same(open_weights(tmp_path / "old.pt"), expected)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.second = nn.Linear(4, 2)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.filterwarnings("ignore:Couldn't retrieve source code")
def test_a_stream_that_holds_the_classes_of_its_modules_is_read(
    tmp_path: Path, protocol: int
) -> None:
    net = Net()
    weights = saved(tmp_path / "net.pt", net, "stream", pickle_protocol=protocol)
    assert_same(weights, net.state_dict())


# The tar of torch 0.1.


def tar_of(tensors: dict[str, torch.Tensor], views: list[tuple[int, int, int, int]]) -> bytes:
    """Write the form of before streams by hand, after `legacy_load` in torch/serialization.py."""
    storages, rows, keys = io.BytesIO(), io.BytesIO(), {}
    pickle.dump(len(tensors), storages, 2)
    pickle.dump(len(tensors), rows, 2)
    for number, (name, tensor) in enumerate(tensors.items()):
        storage, key = tensor.untyped_storage(), 100 + number
        kind = getattr(torch, tensor.type().removeprefix("torch.").replace("Tensor", "Storage"))
        pickle.dump((key, "cpu", kind), storages, 2)
        storages.write(struct.pack("<q", len(storage) // tensor.itemsize) + bytes(storage))
        keys[name] = 200 + number
        viewed = next((target for target, root, *_ in views if root == key), key)
        pickle.dump((keys[name], viewed, getattr(torch, tensor.type()[6:])), rows, 2)
        rank = tensor.dim()
        numbers = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
        rows.write(struct.pack(f"<ii{2 * rank + 1}q", rank, 0, *numbers))
    pickle.dump(views, storages, 2)

    class Kept:
        def __init__(self, key: int) -> None:
            self.key = key

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> Any:
            return str(value.key) if isinstance(value, Kept) else None

    content = io.BytesIO()
    Pickler(content, 2).dump({**{name: Kept(key) for name, key in keys.items()}, "epoch": 3})
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:", format=tarfile.PAX_FORMAT) as tar:
        for name, raw in {"storages": storages, "tensors": rows, "pickle": content}.items():
            info = tarfile.TarInfo(name)
            info.size = len(raw.getvalue())
            tar.addfile(info, io.BytesIO(raw.getvalue()))
    return packed.getvalue()


def test_the_tar_of_torch_0_1_is_read(tmp_path: Path) -> None:
    tensors = {
        "weight": torch.randn(4, 3),
        "turned": torch.arange(12).view(3, 4).t(),
        "part": torch.randn(10)[3:7],
        "bytes": torch.arange(5, dtype=torch.uint8),
        "half": torch.randn(3).half(),
    }
    path = tmp_path / "old.tar"
    path.write_bytes(tar_of(tensors, []))
    loaded = torch.load(path, weights_only=False)
    assert loaded.pop("epoch") == 3
    weights = open_weights(path)
    assert_same(weights, loaded)
    assert weights.metadata["epoch"].content == 3


def test_a_storage_of_the_tar_that_is_part_of_another_is_read(tmp_path: Path) -> None:
    whole = torch.arange(10.0)
    path = tmp_path / "old.tar"
    path.write_bytes(tar_of({"part": whole[:4]}, [(300, 100, 3, 7)]))
    loaded = torch.load(path, weights_only=False)
    loaded.pop("epoch")
    assert torch.equal(loaded["part"], whole[3:7])
    assert_same(open_weights(path), loaded)


# TorchScript.


class Scripted(nn.Module):
    """What TorchScript keeps: modules, parameters, buffers, plain tensors, other attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(3, 3), nn.Conv1d(2, 4, 3)])
        self.norm = nn.BatchNorm1d(3)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.tied = self.blocks[0].weight
        self.register_buffer("steps", torch.arange(4))
        self.sizes = [1, 2, 3]
        self.name = "net"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x) * self.scale + self.tied.sum() + len(self.sizes)


SCRIPTS: dict[str, Callable[[nn.Module], Any]] = {
    "script": torch.jit.script,
    "trace": lambda net: torch.jit.trace(net, torch.randn(2, 3)),
}


@pytest.mark.parametrize("how", SCRIPTS)
def test_a_torchscript_archive_has_the_names_of_its_state_dict(tmp_path: Path, how: str) -> None:
    module = SCRIPTS[how](Scripted().eval())
    torch.jit.save(module, tmp_path / "net.pt")
    weights = open_weights(tmp_path / "net.pt")
    state = torch.jit.load(tmp_path / "net.pt").state_dict()
    assert_same(weights, state)
    assert weights.header.notes == ("a TorchScript archive: its weights are read, its code is not",)


# Where a tensor was.


@pytest.mark.parametrize("place", ["cuda:0", "cuda:13", "mps", "xpu:1", "privateuseone:0", "hpu"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_the_device_that_a_tensor_was_on_does_not_matter(
    tmp_path: Path, form: str, protocol: int, place: str
) -> None:
    path = tmp_path / "state.pt"
    saved(path, state(), form, pickle_protocol=protocol)

    def moved(raw: bytes) -> bytes:
        # What a frame says of its length is read by nobody.
        short, long = b"\x8c\x03cpu", b"X\x03\x00\x00\x00cpu"
        name = place.encode()
        raw = raw.replace(short, b"\x8c" + bytes([len(name)]) + name)
        raw = raw.replace(long, b"X" + len(name).to_bytes(4, "little") + name)
        return raw.replace(b"'cpu'", b"'" + name + b"'")

    if form == "stream":
        (tmp_path / "moved.pt").write_bytes(moved(path.read_bytes()))
    else:
        with zipfile.ZipFile(path) as source, zipfile.ZipFile(tmp_path / "moved.pt", "w") as target:
            for name in source.namelist():
                raw = source.read(name)
                target.writestr(name, moved(raw) if name.endswith(".pkl") else raw)
    assert place.encode() in (tmp_path / "moved.pt").read_bytes()
    assert_same(open_weights(tmp_path / "moved.pt"), state())


# Plain pickles.


ARRAYS = {
    "c": np.arange(12.0).reshape(3, 4),
    "fortran": np.asfortranarray(np.arange(24, dtype="f4").reshape(2, 3, 4)),
    "turned": np.arange(12).reshape(3, 4).T,
    "steps": np.arange(20)[::3],
    "big": np.arange(6, dtype=">i4"),
    "big fortran": np.asfortranarray(np.arange(6, dtype=">f8").reshape(2, 3)),
    "big complex": np.array([1 + 2j, 3 - 4j], ">c16"),
    "scalar": np.array(2.5),
    "empty": np.zeros((0, 3), "f2"),
    "flags": np.array([True, False]),
    **{
        code: np.arange(5).astype(code)
        for code in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16")
    },
}


def native(array: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(array, array.dtype.newbyteorder("="), order="C"))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_arrays_in_a_plain_pickle_are_tensors(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "arrays.pkl"
    path.write_bytes(pickle.dumps({**ARRAYS, "again": ARRAYS["c"]}, protocol))
    weights = open_weights(path)
    assert_same(
        weights, {name: native(each) for name, each in {**ARRAYS, "again": ARRAYS["c"]}.items()}
    )
    assert weights.header.aliases == {"again": "c"}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_array_by_itself_is_the_tree_itself(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "array.pkl"
    path.write_bytes(pickle.dumps(ARRAYS["fortran"], protocol))
    assert_same(open_weights(path), {"": native(ARRAYS["fortran"])})


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_arrays_in_a_checkpoint_are_tensors(tmp_path: Path, form: str, protocol: int) -> None:
    tensor = torch.randn(3)
    content = {"tensor": tensor, **ARRAYS}
    weights = saved(tmp_path / "arrays.pt", content, form, pickle_protocol=protocol)
    assert_same(weights, {"tensor": tensor, **{name: native(a) for name, a in ARRAYS.items()}})


def test_arrays_of_ml_dtypes_are_tensors(tmp_path: Path) -> None:
    import ml_dtypes

    names = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e8m0fnu")
    arrays = {name: np.arange(1, 9).astype(getattr(ml_dtypes, name)) for name in names}
    for protocol in PROTOCOLS:
        (tmp_path / "arrays.pkl").write_bytes(pickle.dumps(arrays, protocol))
        found = contents_of(open_weights(tmp_path / "arrays.pkl"))
        for name, array in arrays.items():
            expected = torch.from_numpy(array.view(f"u{array.itemsize}")).view(getattr(torch, name))
            assert found[name] == content_of(expected)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_tensors_in_a_plain_pickle_are_read_where_their_streams_are(
    tmp_path: Path, protocol: int
) -> None:
    path = tmp_path / "plain.pkl"
    path.write_bytes(pickle.dumps({"inner": dict(state()), "bare": torch.ones(2)}, protocol))
    with path.open("rb") as file:
        loaded = pickle.load(file)
    expected = {f"inner.{name}": each for name, each in loaded["inner"].items()}
    weights = open_weights(path)
    assert_same(weights, {**expected, "bare": loaded["bare"]})
    assert weights.header.aliases == {"inner.tied": "inner.weight"}
    held = {name for name, extent in weights.header.extents.items() if extent.held is not None}
    assert held == (set() if protocol > 2 else set(weights.header.tensors))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_kind_of_tensor_in_a_plain_pickle_is_read(tmp_path: Path, protocol: int) -> None:
    tensors = {
        "parameter": nn.Parameter(torch.randn(3)),
        "eight": torch.randn(4).to(torch.float8_e5m2),
        "u16": torch.arange(4).to(torch.uint16),
        "expanded": torch.arange(3.0).expand(2, 3),
        "q": torch.quantize_per_tensor(torch.randn(4), 0.5, 0, torch.qint8),
    }
    path = tmp_path / "plain.pkl"
    path.write_bytes(pickle.dumps(tensors, protocol))
    assert_same(open_weights(path), tensors)


def test_a_plain_pickle_inside_a_zip_of_the_other_byte_order_is_read(tmp_path: Path) -> None:
    """A stream is always little-endian, whatever the zip around it is."""
    inner = pickle.dumps({"w": torch.arange(4.0), "t": torch.arange(6.0).view(2, 3).t()}, 4)
    for order in ("little", "big"):
        with zipfile.ZipFile(tmp_path / "x.pt", "w") as target:
            target.writestr("x/data.pkl", inner)
            target.writestr("x/byteorder", order)
        expected = {"w": torch.arange(4.0), "t": torch.arange(6.0).view(2, 3).t()}
        assert_same(open_weights(tmp_path / "x.pt"), expected)


def test_a_stream_inside_a_stream_inside_a_pickle_is_a_leaf(tmp_path: Path) -> None:
    inner = io.BytesIO()
    torch.save({"w": torch.ones(2)}, inner, _use_new_zipfile_serialization=False)

    class Odd:
        def __reduce__(self) -> Any:
            return torch.storage._load_from_bytes, (inner.getvalue(),)

    (tmp_path / "odd.pkl").write_bytes(pickle.dumps({"odd": Odd(), "even": torch.ones(3)}, 4))
    weights = open_weights(tmp_path / "odd.pkl")
    assert_same(weights, {"even": torch.ones(3)})
    assert weights.header.leaves["odd"].kind == "torch.Tensor"


def test_what_follows_a_pickle_is_told(tmp_path: Path) -> None:
    path = tmp_path / "two.pkl"
    path.write_bytes(pickle.dumps({"a": np.arange(3)}) + pickle.dumps({"b": np.arange(4)}))
    weights = open_weights(path)
    assert list(weights.header.tensors) == ["a"]
    (note,) = weights.header.notes
    assert "follow the first pickle" in note
