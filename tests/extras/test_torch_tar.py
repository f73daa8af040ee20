"""The tar files of the first versions of torch are read as torch reads them."""

from __future__ import annotations

import io
import pickle
import struct
import tarfile
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from lazy import torch
from payloads import integer, many, named, storage, text, whole
from payloads import tensor as tensor_over
from torch_checkpoints import assert_same
from weightctl import open_weights
from weightctl.cli import app
from weightctl.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")


# The tar format of torch 0.1.


def tar_of(tensors: dict[str, torch.Tensor], views: list[tuple[int, int, int, int]]) -> bytes:
    """Write the tar file of early torch versions, after `legacy_load` in torch/serialization.py."""
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


# The tar format of other tools: without `tensors`, which the object creates itself.


def tar_without_tensors(tensors: Mapping[str, torch.Tensor], views: bytes = b"") -> bytes:
    """Write storages, and an object that creates tensors from them and names them by tuples."""
    storages, pairs = io.BytesIO(), []
    pickle.dump(len(tensors), storages, 2)
    for number, (name, tensor) in enumerate(tensors.items()):
        kind, key = tensor.type().replace("Tensor", "Storage"), str(number)
        entry = many(text(key), text("cpu"), named(kind))
        storages.write(whole(entry) + struct.pack("<Q", tensor.numel()))
        storages.write(tensor.numpy().tobytes())
        stored = storage(key, tensor.numel(), kind).removesuffix(b"Q")
        shape, strides = (many(*map(integer, sizes)) for sizes in (tensor.shape, tensor.stride()))
        pairs.append(text(name) + tensor_over(stored, shape, strides) + b"\x86")
    listed = b"](" + b"".join(pairs) + b"e"
    content = whole(named("collections.OrderedDict") + listed + b"\x85R")
    system = {"protocol_version": 1000, "little_endian": True, "type_sizes": {"int": 4}}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, raw in {
            "sys_info": pickle.dumps(system, 2),
            "pickle": content,
            "storages": storages.getvalue() + views,
        }.items():
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            tar.addfile(info, io.BytesIO(raw))
    return packed.getvalue()


SEVERAL = {
    "one": {"tensor": torch.tensor([1.0, 2.5, -3.75, 0.0])},
    "matrix": {"matrix": torch.arange(12.0).view(3, 4)},
    "dtypes": {
        "float": torch.tensor([1.5, 2.5, 3.5]),
        "double": torch.tensor([1.125, 2.25], dtype=torch.float64),
        "long": torch.tensor([10, -20, 30, 40]),
        "byte": torch.arange(5, dtype=torch.uint8),
    },
    "empty": {"none": torch.zeros(0, 3), "some": torch.ones(2)},
}


@pytest.mark.parametrize("views", [b"", b"\x80\2]."], ids=["no views", "a list of no views"])
@pytest.mark.parametrize("which", SEVERAL)
def test_a_tar_without_tensors_is_read(tmp_path: Path, which: str, views: bytes) -> None:
    path = tmp_path / "old.tar"
    path.write_bytes(tar_without_tensors(SEVERAL[which], views))
    assert_same(open_weights(path), SEVERAL[which])


def test_the_pickles_of_a_tar_without_tensors_are_scanned(tmp_path: Path) -> None:
    path = tmp_path / "old.tar"
    path.write_bytes(tar_without_tensors(SEVERAL["dtypes"]))
    done = CliRunner().invoke(app, ["ls", str(path), "--scan", "-v"])
    assert done.exit_code == 0
    assert "torch.DoubleStorage" in done.output


def test_a_tar_that_names_a_storage_of_another_length_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "old.tar"
    raw = tar_without_tensors({"a": torch.arange(4.0)})
    path.write_bytes(raw.replace(struct.pack("<Q", 4), struct.pack("<Q", 3)))
    with pytest.raises(FormatError, match="the pickle is invalid"):
        open_weights(path)
    path.write_bytes(raw.replace(b"cpu" + integer(4), b"cpu" + integer(5)))
    with pytest.raises(
        FormatError, match="storage 0 is missing, or has another type or length in the file"
    ):
        open_weights(path)


def test_a_tar_that_no_package_reads_is_refused_and_scanned(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "old.tar"
    path.write_bytes(tar_without_tensors(SEVERAL["dtypes"]))
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [])
    with pytest.raises(FormatError, match="a tar file of torch, and no installed package reads"):
        open_weights(path)
    done = CliRunner().invoke(app, ["ls", str(path), "--scan", "-v"])
    assert done.exit_code == 0
    assert "torch.DoubleStorage" in done.output
