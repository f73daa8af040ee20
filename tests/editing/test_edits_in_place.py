"""Edits that fit into the header's room write only the header.

The judges are gguf-py, safetensors and llama.cpp.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
import safetensors
import safetensors.numpy

from llama_cpp import generate
from weightctl import convert, edit, open_weights, shard
from weightctl.editing.edit import Way
from weightctl.errors import ConversionError, OutputError, WeightctlError
from weightctl.weights.metadata import MetadataValue
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from weightctl.editing.edit import Edited

ROOT = Path(__file__).parent.parent.parent
NUMBERS = np.random.default_rng(6)
TENSORS = {
    name: NUMBERS.standard_normal((32, rows), np.float32)
    for name, rows in (("a.weight", 32), ("b.weight", 64), ("c.weight", 8))
}


@pytest.fixture(params=["m.gguf", "m.safetensors"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    convert(TENSORS, tmp_path / request.param, metadata={"general.name": "old"}, header_room="2kB")
    return tmp_path / request.param


def read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the metadata and the tensors, as the reference library of the format reads them."""
    if path.suffix == ".safetensors":
        with safetensors.safe_open(path, "np") as file:
            return file.metadata(), safetensors.numpy.load_file(path)
    reader = gguf.GGUFReader(path)
    values = {key: field.contents() for key, field in reader.fields.items()}
    return values, {tensor.name: tensor.data for tensor in reader.tensors}


def assert_holds(path: Path, tensors: dict[str, Any]) -> None:
    values = read(path)[1]
    assert values.keys() == tensors.keys()
    assert all((values[name] == tensors[name]).all() for name in tensors)


def ways(edited: Edited) -> list[Way]:
    return [part.way for part in edited.parts]


def test_metadata_and_names_change_in_place(path: Path) -> None:
    before = path.stat()
    edited = edit(path, metadata={"general.name": "new" * 99}, rename="a.weight=first.weight")
    assert ways(edited) == [Way.HEADER]
    assert edited.written_bytes is not None
    assert edited.written_bytes < 8000
    assert (path.stat().st_ino, path.stat().st_size) == (before.st_ino, before.st_size)
    assert read(path)[0]["general.name"] == "new" * 99
    assert_holds(path, {"first.weight": TENSORS["a.weight"], "b.weight": TENSORS["b.weight"],
                        "c.weight": TENSORS["c.weight"]})  # fmt: skip
    assert os.listdir(path.parent) == [path.name]


def test_the_name_of_a_tensor_is_not_a_pattern(tmp_path: Path) -> None:
    convert({"a.w": TENSORS["a.weight"], "a_w": TENSORS["b.weight"]}, tmp_path / "m.gguf")
    edit(tmp_path / "m.gguf", rename="a.w=first")
    assert_holds(tmp_path / "m.gguf", {"first": TENSORS["a.weight"], "a_w": TENSORS["b.weight"]})


def test_the_last_tensors_are_cut_off_and_others_are_moved_together(path: Path) -> None:
    last = list(header_of(open_weights(path)).tensors)[-1]
    size = path.stat().st_size
    edited = edit(path, drop=last)
    assert ways(edited) == [Way.HEADER]
    assert path.stat().st_size == size - TENSORS[last].nbytes
    edited = edit(path, drop="a.*")
    assert ways(edited) == [Way.REWRITE]
    assert_holds(path, {"b.weight": TENSORS["b.weight"]})


def test_what_does_not_fit_is_a_new_file_with_room(path: Path) -> None:
    edited = edit(path, metadata={"general.name": "x" * 5000}, header_room="9kB")
    assert ways(edited) == [Way.REWRITE]
    assert_holds(path, TENSORS)
    assert ways(edit(path, metadata={"general.name": "x" * 9000})) == [Way.HEADER]
    assert read(path)[0]["general.name"] == "x" * 9000
    assert_holds(path, TENSORS)


def test_a_dry_run_writes_nothing(path: Path) -> None:
    before = path.read_bytes()
    edited = edit(path, metadata={"general.name": "new"}, unset="general.*", dry_run=True)
    assert (edited.written_bytes, path.read_bytes()) == (None, before)
    assert edited.save().written_bytes
    assert read(path)[0]["general.name"] == "new"


