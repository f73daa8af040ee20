"""Tensors of every dtype, and all kinds of views of them, have the same bytes as in torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from each import each
from lazy import torch
from torch_checkpoints import FORMS, assert_same, contents_of, saved
from weightctl import open_weights
from weightctl.dtype import ENCODINGS

if TYPE_CHECKING:
    from pathlib import Path

PLAIN = [
    str(e.ids["pytorch"]) for e in ENCODINGS.values() if "pytorch" in e.ids and e.name[0] != "Q"
]
pytestmark = [
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental"),
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
    pytest.mark.filterwarnings("ignore:.*quantize.*deprecated"),
]


def numbers(name: str, count: int) -> torch.Tensor:
    """Return values of all kinds, created from bytes."""
    dtype: torch.dtype = getattr(torch, name)
    random = torch.Generator().manual_seed(count)
    top = 2 if dtype is torch.bool else 256
    raw = torch.randint(0, top, (count * dtype.itemsize,), generator=random, dtype=torch.uint8)
    return raw.view(dtype)


def views(name: str) -> dict[str, torch.Tensor]:
    whole = numbers(name, 240)
    box = whole.view(4, 6, 10)
    return {
        "whole": whole,
        "box": box,
        "scalar": numbers(name, 1)[0],
        "scalar of many": whole[7],
        "empty": whole[:0],
        "empty rows": whole[:0].view(0, 3),
        "empty columns": box[:, :, :0],
        "offset": whole[11:],
        "middle": box[1:3],
        "transposed": box[0].t(),
        "permuted": box.permute(2, 0, 1),
        "columns": box[..., 2:7],
        "steps": whole[3:200:7],
        "steps both ways": box[::2, 1::3, ::4],
        "expanded": box[0, :1].expand(5, 10),
        "expanded inside": box[:, :1, :1].expand(4, 3, 2),
        "one": box[1:2, 2:3, 3:4],
        "flat one": whole.view(1, 240, 1),
        "overlapping": whole.as_strided((5, 4), (2, 1), 3),
        "odd strides of one": whole.as_strided((1, 5), (77, 1)),
    }


@each("form", FORMS)
@each("name", PLAIN)
def test_views_of_every_dtype_are_read_as_torch_reads_them(
    tmp_path: Path, name: str, form: str
) -> None:
    path = tmp_path / "views.pt"
    weights = saved(path, views(name), form)
    # torch writes streams with dtypes that are newer than streams, but cannot read them.
    is_young = form == "stream" and getattr(torch, name) in torch.storage._new_dtypes()
    assert_same(weights, views(name) if is_young else torch.load(path, weights_only=True))
    assert weights.header.notes == ()


@pytest.mark.parametrize("name", ["float32", "bfloat16", "complex64", "float4_e2m1fn_x2"])
def test_any_part_of_a_view_is_read_by_itself(tmp_path: Path, name: str) -> None:
    weights = saved(tmp_path / "views.pt", views(name))
    whole = contents_of(weights)
    for tensor, info in weights.header.tensors.items():
        width, size = info.encoding.size, info.nbytes
        for start in range(0, size, width * 7):
            for stop in {min(start + width * step, size) for step in (1, 5, 13, 100)}:
                part = bytearray(stop - start)
                weights.source.read_into(tensor, start, memoryview(part))
                assert part == whole[tensor][2][start:stop], (tensor, start, stop)


def test_a_tensor_of_many_dimensions_in_any_order_is_read(tmp_path: Path) -> None:
    cube = torch.arange(4**9, dtype=torch.int32).view([4] * 9)
    tensors = {"cube": cube, "turned": cube.permute(8, 2, 4, 0, 6, 1, 7, 3, 5)}
    assert_same(saved(tmp_path / "cube.pt", tensors), tensors)
    many = {"many": torch.zeros([1] * 60 + [3])}
    assert_same(saved(tmp_path / "many.pt", many), many)


QUANTIZED = {
    "qint8": lambda t: torch.quantize_per_tensor(t, 0.25, 3, torch.qint8),
    "quint8": lambda t: torch.quantize_per_tensor(t, 0.5, 7, torch.quint8),
    "qint32": lambda t: torch.quantize_per_tensor(t, 0.125, 0, torch.qint32),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized_tensors_are_named_as_such_and_their_scales_are_below_them(
    tmp_path: Path, name: str, form: str
) -> None:
    tensor = QUANTIZED[name](torch.randn(3, 8))
    weights = saved(tmp_path / "q.pt", {"w": tensor, "t": tensor.t()}, form)
    assert_same(weights, {"w": tensor, "t": tensor.t()})
    leaves = weights.header.leaves
    assert weights.w.info.encoding.name == name.upper()
    assert leaves["w.qscheme"] == ("torch.qscheme", "torch.per_tensor_affine")
    assert leaves["w.scale"] == ("float", str(tensor.q_scale()))
    assert leaves["w.zero_point"] == ("int", str(tensor.q_zero_point()))


def channels(dtype: torch.dtype) -> torch.Tensor:
    scales, zeros = torch.rand(3) + 0.1, torch.arange(3)
    if dtype is torch.quint4x2:
        return torch.quantize_per_channel(
            torch.randn(3, 8), scales, zeros.float(), 0, torch.quint4x2
        )
    return torch.quantize_per_channel(torch.randn(3, 8), scales, zeros, 0, dtype)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "dtype", [torch.qint8, torch.quint8, torch.qint32, torch.quint4x2], ids=str
)
def test_tensors_quantized_by_channel_have_their_scales_below_them(
    tmp_path: Path, dtype: torch.dtype, form: str
) -> None:
    tensor = channels(dtype)
    weights = saved(tmp_path / "q.pt", {"w": tensor}, form)
    below = {
        "w": tensor,
        "w.scales": tensor.q_per_channel_scales(),
        "w.zero_points": tensor.q_per_channel_zero_points(),
    }
    assert_same(weights, below)
    assert weights.w.info.encoding.name == str(dtype).removeprefix("torch.").upper()
    assert weights.header.leaves["w.axis"] == ("int", "0")


@pytest.mark.parametrize("dtype", ["bits8", "bits16", "bits2x4"])
def test_a_tensor_of_a_type_that_is_not_known_is_a_leaf_and_the_rest_is_read(
    tmp_path: Path, dtype: str
) -> None:
    odd = torch.zeros(4, dtype=torch.int16).view(torch.uint8).view(getattr(torch, dtype))
    weights = saved(tmp_path / "odd.pt", {"odd": odd, "even": torch.ones(2)})
    assert_same(weights, {"even": torch.ones(2)})
    assert weights.header.leaves["odd"].kind == "torch.Tensor"
    assert weights.header.notes == ("tensors of unsupported types, which are not read: odd",)


def test_meta_tensors_are_leaves_without_data(tmp_path: Path) -> None:
    weights = saved(
        tmp_path / "meta.pt", {"w": torch.empty(3, 4, device="meta"), "b": torch.ones(1)}
    )
    assert_same(weights, {"b": torch.ones(1)})
    assert weights.header.leaves["w"] == ("torch.Tensor", "meta, without data")
    assert weights.header.notes == ()


def test_tensors_over_one_storage_are_read_where_each_is(tmp_path: Path) -> None:
    whole = torch.arange(1000.0)
    tensors = {"small": whole[500:503], "whole": whole, "again": whole[500:503]}
    weights = saved(tmp_path / "shared.pt", tensors)
    assert_same(weights, tensors)
    assert weights.header.aliases == {"again": "small"}
    extents = weights.header.extents
    assert extents["small"].offset == extents["whole"].offset + 2000


@pytest.mark.parametrize("form", FORMS)
def test_a_small_part_of_a_large_storage_is_small(tmp_path: Path, form: str) -> None:
    tensors = {"w": torch.arange(10_000)[77:79]}
    weights = saved(tmp_path / "part.pt", tensors, form)
    assert_same(weights, tensors)
    assert weights.header.extents["w"].nbytes == 16


@pytest.mark.parametrize("form", FORMS)
def test_tied_parameters_are_one_tensor_under_several_names(tmp_path: Path, form: str) -> None:
    tied = torch.nn.Parameter(torch.randn(4, 3))
    tensors = {"embed": tied, "head": tied, "view": tied[:2], "same values": tied.clone()}
    weights = saved(tmp_path / "tied.pt", tensors, form)
    assert_same(weights, tensors)
    assert weights.header.aliases == {"head": "embed"}
    assert weights.header.tensors.keys() == {"embed", "view", "same values"}


def test_empty_tensors_of_one_storage_are_not_tied(tmp_path: Path) -> None:
    none = torch.zeros(0)
    tensors = {"a": none[:0], "b": none[:0], "c": torch.zeros(0, 4)}
    weights = saved(tmp_path / "empty.pt", tensors)
    assert_same(weights, tensors)
    assert weights.header.aliases == {}


def test_storages_by_themselves_are_flat_tensors(tmp_path: Path) -> None:
    numbers, raw = torch.arange(6.0), torch.arange(5, dtype=torch.uint8)
    content = {"typed": numbers.storage(), "bytes": raw.untyped_storage(), "same": numbers}
    weights = saved(tmp_path / "storages.pt", content)
    assert_same(weights, {"typed": numbers, "bytes": raw, "same": numbers})
    assert_same(saved(tmp_path / "stream.pt", numbers.storage(), "stream"), {"": numbers})


def test_a_bare_tensor_is_the_tree_itself(tmp_path: Path) -> None:
    tensor = torch.randn(3, 5)
    weights = saved(tmp_path / "bare.pt", tensor)
    assert_same(weights, {"": tensor})
    assert weights.name == ""
    assert torch.equal(
        torch.from_numpy(open_weights(tmp_path / "bare.pt").data().to_numpy()), tensor
    )
