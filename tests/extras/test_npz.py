"""Archives of arrays of NumPy and MLX are read in place, and nothing in them is unpickled."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np
import pytest

from weightctl import convert, open_weights
from weightctl.errors import ConversionError, FormatError
from weightctl.weights.info import Leaf

if TYPE_CHECKING:
    from pathlib import Path


def test_arrays_of_numpy_equal_what_numpy_loads(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    arrays = {
        "rows": np.arange(12, dtype=np.float32).reshape(3, 4),
        "columns": np.asfortranarray(np.arange(24, dtype=np.int16).reshape(2, 3, 4)),
        "scalar": np.float64(2.5),
        "empty": np.zeros((0, 3), np.uint8),
        "layer.0.flag": np.array([True, False]),
    }
    np.savez(path, allow_pickle=False, **arrays)
    tree = open_weights(path)
    assert {name: info.encoding.name for name, info in tree.header.tensors.items()} == {
        "rows": "F32", "columns": "I16", "scalar": "F64", "empty": "U8", "layer.0.flag": "BOOL",
    }  # fmt: skip
    for name, array in arrays.items():
        np.testing.assert_array_equal(np.asarray(tree[name]), array)


def test_big_endian_arrays_are_swapped(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", a=np.arange(5, dtype=">f4"), b=np.arange(3, dtype="u1"))
    tree = open_weights(tmp_path / "a.npz")
    np.testing.assert_array_equal(np.asarray(tree["a"]), np.arange(5))
    np.savez(tmp_path / "b.npz", a=np.arange(5, dtype=">f4"), b=np.arange(5, dtype="<f4"))
    with pytest.raises(FormatError, match="different byte orders"):
        open_weights(tmp_path / "b.npz")


def test_arrays_of_mlx_keep_bfloat16(tmp_path: Path) -> None:
    path = tmp_path / "m.npz"
    mx.savez(str(path), **{"w.weight": mx.array([[1.5, -2.0]], mx.bfloat16), "n": mx.arange(3)})
    tree = open_weights(path)
    assert tree.header.tensors["w.weight"].encoding.name == "BF16"
    assert "are read as BF16" in tree.header.notes[0]
    np.testing.assert_array_equal(np.asarray(tree["n"]), [0, 1, 2])
    convert(path, tmp_path / "m.safetensors")
    loaded = mx.load(str(tmp_path / "m.safetensors"))
    assert mx.array_equal(loaded["w.weight"], mx.array([[1.5, -2.0]], mx.bfloat16))


def test_arrays_of_objects_are_not_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", a=np.array([{}], dtype=object), b=np.zeros(2))
    header = open_weights(tmp_path / "a.npz").header
    assert ([*header.tensors], header.leaves) == (["b"], {"a": Leaf("numpy.ndarray", "|O [1]")})


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"nothing", "`a.npy` is not an array of NumPy"),
        (b"\x93NUMPY\1\0\xff\xff{}", "the header of `a.npy` is too long"),
        (b"\x93NUMPY\1\0\x0c\0{'shape':()}", None),
        (b"\x93NUMPY\1\0\x04\0exec", "the header of `a.npy` is invalid"),
        (
            b"\x93NUMPY\1\0\x24\0{'descr':'<f4','shape':(9999,)}      ",
            "`a` needs 39996 bytes, but the file has 1",
        ),
    ],
)
def test_damaged_arrays_are_refused(content: bytes, reason: str | None, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("a.npy", content)
    if reason is None:
        assert open_weights(tmp_path / "a.npz").header.leaves["a"].look == "structured []"
        return
    with pytest.raises(FormatError, match=reason):
        open_weights(tmp_path / "a.npz")


def test_npz_is_not_written(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", a=np.zeros(2))
    with pytest.raises(ConversionError, match=r"weightctl does not write \.npz"):
        convert(tmp_path / "a.npz", tmp_path / "b.npz")
