"""Weights of Keras are read as h5py reads them, and nothing outside of the file is opened."""

from __future__ import annotations

import io
import json
import sys
import time
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import ml_dtypes
import numpy as np
import pytest

from weightctl import convert, open_weights
from weightctl.errors import ConversionError, FormatError
from weightctl.extras.keras import reader_process
from weightctl.weights.info import Leaf

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FIXTURES = Path(__file__).parents[2] / "fixtures" / "keras"
NAMES = {
    "model.keras": {
        "layers/embedding/vars/0": "layers.words.vars.0",
        "layers/dense/vars/0": "layers.up.vars.0",
        "layers/dense/vars/1": "layers.up.vars.1",
        "layers/dense_1/vars/0": "layers.down.vars.0",
        "layers/dense_1/vars/1": "layers.down.vars.1",
        **{
            f"layers/sequential/layers/{group}/vars/{number}": (
                f"layers.inner.layers.{label}.vars.{number}"
            )
            for group, label, count in (
                ("dense", "inside", 2), ("batch_normalization", "batch_normalization", 4),
            )
            for number in range(count)
        },
    },
    "model.h5": {
        "model_weights/words/words/embeddings": "words.embeddings",
        **{
            f"model_weights/{name.split('.')[0]}/{name.replace('.', '/')}": name
            for name in (
                "up.kernel", "up.bias", "down.kernel", "down.bias", "inner.inside.kernel",
                "inner.inside.bias", "inner.batch_normalization.gamma",
                "inner.batch_normalization.beta", "inner.batch_normalization.moving_mean",
                "inner.batch_normalization.moving_variance",
            )
        },
    },
}  # fmt: skip


def write(path: Path, datasets: Mapping[str, Any], **options: Any) -> Path:
    """Write a file of HDF5 with h5py."""
    with h5py.File(path, "w") as file:
        for name, values in datasets.items():
            file.create_dataset(name, data=values, **options)
    return path


@pytest.mark.parametrize("name", NAMES)
def test_files_of_keras_have_the_names_of_layers_and_the_values_of_h5py(name: str) -> None:
    path = FIXTURES / name
    content = path.read_bytes()
    if name.endswith(".keras"):
        content = zipfile.ZipFile(path).read("model.weights.h5")
    tree = open_weights(path)
    assert {*tree.header.tensors} == {*NAMES[name].values()}
    with h5py.File(io.BytesIO(content)) as file:
        for stored, own in NAMES[name].items():
            wanted = file[stored][()]
            if wanted.dtype.kind == "V":
                wanted = wanted.view(ml_dtypes.bfloat16)
            np.testing.assert_array_equal(np.asarray(tree[own]), wanted)
    assert tree.header.metadata["keras_version"].content == "3.15.1"
    assert json.loads(tree.header.metadata["model_config"].content)["class_name"] == "Functional"


@pytest.mark.usefixtures("own_children")
def test_whole_tensors_are_ranges_of_the_archive(tmp_path: Path) -> None:
    path = FIXTURES / "model.keras"
    tree = open_weights(path)
    name = "layers.words.vars.0"
    extent = tree.header.extents[name]
    raw = path.read_bytes()[extent.offset : extent.offset + extent.nbytes]
    assert raw == np.asarray(tree[name]).tobytes()
    assert tree.source.file_range(name) is not None
    convert(path, tmp_path / "m.safetensors")
    copy = open_weights(tmp_path / "m.safetensors")
    for each in tree.header.tensors:
        np.testing.assert_array_equal(np.asarray(copy[each]), np.asarray(tree[each]))


def test_layers_without_a_stated_name_get_it_from_the_config(tmp_path: Path) -> None:
    write(tmp_path / "w.h5", {"layers/dense/vars/0": [1.0], "layers/dense_1/vars/0": [2.0]})
    layers = [
        {"class_name": "Dense", "module": "keras.src.ops.numpy", "config": {"name": "not a layer"}},
        {"class_name": "Dense", "config": {"name": "first"}},
        {"class_name": "Dense", "config": {"name": "second"}},
    ]
    with zipfile.ZipFile(tmp_path / "m.keras", "w") as archive:
        archive.write(tmp_path / "w.h5", "model.weights.h5")
        archive.writestr("config.json", json.dumps({"config": {"layers": layers}}))
    assert [*open_weights(tmp_path / "m.keras").header.tensors] == [
        "layers.first.vars.0", "layers.second.vars.0",
    ]  # fmt: skip


