"""Checkpoints in every format that torch has written are read as torch reads them."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from torch import nn

from each import each
from lazy import torch
from torch_checkpoints import FORMS, PROTOCOLS, assert_same, saved, state
from weightctl import open_weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
    pytest.mark.filterwarnings("ignore:`torch.jit"),
    pytest.mark.filterwarnings("ignore:.*quantize.*deprecated"),
]


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


# TorchScript.


class Scripted(nn.Module):
    """A TorchScript module with all that it can store: modules, parameters, buffers, attributes."""

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


# Devices.


@each("place", ["cuda:0", "cuda:13", "mps", "xpu:1", "privateuseone:0", "hpu"])
@each("form", FORMS)
@each("protocol", [0, 2, 4])
def test_the_device_that_a_tensor_was_on_does_not_matter(
    tmp_path: Path, form: str, protocol: int, place: str
) -> None:
    path = tmp_path / "state.pt"
    saved(path, state(), form, pickle_protocol=protocol)

    def moved(raw: bytes) -> bytes:
        # The length in a frame is not updated, because no reader uses it.
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