def test_a_file_with_a_second_name_is_replaced_and_the_other_name_keeps_the_old(path: Path) -> None:
    other = path.with_name("other")
    os.link(path, other)
    before = other.read_bytes()
    assert ways(edit(path, metadata={"general.name": "new"})) == [Way.REWRITE]
    assert other.read_bytes() == before
    assert read(path)[0]["general.name"] == "new"


def test_a_symbolic_link_stays_one(path: Path) -> None:
    link = path.with_name(f"link{path.suffix}")
    link.symlink_to(path.name)
    edit(link, metadata={"general.name": "new"})
    assert link.is_symlink()
    assert read(path)[0]["general.name"] == "new"


def test_a_file_that_is_named_by_its_hash_is_not_edited(path: Path) -> None:
    blob = path.with_name("0123456789abcdef" * 4)
    path.rename(blob)
    path.symlink_to(blob.name)
    before = blob.read_bytes()
    with pytest.raises(OutputError, match="the hash of its content"):
        edit(path, metadata={"general.name": "new"})
    assert blob.read_bytes() == before


def test_values_of_gguf_get_the_types_that_programs_expect(tmp_path: Path) -> None:
    from weightctl.plan.metadata import Setting

    path = tmp_path / "m.gguf"
    convert(TENSORS, path, metadata={"llama.block_count": MetadataValue("u16", 3)})
    (tmp_path / "t.jinja").write_text("{{ 7 }}")
    texts = (
        "llama.block_count=4", "llama.rope.freq_base=1e6", "tokenizer.ggml.add_bos_token=true",
        "general.version=1.5", 'general.tags=["a", "b"]', "llama.sections=[1, 2]",
        "my.key:u8=5", "my.text=3 bears", f"tokenizer.chat_template=@{tmp_path}/t.jinja",
    )  # fmt: skip
    edit(path, metadata=[Setting.parse(text) for text in texts])
    found = header_of(open_weights(path)).metadata
    assert {key: found[key].type for key in found} == {
        "llama.block_count": "u16", "llama.rope.freq_base": "f32", "my.key": "u8",
        "tokenizer.ggml.add_bos_token": "bool", "general.version": "string",
        "general.tags": "array[string]", "llama.sections": "array[u32]", "my.text": "string",
        "tokenizer.chat_template": "string",
    }  # fmt: skip
    assert read(path)[0]["tokenizer.chat_template"] == "{{ 7 }}"
    assert found["general.version"].content == "1.5"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"drop": "x.*"}, "there is no tensor"),
        ({"unset": "x.*"}, "there is no metadata key"),
        ({"rename": "nothing=x"}, "no tensor's name matches"),
        ({"rename": "a.weight=b.weight"}, "would have the same name"),
        ({"metadata": {"general.name": {}}}, "cannot be set to"),
        ({"header_room": "lots"}, "is not a size"),
        ({"header_room": -5, "metadata": {"general.name": "y" * 9000}}, "cannot be -5 bytes"),
    ],
)  # fmt: skip
def test_changes_that_do_not_apply_change_nothing(
    path: Path, changes: dict[str, Any], message: str
) -> None:
    before = path.read_bytes()
    with pytest.raises(WeightctlError, match=message):
        edit(path, **changes)
    assert path.read_bytes() == before


def test_formats_and_sets_that_cannot_be_edited_are_refused(tmp_path: Path) -> None:
    convert(TENSORS, tmp_path / "m.bin")
    with pytest.raises(ConversionError, match="pytorch format, which cannot be edited"):
        edit(tmp_path / "m.bin")
    shard(ROOT / "fixtures" / "tiny-llama", tmp_path / "shards", tp=2, header_room="9kB")
    assert (tmp_path / "shards" / "rank-1" / "model.safetensors").read_bytes()[5000:8000].isspace()
    with pytest.raises(ConversionError, match="a sharded checkpoint"):
        edit(tmp_path / "shards", drop="*.layers.1.*")
    with pytest.raises(ConversionError, match="does not apply to pytorch"):
        convert(TENSORS, tmp_path / "n.bin", header_room="1kB")