def test_parts_are_read_by_their_list(tmp_path: Path) -> None:
    write(tmp_path / "m_00000.weights.h5", {"layers/dense/vars/0": [1.0]})
    write(tmp_path / "m_00001.weights.h5", {"layers/dense/vars/1": [2.0]})
    names = ["m_00000.weights.h5", "m_00001.weights.h5"]
    listing = tmp_path / "m.weights.json"
    listing.write_text(json.dumps({"weight_map": {"/layers/dense/vars": names}}))
    assert [*open_weights(listing).header.tensors] == ["layers.dense.vars.0", "layers.dense.vars.1"]
    (tmp_path / names[1]).unlink()
    with pytest.raises(FormatError, match=r"part 2 of 2 is missing|1 of 2"):
        open_weights(listing)
    listing.write_text(json.dumps({"weight_map": {"/a": "../m.h5"}}))
    with pytest.raises(FormatError, match=r"`\.\./m\.h5` in it is not the name of a file"):
        open_weights(listing)
    listing.write_text("[]")
    with pytest.raises(FormatError, match="it has no list of files"):
        open_weights(listing)


def test_weights_of_keras_2_have_the_names_of_their_attributes(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file.attrs["layer_names0"] = [b"dense"]
        file.attrs["layer_names1"] = [b"gru", b"other"]
        for layer, weights in {
            "dense": ["dense/kernel:0"], "gru": ["gru/cell/kernel:0", "state:0"],
            "other": ["state:0"],
        }.items():  # fmt: skip
            group = file.create_group(layer)
            group.attrs["weight_names"] = [weight.encode() for weight in weights]
            for weight in weights:
                group[weight] = np.ones(2, np.float32)
    assert {*open_weights(tmp_path / "w.h5").header.tensors} == {
        "dense.kernel", "gru.cell.kernel", "gru.state", "other.state",
    }  # fmt: skip


CHUNKS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "plain": {"chunks": (4, 5)},
    "packed": {"chunks": (4, 5), "compression": "gzip"},
    "shuffled": {"chunks": (3, 31), "compression": "gzip", "shuffle": True},
}


@pytest.mark.parametrize("dtype", ["<f4", ">f2", "<i8", "u1", "<c8"])
def test_chunks_are_read_as_h5py_reads_them(dtype: str, tmp_path: Path) -> None:
    values = np.arange(17 * 31).reshape(17, 31).astype(dtype)
    with h5py.File(tmp_path / "w.h5", "w") as file:
        for name, options in CHUNKS.items():
            file.create_dataset(name, data=values, **options)
    tree = open_weights(tmp_path / "w.h5")
    native = values.astype(values.dtype.newbyteorder("=")).tobytes()
    width = values.itemsize
    for name in CHUNKS:
        np.testing.assert_array_equal(np.asarray(tree[name]), values)
        for start, stop in ((0, 1), (30, 33), (100, 400), (526, 527)):
            part = bytearray((stop - start) * width)
            tree.source.read_into(name, start * width, memoryview(part))
            assert bytes(part) == native[start * width : stop * width]
    # A copy of the bytes of a file would have those of other chunks.
    is_in_place = {"contiguous"} if dtype != ">f2" else set()
    assert {name for name in CHUNKS if tree.source.file_range(name) is not None} == is_in_place


def test_vectors_scalars_compact_and_empty_datasets_are_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file["scalar"] = np.float64(2.5)
        file["flags"] = np.array([True, False])
        file["empty"] = np.zeros((0, 3), np.float32)
        file.create_dataset("vector", data=np.arange(100.0), chunks=(7,), compression="gzip")
        creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        creation.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple((3,))
        made = h5py.h5d.create(file.id, b"compact", h5py.h5t.IEEE_F32LE, space, creation)
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, np.arange(3, dtype=np.float32))
        file["again"] = file["vector"]
    tree = open_weights(tmp_path / "w.h5")
    assert np.asarray(tree["scalar"]) == 2.5
    np.testing.assert_array_equal(np.asarray(tree["flags"]), [True, False])
    np.testing.assert_array_equal(np.asarray(tree["compact"]), [0, 1, 2])
    assert np.asarray(tree["empty"]).shape == (0, 3)
    assert {*tree.header.aliases} | {*tree.header.tensors} == {
        "scalar", "flags", "empty", "vector", "compact", "again",
    }  # fmt: skip
    np.testing.assert_array_equal(np.asarray(tree["again"]), np.arange(100.0))
    np.testing.assert_array_equal(np.asarray(tree["vector"]), np.arange(100.0))


def test_datasets_that_are_not_numbers_are_listed(tmp_path: Path) -> None:
    pairs = np.zeros(2, [("a", "i4"), ("b", "f4")])
    write(tmp_path / "w.h5", {"words": ["a", "b"], "pairs": pairs, "nothing": h5py.Empty("f4")})
    header = open_weights(tmp_path / "w.h5").header
    assert not header.tensors
    assert header.leaves["words"] == Leaf("h5py.Dataset", "object [2]")
    assert header.leaves["nothing"] == Leaf("h5py.Dataset", "no values")
    assert {*header.leaves} == {"words", "pairs", "nothing"}
    assert header.notes == ()


def _link_out(file: Any) -> None:
    file["a"] = h5py.ExternalLink("/etc/passwd", "/b")


def _link_within(file: Any) -> None:
    file["a"] = h5py.SoftLink("/b")


