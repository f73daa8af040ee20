"""Checkpoints of Orbax are read with tensorstore as they were saved, and damage is reported."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
import tensorstore

from weightctl import convert, open_weights
from weightctl.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable

FIXTURES = Path(__file__).parents[2] / "fixtures" / "orbax"
EXPECTED = {
    "params.dense.kernel": np.arange(12, dtype=np.float32).reshape(3, 4),
    "params.dense.bias": np.arange(4).astype(ml_dtypes.bfloat16),
    "params.layers.0": np.full((2, 2), 7, np.int32),
    "params.layers.1": np.zeros((), np.float16),
    "step": np.int64(7),
    "rate": np.float64(0.5),
}


@pytest.mark.parametrize("layout", ["ocdbt", "zarr", "zarr3"])
def test_arrays_are_those_that_were_saved(layout: str, tmp_path: Path) -> None:
    tree = open_weights(FIXTURES / layout)
    assert {*tree.header.tensors} == {*EXPECTED}
    convert(FIXTURES / layout, tmp_path / "m.safetensors")
    copy = open_weights(tmp_path / "m.safetensors")
    for name, values in EXPECTED.items():
        for found in (tree, copy):
            np.testing.assert_array_equal(np.asarray(found[name]), values)


def describe(names: dict[str, Any], **flags: Any) -> str:
    """Return the metadata of a tree whose names are keys, with the type of each value."""
    return json.dumps({
        "tree_metadata": {
            str((name,)): {
                "key_metadata": [{"key": name, "key_type": 2}],
                "value_metadata": {"value_type": kind, "skip_deserialize": False},
            } for name, kind in names.items()
        },
        **flags,
    })  # fmt: skip


def write(folder: Path, values: np.ndarray[Any, Any], chunks: list[int]) -> None:
    """Write an array named `a` in chunks, as directories of zarr."""
    spec = {
        "driver": "zarr",
        "kvstore": {"driver": "file", "path": f"{folder}/a/"},
        "metadata": {"shape": list(values.shape), "chunks": chunks, "dtype": values.dtype.str},
    }
    tensorstore.open(spec, create=True).result().write(values).result()
    flags = {"use_ocdbt": False, "store_array_data_equal_to_fill_value": True}
    (folder / "_METADATA").write_text(describe({"a": "jax.Array", "b": "string"}, **flags))


def test_any_range_of_bytes_is_read_from_its_chunks(tmp_path: Path) -> None:
    values = np.arange(7 * 11 * 5, dtype="<i4").reshape(7, 11, 5)
    write(tmp_path, values, [2, 4, 5])
    tree = open_weights(tmp_path)
    assert tree.header.leaves["b"].kind == "string"
    raw = values.tobytes()
    for start, stop in ((0, len(raw)), (4, 8), (100, 1000), (len(raw) - 8, len(raw))):
        part = bytearray(stop - start)
        tree.source.read_into("a", start, memoryview(part))
        assert bytes(part) == raw[start:stop]


def test_a_missing_chunk_is_not_read_as_zeros(tmp_path: Path) -> None:
    write(tmp_path, np.ones((4, 4), np.float32), [2, 4])
    (tmp_path / "a" / "1.0").unlink()
    tree = open_weights(tmp_path)
    with pytest.raises(FormatError, match="values of `a` cannot be read"):
        np.asarray(tree["a"])


def test_the_item_of_a_step_is_found_and_steps_are_named(tmp_path: Path) -> None:
    step = tmp_path / "3"
    step.mkdir()
    (step / "_CHECKPOINT_METADATA").write_text("{}")
    shutil.copytree(FIXTURES / "ocdbt", step / "state")
    assert "step" in open_weights(step).header.tensors
    with pytest.raises(FormatError, match="its directory `3` contains a checkpoint"):
        open_weights(tmp_path)


def _cut_metadata(folder: Path) -> None:
    (folder / "_METADATA").write_text('{"tree_metadata": {')


def _empty_metadata(folder: Path) -> None:
    (folder / "_METADATA").write_text("{}")


def _lose_manifest(folder: Path) -> None:
    (folder / "manifest.ocdbt").unlink()


def _cut_manifest(folder: Path) -> None:
    content = (folder / "manifest.ocdbt").read_bytes()
    (folder / "manifest.ocdbt").write_bytes(content[:-7])


def _name_outside(folder: Path) -> None:
    (folder / "_METADATA").write_text(describe({"../../etc": "jax.Array"}))


def _name_missing(folder: Path) -> None:
    (folder / "_METADATA").write_text(describe({"missing": "jax.Array"}))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_cut_metadata, "it does not describe the arrays"),
        (_empty_metadata, "it does not describe the arrays"),
        (_lose_manifest, r"the file manifest\.ocdbt of the Orbax checkpoint is missing"),
        (_cut_manifest, "of the Orbax checkpoint cannot be opened"),
        (_name_outside, r"the name of an array is invalid: '../../etc'"),
        (_name_missing, "the array `missing` of the Orbax checkpoint cannot be opened"),
    ],
)
def test_damaged_checkpoints_are_refused(
    change: Callable[[Path], None], reason: str, tmp_path: Path
) -> None:
    shutil.copytree(FIXTURES / "ocdbt", tmp_path / "in")
    change(tmp_path / "in")
    with pytest.raises(FormatError, match=reason):
        open_weights(tmp_path / "in")


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorstore", None)
    with pytest.raises(FormatError, match="needs the package tensorstore") as raised:
        open_weights(FIXTURES / "ocdbt")
    assert raised.value.hint == "install it: `pip install 'tensorstore>=0.1.75'`"
