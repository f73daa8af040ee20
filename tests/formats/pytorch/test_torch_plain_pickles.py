"""Arrays and tensors written by `pickle` itself, within checkpoints and alone."""

from __future__ import annotations

import io
import pickle
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from torch import nn

from lazy import torch
from torch_checkpoints import FORMS, PROTOCOLS, assert_same, content_of, contents_of, saved, state
from weightctl import open_weights

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
    pytest.mark.filterwarnings("ignore:.*quantize.*deprecated"),
]


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


def test_what_follows_a_pickle_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "two.pkl"
    path.write_bytes(pickle.dumps({"a": np.arange(3)}) + pickle.dumps({"b": np.arange(4)}))
    weights = open_weights(path)
    assert list(weights.header.tensors) == ["a"]
    (note,) = weights.header.notes
    assert "bytes after the first pickle are not read" in note