def _store_outside(file: Any) -> None:
    file.create_dataset("a", (4,), "f4", external=[("/etc/passwd", 0, 16)])


def _map_outside(file: Any) -> None:
    layout = h5py.VirtualLayout((4,), "f4")
    layout[:] = h5py.VirtualSource("/etc/passwd", "b", (4,))
    file.create_virtual_dataset("a", layout)


def _leave_out_chunks(file: Any) -> None:
    file.create_dataset("a", (1 << 40, 1 << 15), "f4", chunks=(1 << 10, 1 << 10))


def _leave_out_values(file: Any) -> None:
    file.create_dataset("a", (1 << 40,), "f4")


def _compress_otherwise(file: Any) -> None:
    file.create_dataset("a", data=[1.0, 2.0], compression="lzf")


def _mix_byte_orders(file: Any) -> None:
    file["a"], file["b"] = np.zeros(2, "<f4"), np.zeros(2, ">f4")


def _nest(file: Any) -> None:
    file.create_dataset("/".join("a" * 200), data=[1.0])


def _name_twice(file: Any) -> None:
    file["a/b.c"], file["a.b/c"] = [1.0], [2.0]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_link_out, "`a` is a link to `/b` of the file `/etc/passwd`"),
        (_link_within, "`a` is a link to `/b`, and weightctl does not follow"),
        (_store_outside, "the values of `a` are in other files"),
        (_map_outside, "the values of `a` are in other files"),
        (_leave_out_chunks, "the file has 0 of the .* chunks of `a`"),
        (_leave_out_values, "`a` needs 4398046511104 bytes, but the file has none"),
        (_compress_otherwise, "`a` is stored with the filter 'lzf'"),
        (_mix_byte_orders, "different byte orders"),
        (_nest, "nested more than 100 levels deep"),
        (_name_twice, r"two of its datasets are named `a\.b\.c`"),
    ],
)
def test_hostile_files_are_refused(
    change: Callable[[Any], None], reason: str, tmp_path: Path
) -> None:
    with h5py.File(tmp_path / "w.h5", "w") as file:
        change(file)
    with pytest.raises(FormatError, match=reason):
        open_weights(tmp_path / "w.h5")


def test_a_cycle_of_groups_ends(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file["a/b"] = [1.0]
        file["a/up"] = file["/"]
    assert [*open_weights(tmp_path / "w.h5").header.tensors] == ["a.b"]


def test_truncated_files_are_refused(tmp_path: Path) -> None:
    content = write(tmp_path / "w.h5", {"a": np.ones((64, 64), "f4"), "b": [2.0]}).read_bytes()
    for size in (9, 100, 2000, len(content) - 1):
        (tmp_path / "w.h5").write_bytes(content[:size])
        with pytest.raises(FormatError, match="HDF5 file is invalid"):
            open_weights(tmp_path / "w.h5")


@pytest.mark.usefixtures("own_children")
def test_the_end_of_the_process_of_h5py_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_process, "_PROGRAM", "import os; os.abort()")
    with pytest.raises(FormatError, match="the library of HDF5 stopped"):
        open_weights(write(tmp_path / "w.h5", {"a": [1.0]}))


def test_a_chunk_that_expands_without_end_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "w.h5", "w") as file:
        made = file.create_dataset("a", (8,), "f4", chunks=(8,), compression="gzip")

        made.id.write_direct_chunk((0,), zlib.compress(bytes(1 << 24)))
    tree = open_weights(tmp_path / "w.h5")
    with pytest.raises(FormatError, match="it has 33 bytes when it is decoded, and 32 are needed"):
        np.asarray(tree["a"])


def test_a_compressed_archive_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.keras", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model.weights.h5", b"\x89HDF\r\n\x1a\n" + bytes(1 << 20))
    with pytest.raises(FormatError, match=r"`model\.weights\.h5` in it is compressed"):
        open_weights(tmp_path / "m.keras")


def test_files_of_keras_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="weightctl does not write files of Keras"):
        convert(FIXTURES / "model.h5", tmp_path / "b.h5")


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(FormatError, match="needs the package h5py") as raised:
        open_weights(FIXTURES / "model.keras")
    assert raised.value.hint == "install it: `pip install 'h5py>=3.11'`"


def test_chunks_that_take_too_much_memory_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("a", (1 << 25,), "f4", chunks=((1 << 24) + 1,), compression="gzip")
    with pytest.raises(FormatError, match=r"the chunks of `a` are too large: \[16777217\]"):
        open_weights(tmp_path / "a.h5")


@pytest.mark.long
def test_very_many_chunks_are_read_in_time_that_grows_with_their_number(tmp_path: Path) -> None:
    values = np.arange(300_000, dtype="f4")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("a", data=values, chunks=(1,), compression="gzip")
    before = time.process_time()
    found = open_weights(tmp_path / "a.h5")["a"].data().to_numpy()
    # A quadratic time was 200 s.
    assert time.process_time() - before < 60
    assert np.array_equal(found, values)