@pytest.mark.parametrize("room", [0, "2kB"])
def test_an_index_stays_right(tmp_path: Path, room: int | str) -> None:
    out = tmp_path / "model"
    convert(TENSORS, out, max_shard_size="10kB" if room == 0 else "12kB", header_room=room)
    assert len(header_of(open_weights(out)).files) == 2
    edit(out, rename="a.weight=first.weight", metadata={"note": "x" * 50}, drop="c.weight")
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == {"first.weight", "b.weight"}
    kept = TENSORS["a.weight"].nbytes + TENSORS["b.weight"].nbytes
    assert index["metadata"]["total_size"] == kept
    for name, file in index["weight_map"].items():
        assert name in safetensors.numpy.load_file(out / file)
    assert header_of(open_weights(out)).metadata["note"].content == "x" * 50


def test_a_set_of_gguf_files_keeps_its_numbers(tmp_path: Path) -> None:
    convert(TENSORS, tmp_path / "m.gguf", max_shard_size="10kB")
    first = min(tmp_path.iterdir())
    edit(first, drop="c.weight", metadata={"general.name": "y" * 99})
    assert header_of(open_weights(first)).tensors.keys() == {"a.weight", "b.weight"}
    for number, path in enumerate(sorted(tmp_path.iterdir())):
        values = read(path)[0]
        assert (values["split.no"], values["split.count"]) == (number, 2)
        assert values["split.tensors.count"] == 2
        assert ("general.name" in values) == (number == 0)


def test_llama_cpp_loads_a_file_with_room_as_it_loads_one_without(tmp_path: Path) -> None:
    model = ROOT / "fixtures" / "tiny-llama"
    convert(model, tmp_path / "plain.gguf")
    convert(model, tmp_path / "roomy.gguf", header_room="1MB")
    edited = edit(
        tmp_path / "roomy.gguf",
        metadata={"general.name": "new", "tokenizer.chat_template": "{{ 7 }}" * 99},
    )
    assert ways(edited) == [Way.HEADER]
    one, other = (
        generate(tmp_path / name, "The", 8, tmp_path) for name in ("plain.gguf", "roomy.gguf")
    )
    assert one == other
    # A copy does not have the room.
    convert(tmp_path / "roomy.gguf", tmp_path / "copy.gguf")
    assert "general.pad" not in read(tmp_path / "copy.gguf")[0]
    assert (tmp_path / "copy.gguf").stat().st_size < 1.1 * (tmp_path / "plain.gguf").stat().st_size


def make_sparse(path: Path, nbytes: int) -> None:
    """Write a file of this size, whose data are zeros that take no blocks."""
    rows = nbytes // 4096
    if path.suffix == ".gguf":
        convert({"w": np.zeros((1, 1024), np.float32)}, path, header_room="64kB",
                metadata={"general.name": "old"})  # fmt: skip
        raw = path.read_bytes().replace(
            struct.pack("<QQ", 1024, 1), struct.pack("<QQ", 1024, rows)
        )  # fmt: skip
        path.write_bytes(raw)
        os.truncate(path, len(raw) - 4096 + rows * 4096)
        return
    entry = {"dtype": "F32", "shape": [rows, 1024], "data_offsets": [0, rows * 4096]}
    header = json.dumps({"__metadata__": {"general.name": "old"}, "w": entry}).encode()
    header = header.ljust(64 * 1024 - 8)
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    os.truncate(path, 8 + len(header) + rows * 4096)


@pytest.mark.parametrize("name", ["m.gguf", "m.safetensors"])
def test_an_edit_of_5_gb_that_fits_writes_little_and_is_quick(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    make_sparse(path, 5_000_000_000)
    before = path.stat()
    begun = time.monotonic()
    edited = edit(path, metadata={"general.name": "new" * 1000})
    assert time.monotonic() - begun < 0.5
    assert ways(edited) == [Way.HEADER]
    assert edited.written_bytes is not None
    assert edited.written_bytes < 1_000_000
    assert path.stat().st_size == before.st_size > 4_900_000_000
    assert path.stat().st_blocks * 512 < before.st_blocks * 512 + 1_000_000
    assert header_of(open_weights(path)).metadata["general.name"].content == "new" * 1000
    shutil.rmtree(tmp_path)
